"""How fast and how wrong each way to attend is: settings on validation data, then test data."""

import contextlib
import gc
import os
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from benchmarks import approximate_keys, harness
from benchmarks.approximate_keys import TEST, VALIDATION, Case
from benchmarks.approximate_methods import BY_NAME, EXACT, METHODS, PACKED, SDPA, SEEDS

TARGETS = (0.02, 0.1)
MOST = 4.0  # times packed: no setting is chosen that takes longer and misses its target
BRIEF = 0.7  # seconds in which a call is repeated while settings are tried
CALLS, SHORT = 5, 0.1  # in a round the quickest of so many calls counts, or of so many seconds
FEW = 2048  # keys of a call that only loads what is compiled
CROSSING = ("window + sinks", "HyperAttention", "cells")
SIZES, QUICK_SIZES = (1024, 2048, 4096, 8192, 16384), (512,)

ERROR = "mean over queries of |o - exact| / |exact|, exact attention in float64"

ABOUT = {
    "settings": (
        f"Validation data, one seed, every second head. `error`: {ERROR}, for some of the queries "
        "of a head, then over heads. `seconds`: processor seconds of one thread, build included; "
        "`exact_seconds` those of packed."
    ),
    "self_attention": (
        "Test data. For each way and each `target` the setting that is quickest on validation data "
        "among those whose error is at most the target there, or that of the smallest error "
        f"that takes at most {MOST:.0f} times as long as packed (`reached` false). `tried`: how "
        "many settings the way has. "
        f"`error`: {ERROR}; mean, smallest and largest over {SEEDS} seeds where the way is "
        "random. `times_packed`, `times_sdpa`: × as fast as these, build included; "
        "`times_packed_amortised`: the answer alone, for a build that many calls share. Processor "
        "seconds of one thread, which other work on the machine hardly changes; medians of rounds "
        f"in one process, in which each way runs in random order, {CALLS} times if it is brief, of "
        "which the quickest call counts. One head of each layer."
    ),
    "crossing": (
        "As `self_attention`, for the target 0.02, by length, for keys of a writer; settings "
        "chosen on validation data of each length."
    ),
}

# Settings, on validation data


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread, whose processor time tells what work there is."""
    import threadpoolctl
    import torch

    before, threads = os.environ.get("OMP_NUM_THREADS"), torch.get_num_threads()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    try:
        with threadpoolctl.threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def tuned(
    case: Case,
    *,
    quick: bool,
    log: Callable[[str], None],
    names: Collection[str] | None = None,
) -> list[dict[str, Any]]:
    """Return a row for each setting of each way on the validation part, one if `quick`.

    The ways are those in `names`, by default all.
    """
    query, key, value = (x[::2] for x in case.draw(VALIDATION))
    rows = approximate_keys.checked_rows(case.n)
    expected = approximate_keys.exact(query, key, value, rows, case.is_causal)
    found = []
    with one_thread(), harness.loaded_is_kept():
        exact_seconds = _timed(BY_NAME[PACKED], query, key, value, {}, case)[1]
        for method in METHODS:
            if method.name in EXACT or (names and method.name not in names):
                continue
            best = len(found)
            for setting in method.settings[: 1 if quick else None]:
                _warm(method, query, key, value, setting, case)
                output, seconds = _timed(method, query, key, value, setting, case)
                error = approximate_keys.errors(output[:, rows], expected).mean()
                found.append(
                    case.about
                    | {"method": method.name, "set_to": setting, "error": float(error)}
                    | {"seconds": seconds, "exact_seconds": exact_seconds}
                )
            shown = ", ".join(
                f"{row['error']:.3f} at {row['exact_seconds'] / row['seconds']:.2f} ×"
                for row in found[best:]
            )
            log(f"settings, {case.keys}, n = {case.n}, {method.name}: {shown}")
    return found


_seen: set[tuple[Any, ...]] = set()


def _warm(method, query, key, value, setting, case):
    """Run once on few keys, so that what is compiled is there."""
    at = (method.name, case.is_causal, query.shape[-1], tuple(setting))
    if at not in _seen:
        _seen.add(at)
        method.run(*(x[:1] for x in (query, key, value)), setting, case.is_causal)


def _timed(method, query, key, value, setting, case):
    """Return the output and the processor seconds of the quickest of some calls."""
    output, seconds = None, []
    gc.collect()
    while len(seconds) < 3 and sum(seconds) < BRIEF:
        start = time.process_time()
        output = method.run(query, key, value, setting, case.is_causal)
        seconds.append(time.process_time() - start)
    return output, min(seconds)


def choices(rows: list[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    """Return which setting each way gets at a length for each target, by its validation rows."""
    found = []
    for target in TARGETS:
        for name in dict.fromkeys(row["method"] for row in rows if row["n"] == n):
            here = [row for row in rows if (row["method"], row["n"]) == (name, n)]
            row = _quickest(here, target)
            about = {name: row[name] for name in ("keys", "n", "causal", "method", "set_to")}
            found.append(about | {"target": target, "tried": len(here)})
    return found


def _quickest(rows, target):
    enough = [row for row in rows if row["error"] <= target]
    if enough:
        return min(enough, key=lambda row: row["seconds"])
    within = [row for row in rows if row["seconds"] <= MOST * row["exact_seconds"]]
    if within:
        return min(within, key=lambda row: row["error"])
    return min(rows, key=lambda row: row["seconds"])


# Beside exact attention, on test data


def compared(case, chosen, *, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row for exact attention and for each chosen setting."""
    given = case.draw(TEST)
    rows = approximate_keys.checked_rows(case.n)
    expected = approximate_keys.exact(*given, rows, case.is_causal)
    exact = [{"method": name, "set_to": {}} for name in (PACKED, SDPA)]
    ways = exact + chosen
    with one_thread(), harness.loaded_is_kept():
        runs = _rounds(case, given, ways, rows, expected, quick)
    exact_seconds = {way["method"]: runs[_named(way)]["seconds"] for way in exact}
    result = []
    for way in ways:
        row = case.about | {"heads": len(given[0])} | way | runs[_named(way)]
        row["times_packed"] = exact_seconds[PACKED] / row["seconds"]
        row["times_sdpa"] = exact_seconds[SDPA] / row["seconds"]
        row["times_packed_amortised"] = exact_seconds[PACKED] / row["answer_seconds"]
        if "target" in row:
            row["reached"] = row["error"] <= row["target"]
        result.append(row)
        log(
            f"self-attention, {case.keys}, n = {case.n}: {row['method']}, "
            f"{row.get('target', '')}: error {row['error']:.3f}, {row['times_packed']:.2f} × packed"
        )
    return result


