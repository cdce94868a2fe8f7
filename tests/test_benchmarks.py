"""The benchmarks write what they promise; what they measure is not asserted."""

import ast
import graphlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from cases import every_day

from attnbook import kernels
from benchmarks import __main__ as command_line
from benchmarks import (
    approximate_estimators,
    attention,
    cuda,
    decode,
    exact,
    exact_candidates,
    exact_ceilings,
    exact_imitated,
    exact_memory,
    faults,
    harness,
    inputs,
    linear_attention,
    masking,
    multi_head,
    packing,
    paged,
    scaling_fit,
    search_growth,
    search_hashes,
    search_maps,
    search_near,
    search_planted,
    tables,
    train,
    transformer,
)
from benchmarks import provenance as origin
from benchmarks.memory import extra_bytes

ROOT = Path(__file__).parents[1]

FIELDS = {"device", "cpu", "threads", "versions", "blas", "os", "settings", "load_average"}
FIELDS |= {"commit", "dirty", "date", "command"}
COMMANDS = ("python -m benchmarks ", "python tools/", "python -m tools.")
RECORDS = sorted((ROOT / "book" / "data").glob("*.json"))


@pytest.fixture(autouse=True)
def unsteered(monkeypatch):
    """Let no variable of this machine hold a library to instructions."""
    for name in origin.STEERING:
        monkeypatch.delenv(name, raising=False)


def check_provenance(provenance):
    assert set(provenance) - {"commit_note"} == FIELDS
    assert provenance["device"]["kind"] in {"cpu", "cuda"}
    assert provenance["device"]["name"]
    assert provenance["cpu"]["cores"] >= 1
    assert provenance["threads"]["cores"] >= 1
    assert set(provenance["versions"]) == {"python", *origin.PACKAGES}
    for always in ("python", "numpy", "array-api-compat"):
        assert re.match(r"\d+\.\d+", provenance["versions"][always])
    assert provenance["os"]
    assert datetime.fromisoformat(provenance["date"]).utcoffset().total_seconds() == 0
    assert provenance["command"].startswith(COMMANDS)
    for blas in provenance["blas"]:
        assert {"name", "version", "core_type", "threads", "seen_by"} <= set(blas)


