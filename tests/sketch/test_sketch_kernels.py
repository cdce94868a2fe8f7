"""The compiled loops of a sketch against dictionaries and plain loops in float64."""

import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba")

from attnbook.arrays.threads import in_parts, n_threads_for
from attnbook.compilers.jit import compile_loops
from attnbook.hashing.numba_signatures import all_finite, signatures
from attnbook.hashing.robin_hood import draw_mixer, find_slot, home_slot, slots_for
from attnbook.hashing.simhash import SimHash
from attnbook.hashing.stable_hash import StableHash
from attnbook.sketch.bucket_index import BucketIndex
from attnbook.sketch.numba_build import build_tables
from attnbook.sketch.numba_candidates import FEW
from attnbook.sketch.numba_chance import RetrievalTable
from attnbook.sketch.numba_query import WINDOW, answer

FREE = -1


def make_hash(kind, d, n_tables, n_projections, dtype, seed=0):
    if kind == "simhash":
        drawn = SimHash.init(seed, d, n_tables, n_projections)
        return SimHash(drawn.directions.astype(dtype))
    drawn = StableHash.init(seed, d, 1.7, n_tables, n_projections)
    return StableHash(drawn.directions.astype(dtype), drawn.offsets.astype(dtype), drawn.width)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["stable", "simhash"])
@pytest.mark.parametrize(
    ("n", "d", "n_tables", "n_projections"),
    [(0, 5, 2, 3), (1, 1, 1, 1), (15, 7, 3, 5), (16, 64, 5, 16), (61, 13, 2, 17), (53, 65, 7, 11)],
)
def test_signatures_are_those_of_the_hash(kind, dtype, n, d, n_tables, n_projections):
    hash = make_hash(kind, d, n_tables, n_projections, dtype)
    x = np.random.default_rng(1).standard_normal((n, d)).astype(dtype)
    got = signatures(hash, x, n_threads=1)
    assert got.shape == (n, n_tables)
    assert got.dtype == np.int64
    # in exact arithmetic; a number that rounding may carry over an end may have another code
    along = np.einsum("nd,tkd->ntk", x.astype(float), hash.directions.astype(float))
    if kind == "stable":
        along = (along + hash.offsets.astype(float)) / hash.width
    unsure = (np.abs(along - np.round(along)) < 1e-4).any(axis=-1)
    if kind == "simhash":
        unsure = (np.abs(along) < 1e-4).any(axis=-1)
    assert unsure.mean() < 0.2 if n else True
    np.testing.assert_array_equal(got[~unsure], hash.signatures(x)[~unsure])


@pytest.mark.parametrize("kind", ["stable", "simhash"])
def test_a_signature_depends_on_the_vector_alone(kind):
    hash = make_hash(kind, 11, 3, 5, "float32")
    x = np.random.default_rng(2).standard_normal((37, 11)).astype("float32")
    expected = signatures(hash, x, n_threads=1)
    alone = np.concatenate([signatures(hash, x[i : i + 1]) for i in range(37)])
    np.testing.assert_array_equal(alone, expected)
    many = np.tile(x, (59, 1))
    np.testing.assert_array_equal(signatures(hash, many, n_threads=3), np.tile(expected, (59, 1)))
    wide = np.zeros((37, 22), dtype="float32")
    wide[:, ::2] = x
    np.testing.assert_array_equal(signatures(hash, wide[:, ::2]), expected)
    np.testing.assert_array_equal(signatures(hash, np.asfortranarray(x)), expected)
    fixed = x.copy()
    fixed.flags.writeable = False
    np.testing.assert_array_equal(signatures(hash, fixed), expected)


def test_signatures_of_half_precision_are_computed_in_float32():
    hash = make_hash("stable", 5, 2, 3, "float32")
    x = np.random.default_rng(3).standard_normal((7, 5)).astype("float16")
    np.testing.assert_array_equal(signatures(hash, x), signatures(hash, x.astype("float32")))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["stable", "simhash"])
