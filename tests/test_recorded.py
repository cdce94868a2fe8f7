"""The tables of recorded figures say what the records say."""

import importlib
import json
import re
import shutil
import types
from pathlib import Path

import pytest
from cases import load

from benchmarks import device_plan, exact, inputs, tables

BOOK = Path(__file__).parents[1] / "book"
recorded = load(BOOK / "_ext/recorded.py")


def row(who, n, seconds, speed):
    median = None if seconds is None else {"median": seconds}
    found = {"implementation": who, "n": n, "seconds": median, "speed": speed}
    return found if seconds else found | {"reason": "no compiler"}


ROWS = [
    row("ours", 64, 0.5e-3, 2.0),
    row("theirs", 64, 1e-3, 1.0),
    row("ours", 4096, 3.0, 0.667),
    row("theirs", 4096, 2.0, 1.0),
    row("slow", 4096, None, None),
]


@pytest.mark.parametrize(
    ("x", "text"),
    [
        *[(0, "0"), (1.0, "1.00"), (12.345, "12.3"), (186.4, "186"), (1234.5, "1,234")],
        *[(0.0123, "0.0123"), (0.5, "0.500"), (3.4e-7, "3.4 · 10⁻⁷"), (2.5e9, "2.5 · 10⁹")],
    ],
)
def test_numbers_have_three_digits(x, text):
    assert recorded.number(x) == text


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        *[(text, ["amount"]) for text in ("0", "−4.1", "3.4 · 10⁻⁷", "0.400 ×", "< 0.1 %")],
        *[(text, []) for text in ("–", "yes", "flash", "kappa = 4, L = 3")],
        ("a sentence about what this method leaves out", ["words"]),
    ],
)
def test_words_of_a_cell_may_break_and_a_figure_may_not(cell, kind):
    assert recorded._entry(cell)["classes"] == kind


@pytest.mark.parametrize(
    ("name", "x", "text"),
    [
        *[("seconds", {"median": 0.1864}, "186 ms"), ("per_query", 2.4e-6, "2.40 µs")],
        *[("seconds", {"median": 3e-9}, "3.00 ns"), ("seconds", None, "–")],
        *[("speed", 0.4, "0.400 ×"), ("extra_bytes", 3 * 2**20, "3.00 MiB")],
        *[("displacement", {"median": 1.0, "mean": 1.5}, "1.50"), ("K", 16, "16")],
        ("is_causal", True, "yes"),
    ],
)
def test_fields_have_their_unit(name, x, text):
    assert recorded.show(name, x) == text


def test_a_grid_has_a_line_for_each_and_a_column_for_each_size():
    head, body = recorded.grid(ROWS, ["implementation"], ["seconds", "speed"], "n")
    assert head == ["who", "n = 64", "n = 4,096"]
    assert body == [
        ["ours", "500 µs, 2.00 ×", "3.00 s, 0.667 ×"],
        ["theirs", "1.00 ms, 1.00 ×", "2.00 s, 1.00 ×"],
        ["slow", "", "did not run"],
    ]
    # whichever was measured first
    assert recorded.grid(ROWS[::-1], ["implementation"], ["seconds"], "n")[0] == head
    names = [row | {"n": str(row["n"])} for row in ROWS[::-1]]
    assert recorded.grid(names, ["implementation"], ["seconds"], "n")[0][1:] == ["4096", "64"]
    # without columns it has a line for each row
    alone = recorded.grid(ROWS[:2], ["implementation"], ["seconds"], None)
    assert alone == (["who", "time"], [["ours", "500 µs"], ["theirs", "1.00 ms"]])


def test_the_comparison_says_where_we_are_slower():
    found = recorded.comparison(ROWS, ["ours", "slow"], "theirs", "n")
    assert found == (
        "1 of our 2 entries are slower than theirs: from 0.667 times as fast (ours at n = 4,096) "
        "to 2.00 times (ours at n = 64)."
    )
    assert recorded.comparison(ROWS, ["nobody"], "theirs", "n") is None


