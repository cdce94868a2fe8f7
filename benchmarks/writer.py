"""The writer that the package carries: bits per byte of plays it never saw.

Three tables. `writer`: the validation plays and the test plays, each whole. `places`: how the bits
of a token fall with the tokens in view. `lines`: what of the bits goes to the names of speakers.
The last two have an n-gram model beside the writer; what else there is to beat is measured by
`rivals`.
"""

import hashlib
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from attnbook import data, log_softmax, models, transformer
from benchmarks.rivals import CACHED, LONGEST, Ids, Text, pair_ids, per_byte, texts
from benchmarks.rivals_cache import Cache, seen
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
    "lines": (
        "The bits of the lines that name who speaks, and of the spoken lines, both divided "
        "by the bytes of the whole text: their sum is that of the model. The cache holds the last "
        "255 tokens."
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
    order = CACHED["byte pair"]
    rival = Ngrams(ids.train, ids.n_ids, order)
    discounts = rival.tuned(ids.validation, order)
    p = [rival.probabilities(rival.places(x), discounts) for x in (ids.validation, ids.test)]
    tables.whole("places", lambda: list(places(writer.context, losses[1], -np.log2(p[1]))))
    tables.whole("lines", lambda: list(lines(writer.tokenizer, text, ids, losses, p)))


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


def places(context: int, losses: Losses, rival: np.ndarray) -> Iterator[dict[str, Any]]:
    """Give a row for each doubling of the tokens in view: bits per token, ours and a rival's."""
    starts = context // 2 * np.arange(len(losses.windows))[:, np.newaxis]
    at = np.minimum(starts + np.arange(context), len(rival) - 1)
    theirs = np.where(np.isnan(losses.windows), np.nan, rival[at])
    first = 1
    while first <= context:
        last = context if 4 * first > context else 2 * first - 1
        part = slice(first - 1, last)
        yield {
            "first": first,
            "last": last,
            "writer": float(np.nanmean(losses.windows[:, part])),
            "ngrams": float(np.nanmean(theirs[:, part])),
        }
        first = last + 1


def lines(
    tokenizer: data.BytePairs, text: Text, ids: Ids, losses: list[Losses], p: list[np.ndarray]
) -> Iterator[dict[str, Any]]:
    """Give a row for each model and text: bits of the names of speakers, and of what they say."""
    longest = LONGEST["byte pair"]
    past = [seen(x, longest, 255) for x in (ids.validation, ids.test)]
    cache = Cache(longest).fit(p[0], past[0])
    for i, part in enumerate(("validation", "test")):
        whole = getattr(text, part)
        is_name = names(tokenizer, whole, getattr(ids, part))
        costs = {
            "writer": losses[i].tokens,
            "Kneser-Ney": -np.log2(p[i]),
            "Kneser-Ney, cache": -np.log2(cache.probabilities(p[i], past[i])),
        }
        for model, cost in costs.items():
            n_bytes = len(whole.encode())
            bits_of = {"names": cost[is_name].sum(), "words": cost[~is_name].sum()}
            yield {"model": model, "part": part} | {k: x / n_bytes for k, x in bits_of.items()}


def names(tokenizer: data.BytePairs, text: str, ids: np.ndarray) -> np.ndarray:
    """Return which tokens begin in a line that names a speaker; such a line ends in a colon."""
    is_name = np.zeros(len(text.encode()), bool)
    for match in re.finditer(rb"(?m)^[A-Z][A-Z' &,-]*:\n", text.encode()):
        is_name[match.start() : match.end()] = True
    ends = np.cumsum([len(tokenizer.tokens[i]) for i in ids])
    return is_name[np.concatenate(([0], ends[:-1]))]
