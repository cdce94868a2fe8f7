"""The command for a GPU: whatever cuts it, what was measured is kept, and the next call goes on."""

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import __main__ as command_line
from benchmarks import (
    device,
    device_machine,
    device_plan,
    faults,
    harness,
    inputs,
    provenance,
    tables,
)

ROOT = Path(__file__).parents[1]

ABSENT = (
    "array_api_strict axe_playwright_python docutils faiss IPython ipykernel jaxtyping "
    "jupyter_core jupytext llvmlite matplotlib nbclient nbconvert nbformat nbgrader nbval numba "
    "PIL playwright py_mini_racer pypdf scipy sphinx threadpoolctl tinycss2 tokenizers transformers"
)
WITHOUT = f"""
import runpy, sys
from importlib.machinery import PathFinder
absent, find = set({ABSENT!r}.split()), PathFinder.find_spec
PathFinder.find_spec = classmethod(
    lambda cls, name, *more: None if name.partition(".")[0] in absent else find(name, *more)
)
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def without_packages(*arguments):
    """Run a module in a process that has none of the packages that a GPU machine may lack."""
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
    )


PYTEST = ("pytest", "-q", "-p", "no:cacheprovider", "-p", "no:nbval", "-p", "no:jaxtyping")


@pytest.mark.weekly
def test_gpu_tests_are_collected_without_packages_of_the_book():
    done = without_packages(*PYTEST, "-m", "gpu", "--collect-only")
    last = done.stdout.strip().splitlines()[-1]
    assert (done.returncode, "error" in last) == (0, False), done.stdout[-2000:]
    found = [line for line in done.stdout.splitlines() if "::" in line]
    rooms = {line.split("/")[1] for line in found}
    assert {"kernels", "sketch", "hashing", "training", "single_head"} <= rooms
    assert len(found) > 1000


@pytest.mark.weekly
def test_a_file_of_tests_is_skipped_for_packages_of_the_book_alone(tmp_path):
    (tmp_path / "test_skipped.py").write_text("import jupytext\n\ndef test_a():\n    pass\n")
    (tmp_path / "test_run.py").write_text("def test_b():\n    pass\n")
    here = (*PYTEST, "-rs", "-p", "conftest", "--rootdir", tmp_path, tmp_path)
    done = without_packages(*here)
    assert done.returncode == 0, done.stdout
    assert "jupytext is not installed" in done.stdout
    assert "1 passed, 1 skipped" in done.stdout
    (tmp_path / "test_broken.py").write_text("import no_such_package\n")
    assert "No module named 'no_such_package'" in without_packages(*here).stdout


def test_the_command_line_needs_no_package_but_the_chosen_one():
    listed = without_packages("benchmarks")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert all(f"\n    {name}" in listed.stdout for name in ("exact", "search", "device"))
    pretended = without_packages("benchmarks", "device", "--pretend", "--deadline", "99")
    assert pretended.returncode == 0
    assert "doctor: done" in pretended.stderr


# The plan


def test_every_step_is_a_table_of_its_benchmark(monkeypatch):
    monkeypatch.setattr(inputs, "libraries", lambda device: ["torch", "cupy"])
    asked = {}
    for step in device_plan.PLAN:
        if not step.command:
            asked.setdefault(step.benchmark, []).append(step.table)
    for name, wanted in asked.items():
        module = command_line.importlib.import_module(f"benchmarks.{name}")
        passed_over = tables.Tables({}, only=())
        module.measure("cuda", quick=False, tables=passed_over)
        assert set(wanted) == set(passed_over.names), name
    on_cuda = {n for n in command_line.names() if "cuda" in command_line.devices(n)}
    assert set(asked) == on_cuda
    assert all(0 < step.usual < step.limit <= 280 for step in device_plan.PLAN)


def test_what_the_goals_are_about_is_measured_in_nine_minutes_at_worst():
    first = [step.name for step in device_plan.PLAN[:5]]
    assert first == ["doctor", "exact.ceilings", "exact.goals", "search.million", "exact.decode"]
    assert sum(step.limit for step in device_plan.PLAN[:5]) <= 540 - device.PACKING_SECONDS
    assert device_plan.PLAN[-1].name == "train.compiled"  # minutes of a compiler


def test_steps_are_chosen_by_name():
    def names(*asked):
        return [step.name for step in device_plan.chosen(asked)]

    assert names("exact.rows,doctor", "exact.decode") == ["exact.rows", "doctor", "exact.decode"]
    assert names("search") == ["search.million"]
    assert names("exact.half", "exact")[:2] == ["exact.half", "exact.ceilings"]
    assert names("tests") == ["tests.kernels", "tests.sketch", "tests.rest"]
    assert device_plan.chosen(None) == list(device_plan.PLAN)
    with pytest.raises(ValueError, match=r"--tables must be of doctor, .*, got 'exact.row'"):
        names("exact.row")


@pytest.mark.parametrize(
    ("plugin", "options"),
    [
        ("xdist", ["-n", "14", "--dist", "worksteal"]),
        # a thread: a test that waits for a GPU never comes to a signal
        ("pytest_timeout", ["--timeout", "120", "--timeout-method", "thread"]),
        ("none", []),
    ],
)
def test_commands(monkeypatch, plugin, options):
    monkeypatch.setattr(device_plan.importlib.util, "find_spec", lambda name: name == plugin)
    monkeypatch.setattr(device_plan.os, "cpu_count", lambda: 16)
    doctor, tested, table = device_plan.chosen(["doctor", "tests.kernels", "exact.rows"])
    assert device_plan.arguments(doctor, "x", 9.0, True) == ["attnbook", "doctor", "--gpu"]
    assert device_plan.arguments(tested, "x", 9.0, True) == [*tested.command, *options]
    assert " ".join(device_plan.arguments(table, "x", 100.0, False)) == (
        "benchmarks exact --device cuda --only rows --out x --seconds 85"
    )
    assert device_plan.arguments(table, "x", 100.0, True)[-1] == "--quick"


# Cuts


class Watched(device_machine.Pretended):
    """It remembers which steps were done, and that one was under way."""

    def __init__(self, *given):
        super().__init__(*given)
        self.ended, self.begun = [], []

    def do(self, step, *given):
        self.begun.append(step.name)
        outcome = super().do(step, *given)
        self.ended.append((step.name, outcome.status))
        return outcome


class Power:
    """Fails at the n-th write of a file, half of which may then be there."""

    def __init__(self, patch, writes):
        self.left = writes
        for owner, name in (
            (Path, "write_text"),
            (Path, "replace"),
            (zipfile.ZipFile, "write"),
        ):
            patch.setattr(owner, name, self.guarded(getattr(owner, name)))

    def guarded(self, function):
        def write(*given, **more):
            self.left -= 1
            if self.left == 0:
                if function.__name__ == "write_text":
                    function(given[0], given[1][: len(given[1]) // 2], **more)
                raise device_machine.MachineGoneError
            return function(*given, **more)

        return write


def kept_records(out):
    """Return all records, whose files must be whole, by their file."""
    if not (out / "records.zip").exists():
        return {}
    with zipfile.ZipFile(out / "records.zip") as packed:
        assert packed.testzip() is None
        records = {name: json.loads(packed.read(name)) for name in packed.namelist()}
    for record in records.values():
        assert record["pretended"] is True
        assert all(record[name] for name in record["table_seconds"])
    return records


def kept_tables(out):
    """Return the tables of all records that are whole."""
    return {
        f"{name.partition('.')[0]}.{table}"
        for name, record in kept_records(out).items()
        for table in record["table_seconds"]
        if tables.is_whole(record, table)
    }


def parts(out, name):
    """Return the parts of a table that were measured, and the reasons of the others."""
    benchmark, table = name.split(".")
    rows = kept_records(out)[f"{benchmark}.{PRETENDED}.json"][table]
    done = [row["part"] for row in rows if not tables.is_left_out(row)]
    return done, [row["reason"] for row in rows if tables.is_left_out(row)]


PRETENDED = "cuda-a-pretended-gpu"


def told(out):
    """Return what `device.DEVICE.json` says, which must be whole."""
    path = out / f"device.{PRETENDED}.json"
    return json.loads(path.read_text()) if path.exists() else {"steps": {}}


def fates(out):
    """Return how each step went."""
    return {name: facts["status"] for name, facts in told(out)["steps"].items()}


def called(out, machine, **given):
    """Make a call that may be cut, and return its exit status, or None."""
    try:
        return device.run(out, machine, command="python -m benchmarks device --pretend", **given)
    except device_machine.MachineGoneError:
        return None


COMMANDS = {step.name for step in device_plan.PLAN if step.command}
CUTS = st.one_of(
    st.tuples(st.just("seconds"), st.floats(1, 900)),
    st.tuples(st.just("writes"), st.integers(1, 60)),
    st.tuples(st.just("deadline"), st.floats(1, 900)),
)


@settings(max_examples=examples(15))
@given(seed=st.integers(0, 99), cuts=st.lists(CUTS, min_size=1, max_size=5))
def test_a_cut_loses_the_table_under_way_and_no_other(tmp_path_factory, seed, cuts):
    out = tmp_path_factory.mktemp("out")
    done: set[str] = set()  # by any call, and kept
    measured: set[tuple[str, str, int]] = set()  # each part, also of a table that is not whole
    for kind, at in [*cuts, ("deadline", None)]:
        machine = Watched(seed, at if kind == "seconds" else None)
        with pytest.MonkeyPatch.context() as patch:
            if kind == "writes":
                Power(patch, at)
            status = called(out, machine, deadline=at if kind == "deadline" else None)
        assert not set(machine.begun) & done, "what was kept is not measured again"
        ended = {name for name, how in machine.ended if how == "done"} | done
        done = kept_tables(out) | {n for n in COMMANDS if fates(out).get(n) == "done"}
        partly = {name for name, how in fates(out).items() if how == "in part"}
        under_way = {machine.begun[-1]} if status is None and machine.begun else set()
        assert ended - done - partly <= under_way
        kept = {
            (name, table, row["part"])
            for name, record in kept_records(out).items()
            for table in record["table_seconds"]
            for row in record[table]
            if not tables.is_left_out(row)
        }
        assert measured <= kept
        measured = kept
        assert len(list(out.iterdir())) <= 8
        if kind == "deadline" and at is not None:
            assert machine.clock() <= at
    # the last call was not cut
    assert done | set(fates(out)) == {step.name for step in device_plan.PLAN}
    failed = {name for name, how in fates(out).items() if how in ("failed", "killed")}
    assert not failed & done
    partly = {name for name, how in fates(out).items() if how == "in part"}
    again = Watched(seed)
    assert called(out, again) == (1 if failed else 0)
    assert set(again.begun) == failed | partly


def fate(seed, name):
    """Return how a pretended step ends."""
    (step,) = device_plan.chosen([name])
    with tempfile.TemporaryDirectory() as work:
        machine = device_machine.Pretended(seed)
        return machine.do(step, Path(work), step.limit, False, lambda line: None).status


def seed_of(**fates):
    """Return a seed with which steps end so; their names with _ for the dot."""
    named = {name.replace("_", "."): how for name, how in fates.items()}
    return next(s for s in range(999) if all(fate(s, n) == how for n, how in named.items()))


def test_what_failed_is_tried_again_last_and_what_is_done_never(tmp_path):
    seed = seed_of(doctor="done", exact_ceilings="failed")
    names = ["doctor", "exact.ceilings"]
    assert called(tmp_path, Watched(seed), tables=names) == 1
    again = Watched(seed)
    called(tmp_path, again, tables=[*names, "exact.half"])
    assert list(dict.fromkeys(again.begun)) == ["exact.half", "exact.ceilings"]
    log = (tmp_path / "log.txt").read_text()
    assert "exact.ceilings: failed after" in log
    assert "(a pretended step failed)" in log
    assert len(told(tmp_path)["calls"]) == 2


@pytest.mark.parametrize(
    ("before", "verdict", "begun"),
    [
        *[("done", "right", ["exact.half"]), ("done", "", ["doctor", "exact.half"])],
        *[("killed", "right", ["exact.half", "doctor"]), ("killed", "", ["doctor", "exact.half"])],
    ],
)
def test_where_verdicts_are_lost_the_rungs_are_compared_first(
    monkeypatch, tmp_path, before, verdict, begun
):
    verdicts = {"cupy_tiled": verdict, "triton": "right"}
    monkeypatch.setattr(device_machine.verification, "names", lambda: tuple(verdicts))
    monkeypatch.setattr(device_machine.verification, "verdict_on", verdicts.__getitem__)
    called(tmp_path, Watched(seed_of(doctor=before)), tables=["doctor"])
    assert fates(tmp_path) == {"doctor": before}
    again = Watched(seed_of(doctor="done", exact_half="done"))
    again.remembers = device_machine.Processes().remembers
    assert called(tmp_path, again, tables=["doctor", "exact.half"]) == 0
    assert again.begun == begun


def test_a_step_that_hangs_is_killed_at_its_limit(tmp_path):
    seed = seed_of(search_million="killed")
    machine = Watched(seed)
    assert called(tmp_path, machine, tables=["search"]) == 1
    (step,) = device_plan.chosen(["search"])
    assert machine.clock() == step.limit
    facts = told(tmp_path)["steps"][step.name]
    assert (facts["status"], facts["seconds"], facts["at_limit"]) == ("killed", step.limit, True)
    assert kept_tables(tmp_path) == set()
    # its first part was measured before, and the next call goes on with the others
    assert parts(tmp_path, step.name) == ([0], [tables.UNDER_WAY, tables.TO_COME])
    log = (tmp_path / "log.txt").read_text()
    assert called(tmp_path, Watched(seed), tables=["search"]) == 1
    more = (tmp_path / "log.txt").read_text()[len(log) :]
    assert "million: goes on with 2 of 3 steps, which were left out" in more
    assert "million 1 of 2, part = 2: " in more  # what was under way comes last
    well = Watched(seed_of(search_million="done"))
    assert called(tmp_path, well, tables=["search"]) == 0
    assert parts(tmp_path, step.name) == ([0, 1, 2], [])
    assert kept_tables(tmp_path) == {step.name}


def test_a_table_goes_on_past_a_part_that_ends_its_process(tmp_path):
    class Faulty(Watched):
        faults = 2

        def _pass(self, seconds):
            super()._pass(seconds)
            if self.faults:
                self.faults -= 1
                raise ArithmeticError("a fault")

    machine = Faulty(seed_of(exact_half="done"))
    assert called(tmp_path, machine, tables=["exact.half"]) == 0
    assert machine.ended == [("exact.half", how) for how in ("failed", "failed", "done")]
    assert parts(tmp_path, "exact.half") == ([0, 1, 2], [])  # those that failed, at last

    # where it is known whose fault it was, also past the last one: it is measured without them
    class Known(Faulty):
        def _pass(self, seconds):
            device_machine.Pretended._pass(self, seconds)
            if len(faults.LEFT_OUT) < self.faults:
                raise faults.FaultError({"who": len(faults.LEFT_OUT)}, "a fault")

        def do(self, *given):
            try:
                return super().do(*given)
            except faults.FaultError as error:
                self.ended.append((given[0].name, "failed"))
                return device_machine.Outcome("failed", str(error))

    machine, out = Known(seed_of(exact_half="done")), tmp_path / "known"
    assert called(out, machine, tables=["exact.half"]) == 0
    assert [how for _, how in machine.ended] == ["failed"] * 6 + ["done"]  # twice each part
    assert parts(out, "exact.half") == ([0, 1, 2], [])
    # not for ever, and not beyond its limit
    (step,) = device_plan.chosen(["exact.half"])
    for seconds, times in ((0, 3), (step.limit, 1)):

        class Broken(Faulty):
            faults = 99
            each = seconds

            def do(self, *given):
                self.now += self.each
                return super().do(*given)

        machine = Broken(seed_of(exact_half="done"))
        out = tmp_path / str(times)
        assert called(out, machine, tables=["exact.half"]) == 1
        assert len(machine.begun) == times
        assert parts(out, "exact.half")[1][:times] == [tables.UNDER_WAY] * times

    class Absent(Faulty):
        def do(self, *given):
            if not self.begun:
                return super().do(*given)
            self.begun.append("again")
            assert len(self.begun) < 3, "it begins no part"
            return device_machine.Outcome("failed", "no such module")

    machine = Absent(seed_of(exact_half="done"))
    assert called(tmp_path / "absent", machine, tables=["exact.half"]) == 1


class Short(Watched):
    """It gives its steps less time than they were promised."""

    def do(self, step, work, seconds, *given):
        return super().do(step, work, step.usual * 0.6, *given)


def test_a_table_with_rows_left_out_is_gone_on_with(tmp_path):
    (step,) = device_plan.chosen(["exact.half"])
    draws = {s: device_machine.random.Random(f"{s} {step.name}") for s in range(99)}
    slow = next(s for s, d in draws.items() if d.uniform(0, 1) > 0.9 and 0.1 < d.random() < 0.9)
    assert called(tmp_path, Short(slow), tables=[step.name]) == 0
    assert fates(tmp_path) == {step.name: "in part"}
    assert "call again with the same --out to go on" in (tmp_path / "log.txt").read_text()
    done, reasons = parts(tmp_path, step.name)
    assert done == [0]
    assert all(reason.startswith("left out: it takes about") for reason in reasons)
    before = kept_records(tmp_path)[f"exact.{PRETENDED}.json"]
    assert called(tmp_path, Watched(slow), tables=[step.name]) == 0
    assert fates(tmp_path) == {step.name: "done"}
    assert parts(tmp_path, step.name) == ([0, 1, 2], [])
    after = kept_records(tmp_path)[f"exact.{PRETENDED}.json"]
    assert after["half"][0] == before["half"][0]
    assert after["table_seconds"]["half"] > before["table_seconds"]["half"]


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_who_ends_a_call_loses_the_part_under_way(tmp_path, end):
    class Ended(Watched):
        def _pass(self, seconds):
            super()._pass(seconds)
            if self.now > 20:
                raise end

    with pytest.raises(end):
        called(tmp_path, Ended(seed_of(exact_half="done")), tables=["exact.half"])
    done, reasons = parts(tmp_path, "exact.half")
    assert done
    assert reasons[0] == tables.UNDER_WAY


def named(name):
    """Return a machine whose GPU has this name."""
    machine, head = Watched(0), Watched(0).head("x")
    head["provenance"]["device"]["name"] = name
    machine.head = lambda command: head
    return machine


def test_records_of_two_devices_share_a_folder(tmp_path):
    for name in ("NVIDIA H200", "NVIDIA H100 80GB HBM3"):
        machine = named(name)
        assert called(tmp_path, machine, tables=["doctor", "exact.half"]) == 0
        assert machine.begun == ["doctor", "exact.half"]  # also what was done on the other
    names = ["cuda-h100-80gb-hbm3", "cuda-h200"]
    assert sorted(kept_records(tmp_path)) == [f"exact.{name}.json" for name in names]
    files = [*(f"device.{name}.json" for name in names), "log.txt", "records.zip"]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    again = named("NVIDIA H200")
    assert called(tmp_path, again, tables=["doctor", "exact.half"]) == 0
    assert again.begun == []


def test_trials_are_not_mixed_with_records(tmp_path):
    assert called(tmp_path, Watched(0), tables=["doctor"]) == 0
    before = told(tmp_path)
    for machine in (Watched(0), named("another")):
        with pytest.raises(ValueError, match="must hold records of the same --quick, "):
            device.run(tmp_path, machine, command="x", quick=True)
    assert told(tmp_path) == before


# Processes


def statement(code):
    return device_plan.Step("x", 1, 2, ("timeit", "-n", "1", "-r", "1", code))


@pytest.mark.parametrize(
    ("code", "seconds", "outcome"),
    [
        ("import os; print(os.environ['ATTNBOOK_COMMIT'])", 600.0, ("done", "loop, best")),
        ("raise KeyError('broken')", 600.0, ("failed", "KeyError: 'broken'")),
        ("import time; time.sleep(600)", 0.2, ("killed", "")),
    ],
)
def test_a_step_is_a_process(tmp_path, code, seconds, outcome):
    machine, lines = device_machine.Processes(), []
    found = machine.do(statement(code), tmp_path, seconds, False, lines.append)
    assert found.status == outcome[0]
    assert outcome[1] in found.last_line
    if found.status == "done":
        assert lines[0] == "  unknown"


def test_children_of_a_step_end_with_it():
    code = (
        "import subprocess, sys, time; "
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        "print(p.pid); time.sleep(600)"
    )
    command = [sys.executable, "-c", code]
    with device_machine._process(command, "a" * 40) as process:
        child = int(process.stdout.readline())
        process.stdout.close()
    assert process.poll() == -9
    for _ in range(600):  # the system takes the dead child away in its own time
        if not Path(f"/proc/{child}").exists() or "Z" in state(child):
            break
        device_machine.time.sleep(0.05)
    else:
        pytest.fail("the child lives on")


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_a_table_that_was_not_written_has_failed(tmp_path):
    class Idle(Watched):
        def do(self, step, *given):
            return device_machine.Outcome("done", "")

    assert called(tmp_path, Idle(0), tables=["exact.rows"]) == 1
    assert fates(tmp_path) == {"exact.rows": "failed"}


# The command line


def test_pretence_from_the_command_line(tmp_path, capsys):
    seed = seed_of(doctor="done", exact_ceilings="done", exact_goals="done")
    arguments = ["device", "--pretend", "--out", str(tmp_path), "--seed", str(seed)]
    arguments += ["--tables", "doctor", "exact"]
    assert command_line.main([*arguments, "--cut", "170"]) == 1
    assert "the pretended machine is gone after 170 s" in capsys.readouterr().err
    command_line.main(arguments)
    told = capsys.readouterr().err
    assert "9 steps, 2 of them done before" in told
    assert f"all is in {tmp_path}" in told
    state = f"device.{PRETENDED}.json"
    assert sorted(x.name for x in tmp_path.iterdir()) == [state, "log.txt", "records.zip"]
    assert told.strip() in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cut", "3"], "--cut needs --pretend"),
        (["--pretend", "--tables", "x"], "--tables must be of doctor"),
        ([], "needs PyTorch or CuPy with a CUDA device"),
    ],
)
def test_what_cannot_be_done_is_said(monkeypatch, tmp_path, capsys, arguments, message):
    monkeypatch.setattr(provenance, "torch_sees_cuda", lambda: False)
    monkeypatch.setattr(provenance, "cupy_sees_cuda", lambda: False)
    assert command_line.main(["device", *arguments, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_help_has_all_steps(capsys):
    with pytest.raises(SystemExit):
        command_line.main(["device", "--help"])
    told = capsys.readouterr().out
    assert all(step.name in told for step in device_plan.PLAN)


def test_a_record_is_never_half_written(monkeypatch, tmp_path):
    path = harness.write({"n": 1}, tmp_path / "x.json")
    with pytest.MonkeyPatch.context() as patch:
        Power(patch, 1)
        with pytest.raises(device_machine.MachineGoneError):
            harness.write({"n": 2}, path)
    assert json.loads(path.read_text()) == {"n": 1}
