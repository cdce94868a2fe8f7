// The book's small writer in plain JavaScript: byte-pair tokens and a forward pass with a KV cache.
// The mathematics is that of attnbook.models.writer; the tests compare the logits of both.

import { add, arraysOf, characters, halves, softmax, times, utf8 } from "./arrays.js";

const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const GAP = SPACE.replace("\\t-\\r", "\\t\\v-\\r"); // white space without line breaks

// What no merge crosses: PRE_TOKEN of attnbook.data.byte_pairs, with the white space of Python.
const PRE_TOKEN = new RegExp(
  [
    "'(?:[sdmt]|ll|ve|re)", // the ends of let's, I'd, I'm, don't, I'll, I've, we're
    " ?[\\p{L}\\p{Nl}\\p{No}]+", // letters, with the space before them
    " ?\\p{Nd}+", // digits
    ` ?[^${SPACE}\\p{L}\\p{N}]+`, // other signs
    "\\n+", // line breaks: one, or the two of an empty line
    `[${GAP}]+(?![^${SPACE}])|[${GAP}]+`, // spaces; the last one goes to the word that follows
  ].join("|"),
  "gu",
);

// Byte-pair encoding: the ids 0 to 255 are bytes, merge number i makes the token 256 + i, and the
// last id, `stop`, ends a text.
export class BytePairs {
  constructor(merges) {
    this.joined = new Map();
    this.tokens = Array.from({ length: 256 }, (_, i) => [i]);
    this.stop = 256 + merges.length;
    for (const [x, y] of merges) {
      this.joined.set(x * this.stop + y, this.tokens.length);
      this.tokens.push([...this.tokens[x], ...this.tokens[y]]);
    }
  }

  encode(text) {
    return (text.match(PRE_TOKEN) ?? []).flatMap((part) => this.merged(utf8(part)));
  }

  // The pair that was learned first is joined, wherever it stands, until no pair is known.
  merged(ids) {
    for (;;) {
      let first = Infinity;
      for (let i = 0; i + 1 < ids.length; i++) {
        first = Math.min(first, this.joined.get(ids[i] * this.stop + ids[i + 1]) ?? Infinity);
      }
      if (first === Infinity) return ids;
      const out = [];
      for (let i = 0; i < ids.length; i++) {
        const found = i + 1 < ids.length && this.joined.get(ids[i] * this.stop + ids[i + 1]) === first;
        out.push(found ? first : ids[i]);
        if (found) i++;
      }
      ids = out;
    }
  }

  // The text of each id, in which bytes that are no character alone are halves of one; `labels` of tokens.js
  // shows what such bytes belong to.
  pieces(ids) {
    return ids.map((id) => characters(this.tokens[id] ?? [], halves));
  }

  // The text of ids; bytes that are no UTF-8 become U+FFFD, and the end of the text is nothing.
  decode(ids) {
    return characters(ids.flatMap((id) => this.tokens[id] ?? []));
  }
}

// A decoder alone: RMSNorm before each sublayer, rotary positions, grouped heads, gated feed-forward.
// `read` takes one token; keys and values of all tokens so far stay in the cache.
export class Writer {
  constructor(buffer) {
    const { sizes, merges, arrays } = arraysOf(buffer);
    Object.assign(this, sizes);
    this.tokenizer = new BytePairs(merges);
    this.width = this.d_model / this.heads; // of a head
    this.weights = arrays;
    this.replaced = new Map();
    this.forget();
  }

  forget() {
    const room = this.context * this.kv_heads * this.width;
    const empty = () => Array.from({ length: this.layers }, () => new Float32Array(room));
    this.keys = empty();
    this.values = empty();
    this.ids = []; // what the cache holds
    this.rows = []; // where each token looked: a row of weights for each layer and head
  }

  // The same writer, with a cache of its own, in which some heads always give the same: a map from the number of
  // the head, layer · heads + head, to its row.
  replacing(replaced) {
    const other = Object.assign(Object.create(Writer.prototype), this, { replaced });
    other.forget();
    return other;
  }

