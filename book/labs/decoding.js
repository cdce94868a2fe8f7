// Decoding: what a sampler leaves of the next token's distribution, a beam search, and the KV cache;
// first as it was recorded, then by the writer itself, after any beginning.

import { group, line, pressable, range, rect, softmax, svg, text, total } from "./kit.js";
import { record } from "./decoding_record.js";
import { besides, flow, labelAfter, labels, percent, seen, shortened, textOf } from "./tokens.js";

const STEPS = 5; // of a beam search
const MOST = 60; // tokens that are written
const KIB = 3; // of the cache a token: 768 numbers in float32
const LAYERS = 6;
const TOP_K = [1, 2, 3, 5, 10, 20, 50, 100, 200, 500, Infinity];

/* The mathematics */

/* What temperature, top-k, top-p and min-p, in this order, leave of log-probabilities that fall: the
distribution that is drawn from, as in attnbook.decoding.sampler. */
export function filtered(logP, { temperature, topK, topP, minP }) {
  const z = logP.map((x) => x / temperature);
  let kept = Math.min(topK, z.length);
  if (topP < 1) {
    const p = softmax(z.slice(0, kept));
    for (let n = 0, before = 0; n < kept; before += p[n++]) if (before >= topP) kept = n;
  }
  while (z[kept - 1] < z[0] + Math.log(minP)) kept--;
  return [...softmax(z.slice(0, kept)), ...z.slice(kept).fill(0)];
}

/* A beam search in a table, which has for each beginning, its ids with commas, the likeliest next tokens
as [id, text, log p]. It stops where the table does, at `missing`. */
export function beams(table, width, steps = STEPS) {
  let kept = [{ ids: [], words: [], logP: 0, ended: false, greedy: true }];
  const columns = [];
  const wanting = () => kept.find((one) => !one.ended && !(one.ids in table));
  while (columns.length < steps && !kept.every((one) => one.ended) && !wanting()) {
    const grown = kept.flatMap((one, parent) => {
      if (one.ended) return [{ ...one, parent }];
      return table[one.ids].map(([id, words, gain], i) => ({
        ids: [...one.ids, id],
        words: [...one.words, words],
        logP: one.logP + gain,
        ended: words === "",
        greedy: one.greedy && i === 0,
        parent,
      }));
    });
    grown.sort((a, b) => b.logP - a.logP);
    kept = grown.slice(0, width);
    columns.push({ kept, dropped: grown.slice(width) });
  }
  return { columns, missing: columns.length < steps ? wanting()?.ids : undefined };
}

/* A number in [0, 1) for the n-th draw: the same for the same seed. */
export function uniform(seed, n) {
  let t = (Math.imul(seed, 0x9e3779b9) + Math.imul(n, 0x85ebca6b) + 0x6d2b79f5) | 0;
  t = Math.imul(t ^ (t >>> 15), t | 1);
  t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
  return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
}

/* The rank on whose piece of [0, 1) the number falls. */
export function drawn(q, xi) {
  let rank = 0;
  for (let passed = q[0]; passed <= xi && q[rank + 1] > 0; passed += q[++rank]);
  return rank;
}

/* What is shown */

const settings = ({ temperature, topK, topP, minP }) => ({ temperature, topK: TOP_K[topK], topP, minP });

/* What the writer said after a beginning, as it was recorded. */
function recorded(number) {
  const { pieces, next, steps, table } = record.beginnings[number];
  let sum = 0;
  const logP = steps.map((step) => (sum += step) / 1000);
  const inNats = (row) => row.map(([id, words, gain]) => [id, words, gain / 1000]);
  const whole = Object.fromEntries(Object.entries(table).map(([ids, row]) => [ids, inNats(row)]));
  return { pieces, made: 0, read: pieces.length + 1, next, logP, table: whole };
}

