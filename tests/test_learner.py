"""The notebooks to take home: no directive is left, and they run where only the package is."""

import functools
import http.server
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import nbconvert
import nbformat
import pytest
from cases import every_day, load

from course.installing import first_cell

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "_build/html/notebooks"
NAMES = sorted(path.stem for path in (ROOT / "book").glob("*.ipynb"))
RAW = re.compile(
    r"^\s*:{3,}|`{3,}\s*\{|\{[a-z]+(:[a-z]+)?\}`|^\s*:(label|class|pyobject|tags|name):",
    re.MULTILINE,
)
NAMES_INDEX = re.compile(
    r"(pip3? install|uv add)(?: [^\n`]*?)? ['\"]?attnbook(\[[\w,-]*\])?(?! @|[\w./\[{-])"
)


@pytest.fixture(scope="module")
def learner():
    return load(ROOT / "book/_ext/learner.py")


def app(repository="", home="", on_index=False):
    theme = {"repository_url": repository}
    config = SimpleNamespace(html_theme_options=theme, html_baseurl=home, package_on_index=on_index)
    return SimpleNamespace(config=config)


def test_links_follow_from_the_repository(learner):
    assert list(learner.places(app(), "sketch")) == ["Notebook", "Markdown", "Package"]
    places = learner.places(app("https://github.com/one/two/"), "sketch")
    colab = "https://colab.research.google.com/github/one/two/blob/notebooks/sketch.ipynb"
    assert places["Colab"] == colab
    assert places["Binder"] == "https://mybinder.org/v2/gh/one/two/notebooks?labpath=sketch.ipynb"
    assert "Colab" not in learner.places(app("https://example.org/one/two"), "sketch")


def test_what_is_installed(learner):
    wheel = learner.wheel()
    assert learner.requirement(app()) == f"./{wheel}"
    assert learner.requirement(app(), "[plots]") == f"./{wheel}[plots]"
    code = "https://github.com/one/two"
    assert learner.requirement(app(code)) == f"attnbook @ git+{code}"
    ours = app(code, "https://one.github.io/two/")
    found = learner.requirement(ours, "[plots]")
    assert found == f"attnbook[plots] @ https://one.github.io/two/notebooks/{wheel}"
    assert learner.requirement(app(code, "https://one.github.io", on_index=True)) == "attnbook"


def build(learner, ours, tmp_path):
    """Let a site put its wheel there; return what stands in its folders, by name."""
    ours.builder, ours.srcdir = SimpleNamespace(format="html"), ROOT
    ours.outdir = tmp_path / "html"
    ours.outdir.mkdir()
    for folder in ("html/notebooks", "exercises"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "attnbook-0.0.1-py3-none-any.whl").write_text("an old one")
    learner.add_wheel(ours, None)
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    return {path.relative_to(tmp_path).as_posix(): path for path in found}


@pytest.mark.parametrize("home", every_day([""], ["", "https://one.github.io/two"]))
def test_the_wheel_that_is_installed_lies_there(learner, home, tmp_path):
    found = build(learner, app(home=home), tmp_path)
    wheel = f"html/notebooks/{learner.wheel()}"
    files = {wheel, "html/notebooks/requirements.txt", "exercises/requirements.txt"}
    own = set() if home else {f"exercises/{learner.wheel()}"}  # of a course without a site
    assert set(found) == files | own
    with zipfile.ZipFile(found[wheel]) as packed:
        assert "attnbook/models/writer.npz" in packed.namelist()
    for file, extras in ((wheel, learner.EXTRAS), (f"exercises/{learner.wheel()}", "")):
        text = found[f"{Path(file).parent}/requirements.txt"].read_text("utf8")
        where = f"attnbook{extras} @ {home}/notebooks/{learner.wheel()}"
        assert text == (f"{where}\n" if home else f"./{learner.wheel()}{extras}\n")


def test_a_package_of_an_index_is_no_wheel_of_the_site(learner, tmp_path):
    found = build(learner, app(on_index=True), tmp_path)
    assert set(found) == {"html/notebooks/requirements.txt", "exercises/requirements.txt"}


