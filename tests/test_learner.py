"""The notebooks to take home: no directive is left, and they run where only the package is."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import nbconvert
import nbformat
import pytest
from cases import every_day, load

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "_build/html/notebooks"
NAMES = sorted(path.stem for path in (ROOT / "book").glob("*.ipynb"))
RAW = re.compile(
    r"^\s*:{3,}|`{3,}\s*\{|\{[a-z]+(:[a-z]+)?\}`|^\s*:(label|class|pyobject|tags|name):",
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def learner():
    return load(ROOT / "book/_ext/learner.py")


def app(repository="", home=""):
    theme = {"repository_url": repository}
    return SimpleNamespace(config=SimpleNamespace(html_theme_options=theme, html_baseurl=home))


def test_links_follow_from_the_repository(learner):
    assert list(learner.places(app(), "sketch")) == ["Notebook", "Markdown"]
    places = learner.places(app("https://github.com/one/two/"), "sketch")
    colab = "https://colab.research.google.com/github/one/two/blob/notebooks/sketch.ipynb"
    assert places["Colab"] == colab
    assert places["Binder"] == "https://mybinder.org/v2/gh/one/two/notebooks?labpath=sketch.ipynb"
    assert "Colab" not in learner.places(app("https://example.org/one/two"), "sketch")


def test_what_is_installed(learner):
    assert learner.requirement(app()) == "attnbook[train,fast,plots]"
    ours = app("https://github.com/one/two")
    assert learner.requirement(ours).endswith("] @ git+https://github.com/one/two")
    ours = app("https://github.com/one/two", "https://one.github.io/two/")
    found = learner.requirement(ours)
    assert re.search(r"\] @ https://one.github.io/two/wheels/attnbook-.*-none-any\.whl$", found)


def test_the_site_has_the_wheel_that_its_notebooks_install(learner, tmp_path):
    ours = app(home="https://one.github.io/two")
    ours.builder, ours.srcdir, ours.outdir = SimpleNamespace(format="html"), ROOT, tmp_path
    learner.add_wheel(ours, None)
    inside = learner.requirement(ours).removeprefix("attnbook[train,fast,plots] @ ")
    path = tmp_path / inside.removeprefix("https://one.github.io/two/")
    with zipfile.ZipFile(path) as wheel:
        assert "attnbook/models/writer.npz" in wheel.namelist()


def test_a_site_without_an_address_has_no_wheel_to_install(learner, tmp_path):
    ours = app()
    ours.builder, ours.srcdir, ours.outdir = SimpleNamespace(format="html"), ROOT, tmp_path
    learner.add_wheel(ours, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", [":::{note}", "```{prf:proof}", "{cite:t}`a`", ":label: x"])
def test_what_counts_as_raw(text):
    assert RAW.search(f"words\n{text}\n")


@pytest.mark.site
@pytest.mark.parametrize("name", NAMES)
def test_no_directive_is_left(name):
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    nbformat.validate(notebook)
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    assert len(texts) > 10
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
    assert formulas or name == "models"  # which has none
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
@pytest.mark.weekly
def test_a_chapter_runs_where_only_the_package_is(tmp_path):
    wheels, home = tmp_path / "wheels", tmp_path / "home"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(build, check=True, cwd=ROOT, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    home.mkdir()
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--target", str(home / "site"), str(wheel)], check=True)
    path = home / "multi_head.ipynb"
    path.write_bytes((FOLDER / "multi_head.ipynb").read_bytes())
    run = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--inplace"]
    environment = {**os.environ, "PYTHONPATH": str(home / "site")}
    done = subprocess.run([*run, str(path)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    where = [sys.executable, "-c", "import attnbook; print(attnbook.__file__)"]
    found = subprocess.run(where, env=environment, cwd=home, capture_output=True, text=True)
    assert found.stdout.startswith(str(home / "site"))
    cells = json.loads(path.read_text("utf8"))["cells"]
    assert any(cell.get("outputs") for cell in cells)