@pytest.mark.parametrize("row", [0, 15, 16, 18])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e25])
def test_signatures_refuse_what_has_no_code(kind, dtype, row, bad):
    hash = make_hash(kind, 5, 2, 3, dtype)
    x = np.ones((19, 5), dtype=dtype)
    x[row, 3] = bad
    if kind == "simhash" and bad == 1e25:
        np.testing.assert_array_equal(signatures(hash, x), hash.signatures(x))
        return
    with pytest.raises(ValueError, match="x must be finite"):
        signatures(hash, x)


def test_signatures_refuse_other_hashes_and_shapes():
    hash = make_hash("stable", 5, 2, 3, "float32")
    with pytest.raises(TypeError, match="hash must be a SimHash or StableHash, got str"):
        signatures("simhash", np.ones((3, 5)))
    with pytest.raises(ValueError, match=r"x must have shape \(n, 5\) .* got \(3, 7\)"):
        signatures(hash, np.ones((3, 7)))
    with pytest.raises(ValueError, match=r"x must have shape \(n, 5\) .* got \(5,\)"):
        signatures(hash, np.ones(5))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_finite(dtype):
    x = np.random.default_rng(4).standard_normal((71, 131)).astype(dtype)
    x[0, 0], x[1, 1], x[2, 2] = 0, np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal
    assert all_finite(x)
    assert all_finite(x[::3, ::2])
    assert all_finite(x[:0])
    for place in [(0, 0), (70, 130), (35, 77)]:
        for bad in (np.nan, -np.nan, np.inf, -np.inf):
            y = x.copy()
            y[place] = bad
            assert not all_finite(y)
            assert not all_finite(y, n_threads=3)


# ---- building


def check_tables(given, mixer, made):
    """Compare with a dictionary, and check that the maps are Robin Hood tables."""
    order, slots, slot_starts, farthest = made
    n, n_tables = given.shape
    assert order.shape == (n_tables, n)
    assert order.dtype == np.int32
    assert slots.shape == (slot_starts[-1], 3)
    assert farthest == max(0, slots[:, 2].max())
    for t in range(n_tables):
        table = slots[slot_starts[t] : slot_starts[t + 1]]
        rows_of = defaultdict(list)
        for row, signature in enumerate(given[:, t].tolist()):
            rows_of[signature].append(row)
        assert len(table) == slots_for(len(rows_of), 0.75)
        assert set(table[table[:, 2] != FREE, 0].tolist()) == set(rows_of)
        assert np.count_nonzero(table[:, 2] != FREE) == len(rows_of)
        for signature, rows in rows_of.items():
            slot = find_slot(table, mixer, signature)
            start, count = table[slot, 1] >> 31, table[slot, 1] & (2**31 - 1)
            assert order[t, start : start + count].tolist() == rows
        for slot, (key, _, displacement) in enumerate(table.tolist()):
            if displacement != FREE:
                assert (home_slot(key, mixer, len(table)) + displacement) % len(table) == slot
                # no entry is farther from home than one slot more than the one before it
                assert displacement <= table[slot - 1, 2] + 1
        assert (table[table[:, 2] == FREE] == (0, 0, FREE)).all()


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 1009, 2053, 5003])
@pytest.mark.parametrize("n_different", [1, 2, 61, 10**9])
def test_tables_are_those_of_a_dictionary(n, n_different, n_threads):
    rng = np.random.default_rng(5)
    drawn = rng.integers(-(2**63), 2**63 - 1, size=min(n_different, 2 * n + 1))
    given = rng.choice(drawn, size=(n, 2))
    mixer = draw_mixer(rng)
    check_tables(given, mixer, build_tables(given, mixer, n_threads=n_threads))


@pytest.mark.parametrize(
    "hashes",
    [[0], [2**62 - 1], [2**61], [2**61, 2**62 - 1], [0, 1 << 31, 2 << 31, 3 << 31]],
    ids=["all in the first slot", "in the last", "in the middle", "in two", "in neighbours"],
)
@pytest.mark.parametrize("n_threads", [1, 3])
def test_tables_stand_signatures_that_crowd(hashes, n_threads):
    rng = np.random.default_rng(6)
    mixer = np.zeros((8, 256), dtype=np.int64)
    mixer[0] = rng.choice(hashes, size=256)  # a hash that only looks at the lowest byte
    given = rng.integers(-400, 400, size=(2503, 1))
    check_tables(given, mixer, build_tables(given, mixer, n_threads=n_threads))


