"""A page quotes no time, rate, size or ratio that was not measured, cited or printed beside it.

Looked at is what a reader reads: prose, tables and captions, not code. A quoted number is one with
a unit of `UNITS`. It must round a number of that kind in a record that the page uses, or one of
`COMPUTED`; or stand in what a cell of the page printed; or in a paragraph with a citation, or a
table after one.
"""

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
BOOK, DATA = ROOT / "book", ROOT / "book" / "data"
PAGES = sorted(BOOK.glob("*.md"))
RECORDS = sorted(DATA.glob("*.json"))

UNITS = {  # kind and size of each; "minutes" is not among them, which tell how long to read
    **{"ns": ("time", 1e-9), "µs": ("time", 1e-6), "μs": ("time", 1e-6), "ms": ("time", 1e-3)},
    **dict.fromkeys(("s", "second", "seconds"), ("time", 1.0)),
    **{"MFLOP/s": ("rate", 1e6), "GFLOP/s": ("rate", 1e9), "TFLOP/s": ("rate", 1e12)},
    **{"GB/s": ("rate", 1e9), "TB/s": ("rate", 1e12)},
    **dict.fromkeys(("tokens/s", "tokens per second", "tokens a second"), ("rate", 1.0)),
    **{"KiB": ("bytes", 2**10), "MiB": ("bytes", 2**20), "GiB": ("bytes", 2**30)},
    **{"kB": ("bytes", 1e3), "MB": ("bytes", 1e6), "GB": ("bytes", 1e9)},
    **dict.fromkeys(
        [
            *("×", "times faster", "times slower", "times as fast", "times as slow"),
            *("times the speed", "times the time", "times its time", "times less memory"),
        ],
        ("ratio", 1.0),
    ),
}
QUOTE = re.compile(
    r"(?<![\w.,^_])(\d[\d,]*(?:\.\d+)?)[\s~-]*("
    + "|".join(re.escape(unit) for unit in sorted(UNITS, key=len, reverse=True))
    + r")(?![\w/])(?!\s*\d)"  # 8 × 8 is a shape
)
COMPUTED = {  # follow from shapes alone
    "fast_attention": [("bytes", 8 * 4096 * 64 * 4)],  # an output
}
NANOSECONDS = {"nanoseconds": 1e-9}
RATES = {"gflops": 1e9, "gbps": 1e9}
PER_SECOND = {"GFLOP/s": 1e9, "GB/s": 1e9, "10⁹/s": 1e9}  # `unit` of a ceiling


class Quoted(NamedTuple):
    """A number with its unit, and the paragraph that it stands in."""

    text: str
    digits: str
    unit: str
    cited: bool

    @property
    def kind(self):
        return UNITS[self.unit][0]

    @property
    def size(self):
        return UNITS[self.unit][1]


