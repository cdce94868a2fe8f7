"""SimHash, the p-stable hash, lifting and given hashes against loops and simulation."""

import itertools
import math
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbook.hashing import CrossPolytopeHash
from attnbook.sketch import GivenHash, LiftedHash, SimHash, StableHash, lift_keys, lift_queries

D, TABLES, PROJECTIONS = 7, 3, 5


def points(seed=0, shape=(11, D)):
    return np.random.default_rng(seed).standard_normal(shape)


# Codes and signatures, number by number.


HASHES = {
    "signs": lambda d, n_tables, n_projections: SimHash.init(0, d, n_tables, n_projections),
    "stable": lambda d, n_tables, n_projections: StableHash.init(
        1, d, 1.7, n_tables, n_projections
    ),
}
kinds = pytest.mark.parametrize("kind", HASHES)
SHAPES = [
    (0, 5, 2, 3),
    (1, 1, 1, 1),
    (15, 7, 3, 5),
    (16, 64, 5, 16),
    (61, 13, 2, 17),
    (53, 65, 7, 11),
]


def codes_of(hash, x):
    """Return the codes by loops in float64, and where rounding may carry one over an end."""
    n, (n_tables, n_projections, _) = len(x), hash.directions.shape
    numbers = np.empty((n, n_tables, n_projections))
    for i, t, j in np.ndindex(numbers.shape):
        numbers[i, t, j] = math.fsum(x[i].astype(float) * hash.directions[t, j].astype(float))
        if isinstance(hash, StableHash):
            numbers[i, t, j] = (numbers[i, t, j] + float(hash.offsets[t, j])) / hash.width
    if isinstance(hash, SimHash):
        return (numbers >= 0).astype(int), np.abs(numbers) < 1e-4
    return np.floor(numbers).astype(int), np.abs(numbers - np.round(numbers)) < 1e-4


def joined(hash, codes):
    """Return the codes of each table joined by Python's own integers, modulo 2**64."""
    multipliers = [2**j for j in range(hash.n_projections)]
    if isinstance(hash, StableHash):
        multipliers = [int(m) for m in hash.multipliers]
        assert multipliers[0] == 1
        assert all(m % 2 for m in multipliers)
    joined = [
        [sum(int(c) * m for c, m in zip(table, multipliers, strict=True)) for table in row]
        for row in codes
    ]
    return np.array([[x % 2**64 for x in row] for row in joined], dtype=np.uint64).astype(np.int64)


def check_signatures(hash, x, signatures):
    """Compare signatures with the loops, where rounding does not decide."""
    codes, unsure = codes_of(hash, x)
    sure = ~unsure.any(axis=-1)
    assert not len(x) or sure.mean() > 0.8
    assert signatures.dtype == np.int64
    assert signatures.shape == (len(x), hash.n_tables)
    expected = joined(hash, codes).reshape(signatures.shape)
    np.testing.assert_array_equal(signatures[sure], expected[sure])


@kinds
@pytest.mark.parametrize("shape", SHAPES)
def test_signatures_are_those_of_a_loop(library, kind, shape):
    n, d, n_tables, n_projections = shape
    hash, x = HASHES[kind](d, n_tables, n_projections), points(shape=(n, d))
    here = library.place(hash)
    check_signatures(hash, x, library.numpy(here.signatures(library.array(x))))
    codes, unsure = codes_of(hash, x)
    got = library.numpy(here.codes(library.array(x)))
    np.testing.assert_array_equal(got[~unsure], codes[~unsure])
    assert str(here.signatures(library.array(x)).dtype).endswith("int64")
    assert (here.d, here.n_tables, here.n_projections) == (d, n_tables, n_projections)


@kinds
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_compiled_signatures_are_those_of_a_loop(kind, dtype, shape):
    pytest.importorskip("numba")
    from attnbook.hashing.numba_signatures import signatures

    n, d, n_tables, n_projections = shape
    hash = HASHES[kind](d, n_tables, n_projections).to(dtype=dtype)
    x = points(shape=(n, d)).astype(dtype)
    check_signatures(hash, x, signatures(hash, x, n_threads=1))


