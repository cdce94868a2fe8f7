"""The Robin Hood table against a dict, slot by slot, and against the theory of its probes."""

import importlib.util
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbook.hashing import robin_hood
from attnbook.hashing.robin_hood import RobinHoodTable, displacement_limit, max_entries, slots_for

IMPLEMENTATIONS = ("reference", "numba")
EXTREMES = [0, 1, -1, 2**63 - 1, -(2**63), 255, 256, -256, 2**31, -(2**31), 2**62]
INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture(params=IMPLEMENTATIONS)
def impl(request):
    if request.param == "numba":
        pytest.importorskip("numba")
    return request.param


def home_oracle(key, mixer, n_slots):
    """The slot that a key wants, byte by byte in Python's own integers."""
    hashed = 0
    for i, byte in enumerate(key.to_bytes(8, "little", signed=True)):
        hashed ^= int(mixer[i, byte])
    return hashed // 2**31 * n_slots // 2**31  # the fraction hashed / 2**62, of 31 bits


def check_table(table, model):
    """Every invariant of the slots, and that they hold exactly the entries of the dict `model`."""
    n_slots, slots = table.n_slots, table.slots.tolist()
    taken = [(place, *slot) for place, slot in enumerate(slots) if slot[2] != -1]
    assert {key: value for _, key, value, _ in taken} == model
    assert len(taken) == len(table) == len(model) < n_slots
    for place, key, _, displacement in taken:
        assert 0 <= displacement < n_slots
        assert (home_oracle(key, table.mixer, n_slots) + displacement) % n_slots == place
        # homes ascend from slot to slot: nobody is more than a step poorer than its neighbour
        assert slots[place - 1][2] >= displacement - 1
    assert all(slot == [0, 0, -1] for slot in slots if slot[2] == -1)


def crowded(table, count, home=3):
    """Keys that all want the same slot at present, found as an adversary would."""
    found, key = [], -(10**6)
    while len(found) < count:
        keys = np.arange(key, key + 100_000)
        homes = robin_hood.home_slot(keys, table.mixer, table.n_slots)
        found.extend(keys[homes == home].tolist())
        key += 100_000
    return found[:count]


@given(
    n_slots=st.integers(1, 13),
    load_factor=st.sampled_from([0.3, 0.5, 0.75, 0.9, 1 - 2**-53]),
    operations=st.lists(
        st.tuples(st.sampled_from("iiidg"), st.one_of(st.integers(-9, 9), INT64), INT64),
        max_size=60,
    ),
    seed=st.integers(0, 9),
)
def test_every_operation_matches_a_dict(n_slots, load_factor, operations, seed):
    table, model = RobinHoodTable(n_slots, load_factor, seed=seed), {}
    for operation, key, value in operations:
        if operation == "i":
            expected = table.n_slots
            if key not in model:
                while len(model) + 1 > min(load_factor * expected, expected - 1):
                    expected *= 2
            table.insert(key, value)
            model[key] = value
            assert table.n_slots == expected  # a key that is known takes no more room
        elif operation == "d":
            assert table.delete(key) is (model.pop(key, None) is not None)
        assert table.get(key) == model.get(key)
        assert (key in table) is (key in model)
        check_table(table, model)


# load factor 0.98 for long searches; few possible keys, so that many operations meet the same one
@pytest.mark.parametrize(
    ("n_keys", "n_slots", "load_factor"),
    [(300, 1, 0.75), (5_000, 4_099, 0.98), (60_000, 8, 0.5), (2**63, 7, 0.9)],
)
def test_many_operations_match_a_dict(n_keys, n_slots, load_factor):
    pytest.importorskip("numba")
    rng = np.random.default_rng(n_slots)
    table, model = RobinHoodTable(n_slots, load_factor, seed=5, impl="numba"), {}
    for step in range(6):
        keys = rng.integers(-n_keys, n_keys - 1, size=10_000)
        values = rng.integers(-(2**63), 2**63 - 1, size=10_000)
        table.insert_many(keys, values)
        model.update(zip(keys.tolist(), values.tolist(), strict=True))
        asked = np.concatenate([keys[::2], rng.integers(-n_keys, n_keys - 1, size=5_000)])
        expected = [model.get(key, step) for key in asked.tolist()]
        assert table.get_many(asked, default=step).tolist() == expected
        gone = np.concatenate([keys[::3], rng.integers(-n_keys, n_keys - 1, size=5_000)])
        was_there = [model.pop(key, None) is not None for key in gone.tolist()]
        assert table.delete_many(gone).tolist() == was_there
    check_table(table, model)
    assert table.delete_many(np.fromiter(model.keys(), np.int64)).all()
    assert np.array_equal(table.slots, robin_hood.free_slots(table.n_slots))


