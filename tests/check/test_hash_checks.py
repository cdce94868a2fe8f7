"""The checks of hashes, sketches and tables: wrong answers hear their sentence, right ones pass."""

import itertools
import re
import sys
import time

import hash_answers as answers
import numpy as np
import pytest
import right_tables as tables
from all_answers import CHECKS
from cases import every_day
from report_table import assert_report, report_rows
from wrong_tables import WRONG

from attnbook import check
from attnbook.check.engine.sandbox import Budget
from attnbook.check.exercises.robin_hood_table import _look_at_displacements
from attnbook.check.shared.table_mistakes import MESSAGES
from attnbook.check.shared.table_runs import Failure, Step, Tables
from attnbook.sketch import RobinHoodTable
from attnbook.sketch.functional import sketch_attention


@pytest.fixture
def numpy_alone(monkeypatch):
    monkeypatch.setattr("attnbook.check.engine.run.present", lambda: ["numpy"])


def test_no_projection_is_near_an_edge_that_rounding_could_cross():
    for name in ("simhash", "stable_hash"):
        for case in (case for stage in CHECKS[name].stages for case in stage.cases):
            x, directions, *more = case.arguments.values()
            along = (x @ directions.T + more[0]) / more[1] if more else x @ directions.T
            off = np.abs(along - np.round(along)) if more else np.abs(along)
            assert np.all((off == 0) | (off > 2e-4))


def test_the_table_of_the_package_passes_without_a_note():
    report = check.robin_hood_table(RobinHoodTable)
    assert report, report
    assert report.notes == ()


class Given:
    """A hash whose signatures are given."""

    def __init__(self, query_signatures, key_signatures):
        self.of_queries, self.of_keys = query_signatures, key_signatures
        self.n_tables = query_signatures.shape[1]

    def signatures(self, x):
        return self.of_keys

    def query_signatures(self, x):
        return self.of_queries


def test_the_sketch_of_the_package_passes():
    def sketch(query, key, value, *signatures):
        return sketch_attention(query, key, value, hash=Given(*signatures))

    assert check.sketch_attention(sketch, time_limit=60), check.sketch_attention(sketch)


def test_the_compiled_table_passes():
    pytest.importorskip("numba", reason="Numba is not installed")
    report = check.robin_hood_table(
        lambda n_slots: RobinHoodTable(n_slots, impl="numba"), time_limit=60
    )
    assert report, report


# Hash tables.


SLOW = ("endless search", "no growth", "tombstones never freed")
TABLES = [
    (wrong, list(tables.HASHES)[i % 3], 2.0 if wrong.startswith(SLOW) else 60.0)
    for i, wrong in enumerate(WRONG)
]
"""A search that does not end is waited for."""


@pytest.mark.parametrize(("wrong", "hashed", "seconds"), every_day(TABLES[::3], TABLES))
def test_a_wrong_table_is_rejected_with_its_own_sentence(wrong, hashed, seconds):
    make = tables.with_hash(WRONG[wrong], hashed)
    report = check.robin_hood_table(make, time_limit=seconds)
    assert not report
    assert (report.mistake, report.message) == (wrong, MESSAGES[wrong])
    assert re.search(
        r"^(A short run that fails, on an empty table( with n_slots=8)?: .* "
        r"(returned|raised|does not come back)|After )",
        report.detail,
    )


@pytest.mark.parametrize("pauses_at", every_day([8150, 8900], [8150, 8300, 8600, 8900, 9050]))
def test_a_pause_of_python_is_no_endless_search(pauses_at):
    calls = itertools.count(1)

    class Pausing(WRONG["search gives up"]):
        def home(self, key):
            begin = time.thread_time()
            if next(calls) == pauses_at:  # as when garbage is collected
                while time.thread_time() < begin + 0.1:
                    pass
            return key % len(self.slots)

    report = check.robin_hood_table(Pausing, time_limit=60.0)
    assert next(calls) > pauses_at
    assert report.mistake == "search gives up"


@pytest.mark.parametrize(("make", "remark"), every_day(tables.RIGHT[::3], tables.RIGHT))
def test_a_right_table_of_any_kind_passes(make, remark):
    report = check.robin_hood_table(make)
    assert report, report
    assert (report.mistake, report.detail, report.message) == (None, "", "agrees with a dict")
    assert report.cases > 150
    if remark:
        assert remark in " ".join(report.remarks)
    assert remark != "" or report.remarks == ()


