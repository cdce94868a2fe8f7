"""Plans keep their promise, and what they predict is what happens."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbook.sketch import Costs, Plan, SketchAttention, StableHash, plan
from attnbook.sketch.bucket_index import BucketIndex


def test_the_plan_of_the_sources():
    chosen = plan(n_projections=1)
    assert chosen == Plan(1_000_000, 0.01, 0.5, 5, 1, 1.0, 0.75)
    assert chosen.n_tables == math.ceil(math.log(1 / chosen.delta))
    assert chosen.n_slots == 4_000_000
    assert chosen.width == 2 * chosen.d_avg
    assert chosen.miss_probability(0.5) == pytest.approx(0.00907, abs=5e-6)
    assert chosen.retrieval_probability(0.5) == pytest.approx(1 - 0.00907, abs=5e-6)


def test_a_plan_without_a_sample_says_how_many_far_keys_it_reads():
    with pytest.warns(UserWarning, match="Give sample, some hundred of the keys") as told:
        chosen = plan(10_000)
    assert chosen == plan(10_000, n_projections=1)  # which is silent
    assert told[0].filename == __file__
    read = int(
        re.search(r"distance 10 from .* reads ([\d,]+) of", str(told[0].message))[1].replace(
            ",", ""
        )
    )
    rng = np.random.default_rng(0)
    key = rng.standard_normal((10_000, 30))
    key *= 10 / np.linalg.norm(key, axis=1, keepdims=True)
    counts = []
    for seed in range(30):
        hash = chosen.hash(seed, 30)
        met = hash.signatures(key) == hash.signatures(np.zeros((1, 30)))
        counts.append(met.any(1).sum())
    assert read == pytest.approx(np.mean(counts), abs=5 * np.std(counts) / math.sqrt(30))


@given(
    delta=st.floats(1e-9, 0.99),
    d_avg=st.floats(1e-3, 1e3),
    n_tables=st.integers(1, 40),
    n_projections=st.integers(1, 40),
)
def test_every_plan_keeps_its_promise_with_the_least_width(delta, d_avg, n_tables, n_projections):
    chosen = plan(100, delta, d_avg, n_tables, n_projections)

    def missed(width):
        p = StableHash.collision_probability(d_avg, width)
        return (1 - p**n_projections) ** n_tables

    assert missed(chosen.width) <= delta * (1 + 1e-6)
    assert chosen.miss_probability(d_avg / 2) <= delta * (1 + 1e-6)
    if chosen.width != 2 * d_avg:  # that of the sources may be wider than it must
        assert missed(chosen.width * 0.999) > delta


def test_a_single_table_keeps_a_promise_near_the_precision_of_floats():
    chosen = plan(100, 1e-14, n_tables=1, n_projections=1)
    missed = math.sqrt(2 / math.pi) * chosen.d_avg / chosen.width  # 1 - P for near vectors
    assert missed <= 1.1e-14


def test_the_sources_width_gives_way_where_it_breaks_the_promise():
    assert 0.3905**7 > 0.001
    assert plan(delta=0.001, n_tables=7, n_projections=1).width > 1.0
    assert plan(delta=0.001, n_tables=8, n_projections=1).width == 1.0


@pytest.mark.parametrize("n_projections", [1, 2, 32])
def test_a_promise_of_next_to_nothing_has_a_width(n_projections):
    chosen = plan(100, 1 - 1e-16, n_projections=n_projections)
    assert chosen.width > 0
    assert chosen.retrieval_probability(0.5) >= 1e-17


def test_candidates_do_not_depend_on_where_the_keys_lie():
    key = np.random.default_rng(3).standard_normal((200, 16))
    chosen = plan(1000, n_projections=8, d_avg=2.0)
    near, far = chosen.expected_candidates(key), chosen.expected_candidates(key + 1e8)
    assert far == pytest.approx(near, rel=1e-3)
    assert chosen.expected_candidates(key + 1e8, key[:9] + 1e8) == pytest.approx(
        chosen.expected_candidates(key, key[:9]), rel=1e-3
    )


@pytest.mark.parametrize("n_projections", [1, 3, 8])
def test_candidates_and_memory_are_predicted(n_projections):
    rng = np.random.default_rng(0)
    n, d = 2003, 12
    key, query = rng.standard_normal((n, d)), rng.standard_normal((41, d))
    chosen = plan(n, d_avg=1.0, n_projections=n_projections)
    predicted = chosen.expected_candidates(key[:400], query)
    work = chosen.expected_candidates(key[:400], query, distinct=False)
    counts, found = [], []
    for seed in range(6):
        sketch = SketchAttention(chosen.hash(seed, d))
        sketch.update(key)
        _, evidence = sketch.attention_output(query, return_evidence=True)
        counts.append(evidence.candidates.mean())
        found.append(sketch.state.index.counts(sketch.hash.signatures(query)).sum(1).mean())
    for measured, wanted in ((counts, predicted), (found, work)):
        error = np.std(measured) / math.sqrt(6)
        assert np.mean(measured) == pytest.approx(wanted, abs=5 * error + 0.05 * wanted)
    assert work >= predicted
    pytest.importorskip("numba")
    index = BucketIndex(5)
    index.add(chosen.hash(0, d).signatures(key))
    index.merge()
    assert index.memory_bytes <= 1.3 * chosen.memory_bytes + 50_000


def test_other_rows_are_the_queries_by_default():
    sample = np.random.default_rng(0).standard_normal((40, 5))
    chosen = plan(1000, n_projections=2)
    distances = np.linalg.norm(sample[:, np.newaxis] - sample, axis=-1)
    away = distances[~np.eye(40, dtype=bool)]
    wanted = 1000 * np.mean(chosen.retrieval_probability(away))
    assert chosen.expected_candidates(sample) == pytest.approx(wanted)


def test_chances_have_the_dtype_of_the_distances():
    distance = np.array([0.5, 2.0], dtype=np.float32)
    for n_probes in (1, 3):
        assert (
            plan(n_projections=1, n_probes=n_probes).miss_probability(distance).dtype == np.float32
        )


def test_a_choice_has_the_least_expected_work():
    sample = np.random.default_rng(0).standard_normal((60, 64))
    chosen = plan(sample=sample)
    assert chosen.n_tables == 5
    assert 8 < chosen.n_projections <= 32
    few = [plan(n_projections=k).expected_candidates(sample) for k in (1, 4)]
    assert chosen.expected_candidates(sample) < min(few) / 20
    both = plan(n_tables=None, sample=sample)
    assert both.miss_probability(0.5) <= 0.01 + 1e-9
    # near vectors alone leave nothing to choose by, and one table of one projection is least
    close = 1e-3 * sample
    assert plan(10, n_tables=None, sample=close).n_projections == 1


def test_a_plan_shows_what_it_weighed():
    sample = np.random.default_rng(0).standard_normal((60, 64))
    chosen = plan(n_tables=None, n_projections=8, sample=sample)
    assert chosen.considered[0] == chosen
    assert sorted(p.n_tables for p in chosen.considered) == list(range(1, 33))
    totals = [p.predicted.total for p in chosen.considered]
    assert totals == sorted(totals)
    for p in chosen.considered[:3]:
        met = p.expected_candidates(sample, distinct=False)
        assert p.predicted.n_candidates == pytest.approx(met, rel=1e-3)
        assert p.predicted.hashing == pytest.approx(Costs().product * 64 * p.n_tables * 8)
        assert p.predicted.look_ups == Costs().probe * p.n_tables
        assert p.predicted.candidates == pytest.approx(Costs().candidate * met, rel=1e-3)
        assert p.predicted.memory_bytes == p.memory_bytes
    lines = chosen.table(3).splitlines()
    assert len(lines) == 4
    assert lines[1].split()[0] == str(chosen.n_tables)
    assert plan(n_tables=3, sample=sample).predicted.total > 0
    assert plan(n_projections=1).considered == ()


def test_costs_change_the_choice():
    sample = np.random.default_rng(0).standard_normal((60, 64))
    dear = plan(n_tables=None, n_projections=8, sample=sample, costs=Costs(probe=1e5))
    cheap = plan(n_tables=None, n_projections=8, sample=sample, costs=Costs(probe=0, product=0))
    assert dear.n_tables < cheap.n_tables
    with pytest.raises(ValueError, match=r"probe must be finite and at least 0, got -1.0"):
        Costs(probe=-1.0)


def test_probes_are_among_the_choices():
    sample = np.random.default_rng(0).standard_normal((60, 64))
    one = plan(n_tables=2, n_projections=16, sample=sample)
    free = plan(n_tables=2, n_projections=16, n_probes=None, sample=sample)
    assert sorted(p.n_probes for p in free.considered) == [1, 2, 4, 8, 16]
    assert free.n_probes > 1
    assert free.predicted.total < one.predicted.total
    assert free.predicted.look_ups == Costs().probe * 2 * free.n_probes


@pytest.mark.parametrize(
    ("n_probes", "step"), [(1, 1), pytest.param(None, 4, marks=pytest.mark.weekly)]
)
def test_numbers_of_projections_that_are_weighed(n_probes, step):
    sample = np.random.default_rng(0).standard_normal((10, 4))
    chosen = plan(n_probes=n_probes, sample=sample)
    assert {p.n_projections for p in chosen.considered} == set(range(step, 33, step))


def test_memory_may_be_limited():
    sample = np.random.default_rng(0).standard_normal((30, 16))
    free = plan(10**6, n_tables=None, n_projections=16, sample=sample)
    tight = plan(10**6, n_tables=None, n_projections=16, sample=sample, max_bytes=80e6)
    assert tight.memory_bytes <= 80e6 < free.memory_bytes
    with pytest.raises(ValueError, match="max_bytes must allow one plan at least, got 1000"):
        plan(10**6, n_projections=1, max_bytes=1000)


def test_a_plan_for_more_than_int32_rows_can_be_made():
    assert plan(5 * 10**9, n_projections=1).n_slots == 2 * 10**10
    assert plan(5 * 10**9, n_projections=1).memory_bytes > 10**11


def test_samples_of_other_libraries():
    torch = pytest.importorskip("torch")
    sample = np.random.default_rng(0).standard_normal((30, 8))
    chosen = plan(1000, n_projections=4)
    there = chosen.expected_candidates(torch.tensor(sample))
    assert there == pytest.approx(chosen.expected_candidates(sample))


GOOD = np.ones((3, 2))


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"n": 0}, ValueError, "n must be at least 1, got 0"),
        ({"n": 1.5}, TypeError, "n must be an int, got float"),
        ({"delta": 0}, ValueError, "delta must be above 0 and below 1, got 0.0"),
        ({"delta": 1}, ValueError, "delta must be above 0 and below 1, got 1.0"),
        ({"delta": math.nan}, ValueError, "delta must be finite and at least 0, got nan"),
        ({"d_avg": 0}, ValueError, "d_avg must be above 0, got 0.0"),
        ({"n_tables": 0}, ValueError, "n_tables must be at least 1, got 0"),
        ({"n_projections": 0}, ValueError, "n_projections must be at least 1, got 0"),
        ({"n_tables": None}, ValueError, "sample must be given where n_tables, n_projections or"),
        ({"n_probes": None}, ValueError, "sample must be given where n_tables, n_projections or"),
        ({"n_probes": 0}, ValueError, "n_probes must be at least 1, got 0"),
        (
            {"n_projections": 1, "n_probes": 4},
            ValueError,
            "n_probes must be at most 3**n_projections, got 4",
        ),
        ({"costs": (1, 2, 3)}, TypeError, "costs must be Costs, got tuple"),
        ({"n_tables": None, "sample": GOOD[:1]}, ValueError, "sample must have shape (s, d) with"),
        ({"n_tables": None, "sample": GOOD[0]}, ValueError, "sample must have shape (s, d) with"),
        (
            {"n_tables": None, "sample": GOOD, "queries": GOOD[:, :1]},
            ValueError,
            "queries must have shape (s, d) with s >= 1 and one d, got (3, 1)",
        ),
        ({"n_tables": None, "sample": GOOD * math.nan}, ValueError, "sample and queries must be f"),
        ({"n_tables": None, "sample": [[1.0]]}, TypeError, "sample must be an array"),
        ({"max_bytes": -1}, ValueError, "max_bytes must be finite and at least 0, got -1.0"),
    ],
)
def test_arguments_are_checked(arguments, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        plan(**arguments)


def test_several_probes_take_at_most_39_codes():
    sample = np.random.default_rng(0).standard_normal((20, 8))
    widths = [plan(1000, n_projections=k, n_probes=2).width for k in (38, 39)]
    assert 0.9 < widths[0] / widths[1] < 1
    with pytest.raises(ValueError, match=r"^n_projections must be at most 39 with several probes"):
        plan(1000, n_projections=40, n_probes=2)
    assert plan(1000, n_projections=40, n_probes=None, sample=sample).n_probes == 1


def test_the_chance_of_probes_falls_on_far_away():
    chosen = plan(1000, n_projections=2, n_probes=4)
    far = chosen.width * np.array([31.9, 32.1, 320.0, np.inf])
    near, at, away, never = chosen.retrieval_probability(far)
    assert near == pytest.approx(at, rel=0.03)
    assert away == pytest.approx(at / 100, rel=1e-2)  # as 1/D for each of two codes
    assert never == 0
    assert chosen.retrieval_probability(far[2]) == away
    for wrong in (-5.0, float("nan"), True, "near"):
        with pytest.raises((TypeError, ValueError), match=r"^distance must be"):
            chosen.retrieval_probability(wrong)


@pytest.mark.parametrize(("delta", "k"), [(1e-4, 39), (1e-6, 32), (1e-6, 16), (0.01, 8)])
def test_plans_with_several_probes_keep_small_promises(delta, k):
    chosen = plan(1000, delta, 0.5, n_tables=1, n_projections=k, n_probes=2)
    one = plan(1000, delta, 0.5, n_tables=1, n_projections=k)
    assert chosen.width <= one.width
    if chosen.width == one.width:  # the table of chances has none so near 1
        assert one.miss_probability(0.5) <= 1.001 * delta
    else:
        assert chosen.miss_probability(0.5) <= 1.1 * delta
