"""Let the cells of the chapters run in the page, by Python in the reader's browser.

Every code cell of a chapter before *Put it back* is live, and those after it, up to the end of the
exercises and without the solutions, that need NumPy alone; elsewhere, what stands in a div of the
class `live-example`. An exercise, and an admonition of the class `task`, has a cell for the answer,
which begins with a stub; a task for the pencil alone has the class `pencil`, too, and no cell.
`book/live` holds what the page loads: `live.js` and `live.css` at once, all else when *Run* is
pressed.

Pyodide comes from the place that `book/live/pyodide.json` names, or, if the environment variable
ATTNBOOK_LIVE names a folder that holds its files, from the site itself.
"""

import ast
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import live_cells
from docutils import nodes
from live_policy import write_policies
from sphinx.errors import ExtensionError

LOADED = (
    "live.js",
    "live.css",
    "kernel.js",
    "kernel.py",
    "cheating.py",
    "own_attention.py",
    "codemirror/codemirror.js",
    "matmul/matmul.py",
    "matmul/loops.so",
)
OWN = [Path(name).name for name in LOADED if name.endswith((".py", ".so"))]
"""What the page's Python imports besides packages."""

FETCHED = [*(Path(name).name for name in LOADED[2:]), "settings.json"]
"""What `live.js` asks for when it needs it."""

CLOSING, EXERCISES, END = "Put it back", "Exercises", "What to keep"
RECORDS = "attnbook/data/records"
"""Where an installed package has its records; a page loads those alone that its cells name."""


def source_of(cell: nodes.container) -> str:
    """Return the code of a cell, or nothing where it is not shown."""
    for part in cell.children:
        if part.get("nb_element") == "cell_code_source":
            return part.astext()
    return ""


def mark_cells(app, doctree):
    """Mark the live cells of a chapter, and give its exercises a cell for the answer."""
    app.env.metadata[app.env.docname]["live"] = mark_examples(doctree)
    titles = {section[0].astext() for section in doctree.findall(nodes.section)}
    if CLOSING not in titles:
        return
    part, known, live, why = "chapter", set(), [], []
    solutions, solving, asked = {}, set(), []
    for node in doctree.findall():
        if isinstance(node, nodes.section) and node.children:
            title = node[0].astext()
            part = {CLOSING: "back", EXERCISES: "back", END: "end"}.get(title, part)
        elif type(node).__name__.startswith("exercise_") and "label" in node:
            asked.append(node)
        elif type(node).__name__ == "solution_node":
            cells = list(node.findall(is_cell))
            solving.update(map(id, cells))
            solutions[node["target_label"]] = "\n\n\n".join(map(source_of, cells))
        elif is_task(node):
            asked.append(node)
        elif is_cell(node) and part != "end" and id(node) not in solving:
            source = source_of(node)
            lacks = "" if part == "chapter" else live_cells.missing(source, known)
            if lacks:
                why.append((node, lacks))
            else:
                live.append((node, source))
                known |= live_cells.bound(ast.parse(source))
    for number, (node, _) in enumerate(live, 1):
        node["classes"].append("live")
        node["ids"].append(f"cell-{number}")
    for node, lacks in why:
        text = f"This cell does not run in a browser: it needs {lacks}."
        node += nodes.paragraph("", text, classes=["live-absent"])
    for node in asked:
        if "label" not in node:
            add_answer_of_task(node, known)
            continue
        solution = solutions.get(node["label"])
        if not solution or not live_cells.runs_here(solution, known):
            continue
        if text := live_cells.stub(solution, *words_of(node)):  # below the cells that check it
            last = [node, *cells_after(node)][-1]
            add_answer(node.parent, node.parent.index(last) + 1, node["label"], text)
    app.env.metadata[app.env.docname]["live"] = [source for _, source in live]


