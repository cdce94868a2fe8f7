"""Show what the benchmarks recorded: `data/NAME.DEVICE.json` is read when the book is built.

The directive ``recorded-on NAME`` says on which device a record was made, when, with what, and the
command that repeats it. ``recorded NAME`` is a table of a record, and a sentence that says how ours
compare; records of several devices, such as `exact.cpu.json` and `exact.cuda-h200.json`, stand side
by side, without those that have no such table. ``:table:`` names a table, else it is `rows`, with
`goals`, which are rows that were measured first. What was left out for want of time is not shown.
In a chapter, ``:device: cuda`` shows those of GPUs alone, each with its name and date, and nothing
where there is none. ``recorded-devices`` names all GPUs. So no number stands in the source of a
page.
"""

import json
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

from attnbook.data.records import chosen_code, commit_of, later, processor, settings

ON_GPU = "device_seconds"  # without Python and launches; named in a cell beside the whole time
FIGURE = re.compile(r"[<~−-]? ?\d.{0,12}$")
"""A number, with its unit: a cell that may not break."""

MANY = 24  # letters of a cell that needs some room for its words
WITHOUT_GPU = "No figure here is from a GPU. On one, all are measured by "
GPU_COMMAND = "python -m benchmarks device --out DIR"
TITLES = {
    "bytes": "bytes",
    ON_GPU: "on the GPU",
    "displacement": "steps",
    "extra_bytes": "extra memory",
    "gb_per_second": "GB/s",
    "gbps": "GB/s",
    "gflops": "GFLOP/s",
    "implementation": "who",
    "is_causal": "causal",
    "kv_heads": "key heads",
    "loss_error": "± nats",
    "lr": "rate",
    "mask_bytes": "mask",
    "micro": "µs",
    "more_loss": "nats above exact",
    "n_tables": "tables",
    "of_bandwidth": "of the read bandwidth",
    "per_query": "per query",
    "per_second": "in a second",
    "relative": "error",
    "seconds": "time",
    "slots": "tokens read",
    "speed": "× as fast",
    "tokens_per_second": "tokens a second",
}


def records(folder: Path, name: str) -> dict[str, dict]:
    """Return the records of a benchmark by the device in their name, the CPU first."""
    paths = {path.name.split(".")[1]: path for path in folder.glob(f"{name}.*.json")}
    order = sorted(paths, key=lambda device: (device != "cpu", device))
    return {device: json.loads(paths[device].read_text("utf8")) for device in order}


def device_name(record: dict) -> str:
    """Return what the device of a record calls itself."""
    return record["provenance"]["device"]["name"]


def devices(folder: Path) -> list[str]:
    """Return the names of the GPUs of all records, each once."""
    paths = sorted(folder.glob("*.cuda*.json"))
    return list(dict.fromkeys(device_name(json.loads(path.read_text("utf8"))) for path in paths))


