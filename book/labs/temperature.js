// Temperature and the scale: how far scores scatter decides the weights, their entropy and the gradient.

import { circle, clamp, curve, group, knob, line, number, range, rect, scale, softmax, stepOf, svg, text, total } from "./kit.js";

const DRAWN = [0.4, -1.2, 1.6, -0.6, 0.9, -1.6, 0.1, 0.4]; // like products of queries and keys at random; mean 0
const DEVIATION = Math.sqrt(total(DRAWN.map((z) => z * z)) / DRAWN.length);
const STANDARD = DRAWN.map((z) => z / DEVIATION);
const COLDEST = -1, HOTTEST = 5; // of the temperature, as powers of two
const SPREADS = range(89).map((i) => 2 ** (-5 + i / 8)); // of the curves, from 1/32 to 64

function entropyOf(weights) {
  return -total(weights.map((a) => (a > 0 ? a * Math.log(a) : 0)));
}

/* The size of the matrix of all derivatives of the weights by the scores, diag(a) − a aᵀ. */
function jacobianSize(weights) {
  return Math.sqrt(total(weights.map((a, i) => total(weights.map((b, j) => ((i === j ? a : 0) - a * b) ** 2)))));
}

function numbers({ width, divided, heat }) {
  const dK = 2 ** width, temperature = 2 ** heat;
  const spread = (divided === "yes" ? 1 : Math.sqrt(dK)) / temperature;
  const scores = STANDARD.map((z) => z * spread);
  const weights = softmax(scores);
  const along = SPREADS.map((s) => softmax(STANDARD.map((z) => z * s)));
  return {
    dK, temperature, spread, scores, weights,
    entropy: entropyOf(weights), size: jacobianSize(weights),
    entropies: along.map(entropyOf), sizes: along.map(jacobianSize),
  };
}

function layout(width) {
  const wide = width > 500;
  return {
    bars: { left: 0, top: 24, width: wide ? 330 : width, height: wide ? 170 : 130 },
    plots: { left: wide ? 384 : 4, right: width - 58, top: wide ? 24 : 244, height: wide ? 78 : 64, gap: wide ? 34 : 32 },
    height: wide ? 276 : 474,
  };
}

function acrossOf({ left, right }) {
  return scale([-5, 6], [left, right]); // of the logarithm to the base 2
}

function bars({ scores, weights, spread }, { left, top, width, height }) {
  const step = width / scores.length, y = scale([0, 1], [top + height, top + 18]);
  const middle = (i) => left + (i + 0.5) * step;
  return [
    text(left, 12, "Weights of eight keys", { class: "strong" }),
    weights.map((a, i) => [
      rect(middle(i) - step * 0.36, y(a), step * 0.72, y(0) - y(a), { class: "fill-blue" }),
      text(middle(i), y(a) - 5, number(a), { class: "minor", anchor: "middle" }),
      text(middle(i), y(0) + 17, number(scores[i], Math.abs(scores[i]) < 9.95 ? 1 : 0), { anchor: "middle" }),
    ]),
    line(left, y(0), left + width, y(0), { class: "axis" }),
    text(left + width / 2, y(0) + 38, `scores: standard deviation ${number(spread)}`, { class: "soft", anchor: "middle" }),
  ];
}

/* One quantity against the spread of the scores, with the present one marked. */
function plot(panel, place, top, { title, values, most, mark, ticks }, spread, hue) {
  const x = acrossOf(panel), y = scale([0, most], [top + panel.height, top]);
  const points = SPREADS.map((s, i) => [x(Math.log2(s)), y(values[i])]);
  return [
    text(panel.left, top - 12, title, { class: "strong halo" }),
    ticks.map((tick) => line(panel.left, y(tick), panel.right, y(tick), { class: tick ? "grid" : "axis" })),
    curve(points, { class: `line-${hue}` }),
    line(place, y(mark), panel.right + 4, y(mark), { class: "grid" }),
    circle(place, y(mark), 5, { class: `fill-${hue} line-paper` }),
    text(panel.right + 8, y(mark) + (mark < most / 8 ? -1 : 4), number(mark), { class: `${hue} strong` }),
  ];
}

function plots({ spread, entropy, size, entropies, sizes }, panel) {
  const { top, height, gap } = panel, x = acrossOf(panel);
  const second = top + height + gap, bottom = second + height;
  const place = x(clamp(Math.log2(spread), -5, 6));
  const names = ["1/16", "1/4", "1", "4", "16", "64"];
  return [
    line(place, top, place, bottom + 12, { class: "line-ink", "stroke-width": 1 }),
    plot(panel, place, top, { title: "Entropy of the weights", values: entropies, most: 2.1, mark: entropy, ticks: [0, Math.log(8)] }, spread, "blue"),
    plot(panel, place, second, { title: "Size of the gradient ∂a/∂s", values: sizes, most: 0.5, mark: size, ticks: [0, 0.5] }, spread, "orange"),
    names.map((name, i) => text(x(-4 + 2 * i), bottom + 38, name, { class: "minor", anchor: "middle" })),
    text((panel.left + panel.right) / 2, bottom + 56, "standard deviation of the scores", { class: "soft", anchor: "middle" }),
    knob(place, bottom + 12, "spread", "Standard deviation of the scores", number(spread), spread),
  ];
}

function draw(state, found, width) {
  const { bars: left, plots: right, height } = layout(width);
  return svg(width, height, bars(found, left), plots(found, right));
}

function says({ divided }, { dK, temperature, spread, weights, entropy, size }) {
  const best = Math.max(...weights);
  const scaled = divided === "yes" ? "divided by √dₖ" : "not divided by √dₖ";
  return `At dₖ = ${dK}, ${scaled}, and temperature ${number(temperature)} the scores scatter with standard deviation ${number(spread)}. Key ${weights.indexOf(best) + 1} gets weight ${number(best)}, the entropy is ${number(entropy)} of at most ${number(Math.log(8))}, and the gradient of the softmax has size ${number(size)}.`;
}

function heated(heat) {
  return { heat: clamp(Math.round(heat * 10) / 10, COLDEST, HOTTEST) };
}

function act({ width, divided, heat }, part, event) {
  const coldest = divided === "yes" ? 0 : width / 2; // the spread at temperature 1, as a power of two
  if (event.kind === "drag") return heated(coldest - acrossOf(layout(event.width).plots).back(event.x));
  const step = event.kind === "key" && stepOf(event, 0.1);
  return step && heated(heat - step[0] - step[1]);
}

export const lab = {
  name: "temperature",
  title: "Scale and temperature",
  start: { width: 4, divided: "no", heat: 0 },
  controls: [
    { kind: "slider", key: "width", label: "Width dₖ", min: 0, max: 10, step: 1, show: (w) => String(2 ** w) },
    { kind: "choice", key: "divided", label: "Divide by √dₖ", options: [["no", "no"], ["yes", "yes"]] },
    { kind: "slider", key: "heat", label: "Temperature", min: COLDEST, max: HOTTEST, step: 0.1, show: (h) => number(2 ** h) },
  ],
  numbers,
  draw,
  says,
  act,
};