def mark_examples(doctree: nodes.document) -> list[str]:
    """Make a cell of each block of code, and of the block of its output, in a `live-example`."""
    sources = []
    for box in list(doctree.findall(nodes.container)):
        if "live-example" in box["classes"]:
            code, output = box.findall(nodes.literal_block)
            sources.append(code.astext())
            box["classes"][:0], box["ids"] = ["cell", "live"], [f"cell-{len(sources)}"]
            box.children = []
            box += nodes.container("", code, classes=["cell_input"])
            box += nodes.container("", output, classes=["cell_output"])
    return sources


def is_cell(node) -> bool:
    return isinstance(node, nodes.container) and node.get("nb_element") == "cell_code"


def is_task(node) -> bool:
    """Tell whether a node asks for code that is written before one reads on."""
    return isinstance(node, nodes.admonition) and {"task", "pencil"} & {*node["classes"]} == {
        "task"
    }


def cells_after(node: nodes.Element) -> Iterator[nodes.container]:
    """Yield the cells that follow a node before anything else is said."""
    for after in node.parent[node.parent.index(node) + 1 :]:
        if is_cell(after):
            yield after
        elif not isinstance(after, nodes.comment):
            return


def words_of(asked: nodes.Element) -> tuple[list[str], list[str]]:
    """Return what the text of a task or an exercise has in code letters: words, and blocks."""
    words = [word.astext() for word in asked.findall(nodes.literal)]
    return words, [block.astext() for block in asked.findall(nodes.literal_block)]


def add_answer_of_task(task: nodes.admonition, known: set[str]) -> None:
    """Put a cell for the answer before the folded cell that has the solution."""
    folded = [cell for cell in cells_after(task) if "tag_hide-cell" in cell["classes"]]
    solution = source_of(folded[0]) if folded else ""
    if not folded or not live_cells.runs_here(solution, known):
        raise ExtensionError(
            f"a task must have a folded cell below that runs in a browser, or the class pencil: "
            f"{task.astext()!r}"
        )
    words, blocks = words_of(task)
    label = "-".join(["task", *re.findall(r"^\w+", words[0] if words else "")])
    taken = {name for cell in task.document.findall(is_answer) for name in cell["ids"]}
    again = sum(re.fullmatch(rf"answer-{label}(-\d+)?", name) is not None for name in taken)
    label += f"-{again + 1}" if again else ""
    text = live_cells.stub(solution, words, blocks) or "# your answer"
    add_answer(task.parent, task.parent.index(folded[0]), label, text)


def is_answer(node) -> bool:
    return isinstance(node, nodes.container) and "answer" in node["classes"]


def add_answer(parent: nodes.Element, place: int, label: str, text: str) -> None:
    """Put a cell with a stub among the children of `parent`."""
    code = nodes.literal_block(text, text, language="python", classes=["stub"])
    cell = nodes.container(classes=["cell", "live", "answer"], ids=[f"answer-{label}"])
    cell += nodes.container("", code, classes=["cell_input"])
    parent.insert(place, cell)


def data_of(sources: list[str], folder: Path) -> list[str]:
    """Return the files of `folder` that the cells read: their names stand in the cells."""
    text = "\n".join(sources)
    if "record_path" not in text:
        return []
    words = set(re.findall(r"[\"'/](\w+)(?=[\"'.])", text))
    return sorted(path.name for path in folder.iterdir() if path.name.split(".")[0] in words)


def load_on_page(app, pagename, templatename, context, doctree):
    """Load the script and the style on pages with live cells."""
    sources = app.env.metadata.get(pagename, {}).get("live")
    if not sources:
        return
    folder = Path(app.srcdir, pagename).parent / "data"
    to = Path(app.outdir, "_static/live")
    data = [Path(shutil.copy(folder / name, to / "data")) for name in data_of(sources, folder)]
    files = [{"path": f"{RECORDS}/{path.name}", **addressed(path, "data/")} for path in data]
    attributes = {
        "data-page": Path(pagename).name,
        "data-files": json.dumps(files),
        "data-version": digest_of([to / name for name in FETCHED]),
    }
    app.add_js_file("live/live.js", loading_method="defer", **attributes)
    app.add_css_file("live/live.css")


