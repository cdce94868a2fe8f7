"""The tables of recorded figures say what the records say."""

import json
import re
import types
from pathlib import Path

import pytest
from cases import load

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


def test_provenance_names_device_date_commit_and_versions():
    path = sorted((BOOK / "data").glob("*.json"))[0]
    record = json.loads(path.read_text("utf8"))
    place = record["provenance"]
    named = (place["date"][:10], place["commit"][:10], place["versions"]["numpy"])
    text = " ".join(recorded.provenance(record))
    assert all(part in text for part in named)
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
    for name, who in (("exact.cuda-h200.json", "an H200"), ("exact.cuda.json", "an H100")):
        stored(tmp_path, name, "cuda", who)
    stored(tmp_path, "exactly.cuda.json", "cuda", "of another benchmark")
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
    made = stored(tmp_path, "exact.cuda.json", "cuda", "an H100")
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
    stored(tmp_path, "exact.cuda.json", "cuda", "an H100")
    stored(tmp_path, "train.cuda.json", "cuda", "an H100")
    text, _ = run(recorded.RecordedDevices, tmp_path)
    assert text == "Figures of a GPU are from an H100."


def test_chapters_say_nothing_of_records_that_there_are_not():
    for page in BOOK.glob("*.md"):
        assert not re.search(
            r"(no|No) GPU has been|recorded on a CPU|recorded yet", page.read_text()
        )
