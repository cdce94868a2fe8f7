"""Each task that asks for code has a cell for the answer; what the page does with the answer."""

import re
from pathlib import Path

import pytest
from cases import load
from visits import SITE

ROOT = Path(__file__).parents[2]
PAGES = {
    path.stem: path.read_text("utf8")
    for path in sorted((ROOT / "book").glob("*.md"))
    if path.with_suffix(".ipynb").exists()
}
BOX = re.compile(r"^(:{3,})\{(\w+)\}([^\n]*)\n(?::class: ([^\n]*)\n)?(.*?)^\1$", re.S | re.M)
CODE = re.compile(
    r"`check[._]\w+\(|\b[Ww]rite (?:a function|a matrix |a class )?`|^ {4}assert |\bby drawing\b"
    r"|\b[Gg]ive `\w+` an? |\b[Cc]ompute `\w+`",
    re.M,
)
"""What a text says that asks for code."""


def boxes(text):
    """Return the titles, classes and texts of the admonitions of a page before its exercises."""
    text = text.partition("\n## Exercises")[0]
    found = [m.groups()[1:] for m in BOX.finditer(text)]
    return [(title.strip(), set((c or "").split()), body) for _, title, c, body in found]


def asks_for_code(title, body):
    return bool(CODE.search(body)) and "dropdown" not in body


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("Write `f(x)`, and run it.", True),
        ("Run `check.softmax(f)`.", True),
        ("Call `check_sum(f)` of the cell below.", True),
        ("Write a matrix `W` that looks back.", True),
        ("    assert f(3) == 4\n", True),
        ("Check your number by drawing 1,000 keys.", True),
        ("Compute `state` after three tokens.", True),
        ("Find its weights with the pencil. Write down a guess.", False),
        ("What are the shapes of `W_Q`?", False),
    ],
)
def test_what_asks_for_code_is_known(text, asks):
    assert asks_for_code("", text) is asks


@pytest.mark.parametrize("name", PAGES)
def test_a_box_that_asks_for_code_is_a_task_and_no_other_is(name):
    wrong = [
        (title, classes)
        for title, classes, body in boxes(PAGES[name])
        if "dropdown" not in classes
        if ("minutes" in title or asks_for_code(title, body) or "task" in classes)
        and classes != ({"task"} if asks_for_code(title, body) else {"task", "pencil"})
    ]
    assert wrong == []


def test_the_chapters_have_tasks():
    counts = {name: sum("task" in c for _, c, _ in boxes(text)) for name, text in PAGES.items()}
    assert sum(counts.values()) >= 42
    assert min(counts[name] for name, text in PAGES.items() if "## Put it back" in text) >= 1


@pytest.mark.site
@pytest.mark.parametrize("name", PAGES)
def test_each_task_that_asks_for_code_has_a_cell_for_the_answer(name):
    soup = pytest.importorskip("bs4").BeautifulSoup
    page = soup((SITE / "book" / f"{name}.html").read_text("utf8"), "html.parser")
    cells = page.select(".cell.live.answer[id^=answer-task]")
    asked = [body for _, classes, body in boxes(PAGES[name]) if classes == {"task"}]
    assert len(cells) == len(asked) == len({cell["id"] for cell in cells})
    for cell, body in zip(cells, asked, strict=True):
        starter = cell.select_one("pre").get_text()
        called = re.findall(r"`(check\.\w+\([^`]*\))`|`(check_\w+)\(", body)
        assert [one or two for one, two in called if (one or two) not in starter] == []
        for function in re.findall(r"[Ww]rite `(\w+)\(", body):
            assert f"def {function}(" in starter
        after = cell.find_next_sibling(True)
        assert {"live", "tag_hide-cell"} <= set(after["class"]), "its solution follows, folded"


@pytest.fixture(scope="module")
def live():
    pytest.importorskip("sphinx")
    return load(ROOT / "book" / "_ext" / "live.py")


def page_of(classes, *cells):
    """Return a page with a task and cells below it, given as code and tags."""
    from docutils import nodes, utils

    page = utils.new_document("page")
    task = nodes.admonition(classes=classes)
    task += [nodes.title("", "Task"), nodes.paragraph("", "Write ", nodes.literal("", "f(x)"))]
    page += task
    page += nodes.comment("", "slide")
    for code, tags in cells:
        cell = nodes.container(nb_element="cell_code", classes=["cell", *tags])
        source = nodes.literal_block("", code)
        cell += nodes.container("", source, nb_element="cell_code_source")
        page += cell
    return page, task


SOLUTION = ("def f(x):\n    return x", ["tag_hide-cell"])


@pytest.mark.parametrize("between", [[], [("y = 3", [])], [("y = 3", []), ("z = y", [])]])
def test_the_cell_for_an_answer_stands_before_the_solution(live, between):
    page, task = page_of(["task"], *between, SOLUTION)
    live.add_answer_of_task(task, {"y"})
    *_, answer, last = page.children
    assert answer.astext() == "def f(x):\n    ..."
    assert answer["ids"] == ["answer-task-f"]
    assert last.astext() == SOLUTION[0]


@pytest.mark.parametrize("cells", [[], [("y = 3", [])], [("import torch", ["tag_hide-cell"])]])
def test_a_task_without_a_solution_that_runs_in_the_page_stops_the_build(live, cells):
    from sphinx.errors import ExtensionError

    _, task = page_of(["task"], *cells)
    assert live.is_task(task)
    with pytest.raises(ExtensionError, match="a task must have a folded cell below"):
        live.add_answer_of_task(task, set())


def test_a_task_for_the_pencil_has_no_cell(live):
    _, task = page_of(["task", "pencil"])
    assert not live.is_task(task)
