// Where the heads of two models look: all of them as small maps, one opened, and from one token.

import { clamp, group, listed, range, rect, stepOf, svg, text } from "./kit.js";
import { record } from "./heads_record.js";
import { besides, columnsOf, flow, labels, percent, seen, shortened } from "./tokens.js";

export const MOST = 22; // tokens of a sentence of the reader's
const LEVELS = [[0.08, 0.3], [0.25, 0.6], [0.5, 1]]; // of a small map: from this weight on, this opacity
const FIRST = "O Romeo, Romeo! wherefore art thou Romeo?"; // a sentence to begin with
const TITLES = ["To be, or not to be", "A horse! a horse!", "Love looks not with the eyes"];

/* What is shown */

export function sentenceOf({ model, sentence, place }) {
  return sentence === null && place?.model === model ? place : record[model][sentence ?? 0];
}

function numbers(state) {
  const { tokens, A } = sentenceOf(state);
  const own = A[state.layer][state.head].map((row) => row.map((share) => share / 1000));
  const token = Math.min(state.token, tokens.length - 1);
  const row = tokens.map((_, j) => own[token][j] ?? 0);
  const found = row.map((share, j) => [j, share]).sort((a, b) => b[1] - a[1]);
  const mean = (shares) => shares.reduce((sum, share) => sum + share, 0) / Math.max(shares.length, 1);
  const scores = {
    before: mean(own.slice(1).map((shares, i) => shares[i])),
    itself: mean(own.map((shares, i) => shares[i])),
    first: mean(own.slice(2).map((shares) => shares[0])),
  };
  return { tokens, A, own, token, row, most: found.slice(0, 3), scores };
}

/* The picture */

/* Every head as a button with a map of its weights: a row for each token that looks. */
export function allHeads(x, y, pitch, state, { A, tokens }) {
  const n = tokens.length;
  const size = pitch - 2;
  const heads = A[0].length;
  const maps = A.flatMap((layer, l) =>
    layer.map((rows, h) => {
      const open = l === state.layer && h === state.head;
      const button = { "data-part": `head-${l}-${h}`, role: "button", tabindex: open ? 0 : -1, "aria-pressed": String(open), "aria-label": `layer ${l}, head ${h}`, "data-focus": open && state.held === "head" };
      const marks = LEVELS.map(([least, opacity], i) => {
        const below = LEVELS[i + 1]?.[0] ?? Infinity;
        const cells = rows.flatMap((row, q) => row.map((share, k) => (share >= 1000 * least && share < 1000 * below ? `M${k} ${q}h1v1h-1z` : "")));
        return `<path d="${cells.join("")}" fill-opacity="${opacity}" class="fill-blue"></path>`;
      });
      const [left, top] = [x + 18 + pitch * h, y + 34 + pitch * l];
      return group(button,
        rect(left - 1, top - 1, pitch, pitch, { class: "reach" }),
        rect(left, top, size, size, { class: "fill-panel" }),
        group({ transform: `translate(${left.toFixed(1)} ${top.toFixed(1)}) scale(${(size / n).toFixed(3)})` }, marks),
        open && rect(left - 0.5, top - 0.5, size + 1, size + 1, { class: "fill-none line-orange", rx: 2 }));
    }));
  return group({},
    text(x, y + 13, `All ${A.length * heads} heads`, { class: "strong" }),
    text(x + 18, y + 28, "head 0", { class: "minor" }),
    text(x + 18 + pitch * heads - 2, y + 28, String(heads - 1), { class: "minor", anchor: "end" }),
    range(A.length).map((l) => text(x + 12, y + 34 + pitch * l + size / 2 + 4, String(l), { class: "minor", anchor: "end" })),
    maps);
}