def test_both_implementations_leave_the_same_slots():
    pytest.importorskip("numba")
    rng = np.random.default_rng(3)
    tables = [RobinHoodTable(5, 0.9, seed=8, impl=impl) for impl in IMPLEMENTATIONS]
    for _ in range(40):
        keys, values = rng.integers(-200, 200, size=(2, 31))
        gone = rng.integers(-200, 200, size=23)
        for table in tables:
            table.insert_many(keys, values)
            table.delete_many(gone)
            table.insert(int(keys[0]), 7)
            table.delete(int(keys[1]))
        reference, fast = tables
        assert np.array_equal(reference.slots, fast.slots)
        assert np.array_equal(reference.mixer, fast.mixer)
        assert np.array_equal(reference.get_many(keys), fast.get_many(keys))
    many = crowded(reference, 700)
    for table in tables:
        table.insert_many(np.array(many), np.arange(700))
    assert np.array_equal(reference.slots, fast.slots)
    assert np.array_equal(reference.mixer, fast.mixer)


def test_every_int64_is_a_key_and_a_value(impl):
    table = RobinHoodTable(1, impl=impl)
    for i, key in enumerate(EXTREMES):
        table.insert(key, EXTREMES[i - 1])
    assert [table.get(key) for key in EXTREMES] == [EXTREMES[i - 1] for i in range(len(EXTREMES))]
    check_table(table, dict(table.items()))
    assert sorted(table) == sorted(EXTREMES)
    assert all(type(key) is int for key in table)
    assert type(table.get(-1)) is int
    assert table.get_many(np.array([5, -1]), default=-(2**63)).tolist() == [-(2**63), 1]


# Growth, deletion, iteration


def test_the_table_doubles_when_one_more_key_would_exceed_the_load(impl):
    table, sizes = RobinHoodTable(8, 0.75, impl=impl), []
    for key in range(13):
        table.insert(key, key)
        sizes.append(table.n_slots)
    assert sizes == [8] * 6 + [16] * 6 + [32]
    assert table.load == 13 / 32
    mixer = table.mixer
    table.insert_many(np.arange(13), np.arange(13))
    assert table.n_slots == 32
    assert table.mixer is mixer  # growth keeps the hash function


def test_one_slot_stays_free_at_any_load_factor(impl):
    nearly_one = 1 - 2**-53  # times 3 it rounds to 3
    table = RobinHoodTable(3, nearly_one, impl=impl)
    for key in range(100):
        table.insert(key, key)
        assert len(table) < table.n_slots
        assert table.get(-1) is None  # a search in a full table would never end
    assert max_entries(3, nearly_one) == 2
    assert max_entries(1, 0.99) == 0


def test_batches_do_what_single_operations_do(impl):
    rng = np.random.default_rng(11)
    keys, values = rng.integers(-(2**63), 2**63 - 1, size=(2, 211))
    one, batch, fresh = (RobinHoodTable(3, impl=impl) for _ in range(3))
    for key, value in zip(keys.tolist(), values.tolist(), strict=True):
        one.insert(key, value)
    batch.insert_many(keys, values)
    assert np.array_equal(one.slots, batch.slots)
    for key in keys[:50].tolist():
        assert one.delete(key)
    assert batch.delete_many(keys[:50]).all()
    assert np.array_equal(one.slots, batch.slots)
    # and as if the deleted keys had never been there; entries of one home may change places
    fresh.insert_many(keys[50:], values[50:])
    assert np.array_equal(batch.slots[:, 2], fresh.slots[:, 2])
    narrow = np.arange(-6, 6, dtype=np.int8)[::2]
    narrow.flags.writeable = False
    fresh.insert_many(narrow, np.arange(6, dtype=np.uint32))
    assert fresh.get_many(narrow).tolist() == [0, 1, 2, 3, 4, 5]
    fresh.insert_many(np.array([4, 4, 5, 4]), np.array([1, 2, 3, 9]))  # the last one counts
    assert fresh.get_many(np.array([4, 5])).tolist() == [9, 3]
    assert fresh.delete_many(np.array([4, 4])).tolist() == [True, False]


