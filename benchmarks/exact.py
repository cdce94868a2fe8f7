"""Exact attention: every rung of the ladder beside PyTorch and other peers, and the hardware.

`rows`: self-attention, forward and with its backward pass, causal and not. `decode`: one query a
head against a long cache, beside what only reads that cache. `widths`: head sizes. `skipping`: what
a causal mask saves each of them. `half`: float16 and bfloat16 beside float32. `bfloat16`: bfloat16
against SDPA in float32. `avx2`: what a processor without AVX-512 would do. `pages` and `memory`:
what fresh memory costs, and arrays of all scores. `ceilings`: the fastest that the machine
multiplies, copies, reads and exponentiates.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks import (
    exact_ceilings,
    exact_imitated,
    exact_memory,
    exact_peers,
    harness,
    inputs,
)
from benchmarks.exact_candidates import candidates
from benchmarks.exact_problem import Problem
from benchmarks.memory import extra_bytes
from benchmarks.tables import Step, Tables

BASELINE = {"implementation": exact_peers.SDPA}
DTYPE = {"cpu": "float32", "cuda": "bfloat16"}
HALF = ("float32", "float16", "bfloat16")
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
TOKENS, MODEL = 16_384, 2048  # of all sequences, and of all heads, on a GPU

SIZES = {
    "cpu": {64: (256, 1024, 4096, 8192), 128: (2048,)},
    "cuda": {64: (1024, 4096, 16_384), 128: (1024, 4096, 16_384)},
}
QUICK_SIZES = {64: (256,)}
FLEX_SIZES = {"cpu": (1024, 4096), "cuda": (4096,)}  # each pass of a size is compiled
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
CACHES = {
    "one head": {"n": 1_000_000, "heads": 1},
    "grouped heads": {"n": 32_768, "heads": 32, "kv_heads": 8},
}
QUICK_CACHES = {
    "one head": {"n": 10_000, "heads": 1},
    "grouped heads": {"n": 1024, "heads": 8, "kv_heads": 2},
}
WIDTHS, WIDTHS_N, QUICK_WIDTHS_N = (32, 64, 80, 128), 2048, 128
SKIPPING_N, QUICK_SKIPPING_N = 4096, 256
HALF_N, QUICK_HALF_N = (256, 512, 1024, 2048), 128
BFLOAT16_N, QUICK_BFLOAT16_N = (256, 1024, 4096, 8192), (128,)
ROUNDS = {1e9: 15, 1e10: 9, 8e10: 5, float("inf"): 3}  # for fewer operations than this, on a CPU
PLAIN = ("tiled", "threads", "cupy_tiled")
FAST = ("numba", "packed", "triton", exact_peers.SDPA)

LONG, LONG_ROUNDS, PAUSE = 0.25, 3, 0.03  # see METHODS

METHODS = {
    "seconds": (
        "Wall-clock seconds of one call. All candidates of a size run in one process, in rounds; "
        f"each round runs each candidate once, in random order: a pause of {PAUSE} s, in which "
        "threads of the one before cease to wait for more work, one untimed call, left out where a "
        f"call takes over {LONG} s, then `calls` timed together and divided by `calls`. The device "
        f"is synchronized before and after. The statistics are over rounds: {LONG_ROUNDS} for such "
        "long calls, else `rounds` of the row."
    ),
    "gflops": (
        "10⁹ floating-point operations in a second: `flops` over the median of `seconds`. `flops` "
        "counts the two products of a forward pass, 4 n_q n_k d a head, half of it where a causal "
        "mask hides half, and 3.5 times as much with the backward pass, whatever else is computed."
    ),
    "gbps": "10⁹ bytes in a second: query, key, value and output, once each, over the same median.",
    "relative": (
        "Euclidean norm of the difference from float64 on the same rounded inputs, divided by the "
        "norm of the reference. Forward: 64 queries of 8 heads. Backward: the first head, and the "
        "largest of the errors of output and three gradients."
    ),
    "backward": "A forward pass and its backward pass, by PyTorch's autograd for all candidates.",
    "read": "Only in `decode`: keys and values are read and summed up, by the same threads.",
    "backend": "Of SDPA, which of its implementations ran: its own choice, or the one forced.",
    "left out": (
        "By size: those whose scores would take gigabytes, or whose call would take many seconds: "
        f"the largest n is {MOST}, with a backward pass {MOST_BACKWARD}. FlexAttention: n in "
        f"{FLEX_SIZES}."
    ),
    "half": f"The largest n of {HALF_N} at which bfloat16 takes about a second or less.",
    "threads": "Each library with the number of threads that it chooses.",
}


MORE_METHODS = exact_memory.METHODS | exact_imitated.METHODS


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure all tables for `device` ("cpu" or "cuda")."""
    tables.add(
        methods=harness.METHODS | METHODS | MORE_METHODS,
        baseline=BASELINE,
        tolerance=TOLERANCE,
        peers=exact_peers.here(),
    )
    given: dict[str, Any] = {"quick": quick, "log": tables.log}
    tables.whole("ceilings", partial(exact_ceilings.ceilings, device, **given))
    for table in (self_attention, decode, widths, skipping, half, bfloat16):
        name = "rows" if table is self_attention else table.__name__
        tables.measure(name, partial(table, device, **given))
    if device == "cpu":
        tables.whole("avx2", partial(exact_imitated.in_another_process, **given))
        tables.whole("pages", partial(exact_memory.pages, **given))
        tables.whole("memory", partial(exact_memory.memory, **given))