@kinds
def test_a_compiled_signature_depends_on_the_vector_alone(kind):
    pytest.importorskip("numba")
    from attnbook.hashing.numba_signatures import signatures

    hash, x = HASHES[kind](11, 3, 5).to(dtype="float32"), points(shape=(37, 11)).astype("float32")
    expected = signatures(hash, x, n_threads=1)
    alone = np.concatenate([signatures(hash, x[i : i + 1]) for i in range(37)])
    np.testing.assert_array_equal(alone, expected)
    many = signatures(hash, np.tile(x, (59, 1)), n_threads=3)
    np.testing.assert_array_equal(many, np.tile(expected, (59, 1)))
    wide, fixed = np.zeros((37, 22), dtype="float32"), x.copy()
    wide[:, ::2] = x
    fixed.flags.writeable = False
    for same in (wide[:, ::2], np.asfortranarray(x), fixed):
        np.testing.assert_array_equal(signatures(hash, same), expected)
    half = x.astype("float16")
    for hashed in (signatures, type(hash).signatures):
        wide_too = hashed(hash, half.astype("float32"))
        np.testing.assert_array_equal(hashed(hash, half), wide_too)


@kinds
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("row", [0, 15, 16, 18])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e25])
def test_vectors_without_a_code_are_refused(kind, dtype, row, bad):
    pytest.importorskip("numba")
    from attnbook.hashing.numba_signatures import signatures

    hash, x = HASHES[kind](5, 2, 3).to(dtype=dtype), np.ones((19, 5), dtype=dtype)
    x[row, 3] = bad
    if kind == "signs" and bad == 1e25:
        np.testing.assert_array_equal(signatures(hash, x), hash.signatures(x))
        return
    for hashed in (signatures, type(hash).signatures):
        with pytest.raises(ValueError, match=r"x must be (finite|within 2\*\*62 widths)"):
            hashed(hash, x)


def test_compiled_signatures_refuse_other_hashes_and_shapes():
    pytest.importorskip("numba")
    from attnbook.hashing.numba_signatures import signatures

    with pytest.raises(TypeError, match=r"hash must be one of SimHash, .* got str"):
        signatures("simhash", np.ones((3, 5)))
    for shape in ((3, 8), (5,)):
        with pytest.raises(ValueError, match=r"x must have shape \(n, 7\) .* got \("):
            signatures(SimHash.init(0, D), np.ones(shape))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_finite(dtype):
    pytest.importorskip("numba")
    from attnbook.hashing.numba_signatures import all_finite

    x = points(shape=(71, 131)).astype(dtype)
    x[0, 0], x[1, 1], x[2, 2] = 0, np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal
    for finite in (x, x[::3, ::2], x[:0]):
        assert all_finite(finite)
    for place, bad in itertools.product([(0, 0), (70, 130), (35, 77)], (np.nan, np.inf, -np.inf)):
        y = x.copy()
        y[place] = bad
        assert not all_finite(y)
        assert not all_finite(y, n_threads=3)


def test_any_leading_axes():
    x = points(shape=(2, 3, 4, D))
    for hash in (SimHash.init(0, D, 2, 3), StableHash.init(0, D, 1.0, 2, 3)):
        assert hash.codes(x).shape == (2, 3, 4, 2, 3)
        assert hash.signatures(x).shape == (2, 3, 4, 2)
        np.testing.assert_array_equal(hash.signatures(x)[1, 2, 3], hash.signatures(x[1, 2, 3]))
        assert hash.signatures(x[:0]).shape == (0, 3, 4, 2)


def test_63_bits_fit_and_64_do_not():
    hash = SimHash(np.ones((1, 63, 2)))
    assert hash.signatures(np.ones((1, 2)))[0, 0] == 2**63 - 1
    assert hash.signatures(-np.ones((1, 2)))[0, 0] == 0
    with pytest.raises(ValueError, match=r"at most 63 projections per table.*64 bits, got 64"):
        SimHash(np.ones((1, 64, 2)))