def test_iteration_sees_the_table_as_it_was(impl):
    table = RobinHoodTable(impl=impl)
    table.insert_many(np.arange(5), np.arange(5) * 10)
    for key in table:
        table.delete(key)
        table.insert(key + 100, 0)
    assert sorted(table) == [100, 101, 102, 103, 104]
    items = table.items()
    table.insert(100, 1)
    assert sorted(items) == [(key, 0) for key in range(100, 105)]


def test_empty_tables_and_empty_batches(impl):
    table, nothing = RobinHoodTable(1, impl=impl), np.zeros(0, dtype=np.int64)
    table.insert_many(nothing, nothing)
    assert (len(table), table.n_slots, table.load) == (0, 1, 0)
    assert list(table) == list(table.items()) == []
    assert table.displacements().shape == (0,)
    assert table.get(3, default="none") == "none"
    assert table.get_many(nothing).shape == table.delete_many(nothing).shape == (0,)
    assert table.delete(3) is False
    assert 3 not in table


# Hash function


@given(key=INT64, n_slots=st.integers(1, 2**32), seed=st.integers(0, 3))
def test_the_hash_is_simple_tabulation(key, n_slots, seed):
    mixer = robin_hood.draw_mixer(np.random.default_rng(seed))
    assert robin_hood.home_slot(key, mixer, n_slots) == home_oracle(key, mixer, n_slots)
    if importlib.util.find_spec("numba"):
        fast = robin_hood.functions("numba").home_slot
        assert fast(key, mixer, n_slots) == home_oracle(key, mixer, n_slots)


def test_the_seed_decides_the_hash():
    same = RobinHoodTable(seed=4), RobinHoodTable(seed=np.random.default_rng(4))
    assert np.array_equal(same[0].mixer, same[1].mixer)
    assert not np.array_equal(same[0].mixer, RobinHoodTable(seed=5).mixer)
    assert same[0].mixer.shape == (8, 256)
    assert same[0].mixer.min() >= 0
    table = RobinHoodTable(1009)
    assert table.home(-5) == home_oracle(-5, table.mixer, 1009)


# Displacements


@pytest.mark.parametrize("load", [0.25, 0.5, 0.75, 0.9])
def test_displacements_follow_the_theory(load):
    pytest.importorskip("numba")
    n_slots = 300_007
    keys = np.random.default_rng(2).integers(-(2**63), 2**63, size=int(load * n_slots))
    table = RobinHoodTable(n_slots, 0.95, seed=6, impl="numba")
    table.insert_many(keys, keys)
    assert table.n_slots == n_slots
    displacements = table.displacements()
    assert np.mean(displacements) == pytest.approx(load / (2 * (1 - load)), rel=0.02)
    for t in range(1, 40):
        share = np.mean(displacements > t)
        noise = 5 * np.sqrt(np.exp(-2 * (1 - load) * t) / len(keys)) + 40 / len(keys)
        assert share <= np.exp(-2 * (1 - load) * t) + noise
    assert np.max(displacements) < displacement_limit(n_slots, load) / 2


def test_the_swaps_keep_the_mean_and_shorten_the_longest_search():
    keys = np.random.default_rng(7).integers(-(2**63), 2**63, size=1800)
    table = RobinHoodTable(2003, 0.95)
    table.insert_many(keys, keys)
    plain, taken = [], set()
    for key in keys.tolist():  # linear probing without swaps
        home = place = table.home(key)
        while place in taken:
            place = (place + 1) % 2003
        taken.add(place)
        plain.append((place - home) % 2003)
    assert np.sum(table.displacements()) == sum(plain)
    assert np.max(table.displacements()) * 2 < max(plain)