def test_nothing_names_a_command_that_finds_no_package():
    """Until the package is on an index, nobody may be told to fetch it from there."""
    setting = re.search(r"^ *package_on_index: (\w+)$", (ROOT / "_config.yml").read_text(), re.M)
    if setting[1] != "false":
        pytest.skip("the package is on an index")
    kept = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile")]
    kinds = {".py", ".md", ".ipynb", ".html", ".js", ".toml"}
    for folder in ("attnbook", "course", "book", "_build/html/notebooks", "_build/html/book"):
        kept += [path for path in (ROOT / folder).rglob("*") if path.suffix in kinds]
    assert len(kept) > 500
    for path in kept:
        assert not NAMES_INDEX.search(path.read_text("utf8")), path


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("pip install attnbook", True),
        ("pip install 'attnbook[torch]'", True),
        ('%pip install --quiet "attnbook[train,fast,plots]"', True),
        ("pip install pytest attnbook", True),
        ("uv add attnbook", True),
        ("pip install -r requirements.txt", False),
        ("pip install attnbook-0.1.0-py3-none-any.whl", False),
        ('%pip install --quiet "attnbook[plots] @ {address}"', False),
        ('%pip install --quiet "attnbook{extras} @ {address}"', False),
    ],
)
def test_what_counts_as_naming_it(text, names):
    assert bool(NAMES_INDEX.search(text)) == names


@pytest.mark.parametrize("text", [":::{note}", "```{prf:proof}", "{cite:t}`a`", ":label: x"])
def test_what_counts_as_raw(text):
    assert RAW.search(f"words\n{text}\n")


@pytest.mark.site
@pytest.mark.parametrize("name", NAMES)
def test_no_directive_is_left(name):
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    nbformat.validate(notebook)
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    assert len(texts) > 5
    for text in texts:
        code = re.sub(r"^```(python|bash|c)?$.*?^```$|`[^`\n]+`", "", text, flags=re.M | re.S)
        assert not RAW.search(code), RAW.search(code)
        assert text.count("<details>") == text.count("</details>")
        assert "system_message" not in text


@pytest.mark.site
@pytest.mark.parametrize("name", NAMES)
def test_formulas_are_those_of_the_record(name):
    ours, theirs = (
        "\n".join(
            cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "markdown"
        )
        for path in (FOLDER / f"{name}.ipynb", ROOT / f"book/{name}.ipynb")
    )
    ours = " ".join(re.sub("^(> ?)+", "", ours, flags=re.M).split())
    formulas = re.findall(r"^ *\$\$\n(.*?)\n *\$\$", theirs, re.M | re.S)
    assert formulas or name in {"models", "the_writer", "date_reader"}  # which have none
    assert [f for f in formulas if " ".join(f.split()) not in ours] == []


@pytest.mark.site
@pytest.mark.parametrize("name", every_day(NAMES[::6], NAMES))
def test_nbconvert_shows_no_directive(name):
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    notebook.cells = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    page, _ = nbconvert.HTMLExporter(template_name="basic").from_notebook_node(notebook)
    shown = re.sub(r"<(pre|code|script|style)\b.*?</\1>", "", page, flags=re.S)
    assert not RAW.search(re.sub("<[^>]*>", "", shown))


@pytest.mark.site
@pytest.mark.parametrize("name", NAMES)
def test_code_is_that_of_the_record(name):
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    record = nbformat.read(ROOT / f"book/{name}.ipynb", 4)
    ours = [cell.source for cell in notebook.cells if cell.cell_type == "code" and cell.source]
    texts = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert "find_spec" in ours[0]
    rest = [cell.source for cell in record.cells if cell.cell_type == "code"]
    assert [source for source in rest if source in ours] == ours[1:]
    for source in set(rest) - set(ours):  # a solution
        assert source in re.sub("^> ?", "", texts, flags=re.M)


@pytest.mark.site
@pytest.mark.parametrize("name", NAMES)
def test_no_answer_shows_its_output(name):
    """Not before a reader unfolds it, wherever the notebook is opened."""
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    record = nbformat.read(ROOT / f"book/{name}.ipynb", 4)
    answers = {c.source for c in record.cells if "hide-cell" in c.metadata.get("tags", ())}
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.source in answers:
            folds = {"source_hidden": True, "outputs_hidden": True}
            assert cell.metadata["jupyter"] == folds
            assert cell.metadata["collapsed"]
            assert cell.outputs == []


def record_of(tags):
    output = nbformat.v4.new_output("stream", text="7")
    cell = nbformat.v4.new_code_cell("print(7)", metadata={"tags": tags}, outputs=[output])
    return nbformat.v4.new_notebook(cells=[cell])