def _rounds(case, given, ways, rows, expected, quick):
    """Return seconds and errors of each different setting, from interleaved rounds, a seed each."""
    query, key, value = given
    order = list({_named(way): way for way in ways}.items())
    seconds: dict[str, list[list[float]]] = {at: [] for at, _ in order}
    errors: dict[str, list[np.ndarray]] = {at: [] for at, _ in order}
    rng = np.random.default_rng(0)
    for _, way in order:  # what is compiled or loaded once
        few = (x[:1, : min(case.n, FEW)] for x in given)
        BY_NAME[way["method"]].run(*few, way["set_to"], case.is_causal)
    for seed in range(1 if quick else SEEDS):
        for i in rng.permutation(len(order)):
            at, way = order[i]
            method = BY_NAME[way["method"]]
            setting = way["set_to"] | {"is_causal": case.is_causal, "seed": seed}
            calls: list[list[float]] = []
            while len(calls) < CALLS and sum(whole for whole, _ in calls) < SHORT:
                start = time.process_time()
                state = method.prepare(key, value, **setting)
                middle = time.process_time()
                output = method.attend(query, state)
                end = time.process_time()
                calls.append([end - start, end - (middle if method.builds else start)])
            seconds[at].append(min(calls))
            errors[at].append(approximate_keys.errors(output[:, rows], expected))
            del state, output
    found = {}
    for at, _ in order:
        whole, answer = np.median(seconds[at], axis=0).tolist()
        means = [float(x.mean()) for x in errors[at]]
        found[at] = {"seconds": whole, "answer_seconds": answer, "error": float(np.mean(means))}
        found[at] |= {"error_low": min(means), "error_high": max(means)}
        found[at] |= {"error_of_heads": np.mean(errors[at], axis=0).tolist()}
    return found


def _named(way):
    return repr((way["method"], sorted(way["set_to"].items())))


def crossing(chosen, *, quick: bool, log: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Yield speed and error by length, each way at what was `chosen` for the length."""
    for n in QUICK_SIZES if quick else SIZES:
        ways = [
            row for row in chosen(n) if row["method"] in CROSSING and row["target"] == min(TARGETS)
        ]
        yield from compared(at_length(n, quick), ways, quick=quick, log=log)


def at_length(n: int, quick: bool) -> Case:
    """Return the keys whose length is varied."""
    return approximate_keys.writer("writer" if quick else "long_writer", n)
