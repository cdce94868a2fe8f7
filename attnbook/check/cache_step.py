"""Attention that goes on from a cache, in steps, and the ways to get each wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.outputs import SCALE_MISTAKES
from attnbook.check.report import Report
from attnbook.check.scores import one_over_root
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Stage, Values, draw, each


@documented
def cached_attention(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check attention that goes on from the keys and values of a cache.

    Runs `f` on one new token after several, on several new tokens, on an empty cache, on values of
    another width, and in float64 and float32.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value, past_key, past_value)``, by position: those of m new
        tokens, (h, m, d_k), (h, m, d_k) and (h, m, d_v), and those of the n tokens before, (h, n,
        d_k) and (h, n, d_v). It returns the output (h, m, d_v), and the keys (h, n + m, d_k) and
        values (h, n + m, d_v) of the longer cache. A new token sees itself and all before it.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import attention, check
    >>> def my_step(query, key, value, past_key, past_value):
    ...     keys = np.concatenate([past_key, key], axis=1)
    ...     values = np.concatenate([past_value, value], axis=1)
    ...     return attention(query, keys, values), keys, values
    >>> check.cached_attention(my_step).mistake
    'no mask'
    """
    return run(CACHED_ATTENTION, f, time_limit)


def _after(past, new):
    return np.concatenate([past, new], axis=1)


def _last_corner(m, n):
    return np.tri(m, n, n - m, dtype=bool)


def _softmax(scores, axis=-1):
    top = np.max(scores, axis=axis, keepdims=True)
    powers = np.exp(scores - np.where(top == -np.inf, 0, top))
    return powers / np.sum(powers, axis=axis, keepdims=True)


def _step(s: Any, query, key, value, past_key, past_value):
    both = s.join_keys(past_key, key), s.join_values(past_value, value)
    keys = s.attended(past_key, key, both[0])
    values = s.attended(past_value, value, both[1])
    scores = query @ np.swapaxes(keys, -1, -2) * s.factor(query, keys, values, None)
    A = s.weigh(s.softmax, scores, s.mask(query.shape[1], keys.shape[1]))
    output = s.finish(s.output(A, past_value, value, values), value)
    return s.results(output, *s.kept((past_key, past_value), (key, value), both))


_STEPS: dict[str, Callable] = {
    "join_keys": _after,
    "join_values": _after,
    "attended": lambda past, new, both: both,
    "factor": one_over_root,
    "mask": _last_corner,
    "softmax": _softmax,
    "weigh": lambda softmax, scores, mask: softmax(np.where(mask, scores, -np.inf)),
    "output": lambda A, past, new, values: A @ values,
    "finish": lambda output, value: output,
    "kept": lambda past, new, both: both,
    "results": lambda output, keys, values: (output, keys, values),
}


