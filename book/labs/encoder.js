// The sentence encoder in plain JavaScript: word pieces, and who attends to whom. The mathematics is that
// of attnbook.models.sentence_encoder, with matrices in bytes: each column, or row of the embedding, has a
// scale of its own.

import { add, arraysOf, softmax, times } from "./arrays.js";

const LONGEST_WORD = 100;
const CJK = "\u4e00-\u9fff\u3400-\u4dbf\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b820}-\u{2ceaf}\uf900-\ufaff\u{2f800}-\u{2fa1f}";

// Small letters without accents, and each sign of punctuation or Chinese character a word of its own.
function wordsOf(text) {
  const clean = text
    .replace(/[\t\n\r\p{Z}]/gu, " ")
    .replace(/[\p{Cc}\p{Cf}\p{Co}\ufffd]/gu, "")
    .replace(new RegExp(`[${CJK}]`, "gu"), " $& ");
  const plain = clean.normalize("NFD").replace(/\p{Mn}/gu, "").replace(/[\p{P}$+<=>^`|~]/gu, " $& ");
  return Array.from(plain, (sign) => sign.toLowerCase()).join("").split(" ").filter((word) => word);
}

// The longest piece that a word begins with is cut off, again and again.
export class WordPieces {
  constructor(tokens) {
    this.tokens = tokens;
    this.ids = new Map(tokens.map((token, i) => [token, i]));
  }

  encode(text, most = Infinity) {
    const parts = wordsOf(text).flatMap((word) => this.parts(Array.from(word)));
    return ["[CLS]", ...parts.slice(0, most - 2), "[SEP]"].map((token) => this.ids.get(token));
  }

  parts(letters) {
    if (letters.length > LONGEST_WORD) return ["[UNK]"];
    const parts = [];
    for (let begin = 0; begin < letters.length; ) {
      let end = letters.length;
      const piece = () => (begin ? "##" : "") + letters.slice(begin, end).join("");
      while (end > begin && !this.ids.has(piece())) end--;
      if (end === begin) return ["[UNK]"];
      parts.push(piece());
      begin = end;
    }
    return parts;
  }
}

export class Encoder {
  constructor(buffer) {
    const { sizes, tokens, arrays } = arraysOf(buffer);
    Object.assign(this, sizes);
    this.tokenizer = new WordPieces(tokens);
    this.width = this.d_model / this.heads; // of a head
    this.weights = arrays;
  }

  // Read ids, step by step so that a page can go on between, and return where every head of every layer
  // looks: a row of weights for each token.
  *read(ids) {
    const { weights: W } = this;
    const x = ids.map((id, i) => {
      const row = this.row("token_embedding", id);
      add(row, this.row("position_embedding", i));
      return layerNorm(row, W["embedding.gain"], W["embedding.bias"], this.epsilon);
    });
    const A = [];
    for (let layer = 0; layer < this.layers; layer++) {
      const linear = (y, letter) => this.linear(y, `${layer}.W_${letter}`, W[`${layer}.b_${letter}`]);
      const norm = (y, name) => layerNorm(y, W[`${layer}.${name}.gain`], W[`${layer}.${name}.bias`], this.epsilon);
      const heads = [];
      for (const y of x) {
        heads.push(["Q", "K", "V"].map((letter) => linear(y, letter)));
        yield;
      }
      const [joined, rows] = this.attend(heads);
      A.push(rows);
      for (let i = 0; i < x.length; i++) {
        const after = linear(joined[i], "O");
        add(after, x[i]);
        const y = norm(after, "attention");
        const z = linear(linear(y, "1").map(gelu), "2");
        add(z, y);
        x[i] = norm(z, "feed_forward");
        yield;
      }
    }
    return A;
  }

  attend(tokens) {
    const joined = tokens.map(() => new Float32Array(this.d_model));
    const A = Array.from({ length: this.heads }, (_, h) =>
      tokens.map(([q], i) => {
        const scores = tokens.map(([, k]) => {
          let score = 0;
          for (let f = h * this.width; f < (h + 1) * this.width; f++) score += q[f] * k[f];
          return score / Math.sqrt(this.width);
        });
        const a = softmax(scores);
        tokens.forEach(([, , v], j) => {
          for (let f = h * this.width; f < (h + 1) * this.width; f++) joined[i][f] += a[j] * v[f];
        });
        return a;
      }));
    return [joined, A];
  }

  row(name, i) {
    const { [name]: table, [`${name}.scale`]: scale } = this.weights;
    return Float32Array.from(table.subarray(i * this.d_model, (i + 1) * this.d_model), (byte) => byte * scale[i]);
  }

  linear(x, name, bias) {
    const scale = this.weights[`${name}.scale`];
    return times(x, this.weights[name]).map((value, j) => value * scale[j] + bias[j]);
  }
}

function layerNorm(x, gain, bias, epsilon) {
  const mean = x.reduce((a, b) => a + b, 0) / x.length;
  const variance = x.reduce((sum, value) => sum + (value - mean) ** 2, 0) / x.length;
  return x.map((value, i) => (gain[i] * (value - mean)) / Math.sqrt(variance + epsilon) + bias[i]);
}

// x Φ(x), with the error function to seven digits (Abramowitz and Stegun, 7.1.26).
function gelu(x) {
  const t = 1 / (1 + (0.3275911 * Math.abs(x)) / Math.SQRT2);
  const series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  const tail = (series * Math.exp((-x * x) / 2)) / 2; // Φ(−|x|)
  return x * (x > 0 ? 1 - tail : tail);
}