def hide(monkeypatch, *absent):
    """Let the named packages look as if they were not installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n in absent else find(n))


@pytest.mark.parametrize("absent", [None, "threadpoolctl"])
def test_provenance_has_all_fields_and_is_json(monkeypatch, absent):
    hide(monkeypatch, absent)
    found = origin.describe("cpu", "python -m benchmarks x")
    check_provenance(found)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    if absent:
        assert absent in found["blas"][0]["seen_by"]


@pytest.mark.parametrize(
    ("commit", "status", "environment", "expected"),
    [
        (None, None, "a" * 40, ("a" * 40, None)),  # a copy without history
        (None, None, None, ("unknown", None)),
        ("b" * 40, "", None, ("b" * 40, False)),
        ("b" * 40, " M x.py", None, ("b" * 40, True)),
    ],
)
def test_commit(monkeypatch, tmp_path, commit, status, environment, expected):
    monkeypatch.setattr(origin, "ROOT", tmp_path)
    monkeypatch.setattr(origin, "_output", lambda *line: status if "status" in line else commit)
    monkeypatch.delenv("ATTNBOOK_COMMIT", raising=False)
    if environment:
        monkeypatch.setenv("ATTNBOOK_COMMIT", environment)
    assert origin._commit() == expected


def test_interleave_measures_each_candidate_in_each_round():
    events = []
    timed = harness.interleave(
        {"a": lambda: events.append("a"), "b": lambda: events.append("b")},
        pace=harness.Pace(rounds=4, slice_seconds=0.0),
        synchronize=lambda: events.append("wait"),
    )
    assert {name: calls for name, (calls, _) in timed.items()} == {"a": 1, "b": 1}
    assert {name: len(samples) for name, (_, samples) in timed.items()} == {"a": 4, "b": 4}
    # per candidate: untimed, wait, timed, wait; first to count the calls, then in each round
    pieces = [tuple(events[i : i + 4]) for i in range(0, len(events), 4)]
    assert pieces[:2] == [("a", "wait", "a", "wait"), ("b", "wait", "b", "wait")]
    for i in range(2, len(pieces), 2):
        assert {piece[0] for piece in pieces[i : i + 2]} == {"a", "b"}


class Clock:
    """A clock that moves when something takes time, or when it is told to."""

    now = 0.0

    def __call__(self):
        return self.now

    def taking(self, seconds, result=None):
        """Return a function that takes so long and counts its calls."""

        def run():
            self.now += seconds
            run.calls += 1
            return result

        run.calls = 0
        return run


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(harness.time, "perf_counter", made)
    monkeypatch.setattr(harness.time, "sleep", lambda seconds: None)
    return made


@pytest.mark.parametrize(
    ("pace", "once", "samples", "calls"),
    [
        # seconds of a call: 2 and 0.5; one more call says how many fill a slice
        ({"long": 1.0, "long_rounds": 2}, True, (2, 5), (2, 1 + 2 * 5)),
        ({"most": 8.0}, True, (2, 5), (1 + 2 * 2, 1 + 2 * 5)),
        ({"most": 1.0}, True, (1, 1), (1, 1 + 2)),  # once each at least
        ({"most": 8.0}, False, (2, 5), (2 + 2 * 2, 2 + 2 * 5)),
    ],
)
def test_long_calls_have_fewer_rounds(clock, pace, once, samples, calls):
    runs = {"long": clock.taking(2.0), "short": clock.taking(0.5)}
    timed = harness.interleave(
        runs,
        pace=harness.Pace(rounds=5, slice_seconds=0.0, **pace),
        once={"long": 2.0, "short": 0.5} if once else None,
    )
    assert {name: found for name, (_, found) in timed.items()} == {
        "long": [2.0] * samples[0],
        "short": [0.5] * samples[1],
    }
    assert (runs["long"].calls, runs["short"].calls) == calls


@pytest.mark.parametrize(("second", "size"), [(1e-3, 8), (0.02, 4), (0.3, 2), (99.0, 2)])
def test_the_affordable_size(clock, second, size):
    tried = []

    def make(n):
        tried.append(n)
        return clock.taking(second * (n / 2) ** 3)

    assert harness.affordable((2, 4, 8), make, power=3) == size
    assert tried == [n for n in (2, 4) if n <= size]


# Tables.


def test_a_table_tells_the_time_left_and_leaves_out_what_takes_too_long(clock):
    lines = []
    growing = tables.Tables({}, seconds=100.0, log=lines.append, clock=clock)

    def of(n, seconds):
        return tables.Step({"n": n}, n, clock.taking(seconds, [{"n": n, "seconds": seconds}]))

    rows = growing.measure("rows", [of(1, 10.0), of(2, 20.0), of(9, 90.0), of(4, 40.0), of(1, 7.0)])
    assert [row["seconds"] for row in rows] == [10.0, 20.0, None, 40.0, 7.0]
    assert rows[2]["reason"] == "left out: it takes about 90 s, and 70 s remain"
    assert set(harness.MEASURED) < set(rows[2])
    assert lines == [
        "rows 1 of 5, n = 1: 100 s allowed",
        "rows 2 of 5, n = 2: about 40 s to go, 90 s allowed",
        "rows 3 of 5, n = 9: left out: it takes about 90 s, and 70 s remain",
        "rows 4 of 5, n = 4: about 50 s to go, 70 s allowed",
        "rows 5 of 5, n = 1: about 10 s to go, 30 s allowed",
        "rows: 77 s",
    ]
    assert growing.record == {"rows": rows, "table_seconds": {"rows": 77.0}}


def three_steps(clock, runs):
    return [tables.Step({"n": n}, n, runs[n]) for n in runs]


def test_a_table_goes_on_with_the_steps_that_were_left_out(clock):
    runs = {n: clock.taking(9.0 * n, [{"n": n, "seconds": 9.0 * n}]) for n in (1, 2, 3)}
    first = tables.Tables({}, seconds=12.0, log=lambda line: None, clock=clock)
    first.measure("rows", three_steps(clock, runs))
    assert not tables.is_whole(first.record, "rows")
    assert [tables.is_left_out(row) for row in first.record["rows"]] == [False, True, True]
    kept = json.loads(json.dumps(first.record))
    lines = []
    again = tables.Tables(kept, seconds=99.0, log=lines.append, clock=clock)
    rows = again.measure("rows", three_steps(clock, runs))
    assert lines[0] == "rows: goes on with 2 of 3 steps, which were left out"
    assert [(row["n"], row["seconds"]) for row in rows] == [(1, 9.0), (2, 18.0), (3, 27.0)]
    assert [run.calls for run in runs.values()] == [1, 1, 1]
    assert again.record["table_seconds"] == {"rows": 54.0}
    assert tables.is_whole(again.record, "rows")
    # what is whole is measured anew
    again.measure("rows", three_steps(clock, runs))
    assert [run.calls for run in runs.values()] == [2, 2, 2]
    assert again.record["table_seconds"] == {"rows": 54.0}


def test_what_was_under_way_when_a_process_ended_comes_last(clock, tmp_path):
    path = tmp_path / "x.cuda.json"
    runs = {n: clock.taking(1.0, [{"n": n}]) for n in (1, 2, 3)}
    broken = {**runs, 2: lambda: {}["a fault"]}
    first = tables.Tables({}, path, log=lambda line: None, clock=clock)
    with pytest.raises(KeyError):
        first.measure("rows", three_steps(clock, broken))
    kept = json.loads(path.with_suffix(".partial").read_text())
    assert [row.get("reason") for row in kept["rows"]] == [None, tables.UNDER_WAY, tables.TO_COME]
    lines = []
    again = tables.Tables(kept, log=lines.append, clock=clock)
    with pytest.raises(KeyError):
        again.measure("rows", three_steps(clock, broken))
    assert "rows 1 of 2, n = 3" in lines[1]
    assert [row.get("reason") for row in again.record["rows"]] == [None, tables.UNDER_WAY, None]
    # a step that there is no more stays left out, and is told
    del runs[2]
    rows = again.measure("rows", three_steps(clock, runs))
    assert [(row["n"], row.get("reason")) for row in rows] == [
        *[(1, None), (2, tables.UNDER_WAY), (3, None)]
    ]
    assert not tables.is_whole(again.record, "rows")
    assert any("rows: has no such step here, it stays left out: {'n': 2," in x for x in lines)


PLACE = {
    **dict.fromkeys(("date", "cpu", "load_average"), "x"),
    "commit": "a",
    "versions": {"torch": "2.0"},
    "device": {"name": "A", "driver": "13", "cuda": "13.0"},
}


@pytest.mark.parametrize(
    ("other", "is_alike"),
    [
        ({"date": "later", "cpu": "another", "load_average": 7}, True),
        ({"commit": "b"}, False),
        ({"versions": {"torch": "2.1"}}, False),
        ({"device": PLACE["device"] | {"driver": "14"}}, False),
        ({"device": PLACE["device"] | {"cuda": "14.0"}}, False),
    ],
)
@pytest.mark.parametrize("is_later", [False, True])
def test_rows_of_another_commit_or_installation_are_not_mixed(clock, other, is_alike, is_later):
    runs = {n: clock.taking(9.0 * n, [{"n": n}]) for n in (1, 2)}
    head = {"provenance": PLACE | {"commit": "first"} if is_later else PLACE}
    given = {"log": lambda line: None, "clock": clock}
    first = tables.Tables(head, seconds=12.0, again=PLACE if is_later else None, **given)
    first.measure("rows", three_steps(clock, runs))
    kept = json.loads(json.dumps(first.record))
    again = tables.Tables(kept, again=PLACE | other, **given)
    assert again.measure("rows", three_steps(clock, runs)) == [{"n": 1}, {"n": 2}]
    assert [run.calls for run in runs.values()] == [1 if is_alike else 2, 1]
    assert again.record["table_seconds"] == {"rows": 27.0}


def test_a_machine_too_slow_for_the_first_step_still_has_a_row(clock):
    growing = tables.Tables({}, seconds=1.0, log=lambda line: None, clock=clock)
    slow = clock.taking(300.0, [{"n": 1}])
    assert growing.measure("rows", [tables.Step({"n": 1}, 1, slow)] * 2)[0] == {"n": 1}
    assert slow.calls == 1


@pytest.mark.parametrize(
    ("seen", "work", "seconds"),
    [
        ([], 5, 0.0),
        ([(2, 3.0)], 200, 3.0),  # nothing says how it grows
        ([(2, 3.0), (4, 5.0)], 3, 4.0),
        ([(2, 3.0), (4, 5.0)], 4, 5.0),
        # the longest first: what is less work is quicker
        ([(8, 80.0)], 1, 10.0),
        ([(8, 80.0), (8, 60.0)], 8, 60.0),
        ([(8, 80.0), (4, 44.0)], 2, 26.0),  # on the line
        ([(8, 80.0), (4, 30.0)], 2, 15.0),  # no less than in proportion
        ([(8, 10.0), (4, 40.0)], 2, 10.0),  # no longer than what is more work
        ([(2, 3.0), (4, 5.0)], 10, 11.0),  # on the line
        ([(2, 9.0), (4, 4.0)], 10, 4.0),  # the first one compiled
        ([(1, 1.0), (4, 40.0)], 10, 10.0),  # in proportion to the quickest
    ],
)
def test_expected_seconds(seen, work, seconds):
    assert tables.expected(seen, work) == pytest.approx(seconds)


def test_the_longest_first_leave_time_for_the_short_ones(clock):
    growing = tables.Tables({}, seconds=100.0, log=lambda line: None, clock=clock)
    steps = [
        tables.Step({"n": n, "i": i}, n, clock.taking(n, [{"n": n}]))
        for i, n in enumerate((40, 40, 10, 5, 4))
    ]
    growing.measure("rows", steps)
    assert tables.is_whole(growing.record, "rows")


def test_a_trial_compiles_no_model_on_a_gpu(monkeypatch):
    monkeypatch.setattr(inputs, "libraries", lambda device: ["torch"])
    asked = {}

    class Listed(tables.Tables):
        def measure(self, name, steps, *told):
            asked[name] = len(steps)

    for quick in (True, False):
        train.measure("cuda", quick=quick, tables=Listed({}))
        assert bool(asked["compiled"]) != quick
        assert asked["rows"] > 0


def test_each_table_is_kept_and_the_whole_record_takes_the_place_of_the_old(clock, tmp_path):
    path = tmp_path / "x.cpu.json"
    path.write_text("old")
    growing = tables.Tables({"benchmark": "x"}, path, log=lambda line: None, clock=clock)
    growing.add(rounds=3)
    growing.measure("rows", [tables.Step({}, 1, lambda: [{"n": 1}])])
    kept = {"benchmark": "x", "table_seconds": {"rows": 0.0}, "rounds": 3, "rows": [{"n": 1}]}
    assert json.loads(path.with_suffix(".partial").read_text()) == kept
    with pytest.raises(KeyError):
        growing.whole("model", lambda: {}["stopped"])
    assert path.read_text() == "old"
    assert growing.whole("model", lambda: {"loss": 1.5}) == {"loss": 1.5}
    assert growing.finish() == path
    assert json.loads(path.read_text())["model"] == {"loss": 1.5}
    assert [found.name for found in tmp_path.iterdir()] == ["x.cpu.json"]
    with pytest.raises(ValueError, match="path must be a place to write to, got None"):
        tables.Tables({}).finish()


def test_tables_that_nobody_asked_for_are_passed_over(clock):
    def never():
        raise AssertionError("it is not asked for")

    growing = tables.Tables({"rows": [1]}, log=lambda line: None, clock=clock, only=["parity", "b"])
    growing.parity(lambda: [{"holds": True}])
    assert growing.measure("rows", never) == [1]
    assert growing.measure("more", never) == []
    assert growing.whole("a", never) is None
    assert growing.measure("b", lambda: [tables.Step({}, 1, lambda: [{"n": 1}])]) == [{"n": 1}]
    assert growing.names == ["parity", "rows", "more", "a", "b"]
    assert growing.record["table_seconds"] == {"parity": 0.0, "b": 0.0}
    assert growing.record["parity"] == [{"holds": True}]


def test_machines_are_told_apart_by_what_is_timed():
    one = {"device": {"kind": "cuda", "name": "A"}, "cpu": {"name": "x"}}
    assert origin.same_machine(one, one | {"cpu": {"name": "y"}})
    assert not origin.same_machine(one, one | {"device": {"kind": "cuda", "name": "B"}})
    one |= {"device": {"kind": "cpu", "name": "A"}}
    assert not origin.same_machine(one, one | {"cpu": {"name": "y"}})


class FakeTorch:
    """The parts of PyTorch that time a GPU: its work is done when somebody waits for it."""

    def __init__(self):
        self.host = self.gpu = 0.0
        self.events = []
        self.cuda = self
        self.frees = 0

    def is_available(self):
        return True

    def empty_cache(self):
        self.frees += 1

    def synchronize(self):
        self.host = self.gpu = max(self.host, self.gpu)

    def _sleep(self, cycles):
        self.gpu = max(self.host, self.gpu) + cycles / 1e9

    def run(self, launch, kernel):
        """Launch a kernel, which takes the host so long and the GPU so long."""
        self.host += launch
        self.gpu = max(self.host, self.gpu) + kernel

    def Event(self, enable_timing):  # noqa: N802
        fake = self

        class Event:
            def record(self):
                self.at = max(fake.host, fake.gpu)

            def synchronize(self):
                fake.synchronize()

            def elapsed_time(self, other):
                return (other.at - self.at) * 1e3

        return Event()


@pytest.fixture
def fake_torch(monkeypatch):
    fake = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setattr(origin, "torch_sees_cuda", lambda: True)
    monkeypatch.setattr(origin, "cupy_sees_cuda", lambda: False)
    return fake


def test_time_on_a_gpu_is_without_the_launches(fake_torch):
    found = cuda.device_seconds(lambda: fake_torch.run(200e-6, 30e-6), rounds=3)
    assert found == pytest.approx([30e-6] * 3)
    many = cuda.device_seconds(lambda: [fake_torch.run(1e-6, 50e-6) for _ in range(4)], 3)
    assert many == pytest.approx([200e-6] * 3)


def test_time_on_a_gpu_needs_pytorch(monkeypatch):
    monkeypatch.setattr(origin, "torch_sees_cuda", lambda: False)
    assert cuda.device_seconds(lambda: None, 3) == []


@pytest.mark.usefixtures("short")
def test_memory_of_a_gpu_is_given_back_between_candidates(fake_torch, clock, monkeypatch):
    monkeypatch.setattr(harness, "extra_bytes", lambda run, library, device: 0)
    frees = []

    def run(seconds):
        frees.append(fake_torch.frees)
        fake_torch.run(1e-6, 30e-6)
        return clock.taking(seconds, np.ones(3))()

    made = [candidate("a", lambda: run(1e-3)), candidate("b", lambda: run(1.0))]
    given = {"about": {"n": 7}, "baseline": {"implementation": "b"}, "quick": True}
    short, long = harness.rows(made, "cuda", **given)
    assert short["device_seconds"]["median"] == pytest.approx(30e-6)
    assert "device_seconds" not in long  # beside which the launches do not count
    assert frees[:2] == [0, 1]  # the first call of each
    rounds = 2
    assert fake_torch.frees == len(made) * (1 + rounds)


@pytest.mark.usefixtures("short")
def test_a_fault_that_ends_the_gpu_is_no_row_of_those_who_follow(fake_torch, clock, monkeypatch):
    monkeypatch.setattr(harness, "extra_bytes", lambda run, library, device: 0)
    broken = []

    def wait():
        if broken:
            raise RuntimeError("an illegal memory access")

    def faulty():
        broken.append(1)
        wait()

    def refuses():
        raise TypeError("query must be float16")

    fake_torch.synchronize = wait
    run = clock.taking(1.0, np.ones(3))
    given = {"about": {"n": 7}, "baseline": {"implementation": "b"}, "quick": True}
    refused, fine = harness.rows([candidate("a", refuses), candidate("b", run)], "cuda", **given)
    assert (refused["reason"], "reason" in fine) == ("TypeError: query must be float16", False)
    three = [candidate("a", faulty), candidate("c", refuses), candidate("b", run)]
    with pytest.raises(faults.FaultError, match="an illegal memory access") as found:
        harness.rows(three, "cuda", **given)
    # and when it is tried again, in another process, it is left out, and the others are measured
    broken.clear()
    known = json.loads(json.dumps([found.value.fault]))
    with faults.leaving_out(known):
        ended, refused, fine = harness.rows(three, "cuda", **given)
    assert ended["reason"] == (
        "it ended the process that measured it: RuntimeError: an illegal memory access"
    )
    assert ended["seconds"] is None
    assert (refused["reason"], "reason" in fine) == ("TypeError: query must be float16", False)
    with pytest.raises(faults.FaultError):
        harness.rows(three, "cuda", **given)
    # a fault that shows only later is of who ran: when it is waited for, or amid the rounds
    for calls in range(1, 6):
        broken.clear()
        left = [1] * calls

        def later(left=left):
            left.pop() if left else broken.append(1)
            return clock.taking(1.0, np.ones(3))()

        with pytest.raises(faults.FaultError, match="'d'"):
            harness.rows([candidate("d", later), candidate("b", run)], "cuda", **given)


def test_a_step_is_tried_again_without_whom_a_fault_is_of(clock, tmp_path):
    path, tried = tmp_path / "x.cuda.json", []

    def faulty():
        left_out = [fault["about"]["who"] for fault in faults.LEFT_OUT]
        tried.append(left_out)
        for who in ("a", "b"):
            if who not in left_out:
                raise faults.FaultError({"who": who}, "an illegal memory access")
        return [{"n": 2}]

    runs = {2: faulty, 3: clock.taking(1.0, [{"n": 3}])}
    record = {}
    for known in ([], ["a"]):
        growing = tables.Tables(record, path, log=lambda line: None, clock=clock)
        with pytest.raises(faults.FaultError):
            growing.measure("rows", three_steps(clock, runs))
        assert tried[-1] == known
        record = json.loads(path.with_suffix(".partial").read_text())
        assert record["rows"][0]["reason"] == tables.UNDER_WAY
    growing = tables.Tables(record, path, log=lambda line: None, clock=clock)
    assert growing.measure("rows", three_steps(clock, runs)) == [{"n": 2}, {"n": 3}]
    assert tried[-1] == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("NVIDIA H200", "cuda-h200"),
        ("NVIDIA H100 80GB HBM3", "cuda-h100-80gb-hbm3"),
        ("NVIDIA A100-SXM4-40GB", "cuda-a100-sxm4-40gb"),
    ],
)
def test_a_record_has_the_name_of_its_gpu(monkeypatch, tmp_path, name, file):
    device = {"kind": "cuda", "name": name}
    assert origin.place(device) == file
    assert origin.place({"kind": "cpu", "name": name}) == "cpu"
    monkeypatch.setattr(origin, "require", lambda device: None)
    monkeypatch.setattr(origin, "_device", lambda *given: device)
    monkeypatch.setattr(attention, "measure", lambda device, quick, tables: None)
    assert command_line.main(["attention", "--device", "cuda", "--out", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == [f"attention.{file}.json"]


def test_spread_and_speed(tmp_path):
    found = harness.spread([5.0, 1.0, 2.0, 4.0, 3.0])
    assert list(found.values()) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert list(found) == ["minimum", "first_quartile", "median", "third_quartile", "maximum"]
    assert harness.speed([1.0, 3.0, 2.0], [2.0, 9.0, 8.0]) == 3.0
    assert harness.speed([1.0, 3.0, 2.0], [2.0]) == 2.0  # of the rounds that both took part in
    # what is no number is written as null
    path = harness.write({"a": [float("nan"), 1.5], "b": {"c": float("inf")}}, tmp_path / "x.json")
    assert json.loads(path.read_text()) == {"a": [None, 1.5], "b": {"c": None}}


def three(module, options):
    """Return a sum; two temporaries of 800,000 bytes live beside it."""
    first = module.ones(100_000, **options)
    second = first + 1
    return second + first


@pytest.mark.parametrize("library", ["numpy", "torch", "torch of numpy"])
def test_extra_bytes(library):
    made = {"numpy": lambda: (np.ones(100_000), three(np, {}))}  # two results
    if library != "numpy":
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        made["torch"] = lambda: three(torch, {"dtype": torch.float64})
        made["torch of numpy"] = lambda: torch.from_numpy(three(np, {}))
    found = extra_bytes(made[library], library.split()[0], "cpu")
    assert 1_600_000 <= found < 1_620_000


def test_extra_bytes_of_an_unknown_library():
    with pytest.raises(ValueError, match="library must be one of numpy, torch, cupy, got 'jax'"):
        extra_bytes(lambda: np.ones(3), "jax", "cpu")


def test_reference_is_right_on_a_case_done_by_hand():
    query, key = np.array([[0.0], [0.0]]), np.array([[1.0], [2.0]])
    value = np.array([[10.0], [20.0]])
    mask = np.array([[True, True], [False, False]])
    np.testing.assert_allclose(inputs.reference(query, key, value, mask), [[15.0], [0.0]])
    bias = np.log([[1.0, 3.0]])
    np.testing.assert_allclose(inputs.reference(query, key, value, bias=bias), [[17.5], [17.5]])


def candidate(name, run=lambda: np.ones(3)):
    return harness.Candidate(
        {"implementation": name, "library": "numpy"},
        run,
        lambda output: {"max_abs": 0.0, "relative": float(output[0])},
    )


def rows_of(candidates, baseline="b"):
    baseline = {"implementation": baseline}
    return harness.rows(candidates, "cpu", about={"n": 7}, baseline=baseline, quick=True)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(harness, "QUICK_ROUNDS", 2)
    monkeypatch.setattr(harness, "QUICK_SLICE_SECONDS", 1e-5)


@pytest.mark.usefixtures("short")
def test_rows_are_those_of_the_candidates_in_their_order(clock, capsys):
    slow = clock.taking(19.0, np.ones(3))
    first, second = rows_of([candidate("a", slow), candidate("b", clock.taking(1.0, np.ones(3)))])
    assert (first["implementation"], second["implementation"]) == ("a", "b")
    assert (first["n"], first["relative"], first["speed"], second["speed"]) == (7, 1, 1 / 19, 1)
    assert first["seconds"]["median"] == 19.0
    assert set(harness.MEASURED) < set(first)
    assert rows_of([candidate("a", slow)])[0]["speed"] is None
    assert "{'implementation': 'a', 'library': 'numpy'}: 19 s a call" in capsys.readouterr().err


@pytest.mark.usefixtures("short")
def test_what_cannot_run_leaves_a_row_with_the_reason(capsys):
    def fails():
        raise MemoryError("no room\nfor it")

    broken, fine = rows_of([candidate("a", fails), candidate("b")])
    reason = "MemoryError: no room"
    assert broken["reason"] == reason
    assert all(broken[name] is None for name in harness.MEASURED)
    said = capsys.readouterr().err
    assert f"cannot run {{'implementation': 'a', 'library': 'numpy'}}: {reason}" in said
    assert ("reason" in fine, fine["speed"]) == (False, 1)
    lost, alone = rows_of([candidate("b", fails), candidate("a")])
    assert (lost["reason"], alone["speed"]) == (reason, None)
    assert alone["seconds"]


def test_summary_has_the_median_of_each_row():
    rows = [{"n": 7, "dtype": "float32", "mask": "none", "seconds": {"median": 0.25}}]
    rows.append(rows[0] | {"mask": "causal", "seconds": None})
    found = harness.summary(rows, "mask")
    assert found == "n = 7, float32: none 250 ms, causal did not run"


@pytest.mark.parametrize(
    ("benchmark", "name"),
    [
        (attention, "attention"),
        (multi_head, "multi_head_attention"),
        (transformer, "encoder_layer"),
    ],
)
def test_parity_fails_where_the_package_is_wrong(monkeypatch, benchmark, name):
    monkeypatch.setattr(inputs, "libraries", lambda device: ["numpy"])
    assert all(row["holds"] for row in benchmark.parity("cpu"))
    right = getattr(benchmark, name)
    for wrong in (lambda **given: right(**given) + 0.01, lambda **given: right(**given) * np.nan):
        monkeypatch.setattr(benchmark, name, wrong)
        assert not any(row["holds"] for row in benchmark.parity("cpu"))


TINY = {
    attention: {"QUICK_SIZES": (3, 5), "HEADS": 2},
    masking: {"QUICK_SIZES": (5, 67), "HEADS": 2, "WINDOW": 3, "DOCUMENT": 9},
    linear_attention: {"QUICK_SIZES": (3, 67), "WIDTH": 8},
    multi_head: {"QUICK_SIZES": (3, 5), "QUICK_CACHES": (7,), "D_MODEL": 16},
    packing: {"QUICK_TEXTS": 12, "LENGTH": 64, "KNOWN": 5, "ROWS": 2},
    transformer: {"QUICK_SIZES": (3, 5), "D_MODEL": 16, "D_FF": 24},
    paged: {"QUICK_LENGTHS": (1, 9), "TEXTS": 3, "WIDTH": 8, "PAGE": 4, "KV_HEADS": 2},
    decode: {
        **{"QUICK_SIZES": (3,), "QUICK_DRAWN": 3, "QUICK_BATCHES": (2,), "QUICK_BATCH_LENGTH": 2},
        **{"KERNELS": {}, "BEGINNINGS": ("ROMEO:",)},
    },
    scaling_fit: {"DRAWS": 3},
    search_planted: {"QUICK_N": 700},
    search_growth: {"QUICK_SIZES": (300, 400, 500)},
    search_near: {
        **{"QUICK_LOST_N": 700, "SIGNS": ((10,), (4,)), "STABLE": ((10,), (4,), (1, 4), (0.5,))},
        **{"GRAPHS": ((8, 40),), "CODES": ((1,), (24,), (4,)), "CELLS": (1,), "TABLES": (2, 4)},
    },
    search_hashes: {"QUICK_N": 700},
    approximate_estimators: {"QUICK_N": 200, "TABLES": (2, 5), "CELLS": (4, 9)},
    search_maps: {"QUICK_SLOTS": 64},
    exact: {
        "QUICK_SIZES": {8: (13,)},
        "QUICK_CACHES": {"grouped heads": {"n": 29, "heads": 6, "kv_heads": 2}},
        "WIDTHS": (5,),
        **{"QUICK_WIDTHS_N": 11, "QUICK_SKIPPING_N": 17, "QUICK_HALF_N": 7},
        "QUICK_BFLOAT16_N": (6,),
    },
    exact_imitated: {"ABLE": "no processor"},  # else a process would compile for another one
    exact_memory: {"QUICK_SIZES": (2**6,), "QUICK_N": 5, "WIDTHS": (3,), "HEADS": 2},
    exact_ceilings: {"QUICK_PRODUCT": 8, "QUICK_MEMORY": 2**12, "QUICK_STEPS": 10},
}


@pytest.fixture
def tiny(monkeypatch, short):
    for module, sizes in TINY.items():
        for name, size in sizes.items():
            monkeypatch.setattr(module, name, size)
    # those that need no compiler, and the slow form of FlexAttention, which needs none
    rungs = tuple(kernel for kernel in kernels.LADDER if not kernel.needs)
    monkeypatch.setattr(exact_candidates.kernels, "LADDER", rungs)
    if importlib.util.find_spec("torch") is not None:
        monkeypatch.setattr("torch.compile", lambda function, **_: function)


QUICK = ("attention", "writer")


@pytest.mark.usefixtures("tiny")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", every_day(QUICK, command_line.names()))
def test_quick_run_writes_a_valid_record(tmp_path, capsys, name):
    # on however busy a machine, no step is left out
    arguments = [name, "--device", "cpu", "--quick", "--seconds", "1e9", "--out", str(tmp_path)]
    assert command_line.main(arguments) == 0
    record = json.loads((tmp_path / f"{name}.cpu.json").read_text())
    check_record(record)
    assert record["quick"] is True
    assert record["provenance"]["command"].startswith(f"python -m benchmarks {name} --device cpu")
    printed = capsys.readouterr().err
    for row in record.get("rows", []):
        assert "reason" not in row
        assert f"n = {row['n']}" in printed


@pytest.mark.usefixtures("tiny")
def test_packed_and_padded_batches_have_one_loss():
    rows = packing.timings("cpu", quick=True)
    assert len(rows) == 12
    assert len({row["tokens"] for row in rows}) == 1
    slots = {row["batch"]: row["slots"] for row in rows}
    assert slots["packed"] <= slots[packing.BY_LENGTH] <= slots["padded, random"]
    for row in rows:
        assert row["relative"] < 1e-6
        assert row["tokens_per_second"] > 0


@pytest.mark.usefixtures("tiny")
def test_exact_runs_with_numpy_alone(monkeypatch, capsys):
    monkeypatch.setattr(inputs, "libraries", lambda device: ["numpy"])
    hide(monkeypatch, "torch", "numba", "jax")
    growing = tables.Tables({}, seconds=1e9)
    exact.measure("cpu", quick=True, tables=growing)
    record = growing.record
    assert {row["library"] for row in record["rows"]} == {"numpy"}
    assert not any(row["backward"] for row in record["rows"])
    assert all(row["seconds"] and row["speed"] is None for row in record["rows"])
    assert {row["name"] for row in record["ceilings"]} == {"matrix product", "copy", "exp"}
    assert "nobody here takes Problem(device='cpu', dtype='bfloat16'" in capsys.readouterr().err


def check_record(record):
    check_provenance(record["provenance"])
    if "rows" not in record:  # it holds no timings
        return
    assert {"seconds", "speed", "extra_bytes", "max_abs", "relative"} <= set(record["methods"])
    assert all(row["holds"] for row in record.get("parity", []))
    cuda = record["provenance"]["device"]["kind"] == "cuda"
    assert cuda or {"numpy", "torch"} & {row["library"] for row in record["rows"]}
    check_rows(record["rows"], record["baseline"], record["tolerance"])
    if "decoding" in record:
        check_rows(record["decoding"], record["decoding_baseline"], record["tolerance"])


def check_rows(rows, baseline, tolerance):
    baseline = {"implementation": baseline} if isinstance(baseline, str) else baseline
    assert rows
    for row in rows:
        if "reason" in row:
            assert row["reason"]
            assert row["seconds"] is None
            continue
        quantiles = list(row["seconds"].values())
        assert quantiles == sorted(quantiles)
        assert quantiles[0] > 0
        assert row["extra_bytes"] is None or row["extra_bytes"] >= 0
        assert row["relative"] <= tolerance[row["dtype"]]
        if baseline.items() <= row.items():
            assert row["speed"] == 1
        for name in ("mask_bytes", "cache_bytes"):
            assert row.get(name, 0) >= 0


@pytest.mark.usefixtures("tiny")
def test_paged_measures_pages_beside_one_piece():
    pytest.importorskip("numba")
    rows = paged.timings("cpu", 2, quick=True)
    names = ["read", "paged, packed", *paged.ONE_BY_ONE, paged.SDPA]
    names.insert(2, paged.ONE_PAGE)
    assert [row["implementation"] for row in rows] == names
    assert all(row["relative"] < 1e-5 for row in rows[1:])
    assert all(row["of_bandwidth"] > 0 < row["gb_per_second"] for row in rows)
    assert rows[0]["of_bandwidth"] == 1


@pytest.mark.usefixtures("tiny")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_masking_measures_every_mask():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    rows = masking.timings("cpu", "float32", 67, quick=True)
    found = [(row["implementation"], row["mask"]) for row in rows]
    everyone = ["tiled", "packed", masking.SDPA, masking.FLEX]
    causal = ["tiled", "packed", f"{masking.SDPA}, is_causal", masking.SDPA, masking.FLEX]
    assert found == [
        *((name, "causal") for name in causal),
        *((name, mask) for mask in ("window", "documents") for name in everyone),
    ]
    dense = {row["mask_bytes"] for row in rows if row["implementation"] == masking.SDPA}
    assert dense == {67 * 67}
    assert max(row["mask_bytes"] for row in rows if row["implementation"] == "packed") == 8 * 67
    visible = {row["mask"]: row["visible"] for row in rows}
    assert visible["causal"] == pytest.approx(67 * 68 / 2 / 67**2)
    assert visible["window"] == pytest.approx((67 * 3 - 3) / 67**2)
    assert all(row["relative"] < 1e-5 for row in rows if row["seconds"])


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("table", [masking.makings, masking.by_document])
def test_masking_measures_what_comes_before_and_documents_alone(table):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("numba")
    rows = table("cpu", "float32", 67, quick=True)
    assert all(row["seconds"] for row in rows)
    names = {row["implementation"] for row in rows}
    if table is masking.makings:
        assert names == {"rule", masking.SDPA, masking.FLEX}
    else:
        assert names == {"tiled", "packed", f"{masking.SDPA}, by document"}
        assert all(row["relative"] < 1e-5 for row in rows)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("mask", masking.MASKS)
def test_masking_notices_a_wrong_mask(monkeypatch, mask):
    monkeypatch.setattr(inputs, "libraries", lambda device: ["numpy"])
    given = masking.rules(67)
    monkeypatch.setattr(masking, "rules", lambda n: given | {mask: ~given[mask]})
    for row in masking.timings("cpu", "float32", 67, quick=True):
        assert (row["relative"] > 0.1) == (row["mask"] == mask)


@pytest.mark.usefixtures("tiny")
def test_linear_attention_measures_every_rule_and_form(monkeypatch):
    monkeypatch.setattr(linear_attention, "MOST_PAIRS", 66)
    rows = linear_attention.timings("cpu", "float32", 67, quick=True)
    forms = [("softmax", "packed")]
    for rule in ("decayed", "delta"):
        forms += [(rule, form) for form in ("reference", "chunkwise", "numba")]
    found = {(row["rule"], row["implementation"]) for row in rows}
    assert found == set(forms)
    rows = linear_attention.decoding("cpu", "float32", 67, quick=True)
    assert [row["cache_bytes"] for row in rows] == [67 * 8 * 8, 4 * 8 * 8, 4 * 8 * 8]
    assert all(row.get("relative", 0) < 1e-5 for row in rows)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("table", ["timings", "decoding"])
def test_linear_attention_notices_a_wrong_form(monkeypatch, table):
    right = linear_attention.linear_attention.delta_rule
    monkeypatch.setattr(
        linear_attention.linear_attention,
        "delta_rule",
        lambda *given, **options: right(given[0], -given[1], *given[2:], **options),
    )
    rows = getattr(linear_attention, table)("cpu", "float32", 5, quick=True)
    for row in rows:
        if row["seconds"] and row["implementation"] != "numba":
            assert (row["relative"] > 0.1) == (row["rule"] == "delta")


def test_flex_attention_that_cannot_be_compiled_is_a_row(monkeypatch, short):
    pytest.importorskip("torch", reason="PyTorch is not installed")

    def no_compiler(*_, **__):
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr("torch.compile", lambda function, **_: no_compiler)
    rows = masking.timings("cpu", "float32", 5, quick=True)
    found = {(row["implementation"], row["reason"]) for row in rows if "reason" in row}
    assert found == {(masking.FLEX, "RuntimeError: no C++ compiler")}


@pytest.mark.usefixtures("tiny")
def test_decoding_shrinks_the_cache_by_the_key_heads():
    rows = multi_head.decoding("cpu", "float32", 7, quick=True)
    caches = {row["kv_heads"]: row["cache_bytes"] for row in rows}
    assert caches == {g: 2 * g * 7 * 2 * 4 for g in (8, 2, 1)}  # keys and values, width 2, 4 bytes


def test_a_quick_run_does_not_replace_the_record_of_the_book(monkeypatch, tmp_path):
    monkeypatch.setattr(origin, "ROOT", tmp_path)
    monkeypatch.setattr(attention, "measure", lambda device, quick, tables: None)
    for options, folder in ((["--quick"], "_build/benchmarks"), ([], "book/data")):
        assert command_line.main(["attention", *options]) == 0
        record = json.loads((tmp_path / folder / "attention.cpu.json").read_text())
        assert record["quick"] == bool(options)
    assert len(list(tmp_path.rglob("*.json"))) == 2


def test_without_a_gpu_the_command_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(origin, "torch_sees_cuda", lambda: False)
    monkeypatch.setattr(origin, "cupy_sees_cuda", lambda: False)
    arguments = ["attention", "--device", "cuda", "--out", str(tmp_path)]
    assert command_line.main(arguments) == 2
    assert "needs PyTorch or CuPy with a CUDA device" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["OPENBLAS_CORETYPE", "ATEN_CPU_CAPABILITY"])
def test_a_steered_library_is_told_in_a_trial_and_refused_in_a_record(
    monkeypatch, tmp_path, capsys, name
):
    monkeypatch.setenv(name, "Haswell")
    monkeypatch.setattr(attention, "measure", lambda device, quick, tables: None)
    arguments = ["attention", "--out", str(tmp_path)]
    assert command_line.main(arguments) == 2
    assert f"got {name}=Haswell: unset it" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert command_line.main([*arguments, "--quick"]) == 0
    record = json.loads((tmp_path / "attention.cpu.json").read_text())
    assert record["provenance"]["settings"][name] == "Haswell"


def test_every_benchmark_is_listed(capsys):
    files = {path.stem for path in (ROOT / "benchmarks").glob("[!_]*.py")}
    whole = "approximate|cache(?!_speed)|decode|device|distributed|exact|rivals"
    own = r"scaling(?!_batches)|search(?!_near)|linear(?!_writers|_attention|_convolution|_filters)"
    own += "|sparse_attention|variants"
    parts = {name for name in files if re.match(f"({whole}|{own})_", name)}
    others = {"cuda", "device", "faults", "harness", "inputs", "memory", "provenance", "tables"}
    others.add("real_keys")
    assert set(command_line.names()) == files - others - parts
    assert {"approximate", "exact", "train", "decode"} <= set(command_line.names())
    assert command_line.main([]) == 0
    printed = capsys.readouterr().out
    for name in (*command_line.names(), "device"):
        assert re.search(rf"^ +{name}\s+\S", printed, re.M)


def test_no_two_benchmarks_import_each_other():
    above = {}
    for path in (ROOT / "benchmarks").glob("[!_]*.py"):
        own = above[path.stem] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "benchmarks":
                own |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("benchmarks."):
                own.add(node.module.removeprefix("benchmarks."))
    graphlib.TopologicalSorter(above).prepare()  # raises CycleError, with the circle


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_record_in_the_book_has_provenance(path):
    record = json.loads(path.read_text(encoding="utf-8"))
    check_provenance(record["provenance"])
    assert re.fullmatch(r"[0-9a-f]{40}", record["provenance"]["commit"])
    name, kind, _ = path.name.split(".")
    assert record["benchmark"] == name
    assert record["provenance"]["device"]["kind"] == kind.partition("-")[0]
    assert not record.get("quick"), "a trial run is not shown in the book"
    assert not record.get("pretended"), "nor is a pretence"
    check_record(record)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_record_names_commits_that_exist(path):
    """So whoever doubts a number finds the code that measured it."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("there is no git, or no history")
    if git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("a shallow clone has no old commits")
    record = json.loads(path.read_text(encoding="utf-8"))
    places = [value for key, value in record.items() if key in ("provenance", "measured_before")]
    for place in [*places, *record.get("measured", {}).values()]:
        assert git("cat-file", "-t", place["commit"]) == "commit", place["commit"]