def test_a_run_is_shown_in_few_steps():
    detail = check.robin_hood_table(WRONG["keys lost at growth"]).detail
    assert detail.count("insert") < 10
    assert "get(" in detail
    long = Failure((*(Step("insert", i, i) for i in range(30)), Step("get", 3)), "lost")
    assert str(long) == (
        "insert(0, 0), insert(1, 1), insert(2, 2), insert(3, 3), insert(4, 4), insert(5, 5), "
        "insert(6, 6), insert(7, 7), … 20 more …, insert(28, 28), insert(29, 29), get(3) returned "
        "None, expected None."
    )
    for got, text in ((np.int64(3), "3"), (True, "True"), ("a", "a str"), ([], "a list")):
        kind = type("Returns", (tables.RobinHood,), {"get": lambda self, key, got=got: got})
        failure = Tables(kind, Budget(5.0)).run([Step("get", 4)])
        assert str(failure) == f"get(4) returned {text}, expected None."


def test_what_is_remarked_upon_is_said_once():
    class Prints(tables.Counting):
        def get(self, key):
            print(key)
            return super().get(key)

        def displacements(self):
            return None

    assert set(check.robin_hood_table(Prints).remarks) == {
        "it prints; the check holds the text back.",
        "`displacements()` does not return a number for each stored key.",
    }