def shape(device: str, n: int, width: int) -> dict[str, int]:
    """Return batch and heads: on a GPU as many as keep it busy, as its published numbers have."""
    if device == "cpu":
        return {"batch": 1, "heads": 8}
    return {"batch": max(1, TOKENS // n), "heads": MODEL // width}


def step(problem: Problem, **options: Any) -> Step:
    """Return the step that measures who can take `problem`."""
    about = problem.about()
    named = {name: about[name] for name in ("n", "width", "dtype", "is_causal", "backward")}
    return Step(named, problem.flops, partial(rows, problem, **options))


def self_attention(device: str, *, quick: bool, log: Callable[[str], None]) -> list[Step]:
    """Return the steps of all sizes and passes."""
    found = []
    for width, sizes in (QUICK_SIZES if quick else SIZES[device]).items():
        for n, backward, is_causal in itertools.product(sizes, (False, True), (False, True)):
            problem = Problem(
                *(device, DTYPE[device], n, width),
                **shape(device, n, width),
                is_causal=is_causal,
                backward=backward,
            )
            flex = not quick and width == 64 and n in FLEX_SIZES[device]
            found.append(step(problem, quick=quick, log=log, flex=flex))
    return found


def decode(device: str, *, quick: bool, log: Callable[[str], None]) -> list[Step]:
    """Return the steps of one query a head against a long cache."""
    found = []
    for name, cache in (QUICK_CACHES if quick else CACHES).items():
        problem = Problem(device, DTYPE[device], n_q=1, **cache)
        more = partial(exact_ceilings.reads, problem) if device == "cpu" else list
        found.append(step(problem, quick=quick, log=log, more=more, cache=name))
    return found


def widths(device: str, *, quick: bool, log: Callable[[str], None]) -> list[Step]:
    """Return the steps of several head sizes, also those that are no power of two."""
    n = QUICK_WIDTHS_N if quick else WIDTHS_N
    problems = (Problem(device, DTYPE[device], n, w, **shape(device, n, 64)) for w in WIDTHS)
    return [step(problem, quick=quick, log=log, only=FAST) for problem in problems]


def skipping(device: str, *, quick: bool, log: Callable[[str], None]) -> list[Step]:
    """Return a step for each: all keys, the baseline, and those a causal mask leaves."""
    n = QUICK_SKIPPING_N if quick else SKIPPING_N
    problems = [
        Problem(device, DTYPE[device], n, **shape(device, n, 64), is_causal=is_causal)
        for is_causal in (False, True)
    ]
    pairs: dict[str, list[harness.Candidate]] = {}
    for problem in problems:
        for one in _taking_part(problem, only=(*FAST, *PLAIN)):
            about = {**one.about, **problem.about()}
            pairs.setdefault(one.about["implementation"], []).append(one._replace(about=about))
    given = {"quick": quick, "log": log}
    return [
        Step(
            {"implementation": name, "n": n, "dtype": DTYPE[device]},
            problems[0].flops,
            partial(_measured, pair, problems[0], {"is_causal": False}, {}, **given),
        )
        for name, pair in pairs.items()
    ]


def half(device: str, *, quick: bool, log: Callable[[str], None]) -> list[Step]:
    """Return the steps of float32, float16 and bfloat16; each is compared with SDPA in it.

    A processor without products in half precision emulates them; there n is smaller for all three.
    """

    def one_call(n: int) -> Callable[[], Any]:
        (sdpa,) = candidates(Problem(device, "bfloat16", n), only=(exact_peers.SDPA,))
        return sdpa.run

    n = QUICK_HALF_N if quick else HALF_N[-1]
    if not quick and device == "cpu" and "torch" in inputs.libraries(device):
        n = harness.affordable(HALF_N, one_call, power=2)
        log(f"half: n = {n}, as large as bfloat16 allows here")
    only = (*FAST, "cupy_naive", "cupy_tiled")
    problems = (Problem(device, dtype, n, **shape(device, n, 64)) for dtype in HALF)
    return [step(problem, quick=quick, log=log, only=only) for problem in problems]


def bfloat16(device: str, *, quick: bool, log: Callable[[str], None]) -> list[Step]:
    """Return the steps of bfloat16 against SDPA in float32."""
    found = []
    for n, is_causal in itertools.product(QUICK_BFLOAT16_N if quick else BFLOAT16_N, (False, True)):
        pair = [
            Problem(device, dtype, n, **shape(device, n, 64), is_causal=is_causal)
            for dtype in ("float32", "bfloat16")
        ]
        fast = [
            one._replace(about={**one.about, **problem.about()})
            for problem in pair
            for one in candidates(problem, only=("packed", "triton", exact_peers.SDPA))
        ]
        baseline = BASELINE | {"dtype": "float32"}
        run = partial(_measured, fast, pair[0], baseline, {}, quick=quick, log=log)
        found.append(Step({"n": n, "is_causal": is_causal}, pair[0].flops, run))
    return found


def rows(
    problem: Problem,
    *,
    quick: bool,
    log: Callable[[str], None],
    only: tuple[str, ...] = (),
    flex: bool = False,
    more: Callable[[], list[harness.Candidate]] = list,
    **fields: str,
) -> list[dict[str, Any]]:
    """Return one row for each who can take `problem`, and for those of `more`, with `fields`."""
    found = _taking_part(problem, only=only, flex=flex)
    about = problem.about() | fields
    return _measured([*found, *more()], problem, BASELINE, about, quick=quick, log=log)


def _taking_part(problem: Problem, **options: Any) -> list[harness.Candidate]:
    """Return who can take `problem`, without those for whom it is too large."""
    most = (MOST_BACKWARD if problem.backward else MOST)[problem.device]
    if problem.queries == 1:  # few scores
        most = MOST_DECODE[problem.device]
    return [
        one
        for one in candidates(problem, **options)
        if problem.n <= most.get(one.about["implementation"], problem.n)
    ]


def _measured(
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