def test_a_few_large_buckets_among_many_small_ones():
    rng = np.random.default_rng(7)
    given = np.concatenate([rng.integers(0, 3, size=(3001, 2)), rng.integers(0, 10**6, (3001, 2))])
    given = rng.permutation(given)
    mixer = draw_mixer(rng)
    check_tables(given, mixer, build_tables(given, mixer))


def test_signatures_in_any_memory_order_give_the_same_tables():
    given = np.random.default_rng(8).integers(0, 500, size=(997, 3))
    mixer = draw_mixer(np.random.default_rng(9))
    expected = build_tables(given, mixer)
    wide = np.zeros((997, 6), dtype=np.int64)
    wide[:, ::2] = given
    fixed = given.copy()
    fixed.flags.writeable = False
    for other in (np.asfortranarray(given), wide[:, ::2], fixed):
        for a, b in zip(build_tables(other, mixer), expected, strict=True):
            np.testing.assert_array_equal(a, b)


@given(
    st.lists(st.integers(0, 40), max_size=60),
    st.integers(0, 5),
)
def test_tables_of_any_signatures(values, seed):
    given = np.array(values, dtype=np.int64).reshape(-1, 1)
    mixer = draw_mixer(np.random.default_rng(seed))
    mixer[:, ::2] &= 3 << 40  # few different hashes
    check_tables(given, mixer, build_tables(given, mixer))


# ---- queries


def expected_answer(query, key, value, asked, stored, alive, scale, **options):
    """Answer query after query, in float64, from lists of rows."""
    estimator = options.get("estimator", "union")
    cap = options.get("max_bucket") or len(key)
    n_q, n_tables = asked.shape
    mass = np.full(n_q, -np.inf)
    output = np.zeros((n_q, value.shape[1]))
    count, best = np.zeros(n_q, dtype=int), np.full(n_q, -1)
    largest, expected = np.full(n_q, -np.inf), np.full(n_q, -np.inf)
    for i in range(n_q):
        times = {}
        for t in range(n_tables):
            bucket = [r for r in range(len(key)) if alive[r] and stored[r, t] == asked[i, t]]
            for row in bucket[:cap]:
                if options.get("before") is not None and row >= options["before"][i]:
                    continue
                if options.get("allowed") is not None and not options["allowed"][row]:
                    continue
                times[row] = times.get(row, 0) + 1
        scores = {row: scale * math.fsum(query[i] * key[row]) for row in times}
        if options.get("above") is not None:
            scores = {row: s for row, s in scores.items() if s > options["above"][i]}
        if not scores:
            continue
        count[i] = len(scores)
        best[i] = max(scores, key=scores.get)
        largest[i] = max(scores.values())
        mass[i] = math.log(math.fsum(math.exp(s) for s in scores.values()))
        weights = {row: math.exp(s) for row, s in scores.items()}
        if "hash" in options:
            for row in weights:
                p = options["hash"].retrieval_probability(query[i], key[row])
                weights[row] /= float(p)
            expected[i] = math.log(math.fsum(weights.values()))
        if estimator == "union":
            weights = {row: math.exp(s) for row, s in scores.items()}
        elif estimator == "duplicates":
            weights = {row: times[row] * math.exp(s) for row, s in scores.items()}
        total = math.fsum(weights.values())
        for row, weight in weights.items():
            output[i] += weight / total * value[row]
    return mass, output, count, best, largest, expected


def check_answer(got, wanted, dtype):
    mass, output, count, best, largest, expected = wanted
    tolerance = 2e-5 if dtype == "float32" else 1e-11
    close = {"rtol": tolerance, "atol": tolerance}
    np.testing.assert_array_equal(got.count, count)
    np.testing.assert_array_equal(got.best, best)
    np.testing.assert_allclose(got.mass, mass, **close)
    np.testing.assert_allclose(got.output, output, **close)
    np.testing.assert_allclose(got.largest, largest, **close)
    if got.expected is not None:  # a table with linear interpolation
        np.testing.assert_allclose(got.expected, expected, rtol=1e-4, atol=1e-4)
    for x in (got.mass, got.output, got.largest):
        assert x.dtype == dtype
    for x in (got.count, got.best):
        assert x.dtype == np.int64