def prose(text):
    """Return what a reader reads: without code, with the captions of cells, formulas as text."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.S)

    def keep_captions(block):
        head = re.match(r"```\{code-cell\}[^\n]*\n---\n(.*?)\n---\n", block[0], re.S)
        return head[1] if head else ""

    text = re.sub(r"^```\{code-cell\}.*?^```$", keep_captions, text, flags=re.S | re.M)
    text = re.sub(r"^(```+)(?!\{)[^\n]*\n.*?^\1$", "", text, flags=re.S | re.M)
    text = re.sub(r"(?<!\})`[^`\n]+`", "", text)  # but not a role
    text = re.sub(r"\\(?:text|mathrm)\{([^}]*)\}", r"\1", text)
    text = text.replace(r"\times", "×").replace(r"\mu ", "µ").replace(r"\,", " ")
    return text.replace("$", "").replace("{,}", ",").replace("\u00a0", " ").replace("\u202f", " ")


def quoted(text):
    """Return the numbers with a unit in the source of a page."""
    found, cited = [], False
    for block in re.split(r"\n\s*\n", prose(text)):
        is_table = block.lstrip().startswith("|")
        cited = "{cite" in block or (cited and is_table)
        found += [Quoted(m[0], m[1].replace(",", ""), m[2], cited) for m in QUOTE.finditer(block)]
    return found


def measured(node, name="", unit=None):
    """Yield kind and value, in seconds, bytes or a second, of each number of a record."""
    if isinstance(node, dict):
        for key, child in node.items():
            # the quartiles of a field are that field's
            same = key in {"minimum", "first_quartile", "median", "third_quartile", "maximum"}
            yield from measured(child, name if same else key, node.get("unit"))
    elif isinstance(node, list):
        for child in node:
            yield from measured(child, name, unit)
    elif isinstance(node, (int, float)) and not isinstance(node, bool):
        if name.endswith("seconds") or name == "per_query":
            yield "time", node * NANOSECONDS.get(name, 1.0)
        elif name.endswith("bytes"):
            yield "bytes", node
        elif name in RATES:
            yield "rate", node * RATES[name]
        elif name == "per_second":
            yield "rate", node * PER_SECOND[unit]
        elif name == "ratio" and node:
            yield from (("ratio", node), ("ratio", 1 / node))


def rounds(digits, size, value):
    """Say whether `digits`, in units of `size`, are `value` rounded."""
    _, _, decimals = digits.partition(".")
    return abs(float(digits) * size - value) <= 0.5 * 10.0 ** -len(decimals) * size * (1 + 1e-9)


def unfounded(text, values, printed):
    """Return the quoted numbers of a page that were neither measured, printed nor cited."""
    whole = set(re.findall(r"\d[\d,]*(?:\.\d+)?", printed))
    whole |= {number.replace(",", "") for number in whole}
    return [
        quote.text
        for quote in quoted(text)
        if not quote.cited
        and quote.digits not in whole
        and not any(k == quote.kind and rounds(quote.digits, quote.size, v) for k, v in values)
    ]


def values_of(text):
    """Return all that was measured in the records that the source of a page names."""
    names = {path.name.split(".")[0] for path in RECORDS}
    used = {n for n in names if re.search(rf"data/{n}\.|\{{recorded(?:-on)?\}} {n}\b", text)}
    return [
        pair
        for path in RECORDS
        if path.name.split(".")[0] in used
        for pair in measured(json.loads(path.read_text("utf8")))
    ]


def printed_by(path):
    """Return all that the cells of a page's record printed."""
    record = path.with_suffix(".ipynb")
    if not record.exists():
        return ""
    cells = json.loads(record.read_text("utf8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    texts = [o.get("text", o.get("data", {}).get("text/plain", "")) for o in outputs]
    return "\n".join("".join(text) for text in texts)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_quoted_number_was_measured_printed_or_cited(path):
    text = path.read_text("utf8")
    found = unfounded(text, values_of(text) + COMPUTED.get(path.stem, []), printed_by(path))
    assert not found, f"in no record, output or citation: {found}"


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_every_record_is_on_the_page_of_benchmarks(path):
    """With the date, the device and the command, which `recorded-on` shows."""
    name, device, _ = path.name.split(".")
    page = (BOOK / "benchmarks.md").read_text("utf8")
    assert f"{{recorded-on}} {name}\n" in page
    assert f"{{recorded}} {name}\n" in page
    place = json.loads(path.read_text("utf8"))["provenance"]
    assert place["command"].startswith(f"python -m benchmarks {name} --device {device}")
    assert place["device"]["name"]
    assert place["date"]
    assert place["commit"]
    assert place["versions"]["numpy"]
    assert place["threads"]["cores"]
    assert place["blas"]


ROW = {
    "implementation": "ours",
    "seconds": {"median": 0.1864, "maximum": 0.2},
    "ratio": 0.4,
    "extra_bytes": 3 * 2**20,
    "gflops": 154.6,
}
VALUES = list(measured({"rows": [ROW], "ceilings": [{"unit": "GB/s", "per_second": 24.64}]}))


@pytest.mark.parametrize(
    "sentence",
    [
        "It takes 186 ms.",
        "It takes 0.19 s, and 0.2 seconds at most.",
        "It is 2.5 times faster.",
        "It takes 0.40 × the time, with 3 MiB.",
        "It reaches 155 GFLOP/s, that is $0.155$ TFLOP/s, where 24.6 GB/s are copied.",
        "Windows of 8 × 9 pixels, 15 minutes to read, 64 tokens, $n = 186$.",
        "The authors measure 187 ms {cite:p}`dao2022`.",
        "The authors say {cite:p}`dao2022`:\n\n| who | time |\n|---|---|\n| they | 187 ms |",
        "```python\ntime.sleep(3 s)\n```",
        "The cell above printed 187 ms.",
    ],
)
def test_a_number_of_the_record_may_be_quoted(sentence):
    printed = "it took 187" if "above" in sentence else "it took 1870 or 187.5"
    assert unfounded(sentence, VALUES, printed) == []


@pytest.mark.parametrize(
    ("sentence", "number"),
    [
        ("It takes 187 ms.", "187 ms"),
        ("It takes $187$ ms.", "187 ms"),
        ("It takes $187\\,\\text{ms}$.", "187 ms"),
        ("It takes 186 s.", "186 s"),
        ("It is 2.6 times faster.", "2.6 times faster"),
        ("It is $2.6\\times$ as fast.", "2.6×"),
        ("It reaches 156 GFLOP/s.", "156 GFLOP/s"),
        ("It takes 4 MiB.", "4 MiB"),
        ("1,000 tokens per second.", "1,000 tokens per second"),
        ("A citation {cite:p}`dao2022`.\n\nIt takes 187 ms.", "187 ms"),
        ("```{code-cell} ipython3\n---\ncaption: It takes 187 ms.\n---\nx = 1\n```", "187 ms"),
        ("| who | time |\n|---|---|\n| ours | 187 ms |", "187 ms"),
    ],
)
def test_an_altered_number_is_noticed(sentence, number):
    assert unfounded(sentence, VALUES, "") == [number]
