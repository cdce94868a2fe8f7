"""What figures show before a reader has loaded a model, and the models as files for the page.

attnbook computes all of it while the site is built. The sentence encoder is a part of the site
only if the environment variable ATTNBOOK_LABS_ENCODER is set, and then its weights must be on this
machine (``python -m attnbook models get sentence-encoder``).
"""

import importlib.util
import json
import os
import struct
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import attnbook as ab
from attnbook import decoding
from attnbook.data import plays
from attnbook.models import BertWeights, recorded_sentences, sentence_encoder, writer
from tools.heads_of_writer import mean_outputs, passages

ROOT = Path(__file__).parents[2]

BEGINNINGS = ("ROMEO:\nI am", "HAMLET:\nGood my", "ROMEO:\nBut soft, what light")
SHOWN, WIDEST, STEPS = 12, 4, 5
"""How many bars, beams and steps of a beam search figure `decoding` has."""
SPEECHES = (
    "HAMLET:\nTo be, or not to be: that is the question:",
    "KING RICHARD III:\nA horse! a horse! my kingdom for a horse!",
    "HELENA:\nLove looks not with the eyes, but with the mind;",
    "To-morrow, and to-",
)
"""The sentences of `recorded_sentences`, as the plays have them, and the line of `the_writer`."""
GUESSED = 8
"""How many next tokens figure `guesses` shows."""

DRAWN, TEMPERATURE = 40, 0.8
"""How many tokens the writer of figure `pruning` draws, and how."""

LONGEST = 64
"""Positions of the sentence encoder that the page has."""

the_writer = cache(writer)


def writer_file() -> bytes:
    """Return the writer as `Writer` of ``book/labs/writer.js`` reads it, in half precision."""
    model = the_writer()
    stack, embedding = model.weights.decoder, model.weights.target_embedding
    own = stack.layers[0].self_attention
    arrays = {"final_gain": stack.final_norm.gain, "embedding": embedding}
    for i, layer in enumerate(stack.layers):
        arrays[f"{i}.attention_gain"] = layer.self_attention_norm.gain
        arrays[f"{i}.feed_forward_gain"] = layer.feed_forward_norm.gain
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            arrays[f"{i}.{name}"] = getattr(layer.self_attention, name)
        for name in ("W_1", "W_gate", "W_2"):
            arrays[f"{i}.{name}"] = getattr(layer.feed_forward, name)
    sizes = {"layers": len(stack.layers), "heads": own.n_heads, "kv_heads": own.n_kv_heads}
    sizes |= {"d_model": embedding.shape[1], "context": model.context}
    return packed(arrays, sizes=sizes, merges=model.tokenizer.merges)


def encoder_file(weights: BertWeights, tokens: Sequence[str]) -> bytes:
    """Return a sentence encoder as `Encoder` of ``book/labs/encoder.js`` reads it.

    A number of a matrix is a byte, times the scale of its column, or of its row in an embedding.
    """
    stack = weights.encoder
    first = weights.token_type_embedding[0]
    arrays = {
        "embedding.gain": weights.embedding_norm.gain,
        "embedding.bias": weights.embedding_norm.bias,
    }
    arrays |= in_bytes("token_embedding", weights.token_embedding, axis=1)
    arrays |= in_bytes("position_embedding", weights.position_embedding[:LONGEST] + first, axis=1)
    for i, layer in enumerate(stack.layers):
        own, feed = layer.self_attention, layer.feed_forward
        norms = {"attention": layer.self_attention_norm, "feed_forward": layer.feed_forward_norm}
        for name, norm in norms.items():
            arrays |= {f"{i}.{name}.gain": norm.gain, f"{i}.{name}.bias": norm.bias}
        for part, letters in ((own, "QKVO"), (feed, "12")):
            for letter in letters:
                arrays |= in_bytes(f"{i}.W_{letter}", getattr(part, f"W_{letter}"), axis=0)
                arrays[f"{i}.b_{letter}"] = getattr(part, f"b_{letter}")
    sizes = {"layers": len(stack.layers), "heads": stack.layers[0].self_attention.n_heads}
    sizes |= {"d_model": weights.token_embedding.shape[1]}
    sizes |= {"epsilon": weights.embedding_norm.epsilon}
    return packed(arrays, sizes=sizes, tokens=tokens)