function numbers(state) {
  const place = state.place ?? recorded(state.beginning);
  const p = softmax(place.logP);
  const q = filtered(place.logP, settings(state));
  const kept = q.filter((share) => share > 0).length;
  const { columns } = beams(place.table, state.beams);
  return { ...place, p, q, kept, mass: total(p.slice(0, kept)), columns };
}

/* A beginning as the plays have it: the name of a speaker has a line of its own. */
export const asPlay = (words) => words.replace(/^([A-Z][A-Z ]*): */, "$1:\n");
const oneLine = (words) => words.replace(/:\n/, ": ");
const count = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");

/* The picture */

/* The text, token by token, each with its column of the cache: orange is what the last pass has read. */
function cachePicture(x, y, width, lines, { pieces, made, read, of }) {
  const tokens = ["start", ...labels(pieces)];
  const places = flow(tokens, width);
  const first = Math.max(0, places.at(-1).row - lines + 1);
  const n = tokens.length;
  const hidden = places.filter((one) => one.row < first).length;
  const columns = range(n).slice(hidden).map((i) => {
    const [own, at] = [x + places[i].left, y + 22 + 47 * (places[i].row - first)];
    const isNew = i >= n - read;
    return group({},
      rect(own, at, places[i].wide, 22, { rx: 4, class: i > n - 1 - made ? "fill-accent" : "fill-panel" }),
      text(own + places[i].wide / 2, at + 15.5, besides(tokens[i]), { anchor: "middle", class: i ? (i > n - 1 - made ? "mono strong" : "mono") : "minor" }),
      range(LAYERS).map((layer) => rect(own, at + 24 + 3 * layer, places[i].wide, 2, { class: isNew ? "fill-orange" : "fill-blue" })));
  });
  const bottom = y + 30 + 47 * Math.min(places.at(-1).row + 1, lines);
  const kept = n - read;
  return group({},
    text(x, y + 13, hidden ? `The text; ${hidden} tokens before these lines` : "The text, and its KV cache below it", { class: "strong" }),
    columns,
    rect(x, bottom - 8, 10, 10, { class: "fill-orange" }),
    text(x + 15, bottom + 1, `${read} read in the last pass`),
    kept > 0 && [rect(x + 200, bottom - 8, 10, 10, { class: "fill-blue" }), text(x + 215, bottom + 1, `${kept} kept`)],
    text(x, bottom + 19, `KV cache: ${n} tokens × ${KIB} KiB = ${n * KIB} KiB${of ? ", in this page" : ", recorded"}`, { class: "minor" }));
}

/* The likeliest tokens: outlines are the model's own probabilities, bars what is drawn from. */
function barsPicture(x, y, width, shown, { pieces, next, p, q, kept, mass }, { minP, live }) {
  const highest = Math.max(p[0], q[0]);
  const limit = [0.2, 0.4, 0.6, 0.8].find((edge) => highest <= edge) ?? 1;
  const [name, end, row] = [84, 58, 25];
  const long = (share) => ((width - name - end) * share) / limit;
  const least = x + name + long(minP * q[0]);
  const bottom = y + 20 + row * shown;
  const rows = next.slice(0, shown).map((piece, i) => {
    const at = y + 20 + row * i;
    const words = seen(labelAfter(pieces, piece));
    const isKept = i < kept;
    const value = x + name + long(Math.max(p[i], q[i])) + 7;
    return group(live ? pressable(`next-${i}`, `write ${words}, which has ${percent(q[i])}`) : {},
      rect(x, at, width, row, { class: "reach" }),
      text(x + name - 8, at + 17, shortened(words, name - 8), { anchor: "end", class: isKept ? "mono" : "mono soft" }),
      rect(x + name, at + 3.5, Math.max(long(p[i]), 1), row - 7, { class: isKept ? "fill-panel edge" : "fill-none axis dashed" }),
      rect(x + name, at + 8, long(q[i]), row - 16, { class: "fill-blue" }),
      text(isKept ? value : Math.max(value, least + 6), at + 17, isKept ? percent(q[i]) : "cut", { class: isKept ? "" : "minor" }));
  });
  const cut = y + 20.5 + row * kept;
  return group({},
    text(x, y + 13, live ? "Next token: press one to write it" : "Next token", { class: "strong" }),
    rows,
    line(x + name, y + 20, x + name, bottom, { class: "axis" }),
    minP > 0 && line(least, y + 20, least, bottom, { class: "line-orange dashed" }),
    kept < shown && line(x, cut, x + width, cut, { class: "line-orange dashed" }),
    rect(x, bottom + 9, 14, 12, { class: "fill-panel edge" }),
    text(x + 20, bottom + 19, "the writer’s own"),
    rect(x + 144, bottom + 11, 14, 8, { class: "fill-blue" }),
    text(x + 164, bottom + 19, "what is drawn from"),
    text(x, bottom + 38, `${count(kept)} of ${count(p.length)} kept, with ${percent(mass)} of the probability`, { class: "minor" }));
}