/* The sentence: the darker a token, the more of the weight of the framed one goes there. */
export function sentence(x, y, places, state, { tokens, token, row }) {
  return tokens.map((piece, i) => {
    const [left, top] = [x + places[i].left, y + 29 * places[i].row];
    const own = i === token;
    const part = { "data-part": `token-${i}`, "data-hover": true, role: "button", tabindex: own ? 0 : -1, "aria-pressed": String(own), "aria-label": `${seen(piece)}: ${percent(row[i])}`, "data-focus": own && state.held === "token" };
    return group(part,
      rect(left, top, places[i].wide, 25, { rx: 4, class: "fill-panel" }),
      rect(left, top, places[i].wide, 25, { rx: 4, class: "fill-blue", "fill-opacity": row[i] }),
      own && rect(left, top, places[i].wide, 25, { rx: 4, class: "fill-none line-orange" }),
      text(left + places[i].wide / 2, top + 17, besides(piece), { anchor: "middle", class: row[i] > 0.5 ? "mono on-blue" : "mono" }));
  });
}

/* The weights of the opened head: rows look, columns are looked at. */
function openedMap(x, y, width, { tokens, own, token }) {
  const n = tokens.length;
  const label = Math.min(Math.max(...tokens.map((piece) => columnsOf(seen(piece)))) * 7.3 + 6, 66);
  const cell = Math.min((width - label) / n, 20);
  const [left, top] = [x + label, y + label];
  const name = (i) => shortened(seen(tokens[i]), label);
  const rows = own.map((shares, i) =>
    group({ "data-part": `row-${i}`, "data-hover": true },
      rect(x, top + cell * i, label + cell * n, cell, { class: "reach" }),
      text(left - 5, top + cell * (i + 0.5) + 4, name(i), { anchor: "end", class: i === token ? "minor mono strong" : "minor mono" }),
      shares.map((share, j) => share >= 0.005 && rect(left + cell * j, top + cell * i, cell - 0.5, cell - 0.5, { class: "fill-blue", "fill-opacity": share }))));
  const columns = range(n).map((j) => {
    const place = left + cell * (j + 0.5) + 4;
    return text(place, top - 5, name(j), { class: "minor mono", transform: `rotate(-90 ${place.toFixed(1)} ${top - 5})` });
  });
  return group({},
    rect(left, top, cell * n, cell * n, { class: "fill-panel" }),
    columns, rows,
    rect(left - 1, top + cell * token - 1, cell * n + 1.5, cell + 1.5, { class: "fill-none line-orange" }));
}

/* Where the numbers come from. */
export function origin({ model, sentence, place }) {
  if (sentence === null && place?.model === model) return model === "writer" ? "computed in this page" : "computed in this page, with weights in bytes";
  return model === "writer" || record.megabytes.encoder ? "recorded" : "recorded: its weights (90 MB) are not on this site";
}

function draw(state, found, width) {
  const wide = width > 500;
  const top = wide ? 22 : 40;
  const places = flow(found.tokens.map((piece) => (state.model === "encoder" ? ` ${piece}` : piece)), width);
  const lines = Math.max(places.at(-1).row + 1, wide ? 2 : 4);
  const heads = found.A[0].length;
  const pitch = heads > 6 ? (wide ? 25 : 26) : wide ? 50 : 38;
  const below = top + 29 * lines + 14;
  const [x, y, room] = wide ? [346, below - 12, width - 346] : [0, below + 34 + 6 * pitch + 6, width];
  return svg(width, wide ? below + 344 : y + width + 4,
    text(0, 13, `Layer ${state.layer}, head ${state.head}: where “${seen(found.tokens[found.token])}” looks`, { class: "strong" }),
    wide ? text(width, 13, origin(state), { class: "minor", anchor: "end" }) : text(0, 30, origin(state), { class: "minor" }),
    sentence(0, top, places, state, found),
    allHeads(0, below, pitch, state, found),
    openedMap(x, y, room, found));
}

