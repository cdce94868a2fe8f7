// Attention by hand: a query that can be moved, the three keys of the chapter, and what they hand over.

import { arrow, circle, clamp, dot, group, knob, line, listed, number, polygon, rect, scale, softmax, stepOf, svg, text, total } from "./kit.js";

const WORDS = ["king", "crowned", "queen"];
const KEYS = [[1, 0], [0, 0], [1, 1]]; // person, woman; where the query has 0, deed and royal, they do not count
const VALUES = [[1, 0], [0, 0], [1, 1]]; // royal, woman
const PRONOUNS = { she: [2, 2], he: [2, -2] };
const D_K = 4;
const REACH = 2.6; // of the query, in each direction
const PLANE = [-2.75, 2.75], UNIT = [-0.35, 1.35]; // what the planes of the keys and the values show

/* The panels side by side, or the two planes above the table. */
function layout(width) {
  const wide = width > 500, side = wide ? 204 : 164, top = 28;
  return {
    side,
    keys: { left: 0, top },
    values: { left: width - side, top },
    table: wide ? { left: 222, top: 18, width: 236, row: 50 } : { left: 0, top: side + 72, width, row: 44 },
    height: wide ? side + top + 22 : side + 72 + 3 * 44 + 34,
  };
}

function scalesOf({ left, top }, side, shown) {
  return [scale(shown, [left, left + side]), scale(shown, [top + side, top])];
}

function numbers({ query }) {
  const dots = KEYS.map((key) => dot(query, key));
  const scores = dots.map((product) => product / Math.sqrt(D_K));
  const weights = softmax(scores);
  const output = [0, 1].map((f) => dot(weights, VALUES.map((value) => value[f])));
  const exponentials = scores.map(Math.exp);
  return { dots, scores, exponentials, sum: total(exponentials), weights, output };
}

/* The square of a plane with its two axes. */
function plane(panel, side, shown, title, across, up) {
  const [x, y] = scalesOf(panel, side, shown);
  const { left, top } = panel;
  return [
    text(left, top - 12, title, { class: "strong" }),
    rect(left, top, side, side, { class: "grid" }),
    line(left, y(0), left + side, y(0), { class: "grid" }),
    line(x(0), top, x(0), top + side, { class: "grid" }),
    text(left + side, top + side + 15, `${across} →`, { class: "minor", anchor: "end" }),
    text(left + 5, top + 16, `${up} ↑`, { class: "minor halo" }),
  ];
}

/* Where the labels of the three words stand beside their points. */
const BESIDE = [[8, 17, "start"], [-7, 17, "end"], [9, 15, "start"]];

function wordAt(i, x, y) {
  const [dx, dy, anchor] = BESIDE[i];
  return text(x + dx, y + dy, WORDS[i], { class: "halo", anchor });
}

function keysPlane(query, panel, side) {
  const [x, y] = scalesOf(panel, side, PLANE);
  const length2 = dot(query, query);
  const far = length2 && 2.75 / Math.max(...query.map(Math.abs));
  const along = query.map((q) => q * far);
  const feet = KEYS.map((key) => query.map((q) => (length2 ? (q * dot(query, key)) / length2 : key[0])));
  const [qx, qy] = [x(query[0]), y(query[1])];
  return [
    plane(panel, side, PLANE, "Keys and query", "person", "woman"),
    length2 ? line(x(-along[0]), y(-along[1]), x(along[0]), y(along[1]), { class: "axis dashed" }) : group({}),
    KEYS.map((key, i) => line(x(key[0]), y(key[1]), x(length2 ? feet[i][0] : key[0]), y(length2 ? feet[i][1] : key[1]), { class: "line-blue" })),
    arrow(x(0), y(0), qx, qy, { class: "line-orange", back: 7 }),
    KEYS.map((key, i) => [circle(x(key[0]), y(key[1]), 5, { class: "fill-blue" }), wordAt(i, x(key[0]), y(key[1]))]),
    text(qx + (query[0] < 0 ? 10 : -10), qy + (query[1] < 0 ? 21 : -11), "query", { class: "orange strong halo", anchor: query[0] < 0 ? "start" : "end" }),
    knob(qx, qy, "query", "Query", `person ${number(query[0])}, woman ${number(query[1])}`, query[0]),
  ];
}