def make_case(n, n_q, d, d_v, n_tables, n_signatures, dtype, seed=0, n_late=0, n_removed=0):
    """Return query, key, value, signatures of queries and keys, who is alive, and the index."""
    rng = np.random.default_rng(seed)
    query, key = (rng.standard_normal((m, d)).astype(dtype) for m in (n_q, n))
    value = rng.standard_normal((n, d_v)).astype(dtype)
    stored = rng.integers(0, n_signatures, size=(n, n_tables))
    asked = rng.integers(0, n_signatures + 1, size=(n_q, n_tables))  # one that nobody has
    index = BucketIndex(n_tables, seed=seed)
    index.add(stored[: n - n_late])
    index.merge()
    for row in range(n - n_late, n):
        index.add(stored[row : row + 1])
    assert index.flat()["n_side"] == n_late
    removed = rng.choice(n, size=n_removed, replace=False)
    index.remove(removed)
    assert index.flat()["n_dead"] == n_removed
    alive = np.ones(n, dtype=bool)
    alive[removed] = False
    return query, key, value, asked, stored, alive, index


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("estimator", ["union", "duplicates"])
@pytest.mark.parametrize(
    ("n", "n_q", "d", "d_v", "n_tables", "n_signatures"),
    [(1, 3, 1, 1, 1, 1), (61, 7, 5, 3, 3, 11), (97, 37, 64, 64, 5, 13), (211, 71, 13, 17, 4, 23)],
)
def test_answers_are_those_of_a_loop(n, n_q, d, d_v, n_tables, n_signatures, estimator, dtype):
    *arrays, index = make_case(n, n_q, d, d_v, n_tables, n_signatures, dtype)
    query, key, value, asked = arrays[:4]
    got = answer(query, key, value, asked, index.tables, scale=0.3, estimator=estimator)
    check_answer(got, expected_answer(*arrays, 0.3, estimator=estimator), dtype)
    assert got.expected is None


@pytest.mark.parametrize("estimator", ["union", "duplicates", "importance"])
@pytest.mark.parametrize("kind", ["stable", "simhash"])
def test_answers_with_the_chance_to_be_found(kind, estimator):
    *arrays, index = make_case(61, 11, 7, 3, 3, 5, "float64")
    hash = make_hash(kind, 7, 3, 2, "float64")
    got = answer(
        *(*arrays[:4], index.tables),
        scale=0.3,
        estimator=estimator,
        probability=RetrievalTable.of(hash),
    )
    wanted = expected_answer(*arrays, 0.3, estimator=estimator, hash=hash)
    if estimator == "importance":
        np.testing.assert_allclose(got.output, wanted[1], rtol=1e-4, atol=1e-4)
        got = got._replace(output=wanted[1])
    check_answer(got, wanted, "float64")


@given(st.data())
def test_answers_under_every_limit(data):
    draw = data.draw
    n, n_q, n_tables = draw(st.integers(0, 40)), draw(st.integers(0, 5)), draw(st.integers(1, 4))
    n_late = draw(st.integers(0, n))
    case = make_case(
        *(n, n_q, 3, 2, n_tables, draw(st.integers(1, 9)), "float64"),
        seed=draw(st.integers(0, 99)),
        n_late=n_late,
        n_removed=draw(st.integers(0, n)),
    )
    *arrays, index = case
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    options = {"estimator": draw(st.sampled_from(["union", "duplicates"]))}
    if draw(st.booleans()):
        options["max_bucket"] = draw(st.integers(1, 5))
    if draw(st.booleans()):
        options["before"] = rng.integers(0, n + 2, size=n_q)
    if draw(st.booleans()):
        options["above"] = rng.standard_normal(n_q)
    if draw(st.booleans()):
        options["allowed"] = rng.random(n) < 0.6
    got = answer(*arrays[:4], index.tables, scale=0.7, **options)
    check_answer(got, expected_answer(*arrays, 0.7, **options), "float64")


