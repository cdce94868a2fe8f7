// A query and a key of the writer at two places: what rotary positions, and sines that are added, make of their score.

import { circle, clamp, curve, group, knob, line, number, range, rect, scale, stepOf, svg, text, total } from "./kit.js";

// Block 3, head 3, after "Good morrow to you, my gracious": it looks at the token before. Before they are rotated.
export const VECTORS = {
  queryWord: "gracious",
  query: [-3.17, -2.85, -3.47, -0.5, 1.25, 1.04, 1.31, -2.84, -6, -1.36, -1.13, 0.81, -0.96, 0.63, 0.34, 0.54, -2.75, -1.79, 1.01, 2.35, 2.69, 0.54, 1.96, 2.09, 0.05, -0.31, -0.7, -0.63, -0.97, -0.83, -0.49, -0.49],
  keyWord: "my",
  key: [-1.28, 1.95, -3.91, -0.09, 1.51, 0.21, 2.13, 3.68, -0.39, -0.84, 3.09, -1.35, -1.73, -2.36, 0.76, 0.08, -5.84, -2.91, 1, 2.42, 3.04, -0.09, -0.79, -0.03, 11.69, -2.19, 0.84, -2.85, 0.53, 3.13, 1.71, 0.09],
};
const { query: QUERY, key: KEY, queryWord: QUERY_WORD, keyWord: KEY_WORD } = VECTORS;
const WIDTH = 32, PAIRS = WIDTH / 2;
const FARTHEST = 24; // distance of the curve
const LATEST = 40; // place of the key

/* The numbers */

/* The pairs of features in halves, l with l + 16, of a vector that stands at a place. */
function placed(x, place, { kind, base }) {
  return range(PAIRS).map((l) => {
    const angle = place * (10 ** base) ** (-l / PAIRS), [c, s] = [Math.cos(angle), Math.sin(angle)];
    const [a, b] = [x[l], x[l + PAIRS]];
    return kind === "rotary" ? [a * c - b * s, a * s + b * c] : [a + s, b + c];
  });
}

function partsOf(query, key) {
  return query.map(([a, b], l) => (a * key[l][0] + b * key[l][1]) / Math.sqrt(WIDTH));
}

function numbers(state) {
  const { distance, place } = state;
  const scoresFrom = (keyPlace) =>
    range(FARTHEST + 1).map((away) => total(partsOf(placed(QUERY, keyPlace + away, state), placed(KEY, keyPlace, state))));
  const query = placed(QUERY, place + distance, state), key = placed(KEY, place, state);
  const parts = partsOf(query, key);
  // what the sines of the two places would have for a score: it depends on the distance alone
  const ofSines = total(range(PAIRS).map((l) => Math.cos(distance * (10 ** state.base) ** (-l / PAIRS)))) / Math.sqrt(WIDTH);
  return { query, key, parts, ofSines, score: total(parts), scores: scoresFrom(place), still: scoresFrom(0) };
}

/* The picture */

const SPAN = LATEST + FARTHEST;
const SCORES = { rotary: [-20, 10], sines: [0, 16] };
const TALL = 2; // pixels of a bar for each 1 of the score

/* The rail of places, with both tokens on it. */
function rail(width) {
  return scale([0, SPAN], [50, width - 16]);
}

function railPanel({ distance, place }, width) {
  const x = rail(width), [qx, kx] = [x(place + distance), x(place)];
  return [
    [[28, "query", "orange"], [66, "key", "blue"]].map(([y, name, colour]) => [
      text(0, y + 4.5, name, { class: `${colour} strong` }),
      line(x(0), y, x(SPAN), y, { class: "grid" }),
    ]),
    range(SPAN / 8 + 1).map((i) => [line(x(8 * i), 62, x(8 * i), 70, { class: "grid" }), text(x(8 * i), 86, 8 * i, { class: "minor", anchor: "middle" })]),
    line(qx, 28, kx, 66, { class: "axis dashed" }),
    circle(kx, 66, 6, { class: "fill-blue" }),
    text(clamp(kx, 70, width - 20), 56, KEY_WORD, { class: "halo", anchor: "middle" }),
    text(clamp(qx, 80, width - 30), 7, QUERY_WORD, { class: "halo", anchor: "middle" }),
    knob(qx, 28, "query", "Position of the query", `position ${place + distance}, ${distance} after the key`, place + distance),
  ];
}

/* A pair of features: both of its hands, and below what it adds to the score. */
function dial([a, b], [c, d], part, cx, cy, longest) {
  const hand = (dx, dy, most, style) => {
    const length = Math.hypot(dx, dy) || 1;
    return line(cx, cy, cx + (17 * dx) / length, cy - (17 * dy) / length, { class: style, "stroke-width": 1 + (4 * length) / most, "stroke-linecap": "round" });
  };
  const height = Math.min(TALL * Math.abs(part), 28), base = cy + 48;
  return [
    circle(cx, cy, 17, { class: "grid" }),
    hand(c, d, longest.key, "line-blue"),
    hand(a, b, longest.query, "line-orange"),
    line(cx - 12, base, cx + 12, base, { class: "grid" }),
    rect(cx - 8, part > 0 ? base - height : base, 16, height, { class: part > 0 ? "fill-green" : "fill-pink" }),
  ];
}

