"""The law of Hoffmann et al. through the losses of trainings: L(N, D) = E + A/N^a + B/D^b."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

NAMES = ("E", "A", "a", "B", "b")
DELTA = 1e-3  # where Huber's loss of a difference of logarithms becomes straight
DRAWS = 100
INTERVAL = (5, 95)  # percentiles
STARTS = tuple(itertools.product((0.6,), (0.1, 0.6), (0.1, 0.6)))  # share of E, a, b

METHODS = {
    "fit": (
        "Bits per byte = E + A/N^a + B/D^b for N parameters, in `fit` without the embedding, and "
        "D tokens, by least squares on the logarithm of the loss with Huber's loss, delta 0.001, "
        "as Hoffmann et al. (2022), from 4 starts, delta 0.1 first. The largest run is kept out."
    ),
    "interval, standard_error": (
        "Percentiles 5 and 95, and the standard deviation, over fits to 100 sets of runs drawn "
        "with replacement. A and B are those of N = 1 and D = 1, far from every run."
    ),
    "residual": "Root mean square of the differences in bits per byte.",
    "residual_of_E": (
        "The residual of the best fit with E held at a share of the lowest loss. Where they are "
        "alike, these runs do not tell E."
    ),
    "held_out": "The run of the largest size on most tokens, predicted and measured.",
    "held_out_size": (
        "The same run, predicted from the runs of all smaller sizes, and the root mean square of "
        "the errors of all runs of the largest size."
    ),
    "between_seeds": "Standard deviation of the loss between seeds, pooled over sizes and tokens.",
}


def fitted(runs: Sequence[dict[str, Any]], parameters: str) -> dict[str, Any]:
    """Return the law of `runs`, whose field `parameters` is N."""
    n, d, loss = (np.array([row[name] for row in runs], float) for name in _fields(parameters))
    small = n < n.max()
    most = {"parameters": int(n.max()), "tokens": int(d[~small].max())}
    largest = ~small & (d == most["tokens"])
    kept = ~largest
    law = fit(n[kept], d[kept], loss[kept])
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(DRAWS):
        chosen = rng.choice(np.flatnonzero(kept), size=kept.sum())
        draws.append(fit(n[chosen], d[chosen], loss[chosen]))
    rest = loss[kept] - predicted(law, n[kept], d[kept])
    of_smaller = fit(n[small], d[small], loss[small])
    errors = predicted(of_smaller, n[~small], d[~small]) - loss[~small]
    shares = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9)
    return {
        "formula": "E + A/N^a + B/D^b",
        "N": parameters,
        "D": "tokens",
        "loss": "validation",
        "runs": int(kept.sum()),
        **law,
        "interval": {
            name: np.percentile([one[name] for one in draws], INTERVAL).tolist() for name in NAMES
        },
        "standard_error": {name: float(np.std([one[name] for one in draws])) for name in "Eab"},
        "residual": _rms(rest),
        "residual_of_E": [
            {"E": E, "residual": _rms(loss[kept] - predicted(held, n[kept], d[kept]))}
            for E in (share * float(loss.min()) for share in shares)
            for held in [fit(n[kept], d[kept], loss[kept], E=E)]
        ],
        "held_out": most
        | {
            "predicted": float(predicted(law, *most.values())),
            "measured": float(loss[largest].mean()),
        },
        "held_out_size": most
        | {
            "predicted": float(predicted(of_smaller, *most.values())),
            "measured": float(loss[largest].mean()),
            "error": _rms(errors),
        },
        "between_seeds": _between_seeds(n, d, loss),
    }


def fit(
    n: np.ndarray, d: np.ndarray, loss: np.ndarray, *, E: float | None = None
) -> dict[str, float]:
    """Return the law that fits best, with `E` held where it is given.

    What is searched are the powers a and b and the logarithms of the three terms at the middle of
    the runs: those of A and B would go with the powers.
    """
    from scipy.optimize import least_squares
    from scipy.special import logsumexp, softmax

    log_n, log_d, log_loss = np.log(n), np.log(d), np.log(loss)
    mid_n, mid_d = log_n.mean(), log_d.mean()
    log_E = None if E is None else np.log(E) if E > 0 else -np.inf

    def terms(x):
        first = np.full_like(log_n, x[4] if log_E is None else log_E)
        return np.stack([x[0] - x[1] * (log_n - mid_n), x[2] - x[3] * (log_d - mid_d), first])

    def difference(x):
        return logsumexp(terms(x), axis=0) - log_loss

    def slopes(x):
        part_n, part_d, part_E = softmax(terms(x), axis=0)
        columns = [part_n, -part_n * (log_n - mid_n), part_d, -part_d * (log_d - mid_d), part_E]
        return np.stack(columns[: len(x)], axis=1)

    found = []
    for share, a, b in STARTS:
        other = np.log((1 - share) / 2 * loss.mean())
        x = np.array([other, a, other, b, np.log(share * loss.mean())])
        x = x if log_E is None else x[:4]
        for delta in (100 * DELTA, 10 * DELTA, DELTA):
            one = least_squares(difference, x, slopes, loss="huber", f_scale=delta, max_nfev=100)
            x = one.x
        found.append(one)
    x = min(found, key=lambda one: one.cost).x
    return {
        "E": float(np.exp(x[4])) if E is None else float(E),
        **{"A": float(np.exp(x[0] + x[1] * mid_n)), "a": float(x[1])},
        **{"B": float(np.exp(x[2] + x[3] * mid_d)), "b": float(x[3])},
    }


def predicted(law: dict[str, float], n: Any, d: Any) -> Any:
    """Return the loss that the law says of `n` parameters and `d` tokens."""
    return law["E"] + law["A"] * n ** -law["a"] + law["B"] * d ** -law["b"]


def _fields(parameters):
    return parameters, "tokens", "validation"


def _rms(x):
    return float(np.sqrt(np.mean(np.square(x))))


def _between_seeds(n, d, loss):
    """Return the pooled standard deviation of runs that differ in their seed alone."""
    squares, free = 0.0, 0
    for one in set(zip(n, d, strict=True)):
        same = loss[(n == one[0]) & (d == one[1])]
        squares += float(np.sum((same - same.mean()) ** 2))
        free += len(same) - 1
    return float(np.sqrt(squares / free)) if free else None