@pytest.mark.parametrize("n", [FEW - 1, FEW, FEW + 1, FEW + 2, WINDOW, 2 * WINDOW + 1, 1511])
@pytest.mark.parametrize("max_bucket", [None, FEW])
def test_one_bucket_holds_everything(n, max_bucket):
    """Identical keys, found in every table: each counts once."""
    key = np.ones((n, 3))
    value = np.arange(2.0 * n).reshape(n, 2)
    index = BucketIndex(3)
    index.add(np.full((n, 3), -5))
    query = np.array([[1.0, 2.0, 3.0]] * 5)
    asked = np.full((5, 3), -5)
    got = answer(query, key, value, asked, index.tables, scale=0.5, max_bucket=max_bucket)
    m = min(n, max_bucket or n)
    np.testing.assert_array_equal(got.count, m)
    np.testing.assert_array_equal(got.best, 0)
    np.testing.assert_allclose(got.mass, 3.0 + math.log(m))
    np.testing.assert_allclose(got.output, np.tile(value[:m].mean(axis=0), (5, 1)))


def test_many_candidates_in_several_tables():
    *arrays, index = make_case(1009, 41, 5, 3, 3, 2, "float64", n_late=101, n_removed=53)
    for estimator in ("union", "duplicates"):
        got = answer(*arrays[:4], index.tables, scale=0.3, estimator=estimator)
        check_answer(got, expected_answer(*arrays, 0.3, estimator=estimator), "float64")


def test_nothing_to_ask_and_nothing_to_find():
    flat = BucketIndex(2).tables
    empty, query = np.zeros((0, 5), dtype="float32"), np.ones((3, 5), dtype="float32")
    got = answer(query, empty, empty[:, :4], np.zeros((3, 2), dtype=np.int64), flat, scale=1.0)
    np.testing.assert_array_equal(got.output, np.zeros((3, 4)))
    np.testing.assert_array_equal(got.mass, [-np.inf] * 3)
    np.testing.assert_array_equal(got.largest, [-np.inf] * 3)
    np.testing.assert_array_equal(got.count, [0] * 3)
    np.testing.assert_array_equal(got.best, [-1] * 3)
    got = answer(empty, query, query, np.zeros((0, 2), dtype=np.int64), flat, scale=1.0)
    assert got.output.shape == (0, 5)
    assert got.mass.shape == got.count.shape == (0,)


def test_large_scores_do_not_overflow():
    *arrays, index = make_case(61, 11, 5, 3, 2, 3, "float32")
    query, key, value, asked, stored, alive = arrays
    query = query * np.float32(300)
    arrays = (query, key, value, asked, stored, alive)
    got = answer(query, key, value, asked, index.tables, scale=1.0)
    assert np.abs(got.largest[got.count > 0]).max() > 500
    shift = max(np.abs(got.largest[got.count > 0]))
    wanted = expected_answer(*arrays, 1.0 / shift)  # only what needs no exponential
    np.testing.assert_array_equal(got.best, wanted[3])
    assert np.isfinite(got.output).all()
    found = got.count > 0
    assert (got.mass[found] >= got.largest[found]).all()


def test_a_product_of_minus_infinity_has_no_weight():
    index = BucketIndex(1)
    index.add(np.array([[7], [7]]))
    asked = np.array([[7]])
    low = np.array([[-1e200], [-1e250]])
    got = answer(np.array([[1e200]]), low, low, asked, index.tables, scale=1.0)
    assert (got.mass[0], got.largest[0], got.best[0], got.output[0, 0]) == (-np.inf, -np.inf, -1, 0)
    value = np.array([[3.0], [5.0]])
    mixed = answer(np.array([[1e200]]), low * [[0], [1]], value, asked, index.tables, scale=1.0)
    assert (mixed.mass[0], mixed.best[0], mixed.output[0, 0]) == (0, 0, 3)


