"""Latent attention in its absorbed form in steps, and the ways to get it wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, Values, draw
from attnbook.check.engine.text import Text


@documented
def latent_attention(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check multi-head latent attention from cached latents, absorbed or not.

    Runs `f` on sizes that are all different primes, on sizes that are all alike, on one query, one
    latent and one head, on scores of ±1000, and in float64 and float32.

    Parameters
    ----------
    f : callable
        Called as ``f(query, query_rope, latents, key_rope, W_UK, W_UV)``, by position, on the
        queries (h, m, d_nope), their rotated parts (h, m, d_rope), the latents (n, r) and the
        rotated keys (n, d_rope), which all heads share, and the up-projections W_UK (h, r, d_nope)
        and W_UV (h, r, d_v) of each head. Every query sees every latent. It returns the outputs
        (h, m, d_v) of attention with the keys [latents W_UK, key_rope], the values latents W_UV,
        and the scale 1/√(d_nope + d_rope).

    Examples
    --------
    >>> from attnbook import check, softmax
    >>> def my_absorbed(query, query_rope, latents, key_rope, W_UK, W_UV):
    ...     absorbed = query @ W_UK.mT
    ...     scores = absorbed @ latents.mT + query_rope @ key_rope.mT
    ...     scores = scores / (absorbed.shape[-1] + query_rope.shape[-1]) ** 0.5
    ...     return softmax(scores) @ latents @ W_UV
    >>> check.latent_attention(my_absorbed).mistake
    'scale of the latents'
    """
    return run(LATENT_ATTENTION, f, time_limit)


def t(x):
    return np.swapaxes(x, -1, -2)


def softmax_of(scores, axis=-1):
    top = np.max(scores, axis=axis, keepdims=True)
    powers = np.exp(scores - top)
    return powers / np.sum(powers, axis=axis, keepdims=True)


def unit(x):
    """Return the rows divided by the root of their mean square."""
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True))


def _attend(s: Any, query, query_rope, latents, key_rope, W_UK, W_UV):
    W_UK, W_UV = s.matrices(W_UK, W_UV)
    latents = s.latents(latents)
    content = s.absorb(query, W_UK) @ t(latents)
    widths = query.shape[-1], query_rope.shape[-1], latents.shape[-1]
    scores = s.scores(content, s.position(query_rope, key_rope), *widths)
    A = s.softmax(s.mask(scores * s.factor(*widths)))
    return s.leave(s.read(A, latents, W_UV, W_UK))


def the_order_of_the_latents_is_free(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether the output depends on the order of the tokens in the cache."""
    past = {name: case.arrays[name][::-1].copy() for name in ("latents", "key_rope")}
    moved = again(**past)
    fits = moved and moved[0].shape == values[0].shape
    if fits and not np.allclose(moved[0], values[0], atol=1e-4):
        return "Reversing the tokens of the cache must not change the output; it changes yours."
    return None


def _case(
    h: int,
    m: int,
    n: int,
    nope: int,
    rope: int,
    r: int,
    v: int,
    dtype: str = "float64",
    by: int = 1,
) -> Case:
    drawn = {
        "query": by * draw(91, h, m, nope),
        "query_rope": by * draw(92, h, m, rope),
        "latents": draw(93, n, r),
        "key_rope": draw(94, n, rope),
        "W_UK": draw(95, h, r, nope),
        "W_UV": draw(96, h, r, v),
    }
    return Case({name: x.astype(dtype) for name, x in drawn.items()})


TEXT = Text(globals())

LATENT_ATTENTION = Check(
    name="latent_attention",
    parameters=("query", "query_rope", "latents", "key_rope", "W_UK", "W_UV"),
    results={"output": "(h, m, d_v)"},
    compute=_attend,
    steps=TEXT.steps,
    stages=(
        Stage(
            (
                *(_case(2, 3, 5, 7, 4, 11, 6), _case(3, 1, 7, 5, 2, 4, 3)),
                *(_case(2, 4, 6, 3, 2, 3, 3), _case(3, 3, 3, 4, 4, 4, 4)),
                *(_case(1, 2, 5, 3, 2, 4, 5), _case(2, 3, 1, 5, 4, 3, 2)),
            )
        ),
        Stage((_case(2, 3, 5, 7, 4, 11, 6, by=1000),)),
        Stage((_case(2, 3, 5, 7, 4, 11, 6, dtype="float32"),)),
    ),
    mistakes=TEXT.mistakes,
    properties=(the_order_of_the_latents_is_free,),
)
