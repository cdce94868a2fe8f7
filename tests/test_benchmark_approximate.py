"""What the benchmark of approximate self-attention compares with is right: rivals and tables."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from cases import every_day, with_cloud

pytest.importorskip("numba", reason="Numba is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")

from attnbook import attention_weights
from attnbook.sketch import Moments, SimHash, SketchAttention
from benchmarks import (
    approximate_clusters,
    approximate_estimators,
    approximate_features,
    approximate_keys,
    approximate_lsh,
    approximate_model,
    approximate_speed,
    approximate_toys,
    cache_rivals,
    inputs,
)
from benchmarks.approximate_methods import BY_NAME, METHODS

N, D, D_V = 96, 11, 7
CAUSAL = pytest.mark.parametrize("is_causal", [True, False])


def heads(n=N, h=2, size=1.0, d=D, d_v=D_V):
    rng = np.random.default_rng(11)
    query, key = size * rng.standard_normal((2, h, n, d)).astype(np.float32)
    return query, key, rng.standard_normal((h, n, d_v)).astype(np.float32)


def exact(given, is_causal):
    """Return attention by a float64 reference that is written apart from the package."""
    n = given[0].shape[1]
    mask = np.tri(n, dtype=bool) if is_causal else None
    return inputs.reference(*given, mask=mask)


def relative(found, expected):
    return float(approximate_keys.errors(found, expected).mean())


# Rivals with a budget that holds every key are exact


EVERY_KEY = [
    ("SDPA", {}),
    ("packed", {}),
    ("window", {"window": N, "n_sinks": 0}),
    ("Reformer", {"chunk": N, "n_rounds": 1}),
    ("Reformer", {"chunk": N, "n_rounds": 3}),  # each pair meets three times, and counts once
    ("SMYRF", {"chunk": N, "n_rounds": 2, "asymmetric": True}),
    ("HyperAttention", {"block": N, "n_samples": 5, "least": N // 4}),
    ("MagicPIG", {"n_bits": 3, "n_tables": 2, "window": N, "n_sinks": N}),
    ("clusters", {"n_clusters": 5, "n_probes": 5}),
    ("tables", {"n_tables": 40, "n_bits": 1}),
    ("cells", {"block": 20, "n_cells": 4, "threshold": -1.0}),
]


@CAUSAL
@pytest.mark.parametrize(("name", "setting"), every_day(EVERY_KEY[2:8], EVERY_KEY))
def test_a_rival_that_sees_every_key_is_exact(name, setting, is_causal):
    given = heads(size=1.5)
    found = BY_NAME[name].run(*given, setting, is_causal)
    assert found.dtype == np.float32
    assert relative(found, exact(given, is_causal)) < 2e-6


@CAUSAL
@pytest.mark.parametrize(
    ("name", "few", "many"),
    [
        ("window", {"window": 8, "n_sinks": 0}, {"window": 64}),
        ("Reformer", {"chunk": 8, "n_rounds": 1}, {"n_rounds": 12}),
        ("SMYRF", {"chunk": 8, "n_rounds": 1, "asymmetric": True}, {"n_rounds": 12}),
        ("HyperAttention", {"block": 12, "n_samples": 12, "least": 12}, {"n_samples": 4096}),
        ("FAVOR+", {"n_features": 22, "hyperbolic": False}, {"n_features": 22 * 256}),
        ("FAVOR+", {"n_features": 22, "hyperbolic": True}, {"n_features": 22 * 256}),
        ("MagicPIG", {"n_bits": 4, "n_tables": 6, "window": 4, "n_sinks": 1}, {"n_tables": 99}),
        ("clusters", {"n_clusters": 16, "n_probes": 2}, {"n_probes": 12}),
        ("cells", {"block": 32, "n_cells": 4, "threshold": 1e9}, {"threshold": 1e-3}),
    ],
)
def test_rivals_come_nearer_with_more_work(name, few, many, is_causal):
    given = heads(size=0.7)
    expected = exact(given, is_causal)

    def error(setting):
        seeds = range(4 if BY_NAME[name].is_random else 1)
        runs = [BY_NAME[name].run(*given, setting, is_causal, seed) for seed in seeds]
        return np.mean([relative(run, expected) for run in runs])

    assert error(few | many) < error(few) / 1.4


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("window + sinks", {"window": 16, "n_sinks": 3}),
        ("FAVOR+", {"n_features": 16, "hyperbolic": False}),
        ("cells", {"block": 20, "n_cells": 4, "threshold": 0.01}),
    ],
)
def test_the_future_changes_nothing(name, setting):
    query, key, value = heads()
    before = BY_NAME[name].run(query, key, value, setting, True)
    key[:, 71:], value[:, 71:] = 0.5 * key[:, 71:][:, ::-1], -value[:, 71:]
    after = BY_NAME[name].run(query, key, value, setting, True)
    np.testing.assert_allclose(after[:, :71], before[:, :71], rtol=2e-4, atol=1e-5)
    assert np.abs(after[:, 71:] - before[:, 71:]).max() > 0.1


def test_a_window_with_sinks_is_what_a_mask_says():
    given = heads(n=64)
    i, j = np.indices((64, 64))
    run = i // 8 * 8  # queries share a window in runs of half its size
    sees = (j <= i) & ((j >= run - 16) | (j < 3))
    expected = inputs.reference(*given, mask=sees)
    found = BY_NAME["window + sinks"].run(*given, {"window": 16, "n_sinks": 3}, True)
    assert relative(found, expected) < 2e-6


# Reformer


def test_a_pair_counts_once_in_however_many_rounds_it_meets():
    rng = np.random.default_rng(0)
    n, chunk, rounds = 24, 4, 3
    orders = [[rng.permutation(n)[None] for _ in range(2)] for _ in range(rounds)]
    places = [np.stack([np.argsort(o[i]) // chunk for o in orders], axis=1) for i in range(2)]
    met, total = np.zeros((n, n)), np.zeros((n, n))
    for q_order, k_order in orders:
        bias = np.empty((1, n // chunk, chunk, 2 * chunk), np.float32)
        arrays = (q_order, k_order, *(p.astype(np.int32) for p in places))
        approximate_lsh.count_rounds(*arrays, chunk, 1, True, bias, 0, n // chunk)
        for block, i, j in np.ndindex(bias.shape[1:]):
            column = (block - 1) * chunk + j
            if column < 0:
                assert bias[0, block, i, j] == -np.inf
                continue
            pair = q_order[0, block * chunk + i], k_order[0, column]
            met[pair] += 1
            total[pair] += np.exp(bias[0, block, i, j])
    allowed = np.tri(n, dtype=bool)
    np.testing.assert_allclose(total, (met > 0) & allowed, atol=1e-6)
    assert met.max() > 1


# Features


def test_random_features_are_orthogonal_and_as_long_as_normal_vectors():
    rows = approximate_features.orthogonal(np.random.default_rng(0), 4000, 5)
    assert rows.shape == (4000, 5)
    group = rows[:5] / np.linalg.norm(rows[:5], axis=1, keepdims=True)
    np.testing.assert_allclose(group @ group.T, np.eye(5), atol=1e-12)
    # E[exp(w·q - |q|²/2) exp(w·k - |k|²/2)] = exp(q·k): unbiased
    q, k = np.array([0.3, -0.2, 0.5, 0.1, 0.0]), np.array([0.1, 0.4, 0.2, -0.3, 0.2])
    mean = np.exp(rows @ (q + k) - (q @ q + k @ k) / 2).mean()
    assert mean == pytest.approx(np.exp(q @ k), abs=0.05)


# Cells


def test_cells_that_are_not_read_count_by_their_moments():
    query, key, value = heads(h=1, n=128)
    setting = {"block": 128, "n_cells": 6, "threshold": 1e9}
    found = BY_NAME["cells"].run(query, key, value, setting, False)
    order, starts = approximate_clusters.sorted_by_cells(key[0], 128, 6, 4)
    cells = np.empty(128, np.int64)
    cells[order] = np.repeat(np.arange(6), np.diff(starts))
    wide = [x[0].astype(np.float64) for x in (query, key, value)]
    moments = Moments.fit(*wide[1:], 6, cells)
    expected = moments.tail(wide[0], D**-0.5)[1]
    np.testing.assert_allclose(found[0], expected, rtol=1e-3, atol=1e-4)


def test_blocks_are_sorted_by_the_nearest_mean():
    x = np.random.default_rng(3).standard_normal((70, 3)).astype(np.float32)
    order, starts = approximate_clusters.sorted_by_cells(x, 32, 4, 3)
    assert np.array_equal(np.sort(order), np.arange(70))
    assert np.array_equal(order // 32, np.sort(order // 32))
    assert starts[-1] == 70
    for start, stop in pairwise(starts):
        assert np.all(np.diff(order[start:stop]) > 0)
    assert np.all(starts[:-1].reshape(3, 4)[:, 0] == [0, 32, 64])


def test_merged_parts_are_attention_to_all_their_keys():
    query, key, value = (x[0].astype(np.float64) for x in heads(h=1))
    scores = query @ key.T
    parts = []
    for s in (slice(0, 40), slice(40, N)):
        weights = np.exp(scores[:, s])
        total = weights.sum(axis=1)
        parts.append((weights @ value[s] / total[:, None], np.log(total)))
    nothing = (np.zeros_like(parts[0][0]), np.full(N, -np.inf))
    out, log_total = approximate_clusters.merged([*parts, nothing])
    weights = np.exp(scores)
    np.testing.assert_allclose(log_total, np.log(weights.sum(axis=1)))
    expected = weights @ value / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


# Keys


def test_the_error_is_the_mean_of_the_relative_ones():
    expected = np.array([[[3.0, 4.0], [1.0, 0.0]]])
    found = np.array([[[3.0, 4.5], [1.0, 0.3]]])
    np.testing.assert_allclose(approximate_keys.errors(found, expected), [(0.1 + 0.3) / 2])


@CAUSAL
def test_exact_rows_are_those_of_the_reference(is_causal):
    given, rows = heads(), np.array([0, 5, 60])
    found = approximate_keys.exact(*given, rows, is_causal)
    np.testing.assert_allclose(found, exact(given, is_causal)[:, rows], rtol=1e-9)


@pytest.mark.parametrize("kind", approximate_keys.TOYS)
def test_toys_differ_between_validation_and_test(kind):
    case = approximate_keys.toy(kind, 129, 2)
    one, other = case.draw(approximate_keys.VALIDATION), case.draw(approximate_keys.TEST)
    again = case.draw(approximate_keys.TEST)
    for x, y, same in zip(one, other, again, strict=True):
        assert (x.shape, x.dtype) == ((2, 129, 64), np.float32)
        assert np.isfinite(x).all()
        assert not np.array_equal(x, y)
        assert np.array_equal(y, same)


@pytest.mark.parametrize(
    ("kind", "most", "least"), [("peaked", approximate_toys.GROUP, 0.35), ("heavy-tailed", 20, 0.9)]
)
def test_few_keys_hold_much_of_the_weight(kind, most, least):
    query, key, _ = (x[0].astype(float) for x in approximate_toys.draw(kind, 2048, 1))
    held = np.sort(attention_weights(query, key), axis=1)[:, -most:].sum(axis=1).mean()
    assert least < held < 2 * least


def test_an_unknown_toy_is_refused():
    with pytest.raises(ValueError, match=r"kind must be one of random, .*, got 'odd'"):
        approximate_toys.draw("odd", 17, 1)


def test_concentration_counts_keys():
    given = heads(n=64, h=1)
    case = approximate_keys.Case("mine", 64, False, lambda part: given)
    (row,) = approximate_model.concentration(case)
    weights = -np.sort(-attention_weights(*given[:2])[0, 32:], axis=1)
    for share in (50, 90, 99):
        needed = [np.searchsorted(np.cumsum(w), share / 100) + 1 for w in weights]
        assert row[f"keys_{share}"] == np.median(needed)
    assert row["best_0.1"] > 0
    assert row["window_256"] is None


# Choices


def rows_of(method, n, *given):
    about = {"method": method, "n": n, "causal": True, "keys": "a", "exact_seconds": 1.0}
    return [
        about | {"set_to": {"k": k}, "error": error, "seconds": seconds}
        for k, error, seconds in given
    ]


def test_the_quickest_that_reaches_the_target_is_chosen():
    rows = rows_of("tables", 8, (1, 0.5, 1.0), (2, 0.09, 3.0), (3, 0.01, 9.0))
    rows += rows_of("tables", 9, (1, 0.7, 1.0), (2, 0.3, 3.0), (3, 0.2, 9.0), (4, 0.9, 0.1))
    found = {
        (n, row["target"]): (row["set_to"]["k"], row["tried"])
        for n in (8, 9)
        for row in approximate_speed.choices(rows, n)
    }
    assert found[8, 0.1] == (2, 3)
    assert found[8, 0.02] == (3, 3)
    # none reaches it, and the nearest takes nine times as long as exact attention
    assert found[9, 0.1] == (2, 4)


def test_no_rival_has_fewer_settings_than_a_method_of_ours():
    """A window has one number to choose, and FAVOR+ two."""
    sizes = {method.name: len(method.settings) for method in METHODS}
    most = max(sizes[name] for name in ("cells", "tables"))
    few = {name for name, size in sizes.items() if size < most}
    exact_or_one = {"SDPA", "packed", "window", "window + sinks", "FAVOR+"}
    assert few <= exact_or_one | {"cells", "tables"}


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("Reformer", {"chunk": 8, "n_rounds": 2}),
        ("HyperAttention", {"block": 12, "n_samples": 12, "least": 12}),
        ("MagicPIG", {"n_bits": 3, "n_tables": 6, "window": 4, "n_sinks": 1}),
        ("tables", {"n_tables": 3, "n_bits": 3}),
    ],
)
def test_keys_are_hashed_without_their_mean(name, setting):
    """What all keys share changes no weight, so it must not change what is found."""
    query, key, value = heads()
    moved = key + np.full(D, 3, np.float32)
    found = BY_NAME[name].run(query, key, value, setting, False)
    again = BY_NAME[name].run(query, moved, value, setting, False)
    np.testing.assert_allclose(again, found, atol=1e-4)


def test_each_method_names_its_source_and_what_is_simpler():
    for method in METHODS:
        assert all((method.source, method.does, method.simplified, method.settings))


# Estimators


def drawn(n, n_q, seed=2, d=16):
    rng = np.random.default_rng(seed)
    query, key, value = (rng.standard_normal((m, d)).astype(np.float32) for m in (n_q, n, n))
    return approximate_estimators.Head(query, key + 0.5, value, True)


def test_estimators_reach_their_budget():
    judges = [approximate_estimators._Judge(drawn(900, 40, seed)) for seed in (2, 3)]
    rows = approximate_estimators.compared(*judges, 0.1, 2)
    found = {row["estimator"]: row for row in rows}
    for name, row in found.items():
        assert row["share"] == 0 if name in {"moments alone", "FAVOR+"} else row["share"] > 0.03
        assert row["share"] < 0.3 or name in {"clusters", "cells"}
        assert row["error_low"] <= row["error"] <= row["error_high"]
    assert found["best top-k"]["error"] < found["importance"]["error"] < found["union"]["error"]
    assert found["union + moments"]["error"] < found["importance"]["error"] / 2


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("union", {}),
        ("importance", {"estimator": "importance"}),
        ("duplicates", {"estimator": "duplicates"}),
        ("union + moments", None),
    ],
)
def test_estimates_are_those_of_the_sketch(name, options):
    head, setting = drawn(300, 20), {"n_tables": 6, "bits": 3, "half": 4, "twice": 2}
    judge = approximate_estimators._Judge(head)
    ways = approximate_estimators._of_tables(judge, setting, 0.1, seed=7)
    found = {name: (output, share) for name, output, share in ways}
    centred, query, value = (
        x.astype(np.float64) for x in (head.key - head.key.mean(axis=0), head.query, head.value)
    )
    hash = SimHash.init(7, 16, 6, 3)
    if options is None:
        ours, theirs = (hash.signatures(x)[:, None] for x in (query, centred))
        rows = (ours == theirs[:, 0]).any(axis=-1)
        output, _ = with_cloud(query, centred, value, rows, 1 / 4)
    else:
        one = SketchAttention(hash, seed=7, **options)
        one.update(centred, value)
        output, evidence = one.attention_output(query, return_evidence=True)
        assert found[name][1] == pytest.approx(evidence.candidates.mean() / 300)
    np.testing.assert_allclose(found[name][0], output, rtol=1e-3, atol=1e-4)


def test_a_key_that_meets_twice_is_divided_by_the_chance_of_it():
    head = drawn(60, 5)
    agree = cache_rivals.agreement(head.query, head.key)
    chance = cache_rivals.chances(agree, 6, 3, 2)
    met = [cache_rivals.meetings(SimHash.init(s, 16, 6, 3), *head[:2]) > 1 for s in range(400)]
    np.testing.assert_allclose(np.mean(met, axis=0), chance, atol=0.12)
    assert np.abs(np.mean(met, axis=0) - chance).mean() < 0.02


def test_cells_that_are_all_read_are_exact_and_the_others_count_by_moments():
    head = drawn(300, 20)
    judge = approximate_estimators._Judge(head)
    whole = {n: (o, s) for n, o, s in approximate_estimators._of_cells(judge, {"n_cells": 5}, 2, 0)}
    for output, share in whole.values():
        np.testing.assert_allclose(output, judge.exact, rtol=1e-4, atol=1e-5)
        assert share == pytest.approx(1 + 5 / 300)
    one = approximate_estimators._of_cells(judge, {"n_cells": 1}, 0, 0)
    (_, cells, _) = list(one)[1]
    assert np.isfinite(cells).all()


def test_the_record_has_every_rival():
    path = Path(__file__).parents[1] / "book/data/approximate.cpu.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    assert {row["method"] for row in record["rivals"]} >= set(BY_NAME)
    assert {row["method"] for row in record["settings"]} >= set(BY_NAME) - {"SDPA", "packed"}
    for row in record["self_attention"]:
        assert row["error_low"] <= row["error"] * (1 + 1e-9) <= row["error_high"] * (1 + 1e-8)
