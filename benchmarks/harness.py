"""The rows of a benchmark: candidates timed side by side, their errors, and the record."""

import contextlib
import gc
import itertools
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from benchmarks import cuda, faults, provenance
from benchmarks.memory import extra_bytes

Name = TypeVar("Name")

ROUNDS, QUICK_ROUNDS = 15, 3
SLICE_SECONDS = {"cpu": 0.05, "cuda": 0.01}  # a CPU is disturbed more, by the rest of the machine
QUICK_SLICE_SECONDS = 0.005
MOST = 60.0  # seconds for one candidate of a size
SLOW = 5.0  # seconds of a call that the log tells at once

METHODS = {
    "seconds": (
        "Wall-clock seconds of one call. All candidates of a size run in one process, in rounds; "
        "each round runs each candidate once, in random order: one untimed call, then `calls` "
        "timed together and divided by `calls`. The device is synchronized before and after. The "
        "statistics are over rounds. A candidate that would take over a minute has fewer rounds."
    ),
    "device_seconds": (
        "Only on a GPU: seconds of one call between two events on its stream, which begins when "
        "Python and the launches are ahead; so without their time, unless a call waits inside. "
        f"Not for calls of over {cuda.HIDES_LAUNCHES} s."
    ),
    "speed": (
        "Times as fast as the baseline: the median over rounds of its seconds divided by those of "
        "the candidate in the same round; above 1 is faster."
    ),
    "extra_bytes": (
        "Peak bytes that one call asks of its library's allocator beyond what was held before, "
        "the result not counted. NumPy: tracemalloc. PyTorch on the CPU: memory events of its "
        "profiler, and tracemalloc. PyTorch on CUDA: torch.cuda.max_memory_allocated. CuPy: a hook "
        "on its memory pool. What a BLAS allocates for itself is not seen."
    ),
    "max_abs": "Largest absolute difference from a float64 reference on the same (rounded) inputs.",
    "relative": "Euclidean norm of that difference divided by the norm of the reference.",
    "reason": "Only in a row whose candidate could not run here: why, and its other numbers null.",
}
MEASURED = ("calls", "seconds", "speed", "extra_bytes", "max_abs", "relative")


def log(line: str) -> None:
    """Print one line of progress."""
    print(line, file=sys.stderr, flush=True)


# Rows


class Candidate(NamedTuple):
    """Something to measure."""

    about: Mapping[str, Any]  # the fields that name it in its row, among them its library
    run: Callable[[], Any]
    errors: Callable[[Any], dict[str, float]]  # how far what `run` returns is from a reference


class Pace(NamedTuple):
    """How long to measure."""

    rounds: int  # how often each candidate is measured
    slice_seconds: float  # about how long one measurement lasts; short calls are repeated
    long: float = math.inf  # seconds of a call that needs no untimed call before it
    long_rounds: int = sys.maxsize  # how often a candidate with such calls is measured, at most
    pause: float = 0.0  # seconds before each, in which threads of another cease to wait for work
    most: float = MOST  # seconds of one candidate; it has fewer rounds if it would take longer


def rounds(quick: bool) -> int:
    """Return how often each candidate is measured unless a benchmark has a pace of its own."""
    return QUICK_ROUNDS if quick else ROUNDS