def in_bytes(name: str, x: np.ndarray, axis: int) -> dict[str, np.ndarray]:
    """Return a matrix in bytes, and its scales, which are taken over an axis."""
    scale = (np.max(np.abs(x), axis=axis, keepdims=True) / 127).astype(np.float16)
    quotients = np.rint(x / np.maximum(scale.astype(np.float32), 1e-7))
    return {name: np.clip(quotients, -127, 127).astype(np.int8), f"{name}.scale": scale}


def packed(arrays: dict[str, np.ndarray], **content: Any) -> bytes:
    """Return a file for `arraysOf` of ``book/labs/arrays.js``.

    The length of a header in four bytes, the header in JSON, and the arrays, those in half
    precision first.
    """
    kinds = {name: "i1" if x.dtype == np.int8 else "f2" for name, x in arrays.items()}
    order = sorted(arrays, key=lambda name: kinds[name])
    content["arrays"] = [[name, arrays[name].size, kinds[name]] for name in order]
    header = json.dumps(content, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 4)  # the numbers begin where a number may
    numbers = b"".join(arrays[name].astype(f"<{kinds[name]}").tobytes() for name in order)
    return struct.pack("<I", len(header)) + header + numbers


def decoding_record() -> dict[str, Any]:
    """Return what the writer says after `BEGINNINGS`, in thousandths of a nat.

    Of each: its tokens; the likeliest next ones; log p of all, in falling order, as the steps from
    one to the next; and a table for beam searches, from the ids of each beginning that a search
    visits to its likeliest next tokens.
    """
    beginnings = [beginning(text) for text in BEGINNINGS]
    return {"megabytes": megabytes()["writer"], "beginnings": beginnings}


def beginning(text: str) -> dict[str, Any]:
    tokenizer = the_writer().tokenizer
    ids = [tokenizer.stop, *tokenizer.encode(text).tolist()]
    (log_p,) = log_p_after([ids])
    order = np.argsort(-log_p, kind="stable")
    steps = np.diff(thousandths(log_p[order]), prepend=0)
    return {
        "text": text,
        "pieces": [piece(i) for i in ids[1:]],
        "next": [piece(i) for i in order[:SHOWN]],
        "steps": steps.tolist(),
        "table": search_table(ids),
    }


def piece(i: int) -> str:
    """Return the text of a token, none for the end, as `pieces` of ``book/labs/writer.js``."""
    tokenizer = the_writer().tokenizer
    return tokenizer.tokens[i].decode(errors="surrogateescape") if i != tokenizer.stop else ""


def search_table(prompt: list[int]) -> dict[str, list[tuple[int, str, int]]]:
    """Return the likeliest next tokens of all that searches of up to `WIDEST` beams visit."""
    weights, tokenizer = the_writer().weights, the_writer().tokenizer
    table = {}
    for length in range(STEPS):
        visited = {()}
        for n_beams in range(1, WIDEST + 1) if length else ():
            found = decoding.beam_search(
                weights,
                prompt=np.array([prompt]),
                max_length=length,
                n_beams=n_beams,
                stop=tokenizer.stop,
            )
            visited |= {tuple(row) for row in found.tokens[0].tolist()}
        visited = sorted(row for row in visited if len(row) == length and tokenizer.stop not in row)
        after = log_p_after([[*prompt, *row] for row in visited])
        for row, log_p in zip(visited, after, strict=True):
            best = np.argsort(-log_p, kind="stable")[:WIDEST]
            table[",".join(map(str, row))] = [
                (int(i), piece(i), int(thousandths(log_p[i]))) for i in best
            ]
    return table


def megabytes() -> dict[str, float]:
    """Return the size of each model in the site, to one decimal."""
    models = (name.split(".") for name in FILES)
    return {name: round(len(made(f"{name}.bin")) / 1e6, 1) for name, end in models if end == "bin"}


def log_p_after(rows):
    """Return log p of the next token of each row of ids, all of one length."""
    model = the_writer()
    return ab.log_softmax(ab.transformer(None, np.array(rows), model.weights)[:, -1])


def thousandths(x):
    return np.rint(1000 * np.asarray(x)).astype(int)


def heads_record() -> dict[str, Any]:
    """Return where all heads of both models look in a few sentences, in thousandths.

    Of each sentence: its tokens, and for each layer and head the rows of its weights; where a model
    is causal, a row ends with its own token, and the likeliest next tokens are there.
    """
    model, recorded = the_writer(), recorded_sentences()
    return {
        "megabytes": megabytes(),
        "writer": [
            {
                "tokens": model.tokens(text),
                "A": rows_of(model.attention(text), causal=True),
                "pieces": [piece(i) for i in model.ids(text)],
                "next": guesses(model.logits(text)),
            }
            for text in SPEECHES
        ],
        "encoder": [
            {"tokens": recorded.tokens[i], "A": rows_of(recorded.attention[i], causal=False)}
            for i in (1, 0, 2)
        ],
    }