/* The columns of a beam search: the kept hypotheses, best first, and below them the best that are dropped. */
function beamsPicture(x, y, width, { pieces, columns }) {
  const pitch = width / STEPS;
  const [wide, high, row] = [Math.min(pitch - 12, 112), 36, 46];
  const best = new Set();
  for (let at = columns.length - 1, rank = 0; at >= 0; at--) {
    best.add(columns[at].kept[rank]);
    rank = columns[at].kept[rank].parent;
  }
  const place = (column, rank) => [x + pitch * column, y + 26 + row * rank];
  const parts = columns.map(({ kept, dropped }, column) => {
    const fallen = dropped.slice(0, 2);
    const cut = y + 26 + row * kept.length - 3;
    return [
      [...kept, ...fallen].map((one, rank) => {
        if (!column) return "";
        const [fromX, fromY] = place(column - 1, one.parent);
        const [toX, toY] = place(column, rank + (rank >= kept.length ? 0.2 : 0));
        const look = best.has(one) ? "line-blue" : one.greedy ? "line-orange" : "grid";
        return line(fromX + wide, fromY + high / 2, toX, toY + high / 2, { class: rank < kept.length ? look : `${look} dashed` });
      }),
      line(x + pitch * column, cut + 4, x + pitch * column + wide, cut + 4, { class: "axis dashed" }),
      [...kept, ...fallen].map((one, rank) => {
        const [left, top] = place(column, rank + (rank >= kept.length ? 0.2 : 0));
        const words = shortened(seen(labelAfter([...pieces, ...one.words.slice(0, -1)], one.words.at(-1))), wide - 6);
        const inBest = best.has(one);
        const isKept = rank < kept.length;
        return group({},
          rect(left, top, wide, high, { rx: 4, class: inBest ? "fill-blue" : isKept ? "fill-panel" : "fill-paper" }),
          one.greedy && rect(left, top, wide, high, { rx: 4, class: "fill-none line-orange" }),
          text(left + wide / 2, top + 15, words, { anchor: "middle", class: `mono ${inBest ? "on-blue" : isKept ? "" : "soft"}` }),
          text(left + wide / 2, top + 30, percent(Math.exp(one.logP)), { anchor: "middle", class: inBest ? "minor on-blue" : "minor" }));
      }),
    ];
  });
  const bottom = y + 32 + row * Math.max(...columns.map(({ kept, dropped }) => kept.length + Math.min(dropped.length, 2) + 0.2), 1);
  return group({},
    text(x, y + 13, width > 500 ? "Five tokens ahead: each column keeps the best, and the dashed line cuts the rest" : "Five tokens ahead: the dashed line cuts", { class: "strong" }),
    parts,
    rect(x + 1, bottom, 10, 10, { class: "fill-blue" }),
    text(x + 17, bottom + 9, "the best in the end"),
    rect(x + 161, bottom, 10, 10, { class: "fill-none line-orange" }),
    text(x + 177, bottom + 9, "the greedy way"));
}

