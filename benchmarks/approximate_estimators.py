"""Which estimator: the error of each, where all score about the same share of the keys."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from attnbook.sketch import Moments, SimHash
from benchmarks import approximate_features, approximate_keys, real_keys
from benchmarks.approximate_clusters import sort_keys
from benchmarks.approximate_keys import TEST, VALIDATION
from benchmarks.cache_past import mixed
from benchmarks.cache_rivals import agreement, chances, meetings

N, QUICK_N = 16_384, 1024
COLLECTION, FEWER = 100_000, 10_000  # tokens of the encoder: of test, of validation data
QUERIES = 64
TABLES = (16, 64)
CELLS = (64, 256, 1024)
BUDGET = 0.03
SEEDS, QUICK_SEEDS = 3, 1
FEATURES = 1024

ABOUT = {
    "estimators": (
        f"Not causal, {QUERIES} queries of one head. Of a writer: queries of the "
        "last eighth of the text, keys of what is before it, so that their neighbours are not "
        "among the keys, as where a window holds them apart. Of the encoder: tokens of lines of "
        "the plays, pooled. `budget`: the wanted share of the "
        "keys that are scored; `share`: that was, the mean over queries. Tables of SimHash, keys "
        "without their mean; the number of bits that comes nearest to the budget, and the better "
        f"of {TABLES[0]} and {TABLES[1]} tables, of {', '.join(map(str, CELLS))} cells, are chosen "
        "on validation data (`set_to`). A sample or heavy keys, those of largest norm, have half "
        "of the budget to themselves beside tables, all of it alone. `two tables`: keys that meet "
        "the query twice, over the chance of it. `clusters`: the keys of the cells of largest "
        "centroid score, the centroids counted as scored; `cells`: the same, and the other cells "
        "by their moments. `error`: mean over queries of "
        "|o - exact| / |exact|, the median of seeds, and `error_low`, `error_high` the least and "
        f"the most. FAVOR+ scores none; its {FEATURES} features are shown at every budget."
    ),
}


class Head(NamedTuple):
    """Queries and the keys and values that they all see."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    has_order: bool  # whether the last keys are the nearest

    @property
    def scores(self) -> np.ndarray:
        """The scaled products, (m, n)."""
        return self.query @ self.key.T / np.float32(math.sqrt(self.key.shape[1]))


Estimate = tuple[str, np.ndarray, float]  # name, output and share of the keys scored