def test_a_platform_without_threads_is_remarked_upon(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    (text,) = check.robin_hood_table(tables.Counting).remarks
    assert text == "no thread can be started here, so no limit of time was set."


def look_at_displacements(make):
    runs = Tables(make, Budget(60.0))
    runs.methods.add("displacements")
    return _look_at_displacements(runs), runs.remarks


@pytest.mark.parametrize("most", every_day((0.5, 0.85), (0.5, 0.65, 0.75, 0.85)))
def test_swaps_are_told_from_none_at_any_load(most):
    for hashed in tables.HASHES:
        swaps, none = (
            tables.with_hash(type("Table", (kind,), {"most": most}), hashed)
            for kind in (tables.Counting, tables.LinearCounting)
        )
        assert look_at_displacements(swaps) == (None, [])
        found, (text,) = look_at_displacements(none)
        assert found is None
        assert re.search(r"mean \d+\.\d\d and variance \d+\.\d, as in a table that does not", text)


def test_false_displacements_are_shown():
    found, _ = look_at_displacements(WRONG["displacement at home"])
    assert found.detail == "After 1 insertion of random keys it begins with 1."


SIZES = []
"""Of the tables that were made."""


class WithSize(tables.RobinHood):
    def __init__(self, n_slots=64):
        SIZES.append(n_slots)
        super().__init__(n_slots)


class WithASize(WithSize):
    def __init__(self, size):
        super().__init__(size)


class WithNone(WithSize):
    def __init__(self, load=0.5):
        super().__init__()


class WithTwo(WithSize):
    def __init__(self, one, two):
        super().__init__()


class WrongWithASize(WRONG["delete leaves a hole"], WithASize):
    pass


def test_how_a_table_is_made():
    SIZES.clear()
    for kind in (WithSize, WithASize, WithNone, lambda: WithSize(5)):
        assert Tables(kind, Budget(5.0)).run([Step("insert", 1, 10), Step("get", 1)]) is None
    assert SIZES == [8, 8, 64, 5]


def raises():
    raise ValueError("so")


def hangs():
    while True:
        pass


class Breaks(tables.RobinHood):
    def insert(self, key, value):
        if key == 3:
            raise RuntimeError("three")
        super().insert(key, value)


class NoSlots(tables.RobinHood):
    @property
    def n_slots(self):
        raise ValueError("not told")


class NoName(tables.RobinHood):
    def grow(self):
        self.slots = twice_as_many  # noqa: F821


class MadeOnce(tables.RobinHood):
    left = 2

    def __init__(self, n_slots=8):
        super().__init__(n_slots)
        MadeOnce.left -= 1
        if MadeOnce.left < 0:
            raise OSError("no more")


class Quits(tables.RobinHood):
    def delete(self, key):
        sys.exit("no")


class Rubbish(tables.RobinHood):
    def get(self, key):
        return np.array([1, 2])


class Odd(tables.RobinHood):
    """Doubles the value of one key."""

    def get(self, key):
        value = super().get(key)
        return value and (2 * value if self.n == 3 else value)


class Slow(tables.RobinHood):
    def get(self, key):
        sum(range(20_000))
        return super().get(key)


class SlowWithMany(tables.RobinHood):
    def insert(self, key, value):
        if self.n > 300:
            sum(range(200_000))
        super().insert(key, value)


def of_neither(distance, width):
    raise ValueError("at once")


def soon_wrong_on_arrays(distance, width):
    out = answers.probability_of_arrays(distance, width)
    if distance.dtype == np.float32:
        raise ValueError("late")
    return out


REPORTS = """
robin_hood_table(raises)
    raises: Making an empty table raises ValueError: so, at line
robin_hood_table(hangs, time_limit=0.2)
    raises: Making an empty table does not end.
robin_hood_table(dict)
    missing method: a dict without a method `insert`
robin_hood_table(lambda: None)
    missing method: a NoneType without a method `insert`
robin_hood_table(WithTwo)
    wrong arguments: is made with (one, two), but
robin_hood_table(WrongWithASize)
    delete leaves a hole: an empty table made with 8: insert
robin_hood_table(Breaks)
    raises: Your table raises RuntimeError: three, at line…: insert(3, 10) raised RuntimeError:
    three, at line
robin_hood_table(NoSlots)
    right: agrees with a dict
robin_hood_table(NoName)
    raises: NameError: name 'twice_as_many' is not defined, at line
robin_hood_table(MadeOnce)
    raises: Your table raises OSError: no more, at line
robin_hood_table(Quits)
    raises: Your table raises SystemExit: no
robin_hood_table(Rubbish)
    missing key gives a value: returned an ndarray, expected None.
robin_hood_table(Odd)
    not a stored value: get returns something that was never stored
robin_hood_table(Slow, time_limit=0.5)
    hangs: The check is not done after 0.5 seconds. Your table is right
robin_hood_table(SlowWithMany, time_limit=3)
    right: the runs with many keys were cut short after
robin_hood_table(WRONG["delete leaves a hole"])
    delete leaves a hole: insert(0, 10), insert(8, 20), delete(0), get(8) returned None, expected
    20.
robin_hood_table(WRONG["old value kept"])
    old value kept: insert(1, 10), insert(1, 20), get(1) returned 10, expected 20.
robin_hood_table(WRONG["a value counts as missing"])
    a value counts as missing: insert(1, 0), get(1) returned None, expected 0.
robin_hood_table(WRONG["missing key raises"])
    missing key raises: get(1) raised KeyError: 1, at line
robin_hood_table(WRONG["end of the table"])
    end of the table: insert(7, 10), insert(15, 20), delete(7), get(15) returned None, expected 20.

collision_probability(answers.right_probability)
    right: agrees with the reference on arrays it raises ValueError, which is allowed.
collision_probability(answers.probability_of_arrays)
    right: agrees with the reference on single numbers it raises TypeError, which is allowed.
collision_probability(of_neither)
    raises: ValueError: at once…(distance 0.5)
collision_probability(soon_wrong_on_arrays)
    raises: ValueError: late
"""


@pytest.mark.parametrize(("call", "mistake", "said"), report_rows(REPORTS))
@pytest.mark.usefixtures("numpy_alone")
def test_what_is_said(call, mistake, said):
    assert_report(call, mistake, said, globals())


def test_what_is_refused():
    with pytest.raises(TypeError, match=r"^make must be callable, got RobinHood$"):
        check.robin_hood_table(tables.RobinHood())
    with pytest.raises(ValueError, match=r"^time_limit must be finite and at least 0, got -1.0$"):
        check.robin_hood_table(tables.RobinHood, time_limit=-1)


def test_a_failure_that_comes_and_goes_is_shown_as_it_was():
    rng = np.random.default_rng(0)

    class Random(tables.RobinHood):
        def get(self, key):
            return None if rng.random() < 0.02 else super().get(key)

    report = check.robin_hood_table(Random)
    assert not report
    assert "returned None, expected" in report.detail


def test_a_run_stops_where_it_differs():
    steps = [Step("insert", 1, 10), Step("get", 1), Step("delete", 1), Step("get", 1)]
    failure = Tables(WRONG["delete keeps the key"], Budget(5.0)).run(steps)
    assert (failure.kind, failure.got, failure.expected, failure.grew) == ("ghost", 10, None, False)
    assert failure.steps == tuple(steps)
    assert Tables(tables.RobinHood, Budget(5.0)).run(steps) is None
    grows = [Step("insert", i, 10 + i) for i in range(9)] + [Step("get", 77), Step("len")]
    failure = Tables(WRONG["wrong length"], Budget(5.0)).run(grows)
    assert (failure.kind, failure.got, failure.expected, failure.grew) == ("length", 16, 9, True)