def git(*arguments):
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def test_one_table_is_measured_again_and_the_others_stay(tmp_path, monkeypatch, capsys):
    def measure(device, *, quick, tables):
        for name in ("first", "second"):
            tables.whole(name, lambda: [next(counted)])

    counted = iter(range(9))
    monkeypatch.setattr(masking, "measure", measure)
    arguments = ["masking", "--quick", "--out", str(tmp_path)]
    path = tmp_path / "masking.cpu.json"
    assert command_line.main(arguments) == 0
    before = json.loads(path.read_text())
    assert command_line.main([*arguments, "--only", "second"]) == 0
    after = json.loads(path.read_text())
    assert (after["first"], after["second"]) == ([0], [2])
    assert after["provenance"] == before["provenance"]
    assert "measured" not in before
    assert set(after["measured"]) == {"second"}
    assert datetime.fromisoformat(after["measured"]["second"]["date"])
    assert command_line.main([*arguments, "--only", "third"]) == 2
    assert "--only must name tables of first, second, got third" in capsys.readouterr().err
    assert json.loads(path.read_text()) == after

    before["provenance"]["cpu"]["name"] = "another"
    path.write_text(json.dumps(before))
    assert command_line.main([*arguments, "--only", "second"]) == 2
    assert json.loads(path.read_text()) == before
    monkeypatch.setattr(masking, "UNTIMED", ("second",), raising=False)
    assert command_line.main([*arguments, "--only", "first", "second"]) == 2
    assert command_line.main([*arguments, "--only", "second"]) == 0
    assert json.loads(path.read_text())["second"] == [3]