def test_rows_are_chosen_by_their_fields():
    assert recorded.rows_of({"rows": ROWS}, "rows", {"n": "64"}) == ROWS[:2]
    assert recorded.rows_of({"rows": ROWS}, "rows", {"n": "64|4096"}) == ROWS
    assert recorded.rows_of({"a": {"b": ROWS}}, "a.b", {"implementation": "slow"}) == ROWS[4:]


def test_tables_that_a_record_lacks_have_no_rows():
    assert recorded.rows_of({}, "rows", {}) == []
    assert recorded.rows_of({"growth": {}}, "growth.fits", {}) == []
    assert recorded.rows_of({"rows": ROWS[2:], "goals": ROWS[:1]}, "rows goals", {}) == [
        *ROWS[2:],
        ROWS[0],
    ]
    left_out = {"n": 64, "seconds": None, "reason": tables.TO_COME}
    assert recorded.rows_of({"rows": [left_out, *ROWS]}, "rows", {}) == ROWS


def test_provenance_names_device_date_commit_and_versions():
    path = sorted((BOOK / "data").glob("*.json"))[0]
    record = json.loads(path.read_text("utf8"))
    place = record["provenance"]
    named = (place["date"][:10], place["commit"][:10], place["versions"]["numpy"])
    text = " ".join(recorded.provenance(record))
    assert all(part in text for part in named)
    place["settings"] = {"OPENBLAS_CORETYPE": "Haswell"}
    assert (
        "Settings of the environment: OPENBLAS_CORETYPE=Haswell." in recorded.provenance(record)[1]
    )
    place["settings"] = {}
    assert "Settings of the environment: none." in recorded.provenance(record)[1]
    record["measured"] = {"rows": place | {"date": "2031-02-03"}}
    later = recorded.provenance(record)[0]
    assert "Table rows again 2031-02-03" in later
    assert "another" not in later
    record["measured"]["rows"]["cpu"] = {}
    assert "on another processor" in recorded.provenance(record)[0]
    # of one record that several calls of a day made, nothing is told
    record["measured"] = {"rows": dict(place)}
    assert "again" not in recorded.provenance(record)[0]


def test_what_no_row_has_is_not_shown():
    shown = ["seconds", "device_seconds"]
    assert recorded.grid(ROWS[:1], ["implementation"], shown, None)[0] == ["who", "time"]
    on_gpu = [ROWS[0] | {"device_seconds": {"median": 3e-5}}, ROWS[1]]
    head, body = recorded.grid(on_gpu, ["implementation"], shown, None)
    assert head == ["who", "time", "on the GPU"]
    assert [line[2] for line in body] == ["30.0 µs", "–"]
    assert recorded.grid(on_gpu, ["implementation"], shown, "n")[1][0] == [
        "ours",
        "500 µs, GPU 30.0 µs",
    ]


def stored(folder, name, device, who, **fields):
    """Write a record into a folder, and return it."""
    path = sorted((BOOK / "data").glob("exact.cpu.json"))[0]
    place = json.loads(path.read_text("utf8"))["provenance"] | {"device": {"kind": device}}
    place["device"]["name"] = who
    made = {"provenance": place, "rows": ROWS[:2], **fields}
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / name).write_text(json.dumps(made))
    return made


def run(directive, folder, *arguments, **options):
    """Return the text of what a directive makes on a page of `folder`, and its nodes."""
    env = types.SimpleNamespace(
        docname="page", doc2path=lambda name: str(folder / name), note_dependency=lambda path: None
    )
    settings = types.SimpleNamespace(env=env)
    state = types.SimpleNamespace(document=types.SimpleNamespace(settings=settings))
    machine = types.SimpleNamespace(reporter=None)
    made = directive("name", list(arguments), options, [], 1, 0, "", state, machine).run()
    return "\n".join(node.astext() for node in made), made


OPTIONS = {"by": "implementation", "across": "n", "show": "seconds speed"}