def the_order_of_the_past_is_free(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether the output depends on the order of the tokens in the cache."""
    past = {name: case.arrays[name][:, ::-1].copy() for name in ("past_key", "past_value")}
    moved = again(**past)
    fits = moved and moved[0].shape == values[0].shape
    if fits and not np.allclose(moved[0], values[0], atol=1e-4):
        return "Reversing the tokens of the cache must not change the output; it changes yours."
    return None


def _case(m: int, n: int, d_k: int = 3, d_v: int = 5, h: int = 2, dtype: str = "float64") -> Case:
    drawn = {
        "query": draw(63, h, m, d_k),
        "key": draw(64, h, m, d_k),
        "value": draw(65, h, m, d_v),
        "past_key": draw(66, h, n, d_k),
        "past_value": draw(67, h, n, d_v),
    }
    return Case({name: x.astype(dtype) for name, x in drawn.items()})


def _swapped(join: Callable) -> dict:
    return {"join_keys": join, "join_values": join}


CACHED_ATTENTION = Check(
    name="cached_attention",
    parameters=("query", "key", "value", "past_key", "past_value"),
    results={"output": "(h, m, d_v)", "keys": "(h, n + m, d_k)", "values": "(h, n + m, d_v)"},
    compute=_step,
    steps=_STEPS,
    stages=(
        Stage(
            (
                *(_case(1, 4), _case(1, 7, h=3), _case(1, 1), _case(1, 5, 4, 4)),
                *(_case(3, 4), _case(2, 2, 3, 3), _case(5, 2)),  # where the mask shows
            )
        ),
        Stage((_case(1, 0), _case(3, 0))),
        Stage((_case(1, 4, dtype="float32"), _case(3, 2, dtype="float32"))),
    ),
    mistakes=SCALE_MISTAKES
    + mistakes(
        """
        new token not seen: The new token attends to what came before it alone. Its own key and
            value belong to the keys: append first, then attend, itself included.
        cache not seen: The new token attends to the new keys alone. Those of the cache come before
            them.
        new keys not appended: You attend with the old keys and the new values, or the reverse. Both
            get longer.
        cache not returned: The cache that you return, or one half of it, is not longer than it was.
            The next step will not see this token.
        only the new returned: You return the new keys and values alone. The next step needs those
            of all tokens.
        put in front: You put the new tokens in front of the old ones. They are appended behind.
        no mask: New tokens see those that come after them. With one new token nothing needs to be
            hidden; with several the mask is causal, aligned to the last key.
        aligned to the first key: Your causal mask is aligned to the first key, or stands over the
            first columns: it hides old keys, which every new token sees. Shift it: new token i
            stands at place n + i.
        mask inverted: You hide the keys that a token may see and show those that it may not. Turn
            the mask round.
        mask after the softmax: You hide weights after the softmax, so the rest does not sum to 1.
            Hide the scores before it, with −∞.
        mask added to the scores: You add the mask to the scores as a number, or subtract its
            opposite. A hidden score is −∞.
        mask multiplies the scores: A hidden key has score 0, or nearly, in your function, and
            exp(0) is 1, so it keeps its weight. A hidden score is −∞.
        next place visible: A new token sees the one behind it. New token i stands at place n + i
            and sees the keys j ≤ n + i.
        softmax over the queries: Your softmax runs over the queries. It runs over the keys, the
            last axis.
        sign of the scores: You take the softmax of the scores with a minus. The best key has the
            largest score.
        no exponential: Your weights are another function of the scores: a sigmoid, or what is above
            0. Take their softmax.
        no softmax: You take the scores for weights. Take their softmax first.
        not normalised: You take the exponentials for weights. Divide them by their sum.
        residual inside: You add the value to the output. That belongs to the layer around it.
        keys and values exchanged: You return values and keys in the other order.
        values of one part: You weigh the new values alone, or the old ones alone. Every key has a
            weight, and a value that belongs to it.
        earlier new tokens not seen: A new token sees the cache and itself, but not the new tokens
            before it. New token i sees the keys j ≤ n + i.
        softmax over more than the keys: Your softmax runs over the heads, or over all scores of a
            head or of all heads. Each query has a softmax of its own, over the keys.
        values of other tokens: The weight of a key falls on the value of another token. Keys and
            values stand in one order.
        equal weights: A new token gives each key that it sees the same weight, whatever its score.
            The weights are the softmax of the scores.
        largest score alone: You take the value of the largest score alone. Every key that is seen
            has a weight.
        scale by a number of tokens: You divide the scores by a number of tokens or of heads, or by
            its root. Divide them by √d_k.
        output last: You return the cache first. Return the output, the keys, the values.
        """,
        {
            "new token not seen": (
                _swapped(lambda past, new: past),
                {"mask": lambda m, n: np.tri(m, n, n - m - 1, dtype=bool)},
                {
                    "attended": lambda past, new, both: past,
                    "mask": lambda m, n: np.ones((m, n), bool),
                },
            ),
            "cache not seen": (
                _swapped(lambda past, new: new),
                {"attended": lambda past, new, both: new},
                {
                    "attended": lambda past, new, both: new,
                    "mask": lambda m, n: np.ones((m, n), bool),
                },
            ),
            "new keys not appended": (
                {"join_keys": lambda past, new: np.concatenate([past, np.zeros_like(new)], 1)},
                {"join_values": lambda past, new: np.concatenate([past, np.zeros_like(new)], 1)},
            ),
            "values of one part": each(
                "output",
                lambda A, past, new, values: A[..., past.shape[1] :] @ new,
                lambda A, past, new, values: A[..., : past.shape[1]] @ past,
            ),
            "cache not returned": each(
                "kept",
                lambda past, new, both: past,
                lambda past, new, both: (both[0], past[1]),
                lambda past, new, both: (past[0], both[1]),
            ),
            "only the new returned": each("kept", lambda past, new, both: new),
            "put in front": _swapped(lambda past, new: np.concatenate([new, past], axis=1)),
            "no mask": each("mask", lambda m, n: np.ones((m, n), bool)),
            "aligned to the first key": each(
                "mask",
                lambda m, n: np.tri(m, n, dtype=bool),
                lambda m, n: np.tri(m, n, dtype=bool) | (np.arange(n) >= m),
            ),
            "mask inverted": (
                {"mask": lambda m, n: ~_last_corner(m, n)},
                {"weigh": lambda softmax, scores, mask: softmax(np.where(mask, -1e9, scores))},
            ),
            "earlier new tokens not seen": each(
                "mask",
                lambda m, n: (
                    _last_corner(m, n) & ((np.arange(n) < n - m) | (np.eye(m, n, n - m) > 0))
                ),
            ),
            "mask after the softmax": each(
                "weigh",
                lambda softmax, scores, mask: softmax(scores) * mask,
                lambda softmax, scores, mask: np.where(mask, softmax(scores), -np.inf),
            ),
            "mask added to the scores": each(
                "weigh",
                lambda softmax, scores, mask: softmax(scores + mask),
                lambda softmax, scores, mask: softmax(scores - mask),
            ),
            "mask multiplies the scores": each(
                "weigh", lambda softmax, scores, mask: softmax(scores * mask)
            ),
            "next place visible": each("mask", lambda m, n: np.tri(m, n, n - m + 1, dtype=bool)),
            "softmax over the queries": each("softmax", lambda z: _softmax(z, -2)),
            "softmax over more than the keys": each(
                "softmax", *(lambda z, axis=axis: _softmax(z, axis) for axis in (0, None, (1, 2)))
            ),
            "sign of the scores": each(
                "factor", lambda q, k, v, scale: -one_over_root(q, k, v, None)
            ),
            "values of other tokens": each(
                "output",
                lambda A, past, new, values: A @ values[:, ::-1],
                lambda A, past, new, values: A @ np.roll(values, 1, axis=1),
                lambda A, past, new, values: A @ np.roll(values, -1, axis=1),
            ),
            "no exponential": each(
                "softmax",
                lambda z: 1 / (1 + np.exp(-z)),
                lambda z: np.maximum(z, 0),
                lambda z: np.maximum(z, 0) / np.sum(np.maximum(z, 0), axis=-1, keepdims=True),
            ),
            "no softmax": each("weigh", lambda softmax, scores, mask: np.where(mask, scores, 0)),
            "not normalised": each(
                "softmax", np.exp, lambda z: np.exp(z - np.max(z, axis=-1, keepdims=True))
            ),
            "equal weights": each(
                "weigh", lambda softmax, scores, mask: softmax(np.where(mask, 0, -np.inf))
            ),
            "largest score alone": each(
                "softmax", lambda z: (z == np.max(z, axis=-1, keepdims=True)) * 1.0
            ),
            "scale by a number of tokens": each(
                "factor",
                *(
                    lambda q, k, v, scale, of=of, axis=axis: 1 / of(k.shape[axis])
                    for axis in (1, 0)
                    for of in (np.sqrt, float)
                ),
                lambda q, k, v, scale: 1 / np.sqrt(q.shape[1]),
            ),
            "residual inside": each("finish", np.add),
            "keys and values exchanged": each("kept", lambda past, new, both: both[::-1]),
            "output last": each("results", lambda output, keys, values: (keys, values, output)),
        },
    ),
    properties=(the_order_of_the_past_is_free,),
)