@pytest.mark.parametrize(
    ("tags", "is_folded", "is_shown"),
    [([], False, True), (["hide-input"], True, True), (["hide-cell"], True, False)],
)
def test_which_parts_of_a_cell_are_folded(learner, tags, is_folded, is_shown):
    cell = learner._cell(0, record_of(tags))
    folds = cell.metadata.get("jupyter", {})
    assert folds.get("source_hidden", False) == is_folded
    assert folds.get("outputs_hidden", False) == (not is_shown)
    assert bool(cell.outputs) == is_shown


@pytest.mark.site
@pytest.mark.parametrize("name", NAMES)
def test_each_exercise_and_task_has_an_empty_cell_below(name):
    source = (ROOT / f"book/{name}.md").read_text("utf8")
    solutions = re.findall(r"^(?:`{3,}|:{3,})\{solution(?:-start)?\} exercise-(\S+)", source, re.M)
    page = (FOLDER.parent / f"book/{name}.html").read_text("utf8")
    tasks = len(re.findall(r'id="answer-task', page))
    cells = nbformat.read(FOLDER / f"{name}.ipynb", 4).cells
    empty = [i for i, cell in enumerate(cells) if cell.cell_type == "code" and not cell.source]
    labels = [cells[i].metadata.get("attnbook") for i in empty]
    assert [label for label in labels if label] == [f"answer-exercise-{x}" for x in solutions]
    assert labels.count(None) == tasks
    assert tasks or name != "single_head"
    for i in empty:
        assert cells[i - 1].source.endswith("*Your answer:*")
    texts = [cell.source.strip() for cell in cells if cell.cell_type == "markdown"]
    assert "\n".join(texts).count("*Your answer:*") == len(empty)
    folded = [text for text in texts if "<details><summary>Solution to" in text]
    assert len(folded) == len(solutions)
    assert all(text.startswith("<details>") for text in folded)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A Python that has the packages of this one but for attnbook, and asks no index."""
    folder = tmp_path_factory.mktemp("plain")
    packages = folder / "packages"
    packages.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not re.match(r"_?(_editable_\w+_)?attnbook|.*\.pth$", path.name):
            (packages / path.name).symlink_to(path)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    own = next((folder / "venv").rglob("site-packages"))
    (own / "shared.pth").write_text(f"{packages}\n")
    return next((folder / "venv").rglob("bin/python"))


def executed(python, path):
    """Run a notebook in its folder and return its cells."""
    words = ["-m", "nbconvert", "--to", "notebook", "--execute", "--inplace", path.name]
    quiet = {**os.environ, "PIP_NO_INDEX": "1", "PYTHONPATH": "", "MPLBACKEND": "agg"}
    done = subprocess.run(
        [python, *words], cwd=path.parent, env=quiet, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return nbformat.read(path, 4).cells


@pytest.fixture
def served():
    """The site at an address of this machine, which is what a notebook in Colab has."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words):
            pass

    handler = functools.partial(Quiet, directory=FOLDER.parent)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.site
@pytest.mark.weekly
@pytest.mark.parametrize("where", ["beside", "site"])
def test_a_chapter_runs_where_the_package_is_not(where, learner, plain, served, tmp_path):
    """The notebook of a reader in a folder of its own, from its first cell to its last."""
    book = nbformat.read(FOLDER / "masking.ipynb", 4)
    if where == "beside":
        shutil.copy(FOLDER / learner.wheel(), tmp_path)
    else:
        book.cells[0].source = first_cell(learner.requirement(app(home=served), learner.EXTRAS))
    last = "import attnbook\nprint(attnbook.__file__)"
    book.cells.append(nbformat.v4.new_code_cell(last))
    uninstall = [plain, "-m", "pip", "uninstall", "--yes", "attnbook"]
    subprocess.run(uninstall, check=True, capture_output=True)
    nbformat.write(book, tmp_path / "masking.ipynb")
    cells = executed(plain, tmp_path / "masking.ipynb")
    assert cells[-1].outputs[0].text.startswith(str(plain.parents[1]))
    record = nbformat.read(ROOT / "book/masking.ipynb", 4)
    assert sum(bool(cell.get("outputs")) for cell in cells) > 20 < len(record.cells)


def test_a_notebook_without_its_wheel_says_so(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code = re.sub(r"%.*", "", first_cell("./attnbook-1-py3-none-any.whl[plots]"))
    with pytest.raises(FileNotFoundError, match=r"Put .* beside this notebook"):
        exec(code)
    (tmp_path / "attnbook-1-py3-none-any.whl").touch()
    exec(code)