def test_threads_and_kinds_of_arrays_change_nothing():
    *arrays, index = make_case(211, 331, 5, 3, 3, 17, "float32", n_late=31, n_removed=13)
    query, key, value, asked, *_ = arrays
    limits = {"before": np.arange(331) % 211, "allowed": np.arange(211) % 3 > 0}
    wanted = answer(query, key, value, asked, index.tables, scale=0.3, n_threads=1, **limits)
    wide = np.zeros((211, 6), dtype="float32")
    wide[:, ::2] = value
    fixed = query.copy()
    fixed.flags.writeable = False
    others = fixed, np.asfortranarray(key), wide[:, ::2], np.asfortranarray(asked)
    got = answer(*others, index.tables, scale=0.3, n_threads=3, **limits)
    for a, b in zip(got[:5], wanted[:5], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", ["stable", "simhash"])
@pytest.mark.parametrize(("n_tables", "n_projections"), [(1, 1), (5, 16), (75, 14), (1000, 1)])
def test_the_table_of_chances(kind, n_tables, n_projections):
    d = 3
    hash = make_hash(kind, d, n_tables, n_projections, "float64")
    key = np.zeros((400, d))
    if kind == "stable":
        key[:, 0] = np.concatenate([[0.0], np.geomspace(1e-9, 1e3, 399)])
        query = np.zeros((400, d))
    else:
        angle = np.linspace(0, math.pi - 1e-3, 400)
        key[:, 0], key[:, 1] = 5 * np.cos(angle), 5 * np.sin(angle)
        query = np.tile([0.3, 0.0, 0.0], (400, 1))
    index = BucketIndex(1)
    index.add(np.arange(400).reshape(-1, 1))
    table = RetrievalTable.of(hash)
    asked = np.arange(400).reshape(-1, 1)
    got = answer(query, key, key, asked, index.tables, scale=0.0, probability=table)
    chance = hash.retrieval_probability(query, key)
    told = chance > 1e-300
    assert told.sum() > 250
    np.testing.assert_allclose(np.exp(-got.expected)[told], chance[told], rtol=2e-5)
    # where it underflows, the weight is the largest that is safe
    never = np.zeros((1, d))
    never[0, 0] = 1e300 if kind == "stable" else -1.0
    got = answer(never, np.ones((1, d)) * [1, 0, 0], key[:1], asked[:1], index.tables, scale=0.0,
                 probability=table._replace(n_projections=60))  # fmt: skip
    assert got.expected == pytest.approx(-math.log(np.finfo(float).smallest_normal))
    at_zero = answer(query[:1] * 0, key[:1] * 0, key[:1], asked[:1], index.tables, scale=0.0,
                     probability=table)  # fmt: skip
    wanted = hash.retrieval_probability(np.zeros(d), np.zeros(d))
    np.testing.assert_allclose(np.exp(-at_zero.expected), wanted, rtol=1e-6)


def test_answer_refuses_estimators_it_cannot_make():
    *arrays, index = make_case(7, 3, 5, 3, 2, 3, "float32")
    with pytest.raises(ValueError, match="estimator must be one of"):
        answer(*arrays[:4], index.tables, scale=1.0, estimator="mean")
    with pytest.raises(ValueError, match="probability must be a RetrievalTable"):
        answer(*arrays[:4], index.tables, scale=1.0, estimator="importance")


def test_loops_compile_where_no_machine_code_can_be_kept():
    made = {}
    exec(compile("def double(x):\n    return 2 * x", "in no folder", "exec"), made)
    assert compile_loops(made["double"])(3) == 6


# ---- threads


@pytest.mark.parametrize("n_threads", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [0, 1, 4, 17])
def test_parts_cover_everything_once(n, n_threads):
    seen = []
    in_parts(lambda start, stop, part: seen.extend(range(start, stop)), n, n_threads)
    assert sorted(seen) == list(range(n))


def test_an_error_in_a_part_is_raised():
    def fail(start, stop, part):
        if part == 1:
            raise RuntimeError("in part 1")

    with pytest.raises(RuntimeError, match="in part 1"):
        in_parts(fail, 10, 2)


def test_a_part_of_parts_does_not_wait_for_itself():
    seen = []

    def work(start, stop, part):
        in_parts(lambda a, b, _: seen.extend(range(start + a, start + b)), stop - start, 2)

    in_parts(work, 23, 2)
    assert sorted(seen) == list(range(23))


def test_number_of_threads(monkeypatch):
    assert n_threads_for(0) == 1
    assert n_threads_for(5, 7) == 7
    assert n_threads_for(599, worth=300) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert n_threads_for(10**9) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    assert n_threads_for(10**9) == n_threads_for(10**10) >= 1
