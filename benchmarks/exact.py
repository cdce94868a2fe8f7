"""Exact attention: every rung of the ladder beside PyTorch and other peers, and the hardware.

`rows`: self-attention, forward and with its backward pass, causal and not; on a GPU its longest
forward passes are `goals`, to be measured first. `decode`: one query a
head against a long cache, beside what only reads that cache. `widths`: head sizes. `skipping`: what
a causal mask saves each of them. `half`: float16 and bfloat16 beside float32. `bfloat16`: bfloat16
against SDPA in float32. `avx2`: what a processor without AVX-512 would do. `mkl`: PyTorch as on
a processor of Intel. `pages` and `memory`: what fresh memory costs, and arrays of all scores.
`ceilings`: the fastest that the machine multiplies, copies, reads and exponentiates.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks import (
    exact_candidates,
    exact_ceilings,
    exact_imitated,
    exact_memory,
    exact_peers,
    harness,
    inputs,
)
from benchmarks.exact_candidates import candidates
from benchmarks.exact_problem import Problem
from benchmarks.exact_rows import (
    BASELINE,
    LONG,
    LONG_ROUNDS,
    MOST,
    MOST_BACKWARD,
    PAUSE,
    measured,
    present,
    rows,
    taking_part,
    written,
)
from benchmarks.tables import Step, Tables

DTYPE = {"cpu": "float32", "cuda": "bfloat16"}
HALF = ("float32", "float16", "bfloat16")
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
TOKENS, MODEL = 16_384, 2048  # of all sequences, and of all heads, on a GPU

SIZES = {
    "cpu": {64: (256, 1024, 4096, 8192), 128: (2048,)},
    "cuda": {64: (1024, 4096, 16_384), 128: (1024, 4096, 16_384)},
}
QUICK_SIZES = {64: (256,)}
GOAL = 16_384  # tokens of the forward passes on a GPU that come first
FLEX_SIZES = {"cpu": (1024, 4096), "cuda": (4096,)}  # beside the goals; each pass is compiled
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
PLAIN = ("tiled", "threads", "cupy_tiled")
FAST = ("packed", "triton", exact_peers.SDPA)
PAIRED = ("packed", "triton", exact_peers.SDPA)  # in `bfloat16`

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
    "per_second": "Of a ceiling: its work over the fastest round, since other work slows it.",
    "gbps": "10⁹ bytes in a second: query, key, value and output, once each, over the same median.",
    "relative": (
        "Euclidean norm of the difference from float64 on the same rounded inputs, divided by the "
        "norm of the reference. Forward: 64 queries of 8 heads. Backward: the first head, and the "
        "largest of the errors of output and three gradients."
    ),
    "backward": "A forward pass and its backward pass, by PyTorch's autograd for all candidates.",
    "read": "Only in `decode`: keys and values are read and summed up, by the same threads.",
    "alone": (
        "On a GPU, rungs that might end the measurement come after all others, and then "
        "FlexAttention: each beside SDPA alone, whose second row is not written. In `skipping` "
        "every candidate is beside itself alone."
    ),
    "backend": "Of SDPA, which of its implementations ran: its own choice, or the one forced.",
    "left out": (
        "By size: those whose scores would take gigabytes, or whose call would take many seconds: "
        f"the largest n is {MOST}, with a backward pass {MOST_BACKWARD}. FlexAttention: n in "
        f"{FLEX_SIZES}, and on a GPU all `goals`."
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
    if device == "cuda":
        tables.measure("goals", partial(goals, **given))
    for table in (self_attention, decode, widths, skipping, half, bfloat16):
        name = "rows" if table is self_attention else table.__name__
        tables.measure(name, partial(table, device, **given))
    if device == "cpu":
        tables.whole("avx2", partial(exact_imitated.avx2, **given))
        tables.whole("mkl", partial(exact_imitated.mkl, **given))
        tables.whole("pages", partial(exact_memory.pages, **given))
        tables.whole("memory", partial(exact_memory.memory, **given))


def shape(device: str, n: int, width: int) -> dict[str, int]:
    """Return batch and heads: on a GPU as many as keep it busy, as its published numbers have."""
    if device == "cpu":
        return {"batch": 1, "heads": 8}
    return {"batch": max(1, TOKENS // n), "heads": MODEL // width}


def steps(
    problems: Sequence[Problem],
    *,
    only: tuple[str, ...] = (),
    flex: Sequence[Problem] = (),
    **options: Any,
) -> list[Step]:
    """Return a step for each problem, and then those of who is measured alone.

    On a GPU these are rungs that may hang there, and FlexAttention, which takes seconds to compile;
    `flex` are the problems in which it takes part.
    """
    device = problems[0].device
    late = [name for name in exact_candidates.alone(device) if not only or name in only]
    pairs = [(name, one) for name in late for one in problems if exact_candidates.takes(name, one)]
    if device == "cuda":
        pairs += [(exact_peers.FLEX, one) for one in flex]
        flex = ()
    beside = [_step(one, only=only, flex=one in flex, **options) for one in problems]
    return beside + [_step(one, alone=name, **options) for name, one in pairs]


def _step(problem: Problem, *, alone: str = "", **options: Any) -> Step:
    """Return the step that measures who can take `problem`, or one of them beside SDPA."""
    about = problem.about()
    named = {name: about[name] for name in ("n", "width", "dtype", "is_causal", "backward")}
    named |= {"implementation": alone} if alone else {}
    run = partial(rows, problem, alone=alone, **options)
    return Step(named, problem.flops, run)


def goals(*, quick: bool, log: Callable[[str], None]) -> list[Step]:
    """Return the steps of forward passes over many tokens, on a GPU, by which it is judged."""
    n = QUICK_SIZES[64][-1] if quick else GOAL
    problems = [
        Problem("cuda", DTYPE["cuda"], n, width, **shape("cuda", n, width), is_causal=is_causal)
        for width, is_causal in itertools.product((64, 128), (False, True))
    ]
    return steps(problems, quick=quick, log=log, flex=() if quick else problems)


def self_attention(device: str, *, quick: bool, log: Callable[[str], None]) -> list[Step]:
    """Return the steps of all sizes and passes, without those of `goals`."""
    problems = [
        Problem(
            *(device, DTYPE[device], n, width),
            **shape(device, n, width),
            is_causal=is_causal,
            backward=backward,
        )
        for width, many in (QUICK_SIZES if quick else SIZES[device]).items()
        for n, backward, is_causal in itertools.product(many, (False, True), (False, True))
        if device == "cpu" or n != GOAL or backward
    ]
    if device == "cuda":  # where what comes last may be cut: the nearer to the goals, the sooner
        problems.sort(key=lambda problem: -problem.n)
    sizes = () if quick else FLEX_SIZES[device]
    flex = [problem for problem in problems if problem.width == 64 and problem.n in sizes]
    return steps(problems, quick=quick, log=log, flex=flex)


def decode(device: str, *, quick: bool, log: Callable[[str], None]) -> list[Step]:
    """Return the steps of one query a head against a long cache."""
    found = []
    for name, cache in (QUICK_CACHES if quick else CACHES).items():
        problem = Problem(device, DTYPE[device], n_q=1, **cache)
        more = partial(exact_ceilings.reads, problem) if device == "cpu" else list
        found += steps([problem], quick=quick, log=log, more=more, cache=name)
    order = ["", *exact_candidates.alone(device)]  # who is measured alone comes last
    return sorted(found, key=lambda step: order.index(step.about.get("implementation", "")))


def widths(device: str, *, quick: bool, log: Callable[[str], None]) -> list[Step]:
    """Return the steps of several head sizes, also those that are no power of two."""
    n = QUICK_WIDTHS_N if quick else WIDTHS_N
    problems = [Problem(device, DTYPE[device], n, w, **shape(device, n, 64)) for w in WIDTHS]
    return steps(problems, quick=quick, log=log, only=FAST)


def skipping(device: str, *, quick: bool, log: Callable[[str], None]) -> list[Step]:
    """Return a step for each: all keys, the baseline, and those a causal mask leaves."""
    n = QUICK_SKIPPING_N if quick else SKIPPING_N
    problems = [
        Problem(device, DTYPE[device], n, **shape(device, n, 64), is_causal=is_causal)
        for is_causal in (False, True)
    ]
    pairs: dict[str, list[harness.Candidate]] = {}
    for problem in problems:
        for one in taking_part(problem, only=(*FAST, *PLAIN)):
            about = {**one.about, **problem.about()}
            pairs.setdefault(one.about["implementation"], []).append(one._replace(about=about))
    given = {"quick": quick, "log": log}
    return [
        Step(
            {"implementation": name, "n": n, "dtype": DTYPE[device]},
            problems[0].flops,
            partial(measured, pair, problems[0], {"is_causal": False}, {}, **given),
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
    only = (*FAST, "cupy_tiled")
    problems = [Problem(device, dtype, n, **shape(device, n, 64)) for dtype in HALF]
    return steps(problems, quick=quick, log=log, only=only)


def bfloat16(device: str, *, quick: bool, log: Callable[[str], None]) -> list[Step]:
    """Return the steps of bfloat16 against SDPA in float32."""
    late = [name for name in exact_candidates.alone(device) if name in PAIRED]
    sizes, found = QUICK_BFLOAT16_N if quick else BFLOAT16_N, []
    for alone, n, is_causal in itertools.product(("", *late), sizes, (False, True)):
        pair = [
            Problem(device, dtype, n, **shape(device, n, 64), is_causal=is_causal)
            for dtype in ("float32", "bfloat16")
        ]
        about = {"n": n, "is_causal": is_causal} | ({"implementation": alone} if alone else {})
        run = partial(_paired, pair, alone, quick=quick, log=log)
        found.append(Step(about, pair[0].flops, run))
    return found


def _paired(pair: Sequence[Problem], alone: str, **options: Any) -> list[dict[str, Any]]:
    fast = [
        one._replace(about={**one.about, **problem.about()})
        for problem in pair
        for one in present(problem, alone, only=PAIRED)
    ]
    baseline = BASELINE | {"dtype": "float32"}
    return written(measured(fast, pair[0], baseline, {}, **options), alone)