function draw(state, found, width) {
  const wide = width > 500;
  const live = state.weights === "ready" && state.running === null && found.made < MOST;
  if (state.view === "beams") {
    const lines = wide ? 2 : 3;
    const below = 22 + 47 * lines + 50;
    return svg(width, below + 344, cachePicture(0, 0, width, lines, found), beamsPicture(0, below, width, found));
  }
  if (wide) return svg(width, 366, cachePicture(0, 0, 300, 6, found), barsPicture(330, 0, 350, 12, found, { minP: state.minP, live }));
  const below = 22 + 47 * 3 + 50;
  return svg(width, below + 314, cachePicture(0, 0, width, 3, found), barsPicture(0, below, width, 10, found, { minP: state.minP, live }));
}

function saysOfBeams(columns) {
  const { kept, dropped } = columns.at(-1);
  const way = textOf(kept[0].words).replace(/\n/g, "↵").trim();
  const greedy = [...kept, ...dropped].find((one) => one.greedy);
  const other = greedy ? `The greedy text has ${percent(Math.exp(greedy.logP))}` : "The greedy text was dropped on the way";
  return `The best text found goes on “${way}”, with ${percent(Math.exp(kept[0].logP))}. ${kept[0].greedy ? "It is the greedy text" : other}.`;
}

function says(state, { pieces, made, next, p, q, kept, columns }) {
  if (state.weights === "asked") return "The writer is on its way.";
  if (state.weights === "failed") return "The writer could not be loaded. The recorded beginnings can be read without it.";
  if (state.running !== null) return "The writer writes.";
  if (state.ended) return "The writer has drawn ■, the end of the text.";
  if (state.view === "beams") return columns.length ? saysOfBeams(columns) : "The writer reads.";
  const after = textOf(pieces).split("\n").at(-1).trim().split(" ").slice(-3).join(" ") || "↵";
  const likeliest = `After “${after}” the writer gives “${seen(labelAfter(pieces, next[0]))}” ${percent(p[0])}`;
  const now = kept === p.length && q[0] === p[0] ? "" : `, and it is drawn with ${percent(q[0])}`;
  return `${likeliest}${now}. ${kept < p.length ? `${count(kept)} of ${count(p.length)} tokens can be drawn` : `All ${count(p.length)} tokens can be drawn`}${made ? `; ${made} ${made > 1 ? "were" : "was"} written` : ""}.`;
}

/* The writer at work */

async function next(state) {
  if (state.weights !== "asked" && state.weights !== "ready") return undefined;
  const { load, afterReading } = await import("./loaded.js");
  if (state.weights === "asked") return load("writer").then(() => ({ weights: "ready" }), () => ({ weights: "failed" }));
  const { tokenizer, context } = await load("writer");
  const of = JSON.stringify([state.prompt, state.made]);
  const prompt = tokenizer.encode(asPlay(state.prompt)).slice(0, context - MOST - STEPS - 1);
  const ids = [tokenizer.stop, ...prompt, ...state.made];
  if (state.place?.of !== of) {
    return { place: await afterReading(ids, (writer, read) => ({ of, read, made: state.made.length, ...look(writer, ids) })) };
  }
  if (state.view === "beams") {
    const { missing } = beams(state.place.table, state.beams);
    if (!missing) return undefined;
    const row = await afterReading([...ids, ...missing], (writer) => best(writer));
    return { place: { ...state.place, table: { ...state.place.table, [missing]: row } } };
  }
  if (state.running === null) return undefined;
  const { pieces, made } = state.place;
  const isLine = made > state.running && pieces.at(-1).includes("\n") && !pieces.at(-2)?.includes(":");
  if (made === MOST || isLine) return { running: null };
  await new Promise((go) => setTimeout(go, 60));
  return drawOne(state);
}

