"""The sources of the book: pairs agree, records are executed, claims and exercises are complete."""

import re
from pathlib import Path

import jupytext
import nbformat
import pytest
import yaml
from cases import load
from jupytext.compare import NotebookDifference, compare_notebooks

ROOT = Path(__file__).parents[1]
BOOK = ROOT / "book"


NOTEBOOKS = load(ROOT / "tools" / "execute_notebooks.py").notebooks()
CONTENTS = yaml.safe_load((ROOT / "_toc.yml").read_text("utf8"))["parts"]
NUMBERED = [page["file"] for part in CONTENTS if "numbered" in part for page in part["chapters"]]
CHAPTERS = {Path(file).stem: NOTEBOOKS[Path(file).stem] for file in NUMBERED}
CLAIMS = load(BOOK / "_ext" / "claims.py")
LEDGER = CLAIMS.read_ledger(BOOK / "claims.toml")
PAGES = sorted(BOOK.glob("*.md"))
notebook = pytest.mark.parametrize("name", NOTEBOOKS)
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
    record = NOTEBOOKS[name].with_suffix(".ipynb")
    assert record.exists(), f"{record.name} does not exist; run: make notebooks ONLY={name}"
    return jupytext.read(NOTEBOOKS[name]), nbformat.read(record, as_version=4)


@notebook
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


@notebook
def test_every_picture_has_alt_text(name):
    """A cell that shows a picture names it in its metadata, mystnb: image: alt."""
    for cell in read_pair(name)[1].cells:
        pictures = [out for out in cell.get("outputs", []) if "image/png" in out.get("data", {})]
        hidden = {"remove-output", "remove-cell"} & set(cell.metadata.get("tags", []))
        alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
        assert hidden or not pictures or len(alt) > 20, f"no alt text:\n{cell.source}"


@notebook
def test_every_exercise_has_a_solution(name):
    text = NOTEBOOKS[name].read_text("utf8")
    exercises = re.findall(r"\{exercise(?:-start)?\}[^\n]*\n:label: (\S+)", text)
    solutions = re.findall(r"\{solution(?:-start)?\} (\S+)", text)
    assert exercises or name not in CHAPTERS
    assert len(exercises) == len(re.findall(r"\{exercise(?:-start)?\}", text)), "one has no label"
    assert sorted(exercises) == sorted(solutions)


def test_the_ledger_has_all_claims():
    assert list(LEDGER["claim"]) == list(range(1, 31))


@pytest.mark.parametrize("number", LEDGER["claim"])
def test_a_claim_has_one_theorem_with_its_verdict_and_tests(number):
    """It stands on the page of its note, or in the chapter that needs it."""
    claim = LEDGER["claim"][number]
    places = {CLAIMS.page_of(CLAIMS.note_of(claim)), claim["chapter"]}
    label = rf"^:label: claim-{number:02d}\n\n\{{verdict\}}`{number}` "
    holds = [name for name, path in NOTEBOOKS.items() if re.search(label, path.read_text(), re.M)]
    assert len(holds) == 1
    assert set(holds) <= places
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
    """Each claim has its verdict in the restated text of each of its notes."""
    stated = {
        (int(n), letter)
        for letter in "ABCDE"
        for n in re.findall(
            r"\{verdict\}`(\d+)`",
            re.search(r"^## The note\n(.*?)^## ", note(letter), re.M | re.S)[1],
        )
    }
    assert stated == {(n, name[0]) for n, c in LEDGER["claim"].items() for name in c["sources"]}


def note(letter):
    return NOTEBOOKS[CLAIMS.page_of(letter)].read_text("utf8")