def copy_all(app):
    """Put what live cells load into the site, before the pages are written, which name digests."""
    if app.builder.format != "html":
        return
    to = Path(app.outdir, "_static/live")
    (to / "data").mkdir(parents=True, exist_ok=True)
    for name in LOADED:
        shutil.copyfile(Path(app.srcdir, "book/live", name), to / Path(name).name)
    settings = json.loads(Path(app.srcdir, "book/live/pyodide.json").read_text("utf8"))
    if own := os.environ.get("ATTNBOOK_LIVE"):
        settings["place"] = f"pyodide-{settings['version']}/"
        copy_checked(settings["files"], Path(app.srcdir, own).resolve(), to / settings["place"])
    wheels = [write_wheel(name, app.srcdir, to) for name in ("array-api-compat", "attnbook")]
    settings["own"] = OWN
    settings["wheels"] = [addressed(path) for path in wheels]
    (to / "settings.json").write_text(json.dumps(settings), encoding="utf8")


def addressed(path: Path, folder: str = "") -> dict:
    """Return the size of a file, and its address with a digest: no browser keeps an older one."""
    return {"url": f"{folder}{path.name}?v={digest_of([path])}", "bytes": path.stat().st_size}


def digest_of(paths: list[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:8]


def write_pages(app, exception):
    """Write each page's Content-Security-Policy."""
    if exception or app.builder.format != "html":
        return
    static = Path(app.outdir, "_static")
    place = json.loads((static / "live/settings.json").read_text("utf8"))["place"]
    pages = [path for path in Path(app.outdir).rglob("*.html") if static not in path.parents]
    write_policies(pages, [place] if urlsplit(place).scheme else [])


def copy_checked(files: dict, folder: Path, to: Path) -> None:
    """Copy Pyodide's files, or raise ExtensionError naming one that is missing or another."""
    to.mkdir(exist_ok=True)
    for name, file in files.items():
        path = folder / name
        if not path.is_file():
            raise ExtensionError(f"ATTNBOOK_LIVE: {path} is missing: see book/live/README.md")
        if hashlib.sha256(path.read_bytes()).hexdigest() != file["sha256"]:
            raise ExtensionError(f"ATTNBOOK_LIVE: {path} must be that of book/live/pyodide.json")
        shutil.copyfile(path, to / name)


def write_wheel(name: str, root: str, folder: Path) -> Path:
    """Write a pure package as a wheel: attnbook from its folder, another as it is installed.

    The bytes depend on the files alone, so that a browser's cache and a test can rely on them.
    """
    about = importlib.metadata.distribution(name)
    if name == "attnbook":
        paths = sorted(Path(root, name).rglob("*"))
        files = {path.relative_to(root).as_posix(): path for path in paths if path.is_file()}
    else:
        files = {str(path): Path(path.locate()) for path in about.files or []}
    files = {k: v for k, v in files.items() if "__pycache__" not in k and not k.startswith("..")}
    stem = f"{name.replace('-', '_')}-{about.version}"
    target = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as wheel:
        for inside, path in sorted(files.items()):
            packed = path.suffix in {".npz", ".bz2"}  # packed already
            method = zipfile.ZIP_STORED if packed else zipfile.ZIP_DEFLATED
            wheel.writestr(zipfile.ZipInfo(inside), path.read_bytes(), method)
        if name == "attnbook":
            metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {about.version}\n"
            wheel.writestr(zipfile.ZipInfo(f"{stem}.dist-info/METADATA"), metadata)
    return target


def setup(app):
    app.connect("builder-inited", copy_all)
    app.connect("doctree-read", mark_cells, priority=600)  # after the boxes are mended
    app.connect("html-page-context", load_on_page)
    app.connect("build-finished", write_pages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": False}