# Crowded keys


def test_keys_that_share_a_home_get_a_fresh_hash(impl):
    table = RobinHoodTable(1021, impl=impl)
    keys = crowded(table, 600)
    assert {table.home(key) for key in keys} == {3}
    mixer = table.mixer
    table.insert_many(np.array(keys), np.arange(600))
    assert not np.array_equal(table.mixer, mixer)
    assert table.n_slots == 1021
    assert np.max(table.displacements()) < table.displacement_limit() // 4
    assert table.get_many(np.array(keys)).tolist() == list(range(600))
    check_table(table, {key: i for i, key in enumerate(keys)})


def test_keys_up_to_the_limit_keep_the_hash(impl):
    table = RobinHoodTable(1021, impl=impl)
    limit = table.displacement_limit()
    keys, mixer = crowded(table, limit + 2), table.mixer
    table.insert_many(np.array(keys[:-1]), np.arange(limit + 1))
    assert np.max(table.displacements()) == limit
    assert table.mixer is mixer
    table.insert(keys[-1], 0)  # one more is too far
    assert table.mixer is not mixer
    assert np.max(table.displacements()) < limit


def test_what_a_swap_puts_down_far_from_home_counts_too(impl):
    table = RobinHoodTable(1021, impl=impl)
    limit = table.displacement_limit()
    keys, mixer = crowded(table, limit + 2), table.mixer
    table.insert_many(np.array(keys[:limit]), np.arange(limit))
    table.insert(crowded(table, 1, home=3 + limit)[0], 0)  # at home, at the end of the crowd
    table.insert(keys[limit], 0)  # pushes it one on, and is as far as the limit
    assert table.mixer is mixer
    table.insert(keys[limit + 1], 0)
    assert table.mixer is not mixer


def test_hashes_that_always_collide_do_not_loop(impl, monkeypatch):
    monkeypatch.setattr(
        robin_hood, "draw_mixer", lambda random: np.full((8, 256), 6, dtype=np.int64)
    )
    table = RobinHoodTable(401, impl=impl)
    assert {table.home(key) for key in range(999)} == {0}
    table.insert_many(np.arange(130), np.arange(130))
    assert sorted(table.displacements()) == list(range(130))
    assert table.get_many(np.arange(135)).tolist() == [*range(130), -1, -1, -1, -1, -1]
    assert table.delete_many(np.arange(0, 130, 2)).all()
    check_table(table, {key: key for key in range(1, 130, 2)})


def test_a_wrap_around_the_end_is_a_step_as_any_other(impl):
    table = RobinHoodTable(13, 0.9, impl=impl)
    last, first = crowded(table, 4, home=12), crowded(table, 3, home=0)
    keys = [first[0], last[0], last[1], first[1], last[2], first[2], last[3]]
    for i, key in enumerate(keys):
        table.insert(key, i)
    assert table.slots[:, 2].tolist() == [1, 2, 3, 3, 4, 5, -1, -1, -1, -1, -1, -1, 0]
    for i in (1, 0, 4, 6, 3, 2, 5):
        assert table.delete(keys[i])
        check_table(table, {key: table.get(key) for key in keys if key in table})
    assert len(table) == 0


@pytest.mark.parametrize(
    ("n_slots", "load_factor", "limit"), [(8, 0.75, 85), (2**22, 0.75, 111), (2**22, 0.9, 277)]
)
def test_the_limit_is_where_the_tail_leaves_nothing(n_slots, load_factor, limit):
    assert displacement_limit(n_slots, load_factor) == limit
    tail = n_slots * np.exp(-2 * (1 - load_factor) * limit)
    assert np.exp(-41) < tail <= np.exp(-40)


