"""The writer that the package carries: bits per byte of plays it never saw.

Two tables. `writer`: the validation plays and the test plays, each whole. `places`: how the bits of
a token fall with the tokens in view, beside those of an n-gram model. What else there is to beat is
measured by `rivals`.
"""

import hashlib
from collections.abc import Iterator
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from attnbook import log_softmax, models, transformer
from benchmarks.rivals import CACHED, Ids, Text, pair_ids, per_byte, texts
from benchmarks.rivals_ngrams import Ngrams
from benchmarks.tables import Tables

DEVICES = ("cpu",)

METHODS = {
    "validation, test": (
        "Bits per byte of the validation plays and of the test plays: minus the sum of log2 p over "
        "all tokens, divided by the bytes of the text. Every token counts, the first too."
    ),
    "windows": (
        "Windows of the writer's whole context, each half a context after the one before. A token "
        "is predicted from at least half a context, but for the first ones of the text."
    ),
    "places": (
        "Bits per token of the test plays, the mean over all windows, by how many tokens were in "
        "view, the one that begins a text included. `ngrams` are the same tokens by the "
        "Kneser-Ney model of byte pairs, which looks at three tokens before."
    ),
}


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure the writer on the plays; nothing here runs on another device."""
    text = texts(quick, tables)
    stored = resources.files("attnbook.models").joinpath("writer.npz").read_bytes()
    tables.add(methods=METHODS, sha256=hashlib.sha256(stored).hexdigest())
    writer = models.writer()
    ids = pair_ids(writer.tokenizer, text)
    losses = [per_token(writer, x) for x in (ids.validation, ids.test)]
    tables.whole("writer", lambda: [writer_row(writer, text, losses)])
    tables.whole("places", lambda: list(places(writer, ids, losses)))


class Losses(NamedTuple):
    """The bits of each token of a text, and of each place of each window."""

    tokens: np.ndarray
    windows: np.ndarray  # (windows, context), with NaN behind the end of the text


def per_token(writer: Any, ids: np.ndarray) -> Losses:
    """Return what each token costs the writer."""
    context, n = writer.context, len(ids)
    before = np.concatenate(([writer.tokenizer.stop], ids[:-1]))
    tokens, windows = np.full(n, np.nan), []
    for start in range(0, max(n - context // 2, 1), context // 2):
        labels = ids[start : start + context]
        logits = transformer(None, before[start : start + context], writer.weights)
        lost = -log_softmax(np.asarray(logits, np.float64))[np.arange(len(labels)), labels]
        lost /= np.log(2)
        fresh = np.isnan(tokens[start : start + context])
        tokens[start : start + context][fresh] = lost[fresh]
        windows.append(np.pad(lost, (0, context - len(lost)), constant_values=np.nan))
    return Losses(tokens, np.array(windows))


def writer_row(writer: Any, text: Text, losses: list[Losses]) -> dict[str, Any]:
    """Return the row of the writer, with its sizes."""
    about = {
        "model": "writer",
        "unit": "byte pair",
        "context": writer.context,
        "parameters": sum(x.size for x in writer.weights.arrays().values()),
    }
    return per_byte(about, text, *(float(x.tokens.sum()) for x in losses))


def places(writer: Any, ids: Ids, losses: list[Losses]) -> Iterator[dict[str, Any]]:
    """Give a row for each doubling of the tokens in view: bits per token, ours and an n-gram's."""
    model = Ngrams(ids.train, ids.n_ids, CACHED["byte pair"])
    discounts = model.tuned(ids.validation, CACHED["byte pair"])
    lost = -np.log2(model.probabilities(model.places(ids.test), discounts))
    context, half = writer.context, writer.context // 2
    starts = half * np.arange(len(losses[1].windows))[:, np.newaxis]
    at = np.minimum(starts + np.arange(context), len(ids.test) - 1)
    theirs = np.where(np.isnan(losses[1].windows), np.nan, lost[at])
    first = 1
    while first <= context:
        last = context if 4 * first > context else 2 * first - 1
        part = slice(first - 1, last)
        yield {
            "first": first,
            "last": last,
            "writer": float(np.nanmean(losses[1].windows[:, part])),
            "ngrams": float(np.nanmean(theirs[:, part])),
        }
        first = last + 1