/* What the writer says after ids, likeliest first. */
function look(writer, ids) {
  const logits = writer.logits();
  const order = range(logits.length).sort((a, b) => logits[b] - logits[a]);
  const most = logits[order[0]];
  const sum = Math.log(order.reduce((all, id) => all + Math.exp(logits[id] - most), 0));
  const { tokenizer } = writer;
  return { pieces: tokenizer.pieces(ids.slice(1)), next: tokenizer.pieces(order.slice(0, 12)), order, logP: order.map((id) => logits[id] - most - sum), table: {} };
}

function best(writer) {
  const { order, next: words, logP } = look(writer, []);
  return range(4).map((i) => [order[i], words[i], logP[i]]);
}

/* Write the token of a rank, unless it is the last one of the vocabulary, which ends the text. */
function written(state, rank) {
  const id = state.place.order[rank];
  if (id === state.place.order.length - 1) return { running: null, ended: true };
  return { made: [...state.made, id] };
}

function drawOne(state) {
  return written(state, drawn(filtered(state.place.logP, settings(state)), uniform(state.seed, state.made.length)));
}

const again = { made: [], running: null, ended: false }; // `running` since so many tokens
const isReady = ({ weights }) => weights === "ready";
const mayWrite = (state) => state.place && state.running === null && !state.ended && state.made.length < MOST;
const draws = ({ view }) => view === "draw";

export const lab = {
  name: "decoding",
  title: "Choose the next token",
  start: {
    ...{ view: "draw", beginning: 0, prompt: oneLine(record.beginnings[0].text) },
    ...{ temperature: 1, topK: TOP_K.indexOf(10), topP: 1, minP: 0, beams: 3 },
    ...{ weights: "none", place: null, seed: 1, ...again },
  },
  controls: [
    { kind: "choice", key: "view", label: "Choose", options: [["draw", "by a draw"], ["beams", "by a beam search"]], change: () => ({ running: null }) },
    {
      ...{ kind: "choice", key: "beginning", label: "Beginning", options: record.beginnings.map((one, i) => [i, oneLine(one.text)]) },
      change: (value) => ({ prompt: oneLine(record.beginnings[value].text), ...again }),
    },
    { kind: "text", key: "prompt", label: "Your own beginning", when: isReady, change: () => ({ beginning: null, ...again }) },
    { kind: "slider", key: "temperature", label: "Temperature", min: 0.1, max: 2, step: 0.05, show: (x) => x.toFixed(2), when: draws },
    { kind: "slider", key: "topK", label: "Top-k", min: 0, max: TOP_K.length - 1, step: 1, show: (i) => (TOP_K[i] === Infinity ? "off" : String(TOP_K[i])), when: draws },
    { kind: "slider", key: "topP", label: "Top-p", min: 0.05, max: 1, step: 0.05, show: (x) => (x === 1 ? "off" : x.toFixed(2)), when: draws },
    { kind: "slider", key: "minP", label: "Min-p", min: 0, max: 0.5, step: 0.01, show: (x) => (x === 0 ? "off" : x.toFixed(2)), when: draws },
    { kind: "slider", key: "beams", label: "Beams", min: 1, max: 4, step: 1, show: String, when: ({ view }) => view === "beams" },
    { kind: "button", label: "Draw a token", change: drawOne, able: mayWrite, when: (state) => isReady(state) && draws(state) },
    { kind: "button", label: "Write a line", change: ({ made }) => ({ running: made.length }), able: mayWrite, when: (state) => isReady(state) && draws(state) },
    { kind: "button", label: "Another text", change: ({ seed }) => ({ ...again, seed: seed + 1, running: 0 }), able: ({ made, running }) => made.length > 0 && running === null, when: (state) => isReady(state) && draws(state) },
    { kind: "button", label: `Load the writer (${record.megabytes} MB)`, change: () => ({ weights: "asked" }), able: ({ weights }) => weights !== "asked", when: (state) => !isReady(state) },
  ],
  numbers,
  draw,
  says,
  next,
  act(state, part, event) {
    if (event.kind === "press" && part.startsWith("next-") && mayWrite(state)) return written(state, Number(part.slice(5)));
    return undefined;
  },
};