def guesses(logits):
    """Return the likeliest next tokens after each token, with p in thousandths."""
    best = np.argsort(-logits, axis=-1, kind="stable")[:, :GUESSED]
    p = np.take_along_axis(ab.softmax(logits), best, axis=-1)
    rows = zip(best.tolist(), (1000 * p).round(4).tolist(), strict=True)
    return [[(piece(i), share) for i, share in zip(*row, strict=True)] for row in rows]


def rows_of(A, causal):
    """Return (layers, h, n, n) as lists; causal rows without the zeros after their own token."""
    return [
        [[row[: i + 1 if causal else None] for i, row in enumerate(head)] for head in layer]
        for layer in thousandths(A).tolist()
    ]


def pruning_record() -> dict[str, Any]:
    """Return what figure `pruning` begins with.

    The mean output of each head over passages of the training plays, which takes its place; the
    heads in the order of their need there; a passage of a play that the writer has never read; and
    what the whole writer loses on it and writes.
    """
    model = the_writer()
    mean = mean_outputs(model, passages(plays().train, 8)).reshape(-1, 32)  # (layers · h, d)
    recorded = json.loads((ROOT / "book/data/heads_of_writer.cpu.json").read_text("utf8"))
    need = np.ravel(recorded["losses"]["mean_on_training_plays"])
    beginning = passages(plays().validation, 8)[4]  # Julius Caesar
    passage = beginning[: beginning.index("\n\nCASSIUS:\nBrutus")]
    prompt = model.tokenizer.encode("BRUTUS:\n").tolist()
    draws = np.random.default_rng(0).random(DRAWN).round(4).tolist()
    record = {
        "megabytes": megabytes()["writer"],
        "mean": mean.astype(float).round(4).tolist(),
        "ranked": np.argsort(need, kind="stable").tolist(),
        "passage": {
            "ids": model.tokenizer.encode(passage).tolist(),
            "bytes": len(passage.encode()),
        },
        "prompt": prompt,
        "promptPieces": [piece(i) for i in prompt],
        "draws": draws,
        "temperature": TEMPERATURE,
    }
    written = [piece(i) for i in drawn_after(prompt, draws)]
    return record | {"whole": {"bits": model.bits_per_byte(passage), "pieces": written}}


def drawn_after(prompt: list[int], draws: list[float], **options: Any) -> list[int]:
    """Return the tokens on whose pieces of [0, 1) the numbers of `draws` fall."""
    tokenizer, ids = the_writer().tokenizer, [the_writer().tokenizer.stop, *prompt]
    for xi in draws:
        logits = ab.transformer(None, np.array(ids), the_writer().weights, **options)[-1]
        p = ab.softmax(logits.astype(float) / TEMPERATURE)
        token = min(int(np.searchsorted(np.cumsum(p), xi, side="right")), len(p) - 1)
        if token == tokenizer.stop:
            break
        ids.append(token)
    return ids[1 + len(prompt) :]


def in_page(name: str) -> ModuleType:
    """Return a module of ``book/live`` that the page's Python has, too."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"book/live/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def encoder_of_the_site() -> bytes:
    encoder = sentence_encoder()
    return encoder_file(encoder.weights, encoder.tokenizer.tokens)


def as_module(record: dict[str, Any]) -> bytes:
    return f"export const record = {json.dumps(record, separators=(',', ':'))};\n".encode()


FILES: dict[str, Callable[[], bytes]] = {
    "writer.bin": writer_file,
    "decoding_record.js": lambda: as_module(decoding_record()),
    "heads_record.js": lambda: as_module(heads_record()),
    "pruning_record.js": lambda: as_module(pruning_record()),
    "cheating_record.js": lambda: as_module(in_page("cheating").recorded()),
    "own_attention_record.js": lambda: as_module(in_page("own_attention").recorded()),
}
"""Files that stand beside the modules of `book/labs` in the site, and what makes each."""
if os.environ.get("ATTNBOOK_LABS_ENCODER"):
    FILES["encoder.bin"] = encoder_of_the_site


@cache
def made(name: str) -> bytes:
    """Return one of `FILES`."""
    return FILES[name]()
