// Tokens as words in a picture.

import { characters, halves, utf8 } from "./arrays.js";

export const LETTER = 7.9; // px, of the fixed-width type at 13 px

/* What is shown of tokens that follow one another, which `pieces` of writer.js makes: a part of a character
is the character with the numbers of its bytes, é[1/2], and a byte of no character is its number, <0xC3>.
attnbook.data.shown_tokens has the same rules. */
export function labels(pieces) {
  const bytes = pieces.map(bytesOf);
  const owners = bytes.flatMap((own, i) => own.map(() => i));
  const shown = pieces.map(() => "");
  let begin = 0;
  for (const character of together(bytes.flat())) {
    const size = isHalf(character) ? 1 : utf8(character).length;
    const own = owners.slice(begin, begin + size);
    begin += size;
    for (const i of new Set(own)) {
      const [first, last] = [own.indexOf(i) + 1, own.lastIndexOf(i) + 1];
      if (last - first + 1 === size) shown[i] += isHalf(character) ? byteOf(character) : character;
      else shown[i] += `${nameOf(character)}[${first === last ? first : `${first}–${last}`}/${size}]`;
    }
  }
  return shown;
}

/* What is shown of a token after others. */
export function labelAfter(pieces, piece) {
  return labels([...pieces.slice(-3), piece]).at(-1); // a character has four bytes at most
}

/* The text of tokens. */
export function textOf(pieces) {
  return together(pieces.flatMap(bytesOf)).map((character) => (isHalf(character) ? byteOf(character) : character)).join("");
}

const isHalf = (character) => /^[\udc80-\udcff]$/u.test(character);
const byteOf = (half) => `<0x${(half.charCodeAt(0) - 0xdc00).toString(16).toUpperCase()}>`;
const codeOf = (character) => `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

function bytesOf(piece) {
  return Array.from(piece).flatMap((character) => (isHalf(character) ? [character.charCodeAt(0) - 0xdc00] : utf8(character)));
}

/* The characters of bytes. */
function together(bytes) {
  return Array.from(characters(bytes, halves));
}

/* A character alone: its code if nothing can be seen. */
function nameOf(character) {
  if (/^[\ufe00-\ufe0f]$|^[^\p{L}\p{M}\p{N}\p{P}\p{S}]$/u.test(character)) return codeOf(character);
  return /^\p{M}$/u.test(character) ? `◌${character}` : character;
}

/* A label as it is shown. */
export function seen(label) {
  if (label === "") return "■";
  const words = label.replace(/\n/g, "↵").trim() || "␣";
  return words.replace(/[\p{Cc}\p{Cf}]/gu, codeOf).replace(/^(##)?(?=\p{M})/u, "$&◌");
}

/* A label among its neighbours: a character whose parts stand side by side is there once, with the first. */
export function besides(label) {
  return seen(label).replace(LATER, "");
}

const LATER = /^(?:U\+[\dA-F]+|◌?.)(?=\[[2-4][–/])/u;

/* Text in lines of at most `most` letters, broken at spaces where there is one. */
export function linesOf(words, most) {
  const lines = [];
  for (let line of words.split("\n")) {
    while (columnsOf(line) > most) {
      const letters = Array.from(line);
      let end = letters.length;
      while (end > 1 && columnsOf(letters.slice(0, end).join("")) > most) end--;
      const gap = letters.slice(0, end + 1).lastIndexOf(" ");
      lines.push(letters.slice(0, gap > 0 ? gap : end).join(""));
      line = letters.slice(gap > 0 ? gap + 1 : end).join("");
    }
    lines.push(line);
  }
  return lines;
}

/* How many columns words take in fixed-width type: two for a Chinese character or an emoji, none for a mark. */
export function columnsOf(words) {
  const wide = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Emoji_Presentation}\u3000-\u303f\uff01-\uff60]/u;
  const of = (character) => (wide.test(character) ? 2 : /\p{M}/u.test(character) ? 0 : 1);
  return Array.from(words).reduce((sum, character) => sum + of(character), 0);
}

/* Where tokens stand in lines of `width`: `left`, `row` and `wide` of each. A space before a token is a
wider gap, the parts of a character touch, and a line break in a token ends a line. */
export function flow(pieces, width) {
  let [left, row] = [0, 0];
  return pieces.map((piece, i) => {
    const wide = Math.max(columnsOf(besides(piece)), 2) * LETTER + 9;
    const gap = left === 0 || LATER.test(seen(piece)) ? 0 : piece.startsWith(" ") ? 6 : 2;
    if (left > 0 && left + gap + wide > width) [left, row] = [0, row + 1];
    const place = { left: left + (left > 0 ? gap : 0), row, wide };
    left = place.left + wide;
    if (piece.includes("\n") && i < pieces.length - 1) [left, row] = [0, row + 1];
    return place;
  });
}

/* As much of a word as has room. */
export function shortened(words, room) {
  const n = Math.floor(room / LETTER);
  if (columnsOf(words) <= n) return words;
  const letters = Array.from(words);
  while (letters.length > 1 && columnsOf(letters) > n - 1) letters.pop();
  return `${letters.join("")}…`;
}

/* 0.123 as "12 %", with two digits below one tenth. */
export function percent(p) {
  if (p >= 0.0995) return `${Math.round(100 * p)}\u00a0%`;
  return p < 1e-6 ? "< 0.0001\u00a0%" : `${Number((100 * p).toPrecision(p < 1e-5 ? 1 : 2))}\u00a0%`;
}
