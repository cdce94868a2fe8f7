// Own attention: the writer with the reader's softmax or attention in all heads, or with a classic bug.

import { group, number, rect, svg, text } from "./kit.js";
import { record } from "./own_attention_record.js";
import { ask } from "./python.js";
import { LETTER, linesOf } from "./tokens.js";

const SHOWN = 5; // lines of a text
const OWN = { softmax: "your softmax", attention: "your attention" };
const FAULTS = { half: "no maximum, float16", scale: "no scale", queries: "softmax over queries", mask: "no mask" };
const NAMES = { ...OWN, ...FAULTS };

function numbers({ kind, answer }) {
  const found = answer?.kind === kind ? answer.found : record[kind];
  const right = answer?.kind === kind ? answer.right : record.right;
  const same = found && !found.error && found.text === right.text && Math.abs(found.bits - right.bits) < 1e-3;
  return { found: found ?? null, right, same: Boolean(same), recorded: answer?.kind !== kind };
}

/* What the writer writes, and what it loses. */
function panel(x, y, width, title, hue, found, empty) {
  const most = Math.floor((width - 20) / LETTER);
  const words = !found ? empty : found.error === "NaN" ? `${found.text}\n→ nan: the writer cannot choose a token.` : found.error ? `${found.text}\n→ ${found.error}` : found.text;
  const loss = found?.bits == null ? (found ? "no loss: not a number" : "") : `${number(found.bits, 3)} bits per byte`;
  return group({},
    rect(x, y + 20, 3, 30 + 19 * SHOWN, { class: `fill-${hue}` }),
    text(x, y + 13, title, { class: "strong" }),
    linesOf(words.trim(), most).slice(0, SHOWN).map((each, i) => text(x + 12, y + 35 + 19 * i, each, { class: found ? "mono" : "soft" })),
    text(x + 12, y + 45 + 19 * SHOWN, loss, { class: found?.bits == null ? "orange" : "" }));
}

function draw({ kind }, { found, right, same, recorded }, width) {
  const wide = width > 500;
  const high = 60 + 19 * SHOWN;
  const [room, x, y] = wide ? [(width - 24) / 2, (width + 24) / 2, 0] : [width, 0, high + 10];
  return svg(width, wide ? high : 2 * high + 10,
    panel(0, 0, room, `With ${NAMES[kind]}`, !found ? "soft" : same ? "green" : "orange", found, "Press the button to run it."),
    text(room, 13, found ? (recorded ? "recorded" : "in this page") : "", { class: "minor", anchor: "end" }),
    panel(x, y, room, "With the writer’s own attention", "blue", right, ""));
}

function says({ kind, phase }, { found, right, same }) {
  if (phase === "asked") return `The writer writes with ${NAMES[kind]}.`;
  if (phase === "failed") return "Python has stopped before the end. You can press the button again.";
  if (!found) return `Run your answers to the tasks above, then press the button: the writer writes with ${NAMES[kind]} in all 36 heads.`;
  if (found.error === "NaN") return `With ${NAMES[kind]}, the logits become nan, which is not a number, so the writer cannot choose a token.`;
  if (found.error) return `With ${NAMES[kind]}, the writer stops: ${found.error}`.replace(/[^.?!]$/, "$&.");
  if (same) return `With ${NAMES[kind]}, the writer writes the same text as with its own attention.`;
  const words = found.bits == null ? "its loss on a scene is not a number" : `its loss on a scene is ${number(found.bits, 3)} bits per byte, and ${number(right.bits, 3)} with its own attention`;
  return `With ${NAMES[kind]}, the writer writes another text, and ${words}.`;
}

async function next({ kind, phase, seed }) {
  if (phase !== "asked") return undefined;
  try {
    const answer = await ask("The writer", `__import__("own_attention").answer("${kind}", ${seed})`);
    return { phase: "done", answer: { kind, ...answer } };
  } catch {
    return { phase: "failed" };
  }
}

export const lab = {
  name: "own_attention",
  title: "Write with your attention",
  start: { kind: "softmax", phase: "no", seed: -1, answer: null },
  controls: [
    { kind: "choice", key: "kind", label: "In all heads of the writer", options: Object.entries(NAMES), change: () => ({ phase: "no" }) },
    { kind: "button", label: "Write with it", change: ({ seed }) => ({ phase: "asked", seed: seed + 1 }), able: ({ phase }) => phase !== "asked" },
  ],
  numbers,
  draw,
  says,
  next,
};
