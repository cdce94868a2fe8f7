// FlashAttention's loop, tile by tile: what it keeps of the keys read so far, and what travels.

import { clamp, group, line, listed, range, rect, scale, svg, tag, text, total } from "./kit.js";

// Their products are whole, and the scale is ln 2: every exponential is a power of two. The first
// query and the values are those of the chapter.
const QUERIES = [[1, 0], [0, 1], [1, 1], [2, 0], [0, 2], [2, 1]];
const KEYS = [[1, 0], [0, 2], [2, 1], [2, 0], [3, 0], [0, 3]];
const VALUES = [6, 0, 3, 5, 2, 9];
const N = 6, NAMES = "abcdef";
const BYTES = 4; // of a number in float32
const OF_QUERY = 2, OF_KEY = 3, OF_STATE = 3, OF_OUTPUT = 1; // numbers of a query, of a key with its value, of m, z and u

/* The numbers */

function scoreOf(i, j) {
  return Math.LN2 * total(QUERIES[i].map((q, f) => q * KEYS[j][f]));
}

/* The tiles in the order of the loop, but those in which no query may see a key. */
function tilesOf({ size, outside, causal }) {
  const starts = range(N / size).map((i) => i * size);
  const tiles = starts.flatMap((outer) => starts.map((inner) => (outside === "queries" ? { top: outer, left: inner } : { top: inner, left: outer })));
  return tiles.filter(({ top, left }) => !causal || left < top + size);
}

/* The keys of a tile that query i may see. */
function seenOf(i, { left }, { size, causal }) {
  return range(size).map((j) => left + j).filter((j) => !causal || j <= i);
}

/* The state of a row after some more keys, and the factor by which the old one was multiplied. */
function after({ m, z, u }, i, keys) {
  const most = Math.max(m, ...keys.map((j) => scoreOf(i, j)));
  const rescale = z ? Math.exp(m - most) : 1;
  const exponentials = keys.map((j) => Math.exp(scoreOf(i, j) - most));
  return { m: most, z: rescale * z + total(exponentials), u: rescale * u + total(exponentials.map((e, k) => e * VALUES[keys[k]])), rescale };
}

/* How many numbers come from slow memory and go back for each tile of the loop. */
function travels(tiles, { size, outside }) {
  return tiles.map((tile) => {
    const row = tiles.filter(({ top }) => top === tile.top), column = tiles.filter(({ left }) => left === tile.left);
    const isFirst = row[0] === tile, isLast = row.at(-1) === tile;
    if (outside === "queries") {
      return size * (OF_KEY + (isFirst ? OF_QUERY : 0) + (isLast ? OF_OUTPUT : 0));
    }
    const states = (isFirst ? 0 : OF_STATE) + (isLast ? OF_OUTPUT : OF_STATE);
    return size * (OF_QUERY + states + (column[0] === tile ? OF_KEY : 0));
  });
}

function numbers(state) {
  const { size } = state, tiles = tilesOf(state);
  const step = stepIn(state, 0);
  let rows = range(N).map(() => ({ m: -Infinity, z: 0, u: 0, rescale: 1 }));
  for (const tile of tiles.slice(0, step)) {
    rows = rows.map((row, i) => (i >= tile.top && i < tile.top + size ? after(row, i, seenOf(i, tile, state)) : { ...row, rescale: 1 }));
  }
  const travelled = travels(tiles, state).map((n) => BYTES * n);
  return {
    tiles, step,
    exponentials: range(N).map((i) => range(N).map((j) => Math.exp(scoreOf(i, j)))),
    // before its first key the maximum of a row is −∞, which JSON lacks
    rows: rows.map(({ m, z, u, rescale }) => ({ m: z ? m : null, z, u, rescale, output: z ? u / z : null })),
    travelled: total(travelled.slice(0, step)),
    whole: total(travelled),
    plain: BYTES * (4 * N * N + N * (OF_QUERY + OF_KEY + OF_OUTPUT)),
    fast: BYTES * (size * size + size * (OF_QUERY + OF_KEY + OF_STATE)),
  };
}

/* The picture */

const CELL = 42, LEFT = 58, TOP = 66, ROW = 42;

/* Up to four decimals, and no zeros at the end. */
function plainly(value) {
  return String(Math.round(value * 10000) / 10000);
}