def test_records_of_several_devices_stand_side_by_side(tmp_path):
    stored(tmp_path, "exact.cpu.json", "cpu", "a processor")
    text, nodes = run(recorded.Recorded, tmp_path, "exact", **OPTIONS)
    assert [type(node).__name__ for node in nodes] == ["table"]
    assert "a processor" not in text  # nothing to tell apart
    for name, who in (("exact.cuda-h200.json", "an H200"), ("exact.cuda-h100.json", "an H100")):
        stored(tmp_path, name, "cuda", who)
    stored(tmp_path, "exactly.cuda-h100.json", "cuda", "of another benchmark")
    text, (beside,) = run(recorded.Recorded, tmp_path, "exact", **OPTIONS)
    assert beside["classes"] == ["recorded-beside"]
    assert [part[0].astext() for part in beside] == ["a processor", "an H100", "an H200"]
    assert all(type(part[1]).__name__ == "table" for part in beside)
    assert "of another benchmark" not in text
    text, _ = run(recorded.RecordedOn, tmp_path, "exact")
    assert text.count("Repeat it with") == 3
    assert "No record" not in text


def test_a_chapter_shows_records_of_gpus_alone(tmp_path):
    stored(tmp_path, "exact.cpu.json", "cpu", "a processor")
    options = OPTIONS | {"device": "cuda"}
    assert run(recorded.Recorded, tmp_path, "exact", **options) == ("", [])
    made = stored(tmp_path, "exact.cuda-h100.json", "cuda", "an H100")
    text, (title, table) = run(recorded.Recorded, tmp_path, "exact", **options)
    assert title.astext() == f"an H100, {made['provenance']['date'][:10]}"
    assert type(table).__name__ == "table"
    assert "a processor" not in text


def test_a_page_has_one_line_where_there_is_no_gpu(tmp_path):
    stored(tmp_path, "exact.cpu.json", "cpu", "a processor")
    text, _ = run(recorded.RecordedOn, tmp_path, "exact")
    assert "GPU" not in text
    text, _ = run(recorded.RecordedDevices, tmp_path)
    assert text == (
        "No figure here is from a GPU. On one, all are measured by "
        "python -m benchmarks device --out DIR."
    )
    stored(tmp_path, "exact.cuda-h100.json", "cuda", "an H100")
    stored(tmp_path, "train.cuda-h100.json", "cuda", "an H100")
    text, _ = run(recorded.RecordedDevices, tmp_path)
    assert text == "Figures of a GPU are from an H100."


def asked():
    """Return each table that a page shows: the page, the benchmark and the options."""
    found = []
    for page in sorted(BOOK.glob("*.md")):
        for name, body in re.findall(r"```{recorded} (\w+)\n(.*?)```", page.read_text(), re.S):
            options = dict(re.findall(r"^:(\w+): (.*)$", body, re.M))
            found.append(pytest.param(name, options, id=f"{page.stem}-{len(found)}-{name}"))
    return found


@pytest.fixture(scope="module")
def left_out():
    """Return the record of a GPU by benchmark, each step of whose tables was left out."""
    made = {}

    class Passed(tables.Tables):
        def measure(self, name, steps, *told):
            steps = steps() if callable(steps) else steps
            reason = {"reason": tables.TO_COME, "seconds": None}
            self.record[name] = [{**step.about, **reason} for step in steps]

        def whole(self, name, table):
            self.record[name] = []

        def parity(self, cases):
            self.record["parity"] = []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "libraries", lambda device: ["torch", "cupy"])
        patch.setattr(exact, "skipping", lambda *given, **more: [])  # whose steps draw numbers
        for name in {step.benchmark for step in device_plan.PLAN if not step.command}:
            growing = Passed({})
            importlib.import_module(f"benchmarks.{name}").measure(
                "cuda", quick=False, tables=growing
            )
            made[name] = growing.record
    return made


def chosen(steps, on_cpu, options):
    """Return the steps on a GPU whose rows the options of a page may choose.

    What tells rows of one step apart is looked for in the record of the CPU.
    """
    table = options.get("table", "rows goals")
    where = dict(part.split("=", 1) for part in options.get("where", "").split())
    found = []
    for step in recorded.rows_of(steps, table, {}):
        of_step = {key: value for key, value in where.items() if key in step}
        within = {key: value for key, value in where.items() if key not in step}
        if recorded.rows_of({"rows": [step]}, "rows", of_step) and (
            not within or recorded.rows_of(on_cpu, table, within)
        ):
            found.append(step)
    return found


