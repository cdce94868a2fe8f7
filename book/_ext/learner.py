"""Write each chapter as a notebook that plain Jupyter, VS Code, Colab and Kaggle show well.

The notebooks lie in the folder `notebooks` of the site, with the outputs of the record. Their first
cell installs the package where it is missing: from the site itself, in the folder `wheels`, if the
setting `html_baseurl` says where that is. Each page says where its notebook is. Where the
setting `repository_url` of the theme is not empty, it links to Colab and Binder too.
"""

import copy
import html
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import nbformat
from exercises import write_exercises
from plain_markdown import Answer, Cells

FOLDER, WHEELS = "notebooks", "wheels"
EXTRAS = "train,fast,plots"
FOLDS = {"hide-input", "hide-cell"}


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
    book.cells = [nbformat.v4.new_code_cell(install(app))]
    book.cells += [_cell(cell, record) for cell in cells if cell != ""]
    for i, cell in enumerate(book.cells):
        cell.id = f"cell-{i}"
    folder = Path(app.outdir) / FOLDER
    folder.mkdir(exist_ok=True)
    nbformat.write(book, folder / f"{source.stem}.ipynb")
    (folder / f"{source.stem}.md").write_text(as_markdown(book), encoding="utf8")
    (folder / "requirements.txt").write_text(f"{requirement(app)}\n", encoding="utf8")


def _is_notebook(app, docname):
    return app.env.doc2path(docname).endswith(".ipynb")


def _cell(cell, record):
    if isinstance(cell, Answer):  # grading finds it by the name that a page's own export has
        return nbformat.v4.new_code_cell("", metadata={"attnbook": f"answer-{cell.label}"})
    if isinstance(cell, str):
        return nbformat.v4.new_markdown_cell(cell)
    found = copy.deepcopy(record.cells[cell])
    tags = set(found.metadata.get("tags", ()))
    found.metadata = nbformat.NotebookNode()
    if tags & FOLDS:  # JupyterLab and VS Code fold it; Colab has a form
        found.metadata["jupyter"] = {"source_hidden": True}
        found.metadata["cellView"] = "form"
    if "remove-output" in tags:
        found.outputs = []
    return found


def requirement(app) -> str:
    """Return what `pip` shall install: from the site, the repository, or the package index."""
    site, repository = app.config.html_baseurl, repository_of(app)
    name = f"attnbook[{EXTRAS}]"
    if site:
        wheel = f"attnbook-{version('attnbook')}-py3-none-any.whl"
        return f"{name} @ {site.rstrip('/')}/{WHEELS}/{wheel}"
    return f"{name} @ git+{repository}" if repository else name


def install(app) -> str:
    """Return the first cell of a notebook."""
    return (
        "# The chapter needs the package of the book, which this installs where it is missing.\n"
        "import importlib.util\n\n"
        'if importlib.util.find_spec("attnbook") is None:\n'
        f'    %pip install --quiet "{requirement(app)}"'
    )


def add_wheel(app, exception):
    """Put the wheel there that the first cell installs: the one that a release publishes."""
    if exception or app.builder.format != "html" or not app.config.html_baseurl:
        return
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d"]
    folder = Path(app.outdir, WHEELS).resolve()
    subprocess.run([*build, str(folder)], cwd=app.srcdir, check=True, capture_output=True)


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
    app.connect("doctree-resolved", write_notebook, priority=900)
    app.connect("html-page-context", add_links)
    app.connect("build-finished", add_wheel)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