  // Return what of `ids` must still be read: the cache keeps what it holds of them, except the last,
  // and forgets all else.
  unread(ids) {
    let n = 0;
    while (n < ids.length - 1 && ids[n] === this.ids[n]) n++;
    this.ids.length = Math.min(n, this.ids.length);
    this.rows.length = this.ids.length;
    return ids.slice(n);
  }

  // Read one token.
  read(id) {
    const { weights: W, d_model: d, width } = this;
    const place = this.ids.length;
    if (place === this.context) throw new RangeError(`the writer reads ${this.context} tokens`);
    const x = W.embedding.slice(id * d, (id + 1) * d);
    const rows = [];
    for (let layer = 0; layer < this.layers; layer++) {
      const own = (name) => W[`${layer}.${name}`];
      const y = normalized(x, own("attention_gain"));
      const q = times(y, own("W_Q"));
      const k = times(y, own("W_K"));
      rotate(q, place, width);
      rotate(k, place, width);
      this.keys[layer].set(k, place * k.length);
      this.values[layer].set(times(y, own("W_V")), place * k.length);
      const [joined, A] = this.attend(layer, q, place + 1);
      rows.push(A);
      add(x, times(joined, own("W_O")));
      const z = normalized(x, own("feed_forward_gain"));
      const hidden = times(z, own("W_1"));
      const gate = times(z, own("W_gate"));
      for (let i = 0; i < hidden.length; i++) hidden[i] *= gate[i] / (1 + Math.exp(-gate[i]));
      add(x, times(hidden, own("W_2")));
    }
    this.last = normalized(x, W.final_gain);
    this.ids.push(id);
    this.rows.push(rows);
  }

  // Let one query of each head attend to the first n keys of the cache.
  attend(layer, q, n) {
    const { width, kv_heads, heads } = this;
    const keys = this.keys[layer];
    const values = this.values[layer];
    const joined = new Float32Array(heads * width);
    const A = [];
    for (let h = 0; h < heads; h++) {
      const shared = Math.floor((h * kv_heads) / heads); // heads of a group share keys and values
      const scores = new Float32Array(n);
      for (let j = 0; j < n; j++) {
        const at = (j * kv_heads + shared) * width;
        let score = 0;
        for (let i = 0; i < width; i++) score += q[h * width + i] * keys[at + i];
        scores[j] = score / Math.sqrt(width);
      }
      const a = softmax(scores);
      for (let j = 0; j < n; j++) {
        const at = (j * kv_heads + shared) * width;
        for (let i = 0; i < width; i++) joined[h * width + i] += a[j] * values[at + i];
      }
      const row = this.replaced.get(layer * heads + h);
      if (row) joined.set(row, h * width);
      A.push(a);
    }
    return [joined, A];
  }

  // The logits after the token that was read last: its products with every embedding.
  logits() {
    const { embedding } = this.weights;
    const out = new Float32Array(embedding.length / this.d_model);
    for (let v = 0; v < out.length; v++) {
      let score = 0;
      for (let i = 0; i < this.d_model; i++) score += this.last[i] * embedding[v * this.d_model + i];
      out[v] = score;
    }
    return out;
  }
}

function normalized(x, gain) {
  let squares = 0;
  for (const value of x) squares += value * value;
  const root = Math.sqrt(squares / x.length + 1e-5);
  return x.map((value, i) => (gain[i] * value) / root);
}

// Turn pair l of every head, features l and l + width/2, by the angle of its place.
function rotate(x, place, width) {
  const half = width / 2;
  for (let l = 0; l < half; l++) {
    const angle = place * 10000 ** (-l / half);
    const [c, s] = [Math.cos(angle), Math.sin(angle)];
    for (let i = l; i < x.length; i += width) {
      const [a, b] = [x[i], x[i + half]];
      x[i] = a * c - b * s;
      x[i + half] = a * s + b * c;
    }
  }
}
