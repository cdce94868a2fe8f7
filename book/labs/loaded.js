// The two models in the page: their weights come from the site itself, once, when a reader asks for them.

import { Encoder } from "./encoder.js";
import { Writer } from "./writer.js";

const KINDS = { writer: Writer, encoder: Encoder };
const asked = {};

export function load(name) {
  asked[name] ??= fetch(new URL(`${name}.bin`, import.meta.url)).then(async (answer) => {
    if (!answer.ok) throw new Error(`${name}.bin: ${answer.status}`);
    return new KINDS[name](await answer.arrayBuffer());
  });
  asked[name].catch(() => delete asked[name]); // it may be asked for again
  return asked[name];
}

// Run a generator to its end, a few steps at a time, so that the page never waits; return its result,
// or nothing if it is no longer wanted.
export async function inSlices(steps, isWanted = () => true) {
  let since = performance.now();
  while (isWanted()) {
    const { done, value } = steps.next();
    if (done) return value;
    if (performance.now() - since > 12) {
      await new Promise((go) => setTimeout(go));
      since = performance.now();
    }
  }
}

let turn = Promise.resolve();

// Let the writer read ids, then use what it has read: `use(writer, count)`, with how many it had to read.
// The answers come in the order of the calls, for all of them share one cache.
export function afterReading(ids, use) {
  const answer = turn.then(async () => use(await load("writer"), await inSlices(reading(await load("writer"), ids))));
  turn = answer.catch(() => {});
  return answer;
}

function* reading(writer, ids) {
  const unread = writer.unread(ids);
  for (const id of unread) {
    writer.read(id);
    yield;
  }
  return unread.length;
}

export async function attentionOf(ids) {
  return inSlices((await load("encoder")).read(ids));
}
