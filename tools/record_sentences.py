"""Write `attnbook/models/recorded_sentences.npz`: what the sentence encoder makes of a few lines.

Run ``python tools/record_sentences.py`` after ``python -m attnbook models get sentence-encoder``.
Chapters read this file, so that they run without the model. The lines are those of
``tools/famous_lines.txt``, which must be lines of the plays.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from search_plays import all_lines

from attnbook import EncoderWeights
from attnbook.models import bert, sentence_encoder

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "attnbook/models/recorded_sentences.npz"
QUERIES = (
    "Should I live or should I die?",
    "I cannot sleep because I feel guilty.",
    "We fell in love the moment we saw each other.",
    "Everybody is only an actor.",
    "Life is short and means nothing.",
    "He offers his country for an animal.",
    "Do not lend money to a friend.",
    "Forgiveness is better than punishment.",
    "Envy is a dangerous animal.",
    "The weather is terrible.",
    "They are nice to you, and want to kill you.",
    "How does the night sky look?",
)
SENTENCES = (
    "A horse! a horse! my kingdom for a horse!",
    "To be, or not to be: that is the question:",
    "Love looks not with the eyes, but with the mind;",
)
HEAD = 2, 9
"""Layer and head that look for the same word elsewhere."""


def of_head(weights, head: int) -> dict[str, np.ndarray]:
    """Return W_Q, W_K and W_V of one head, each with its bias as the last row."""
    heads, made = weights.self_attention, {}
    for letter in "QKV":
        rows = np.vstack([getattr(heads, f"W_{letter}"), getattr(heads, f"b_{letter}")])
        width = rows.shape[1] // heads.n_heads
        made[f"W_{letter}"] = rows[:, head * width : (head + 1) * width]
    return made


def main() -> None:
    encoder = sentence_encoder()
    known = {line: (speaker, play) for play, speaker, line in all_lines()}
    lines = (ROOT / "tools/famous_lines.txt").read_text("utf8").splitlines()
    texts = {
        "lines": lines,
        "speakers": [known[line][0] for line in lines],
        "plays": [known[line][1] for line in lines],
        "queries": QUERIES,
        "tokens": [encoder.tokens(sentence) for sentence in SENTENCES],
        "head": HEAD,
    }
    arrays = {"vectors": encoder.encode(lines), "query_vectors": encoder.encode(QUERIES)}
    arrays |= {f"attention_{i}": encoder.attention(text) for i, text in enumerate(SENTENCES)}
    layer, head = HEAD
    layers = encoder.weights.encoder.layers
    before = replace(encoder.weights, encoder=EncoderWeights(layers[:layer]))
    x = bert(encoder.tokenizer.encode(SENTENCES[0]), before)
    arrays["x"] = np.hstack([x, np.ones((len(x), 1))])  # a 1 for the bias
    arrays |= of_head(layers[layer], head)
    arrays = {name: a.astype(np.float16) for name, a in arrays.items()}
    np.savez_compressed(OUTPUT, texts=np.array(json.dumps(texts)), **arrays)
    print(f"{OUTPUT.relative_to(ROOT)}: {len(lines)} lines, {OUTPUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
