// Cheating: two small models are trained in the page, one with the causal mask and one without.

import { curve, group, line, number, range, rect, scale, svg, text } from "./kit.js";
import { record } from "./cheating_record.js";
import { ask } from "./python.js";
import { LETTER, linesOf } from "./tokens.js";

const MOST = 7; // bits per byte at the top of the picture
const ROUND = 10; // steps between two pictures
const shown = (width) => (width > 500 ? 3 : 4); // lines of a text
const KINDS = [["masked", "With the mask", "blue"], ["unmasked", "Without", "orange"]];

function numbers({ run }) {
  const { losses, end } = run ?? record;
  return { losses, end, step: losses.masked.length, steps: record.steps, recorded: !run };
}

/* The loss of both during training. */
function training(x, y, width, high, { losses, steps, step, recorded }) {
  const [left, bottom] = [x + 18, y + high - 34];
  const acrossOf = scale([0, steps], [left, x + width - 6]), upOf = scale([0, MOST], [bottom, y + 34]);
  const along = (values) => values.map((bits, i) => [acrossOf(i + 1), upOf(Math.min(bits, MOST))]);
  return group({},
    text(x, y + 13, "Loss in training", { class: "strong" }),
    text(x + width, y + 13, recorded ? "recorded" : "in this page", { class: "minor", anchor: "end" }),
    text(x, y + 28, "bits per byte", { class: "minor" }),
    range(MOST).map((bits) => [line(left, upOf(bits), x + width - 6, upOf(bits), { class: bits ? "grid" : "axis" }), text(left - 5, upOf(bits) + 4, String(bits), { class: "minor", anchor: "end" })]),
    [0, steps / 2, steps].map((at) => text(acrossOf(at), bottom + 16, String(at), { class: "minor", anchor: at === steps ? "end" : "middle" })),
    text((left + x + width) / 2, bottom + 32, "step", { class: "minor", anchor: "middle" }),
    KINDS.map(([kind, title, hue]) => [
      curve(along(losses[kind]), { class: `line-${hue}` }),
      step > 0 && text(acrossOf(step) - 4, upOf(losses[kind].at(-1)) - 8, title.toLowerCase(), { class: `halo ${hue}`, anchor: step > steps / 3 ? "end" : "start" }),
    ]));
}

/* The loss of both on text that they have not read, in both ways. */
function judgement(x, y, width, { end }) {
  const name = 122;
  const longOf = scale([0, MOST], [0, width - name - 40]);
  const rows = KINDS.flatMap(([kind, title, hue]) => [["one_pass", "in one pass"], ["one_by_one", "letter by letter"]].map(([way, words]) => [kind, title, hue, way, words]));
  return group({},
    text(x, y + 13, "Loss on a play not read", { class: "strong" }),
    rows.map(([kind, title, hue, way, words], i) => {
      const top = y + 30 + 26 * i + 26 * Math.floor(i / 2);
      const bits = end?.[kind][way];
      return [
        i % 2 === 0 && text(x, top + 8, title, { class: hue }),
        text(x + name - 8, top + 30, words, { anchor: "end" }),
        rect(x + name, top + 16, width - name - 40, 18, { class: "fill-panel" }),
        end && rect(x + name, top + 16, longOf(bits), 18, { class: `fill-${hue}` }),
        end && text(x + name + longOf(bits) + 6, top + 30, number(bits)),
      ];
    }));
}

function texts(x, y, width, { end }) {
  return KINDS.map(([kind, title, hue], k) => {
    const top = y + k * (26 + 19 * shown(width));
    const lines = end ? linesOf(end[kind].text, Math.floor(width / LETTER)).slice(0, shown(width)) : [];
    return group({},
      text(x, top + 13, `${title}, it writes after “ROMEO:”`, { class: `strong ${hue}` }),
      lines.map((words, i) => text(x, top + 33 + 19 * i, words, { class: "mono" })));
  });
}

function draw(state, found, width) {
  const wide = width > 500;
  const block = 2 * (26 + 19 * shown(width));
  if (wide) return svg(width, 240 + block, training(0, 0, 340, 230, found), judgement(380, 0, 300, found), texts(0, 244, width, found));
  return svg(width, 424 + block, training(0, 0, width, 220, found), judgement(0, 232, width, found), texts(0, 428, width, found));
}

function says({ phase }, { losses, end, step, steps }) {
  if (phase === "begin") return "Python is on its way. Both models begin from the same numbers.";
  if (phase === "failed") return "The training has stopped before its end. You can begin again.";
  const told = phase === "train" && step < steps ? Math.floor(step / 20) * 20 : step; // said, not at every picture
  if (!told) return "Training begins.";
  const [masked, unmasked] = KINDS.map(([kind]) => number(losses[kind][told - 1]));
  if (!end) return `After ${told} of ${steps} steps the loss is ${masked} bits per byte with the mask and ${unmasked} without.`;
  return `After ${steps} steps the loss is ${masked} bits per byte with the mask and ${unmasked} without. Letter by letter it is ${number(end.masked.one_by_one)} and ${number(end.unmasked.one_by_one)}, so what the model without a mask has learned does not help it write.`;
}

/* The page's Python trains, some steps between two pictures. */
async function next({ phase, run, seed }) {
  if (!["begin", "train", "end"].includes(phase)) return undefined;
  const call = (what) => ask("Training", `__import__("cheating").${what}`);
  try {
    if (phase === "begin") {
      await call(`begin(${seed})`);
      return { phase: "train", run: { losses: { masked: [], unmasked: [] }, end: null } };
    }
    if (phase === "end") return { phase: "done", run: { ...run, end: await call("end()") } };
    const more = await call(`train(${ROUND})`);
    const losses = Object.fromEntries(KINDS.map(([kind]) => [kind, [...run.losses[kind], ...more[kind]]]));
    return { phase: losses.masked.length < record.steps ? "train" : "end", run: { losses, end: null } };
  } catch {
    return { phase: "failed" };
  }
}

export const lab = {
  name: "cheating",
  title: "Train a model that cheats",
  start: { phase: "recorded", run: null, seed: -1 },
  controls: [
    {
      ...{ kind: "button", label: "Train both in this page" },
      change: ({ seed }) => ({ phase: "begin", seed: seed + 1, run: null }),
      able: ({ phase }) => !["begin", "train", "end"].includes(phase),
    },
  ],
  numbers,
  draw,
  says,
  next,
};
