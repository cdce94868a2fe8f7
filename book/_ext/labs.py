"""Figures that can be moved: the directive ``lab NAME`` puts one of `book/labs` into a page.

The first paragraph of its content is the caption, and what follows are questions to try. The first
picture, the controls and the sentence below are drawn while the site is built, by the same script
that later makes them move, so that a page without a script, and paper, have them too.
"""

import atexit
import functools
import hashlib
import re
import shutil
from pathlib import Path
from typing import Any

import lab_data
from docutils import nodes
from py_mini_racer import MiniRacer
from sphinx.util.docutils import SphinxDirective

FOLDER = Path(__file__).parents[1] / "labs"
IMPORT = re.compile(r'^import \{(.*)\} from "\./([\w-]+\.js)";$', re.M)
EXPORTED = re.compile(r"^export (?=(?:(?:async )?function\*?|class|const|let) (\w+))", re.M)


def text_of(name: str) -> str:
    """Return the text of a module, which may be made while the site is built."""
    if name in lab_data.FILES:
        return lab_data.made(name).decode()
    return (FOLDER / name).read_text("utf8")


def modules_of(name: str) -> list[str]:
    """Return the files that a module needs and its own, each after what it imports."""
    imported = [file for _, file in IMPORT.findall(text_of(name))]
    return list(dict.fromkeys([*(m for file in imported for m in modules_of(file)), name]))


def as_script(name: str) -> str:
    """Return a module as a script, for the engine knows no modules: it leaves `modules[name]`."""
    text = text_of(name).replace("import.meta.url", '""')
    names = ", ".join(EXPORTED.findall(text))
    text = IMPORT.sub(_from_modules, EXPORTED.sub("", text))
    return f'modules["{name}"] = (() => {{\n{text}\nreturn {{ {names} }};\n}})();'


def _from_modules(line: re.Match) -> str:
    return f'const {{{line[1].replace(" as ", ": ")}}} = modules["{line[2]}"];'


class Lab:
    """A figure outside a browser.

    Attributes
    ----------
    start : dict
        The state that it begins with.
    """

    def __init__(self, name: str) -> None:
        self._engine = MiniRacer()
        atexit.register(self._engine.close)  # the end of the interpreter can wait for it for ever
        scripts = [as_script(file) for file in modules_of(f"{name}.js")]
        names = f'const lab = modules["{name}.js"].lab, kit = modules["kit.js"];'
        self._engine.eval("\n".join(["const modules = {};", *scripts, names]))
        self.start = self.call("() => lab.start")

    def call(self, function: str, *values: Any) -> Any:
        """Return what a function of JavaScript, which knows `lab` and `kit`, makes of values."""
        return self._engine.call(f"({function})", *values)

    def numbers(self, **changes: Any) -> Any:
        """Return what the figure shows in the first state, or in a changed one."""
        return self.call("state => lab.numbers(state)", self.start | changes)

    def box(self) -> str:
        """Return the figure as HTML."""
        title = self.call("() => kit.escaped(lab.title)")
        name, inside = self.call("() => lab.name"), self.call("() => kit.inside(lab)")
        about = f'role="group" aria-label="{title}" data-lab="{name}"'
        return f'<div class="lab-box" {about}>{inside}</div>'


@functools.cache
def lab_named(name: str) -> Lab:
    return Lab(name)


class LabDirective(SphinxDirective):
    """``lab NAME``: a figure, with its caption and questions to try."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        for file in modules_of(f"{name}.js"):
            self.env.note_dependency(str(FOLDER / file))
        self.env.metadata[self.env.docname]["labs"] = True
        caption, *questions = self.parse_content_to_nodes()
        figure = nodes.figure(classes=["lab"], names=[f"lab-{name}"])
        figure += nodes.raw("", lab_named(name).box(), format="html")
        figure += nodes.caption("", "", *caption.children)
        if questions:
            figure += nodes.legend("", *questions)
        self.set_source_info(figure)
        self.state.document.note_explicit_target(figure)
        return [figure]


@functools.cache
def address() -> str:
    """Return the folder of the site for the modules, which import one another.

    Its name has a digest of all in it, so that no browser takes an older module for a new page.
    """
    texts = [path.read_bytes() for path in sorted(FOLDER.iterdir())]
    texts += [lab_data.made(name) for name in lab_data.FILES]
    return f"labs/{hashlib.sha256(b''.join(texts)).hexdigest()[:8]}"


def load_on_page(app, pagename, templatename, context, doctree):
    """Load the script and the style on pages with such figures."""
    if app.env.metadata.get(pagename, {}).get("labs"):
        app.add_js_file(f"{address()}/labs.js", type="module")
        app.add_css_file(f"{address()}/labs.css")


def copy_files(app):
    """Copy `book/labs` before the pages are written, which name the digests of what they load."""
    if app.builder.format == "html":
        to = Path(app.outdir, "_static", address())
        shutil.rmtree(to.parent, ignore_errors=True)
        shutil.copytree(FOLDER, to)
        for name in lab_data.FILES:
            (to / name).write_bytes(lab_data.made(name))


def setup(app):
    app.add_directive("lab", LabDirective)
    app.connect("builder-inited", copy_files)
    app.connect("html-page-context", load_on_page)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
