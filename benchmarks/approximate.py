"""Whole self-attention, approximated: the sketch and its rivals, on real keys and on toys.

Tables: `rivals`, what each way to attend does here. `concentration`, how many keys the heads need.
`settings`, every setting that was tried on validation data. `self_attention`, the chosen ones on
test data, beside exact attention. `heads`, their errors head by head. `loss`, what a model loses.
`crossing`, speeds by length. `estimators`, which estimate to take of the keys that were found.
"""

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks import approximate_estimators, approximate_keys, harness, real_keys, sketch_inputs
from benchmarks.approximate_keys import TEST, TOYS, VALIDATION, Case
from benchmarks.approximate_methods import BY_NAME, EXACT, METHODS, PACKED, SDPA, Method
from benchmarks.tables import Tables

DEVICES = ("cpu",)
TARGETS = (0.02, 0.1)
FOR_ALL, FOR_THESE = "one for all", "for these keys"
SEEDS = 3
MOST = 4.0  # times packed: no setting is chosen that takes longer and misses its target
FEW = 2048  # keys of a call that only loads what is compiled
CROSSING = ("window + sinks", "HyperAttention", "tables + moments", "cells")
SIZES = (2048, 4096, 8192, 16384, 32768)
LONG = 98 * 1024  # tokens of the encoder, so that blocks of 1,024 fit

ERROR = "mean over queries of |o - exact| / |exact|, exact attention in float64"

