"""What is left to score when the far keys are not so far: the closed form, and signatures."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.sketch import plan
from benchmarks.sketch_inputs import WIDTH

DELTA, DISTANCE, TABLES = 0.01, 0.5, 5

N = 1_000_000
PROJECTIONS = (1, 4, 8, 16, 32)
RATIOS = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 22.6)
DRAWS, QUICK_DRAWS = 64, 4  # of the tables, for one number
FAR_KEYS, QUICK_FAR_KEYS = 4_096, 256

METHODS = {
    "far_near": (
        f"All far keys at one distance, `ratio` times {DISTANCE}, in random directions. "
        f"`candidates`: those of {N} by the closed form n (1 - (1 - p^K)^{TABLES}); `measured`: "
        "the same from the signatures of a query and its far keys, mean over draws of the "
        "tables, with its standard error; `near`: the chance to find a key at that distance."
    )
}


def far_near(*, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return how many of a million keys are left to score, by distance ratio and projections."""
    draws, n = (QUICK_DRAWS, QUICK_FAR_KEYS) if quick else (DRAWS, FAR_KEYS)
    rng = np.random.default_rng(3)
    unit = rng.standard_normal((n, WIDTH), dtype=np.float32)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    rows = []
    for K in PROJECTIONS:
        p = plan(N, DELTA, DISTANCE, TABLES, K)
        shares: dict[float, list[float]] = {ratio: [] for ratio in RATIOS}
        for draw in range(draws):
            hash = p.hash(draw, WIDTH).to(dtype="float32")
            query = hash.signatures(unit[:1] * 0)
            for ratio in RATIOS:
                found = hash.signatures(np.float32(ratio * DISTANCE) * unit) == query
                shares[ratio].append(float(found.any(axis=1).mean()))
        for ratio in RATIOS:
            measured = N * np.asarray(shares[ratio])
            rows.append(
                {
                    **{"K": K, "n_tables": TABLES, "width": p.width, "ratio": ratio},
                    "candidates": N * float(p.retrieval_probability(ratio * DISTANCE)),
                    "near": float(p.retrieval_probability(DISTANCE)),
                    "measured": float(measured.mean()),
                    "standard_error": float(measured.std(ddof=1) / np.sqrt(draws)),
                }
            )
        shown = ", ".join(f"{r['ratio']}: {r['candidates']:.3g}" for r in rows[-len(RATIOS) :])
        log(f"far/near, K = {K}: candidates of {N} by ratio {shown}")
    return rows
