// Pruning: heads of the writer are switched off, and the writer is judged and writes without them.

import { clamp, group, line, number, range, rect, scale, softmax, stepOf, svg, text } from "./kit.js";
import { record } from "./pruning_record.js";
import { LETTER, linesOf, textOf } from "./tokens.js";

const LAYERS = 6, HEADS = 6, ALL = LAYERS * HEADS;
const ALLOWED = 0.1; // bits per byte that a player may lose
const SHOWN = 5; // lines of what is written
const nameOf = (place) => `layer ${Math.floor(place / HEADS)}, head ${place % HEADS}`;

/* The mathematics */

/* What the writer costs on the passage, in bits per byte, and what it writes: a generator, for it takes long.
A token is the one on whose piece of [0, 1) the number drawn for it falls, at temperature `record.temperature`. */
export function* measured(writer) {
  const { stop } = writer.tokenizer;
  let nats = 0;
  for (const [i, id] of [stop, ...record.passage.ids.slice(0, -1)].entries()) {
    writer.read(id);
    const logits = writer.logits();
    const most = logits.reduce((a, b) => Math.max(a, b));
    nats += most + Math.log(logits.reduce((sum, z) => sum + Math.exp(z - most), 0)) - logits[record.passage.ids[i]];
    yield;
  }
  const ids = [stop, ...record.prompt];
  const begin = ids.length;
  for (const xi of record.draws) {
    for (const id of writer.unread(ids)) {
      writer.read(id);
      yield;
    }
    const p = softmax(Array.from(writer.logits(), (z) => z / record.temperature));
    let id = 0;
    for (let passed = p[0]; passed <= xi && id < p.length - 1; passed += p[++id]);
    if (id === stop) break;
    ids.push(id);
  }
  return { bits: nats / Math.LN2 / record.passage.bytes, pieces: writer.tokenizer.pieces(ids.slice(begin)) };
}

/* What is shown */

const keyOf = (off) => [...off].sort((a, b) => a - b).join();

function numbers({ off, found, best }) {
  const recorded = off.length === 0 && found?.of !== "";
  const known = recorded ? record.whole : found?.of === keyOf(off) ? found : null;
  return { off, recorded, known, rise: known && known.bits - record.whole.bits, best };
}

/* Every head as a switch. */
function switches(x, y, pitch, { layer, head, held }, { off }) {
  const size = pitch - 3;
  const buttons = range(ALL).map((place) => {
    const [l, h] = [Math.floor(place / HEADS), place % HEADS];
    const [left, top] = [x + 18 + pitch * h, y + 34 + pitch * l];
    const [open, isOn] = [l === layer && h === head, !off.includes(place)];
    const button = { "data-part": `head-${l}-${h}`, role: "switch", tabindex: open ? 0 : -1, "aria-checked": String(isOn), "aria-label": nameOf(place), "data-focus": open && held };
    return group(button,
      rect(left - 1, top - 1, pitch, pitch, { class: "reach" }),
      rect(left + 0.5, top + 0.5, size - 1, size - 1, { rx: 4, class: isOn ? "fill-blue line-blue" : "fill-panel edge" }),
      text(left + size / 2, top + size / 2 + 4.5, isOn ? "on" : "off", { anchor: "middle", class: isOn ? "on-blue" : "soft" }));
  });
  return group({},
    text(x, y + 13, `${ALL - off.length} of ${ALL} heads are on`, { class: "strong" }),
    text(x + 18, y + 28, "head 0", { class: "minor" }),
    text(x + 18 + pitch * HEADS - 3, y + 28, String(HEADS - 1), { class: "minor", anchor: "end" }),
    range(LAYERS).map((l) => text(x + 12, y + 34 + pitch * l + size / 2 + 4.5, String(l), { class: "minor", anchor: "end" })),
    buttons);
}

/* By how much the loss has risen, beside what is allowed. */
function gauge(x, y, width, { rise, known, best, recorded }) {
  const at = scale([0, 0.4], [x, x + width]);
  const top = y + 24;
  const isWithin = rise !== null && rise <= ALLOWED;
  const end = rise === null ? x : at(clamp(rise, 0, 0.4));
  const words = known ? `${number(known.bits, 3)} bits per byte, ${rise < -0.0005 ? "−" : "+"}${Math.abs(rise).toFixed(3)}` : "not known yet";
  return group({},
    text(x, y + 13, "Loss on the passage", { class: "strong" }),
    rect(x, top, width, 20, { class: "fill-panel" }),
    rect(x, top, end - x, 20, { class: isWithin ? "fill-blue" : "fill-orange" }),
    line(at(ALLOWED), top - 4, at(ALLOWED), top + 24, { class: "line-ink dashed" }),
    text(at(ALLOWED), top + 40, `+${ALLOWED}`, { anchor: "middle", class: "minor" }),
    text(x, top + 62, words, { class: isWithin || rise === null ? "" : "orange" }),
    text(x, top + 84, `Most heads off within +${ALLOWED}: ${best}`, { class: "strong" }),
    text(x, top + 104, recorded ? "recorded" : known ? "computed in this page" : "", { class: "minor" }));
}

