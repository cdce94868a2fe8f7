// The writer opened: where each head looks from a token, and which token the writer guesses there.

import { lab as heads, allHeads, loader, origin, sentence, sentenceOf, MOST } from "./heads.js";
import { group, range, rect, softmax, svg, text } from "./kit.js";
import { flow, labelAfter, percent, seen, shortened } from "./tokens.js";

const SHOWN = 8; // guesses
const TITLES = [[3, "To-morrow, and to-"], [0, "To be, or not to be"], [1, "A horse! a horse!"], [2, "Love looks not with the eyes"]];

function numbers(state) {
  const found = heads.numbers(state);
  const { pieces, next } = sentenceOf(state);
  const before = pieces.slice(0, found.token + 1);
  const guesses = next[found.token].map(([piece, share]) => ({ label: labelAfter(before, piece), p: share / 1000 }));
  return { ...found, guesses };
}

/* The likeliest next tokens, each with a bar. */
function bars(x, y, width, { guesses }) {
  const [left, room] = [x + 84, width - 84 - 72];
  return group({},
    text(x, y + 13, "What comes next", { class: "strong" }),
    guesses.map(({ label, p }, i) => {
      const top = y + 26 + 24 * i;
      return group({},
        text(left - 6, top + 14, shortened(seen(label), 76), { class: "mono", anchor: "end" }),
        rect(left, top + 1, room, 18, { class: "fill-panel" }),
        rect(left, top + 1, room * p, 18, { class: "fill-blue" }),
        text(left + room + 6, top + 14, percent(p), { class: "minor" }));
    }));
}

function draw(state, found, width) {
  const wide = width > 500;
  const top = wide ? 22 : 40;
  const places = flow(found.tokens, width);
  const below = top + 29 * Math.max(places.at(-1).row + 1, wide ? 2 : 4) + 14;
  const pitch = wide ? 46 : 38;
  const high = 26 + 24 * SHOWN;
  const [x, y] = wide ? [340, below] : [0, below + high + 14];
  const from = `From “${seen(found.tokens[found.token])}”: layer ${state.layer}, head ${state.head}`;
  return svg(width, Math.max(y + 34 + 6 * pitch + 4, below + high),
    text(0, 13, from, { class: "strong" }),
    wide ? text(width, 13, origin(state), { class: "minor", anchor: "end" }) : text(0, 30, origin(state), { class: "minor" }),
    sentence(0, top, places, state, found),
    bars(0, below, wide ? 310 : width, found),
    allHeads(x, y, pitch, state, found));
}

function says(state, found) {
  if (state.loaded.writer === "asked" || state.loaded.writer === "failed") return heads.says(state, found);
  const { tokens, token, guesses, most } = found;
  const [j, share] = most[0];
  return `After “${seen(tokens[token])}” the writer guesses “${seen(guesses[0].label)}” with ${percent(guesses[0].p)}. Head ${state.head} of layer ${state.layer} gives ${percent(share)} of its weight from there to ${j === token ? "the token itself" : `“${seen(tokens[j])}”`}.`;
}

/* The writer reads a sentence of the reader's, and guesses after every token. */
async function next(state) {
  const found = await heads.next(state);
  if (!found?.place) return found;
  const { load, afterReading } = await import("./loaded.js");
  const { tokenizer } = await load("writer");
  const ids = tokenizer.encode(state.words).slice(0, MOST);
  const guessed = (writer) => {
    const p = softmax(Array.from(writer.logits()));
    const best = range(p.length).sort((a, b) => p[b] - p[a]).slice(0, SHOWN);
    return best.map((id) => [tokenizer.pieces([id])[0], 1000 * p[id]]);
  };
  const after = [];
  for (const i of range(ids.length)) after.push(await afterReading(ids.slice(0, i + 1), guessed));
  return { place: { ...found.place, pieces: tokenizer.pieces(ids), next: after } };
}

export const lab = {
  name: "guesses",
  title: "Inside the writer",
  start: { ...heads.start, sentence: 3, token: 6 },
  controls: [
    { kind: "choice", key: "sentence", label: "Sentence", options: TITLES },
    loader("writer"),
    ...heads.controls.filter(({ kind }) => kind === "text"),
  ],
  numbers,
  draw,
  says,
  next,
  act: heads.act,
};