def number(x: float, digits: int = 3) -> str:
    """Return `x` with so many digits and no exponent where it is neither large nor small."""
    if x == 0:
        return "0"
    if 1e-3 <= abs(x) < 1e6:
        places = max(0, digits - len(str(int(abs(x)))) if abs(x) >= 1 else digits - 1 + _zeros(x))
        return f"{x:,.{places}f}"
    mantissa, _, exponent = f"{x:.{digits - 2}e}".partition("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa} · 10{raised}"


def _zeros(x: float) -> int:
    """Return how many zeros follow the point, one more."""
    count = 1
    while abs(x) * 10**count < 1:
        count += 1
    return count


def show(name: str, x: Any) -> str:
    """Return the text of a field; times and bytes with their unit."""
    if x is None:
        return "–"
    if isinstance(x, dict):
        x = x["mean" if "mean" in x else "median"]
    if name in {"seconds", "device_seconds", "per_query", "build_seconds"}:
        return time(x)
    if name == "speed":
        return f"{number(x)} ×"
    if name.endswith("bytes"):
        return f"{number(x / 2**20)} MiB"
    if isinstance(x, bool):
        return "yes" if x else "no"
    if isinstance(x, int):
        return f"{x:,}"
    return number(x) if isinstance(x, float) else str(x)


def label(x: Any) -> str:
    """Return the text of a field that was chosen, not measured."""
    return f"{x:g}" if isinstance(x, float) else show("", x)


def time(seconds: float) -> str:
    """Return a time with its unit."""
    for unit, size in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{number(seconds / size)} {unit}"
    return f"{number(seconds / 1e-9)} ns"


def rows_of(record: dict, tables: str, where: dict[str, str]) -> list[dict]:
    """Return the rows of tables whose fields, written as text, are those of `where`.

    A record need not have them all. What was left out for want of time is no row.
    """
    rows: list[dict] = []
    for table in tables.split():
        found: Any = record
        for part in table.split("."):
            found = found.get(part, []) if isinstance(found, dict) else []
        rows += found
    return [
        row
        for row in rows
        if not str(row.get("reason")).startswith("left out: ")
        and all(_text(row.get(k)) in v.split("|") for k, v in where.items())
    ]


def _text(x: Any) -> str:
    return str(x).replace(" ", "_")


def grid(
    rows: list[dict], by: list[str], shown: list[str], across: str | None
) -> tuple[list[str], list[list[str]]]:
    """Return the head and the body of a table.

    A line for each row; or, with `across`, one for each group of rows that agree in `by`, with a
    column for each value of that field. What no row has, such as the time on a GPU, is not shown.
    """
    shown = [name for name in shown if any(row.get(name) is not None for row in rows)] or shown
    head = [TITLES.get(name, name.replace("_", " ")) for name in by]
    if across is None:
        body = [
            [*(label(row.get(name)) for name in by), *(show(name, row.get(name)) for name in shown)]
            for row in rows
        ]
        return head + [TITLES.get(name, name.replace("_", " ")) for name in shown], body
    columns = list(dict.fromkeys(row[across] for row in rows))
    if all(isinstance(c, (int, float)) for c in columns):  # rows stand as they were measured
        columns.sort()
    lines: dict[tuple, dict[Any, str]] = {}
    for row in rows:
        texts = [
            f"GPU {show(s, row.get(s))}" if s == ON_GPU else show(s, row.get(s)) for s in shown
        ]
        cell = "did not run" if row.get("reason") else ", ".join(texts)
        lines.setdefault(tuple(label(row.get(name)) for name in by), {})[row[across]] = cell
    titled = TITLES.get(across, across.replace("_", " "))
    head += [f"{titled} = {label(c)}" if not isinstance(c, str) else c for c in columns]
    return head, [[*line, *(cells.get(c, "") for c in columns)] for line, cells in lines.items()]


def comparison(rows: list[dict], ours: list[str], theirs: str, across: str | None) -> str | None:
    """Return a sentence that says where ours are fastest and slowest against the baseline."""
    able = [r for r in rows if r.get("implementation") in ours and r.get("speed")]
    if not able:
        return None

    def named(row: dict) -> str:
        place = f" at {TITLES.get(across, across)} = {label(row[across])}" if across else ""
        return f"{row['implementation']}{place}"

    best, worst = (choose(able, key=lambda r: r["speed"]) for choose in (max, min))
    slower = sum(row["speed"] < 1 for row in able)
    return (
        f"{slower} of our {len(able)} entries are slower than {theirs}: from "
        f"{number(worst['speed'])} times as fast ({named(worst)}) to {number(best['speed'])} times "
        f"({named(best)})."
    )


def provenance(record: dict) -> list[str]:
    """Return sentences that say where, when and with what a record was made."""
    place = record["provenance"]
    cpu, versions = place["cpu"], place["versions"]
    simd = f", {', '.join(cpu['simd'])}" if cpu.get("simd") else ""
    device = place["device"]
    where = f"{processor(place)}{simd}, {cpu['cores']} cores"
    if device["kind"] != "cpu":
        where = f"{device['name']}; host {where}"
    named = [f"{k} {v}" for k, v in versions.items() if v]
    threads = [f"{k} {v}" for k, v in place["threads"].items() if k != "cores"]
    blas = [f"{b['name']} {b['version'] or ''} ({chosen_code(b)})" for b in place["blas"]]
    commit = commit_of(place) + (" with changes" if place["dirty"] else "")
    return [
        f"On {where}; {place['date'][:10]}, commit {commit}."
        + "".join(f" T{x[1:]}." for x in later(record)),
        f"Versions: {', '.join(named)}. BLAS: {', '.join(blas)}. Threads: {', '.join(threads)}. "
        f"Settings of the environment: {settings(record)}.",
    ]


class Recorded(SphinxDirective):
    """``recorded NAME``: a table of each record of a benchmark, side by side."""

    required_arguments = 1
    option_spec = {  # noqa: RUF012
        "device": directives.unchanged_required,
        "table": directives.unchanged_required,
        "where": directives.unchanged,
        "by": directives.unchanged_required,
        "across": directives.unchanged,
        "show": directives.unchanged_required,
        "ours": directives.unchanged,
        "against": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        found = _records(self)
        across = self.options.get("across")
        by, shown = (self.options[name].split() for name in ("by", "show"))
        where = dict(part.split("=", 1) for part in self.options.get("where", "").split())
        against = self.options.get("against", "the baseline")
        parts: list[list[nodes.Node]] = []
        kind = self.options.get("device", "")
        for device, record in found.items():
            if not device.startswith(kind):
                continue
            rows = rows_of(record, self.options.get("table", "rows goals"), where)
            if not rows:
                continue
            part: list[nodes.Node] = [_table(*grid(rows, by, shown, across))]
            sentence = comparison(rows, self.options.get("ours", "").split(), against, across)
            if sentence:
                part.append(nodes.paragraph(sentence, sentence))
            if len(found) > 1 or kind:
                name = device_name(record)
                title = nodes.paragraph("", "", nodes.strong(name, name))
                if kind:  # no `recorded-on` stands above
                    title += nodes.Text(f", {record['provenance']['date'][:10]}")
                part.insert(0, title)
            parts.append(part)
        if len(parts) < 2:
            return [node for part in parts for node in part]
        beside = nodes.container(classes=["recorded-beside"])
        beside += [nodes.container("", *part) for part in parts]
        return [beside]


class RecordedOn(SphinxDirective):
    """``recorded-on NAME``: where and when each record was made, and how to repeat it."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        result: list[nodes.Node] = []
        for record in _records(self).values():
            paragraph = nodes.paragraph(classes=["recorded-on"])
            for sentence in provenance(record):
                paragraph += nodes.Text(sentence + " ")
            command = record["provenance"]["command"]
            paragraph += [nodes.Text("Repeat it with "), nodes.literal(command, command)]
            paragraph += nodes.Text(".")
            result.append(paragraph)
        return result


class RecordedDevices(SphinxDirective):
    """``recorded-devices``: the GPUs of all records, or that there is none."""

    def run(self) -> list[nodes.Node]:
        names = devices(_folder(self))
        if names:
            told = f"Figures of a GPU are from {', '.join(names)}."
            return [nodes.paragraph(told, told)]
        paragraph = nodes.paragraph("", WITHOUT_GPU, nodes.literal(GPU_COMMAND, GPU_COMMAND))
        paragraph += nodes.Text(".")
        return [paragraph]


def _folder(directive: SphinxDirective) -> Path:
    return Path(directive.env.doc2path(directive.env.docname)).parent / "data"


def _records(directive: SphinxDirective) -> dict[str, dict]:
    folder, name = _folder(directive), directive.arguments[0]
    for path in folder.glob(f"{name}.*.json"):
        directive.env.note_dependency(str(path))
    return records(folder, name)


def _table(head: list[str], body: list[list[str]]) -> nodes.table:
    table = nodes.table(classes=["recorded", "align-default"])
    group = nodes.tgroup(cols=len(head))
    group += [nodes.colspec(colwidth=1) for _ in head]
    group += nodes.thead("", _row(head))
    group += nodes.tbody("", *(_row(line) for line in body))
    table += group
    return table


def _row(cells: list[str]) -> nodes.row:
    return nodes.row("", *map(_entry, cells))


def _entry(cell: str) -> nodes.entry:
    """Return a cell that says how it may break: a figure never, and words where they are many."""
    kind = ["amount"] if FIGURE.match(cell) else ["words"] if len(cell) > MANY else []
    return nodes.entry("", nodes.paragraph(cell, cell), classes=kind)


def setup(app):
    app.add_directive("recorded", Recorded)
    app.add_directive("recorded-on", RecordedOn)
    app.add_directive("recorded-devices", RecordedDevices)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
