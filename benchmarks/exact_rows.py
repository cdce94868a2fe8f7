"""Rows of exact attention: who can take a problem is timed side by side."""

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import exact_candidates, exact_peers, harness
from benchmarks.exact_candidates import candidates
from benchmarks.exact_problem import Problem
from benchmarks.memory import extra_bytes

BASELINE = {"implementation": exact_peers.SDPA}
# the largest n of some: more scores need gigabytes, or a longer call takes seconds, as on a GPU
# that of a loop in Python over the tiles of all heads
MOST = {
    "cpu": {"naive": 4096, "in_place": 4096, "SDPA math": 4096},
    "cuda": {"naive": 4096, "in_place": 4096, "SDPA math": 4096, "tiled": 1024},
}
MOST_BACKWARD = {
    "cpu": {"SDPA math": 1024, "tiled": 4096},
    "cuda": {"SDPA math": 1024, "tiled": 1024},
}
MOST_DECODE: dict[str, dict[str, int]] = {"cpu": {}, "cuda": {"tiled": 1024}}
ROUNDS = {1e9: 15, 1e10: 9, 8e10: 5, float("inf"): 3}  # for fewer operations than this, on a CPU
LONG, LONG_ROUNDS, PAUSE = 0.25, 3, 0.03  # see `exact.METHODS`


def rows(
    problem: Problem,
    *,
    quick: bool,
    log: Callable[[str], None],
    alone: str = "",
    only: tuple[str, ...] = (),
    flex: bool = False,
    more: Callable[[], list[harness.Candidate]] = list,
    **fields: str,
) -> list[dict[str, Any]]:
    """Return one row for each who can take `problem`, and for those of `more`, with `fields`.

    With `alone` it is the row of this one, beside SDPA.
    """
    found = [*present(problem, alone, only=only, flex=flex), *more()]
    about = problem.about() | fields
    return written(measured(found, problem, BASELINE, about, quick=quick, log=log), alone)


def present(
    problem: Problem, alone: str, *, only: tuple[str, ...] = (), flex: bool = False
) -> list[harness.Candidate]:
    """Return who is measured side by side: one of those that are measured alone, or no such one."""
    if alone:
        return taking_part(problem, only=(exact_peers.SDPA, alone), flex=alone == exact_peers.FLEX)
    late = exact_candidates.alone(problem.device)
    found = taking_part(problem, only=only, flex=flex)
    return [one for one in found if one.about["implementation"] not in late]


def written(rows: list[dict[str, Any]], alone: str) -> list[dict[str, Any]]:
    return [row for row in rows if not alone or row["implementation"] == alone]


def taking_part(problem: Problem, **options: Any) -> list[harness.Candidate]:
    """Return who can take `problem`, without those for whom it is too large."""
    most = (MOST_BACKWARD if problem.backward else MOST)[problem.device]
    if problem.queries == 1:  # few scores
        most = MOST_DECODE[problem.device]
    return [
        one
        for one in candidates(problem, **options)
        if problem.n <= most.get(one.about["implementation"], problem.n)
    ]


def measured(
    found: Sequence[harness.Candidate],
    problem: Problem,
    baseline: dict[str, Any],
    about: dict[str, Any],
    *,
    quick: bool,
    log: Callable[[str], None],
) -> list[dict[str, Any]]:
    if not found:
        log(f"nobody here takes {problem}")
        return []
    chosen = pace(problem, quick)
    result = harness.rows(
        *(found, problem.device),
        about=about,
        baseline=baseline,
        quick=quick,
        pace=chosen,
        memory=_memory,
    )
    for row in result:
        row["rounds"] = chosen.rounds
        second = row["seconds"]["median"] if row["seconds"] else None
        row["gflops"] = row["flops"] / second / 1e9 if second else None
        row["gbps"] = row["bytes"] / second / 1e9 if second else None
    passes = ("backward " if problem.backward else "") + ("causal " if problem.is_causal else "")
    log(f"{passes}width {problem.width}: {harness.summary(result, 'implementation')}")
    return result


def pace(problem: Problem, quick: bool) -> harness.Pace:
    """Return fewer rounds for larger problems, or long calls, so that all take minutes."""
    if quick:
        return harness.Pace(harness.QUICK_ROUNDS, harness.QUICK_SLICE_SECONDS)
    if problem.device == "cuda":
        return harness.Pace(harness.ROUNDS, harness.SLICE_SECONDS["cuda"], LONG, LONG_ROUNDS)
    rounds = next(rounds for most, rounds in ROUNDS.items() if problem.flops < most)
    return harness.Pace(rounds, 0.03, LONG, LONG_ROUNDS, PAUSE)


def _memory(run: Callable[[], Any], library: str, device: str) -> int | None:
    return None if library == "jax" else extra_bytes(run, library, device)