def of_steps(record):
    """Return tables of what tells their steps apart."""
    dropped = ("reason", "seconds")
    return {
        table: [{key: x for key, x in row.items() if key not in dropped} for row in rows]
        for table, rows in record.items()
        if isinstance(rows, list)
    }


def cpu_record(name):
    path = BOOK / "data" / f"{name}.cpu.json"
    return json.loads(path.read_text("utf8")) if path.exists() else {}


OF_GPUS = [case for case in asked() if case.values[1].get("device") == "cuda"]


@pytest.mark.parametrize(("name", "options"), OF_GPUS)
def test_what_a_page_shows_of_gpus_is_measured_there(left_out, name, options):
    """Else it would show nothing for ever, and nobody would see it."""
    steps, on_cpu = of_steps(left_out[name]), cpu_record(name)
    assert chosen(steps, on_cpu, options)
    # which cannot be said of any other value, nor of a table that is not there
    assert not chosen(steps, on_cpu, options | {"table": "nowhere"})
    for part in options.get("where", "").split():
        key = part.partition("=")[0]
        for wrong in (f"{key}=4097", f"of_nobody={key}"):
            changed = options["where"].replace(part, wrong)
            assert not chosen(steps, on_cpu, options | {"where": changed})


@pytest.mark.parametrize(("name", "options"), asked())
def test_each_page_is_made_of_whatever_records_of_gpus_there_are(tmp_path, left_out, name, options):
    (tmp_path / "data").mkdir()
    for path in (BOOK / "data").glob(f"{name}.cpu.json"):
        shutil.copy(path, tmp_path / "data")
    before, _ = run(recorded.Recorded, tmp_path, name, **options)
    there = name in left_out and recorded.rows_of(
        {key: [{}] for key in left_out[name]}, options.get("table", "rows goals"), {}
    )
    # a name of a table that nobody measures would show nothing, and nobody would see it
    assert before or there
    lines = {line for line in before.splitlines() if "a processor" not in line}
    for device, more in (("h200", {}), ("h100", left_out.get(name, {}))):
        stored(tmp_path, f"{name}.cuda-{device}.json", "cuda", f"an {device}", **more)
        path = tmp_path / "data" / f"{name}.cuda-{device}.json"
        record = json.loads(path.read_text())
        for table in {"rows", *more}:
            record[table] = more.get(table, [])
        path.write_text(json.dumps(record))
    beside, _ = run(recorded.Recorded, tmp_path, name, **options)
    assert lines <= set(beside.splitlines())
    assert "an h" not in beside  # which has no row


def test_records_with_different_tables_stand_side_by_side(tmp_path):
    for name, who, kind, speed in (
        ("search.cpu.json", "a processor", "cpu", 1.0),
        ("search.cuda-h100.json", "an H100", "cuda", 2.0),
        ("search.cuda-h200.json", "an H200", "cuda", 3.0),
    ):
        million = [ROWS[0] | {"speed": speed}]
        growth = {"fits": million} if kind == "cpu" else {}
        stored(tmp_path, name, kind, who, rows=[], million=million, growth=growth)
    options = {"by": "implementation", "show": "speed"}
    _, (beside,) = run(recorded.Recorded, tmp_path, "search", table="million", **options)
    assert [part[0].astext() for part in beside] == ["a processor", "an H100", "an H200"]
    assert [part[1].astext().split()[-2:] for part in beside] == [
        [f"{x}.00", "×"] for x in (1, 2, 3)
    ]
    stored(
        tmp_path, "exact.cuda-h100.json", "cuda", "an H100", goals=[row("fast", 16_384, 1.0, 9.0)]
    )
    text, _ = run(recorded.Recorded, tmp_path, "exact", **OPTIONS)
    assert "n = 16,384" in text
    text, (title, _) = run(recorded.Recorded, tmp_path, "search", table="growth.fits", **options)
    assert title.astext() == "a processor"  # alone, and named since the others have none
    assert "an H" not in text


def test_chapters_say_nothing_of_records_that_there_are_not():
    said = r"(no|No) GPU has been|recorded on a CPU|recorded yet|machine without a GPU"
    for page in BOOK.glob("*.md"):
        assert not re.search(said, page.read_text()), page.name
