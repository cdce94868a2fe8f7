"""The sources of the book: pairs agree, records are executed, claims and exercises are complete."""

import re
from pathlib import Path

import jupytext
import nbformat
import pytest
from cases import load
from jupytext.compare import NotebookDifference, compare_notebooks

ROOT = Path(__file__).parents[1]
BOOK = ROOT / "book"


CHAPTERS = load(ROOT / "tools" / "execute_notebooks.py").chapters()
LEDGER = load(BOOK / "_ext" / "claims.py").read_ledger(BOOK / "claims.toml")
PAGES = sorted(BOOK.glob("*.md"))
chapter = pytest.mark.parametrize("name", CHAPTERS)
page = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)


def difference(source, record):
    """Return how the notebooks of a pair differ, or None; outputs and ids do not count."""
    try:
        compare_notebooks(record, source, fmt="md:myst", allow_expected_differences=True)
    except NotebookDifference as error:
        return str(error)
    return None


def unexecuted(record):
    """Return the code cells of `record` that were not run, failed, or lost what they printed."""
    problems = []
    for cell in record.cells:
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        tags = cell.metadata.get("tags", [])
        errors = [out for out in cell.outputs if out.output_type == "error"]
        if cell.execution_count is None:
            problems.append(f"not executed:\n{cell.source}")
        elif errors and "raises-exception" not in tags:
            problems.append(f"ended with an error:\n{cell.source}")
        elif not cell.outputs and re.search(
            r"^(print|plt\.show|pyplot\.show)\(", cell.source, re.M
        ):
            problems.append(f"should show something and has no output:\n{cell.source}")
    return problems


def read_pair(name):
    record = CHAPTERS[name].with_suffix(".ipynb")
    assert record.exists(), f"{record.name} does not exist; run: make notebooks ONLY={name}"
    return jupytext.read(CHAPTERS[name]), nbformat.read(record, as_version=4)


@chapter
def test_record_agrees_and_is_executed(name):
    source, record = read_pair(name)
    found = difference(source, record)
    problems = [f"the record is out of date\n{found}"] if found else unexecuted(record)
    assert not problems, "\n\n".join([f"run: make notebooks ONLY={name}", *problems])


def test_a_changed_cell_is_noticed():
    source, record = (
        nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text)]) for text in ("a", "b")
    )
    assert difference(source, record) is not None
    assert difference(source, source) is None


def test_an_unexecuted_cell_is_noticed():
    cell = nbformat.v4.new_code_cell("print(1)")
    printed = nbformat.v4.new_output("stream", text="1\n")
    failed = nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])
    for count, outputs, message in (
        (None, [], "not executed"),
        (1, [], "no output"),
        (1, [printed], ""),
        (1, [failed], "error"),
    ):
        cell.execution_count, cell.outputs = count, outputs
        problems = unexecuted(nbformat.v4.new_notebook(cells=[cell]))
        assert len(problems) == bool(message)
        assert message in "".join(problems)


@chapter
def test_every_picture_has_alt_text(name):
    """A cell that shows a picture names it in its metadata, mystnb: image: alt."""
    for cell in read_pair(name)[1].cells:
        pictures = [out for out in cell.get("outputs", []) if "image/png" in out.get("data", {})]
        hidden = {"remove-output", "remove-cell"} & set(cell.metadata.get("tags", []))
        alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
        assert hidden or not pictures or len(alt) > 20, f"no alt text:\n{cell.source}"


@chapter
def test_every_exercise_has_a_solution(name):
    text = CHAPTERS[name].read_text("utf8")
    exercises = re.findall(r"\{exercise(?:-start)?\}[^\n]*\n:label: (\S+)", text)
    solutions = re.findall(r"\{solution(?:-start)?\} (\S+)", text)
    assert exercises
    assert len(exercises) == len(re.findall(r"\{exercise(?:-start)?\}", text)), "one has no label"
    assert sorted(exercises) == sorted(solutions)


def test_the_ledger_has_all_claims():
    assert list(LEDGER["claim"]) == list(range(1, 31))


@pytest.mark.parametrize(
    "number", [n for n, claim in LEDGER["claim"].items() if claim["chapter"] in CHAPTERS]
)
def test_claim_of_a_finished_chapter(number):
    """It has a theorem in its chapter, shows its verdict there, and has tests of its own."""
    text = CHAPTERS[LEDGER["claim"][number]["chapter"]].read_text("utf8")
    assert re.search(rf"^:label: claim-{number:02d}$", text, re.M)
    assert re.search(rf"\{{verdict\}}`{number}`|\{{claim\}} {number}\b", text)
    tests = (ROOT / "tests" / "test_claims.py").read_text("utf8")
    assert re.search(rf"^def test_claim_{number:02d}_", tests, re.M)


@page
def test_pictures_have_alt_text_and_nothing_is_loaded_from_elsewhere(path):
    """Links may lead outside; pictures, scripts, styles and includes may not."""
    text = path.read_text("utf8")
    assert not re.search(r"!\[\s*\]\(", text)
    for block in re.findall(r"\{(?:image|figure)\}.*?\n(?:```|:::)", text, re.S):
        assert re.search(r"^:alt: \S|^alt: \S", block, re.M), block
    outside = r"""!\[[^\]]*\]\(\s*(https?:)?//|(src|@import)\s*=?\s*["']?https?:"""
    assert not re.search(outside, text)
    assert not re.search(r"\{(image|figure|literalinclude|include|iframe)\}\s*https?:", text)


def test_style_and_scripts_load_nothing_from_elsewhere():
    for path in [*(BOOK / "_static").glob("*.css"), *(BOOK / "_static").glob("*.js")]:
        text = path.read_text("utf8").replace("xmlns='http://www.w3.org/2000/svg'", "")  # a name
        assert not re.search(r"https?:", text), path.name


def test_the_notes_state_every_claim_that_they_made():
    """Each claim stands in the section of each of its notes, with its verdict."""
    text = (BOOK / "notes.md").read_text("utf8")
    parts = dict(re.findall(r"^\(note-(\w)\)=\n(.*?)(?=^\(note-|\Z)", text, re.M | re.S))
    assert sorted(parts) == list("abcde")
    stated = {
        (int(n), letter)
        for letter in parts
        for n in re.findall(r"\{verdict\}`(\d+)`", parts[letter])
    }
    made = {(n, note[0].lower()) for n, c in LEDGER["claim"].items() for note in c["sources"]}
    assert stated == made
