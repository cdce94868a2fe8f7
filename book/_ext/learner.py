"""Write each chapter as a notebook that plain Jupyter, VS Code, Colab and Kaggle show well.

The notebooks lie in the folder `notebooks` of the site, with the outputs of the record, and the
wheel of the package lies beside them. Their first cell installs the package where it is missing:
from a package index if the setting `package_on_index` says that it is there, and else the wheel
that lies beside the notebook, or on the site, if the setting `html_baseurl` says where that is.
Each page says where its notebook is. Where the setting `repository_url` of the theme is not empty,
it links to Colab and Binder too.
"""

import copy
import html
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import nbformat
from exercises import FOLDER as EXERCISES
from exercises import write_exercises
from plain_markdown import Answer, Cells

from course.installing import REQUIREMENTS, first_cell

FOLDER = "notebooks"
EXTRAS = "[train,fast,plots]"
FOLDS = {"hide-input", "hide-cell"}
ANSWER = "hide-cell"
"""The tag of an answer, which is folded with its output."""


def write_notebook(app, doctree, docname):
    """Write the notebook of a page that has one."""
    source = Path(app.env.doc2path(docname))
    if app.builder.format != "html" or source.suffix != ".ipynb":
        return
    record = nbformat.read(source, 4)
    chapters = {Path(name).name for name in app.env.found_docs if _is_notebook(app, name)}
    numbers = app.env.toc_fignumbers.get(docname, {})
    reader = Cells(docname, numbers, app.config.html_baseurl, chapters)
    write_exercises(app, docname, doctree, record, reader)
    cells = reader.page(doctree)
    book = nbformat.v4.new_notebook(metadata=copy.deepcopy(record.metadata))
    book.metadata.pop("jupytext", None)
    book.cells = [nbformat.v4.new_code_cell(first_cell(requirement(app, EXTRAS)))]
    book.cells += [_cell(cell, record) for cell in cells if cell != ""]
    for i, cell in enumerate(book.cells):
        cell.id = f"cell-{i}"
    folder = Path(app.outdir) / FOLDER
    folder.mkdir(exist_ok=True)
    nbformat.write(book, folder / f"{source.stem}.ipynb")
    (folder / f"{source.stem}.md").write_text(as_markdown(book), encoding="utf8")


def _is_notebook(app, docname):
    return app.env.doc2path(docname).endswith(".ipynb")


def _cell(cell, record):
    if isinstance(cell, Answer):  # grading finds it by the name that a page's own export has
        about = {"attnbook": f"answer-{cell.label}"} if cell.label else {}
        return nbformat.v4.new_code_cell("", metadata=about)
    if isinstance(cell, str):
        return nbformat.v4.new_markdown_cell(cell)
    found = copy.deepcopy(record.cells[cell])
    tags = set(found.metadata.get("tags", ()))
    found.metadata = nbformat.NotebookNode()
    if tags & FOLDS:  # JupyterLab and VS Code fold it; Colab has a form
        found.metadata["jupyter"] = {"source_hidden": True}
        found.metadata["cellView"] = "form"
    if ANSWER in tags:  # Colab and VS Code do not fold outputs, so a reader runs it to see them
        found.metadata["jupyter"]["outputs_hidden"] = True
        found.metadata["collapsed"] = True
    if tags & {ANSWER, "remove-output"}:
        found.outputs = []
    return found


def wheel() -> str:
    """Return the name of the wheel of this version."""
    return f"attnbook-{version('attnbook')}-py3-none-any.whl"


def requirement(app, extras: str = "") -> str:
    """Return what `pip` shall install: from an index, the site, the repository, or the folder."""
    site, repository = app.config.html_baseurl, repository_of(app)
    name = f"attnbook{extras}"
    if app.config.package_on_index:
        return name
    if site:
        return f"{name} @ {site.rstrip('/')}/{FOLDER}/{wheel()}"
    return f"{name} @ git+{repository}" if repository else f"./{wheel()}{extras}"


def add_wheel(app, exception):
    """Put there what the first cells install: the wheel, and requirements for the course too."""
    if exception or app.builder.format != "html":
        return
    notebooks, exercises = Path(app.outdir, FOLDER), Path(app.outdir).parent / EXERCISES
    for folder, extras in ((notebooks, EXTRAS), (exercises, "")):
        folder.mkdir(exist_ok=True)
        for old in folder.glob("*.whl"):
            old.unlink()
        text = requirement(app, extras)
        (folder / REQUIREMENTS).write_text(f"{text}\n", encoding="utf8")
    if not app.config.package_on_index:
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d"]
        here = str(notebooks.resolve())
        subprocess.run([*build, here], cwd=app.srcdir, check=True, capture_output=True)
    if text.startswith("./"):  # a class has nowhere else to get it from
        shutil.copyfile(notebooks / wheel(), exercises / wheel())


def repository_of(app) -> str:
    """Return the address of the repository, or an empty string."""
    return (app.config.html_theme_options.get("repository_url") or "").rstrip("/")


def as_markdown(book) -> str:
    """Return a notebook as Markdown, without outputs."""
    parts = [
        f"```python\n{cell.source}\n```" if cell.cell_type == "code" else cell.source
        for cell in book.cells
        if cell.source
    ]
    return "\n\n".join(parts) + "\n"


def places(app, name: str) -> dict[str, str]:
    """Return where the notebook of a chapter can be had, by what the link says."""
    found = {
        "Notebook": f"../{FOLDER}/{name}.ipynb",
        "Markdown": f"../{FOLDER}/{name}.md",
    }
    if requirement(app).startswith("./"):
        found["Package"] = f"../{FOLDER}/{wheel()}"
    at = repository_of(app).removeprefix("https://github.com/")
    if at and "://" not in at:  # the workflow of the site keeps the folder as a branch
        colab = "https://colab.research.google.com/github"
        found["Colab"] = f"{colab}/{at}/blob/{FOLDER}/{name}.ipynb"
        found["Binder"] = f"https://mybinder.org/v2/gh/{at}/{FOLDER}?labpath={name}.ipynb"
    return found


def add_links(app, pagename, templatename, context, doctree):
    """Put the links below the title of a chapter."""
    if doctree is None or not _is_notebook(app, pagename) or "</h1>" not in context.get("body", ""):
        return
    links = []
    for words, address in places(app, Path(pagename).name).items():
        own = "" if address.startswith("http") else " download"
        links.append(f'<a href="{html.escape(address)}"{own}>{words}</a>')
    if app.env.metadata[pagename].get("deck"):
        links.append(f'<a href="../slides/{Path(pagename).name}.html">Slides</a>')
    line = f'<p class="take-along">This chapter as: {" · ".join(links)}</p>'
    context["body"] = context["body"].replace("</h1>", f"</h1>\n{line}", 1)


def setup(app):
    app.add_config_value("package_on_index", False, "html", bool)
    app.connect("doctree-resolved", write_notebook, priority=900)
    app.connect("html-page-context", add_links)
    app.connect("build-finished", add_wheel)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
