// The bytes of a KV cache: eight models, with the bits of a number and the layers that keep everything.

import { clamp, group, line, number, rect, scale, stepOf, svg, text, total } from "./kit.js";

// Groups of layers: how many, the numbers that each keeps for a token, and its window (0: all tokens).
const MODELS = [
  ["GPT-2 XL", [[48, 3200, 0]]],
  ["Llama 3.1 8B", [[32, 2048, 0]]],
  ["Mistral 7B v0.1", [[32, 2048, 4096]]],
  ["Qwen3-8B", [[36, 2048, 0]]],
  ["Gemma 3 12B", [[40, 4096, 1024], [8, 4096, 0]]],
  ["gpt-oss-20b", [[12, 1024, 128], [12, 1024, 0]]],
  ["DeepSeek-V3", [[61, 576, 0]]],
  ["the writer", [[6, 128, 0]]],
];
const KEPT = { own: 0, half: 2, sixth: 6 }; // one layer in so many is global
const WORDS = { own: "as published", half: "one in two", sixth: "one in six" };
const LEAST = 2 ** 18, MOST = 2 ** 40; // bytes, of the axis

/* The groups of a model of which one layer in `every` is global and the others have a window. */
function mixed(groups, every, window) {
  const layers = total(groups.map(([n]) => n)), globals = Math.round(layers / every);
  return [[layers - globals, groups[0][1], window], [globals, groups[0][1], 0]];
}

function bytesOf(groups, n, bits) {
  return total(groups.map(([layers, width, window]) => layers * width * Math.min(n, window || n))) * bits / 8;
}

function numbers({ context, bits, kept, window }) {
  const n = 2 ** context, every = KEPT[kept];
  const changed = MODELS.map(([, groups]) => (every ? mixed(groups, every, 2 ** window) : groups));
  return {
    n,
    sizes: changed.map((groups) => bytesOf(groups, n, Number(bits))),
    published: MODELS.map(([, groups]) => bytesOf(groups, n, 16)),
  };
}

function sized(bytes) {
  const step = clamp(Math.floor(Math.log2(bytes) / 10), 0, 4);
  const value = bytes / 2 ** (10 * step);
  return `${number(value, value < 9.95 ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][step]}`;
}

function counted(n) {
  return n < 1000 ? String(n) : String(n).replace(/\B(?=(\d{3})+$)/g, ",");
}

function draw({ model, held }, { sizes, published }, width) {
  const pitch = 32, left = 118, right = width - 72, bottom = 30 + pitch * MODELS.length;
  const at = scale([Math.log2(LEAST), Math.log2(MOST)], [left, right]);
  const place = (bytes) => at(clamp(Math.log2(bytes), Math.log2(LEAST), Math.log2(MOST)));
  const ticks = [[20, "MiB"], [30, "GiB"], [40, "TiB"]];
  return svg(width, bottom + 24,
    text(0, 13, "Size of the whole cache", { class: "strong" }),
    ticks.map(([power, name]) => [
      line(at(power), 24, at(power), bottom, { class: "grid" }),
      text(at(power), bottom + 17, `1 ${name}`, { anchor: "middle", class: "minor" }),
    ]),
    MODELS.map(([name], i) => {
      const y = 30 + pitch * i, isChosen = i === model;
      const row = { "data-part": `model-${i}`, role: "button", tabindex: isChosen ? 0 : -1, "aria-pressed": String(isChosen), "aria-label": name, "data-focus": isChosen && held };
      return group(row,
        rect(0, y, width, pitch, { class: "reach" }),
        text(0, y + 20, name, { class: isChosen ? "strong" : "" }),
        rect(left, y + 6, place(sizes[i]) - left, 20, { class: isChosen ? "fill-blue" : "fill-soft" }),
        line(place(published[i]), y + 3, place(published[i]), y + 29, { class: "line-orange" }),
        text(Math.max(place(sizes[i]), place(published[i])) + 6, y + 20, sized(sizes[i]), { class: isChosen ? "blue strong halo" : "halo" }));
    }),
    line(left, 24, left, bottom, { class: "axis" }));
}

function says({ model, bits, kept, window }, { n, sizes, published }) {
  const layers = KEPT[kept] ? `, with ${WORDS[kept]} layers global and a window of ${counted(2 ** window)} tokens in the others` : "";
  const share = sizes[model] / published[model];
  const than = Math.abs(share - 1) < 0.005 ? "which is what it keeps as published in 16 bits" : `${number(100 * share, share < 0.1 ? 1 : 0)} % of what it keeps as published in 16 bits`;
  return `After ${counted(n)} tokens the cache of ${MODELS[model][0]} takes ${sized(sizes[model])} with ${bits} bits per number${layers}: ${than} (orange line). That is ${sized(sizes[model] / n)} per token.`;
}

export const lab = {
  name: "cache",
  title: "The bytes of a cache",
  start: { model: 1, context: 17, bits: "16", kept: "own", window: 10, held: false },
  controls: [
    { kind: "slider", key: "model", label: "Model", min: 0, max: MODELS.length - 1, step: 1, show: (i) => MODELS[i][0] },
    { kind: "slider", key: "context", label: "Tokens", min: 8, max: 20, step: 1, show: (c) => counted(2 ** c) },
    { kind: "choice", key: "bits", label: "Bits", options: [["16", "16"], ["8", "8"], ["4", "4"]] },
    { kind: "choice", key: "kept", label: "Global layers", options: Object.entries(WORDS) },
    { kind: "slider", key: "window", label: "Window of the others", min: 6, max: 14, step: 1, show: (w) => counted(2 ** w), when: ({ kept }) => kept !== "own" },
  ],
  numbers,
  draw,
  says,
  act({ model }, part, event) {
    if (event.kind === "press") return { model: Number(part.split("-")[1]), held: true };
    const step = event.kind === "key" && stepOf(event);
    return step ? { model: clamp(model - step[1], 0, MODELS.length - 1), held: true } : undefined;
  },
};
