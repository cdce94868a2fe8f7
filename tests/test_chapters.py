"""The chapters as a first reader meets them: their length, and what their cells need."""

import re
import subprocess
import sys

import jupytext
import pytest
from cases import every_day
from test_book import NOTEBOOKS, ROOT

FOLDED = {"hide-input", "hide-cell", "remove-input", "remove-cell"}
CLOSING = "## Put it back"
FIRST_TEXTS = [name for name, path in NOTEBOOKS.items() if CLOSING in path.read_text("utf8")]
MOST_WORDS, MOST_LINES = 3100, 300
BLOCKED = ("torch", "cupy", "numba", "triton", "scipy", "sklearn", "pandas", "safetensors")
"""What is installed here and need not be in a reader's browser."""

WITHOUT = f"""
import importlib.abc
import sys


class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}")


sys.meta_path.insert(0, Absent())
"""
"""The beginning of a program in which an import of these fails, as if they were not installed."""


def before(cells, heading):
    """Return the cells up to the one that begins with `heading`."""
    for i, cell in enumerate(cells):
        if re.search(rf"^{heading}$", cell.source, re.M):
            head = cell.source[: re.search(rf"^{heading}$", cell.source, re.M).start()]
            return [*cells[:i], {**cell, "source": head}]
    raise AssertionError(f"there is no heading {heading!r}")


def unfolded(text):
    """Return Markdown without what a reader must click to see, without code and directives."""
    fence, lines, folded = re.compile(r"^(:{3,}|`{3,})(\{[^}]+\})?(.*)$"), [], []
    for line in text.splitlines():
        found = fence.match(line)
        if found and found[2]:  # a directive begins
            folded.append(
                (found[1], any(x in found[2] for x in ("code", "include", "math", "dropdown")))
            )
        elif found and folded and found[1] == folded[-1][0]:
            folded.pop()
        elif found:  # a block of code without a name
            folded.append((found[1], True))
        elif re.match(r"^:class:.*\bdropdown\b", line) and folded:
            folded[-1] = (folded[-1][0], True)
        elif not any(hidden for _, hidden in folded) and not re.match(r"^:\w+:", line):
            lines.append(line)
    return "\n".join(lines)


def words(text):
    text = re.sub(r"\$\$.*?\$\$|\$[^$]*\$", " x ", text, flags=re.S)
    text = re.sub(r"\{[\w:-]+\}`[^`]*`", " x ", text)
    text = re.sub(r"^\(.*\)=$|<!--.*?-->", " ", text, flags=re.M)
    return re.findall(r"[^\W_][\w'’-]*", text)


@pytest.mark.parametrize("name", FIRST_TEXTS)
def test_a_chapter_is_read_in_one_sitting(name):
    cells = before(jupytext.read(NOTEBOOKS[name]).cells, "## Exercises")
    prose = "\n\n".join(cell["source"] for cell in cells if cell["cell_type"] == "markdown")
    shown = [
        line
        for cell in cells
        if cell["cell_type"] == "code" and not FOLDED & set(cell["metadata"].get("tags", []))
        for line in cell["source"].splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    n_words, n_lines = len(words(unfolded(prose))), len(shown)
    print(f"{name}: {n_words} words, {n_lines} visible lines of code before the exercises")
    assert n_words <= MOST_WORDS
    assert n_lines <= MOST_LINES


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("One two, *three*.", 3),
        ("A $x + y$ b", 3),
        ("a\n:::{admonition} Title words\n:class: note\ninside\n:::\nb", 3),
        ("a\n:::{prf:proof}\n:class: dropdown\nhidden words\n:::\nb", 2),
        ("a\n::::{note}\n:class: dropdown\n:::{tip}\nhidden\n:::\n::::\nb", 2),
        ("a\n```python\nhidden = 1\n```\nb", 2),
        ("a\n```{literalinclude} x.py\n:pyobject: f\n```\nb", 2),
    ],
)
def test_folded_words_do_not_count(text, n):
    assert len(words(unfolded(text))) == n


@pytest.mark.parametrize("name", every_day(["masking", "distributed"], FIRST_TEXTS))
def test_cells_before_the_last_step_need_numpy_and_matplotlib_alone(name, tmp_path):
    """So they run in a browser too."""
    cells = [
        (cell["source"], "raises-exception" in cell["metadata"].get("tags", []))
        for cell in before(jupytext.read(NOTEBOOKS[name]).cells, CLOSING)
        if cell["cell_type"] == "code"
    ]
    program = [
        WITHOUT,
        "import matplotlib",
        "matplotlib.use('Agg')",
        "names = {'__name__': '__main__', 'display': print}",
        f"for source, raises in {cells!r}:",
        "    try:",
        "        exec(source, names)",
        "    except Exception:",
        "        if not raises:",
        "            print(source)",
        "            raise",
    ]
    path = tmp_path / "cells.py"
    path.write_text("\n".join(program), encoding="utf8")
    done = subprocess.run(
        [sys.executable, str(path)], cwd=ROOT / "book", capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def test_a_cell_that_needs_pytorch_is_noticed():
    code = [sys.executable, "-c", WITHOUT + "import torch"]
    done = subprocess.run(code, capture_output=True, text=True)
    assert "ModuleNotFoundError" in done.stderr
