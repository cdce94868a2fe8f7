"""The command for a GPU: whatever cuts it, what was measured is kept, and the next call goes on."""

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import __main__ as command_line
from benchmarks import (
    device,
    device_machine,
    device_plan,
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
    pretended = without_packages("benchmarks", "device", "--pretend", "--deadline", "60")
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


def test_steps_are_chosen_by_name():
    def names(*asked):
        return [step.name for step in device_plan.chosen(asked)]

    assert names("exact.rows,doctor", "exact.decode") == ["exact.rows", "doctor", "exact.decode"]
    assert names("search") == ["search.million"]
    assert names("exact.half", "exact")[:2] == ["exact.half", "exact.ceilings"]
    assert device_plan.chosen(None) == list(device_plan.PLAN)
    with pytest.raises(ValueError, match=r"--tables must be of doctor, .*, got 'exact.row'"):
        names("exact.row")


@pytest.mark.parametrize(
    ("plugin", "options"),
    [
        ("xdist", ["-n", "14", "--dist", "worksteal"]),
        ("pytest_timeout", ["--timeout", "120"]),
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


def kept_tables(out):
    """Return the tables of all records, whose files must be whole."""
    if not (out / "records.zip").exists():
        return set()
    with zipfile.ZipFile(out / "records.zip") as packed:
        assert packed.testzip() is None
        records = {name: json.loads(packed.read(name)) for name in packed.namelist()}
    for record in records.values():
        assert record["pretended"] is True
        assert all(record[name] for name in record["table_seconds"])
    return {
        f"{name.partition('.')[0]}.{table}"
        for name, record in records.items()
        for table in record["table_seconds"]
    }


def fates(out):
    """Return how each step went, by `device.json`, which must be whole."""
    path = out / "device.json"
    steps = json.loads(path.read_text())["steps"] if path.exists() else {}
    return {name: facts["status"] for name, facts in steps.items()}


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


@settings(max_examples=15)
@given(seed=st.integers(0, 99), cuts=st.lists(CUTS, min_size=1, max_size=5))
def test_a_cut_loses_the_table_under_way_and_no_other(tmp_path_factory, seed, cuts):
    out = tmp_path_factory.mktemp("out")
    done: set[str] = set()  # by any call, and kept
    for kind, at in [*cuts, ("deadline", None)]:
        machine = Watched(seed, at if kind == "seconds" else None)
        with pytest.MonkeyPatch.context() as patch:
            if kind == "writes":
                Power(patch, at)
            status = called(out, machine, deadline=at if kind == "deadline" else None)
        assert not set(machine.begun) & done, "what was kept is not measured again"
        ended = {name for name, how in machine.ended if how == "done"} | done
        done = kept_tables(out) | {n for n in COMMANDS if fates(out).get(n) == "done"}
        under_way = {machine.begun[-1]} if status is None and machine.begun else set()
        assert ended - done <= under_way
        assert len(list(out.iterdir())) <= 8
        if kind == "deadline" and at is not None:
            assert machine.clock() <= at
    # the last call was not cut
    assert done | set(fates(out)) == {step.name for step in device_plan.PLAN}
    failed = {name for name, how in fates(out).items() if how != "done"}
    assert not failed & done
    again = Watched(seed)
    assert called(out, again) == (1 if failed else 0)
    assert set(again.begun) == failed


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
    assert again.begun == ["exact.half", "exact.ceilings"]
    log = (tmp_path / "log.txt").read_text()
    assert "exact.ceilings: failed after" in log
    assert "(a pretended step failed)" in log
    record = json.loads((tmp_path / "device.json").read_text())
    assert len(record["calls"]) == 2


def test_a_step_that_hangs_is_killed_at_its_limit(tmp_path):
    seed = seed_of(search_million="killed")
    machine = Watched(seed)
    assert called(tmp_path, machine, tables=["search"]) == 1
    (step,) = device_plan.chosen(["search"])
    assert machine.clock() == step.limit
    facts = json.loads((tmp_path / "device.json").read_text())["steps"][step.name]
    assert (facts["status"], facts["seconds"], facts["at_limit"]) == ("killed", step.limit, True)
    assert kept_tables(tmp_path) == set()


@pytest.mark.parametrize("other", ["device", "quick"])
def test_records_of_two_devices_are_not_mixed(tmp_path, other):
    assert called(tmp_path, Watched(0), tables=["doctor"]) == 0
    before = (tmp_path / "device.json").read_text()
    machine = Watched(0)
    head = machine.head("x")
    if other == "device":
        head["provenance"]["device"]["name"] = "another"
    machine.head = lambda command: head
    with pytest.raises(ValueError, match=f"must hold records of the same (--)?{other}, "):
        device.run(tmp_path, machine, command="x", quick=other == "quick")
    assert (tmp_path / "device.json").read_text() == before


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
    arguments = ["device", "--pretend", "--out", str(tmp_path), "--tables", "doctor", "exact"]
    assert command_line.main([*arguments, "--cut", "60", "--seed", "1"]) == 1
    assert "the pretended machine is gone after 60 s" in capsys.readouterr().err
    command_line.main([*arguments, "--seed", "1"])
    told = capsys.readouterr().err
    assert "8 steps, 1 of them done before" in told
    assert f"all is in {tmp_path}" in told
    assert sorted(x.name for x in tmp_path.iterdir()) == ["device.json", "log.txt", "records.zip"]
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