def test_signatures_of_stable_hashes_wrap_without_a_warning(library):
    hash = library.place(StableHash.init(0, D, 1e-12, 1, 16))
    signatures = library.numpy(hash.signatures(library.array(points())))
    assert len(set(signatures.ravel().tolist())) == 11
    assert signatures.min() < 0 < signatures.max()


def test_different_codes_have_different_signatures():
    hash, x = StableHash.init(0, 4, 0.5, 1, 8), points(shape=(20_000, 4))
    codes = {tuple(row) for row in hash.codes(x)[:, 0].tolist()}
    assert len(codes) == len(set(hash.signatures(x).ravel().tolist()))


# Probabilities.


def test_simhash_probability_by_simulation():
    for angle in (0.0, 0.3, 1.2, 2.5, math.pi):
        x = np.array([[1.0, 0.0]])
        y = np.array([[math.cos(angle), math.sin(angle)]])
        hash = SimHash.init(0, 2, 40_000, 1)
        share = np.mean(hash.signatures(x) == hash.signatures(3 * y))
        p = SimHash.collision_probability(angle)
        assert share == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / 40_000) + 1e-9)
        assert p == pytest.approx(1 - angle / math.pi)


def test_stable_probability_by_simulation_and_by_integration():
    x, direction = points(shape=(1, D)), points(2, (1, D))
    direction /= np.linalg.norm(direction)
    hash = StableHash.init(0, D, 2.0, 40_000, 1)
    for distance in (0.0, 0.1, 1.0, 2.0, 9.0):
        share = np.mean(hash.signatures(x) == hash.signatures(x + distance * direction))
        p = StableHash.collision_probability(distance, 2.0)
        assert share == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / 40_000) + 1e-9)
        if distance:
            t = (np.arange(200_000) + 0.5) / 200_000 * 2.0
            density = 2 / (math.sqrt(2 * math.pi) * distance) * np.exp(-((t / distance) ** 2) / 2)
            assert p == pytest.approx(np.mean(density * (1 - t / 2.0)) * 2.0, abs=1e-8)


def test_probabilities_of_arrays_in_every_library(library):
    distance = np.array([0.0, 1e-30, 0.5, 1.0, 7.0, 1e30, math.inf])
    got = StableHash.collision_probability(library.array(distance), 1.5)
    wanted = [StableHash.collision_probability(c, 1.5) for c in distance.tolist()]
    np.testing.assert_allclose(library.numpy(got), wanted, rtol=1e-12)
    assert wanted[:2] == [1, 1]
    assert wanted[-1] == 0
    angle = library.array(np.array([0.0, 1.0]))
    got = library.numpy(SimHash.collision_probability(angle))
    np.testing.assert_allclose(got, [1, 1 - 1 / math.pi])


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1e-3, 1e3))
def test_nearer_vectors_meet_more_often(a, b, width):
    near, far = sorted((a, b))
    p = [StableHash.collision_probability(c, width) for c in (near, far)]
    assert 0 <= p[1] <= p[0] <= 1


@pytest.mark.parametrize("kind", ["signs", "stable"])
def test_retrieval_probability_by_simulation(library, kind):
    query, key = points(0, (1, D)), points(1, (3, D))
    key[0] = query[0] + 0.3

    def drawn(n_tables):
        if kind == "signs":
            return SimHash.init(5, D, n_tables, 2)
        return StableHash.init(5, D, 4.0, n_tables, 2)

    many, hash = drawn(3 * 8000), library.place(drawn(3))
    same = (many.signatures(query) == many.signatures(key)).reshape(3, 8000, 3)
    share = same.any(-1).mean(-1)
    got = hash.retrieval_probability(library.array(query), library.array(key))
    np.testing.assert_allclose(library.numpy(got), share, atol=4 * 0.5 / math.sqrt(8000))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    "hash",
    [SimHash.init(0, 3), StableHash.init(0, 3, 1.0), CrossPolytopeHash.init(0, 3)],
    ids=lambda hash: type(hash).__name__,
)
def test_no_vector_without_a_place_is_found(hash, bad):
    x, y = np.ones((1, 3)), np.array([[0.0, bad, 1.0]])
    with pytest.raises(ValueError, match=r"^key must be finite, got NaN or infinity$"):
        hash.retrieval_probability(x, y)
    with pytest.raises(ValueError, match=r"^query must be finite, got NaN or infinity$"):
        hash.retrieval_probability(y, x)


