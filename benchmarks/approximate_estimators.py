"""Which estimator: the error of each, where all score about the same share of the keys."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from attnbook import attention
from attnbook.sketch import Moments, SimHash, SketchAttention
from benchmarks import approximate_features, approximate_keys
from benchmarks.approximate_keys import TEST

N, QUICK_N = 16_384, 1024
TABLES = 32
BUDGETS, QUICK_BUDGETS = (0.005, 0.01, 0.03, 0.1), (0.03,)
SEEDS, QUICK_SEEDS = 5, 2
FEATURES = 1024

ABOUT = {
    "estimators": (
        f"Not causal, {approximate_keys.CHECKED} queries of one head. Of a writer: queries of the "
        "last eighth of the text, keys of what is before it, so that their neighbours are not "
        "among the keys, as where a window holds them apart. `budget`: the wanted share of the "
        "keys that are scored; `share`: that was, the mean over queries; with moments it is that "
        "of the same tables without them. "
        f"{TABLES} tables of SimHash with the "
        "number of bits that comes nearest to it; a sample or heavy keys have half of the budget "
        "to themselves beside tables, all of it alone. `error`: mean over queries of "
        "|o - exact| / |exact|, the median of seeds, and `error_low`, `error_high` the least and "
        f"the most. FAVOR+ scores none; its {FEATURES} features are shown at every budget."
    ),
}


def estimators(*, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return the error of each estimator on each kind of keys."""
    rows = []
    n = QUICK_N if quick else N
    for about, query, key, value in _keys(n, quick):
        expected = attention(*(x.astype(np.float64) for x in (query, key, value)))
        for budget in QUICK_BUDGETS if quick else BUDGETS:
            found: dict[str, list[tuple[float, float]]] = {}
            for seed in range(QUICK_SEEDS if quick else SEEDS):
                for name, output, share in _estimates(query, key, value, budget, seed):
                    error = float(approximate_keys.errors(output, expected))
                    found.setdefault(name, []).append((error, share))
            for name, values in found.items():
                errors = [error for error, _ in values]
                rows.append(
                    about
                    | {"n": len(key), "estimator": name, "budget": budget}
                    | {"share": float(np.mean([share for _, share in values]))}
                    | {"error": float(np.median(errors)), "error_low": min(errors)}
                    | {"error_high": max(errors), "seeds": len(values)}
                )
            medians = {name: np.median([error for error, _ in x]) for name, x in found.items()}
            shown = ", ".join(f"{name} {error:.3f}" for name, error in medians.items())
            log(f"estimators, {about['keys']}, {budget:.1%}: {shown}")
    return rows


def _keys(n, quick) -> Iterator[tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray]]:
    """Yield fields, checked queries, keys and values of a head."""
    name = "long_writer"
    if not quick:
        heads = approximate_keys._of_layers(name, n, TEST)
        rows = approximate_keys.checked_rows(n, n - n // 8)
        for layer, given in enumerate(heads):
            query, key, value = (x[layer] for x in given)
            # the last queries see nearly all keys: those that all of them see
            seen = n - n // 8
            about = {"keys": f"{name} {layer}.{layer}".replace("_", " "), "layer": layer}
            yield about | {"head": layer}, query[rows], key[:seen], value[:seen]
    for kind in ("clustered",) if quick else ("random", "peaked", "clustered", "heavy-tailed"):
        query, key, value = (x[0] for x in approximate_keys.toy(kind, n, 1).draw(TEST))
        yield {"keys": kind}, query[approximate_keys.checked_rows(n)], key, value


def _estimates(query, key, value, budget, seed):
    """Yield name, output and share of the keys scored."""
    n, rng = len(key), np.random.default_rng(seed)
    count = max(2, round(budget * n))
    yield "best top-k", _best(query, key, value, count), count / n
    fits, half = (_fitting(query, key, share, seed) for share in (budget, budget / 2))
    ways: dict[str, tuple[Any, dict[str, Any]]] = {
        "union": (fits, {}),
        "importance": (fits, {"estimator": "importance"}),
        "union + heavy": (half, {"n_heavy": count // 2}),
        "duplicates": (fits, {"estimator": "duplicates"}),
        "union + moments": (fits, {"tail": "moments"}),
        "union + uniform": (half, {"tail": "uniform", "n_samples": max(2, count // 2)}),
        "union + heavy + moments": (half, {"n_heavy": count // 2, "tail": "moments"}),
    }
    looked_at = {}  # beside moments the evidence counts larger scores alone
    for name, (hash, options) in ways.items():
        one = SketchAttention(hash, seed=seed, impl="numba", **options)
        one.update(key, value)
        output, evidence = one.attention_output(query, return_evidence=True)
        scored = float(evidence.candidates.mean()) + options.get("n_samples", 0)
        scored = looked_at[name] = looked_at.get(name.removesuffix(" + moments"), scored)
        yield name, output, scored / n
    sample = rng.choice(n, count, replace=False)
    yield "uniform alone", attention(query, key[sample], value[sample]), count / n
    last = np.r_[0:4, n - count + 4 : n]
    yield "window + sinks", attention(query, key[last], value[last]), count / n
    scale = 1 / math.sqrt(key.shape[-1])
    yield "moments alone", Moments.fit(key, value).tail(query, scale)[1], 0.0
    setting = {"n_features": FEATURES, "hyperbolic": True, "is_causal": False, "seed": seed}
    state = approximate_features.prepare(key[None], value[None], **setting)
    yield "FAVOR+", approximate_features.attend(query[None], state)[0], 0.0


def _best(query, key, value, count):
    """Return attention to the keys of largest weight."""
    (weights,) = approximate_keys.weights_of(query[None], key[None], np.arange(len(query)), False)
    least = np.partition(weights, -count, axis=1)[:, -count, None]
    weights = np.where(weights >= least, weights, 0)
    return weights @ value / weights.sum(axis=1, keepdims=True)


def _fitting(query, key, budget, seed):
    """Return the SimHash whose tables return about a share `budget` of the keys."""
    some, asked = key[:: max(1, len(key) // 2048)], query[:: max(1, len(query) // 64)]
    best, found = math.inf, None
    for bits in range(1, 26):
        hash = SimHash.init(seed, key.shape[1], TABLES, bits).to(dtype="float32")
        share = float(hash.retrieval_probability(asked[:, None], some[None]).mean())
        distance = abs(math.log(share / budget))
        if distance < best:
            best, found = distance, hash
    return found
