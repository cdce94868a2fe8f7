"""What stands in an answer's process for modules that it cannot have.

Of attnbook only what an exercise uses is at hand. Any other module that is not there can be
imported and named, so that what an answer only mentions costs it nothing; to use one is an error
that says so. Those that only show something, such as a plot, take every call and do nothing.
"""

import __future__

import ast
import builtins
import sys
import types
from opcode import opmap
from typing import Any

FILE = "<the submission>"
ANSWER = "answer"
"""The `__name__` of the submission."""

SHOWS = {"IPython", "ipywidgets", "matplotlib", "mpl_toolkits", "plotly", "seaborn"}
"""Packages that compute nothing which an answer returns."""

FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)

OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul", "and", "xor"),
    *("lshift", "rshift", "radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow"),
    *("rmatmul", "rand", "rxor", "neg", "pos", "abs", "invert", "lt", "le", "gt", "ge"),
    *("enter", "next", "await", "delitem", "setitem"),
)


class NotAtHand(ModuleNotFoundError):  # noqa: N818
    """The submission asks for a module or a function that it cannot have."""


class Silent:
    """Stands for `attnbook.check` and its reports: it takes every call and says nothing."""

    passed = True
    mistake = message = detail = ""

    def __getattr__(self, name: str) -> "Silent":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *given: Any, **options: Any) -> "Silent":
        return self


class Absent:
    """Stands for a module that is not there, and for all that is in it.

    To import it, to write an annotation with it, and to ask whether something is of its type does
    nothing. Any other use raises NotAtHand, unless the module only shows something.
    """

    uses = 0
    """How often any of them was used."""

    def __init__(self, name: str):
        self.__name__ = name

    def __getattr__(self, part: str) -> "Absent":
        if part.startswith("__"):
            raise AttributeError(part)
        return Absent(f"{self.__name__}.{part}")

    def __setattr__(self, part: str, value: Any) -> None:
        if part == "__name__":
            super().__setattr__(part, value)

    def __call__(self, *given: Any, **options: Any) -> "Absent":
        Absent.uses += 1
        if self.__name__.partition(".")[0] in SHOWS or self.__name__.startswith("attnbook.plots"):
            return self
        raise NotAtHand(
            f"`{self.__name__}` is not available where answers are graded, because an answer may "
            "import only NumPy and what comes with Python"
        )

    def __getitem__(self, key: Any) -> "Absent":
        return self

    __or__ = __ror__ = __getitem__  # in an annotation

    def __iter__(self) -> Any:
        """Return as many parts as are asked for, as in ``figure, axes = plt.subplots()``."""
        self()
        frame = sys._getframe(1)
        code, at = frame.f_code.co_code, frame.f_lasti
        is_unpacked = code[at] == opmap["UNPACK_SEQUENCE"]
        return iter([self] * code[at + 1] if is_unpacked else [])

    def __exit__(self, *error: Any) -> None:
        """Let an error through."""

    def __instancecheck__(self, one: Any) -> bool:
        return False

    __subclasscheck__ = __contains__ = __instancecheck__

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return ()

    def __bool__(self) -> bool:
        self()
        return False

    def __len__(self) -> int:
        self()
        return 0

    def __float__(self) -> float:
        self()
        return 0.0

    __index__ = __int__ = __len__


for _name in OPERATORS:
    setattr(Absent, f"__{_name}__", Absent.__call__)


class StandIn:
    """Modules in the place of attnbook, which hold only what an exercise uses."""

    def __init__(self, found: dict[str, Any]):
        self.modules: dict[str, types.ModuleType] = {}
        self.tried: set[int] = set()
        for name, thing in (("check", Silent()), ("plots", Absent("attnbook.plots"))):
            setattr(self._module("attnbook"), name, thing)
            self.modules[f"attnbook.{name}"] = thing  # type: ignore[assignment]
        for path, value in found.items():
            parent, _, name = f"attnbook.{path}".rpartition(".")
            if not isinstance(value, types.ModuleType):
                setattr(self._module(parent), name, value)
        self._import = builtins.__import__
        builtins.__import__ = self
        for name in ("get_ipython", "display"):
            setattr(builtins, name, Absent("IPython"))
        sys.meta_path.insert(0, self)

    def _module(self, name: str) -> types.ModuleType:
        if name not in self.modules:
            made = self.modules[name] = types.ModuleType(name)

            def missing(attribute: str) -> Any:
                if attribute.startswith("__"):
                    raise AttributeError(attribute)
                raise NotAtHand(f"`{name}.{attribute}` is not available in this exercise")

            made.__getattr__ = missing  # type: ignore[method-assign]
            parent, _, own = name.rpartition(".")
            if parent:
                setattr(self._module(parent), own, made)
        return self.modules[name]

    def __call__(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        """Import a module, as `__import__` does."""
        owner = str((globals or {}).get("__name__", "")).partition(".")[0]
        top = name.partition(".")[0]
        if top != "attnbook" or owner == "attnbook":
            try:
                return self._import(name, globals, locals, fromlist, level)
            except ModuleNotFoundError as error:
                line = sys._getframe(1).f_lineno
                if owner != ANSWER or error.name != top or level or line in self.tried:
                    raise
                return Absent(name if fromlist else top)
        if name not in self.modules:
            raise NotAtHand(f"`{name}` is not available in this exercise")
        return self.modules[name] if fromlist else self.modules["attnbook"]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Find no module, and say so of attnbook."""
        if name.partition(".")[0] == "attnbook":
            raise NotAtHand(f"`{name}` is not available where this exercise is graded")

    def execute(self, source: str, space: dict[str, Any]) -> BaseException | None:
        """Run a submission, a statement at a time, and return the first error.

        What was bound before an error stays bound. A statement that asks for what is not at hand,
        such as a file or the network, is passed over.
        """
        try:
            tree = ast.parse(source, FILE)
        except BaseException as error:
            return error
        self.tried = {
            line
            for node in ast.walk(tree)
            if isinstance(node, (ast.Try, ast.With))
            for inner in node.body
            for line in range(inner.lineno, (inner.end_lineno or inner.lineno) + 1)
        }
        first: BaseException | None = None
        flags = 0
        for node in tree.body:
            before = Absent.uses
            try:
                part = ast.Module([node], [])
                code = compile(part, FILE, "exec", flags, dont_inherit=True)
                flags |= code.co_flags & FUTURE
                exec(code, space)
            except BaseException as error:
                first = first or error
                is_refused = isinstance(error, (NotAtHand, OSError))
                if not (is_refused or (isinstance(error, Exception) and Absent.uses > before)):
                    break
        return first