def test_small_chances_keep_their_digits():
    hash = StableHash.init(0, 2, 1.0, 5, 16)
    query, key = np.zeros((1, 2), dtype=np.float32), np.full((1, 2), 20, dtype=np.float32)
    got = hash.retrieval_probability(query, key)
    exact = 5 * StableHash.collision_probability(20 * math.sqrt(2), 1.0) ** 16
    assert got[0] == pytest.approx(exact, rel=1e-3)
    assert 0 < got[0] < 1e-20


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_probabilities_of_vectors_whose_squares_are_no_floats(dtype):
    x, y = np.array([[3, 4.0]], dtype=dtype), np.array([[4, -3.0]], dtype=dtype)
    signs, strips = (
        hash.to(dtype=dtype)
        for hash in (SimHash.init(0, 2, 5, 8), StableHash.init(0, 2, 9.0, 5, 8))
    )
    for factor in (1, *([1e-30, 1e30] if dtype == "float32" else [1e-200, 1e200])):
        large = factor * x
        assert signs.retrieval_probability(large, large)[0] == pytest.approx(1, abs=1e-6)
        right = signs.retrieval_probability(large, y)[0]
        assert right == pytest.approx(1 - (1 - 0.5**8) ** 5, rel=1e-5)
        stretched = StableHash(strips.directions, strips.offsets, 9.0 * factor)
        got = stretched.retrieval_probability(large, factor * y)[0]
        assert got == pytest.approx(strips.retrieval_probability(x, y)[0], rel=1e-5)
        np.testing.assert_allclose(lift_queries(large), [[0.6, 0.8, 0]], rtol=1e-6)
        lifted = lift_keys(np.concatenate([large, factor * y / 2]))
        np.testing.assert_allclose(
            lifted, [[0.6, 0.8, 0], [0.4, -0.3, math.sqrt(0.75)]], rtol=1e-6, atol=1e-3
        )


def test_far_vectors_meet_with_a_chance_of_one_over_their_distance():
    for dtype, distance in (("float32", 1e23), ("float64", 1e23), ("float64", 1e200)):
        far = StableHash.collision_probability(np.array([distance], dtype=dtype), 1.0)[0]
        assert far * math.sqrt(2 * math.pi) == pytest.approx(1 / distance, rel=1e-6)
    assert StableHash.collision_probability(math.inf, 1.0) == 0


def test_a_width_of_any_kind_becomes_a_float():
    strips = StableHash.init(0, D, 2.0, TABLES, PROJECTIONS).to(dtype="float32")
    x = points().astype(np.float32)
    for width in (2, np.float64(2), np.float32(2), Fraction(2)):
        same = StableHash(strips.directions, strips.offsets, width)
        assert type(same.width) is float
        np.testing.assert_array_equal(same.signatures(x), strips.signatures(x))
        assert StableHash.collision_probability(Fraction(1), width) == pytest.approx(
            0.6095, abs=5e-5
        )


def test_zero_vectors():
    hash, zero, x = SimHash.init(0, D, 4000, 1), np.zeros((1, D)), points(shape=(1, D))
    assert hash.codes(zero).all()
    share = np.mean(hash.signatures(zero) == hash.signatures(x))
    one = SimHash.init(0, D, 1, 1).retrieval_probability(zero, x)[0]
    assert one == 0.5
    assert SimHash.init(0, D, 3, 4).retrieval_probability(zero, zero)[0] == 1
    assert share == pytest.approx(0.5, abs=0.04)