def rows(
    candidates: Sequence[Candidate],
    device: str,
    *,
    about: Mapping[str, Any],
    baseline: Mapping[str, Any],
    quick: bool,
    pace: Pace | None = None,
    memory: Callable[[Callable[[], Any], str, str], int | None] | None = None,
) -> list[dict[str, Any]]:
    """Measure `candidates` beside one another and return a row for each, in their order.

    Parameters
    ----------
    candidates : sequence of Candidate
    device : str
        "cpu" or "cuda".
    about : mapping
        Fields that all rows share, such as the sequence length.
    baseline : mapping
        The fields of the candidate that the others are compared with.
    quick : bool
        Few and short rounds.
    pace : Pace, optional
        Other rounds than these.
    memory : function, optional
        What measures the extra bytes, called as `extra_bytes`, the default.
    """
    pace = pace or Pace(rounds(quick), QUICK_SLICE_SECONDS if quick else SLICE_SECONDS[device])
    free, wait = cuda.freer(device), synchronizer(device)
    with loaded_is_kept():
        found = []
        for candidate in candidates:
            if known := faults.known(candidate.about):
                found.append({"reason": known})
                continue
            found.append(_try(candidate, device, memory or extra_bytes))
            with faults.blaming(candidate.about, found[-1].get("reason")):
                wait()  # raises where a fault has ended the GPU for all who follow
            free()
    able = [i for i in range(len(found)) if "reason" not in found[i]]

    def blamed(i: int) -> contextlib.AbstractContextManager[None]:
        about = candidates[i].about
        return faults.blaming(about) if device == "cuda" else contextlib.nullcontext()

    timed = interleave(
        {i: candidates[i].run for i in able},
        pace=pace,
        synchronize=wait,
        blamed=blamed,
        once={i: found[i].pop("once") for i in able},
        between=free,
    )
    kernels = {}
    if device == "cuda":
        for i in able:
            if min(timed[i][1]) < cuda.HIDES_LAUNCHES:
                with blamed(i):
                    kernels[i] = cuda.device_seconds(candidates[i].run, pace.rounds)
    # a call that answers several queries is compared by the time for each
    queries = [candidate.about.get("queries") or 1 for candidate in candidates]
    each = {i: [seconds / queries[i] for seconds in timed[i][1]] for i in able}
    bases = [each[i] for i in able if baseline.items() <= candidates[i].about.items()]
    result = []
    for i, candidate in enumerate(candidates):
        row = {**candidate.about, **about, **dict.fromkeys(MEASURED), **found[i]}
        if i in timed:
            calls, samples = timed[i]
            row |= {"calls": calls, "seconds": spread(samples)}
            row["speed"] = speed(each[i], bases[0]) if bases else None
        if i in kernels:
            row["device_seconds"] = spread(kernels[i]) if kernels[i] else None
        result.append(row)
    return result


def _try(
    candidate: Candidate, device: str, memory: Callable[[Callable[[], Any], str, str], int | None]
) -> dict[str, Any]:
    """Return error and memory of `candidate`, or the reason why it cannot run."""
    try:
        start = time.perf_counter()
        output = candidate.run()
        first = time.perf_counter() - start
        found: dict[str, Any] = dict(candidate.errors(output))
        start = time.perf_counter()
        extra = memory(candidate.run, candidate.about["library"], device)
        again = time.perf_counter() - start
        once = min(first, again)  # the first call may compile, the other one is watched
        if once > SLOW:
            log(f"{dict(candidate.about)}: {once:.0f} s a call")
        return found | {"extra_bytes": extra, "once": once}
    except Exception as error:  # no memory, no compiler, no kernel for this device
        log(f"cannot run {dict(candidate.about)}: {faults.reason(error)}")
        return {"reason": faults.reason(error)}


def summary(rows: Sequence[Mapping[str, Any]], *names: str) -> str:
    """Return a line for the log: the median time of each of `rows`, told apart by `names`."""
    shown = []
    for row in rows:
        median = f"{row['seconds']['median'] * 1e3:.3g} ms" if row["seconds"] else "did not run"
        shown.append(" ".join([*(str(row[name]) for name in names), median]))
    return f"n = {rows[0]['n']}, {rows[0]['dtype']}: {', '.join(shown)}"


# Time


