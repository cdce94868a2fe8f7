"""Figure `own_attention`: the writer with a softmax or attention of the reader, or with a bug.

The page's Python runs `answer`, which prints JSON; the site is built with `recorded`.
"""

import json
import math
import sys

import numpy as np

from attnbook import softmax
from attnbook.data import plays
from attnbook.models import writer

PROMPT, LENGTH, LETTERS = "ROMEO:\n", 30, 500
FAULTS = ("half", "scale", "queries", "mask")
OWN = ("softmax", "attention")


def look_back(S):
    """Return the scores with −∞ where a token would look ahead."""
    n_q, n_k = S.shape[-2:]
    return np.where(np.tri(n_q, n_k, n_k - n_q) == 1, S, -np.inf)


def attention_by(weights_of, *, scaled=True, masked=True):
    """Return attention for the writer whose weights a function makes from the scores."""

    def attend(query, key, value, mask, bias, scale, is_causal):
        S = query @ np.matrix_transpose(key) * (scale if scaled else 1.0)
        return weights_of(look_back(S) if masked else S) @ value

    return attend


def half(S):
    """Return the softmax in float16, from which no maximum is subtracted."""
    e = np.exp(S.astype(np.float16))
    return (e / e.sum(axis=-1, keepdims=True)).astype(S.dtype)


def over_queries(S):
    """Return the softmax over the wrong axis."""
    e = np.exp(S - S.max(axis=-2, keepdims=True))
    return e / e.sum(axis=-2, keepdims=True)


def row_by_row(attention):
    """Return attention for the writer by a function of Q, K and V.

    It knows no mask, so each query is given alone, with the keys and values up to its own.
    """

    def attend(query, key, value, mask, bias, scale, is_causal):
        n_q, n_k = query.shape[-2], key.shape[-2]
        rows = [
            attention(
                query[..., i : i + 1, :],
                key[..., : n_k - n_q + i + 1, :],
                value[..., : n_k - n_q + i + 1, :],
            )
            for i in range(n_q)
        ]
        return np.concatenate(rows, axis=-2)

    return attend


def of_the_reader(name: str):
    """Return a function of the page's Python, or raise NameError."""
    function = vars(sys.modules["__main__"]).get(name)
    if function is None:
        raise NameError(f"{name} is not defined yet: run your answer to its task above")

    def call(*arguments):
        found = function(*arguments)
        if found is None:
            raise TypeError(f"{name} returns nothing: is a return missing?")
        return found

    return call


def attention_of(kind: str):
    """Return what attends in the writer."""
    if kind == "softmax":
        return attention_by(of_the_reader("softmax"))
    if kind == "attention":
        return row_by_row(of_the_reader("attention"))
    return {
        "right": attention_by(softmax),
        "half": attention_by(half),
        "scale": attention_by(softmax, scaled=False),
        "queries": attention_by(over_queries),
        "mask": attention_by(softmax, masked=False),
    }[kind]


def judged(kind: str, seed: int) -> dict:
    """Return what the writer writes and loses, and the error where it stops."""
    found = {"bits": None, "text": "", "error": None}
    try:
        attend = attention_of(kind)
        with np.errstate(all="ignore"):
            for piece in writer().write_stream(PROMPT, LENGTH, rng=seed, impl=attend):
                found["text"] += piece
            bits = writer().bits_per_byte(plays().test[:LETTERS], impl=attend)
        if math.isfinite(bits):
            found["bits"] = round(bits, 4)
    except Exception as error:  # whatever the function of the reader raises
        is_nan = isinstance(error, ValueError) and "NaN or infinity" in str(error)
        found["error"] = "NaN" if is_nan else f"{type(error).__name__}: {error}"
    return found


RIGHT: dict[int, dict] = {}
"""What the writer writes and loses by itself, by seed."""


def answer(kind: str, seed: int) -> None:
    """Print what the writer writes with another attention, and with its own."""
    if seed not in RIGHT:
        RIGHT[seed] = judged("right", seed)
    found = RIGHT[seed] if kind == "right" else judged(kind, seed)
    print(json.dumps({"found": found, "right": RIGHT[seed]}))


def recorded(seed: int = 0) -> dict:
    """Return what the writer writes with its own attention and with each fault."""
    return {kind: judged(kind, seed) for kind in ("right", *FAULTS)}
