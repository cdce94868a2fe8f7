// Numbers from a file of the site, a few operations on them, and text as bytes.

// A file is the length of a header in four bytes, the header in JSON, and arrays: its `arrays` name each,
// with its length and its kind, f2 (half precision) or i1 (a byte). Returns the header with the arrays.
export function arraysOf(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(characters(new Uint8Array(buffer, 4, length)));
  const arrays = {};
  let at = 4 + length;
  for (const [name, n, kind] of header.arrays) {
    arrays[name] = kind === "i1" ? new Int8Array(buffer, at, n) : float32(new Uint16Array(buffer, at, n));
    at += kind === "i1" ? n : 2 * n;
  }
  return { ...header, arrays };
}

let singles; // the number of each of the 65,536 patterns of half precision

function float32(halves) {
  singles ??= Float32Array.from({ length: 65536 }, (_, bits) => {
    const [sign, exponent, part] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, (bits & 1023) / 1024];
    return sign * (exponent ? (1 + part) * 2 ** (exponent - 15) : part * 2 ** -14);
  });
  const numbers = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; i++) numbers[i] = singles[halves[i]];
  return numbers;
}

// x (n) times W (n, m), row by row of W as it lies in memory.
export function times(x, W) {
  const m = W.length / x.length;
  const out = new Float32Array(m);
  for (let i = 0, at = 0; i < x.length; i++) {
    const factor = x[i];
    for (let j = 0; j < m; j++, at++) out[j] += factor * W[at];
  }
  return out;
}

export function add(x, y) {
  for (let i = 0; i < x.length; i++) x[i] += y[i];
}

export function softmax(scores) {
  const most = scores.reduce((a, b) => Math.max(a, b), -Infinity);
  const powers = scores.map((score) => Math.exp(score - most));
  const total = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / total);
}

// The bytes of a text in UTF-8; half a character becomes U+FFFD.
export function utf8(text) {
  return Array.from(text).flatMap((character) => {
    let code = character.codePointAt(0);
    if (code >= 0xd800 && code < 0xe000) code = 0xfffd;
    if (code < 0x80) return [code];
    const tail = (shift) => 0x80 | ((code >> shift) & 63);
    if (code < 0x800) return [0xc0 | (code >> 6), tail(0)];
    if (code < 0x10000) return [0xe0 | (code >> 12), tail(6), tail(0)];
    return [0xf0 | (code >> 18), tail(12), tail(6), tail(0)];
  });
}

// Bytes that are no UTF-8 as halves of characters, U+DC00 and the byte, as "surrogateescape" of Python has them.
export function halves(bytes) {
  return bytes.map((byte) => String.fromCharCode(0xdc00 + byte)).join("");
}

// The text of bytes, as TextDecoder has it: what is no UTF-8 becomes U+FFFD, or what `lost` makes of it.
export function characters(bytes, lost = () => "\ufffd") {
  let text = "";
  for (let i = 0; i < bytes.length; ) {
    const begin = i;
    const first = bytes[i++];
    const more = first < 0x80 ? 0 : first < 0xc2 ? -1 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : first < 0xf5 ? 3 : -1;
    let code = more < 0 ? -1 : first & [0x7f, 0x1f, 0x0f, 0x07][more];
    // no character in more bytes than it needs, no half of one, none beyond the last
    let [low, high] = [{ 0xe0: 0xa0, 0xf0: 0x90 }[first] ?? 0x80, { 0xed: 0x9f, 0xf4: 0x8f }[first] ?? 0xbf];
    for (let left = more; left > 0; left--) {
      if (!(bytes[i] >= low && bytes[i] <= high)) {
        code = -1;
        break;
      }
      code = (code << 6) | (bytes[i++] & 63);
      [low, high] = [0x80, 0xbf];
    }
    text += code < 0 ? lost(bytes.slice(begin, i)) : String.fromCodePoint(code);
  }
  return text;
}