function table({ dots, scores, exponentials, sum, weights }, { left, top, width, row }) {
  const ends = [0.4, 0.59, 0.775, 1].map((share) => left + share * width);
  const cells = (y, values, style) => values.map((value, i) => text(ends[i], y, value, { anchor: "end", class: style }));
  const bottom = top + 20 + 3 * row;
  return [
    text(left, top - 2, "word", { class: "minor" }),
    cells(top - 2, ["q · k", "÷ √4", "exp", "÷ sum"], "minor"),
    line(left, top + 5, left + width, top + 5, { class: "grid" }),
    WORDS.map((word, i) => {
      const y = top + 24 + i * row;
      return [
        text(left, y, word),
        cells(y, [dots[i], scores[i], exponentials[i]].map((value) => number(value))),
        text(ends[3], y, number(weights[i]), { anchor: "end", class: "strong" }),
        rect(left, y + 8, width, 8, { class: "fill-panel" }),
        rect(left, y + 8, width * weights[i], 8, { class: "fill-blue" }),
      ];
    }),
    text(left, bottom + 8, "sum", { class: "soft" }),
    cells(bottom + 8, ["", "", number(sum), "1.00"], "soft"),
  ];
}

function valuesPlane({ weights, output }, panel, side) {
  const [x, y] = scalesOf(panel, side, UNIT);
  const places = VALUES.map(([royal, woman]) => [x(royal), y(woman)]);
  const [ox, oy] = [x(output[0]), y(output[1])];
  const corner = ([dx, dy]) => [ox + 8 * dx, oy + 8 * dy];
  return [
    plane(panel, side, UNIT, "Values and output", "royal", "woman"),
    polygon(places, { class: "fill-green", "fill-opacity": 0.14 }),
    places.map(([px, py], i) => line(px, py, ox, oy, { class: "line-blue", "stroke-width": 1 + 5 * weights[i], "stroke-opacity": 0.45 })),
    places.map(([px, py], i) => [circle(px, py, 3 + 9 * Math.sqrt(weights[i]), { class: "fill-blue" }), valueLabel(i, px, py)]),
    polygon([[0, -1], [1, 0], [0, 1], [-1, 0]].map(corner), { class: "fill-green line-paper" }),
    text(ox - 12, oy - 8, "output", { class: "green strong halo", anchor: "end" }),
  ];
}

function valueLabel(i, x, y) {
  return text(x, y + (i === 2 ? -17 : 26), WORDS[i], { class: "halo", anchor: "middle" });
}

function draw({ query }, found, width) {
  const { side, keys, values, table: columns, height } = layout(width);
  return svg(width, height, keysPlane(query, keys, side), table(found, columns), valuesPlane(found, values, side));
}

function says({ query }, { weights, output }) {
  const best = Math.max(...weights);
  const fitting = WORDS.filter((_, i) => best - weights[i] < 1e-9);
  const who = Object.keys(PRONOUNS).find((pronoun) => PRONOUNS[pronoun].every((q, f) => q === query[f]));
  const place = `(${query.map((q) => number(q)).join(", ")})`;
  const fits = fitting.length === 3 ? "fits all three keys alike" : `fits ${listed(fitting)} best`;
  return `The query ${place}${who ? `, that of ${who},` : ""} ${fits}: weight ${number(best)}${fitting.length > 1 ? " each" : ""}. The output is royal ${number(output[0])}, woman ${number(output[1])}.`;
}

function moved(place) {
  return { query: place.map((q) => clamp(Math.round(q * 20) / 20, -REACH, REACH)) };
}

function act({ query }, part, event) {
  if (event.kind === "drag") {
    const { keys, side } = layout(event.width);
    const [x, y] = scalesOf(keys, side, PLANE);
    return moved([x.back(event.x), y.back(event.y)]);
  }
  const step = event.kind === "key" && stepOf(event, 0.1, 5);
  return step && moved(query.map((q, f) => q + step[f]));
}

export const lab = {
  name: "attention",
  title: "Attention by hand",
  start: { query: PRONOUNS.she },
  controls: Object.entries(PRONOUNS).map(([label, query]) => ({ kind: "button", label: `Query of ${label}`, change: () => ({ query }) })),
  numbers,
  draw,
  says,
  act,
};