function longestOf(x) {
  return Math.max(...range(PAIRS).map((l) => Math.hypot(x[l], x[l + PAIRS])));
}

function dialPanel({ base }, { query, key, parts }, top, width) {
  const row = width > 500 ? 16 : 8, step = width / row;
  const longest = { query: longestOf(QUERY), key: longestOf(KEY) };
  const bottom = top + 22 + Math.ceil(PAIRS / row) * 104;
  const turn = (l) => Math.round(2 * Math.PI * (10 ** base) ** (l / PAIRS));
  return [
    text(0, top, "What each pair of features adds", { class: "strong" }),
    range(PAIRS).map((l) => dial(query[l], key[l], parts[l], (l % row + 0.5) * step, top + 34 + Math.floor(l / row) * 104, longest)),
    text(0, bottom, `← one turn in ${grouped(turn(0))} positions`, { class: "minor" }),
    text(width, bottom, `one turn in ${grouped(turn(PAIRS - 1))} positions →`, { class: "minor", anchor: "end" }),
  ];
}

/* 10000 as 10,000 */
function grouped(n) {
  return String(n).replace(/\B(?=(\d{3})+$)/g, ",");
}

function curvePanel({ distance, kind }, { scores, still, score }, top, width) {
  const x = scale([0, FARTHEST], [34, width - 10]), [low, high] = SCORES[kind], y = scale([low, high], [top + 160, top + 10]);
  const points = (list) => list.map((value, away) => [x(away), y(value)]);
  return [
    text(0, top - 10, "Score by distance", { class: "strong" }),
    text(width, top - 10, "dashed: the key at position 0", { class: "minor", anchor: "end" }),
    (kind === "rotary" ? [-20, -10, 0, 10] : [0, 5, 10, 15]).map((value) => [line(x(0), y(value), x(FARTHEST), y(value), { class: "grid" }), text(x(0) - 6, y(value) + 4, number(value, 0), { class: "minor", anchor: "end" })]),
    range(7).map((i) => text(x(4 * i), top + 178, 4 * i, { class: "minor", anchor: "middle" })),
    text(x(FARTHEST), top + 194, "positions from the key to the query", { class: "minor", anchor: "end" }),
    curve(points(still), { class: "line-soft dashed" }),
    curve(points(scores), { class: "line-green", "stroke-width": 2.5 }),
    line(x(distance), y(low), x(distance), y(score), { class: "axis dashed" }),
    circle(x(distance), y(score), 6, { class: "fill-green line-paper" }),
    text(clamp(x(distance) + 10, 0, width - 40), y(score) - 8, number(score), { class: "green strong halo" }),
  ];
}

function draw(state, found, width) {
  const below = width > 500 ? 280 : 384;
  return svg(width, below + 200, railPanel(state, width), dialPanel(state, found, 116, width), curvePanel(state, found, below, width));
}

function says({ kind, distance, place }, { score, scores, still, ofSines }) {
  const where = distance ? `${distance} position${distance > 1 ? "s" : ""} after` : "at the position of";
  const change = Math.max(...scores.map((value, i) => Math.abs(value - still[i])));
  const then = place ? `A shift of both by ${place}` : "Shift both, and see what changes.";
  if (kind === "rotary") {
    const why = place ? " has changed no score, for both hands of each pair have turned by the same angle." : "";
    return `The query of ${QUERY_WORD}, ${where} ${KEY_WORD}, gives its key the score ${number(score)}. ${then}${why}`;
  }
  const what = place ? ` has changed scores by up to ${number(change)}.` : "";
  return `The score is ${number(score)}. ${number(ofSines)} of it is the product of the sines alone, which only the distance changes. ${then}${what}`;
}

function act({ distance, place }, part, event) {
  if (event.kind === "drag") return { distance: clamp(Math.round(rail(event.width).back(event.x)) - place, 0, FARTHEST) };
  const step = event.kind === "key" && stepOf(event);
  return step && { distance: clamp(distance + step[0] + step[1], 0, FARTHEST) };
}

export const lab = {
  name: "positions",
  title: "Positions and scores",
  start: { kind: "rotary", base: 4, distance: 1, place: 8 },
  controls: [
    { kind: "choice", key: "kind", label: "Positions", options: [["rotary", "Rotary"], ["sines", "Sines, added"]] },
    { kind: "slider", key: "place", label: "Shift both by", min: 0, max: LATEST, step: 1 },
    { kind: "slider", key: "base", label: "Base of the frequencies", min: 2, max: 6, step: 1, show: (base) => grouped(10 ** base) },
  ],
  numbers,
  draw,
  says,
  act,
};
