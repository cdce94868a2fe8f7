"""The ceilings of the machine: how fast it multiplies, copies, reads and exponentiates.

Each is measured by the fastest simple loop that is known for it, in its fastest round, since other
work on the machine only slows it. So each is a lower bound of what the hardware could do, and an
upper bound of what attention can.
"""

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnbook.arrays.threads import in_parts, n_threads_for
from benchmarks import harness, inputs
from benchmarks.exact_problem import Problem

# rows and columns of a matrix; on a CPU the largest whose product takes about a second or less
PRODUCT, QUICK_PRODUCT = {"cpu": (256, 512, 1024, 2048), "cuda": 8192}, 256
MEMORY, QUICK_MEMORY = {"cpu": 2**28, "cuda": 2**32}, 2**22  # bytes, far more than a cache
NEAR = 2**13  # numbers that stay in the nearest cache
STEPS, QUICK_STEPS = 2_000_000, 20_000
PACE, QUICK_PACE = harness.Pace(60, 0.1), harness.Pace(2, 0.005)


class Ceiling(NamedTuple):
    """One of them."""

    about: dict[str, Any]  # name, library, dtype, threads
    unit: str
    work: float  # in 10⁹ of the unit, of a call
    run: Callable[[], Any]


def ceilings(
    device: str, *, quick: bool, log: Callable[[str], None], names: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """Return a row for each ceiling: its name, its unit, and how many of it in a second.

    `names` chooses some of them.
    """
    make = _cpu if device == "cpu" else _cuda
    found = [one for one in make(quick) if not names or one.about["name"] in names]
    timed = harness.interleave(
        {i: one.run for i, one in enumerate(found)},
        pace=QUICK_PACE if quick else PACE,
        synchronize=harness.synchronizer(device),
    )
    rows = []
    for i, one in enumerate(found):
        calls, samples = timed[i]
        seconds = harness.spread(samples)
        rate = one.work / seconds["minimum"]
        rows.append(one.about | {"unit": one.unit, "per_second": rate, "calls": calls})
        rows[-1]["seconds"] = seconds
        log(f"{one.about['name']}, {one.about['library']}: {rate:.4g} {one.unit}")
    return rows


def _cpu(quick: bool) -> Iterator[Ceiling]:
    rng = np.random.default_rng(0)
    cores = n_threads_for(2**40)
    sizes = (QUICK_PRODUCT,) if quick else PRODUCT["cpu"]
    n = sizes[-1]
    a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    out = np.empty_like(a)
    many = (QUICK_MEMORY if quick else MEMORY["cpu"]) // 4
    x, y = np.ones(many, np.float32), np.zeros(many, np.float32)  # written to, so they are there
    near = rng.standard_normal(NEAR, dtype=np.float32)
    near_out = np.empty_like(near)
    give = partial(_about, dtype="float32")
    product = partial(np.matmul, a, b, out)
    yield Ceiling(give("matrix product", "numpy"), "GFLOP/s", 2 * n**3 / 1e9, product)

    def copy(start: int, stop: int, part: int) -> None:
        np.copyto(y[start:stop], x[start:stop])

    copy_all = partial(in_parts, copy, many, cores)
    yield Ceiling(give("copy", "numpy", threads=cores), "GB/s", 8 * many / 1e9, copy_all)
    exponentials = partial(np.exp, near, out=near_out)
    yield Ceiling(give("exp", "numpy", threads=1), "10⁹/s", NEAR / 1e9, exponentials)
    if "torch" in inputs.libraries("cpu"):
        import torch

        for dtype in ("float32", "bfloat16"):
            c, d = (torch.from_numpy(m).to(getattr(torch, dtype)) for m in (a, b))
            product = lambda m, c=c, d=d: partial(torch.matmul, c[:m, :m], d[:m, :m])  # noqa: E731
            m = harness.affordable(sizes, product, power=3)  # some emulate bfloat16
            about = _about("matrix product", "torch", dtype, torch.get_num_threads())
            yield Ceiling(about, "GFLOP/s", 2 * m**3 / 1e9, product(m))
    if importlib.util.find_spec("numba"):
        from attnbook.compilers.register_tiles import has_pairs, lanes
        from benchmarks import exact_fma

        steps = QUICK_STEPS if quick else STEPS

        def add(start: int, stop: int, part: int) -> None:
            exact_fma.loop(steps, 0.5)

        def read(start: int, stop: int, part: int) -> None:
            exact_fma.total(x[start:stop])

        add(0, 1, 0)  # compiled by one thread
        read(0, 1, 0)
        fused = partial(in_parts, add, cores, cores)
        work = cores * steps * exact_fma.FLOPS / 1e9
        yield Ceiling(give("multiply and add", "numba", threads=cores), "GFLOP/s", work, fused)
        if has_pairs() and lanes() == 16:

            def add_pairs(start: int, stop: int, part: int) -> None:
                exact_fma.loop_of_pairs(steps, 0x3F003F00)  # 1/2 and 1/2

            add_pairs(0, 1, 0)
            about = _about("multiply and add", "numba", "bfloat16", cores)
            yield Ceiling(about, "GFLOP/s", 2 * work, partial(in_parts, add_pairs, cores, cores))
        read_all = partial(in_parts, read, many, cores)
        yield Ceiling(give("read", "numba", threads=cores), "GB/s", 4 * many / 1e9, read_all)


def reads(problem: Problem) -> list[harness.Candidate]:
    """Return the candidate that reads keys and values once and adds them up, if Numba is here."""
    if not importlib.util.find_spec("numba"):
        return []
    from benchmarks import exact_fma

    arrays = [x.reshape(-1) for name, x in problem.draw().items() if name in ("key", "value")]
    cores = n_threads_for(2**40)

    totals = np.zeros((cores, len(arrays)), np.float32)

    def read(start: int, stop: int, part: int) -> None:
        totals[part] = [exact_fma.total(x[start:stop]) for x in arrays]

    def run() -> np.ndarray:
        in_parts(read, arrays[0].size, cores)
        return totals.copy()

    return [harness.Candidate({"implementation": "read", "library": "numpy"}, run, lambda _: {})]


def _cuda(quick: bool) -> Iterator[Ceiling]:
    if "torch" not in inputs.libraries("cuda"):
        return
    import torch

    n = QUICK_PRODUCT if quick else PRODUCT["cuda"]
    for dtype in ("float32", "float16", "bfloat16"):
        kind = getattr(torch, dtype)
        a, b = (torch.randn(n, n, device="cuda", dtype=kind) for _ in range(2))
        product = partial(torch.matmul, a, b)
        yield Ceiling(_about("matrix product", "torch", dtype), "GFLOP/s", 2 * n**3 / 1e9, product)
    many = (QUICK_MEMORY if quick else MEMORY["cuda"]) // 4
    x = torch.ones(many, device="cuda")
    y = torch.empty_like(x)
    yield Ceiling(_about("copy", "torch", "float32"), "GB/s", 8 * many / 1e9, partial(y.copy_, x))
    yield Ceiling(_about("read", "torch", "float32"), "GB/s", 4 * many / 1e9, partial(torch.sum, x))


def _about(name: str, library: str, dtype: str, threads: int | None = None) -> dict[str, Any]:
    return {"name": name, "library": library, "dtype": dtype, "threads": threads}