def interleave(
    candidates: Mapping[Name, Callable[[], Any]],
    *,
    pace: Pace,
    synchronize: Callable[[], None] = lambda: None,
    once: Mapping[Name, float] | None = None,
    between: Callable[[], None] = lambda: None,
    blamed: Callable[[Name], contextlib.AbstractContextManager[None]] = (
        lambda name: contextlib.nullcontext()
    ),
    seed: int = 0,
) -> dict[Name, tuple[int, list[float]]]:
    """Time `candidates` side by side.

    Parameters
    ----------
    candidates : name to function without arguments
    pace : Pace
        How often, and how long.
    synchronize : function
        Waits until the device has finished.
    once : mapping, optional
        About how many seconds a call takes, where it has been called.
    between : function
        Called before each measurement, outside the time.
    blamed : function
        Returns what surrounds the calls of a candidate, outside the time.
    seed : int
        Of the order of the candidates in each round.

    Returns
    -------
    dict
        For each name the number of calls in a measurement, and the seconds of one call in each
        round.
    """
    calls, repeats, long = {}, {}, set()
    for name, function in candidates.items():
        if once is None:
            function()
        elif once[name] > min(pace.long, pace.most):
            long.add(name)
        with blamed(name):
            seconds = once[name] if once and name in long else seconds_of(function, synchronize)
        calls[name] = max(1, round(pace.slice_seconds / seconds)) if seconds > 0 else 1000
        affordable = pace.most / (seconds * (calls[name] + (name not in long)) or 1e-9)
        wanted = pace.long_rounds if name in long else pace.rounds
        repeats[name] = max(1, int(min(wanted, affordable)))
    samples: dict[Name, list[float]] = {name: [] for name in candidates}
    order, draw = list(candidates), random.Random(seed)
    gc_was_on = gc.isenabled()
    gc.disable()
    try:
        for done in range(pace.rounds):
            draw.shuffle(order)
            for name in order:
                if done >= repeats[name]:
                    continue
                between()
                time.sleep(pace.pause)
                with blamed(name):
                    if name not in long:
                        candidates[name]()
                    samples[name].append(seconds_of(candidates[name], synchronize, calls[name]))
    finally:
        if gc_was_on:
            gc.enable()
    return {name: (calls[name], samples[name]) for name in candidates}


def seconds_of(
    function: Callable[[], Any], synchronize: Callable[[], None] = lambda: None, calls: int = 1
) -> float:
    """Return the seconds of one of `calls` calls."""
    synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        function()
    synchronize()
    return (time.perf_counter() - start) / calls


def affordable(
    sizes: Sequence[int],
    make: Callable[[int], Callable[[], Any]],
    *,
    power: int,
    seconds: float = 1.0,
) -> int:
    """Return the largest of `sizes`, in their order, at which a call takes at most `seconds`.

    `make` returns the call for a size, and its time grows with this power of the size. Nothing
    larger is called than what is expected to be affordable.
    """
    for size, larger in itertools.pairwise(sizes):
        function = make(size)
        function()
        if seconds_of(function) * (larger / size) ** power > seconds:
            return size
    return sizes[-1]


def synchronizer(device: str) -> Callable[[], None]:
    """Return a function that waits until `device` has finished."""
    if device == "cpu":
        return lambda: None
    waits: list[Callable[[], None]] = []
    if provenance.torch_sees_cuda():
        import torch

        waits.append(torch.cuda.synchronize)
    if provenance.cupy_sees_cuda():
        import cupy

        waits.append(cupy.cuda.runtime.deviceSynchronize)

    def synchronize() -> None:
        for wait in waits:
            wait()

    return synchronize


def spread(samples: Sequence[float]) -> dict[str, float]:
    """Return minimum, quartiles, median and maximum of `samples`."""
    ordered = np.asarray(samples, dtype=np.float64)
    names = ("minimum", "first_quartile", "median", "third_quartile", "maximum")
    return dict(zip(names, np.quantile(ordered, (0, 0.25, 0.5, 0.75, 1)).tolist(), strict=True))


def speed(samples: Sequence[float], baseline: Sequence[float]) -> float:
    """Return the median over rounds of `baseline` divided by `samples`."""
    pairs = zip(samples, baseline, strict=False)  # one of them may have left the later rounds out
    return statistics.median(theirs / ours for ours, theirs in pairs)


@contextlib.contextmanager
def loaded_is_kept() -> Iterator[None]:
    """Let garbage collections inside, one for each measurement, not look at all that is loaded."""
    is_kept = gc.get_freeze_count()  # somebody outside does so
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not is_kept:
            gc.unfreeze()


# Record


def record(name: str, device: str, command: str) -> dict[str, Any]:
    """Return the head of a benchmark's record."""
    return {
        "benchmark": name,
        "provenance": provenance.describe(device, command),
        "methods": METHODS,
    }


def write(record: Mapping[str, Any], path: Path) -> Path:
    """Write `record` as strict JSON, NaN and infinities as null, and return `path`.

    Whenever it is interrupted, the file is the former one or the new one.
    """
    text = json.dumps(_finite(record), indent=1, ensure_ascii=False, allow_nan=False)
    growing = path.with_name(f"{path.name}.writing")
    growing.write_text(text + "\n", encoding="utf-8", newline="\n")
    return growing.replace(path)


def _finite(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {name: _finite(value) for name, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [_finite(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