function gridOf(state, { tiles, step, exponentials }) {
  const { size, causal } = state, side = size * CELL, now = tiles[step - 1];
  const place = ({ top, left }) => [LEFT + left * CELL, TOP + top * CELL];
  const isNow = (start, i) => now && i >= start && i < start + size;
  const chip = (x, y, width, height) => rect(x, y, width, height, { class: "fill-yellow", "fill-opacity": 0.34, rx: 4 });
  return [
    text(LEFT, 16, "keys and values", { class: "minor" }),
    text(0, TOP - 8, "queries", { class: "minor" }),
    tag("text", { x: LEFT, y: TOP + N * CELL + 18, class: "minor" }, "amber: e", tag("tspan", { dy: -4 }, "s"), tag("tspan", { dy: 4 }, " of the tile; others: their order")),
    now ? [chip(LEFT + now.left * CELL + 2, 22, side - 4, TOP - 26), chip(12, TOP + now.top * CELL + 2, LEFT - 18, side - 4)] : group({}),
    range(N).map((j) => [
      text(LEFT + (j + 0.5) * CELL, 39, NAMES[j], { anchor: "middle", class: isNow(now?.left, j) ? "strong" : "" }),
      text(LEFT + (j + 0.5) * CELL, 56, VALUES[j], { anchor: "middle", class: "soft" }),
      text(32, TOP + (j + 0.5) * CELL + 4.5, j + 1, { anchor: "middle", class: isNow(now?.top, j) ? "strong" : "" }),
    ]),
    range(N / size).flatMap((a) => range(N / size).map((b) => ({ top: a * size, left: b * size }))).map((tile) => {
      const [x, y] = place(tile), order = tiles.findIndex(({ top, left }) => top === tile.top && left === tile.left) + 1;
      if (!order) return rect(x + 2, y + 2, side - 4, side - 4, { class: "grid dashed", rx: 4 });
      const look = order === step ? { class: "fill-yellow", "fill-opacity": 0.34 } : order < step ? { class: "fill-blue", "fill-opacity": 0.16 } : { class: "grid reach", "fill-opacity": 1 };
      return group({ "data-part": `tile ${order}` },
        rect(x + 2, y + 2, side - 4, side - 4, { ...look, rx: 4 }),
        order === step ? cellsOf(tile, state, exponentials) : text(x + side / 2, y + side / 2 + 4.5, order, { anchor: "middle", class: "soft" }));
    }),
  ];
}

/* The exponentials of the tile that is read: the only scores that there are now. */
function cellsOf(tile, state, exponentials) {
  return range(state.size).map((a) =>
    seenOf(tile.top + a, tile, state).map((j) =>
      text(LEFT + (j + 0.5) * CELL, TOP + (tile.top + a + 0.5) * CELL + 4.5, plainly(exponentials[tile.top + a][j]), { anchor: "middle" })));
}

/* What is known of each row; in a wide picture its line goes on into this table. */
function statesOf({ size }, { tiles, step, rows }, { left, top, width, row }) {
  const now = tiles[step - 1];
  const ends = [0.22, 0.46, 0.7, 1].map((share) => left + share * width);
  const heads = [["e", "m"], ["z"], ["u"], ["u / z"]];
  return [
    heads.map(([head, power], k) => tag("text", { x: ends[k] - (k === 3 ? 8 : 0), y: top - 10, "text-anchor": "end", class: "soft" }, head, power ? tag("tspan", { dy: -5 }, power) : "")),
    now ? rect(left, top + now.top * row + 2, width, size * row - 4, { class: "fill-yellow", "fill-opacity": 0.34, rx: 4 }) : group({}),
    rows.map(({ m, z, u, rescale, output }, i) => {
      const y = top + (i + 0.5) * row + 4.5, changed = rescale < 1;
      const words = m === null ? ["", "", "", "–"] : [plainly(Math.exp(m)), plainly(z), plainly(u), plainly(output)];
      return [
        line(left, top + (i + 1) * row, left + width, top + (i + 1) * row, { class: "grid" }),
        left ? group({}) : text(left + 4, y, i + 1, { class: "soft" }),
        words.map((word, k) => text(ends[k] - (k === 3 ? 8 : 0), y - (changed && (k === 1 || k === 2) ? 6 : 0), word, { anchor: "end", class: k === 3 ? "strong" : "" })),
        changed ? [1, 2].map((k) => text(ends[k], y + 9, `× ${plainly(rescale)}`, { anchor: "end", class: "orange minor" })) : group({}),
      ];
    }),
  ];
}

