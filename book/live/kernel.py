"""Runs in the page's Python: a cell as Jupyter runs it. What it prints, shows and draws is sent."""

import ast
import base64
import builtins
import functools
import importlib.machinery
import importlib.util
import io
import linecache
import os
import sys
import traceback
import types

import numpy

os.environ["MPLBACKEND"] = "agg"

DRAWING = (
    "pyparsing",
    "PIL.PngImagePlugin",
    "matplotlib",
    "matplotlib.figure",
    "matplotlib.pyplot",
)
"""What a figure needs, in steps between which a cell can run."""

MOST_CHARACTERS = 200_000
"""What a cell prints beyond so many characters is left out: a page cannot show an endless loop."""


class Late(types.ModuleType):
    """A module whose code runs when something is asked for that it has not been given."""

    def __init__(self, name, then=lambda: None, **given):
        super().__init__(name)
        vars(self).update(given, _then=then)
        sys.modules[name] = self
        package, _, last = name.rpartition(".")
        if package:
            setattr(sys.modules[package], last, self)

    def __getattr__(self, key):
        if key.startswith("__"):  # Python itself looks for these in every module
            raise AttributeError(f"module {self.__name__!r} has no attribute {key!r}")
        self.load()
        return getattr(self, key)

    def load(self):
        package = self.__name__.rpartition(".")[0]
        if package:
            load(package)
        where = sys.modules[package].__path__ if package else None
        spec = importlib.machinery.PathFinder.find_spec(self.__name__, where)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {self.__name__!r}", name=self.__name__)
        vars(self).update(vars(importlib.util.module_from_spec(spec)))
        self.__class__ = types.ModuleType
        spec.loader.exec_module(self)
        self._then()


def load(name):
    """Import a module, or let it run if it has waited for that."""
    module = importlib.import_module(name)
    if isinstance(module, Late):
        module.load()


def is_right(found):
    """Tell whether a check of a chapter found nothing wrong: in a word, or in truth values."""
    if isinstance(found, str):
        return found.strip(".").lower() == "right"
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, (list, tuple)):
        return all(map(is_right, found))
    return bool(found) or not isinstance(found, (bool, numpy.bool))


