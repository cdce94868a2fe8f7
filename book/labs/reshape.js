// Splitting heads: where each entry lands by reshape and swap, and by the bare reshape.

import { clamp, group, line, pressable, range, rect, stepOf, svg, text, total } from "./kit.js";

const WORDS = ["to", "be", "or", "not"];
const HUES = ["blue", "orange", "green", "yellow"]; // of the words
const N = WORDS.length, WIDTH = 8; // tokens, and features of all heads together
const CELLS = N * WIDTH;
const LABEL = 28, CELL = 33, HIGH = 30, GAP = 10;

/* The place [head, row, column] of an entry, which memory has at number `at`. */
function placeOf(at, h, way) {
  const d = WIDTH / h, feature = at % WIDTH, column = feature % d;
  if (way === "swap") return [Math.floor(feature / d), Math.floor(at / WIDTH), column];
  return [Math.floor(at / (N * d)), Math.floor(at / d) % N, column];
}

function numbers({ heads, way, cell }) {
  const places = range(CELLS).map((at) => placeOf(at, heads, way));
  const arrays = range(heads).map(() => range(N).map(() => range(WIDTH / heads)));
  places.forEach(([i, r, c], at) => (arrays[i][r][c] = at));
  const token = (at) => Math.floor(at / WIDTH);
  return {
    arrays, // (h, n, d): the number in memory of what stands there
    place: places[cell],
    token: token(cell),
    feature: cell % WIDTH,
    own: total(places.map(([, r], at) => Number(r === token(at)))),
    later: places.map(([, r], at) => token(at) > r), // which entries a causal mask no longer hides
  };
}

function layout(width, heads) {
  const wide = width > 500;
  const across = LABEL + WIDTH * CELL + (heads - 1) * GAP;
  return {
    matrix: { left: 0, top: 46 },
    memory: { left: 0, top: wide ? 224 : 206, width },
    heads: { left: wide ? width - across : 0, top: wide ? 46 : 296 },
    height: wide ? 252 : 296 + N * HIGH + 8,
  };
}

function cellAt(x, y, at, picked, leaks, attributes) {
  const hue = HUES[Math.floor(at / WIDTH)];
  const label = `${Math.floor(at / WIDTH)}.${at % WIDTH}`;
  return group(
    attributes,
    rect(x, y, CELL - 2, HIGH - 2, { rx: 3, class: `fill-${hue}`, "fill-opacity": 0.3 }),
    leaks ? line(x + 4, y + HIGH - 5.5, x + CELL - 6, y + HIGH - 5.5, { class: "line-bad" }) : group({}),
    picked ? rect(x - 1, y - 1, CELL, HIGH, { rx: 4, class: "fill-none line-ink" }) : group({}),
    text(x + CELL / 2 - 1, y + 18, label, { anchor: "middle" }),
  );
}

function matrix({ left, top }, cell) {
  return [
    text(left, 14, `Q: shape (${N}, ${WIDTH})`, { class: "strong" }),
    text(left + LABEL, 36, "a row per token; 2.5 is feature 5 of or", { class: "minor" }),
    WORDS.map((word, token) => [
      text(left, top + token * HIGH + 19, word),
      range(WIDTH).map((feature) => {
        const at = token * WIDTH + feature, picked = at === cell;
        const part = { ...pressable(`cell-${at}`, `Feature ${feature} of ${word}`, picked), tabindex: picked ? 0 : -1, "data-focus": picked };
        return cellAt(left + LABEL + feature * CELL, top + token * HIGH, at, picked, false, part);
      }),
    ]),
  ];
}

function memory({ left, top, width }, cell, run) {
  const step = width / CELLS;
  return [
    text(left, top - 8, "In memory, row by row", { class: "strong" }),
    range(CELLS).map((at) => rect(left + at * step, top, step - (at % run === run - 1 ? 2.5 : 0), 20, { class: `fill-${HUES[Math.floor(at / WIDTH)]}`, "fill-opacity": 0.5 })),
    rect(left + cell * step - 1, top - 3, step + 1, 26, { rx: 2, class: "fill-none line-ink" }),
  ];
}

function split({ left, top }, { arrays, later }, cell) {
  const h = arrays.length, d = WIDTH / h;
  return [
    text(left, top - 32, `Heads: shape (${h}, ${N}, ${d})`, { class: "strong" }),
    range(N).map((row) => text(left, top + row * HIGH + 19, WORDS[row], { class: "soft" })),
    arrays.map((array, i) => {
      const at = left + LABEL + i * (d * CELL + GAP);
      return [
        text(at, top - 10, `head ${i}`, { class: "minor" }),
        array.map((row, r) => row.map((source, c) =>
          cellAt(at + c * CELL, top + r * HIGH, source, source === cell, later[source], { "data-part": `cell-${source}` }))),
      ];
    }),
  ];
}

function draw({ heads, way, cell }, found, width) {
  const { matrix: first, memory: strip, heads: last, height } = layout(width, heads);
  const run = WIDTH / heads; // what lies together in memory stays together
  return svg(width, height, matrix(first, cell), memory(strip, cell, run), split(last, found, cell));
}

function says({ way }, { place: [head, row], token, feature, own, later }) {
  const what = `Feature ${feature} of “${WORDS[token]}”`;
  const start = `${what} lands in head ${head}, row ${row}`;
  const place = row === token ? "the row of its own token" : row < token ? `the row of “${WORDS[row]}”, which a causal mask should keep from seeing it` : `the row of “${WORDS[row]}”`;
  const sum = own === CELLS ? `All ${CELLS} entries are in the row of their token.` : `${own} of ${CELLS} entries are in the row of their token, and ${total(later.map(Number))} (underlined) come too early.`;
  return `${start}: ${place}. ${sum}`;
}

function act({ cell }, part, event) {
  if (event.kind === "press") return { cell: Number(part.slice("cell-".length)) };
  const step = event.kind === "key" && stepOf(event, 1, 1);
  if (!step) return undefined;
  const row = clamp(Math.floor(cell / WIDTH) - step[1], 0, N - 1);
  return { cell: row * WIDTH + clamp((cell % WIDTH) + step[0], 0, WIDTH - 1) };
}

export const lab = {
  name: "reshape",
  title: "Splitting heads",
  start: { way: "bare", heads: 2, cell: 21 },
  controls: [
    { kind: "choice", key: "way", label: "Split by", options: [["swap", "reshape, then swap"], ["bare", "bare reshape"]] },
    { kind: "choice", key: "heads", label: "Heads", options: [[1, "1"], [2, "2"], [4, "4"]] },
  ],
  numbers,
  draw,
  says,
  act,
};