/* Bytes as bars on one scale. */
function barsOf({ travelled, whole, plain, fast }, top, width) {
  const x = scale([0, Math.max(plain, whole)], [0, width]);
  const bars = [
    ["moved if all scores are stored", `${plain} bytes`, plain, "fill-soft"],
    ["moved by this loop so far", `${travelled} of ${whole} bytes`, travelled, "fill-blue", whole],
    ["needed in fast memory", `${fast} bytes`, fast, "fill-yellow"],
  ];
  return bars.map(([label, value, length, style, end], i) => {
    const y = top + 42 * i;
    return [
      text(0, y, label),
      text(width, y, value, { anchor: "end", class: "strong" }),
      rect(0, y + 7, x(length), 10, { class: style, rx: 2 }),
      end ? rect(0.5, y + 7.5, x(end) - 1, 9, { class: "fill-none axis", rx: 2 }) : group({}),
    ];
  });
}

function draw(state, found, width) {
  const wide = width > 500, below = TOP + N * CELL;
  const table = wide ? { left: 350, top: TOP, width: 330, row: ROW } : { left: 0, top: below + 66, width: 340, row: 38 };
  const bars = wide ? below + 56 : table.top + N * table.row + 40;
  return svg(width, bars + 106, gridOf(state, found), statesOf(state, found, table), barsOf(found, bars, width));
}

function says({ size }, { tiles, step, rows, travelled, whole, plain }) {
  const tile = tiles[step - 1];
  if (!tile) return `Nothing is read yet. ${tiles.length} tiles wait.`;
  const changed = range(size).map((i) => tile.top + i).filter((i) => rows[i].rescale < 1);
  const factors = changed.map((i) => plainly(rows[i].rescale));
  const one = changed.length === 1;
  const what = changed.length
    ? `In row${one ? "" : "s"} ${listed(changed.map((i) => i + 1))} the maximum grows, so z and u are first multiplied by ${listed(factors)}.`
    : tiles.slice(0, step - 1).some(({ top }) => top === tile.top)
      ? "No maximum grows, so nothing is rescaled."
      : "There was nothing to rescale: these are the first keys for " + (size === 1 ? "it." : "them.");
  const end = step < tiles.length ? "" : ` This was the last tile: u / z is the output of attention, for ${whole} bytes moved in place of ${plain}.`;
  const queries = listed(range(size).map((i) => tile.top + i + 1)), keys = listed(range(size).map((j) => NAMES[tile.left + j]));
  const who = size === 1 ? `query ${queries} reads key ${keys}` : `queries ${queries} read keys ${keys}`;
  return `Tile ${step} of ${tiles.length}: ${who}. ${what}${end}`;
}

/* The step that a state is at, moved by so many tiles. */
function stepIn(state, by) {
  const n = tilesOf(state).length;
  return clamp(Math.min(state.step, n) + by, 0, n);
}

function act(state, part, event) {
  return event.kind === "press" && { step: Number(part.split(" ")[1]) };
}

export const lab = {
  name: "tiles",
  title: "FlashAttention, tile by tile",
  start: { size: 2, outside: "queries", causal: false, step: 5 },
  controls: [
    { kind: "button", label: "Back", change: (state) => ({ step: stepIn(state, -1) }), able: (state) => stepIn(state, 0) > 0 },
    { kind: "button", label: "Next tile", change: (state) => ({ step: stepIn(state, 1) }), able: (state) => stepIn(state, 0) < tilesOf(state).length },
    { kind: "choice", key: "size", label: "Side of a tile", options: [[1, "1"], [2, "2"], [3, "3"]] },
    { kind: "choice", key: "outside", label: "Outer loop", options: [["queries", "queries"], ["keys", "keys"]] },
    { kind: "choice", key: "causal", label: "Mask", options: [[false, "none"], [true, "causal"]] },
  ],
  numbers,
  draw,
  says,
  act,
};