def drawing():
    """Return pyplot if a cell has used it."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    return pyplot if type(pyplot) is types.ModuleType else None


class Stream(io.TextIOBase):
    """Standard output or error of the running cell."""

    def __init__(self, name, send):
        self.name, self.send = name, send
        self.begin()

    def begin(self):
        self.text, self.left = [], MOST_CHARACTERS

    def writable(self):
        return True

    def write(self, text):
        kept = text[: max(self.left, 0)]
        self.left -= len(text)
        if kept:
            self.text.append(kept)
            if self.left <= 0:
                self.text.append("\n… the rest of what this cell prints is left out\n")
            if "\n" in kept:
                self.flush()
        return len(text)

    def flush(self):
        if self.text:
            text, self.text = "".join(self.text), []
            self.send("stream", self.name, text)


class Kernel:
    """The names of one page, and what runs in them. `send(kind, name, text)` talks to the page."""

    def __init__(self, send):
        self.send = send
        self.streams = Stream("stdout", send), Stream("stderr", send)
        self.module = types.ModuleType("__main__")
        self.module.display = self.display
        self.count = 0
        self.reports = []
        builtins.display = self.display
        sys.modules["__main__"] = self.module
        sys.stdout, sys.stderr = self.streams
        sys.displayhook = self.display_one
        importlib.import_module("attnbook")  # before its plots, which come late
        for name in ("ctypeslib", "f2py", "ma", "polynomial", "testing", "typing"):
            Late(f"numpy.{name}")  # `from numpy import *` in array_api_compat asks for them all
        Late("matplotlib")
        Late("matplotlib.pyplot", self.pyplot_is_there)
        self.plots = Late("attnbook.plots", use_style=self.want_style)
        self.styled = False

    def run(self, source):
        """Run a cell, and return what is known of its end."""
        self.count += 1
        name = f"<cell {self.count}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        self.reports = []
        for stream in self.streams:
            stream.begin()
        result = {"ok": False, "asserts": False}
        try:
            tree = ast.parse(source, name)
            result["asserts"] = any(isinstance(node, ast.Assert) for node in ast.walk(tree))
            last = tree.body[-1] if tree.body else None
            quiet = source.rstrip().endswith(";")
            shown = tree.body.pop() if isinstance(last, ast.Expr) and not quiet else None
            names = self.module.__dict__
            exec(compile(tree, name, "exec"), names)
            if shown is not None:
                value = eval(compile(ast.Expression(shown.value), name, "eval"), names)
                if value is not None:
                    names["_"] = value
                    self.display_one(value)
            self.flush_figures()
            result["ok"] = True
        except BaseException as error:
            self.flush_figures()
            self.show_error(error)
        for stream in self.streams:
            stream.flush()
        result["reports"] = self.reports
        self.watch_checks()
        return result

    def watch_checks(self):
        """Let the functions `check_…` of a chapter tell the page what they find."""

        def watched(function):
            @functools.wraps(function)
            def call(*args, **kwargs):
                found = function(*args, **kwargs)
                if found is not None:
                    self.reports.append(is_right(found))
                return found

            return call

        for name, value in self.module.__dict__.items():
            if name.startswith("check_") and not hasattr(value, "__wrapped__"):
                self.module.__dict__[name] = watched(value)

    def want_style(self):
        self.styled = True

    def pyplot_is_there(self):
        pyplot = sys.modules["matplotlib.pyplot"]
        pyplot.show = lambda *args, **kwargs: self.flush_figures()
        if self.styled:
            load("attnbook.plots")
            self.plots.use_style()

    def get_ready_to_draw(self, step):
        """Do one step of what the first figure needs, and tell whether there is another."""
        if step < len(DRAWING):
            load(DRAWING[step])
            return True
        pyplot = sys.modules["matplotlib.pyplot"]
        figure = pyplot.figure()  # the first one finds the fonts
        figure.text(0, 0, "0")
        figure.savefig(io.BytesIO(), format="png", bbox_inches="tight")
        pyplot.close(figure)
        return False

    def show_error(self, error):
        for stream in self.streams:
            stream.flush()
        if isinstance(error, KeyboardInterrupt):
            self.send("error", "KeyboardInterrupt", "Stopped. All names are still there.")
            return
        told = traceback.TracebackException.from_exception(error)
        # the lines of cells, and where it happened: what lies between in a package helps nobody
        kept = [frame for frame in told.stack if frame.filename.startswith("<cell")]
        kept += [frame for frame in told.stack[-1:] if kept and frame is not kept[-1]]
        told.stack = traceback.StackSummary.from_list(kept)
        self.send("error", type(error).__name__, "".join(told.format()))

    def display(self, *values):
        for value in values:
            self.display_one(value)

    def display_one(self, value):
        if value is None:
            return
        for stream in self.streams:
            stream.flush()
        kind = type(value)
        if kind.__name__ == "Report" and kind.__module__.startswith("attnbook.check"):
            self.reports.append(bool(value.passed))
        pyplot = drawing()
        if pyplot is not None and isinstance(value, pyplot.Figure):
            self.show_figure(value)
            pyplot.close(value)
            return
        as_html = getattr(value, "_repr_html_", None)
        text = as_html() if callable(as_html) and not isinstance(value, type) else None
        if text is not None:
            self.send("display", "text/html", text)
        else:
            self.send("display", "text/plain", repr(value))

    def show_figure(self, figure):
        file = io.BytesIO()
        figure.savefig(file, format="png", bbox_inches="tight")
        self.send("display", "image/png", base64.b64encode(file.getvalue()).decode())

    def flush_figures(self):
        """Show and close every open figure, as Jupyter does for `plt.show()` and after a cell."""
        pyplot = drawing()
        if pyplot is None:
            return
        for stream in self.streams:
            stream.flush()
        figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
        for figure in figures:
            self.show_figure(figure)
        pyplot.close("all")
