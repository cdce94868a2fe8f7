// A state as a matrix that fills: tokens are written by one of three rules, and keys read back.

import { arrow, clamp, dot, knob, line, number, range, rect, stepOf, svg, text } from "./kit.js";

const NAMES = ["king", "thane", "lord", "king"];
const WRITTEN = ["Duncan", "Banquo", "Ross", "Macbeth"];
const VALUES = [[2, 0], [0, 3], [5, 5], [1, 1]];
const STEPS = { sum: [1, 0], fading: [0.5, 0], delta: [1, 1] }; // decay, and how much is erased
const RIGHT_ANGLE = 90, MOST = 11; // of an entry, for its colour

function keysOf(angle) {
  const turned = (angle * Math.PI) / 180, king = [1, 0];
  return [king, [0, 1], [Math.cos(turned), Math.sin(turned)], king];
}

function read(state, key) {
  return [0, 1].map((j) => dot(state.map((row) => row[j]), key));
}

function numbers({ tokens, rule, angle }) {
  const keys = keysOf(angle), [decay, erased] = STEPS[rule];
  let state = [[0, 0], [0, 0]];
  for (const t of range(tokens)) {
    state = state.map((row) => row.map((x) => decay * x));
    const held = read(state, keys[t]);
    const added = VALUES[t].map((v, j) => v - erased * held[j]);
    state = state.map((row, i) => row.map((x, j) => x + keys[t][i] * added[j]));
  }
  const reads = [0, 1, 2].map((t) => read(state, keys[t]));
  const latest = [0, 1, 2].map((t) => (t === 0 && tokens === 4 ? 3 : t));
  return { keys, state, reads, wanted: latest.map((t) => VALUES[t]), latest };
}

function layout(width) {
  const wide = width > 500;
  return {
    circle: { x: 14, y: wide ? 196 : 186, r: wide ? 150 : 140 },
    matrix: { left: wide ? 226 : 192, top: 76, cell: 58 },
    table: { left: wide ? 390 : 0, top: wide ? 34 : 250, width: wide ? 290 : width },
    height: wide ? 236 : 412,
  };
}

function signed(x) {
  return number(x, 1);
}

function circleOf({ keys }, tokens, { x, y, r }) {
  const hues = ["blue", "green", "orange"];
  return [
    text(0, 14, "Keys", { class: "strong" }),
    line(x, y, x + r, y, { class: "grid" }),
    line(x, y, x, y - r, { class: "grid" }),
    [0, 1, 2].map((t) => {
      const [px, py] = [x + r * keys[t][0], y - r * keys[t][1]];
      const shown = { class: `line-${hues[t]}`, "stroke-width": 2.5, "stroke-opacity": t < tokens ? 1 : 0.25 };
      const place = [{ x: px - 4, y: py + 18, anchor: "end" }, { x: px + 8, y: py + 4 }, { x: x + 0.6 * (px - x) + 10, y: y + 0.6 * (py - y) + 14 }][t];
      return [arrow(x, y, px, py, shown), text(place.x, place.y, NAMES[t], { anchor: place.anchor, class: "halo" })];
    }),
  ];
}

function matrixOf({ state }, { left, top, cell }) {
  return [
    text(left, 14, "State", { class: "strong" }),
    text(left, top - 34, "2 rows for the key,", { class: "minor" }),
    text(left, top - 18, "2 columns for the value", { class: "minor" }),
    state.map((row, i) => row.map((x, j) => [
      rect(left + j * cell, top + i * cell, cell - 3, cell - 3, { class: "fill-panel" }),
      rect(left + j * cell, top + i * cell, cell - 3, cell - 3, { class: x < 0 ? "fill-orange" : "fill-blue", "fill-opacity": 0.5 * Math.min(Math.abs(x) / MOST, 1) }),
      text(left + (j + 0.5) * cell - 2, top + (i + 0.5) * cell + 3, signed(x), { anchor: "middle", class: "strong" }),
    ])),
  ];
}

function tableOf({ reads, wanted, latest }, tokens, { left, top, width }) {
  const columns = [0, width * 0.24, width * 0.64];
  const pair = (values) => `(${values.map(signed).join(", ")})`;
  return [
    ["key", "last written", "returned"].map((name, i) => text(left + columns[i], top, name, { class: "soft" })),
    line(left, top + 10, left + width, top + 10, { class: "axis" }),
    [0, 1, 2].map((t) => {
      const y = top + 36 + 48 * t, isThere = t < tokens;
      const exact = isThere && reads[t].every((x, j) => Math.abs(x - wanted[t][j]) < 1e-6);
      return [
        text(left + columns[0], y, NAMES[t], { class: isThere ? "strong" : "soft" }),
        text(left + columns[1], y, isThere ? pair(wanted[t]) : "–"),
        isThere && text(left + columns[1], y + 16, WRITTEN[latest[t]], { class: "minor" }),
        text(left + columns[2], y, isThere ? pair(reads[t]) : "–", { class: exact ? "green strong" : "" }),
        isThere && text(left + columns[2], y + 16, exact ? "exact" : "mixed", { class: "minor" }),
      ];
    }),
  ];
}

function draw({ tokens, angle }, found, width) {
  const { circle, matrix, table, height } = layout(width);
  const [px, py] = [circle.x + circle.r * found.keys[2][0], circle.y - circle.r * found.keys[2][1]];
  return svg(width, height,
    circleOf(found, tokens, circle), matrixOf(found, matrix), tableOf(found, tokens, table),
    knob(px, py, "lord", "Angle of the key lord, in degrees", `${angle} degrees`, angle));
}

function says({ tokens, rule, angle }, { reads, wanted }) {
  if (!tokens) return "The state is empty.";
  const error = Math.hypot(...reads[0].map((x, j) => x - wanted[0][j]));
  const names = { sum: "a sum", fading: "a decay of 0.5", delta: "the delta rule" };
  const last = tokens === 4 ? "Macbeth" : "Duncan";
  return `With ${names[rule]} and ${tokens} ${tokens > 1 ? "tokens" : "token"} written, the last at ${[0, 90, angle, 0][tokens - 1]} degrees, king returns (${reads[0].map(signed).join(", ")}), which is ${number(error, 1)} from the value of ${last}.`;
}

function turned(angle) {
  return { angle: clamp(Math.round(angle), 0, RIGHT_ANGLE) };
}

function act({ angle }, part, event) {
  if (event.kind === "drag") {
    const { x, y } = layout(event.width).circle;
    return turned((Math.atan2(Math.max(y - event.y, 0), Math.max(event.x - x, 0)) * 180) / Math.PI);
  }
  const step = event.kind === "key" && stepOf(event, 1, 10);
  return step && turned(angle - step[0] + step[1]);
}

export const lab = {
  name: "state",
  title: "A state that fills",
  start: { tokens: 3, rule: "sum", angle: 53 },
  controls: [
    { kind: "slider", key: "tokens", label: "Tokens written", min: 0, max: 4, step: 1 },
    { kind: "choice", key: "rule", label: "Rule", options: [["sum", "sum"], ["fading", "decay 0.5"], ["delta", "delta rule"]] },
  ],
  numbers,
  draw,
  says,
  act,
};