ABOUT = {
    "rivals": "What each way to attend does here, and what is simpler than in its source.",
    "concentration": (
        "Head by head, over queries of the second half: the median number of keys that hold 50, 90 "
        "and 99 % of the weight; the share of the weight on the last 256 keys (causal); the error "
        "of the best possible choice of a share of the keys, those of largest weight."
    ),
    "settings": (
        f"Validation data, one seed, every second head. `error`: {ERROR}, for some of the queries "
        "of a head, then over heads. `seconds`: processor seconds of one thread, build included; "
        "`exact_seconds` those of packed."
    ),
    "self_attention": (
        "Test data. For each way and each `target` the setting that is quickest on validation data "
        "among those whose error is at most the target there, or that of the smallest error "
        f"that takes at most {MOST:.0f} times as long as packed (`reached` false). `setting`: "
        "chosen for these keys, or one for all keys of the same "
        "direction: the setting that reaches the target on most of them, then the quickest. "
        f"`error`: {ERROR}; mean, smallest and largest over {SEEDS} seeds where the way is "
        "random. `times_packed`, `times_sdpa`: × as fast as these, build included; "
        "`times_packed_amortised`: the answer alone, for a build that many calls share. Processor "
        "seconds of one thread, which other work on the machine hardly changes; medians of rounds "
        "in one process, in which each way runs once, in random order. Real keys: one head "
        "of each layer (writers), of three layers (encoder); toys: two heads of width 64."
    ),
    "heads": "The errors of the settings of `self_attention`, for every head of the writers.",
    "loss": (
        "Nats a token of the test plays with the attention of all layers replaced, by a setting of "
        "`self_attention`; of the tokens in the second half of the window. `change` is relative to "
        "exact attention."
    ),
    "crossing": (
        "As `self_attention`, by length, for keys of a writer: the settings that were chosen for "
        "its longest keys there."
    ),
}


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure all tables on the CPU."""
    cases = list(_cases(quick))
    describe(tables)
    tables.whole("concentration", lambda: [row for c in cases for row in concentration(c.every())])
    tables.whole(
        "settings", lambda: [row for c in cases for row in tuned(c, tables.log, quick=quick)]
    )
    tables.whole(
        "estimators", lambda: approximate_estimators.estimators(quick=quick, log=tables.log)
    )
    chosen = choices(tables.record["settings"])
    tables.whole(
        "self_attention",
        lambda: [row for c in cases for row in compared(c, chosen, quick=quick, log=tables.log)],
    )
    writers = [(c.keys, c.n) for c in cases if "writer" in c.keys]
    tables.whole("heads", lambda: [r for at in writers for r in heads(*at, chosen)])
    tables.whole("loss", lambda: [r for at in writers for r in losses(*at, chosen, tables.log)])
    tables.whole("crossing", lambda: list(crossing(chosen, quick=quick, log=tables.log)))


def describe(tables: Tables) -> None:
    """Put into the record what is no measurement."""
    tables.add(
        methods=harness.METHODS | ABOUT | approximate_estimators.ABOUT,
        inputs=sketch_inputs.KINDS | {"shared": "As clustered, and the keys are the queries."},
        error=ERROR,
        targets=TARGETS,
    )
    tables.add(rivals=[rival(method) for method in METHODS])


def _cases(quick: bool) -> Iterator[Case]:
    """Yield the keys, the short ones first."""
    names = ["writer"] if quick else ["writer", "long_writer"]
    sizes = (512,) if quick else (4096, 16384)
    for n in sizes:
        for name in names:
            yield approximate_keys.writer(name, n)
    for kind in ("random", "shared") if quick else TOYS:
        yield approximate_keys.toy(kind, 512 if quick else 8192)
    if not quick:
        yield approximate_keys.encoder(16384)
        yield approximate_keys.encoder(LONG, layers=(2,))


def rival(method: Method) -> dict[str, Any]:
    """Return what a way to attend is."""
    names = ("source", "does", "simplified", "is_random")
    return {"method": method.name} | {name: getattr(method, name) for name in names}


# How concentrated attention is


SHARES = (0.005, 0.01, 0.02, 0.05, 0.1)


def concentration(case: Case) -> Iterator[dict[str, Any]]:
    """Yield a row for each head."""
    query, key, value = case.draw(TEST)
    rows = approximate_keys.checked_rows(case.n, case.n // 2)
    weights = approximate_keys.weights_of(query, key, rows, case.is_causal)
    for i, (w, v) in enumerate(zip(weights, value, strict=True)):
        expected, order = w @ v, np.argsort(-w, axis=1)
        held = np.cumsum(np.take_along_axis(w, order, axis=1), axis=1)
        found: dict[str, Any] = case.place(i)
        for share in (50, 90, 99):
            found[f"keys_{share}"] = float(np.median((held < share / 100).sum(axis=1) + 1))
        near = [w[j, max(0, r - 255) : r + 1].sum() for j, r in enumerate(rows)]
        found["window_256"] = float(np.mean(near)) if case.is_causal else None
        for share in SHARES:
            count = max(1, round(share * case.n))
            best = np.zeros_like(w)
            kept = order[:, :count]
            np.put_along_axis(best, kept, np.take_along_axis(w, kept, axis=1), axis=1)
            best /= best.sum(axis=1, keepdims=True)
            found[f"best_{share}"] = float(approximate_keys.errors(best @ v, expected))
        yield case.about | found


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


def options(method: Method, case: Case) -> list[dict[str, Any]]:
    """Return the settings that are tried; none where the way is not made for these keys."""
    shared = {"shared": True} if (method.name, case.keys) == ("Reformer", "shared") else {}
    return [setting | shared for setting in method.settings.get(case.is_causal, ())]


def tuned(case: Case, log: Callable[[str], None], *, quick: bool = False) -> list[dict[str, Any]]:
    """Return a row for each setting of each way on the validation part, one if `quick`."""
    query, key, value = (x[::2] for x in case.draw(VALIDATION))
    rows = approximate_keys.checked_rows(case.n)
    expected = approximate_keys.exact(query, key, value, rows, case.is_causal)
    found = []
    with one_thread():
        exact_seconds = min(
            _timed(BY_NAME[PACKED], query, key, value, {}, case)[1] for _ in range(2)
        )
        for method in METHODS:
            if method.name in EXACT:
                continue
            best = len(found)
            for setting in options(method, case)[: 1 if quick else None]:
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
    gc.collect()
    start = time.process_time()
    output = method.run(query, key, value, setting, case.is_causal)
    return output, time.process_time() - start


def choices(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return which setting each way gets for each keys and target, by its validation rows."""
    found = []
    for target in TARGETS:
        for name in dict.fromkeys(row["method"] for row in rows):
            own = [row for row in rows if row["method"] == name]
            for causal in (True, False):
                of_kind = [row for row in own if row["causal"] == causal]
                cases = list(dict.fromkeys((row["keys"], row["n"]) for row in of_kind))
                common = _one_for_all(of_kind, target)
                for keys, n in cases:
                    here = [row for row in of_kind if (row["keys"], row["n"]) == (keys, n)]
                    ways = [(FOR_THESE, _quickest(here, target))]
                    if common is not None:
                        ways.append((FOR_ALL, common))
                    about = {"keys": keys, "n": n, "causal": causal, "target": target}
                    for setting, row in ways:
                        shared = {"shared": True} if "shared" in here[0]["set_to"] else {}
                        set_to = row["set_to"] | shared
                        found.append(about | {"method": name, "setting": setting, "set_to": set_to})
    return found