# Lifting.


def test_lifting_turns_products_into_cosines(library):
    query, key = points(0), points(1, (2, 13, D))
    lifted = library.numpy(lift_keys(library.array(key)))
    asked = library.numpy(lift_queries(library.array(query)))
    np.testing.assert_allclose(np.linalg.norm(lifted, axis=-1), 1)
    np.testing.assert_allclose(np.linalg.norm(asked, axis=-1), 1)
    longest = np.linalg.norm(key, axis=-1).max()
    lengths = np.linalg.norm(query, axis=-1, keepdims=True)
    wanted = query @ np.swapaxes(key, -1, -2) / lengths / longest
    np.testing.assert_allclose(asked @ np.swapaxes(lifted, -1, -2), wanted, atol=1e-14)


def test_lifting_of_nothing_and_of_zeros():
    assert lift_keys(np.zeros((0, 3))).shape == (0, 4)
    np.testing.assert_array_equal(lift_keys(np.zeros((1, 2))), [[0, 0, 1]])
    np.testing.assert_array_equal(lift_queries(np.zeros((1, 2))), [[0, 0, 0]])
    assert lift_keys(np.ones((2, 3), dtype=np.float16)).dtype == np.float16
    longest = np.full((1, 2), 3e38, dtype=np.float32)  # its length is beyond float32
    np.testing.assert_allclose(lift_keys(longest), [[0.5**0.5, 0.5**0.5, 0]], atol=1e-3)


def test_a_lifted_hash_finds_the_largest_product():
    rng = np.random.default_rng(0)
    key, query = rng.standard_normal((2000, D)), rng.standard_normal((200, D))
    key *= np.exp(rng.standard_normal((2000, 1)))
    best = np.argmax(query @ key.T, axis=1)
    longest = float(np.linalg.norm(key, axis=1).max())
    lifted = LiftedHash(SimHash.init(0, D + 1, 8, 8), longest)
    found = (lifted.query_signatures(query) == lifted.signatures(key[best])).any(1).mean()
    plain = SimHash.init(0, D, 8, 8)
    others = rng.integers(2000, size=200)
    chance = (lifted.query_signatures(query) == lifted.signatures(key[others])).any(1).mean()
    assert found > 2 * chance
    wanted = lifted.retrieval_probability(query, key[best])
    assert found == pytest.approx(wanted.mean(), abs=0.15)
    assert plain.n_tables == lifted.n_tables == 8
    assert lifted.to("numpy", dtype="float32").hash.directions.dtype == np.float32


def test_given_functions_side_by_side(library):
    hash = GivenHash(lambda x: x[:, 0] > 0, lambda x: (x[:, 1] > 0) & (x[:, 0] > 0))
    x = library.array(np.array([[1.0, -1.0], [2.0, 2.0], [-1.0, 3.0]]))
    assert library.numpy(hash.signatures(x)).tolist() == [[1, 0], [1, 1], [0, 0]]
    assert hash.n_tables == 2
    assert not hasattr(hash, "retrieval_probability")


# Errors.

SIGNS, STABLE, ONES = SimHash.init(0, D), StableHash.init(0, D, 1.0), np.ones((2, 3, 4))
chance, met = SimHash.collision_probability, StableHash.collision_probability


def given_by(function):
    return GivenHash(function).signatures(np.ones((2, 2)))