def estimators(*, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return the error of each estimator on each kind of keys."""
    rows = []
    for about, validation, test in _keys(quick):
        chosen_by, judged = _Judge(validation), _Judge(test)
        found = compared(chosen_by, judged, BUDGET, QUICK_SEEDS if quick else SEEDS)
        rows += [about | {"n": len(test.key), "budget": BUDGET} | row for row in found]
        shown = ", ".join(f"{row['estimator']} {row['error']:.3f}" for row in found)
        log(f"estimators, {about['keys']}: {shown}")
    return rows


def compared(chosen_by: "_Judge", judged: "_Judge", budget: float, seeds: int) -> list[dict]:
    """Return a row for each estimator, each at its best setting on the validation head."""
    rows = []
    for settings, ways in (
        ([{}], _without_settings),
        ([_fitting(chosen_by.head, n_tables, budget) for n_tables in TABLES], _of_tables),
        ([{"n_cells": n_cells} for n_cells in CELLS], _of_cells),
    ):
        tried = [chosen_by.errors(ways, setting, budget, 0) for setting in settings]
        runs = [[judged.errors(ways, x, budget, seed) for seed in range(seeds)] for x in settings]
        for name in tried[0]:
            best = min(range(len(settings)), key=lambda i, name=name: tried[i][name][0])
            errors, shares = zip(*(run[name] for run in runs[best]), strict=True)
            row = {"estimator": name, "set_to": settings[best], "share": float(np.mean(shares))}
            row |= {"error": float(np.median(errors)), "error_low": min(errors)}
            rows.append(row | {"error_high": max(errors), "seeds": seeds})
    return rows


class _Judge:
    """A head with its exact output, and what is made of its keys once."""

    def __init__(self, head: Head):
        self.head, self.scores = head, head.scores
        everything = np.ones(self.scores.shape, bool)
        self.exact = answer(self.scores.astype(np.float64), head.value, everything)
        self.moments = Moments.fit(head.key.astype(np.float64), head.value.astype(np.float64))
        self.cells: dict[int, Any] = {}

    def errors(self, ways, setting, budget, seed) -> dict[str, tuple[float, float]]:
        return {
            name: (float(approximate_keys.errors(output, self.exact)), share)
            for name, output, share in ways(self, setting, budget, seed)
        }


def _keys(quick: bool) -> Iterator[tuple[dict[str, Any], Head, Head]]:
    """Yield fields, and a head of validation and of test data."""
    parts = (VALIDATION, TEST)
    n = QUICK_N if quick else N
    if not quick:
        of_parts = [
            [x.repeated() for x in real_keys.layers(n, part=part, name="long_writer")]
            for part in parts
        ]
        rows = approximate_keys.checked_rows(n, n - n // 8)[:: approximate_keys.CHECKED // QUERIES]
        seen = n - n // 8  # the keys that all of these queries see
        for layer, pair in enumerate(zip(*of_parts, strict=True)):
            made = [Head(x[0][layer][rows], *(y[layer][:seen] for y in x[1:]), True) for x in pair]
            about = {"keys": f"long writer {layer}.{layer}", "layer": layer, "head": layer}
            yield about, *made
        yield from _of_encoder((0, 2))
    rows = np.linspace(0, n - 1, QUERIES).astype(int)
    for kind in ("clustered",) if quick else ("random", "peaked", "clustered", "heavy-tailed"):
        case, made = approximate_keys.toy(kind, n, 1), []
        for part in parts:
            query, key, value = (x[0] for x in case.draw(part))
            made.append(Head(query[rows], key, value, False))
        yield {"keys": kind}, *made


def _of_encoder(layers):
    """Yield one head of each of the layers, as `_keys` does."""
    of_parts = []
    for part, n in ((VALIDATION, FEWER), (TEST, COLLECTION)):
        rows, kept = np.linspace(0, n - 1, QUERIES).astype(int), range(len(layers))
        found = real_keys.encoder_layers(layers, n, part=part, heads=kept)
        of_parts.append(
            [Head(x.query[i][rows], x.key[i], x.value[i], False) for i, x in enumerate(found)]
        )
    for head, (layer, pair) in enumerate(zip(layers, zip(*of_parts, strict=True), strict=True)):
        yield {"keys": f"encoder {layer}.{head}", "layer": layer, "head": head}, *pair


# The ways


def answer(scores, value, scored, bias=0.0, tail=None) -> np.ndarray:
    """Return attention to the keys that are `scored`, and a tail (log mass, output) beside them."""
    return mixed(np.where(scored, scores + bias, -np.inf), value, tail)


def _without_settings(judge: _Judge, setting, budget, seed) -> Iterator[Estimate]:
    del setting
    (query, key, value, has_order), S = judge.head, judge.scores
    n, rng = len(key), np.random.default_rng(seed)
    count = max(8, round(budget * n))
    yield "best top-k", answer(S, value, np.partition(S, -count, 1)[:, [-count]] <= S), count / n

    def only(rows):
        some = Head(query, key[rows], value[rows], has_order)
        return answer(some.scores, some.value, True), count / n

    yield "uniform alone", *only(rng.choice(n, count, replace=False))
    if has_order:
        yield "window", *only(np.arange(n - count, n))
        yield "window + sinks", *only(np.r_[0:4, n - count + 4 : n])
    scale = 1 / math.sqrt(key.shape[1])
    yield "moments alone", judge.moments.tail(query.astype(np.float64), scale)[1], 0.0
    given = {"n_features": FEATURES, "hyperbolic": True, "is_causal": False, "seed": seed}
    state = approximate_features.prepare(key[None], value[None], **given)
    yield "FAVOR+", approximate_features.attend(query[None], state)[0], 0.0


def _of_tables(judge: _Judge, setting, budget, seed) -> Iterator[Estimate]:
    (query, key, value, _), S = judge.head, judge.scores
    n, d = key.shape
    scale, centred = 1 / math.sqrt(d), key - key.mean(axis=0)
    n_tables, rng, q = setting["n_tables"], np.random.default_rng(seed), query.astype(np.float64)
    agree = agreement(query, centred)

    def met(bits):
        return meetings(SimHash.init(seed, d, n_tables, bits), query, centred)

    def share(scored):
        return float(scored.sum(axis=1).mean()) / n

    def with_moments(scored, moments, always=False):
        """Return the keys above what the moments explain, and the moments for the others."""
        limit = moments.limit(q, scale)
        tail = moments.tail(q, scale, below=limit)
        return answer(S, value, always | (scored & (limit[:, None] < S)), tail=tail)

    full, half = met(setting["bits"]), met(setting["half"])
    found, some = full > 0, half > 0
    chance = chances(agree, n_tables, setting["bits"], 1)
    yield "union", answer(S, value, found), share(found)
    yield "importance", answer(S, value, found, -np.log(chance)), share(found)
    yield "duplicates", answer(S, value, found, np.log(np.maximum(full, 1))), share(found)
    yield "union + moments", with_moments(found, judge.moments), share(found)
    count = max(2, round(budget * n / 2))
    drawn = np.zeros(n, bool)
    drawn[rng.choice(n, count, replace=False)] = True
    beside = drawn & ~some  # each stands for n / count keys that no table found
    weight = np.log(np.where(beside, n / count, 1)).astype(np.float32)
    yield "union + uniform", answer(S, value, some | drawn, weight), share(some | drawn)
    heavy = np.zeros(n, bool)
    heavy[np.argsort(-np.linalg.norm(centred, axis=1))[:count]] = True
    yield "union + heavy", answer(S, value, some | heavy), share(some | heavy)
    light = Moments.fit(key[~heavy].astype(np.float64), value[~heavy].astype(np.float64))
    output = with_moments(some & ~heavy, light, heavy)
    yield "union + heavy + moments", output, share(some | heavy)
    twice = met(setting["twice"]) > 1
    bias = -np.log(chances(agree, n_tables, setting["twice"], 2))
    yield "two tables", answer(S, value, twice, bias), share(twice)


def _of_cells(judge: _Judge, setting, budget, seed) -> Iterator[Estimate]:
    del seed
    (query, key, value, _), n_cells = judge.head, setting["n_cells"]
    n, scale = len(key), np.float32(1 / math.sqrt(key.shape[1]))
    if n_cells not in judge.cells:
        judge.cells[n_cells] = sort_keys(key, value, n, min(n_cells, n))
    head, q = judge.cells[n_cells], query * scale
    k, v, _, starts = head.keys
    means, values, log_count, spread = head.stands
    sizes, near = np.diff(starts), q @ means.T
    order = np.argsort(-np.where(sizes > 0, near, -np.inf), axis=1)
    budget_left = max(budget * n - n_cells, 1)
    before = np.cumsum(sizes[order], axis=1) - sizes[order]
    read = np.zeros(near.shape, bool)
    np.put_along_axis(read, order, before < budget_left, axis=1)
    cell = np.repeat(np.arange(len(sizes)), sizes)
    scores, scored = q @ k.T, read[:, cell]
    share = (float(scored.sum(axis=1).mean()) + n_cells) / n
    yield "clusters", answer(scores, v, scored), share
    half = np.sum((q @ head.covariance) * q, axis=1) / 2
    log_far = np.where(read, -np.inf, near + log_count + half[:, None] * spread)
    top = log_far.max(axis=1, keepdims=True)
    far = np.exp(log_far - np.where(np.isfinite(top), top, 0))
    total = far.sum(axis=1)
    part = far / np.where(total > 0, total, 1)[:, None]
    with np.errstate(divide="ignore"):
        log_mass = np.log(total) + np.where(np.isfinite(top[:, 0]), top[:, 0], 0)
    output = part @ values[:, :-1] + (part @ values[:, -1])[:, None] * (q @ head.cross)
    yield "cells", answer(scores, v, scored, tail=(log_mass, output)), share


def _fitting(head: Head, n_tables: int, budget: float) -> dict[str, int]:
    """Return how many bits let the tables find a share `budget` of the keys, or half of it."""
    some = (head.key - head.key.mean(axis=0))[:: max(1, len(head.key) // 2048)]
    agree = agreement(head.query, some).astype(np.float64)
    found = {"n_tables": n_tables}
    for name, least, wanted in (("bits", 1, 1), ("half", 1, 0.5), ("twice", 2, 1)):
        off = [
            abs(math.log(chances(agree, n_tables, bits, least).mean() / (wanted * budget)))
            for bits in range(1, 21)
        ]
        found[name] = 1 + int(np.argmin(off))
    return found