def _quickest(rows, target):
    enough = [row for row in rows if row["error"] <= target]
    if enough:
        return min(enough, key=lambda row: row["seconds"])
    within = [row for row in rows if row["seconds"] <= MOST * row["exact_seconds"]]
    if within:
        return min(within, key=lambda row: row["error"])
    return min(rows, key=lambda row: row["seconds"])


def _one_for_all(rows, target):
    """Return the row of the setting that reaches the target on most keys, then the quickest."""
    if not rows:
        return None
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        plain = {name: x for name, x in row["set_to"].items() if name != "shared"}
        groups.setdefault(repr(sorted(plain.items())), []).append(row | {"set_to": plain})

    def worth(group):
        reached = sum(row["error"] <= target for row in group)
        work = float(np.mean([np.log(row["seconds"] / row["exact_seconds"]) for row in group]))
        error = float(np.mean([np.log(max(row["error"], 1e-9)) for row in group]))
        return (-reached, work) if reached else (0, error)

    return min(groups.values(), key=worth)[0]


# Beside exact attention, on test data


def compared(case, chosen, *, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row for exact attention and for each chosen setting."""
    given = case.draw(TEST)
    rows = approximate_keys.checked_rows(case.n)
    expected = approximate_keys.exact(*given, rows, case.is_causal)
    exact = [{"method": name, "set_to": {}} for name in (PACKED, SDPA)]
    ways = exact + [row for row in chosen if (row["keys"], row["n"]) == (case.keys, case.n)]
    with one_thread():
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
            f"{row.get('target', '')} {row.get('setting', '')}: "
            f"error {row['error']:.3f}, {row['times_packed']:.2f} × packed"
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
            start = time.process_time()
            state = method.prepare(key, value, **setting)
            middle = time.process_time()
            output = method.attend(query, state)
            end = time.process_time()
            seconds[at].append([end - start, end - (middle if method.builds else start)])
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
    """Yield speed and error by length, for the settings that were chosen at one of them."""
    name = "writer" if quick else "long writer"
    at = max(row["n"] for row in chosen if row["keys"] == name)
    ways = [row for row in _of(chosen, name, at) if row["method"] in CROSSING]
    for n in (512,) if quick else SIZES:
        case = approximate_keys.writer(name.replace(" ", "_"), n)
        own = [way | {"n": n} for way in ways]
        yield from compared(case, own, quick=quick, log=log)


# Head by head, and in the model


def heads(keys: str, n: int, chosen) -> Iterator[dict[str, Any]]:
    """Yield the error of each head of a writer, for the settings chosen for these keys."""
    case = approximate_keys.writer(keys.replace(" ", "_"), n).every()
    query, key, value = case.draw(TEST)
    rows = approximate_keys.checked_rows(n)
    expected = approximate_keys.exact(query, key, value, rows, True)
    for way in _of(chosen, keys, n):
        method = BY_NAME[way["method"]]
        output = method.run(query, key, value, way["set_to"], True)
        for i, error in enumerate(approximate_keys.errors(output[:, rows], expected)):
            place = case.place(i)
            yield way | place | {"error": float(error)}


def losses(keys: str, n: int, chosen, log: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Yield the loss of a writer that attends in each of the chosen ways."""
    name = keys.replace(" ", "_")
    measured = partial(real_keys.loss, n=n, part=TEST, name=name, after=n // 2)
    exact = measured(real_keys.EXACT)
    for way in _of(chosen, keys, n):
        method = BY_NAME[way["method"]]

        def attend(query, key, value, mask, bias, scale, is_causal, method=method, way=way):
            return method.run(query, key, value, way["set_to"], True)

        loss = measured(attend)
        log(f"loss, {keys}, n = {n}: {way['method']} {way['target']}: {loss:.3f} for {exact:.3f}")
        yield way | {"loss": loss, "exact": exact, "change": loss / exact - 1}


def _of(chosen, keys, n):
    return [
        row for row in chosen if (row["keys"], row["n"], row["setting"]) == (keys, n, FOR_THESE)
    ]