WRONG = [
    (lambda: SimHash([[1.0]]), "directions must be an array"),
    (lambda: SimHash(ONES[0]), "directions must have shape (n_tables, n_projections, d) with each"),
    (lambda: SimHash(ONES[:0]), "each at least 1, got (0, 3, 4)"),
    (lambda: SimHash.init(0, 0), "d must be at least 1, got 0"),
    (lambda: SimHash.init(0, 2, 0), "n_tables must be at least 1, got 0"),
    (lambda: SimHash.init(0, 2, 1, 64), "at most 63 projections per table"),
    (lambda: SimHash.init("a", 2), "rng must be a numpy.random.Generator or an int, got str"),
    (lambda: StableHash.init(0, 2, 0.0), "width must be above 0, got 0.0"),
    (lambda: StableHash.init(0, 2, math.inf), "width must be finite and at least 0, got inf"),
    (lambda: StableHash.init(0, 2, 1.0, 1, 0), "n_projections must be at least 1, got 0"),
    (lambda: StableHash(ONES, ONES[0], 1.0), "offsets must have shape (2, 3) to match directions"),
    (lambda: StableHash(ONES, ONES.astype("f4"), 1.0), "offsets must have the dtype of directions"),
    (lambda: SIGNS.signatures([1.0]), "x must be an array"),
    (lambda: SIGNS.signatures(np.ones(D, dtype=int)), "x must have a real floating dtype"),
    (lambda: SIGNS.codes(np.ones(3)), "x must have shape (..., 7) to match the directions, got (3"),
    (lambda: SIGNS.codes(np.array(1.0)), "x must have shape (..., 7) to match the directions, got"),
    (lambda: SIGNS.codes(np.full(D, math.nan)), "x must be finite and have finite projections"),
    (lambda: STABLE.codes(np.full(D, math.inf)), "x must be finite and have finite projections"),
    (lambda: STABLE.codes(np.full(D, 1e30)), "within 2**62 widths of 0 along every direction"),
    (lambda: SIGNS.retrieval_probability(ONES, ONES.astype("f4")), "key must have the dtype of"),
    (
        lambda: SIGNS.retrieval_probability(np.ones((2, D)), np.ones((3, D))),
        "key must have leading axes that broadcast with those of query, (2, 7), got (3, 7)",
    ),
    (lambda: chance(4.0), "angle must be from 0 to π, got 4.0"),
    (lambda: chance(math.nan), "angle must be from 0 to π, got nan"),
    (lambda: chance(10**400), "angle must be from 0 to π, got 1000"),
    (lambda: chance("1"), "angle must be an array"),
    (lambda: met(-ONES, 1.0), "distance must be from 0 to infinity, got"),
    (lambda: met(10**400, 1.0), "distance must be from 0 to infinity, got 1000"),
    (lambda: met(1.0, -1.0), "width must be finite and at least 0, got -1.0"),
    (lambda: lift_keys(np.ones(3)), "key must have shape (..., n, d) with d >= 1"),
    (lambda: lift_queries(np.full((1, 2), math.nan)), "query must be finite, got NaN or infinity"),
    (lambda: lift_keys(ONES, 1.0), "longest must be at least the length of every key, 2, got 1"),
    (lambda: LiftedHash(3, 1.0), "hash must have n_tables and signatures, got int"),
    (
        lambda: LiftedHash(GivenHash(len), 1.0),
        "hash must be SimHash, StableHash or another that has retrieval_probability, got GivenHash",
    ),
    (lambda: LiftedHash(SIGNS, 0.0), "longest must be above 0, got 0.0"),
    (lambda: GivenHash(), "functions must hold at least one, got none"),
    (lambda: GivenHash(3), "functions must be callable, got int"),
    (lambda: given_by(lambda x: x[:, 0]), "the answer of function 0 must be integers, got float64"),
    (
        lambda: given_by(lambda x: x > 0),
        "the answer of function 0 must have shape (2,), got (2, 2)",
    ),
    (lambda: given_by(lambda x: [1]), "the answer of function 0 must be an array"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_wrong_arguments(call, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call()


def test_another_library_is_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="directions must be an array of the same library as x"):
        SIGNS.signatures(torch.ones(2, D))
    for ask in (SimHash.collision_probability, lambda x: StableHash.collision_probability(x, 1.0)):
        with pytest.raises(ValueError, match="must hold numbers, got an array on the meta device"):
            ask(torch.ones(2, device="meta"))