function written(x, y, width, title, pieces) {
  const lines = pieces ? linesOf(textOf(pieces), Math.floor(width / LETTER)).slice(0, SHOWN) : [];
  return group({},
    text(x, y + 13, title, { class: "strong" }),
    lines.map((words, i) => text(x, y + 34 + 19 * i, words, { class: "mono" })));
}

function draw(state, found, width) {
  const wide = width > 500;
  const pitch = wide ? 42 : 50;
  const high = 34 + pitch * LAYERS + 6;
  const [x, y, room] = wide ? [310, 0, width - 310] : [0, high + 12, width];
  const [textX, textY] = wide ? [310, 144] : [0, high + 158];
  const block = 34 + 19 * SHOWN + 8;
  const other = wide ? [0, high + 10, width] : [0, textY + block, width];
  const prompt = textOf(record.promptPieces).replace(/\n/g, "");
  return svg(width, other[1] + block,
    switches(0, 0, pitch, state, found),
    gauge(x, y, room, found),
    written(textX, textY, room, `It writes after “${prompt}”`, found.known?.pieces),
    written(...other, "With all heads it writes", record.whole.pieces));
}

function says({ off, loaded }, { known, rise, best }) {
  if (loaded === "asked") return "The writer is on its way.";
  if (loaded === "failed") return "The writer could not be loaded.";
  const heads = off.length === 1 ? "1 head is off" : `${off.length} heads are off`;
  if (!known) return loaded === "ready" ? `${heads}. The writer reads the passage.` : `${heads}. Load the writer to see what it loses.`;
  const allowed = rise <= ALLOWED ? `within the ${ALLOWED} that you may lose` : `more than the ${ALLOWED} that you may lose`;
  const much = off.length ? `: ${number(rise, 3)} above the whole writer, ${allowed}. Your best is ${best}` : "";
  return `${off.length ? heads : "All heads are on"}. The loss is ${number(known.bits, 3)} bits per byte${much}.`;
}

/* The writer without the heads, read and judged; what a newer one overtakes is left. */
let latest = 0;

async function next(state) {
  const { off, loaded, found, best } = state;
  if (loaded !== "asked" && loaded !== "ready") return undefined;
  const { load, inSlices } = await import("./loaded.js");
  if (loaded === "asked") return load("writer").then(() => ({ loaded: "ready" }), () => ({ loaded: "failed" }));
  const of = keyOf(off);
  if (found?.of === of) return undefined;
  const own = ++latest;
  const rows = off.map((place) => [place, record.mean[place]]);
  const steps = measured((await load("writer")).replacing(new Map(rows)));
  const now = await inSlices(steps, () => own === latest);
  if (!now) return undefined;
  const isWithin = now.bits - record.whole.bits <= ALLOWED;
  return { found: { of, ...now }, best: isWithin ? Math.max(best, off.length) : best };
}

const toggled = (off, place) => (off.includes(place) ? off.filter((one) => one !== place) : [...off, place]);
const least = ({ off }) => record.ranked.find((place) => !off.includes(place));

export const lab = {
  name: "pruning",
  title: "How many heads can go?",
  start: { off: [], layer: 0, head: 0, held: false, loaded: "no", found: null, best: 0 },
  controls: [
    { kind: "button", label: `Load the writer (${record.megabytes} MB)`, change: () => ({ loaded: "asked" }), able: ({ loaded }) => loaded !== "asked", when: ({ loaded }) => loaded !== "ready" },
    { kind: "button", label: "Switch off a head for me", change: (state) => ({ off: [...state.off, least(state)] }), able: ({ off }) => off.length < ALL },
    { kind: "button", label: "All heads on", change: () => ({ off: [] }), when: ({ off }) => off.length > 0 },
  ],
  numbers,
  draw,
  says,
  next,
  act({ off, layer, head }, part, event) {
    const [l, h] = part.split("-").slice(1).map(Number);
    if (event.kind === "press") return { off: toggled(off, l * HEADS + h), layer: l, head: h, held: true };
    const step = event.kind === "key" && stepOf(event);
    return step ? { layer: clamp(layer - step[1], 0, LAYERS - 1), head: clamp(head + step[0], 0, HEADS - 1), held: true } : undefined;
  },
};