function says(state, { tokens, token, most, scores }) {
  if (state.loaded[state.model] === "asked") return "The model is on its way.";
  if (state.loaded[state.model] === "failed") return "The model could not be loaded. The recorded sentences can be read without it.";
  const parts = most.filter(([, share]) => share >= 0.05).map(([j, share]) => `${percent(share)} to ${j === token ? "itself" : `“${seen(tokens[j])}”`}`);
  const of = state.model === "writer" ? "the writer" : "the sentence encoder";
  return `In ${of} this head gives ${percent(scores.before)} of its weight to the token before, ${percent(scores.itself)} to the token itself and ${percent(scores.first)} to the first, on average. From “${seen(tokens[token])}” it gives ${listed(parts) || "little to each"}.`;
}

/* A model reads a sentence of the reader's. */
async function next(state) {
  const { model, words } = state;
  const loaded = state.loaded[model];
  if (loaded !== "asked" && loaded !== "ready") return undefined;
  const { load, afterReading, attentionOf } = await import("./loaded.js");
  if (loaded === "asked") return load(model).then(() => ({ ...now(state, "ready"), words: words || FIRST, sentence: null }), () => now(state, "failed"));
  const of = `${model} ${words}`;
  if (state.sentence !== null || state.place?.of === of) return undefined;
  const { tokenizer } = await load(model);
  const all = tokenizer.encode(words, MOST);
  const ids = all.slice(0, MOST);
  if (!words.trim()) return { sentence: 0 };
  const shares = (row) => Array.from(row, (share) => Math.round(1000 * share));
  const tokens = (model === "writer" ? labels(tokenizer.pieces(all)) : ids.map((id) => tokenizer.tokens[id])).slice(0, MOST);
  if (model === "encoder") return { place: { of, model, tokens, A: (await attentionOf(ids)).map((layer) => layer.map((rows) => rows.map(shares))) } };
  const rows = await afterReading(ids, (writer) => [...writer.rows]);
  const A = rows[0].map((layer, l) => layer.map((_, h) => rows.map((row) => shares(row[l][h]))));
  return { place: { of, model, tokens, A } };
}

const now = ({ loaded, model }, how) => ({ loaded: { ...loaded, [model]: how } });
const isReady = ({ loaded, model }) => loaded[model] === "ready";

export function loader(name) {
  const able = ({ loaded }) => loaded[name] !== "asked";
  const when = ({ model, loaded }) => model === name && loaded[name] !== "ready";
  return { kind: "button", label: `Load the ${name} to read your own sentence (${record.megabytes[name]} MB)`, change: (state) => now(state, "asked"), able, when };
}

export const lab = {
  name: "heads",
  title: "Where each head looks",
  start: { model: "writer", sentence: 0, layer: 2, head: 0, token: 8, held: null, words: "", loaded: { writer: "no", encoder: "no" }, place: null },
  controls: [
    {
      ...{ kind: "choice", key: "model", label: "Model", options: [["writer", "The writer"], ["encoder", "The sentence encoder"]] },
      change: (model, { sentence, head }) => ({ sentence: sentence ?? 0, head: model === "writer" ? Math.min(head, 5) : head }),
    },
    { kind: "choice", key: "sentence", label: "Sentence", options: TITLES.map((title, i) => [i, title]) },
    ...Object.keys(record.megabytes).map(loader),
    { kind: "text", key: "words", label: `Your own sentence, of at most ${MOST} tokens`, change: (words, { sentence }) => ({ sentence: words ? null : (sentence ?? 0) }), when: isReady },
  ],
  numbers,
  draw,
  says,
  next,
  act(state, part, event) {
    const [kind, ...place] = part.split("-");
    const [first, second] = place.map(Number);
    const step = event.kind === "key" ? stepOf(event) : undefined;
    if (kind === "head") {
      if (event.kind === "press") return { layer: first, head: second, held: "head" };
      const { A } = sentenceOf(state);
      return step && { layer: clamp(first - step[1], 0, A.length - 1), head: clamp(second + step[0], 0, A[0].length - 1), held: "head" };
    }
    if (event.kind === "press" || event.kind === "enter") return { token: first, held: "token" };
    if (event.kind !== "key") return undefined;
    const { tokens } = sentenceOf(state);
    return step && { token: clamp(first + step[0] - step[1], 0, tokens.length - 1), held: "token" };
  },
};