@pytest.mark.parametrize("load_factor", [0.1, 0.5, 0.75, 0.9, 1 - 2**-53])
def test_slots_are_as_few_as_the_load_allows(load_factor):
    for n in (*range(40), 3 * 2**20, 10**7 + 1):
        n_slots = slots_for(n, load_factor)
        assert n <= min(load_factor * n_slots, n_slots - 1)
        fewer = n_slots - 1
        assert fewer == 0 or n > min(load_factor * fewer, fewer - 1)


# What is refused

BETWEEN = "load_factor must be from 1/64 to below 1, got "
WRONG_SETTINGS = [
    ({"n_slots": 0}, ValueError, "n_slots must be at least 1, got 0"),
    ({"n_slots": 2**32 + 1}, ValueError, r"n_slots must be at most 2\*\*32, got 4294967297"),
    ({"n_slots": 8.0}, TypeError, "n_slots must be an int, got float"),
    ({"load_factor": 0}, ValueError, BETWEEN + "0"),
    ({"load_factor": 0.0156}, ValueError, BETWEEN + "0.0156"),
    ({"load_factor": 1.0}, ValueError, BETWEEN + "1.0"),
    ({"load_factor": float("nan")}, ValueError, BETWEEN + "nan"),
    ({"load_factor": Fraction(10**400)}, ValueError, BETWEEN + "1000"),
    ({"load_factor": 1 - Fraction(1, 10**400)}, ValueError, BETWEEN),
    ({"load_factor": "0.5"}, TypeError, "load_factor must be a real number, got str"),
    ({"load_factor": True}, TypeError, "load_factor must be a real number, got bool"),
    ({"impl": "cython"}, ValueError, "impl must be one of reference, numba, got 'cython'"),
    ({"impl": {}}, ValueError, "impl must be one of reference, numba, got"),
    ({"seed": "a"}, TypeError, "seed must be a numpy.random.Generator or an int, got str"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG_SETTINGS)
def test_wrong_settings_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        RobinHoodTable(**arguments)


WRONG_KEYS = [
    (2**63, ValueError, "must fit into int64, got 9223372036854775808"),
    (-(2**63) - 1, ValueError, "must fit into int64, got -9223372036854775809"),
    (1.0, TypeError, "must be an int, got float"),
    (np.True_, TypeError, "must be an int, got bool"),
    (None, TypeError, "must be an int, got NoneType"),
    (np.array([1]), TypeError, "must be an int, got ndarray"),
]
WRONG_BATCHES = [
    ([1, 2], TypeError, "must be a NumPy array, got list"),
    (np.array([1.0]), TypeError, "must have integers that fit into int64, got float64"),
    (np.array([True]), TypeError, "must have integers that fit into int64, got bool"),
    (np.array([1], dtype=np.uint64), TypeError, "must have .* fit into int64, got uint64"),
    (np.array(1), ValueError, r"must have shape \(n,\), got \(\)"),
    (np.array([[1]]), ValueError, r"must have shape \(n,\), got \(1, 1\)"),
]


def test_keys_and_values_are_ints_of_int64(impl):
    table, good = RobinHoodTable(impl=impl), np.array([1])
    for key, error, message in WRONG_KEYS:
        for call in (table.get, table.delete, table.home, table.__contains__):
            with pytest.raises(error, match=f"key {message}"):
                call(key)
        with pytest.raises(error, match=f"value {message}"):
            table.insert(0, key)
        with pytest.raises(error, match=f"default {message}"):
            table.get_many(good, default=key)
    for keys, error, message in WRONG_BATCHES:
        for call in (table.get_many, table.delete_many, lambda keys: table.insert_many(keys, good)):
            with pytest.raises(error, match=f"keys {message}"):
                call(keys)
        with pytest.raises(error, match=f"values {message}"):
            table.insert_many(good, keys)
    with pytest.raises(ValueError, match=r"values must have shape \(2,\), got \(1,\)"):
        table.insert_many(np.array([1, 2]), good)
    assert len(table) == 0


def test_numba_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(ImportError, match=r"impl='numba' needs Numba: pip install numba"):
        robin_hood.functions.__wrapped__("numba")
    assert len(RobinHoodTable()) == 0
