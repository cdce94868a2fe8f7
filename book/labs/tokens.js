// Tokens as words in a picture.

export const LETTER = 7.9; // px, of the fixed-width type at 13 px

/* A token as it is shown. */
export function seen(piece) {
  return piece === "" ? "■" : piece.replace(/\n/g, "↵").trim() || "␣";
}

/* Where tokens stand in lines of `width`: `left`, `row` and `wide` of each. A space before a token is a
wider gap, and a line break in it ends a line. */
export function flow(pieces, width) {
  let [left, row] = [0, 0];
  return pieces.map((piece, i) => {
    const wide = Math.max(seen(piece).length, 2) * LETTER + 9;
    const gap = left === 0 ? 0 : piece.startsWith(" ") ? 6 : 2;
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
  return words.length > n ? `${words.slice(0, Math.max(n - 1, 1))}…` : words;
}

/* 0.123 as "12 %", with two digits below one tenth. */
export function percent(p) {
  if (p >= 0.0995) return `${Math.round(100 * p)}\u00a0%`;
  return p < 1e-6 ? "< 0.0001\u00a0%" : `${Number((100 * p).toPrecision(p < 1e-5 ? 1 : 2))}\u00a0%`;
}
