"""Fixtures that every test of the package shares."""

import gc
import importlib.util
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import WEEKLY, ArrayLibrary, absent, examples
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parents[1]))  # benchmarks/ is no part of the package

# The site in a browser: the empty package that students get has neither.
pytest_plugins = [name for name in ("visits",) if importlib.util.find_spec(name)]

# The same cases in every run and on every machine: a failure is a change of the code.
settings.register_profile(
    "attnbook", derandomize=True, deadline=None, database=None, max_examples=examples(60)
)
settings.load_profile("attnbook")

# nbformat imports it for a format that no notebook has, and it makes a parser of every rule.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]


LIBRARIES = (
    pytest.param(ArrayLibrary("numpy"), id="numpy"),
    pytest.param(ArrayLibrary("torch"), id="torch"),
    pytest.param(ArrayLibrary("array_api_strict"), id="strict"),
    pytest.param(ArrayLibrary("torch", "cuda"), id="torch-cuda", marks=pytest.mark.gpu),
    pytest.param(ArrayLibrary("cupy", "cuda"), id="cupy", marks=pytest.mark.gpu),
)


@pytest.fixture(scope="module", params=LIBRARIES)  # by module, so that a file stays together
def library(request) -> Iterator[ArrayLibrary]:
    """Each array library that can run here; the others skip and say why."""
    library: ArrayLibrary = request.param
    if library.name != "array_api_strict":
        yield library
        return
    import array_api_strict

    # What the standard leaves optional is off, so that only what every library has is used.
    strictest = array_api_strict.ArrayAPIStrictFlags(
        boolean_indexing=False, data_dependent_shapes=False, enabled_extensions=()
    )
    with strictest:
        yield library


ELSEWHERE = """
    array_api_strict axe_playwright_python docutils faiss ipykernel IPython jaxtyping jupytext
    matplotlib nbclient nbconvert nbformat nbgrader numba playwright py_mini_racer pypdf scipy
    sphinx threadpoolctl tinycss2 tokenizers transformers
"""
"""Packages that a machine with a GPU may lack: files of tests that import them are skipped."""


class TestFile(pytest.Module):
    """A file of tests, skipped with a reason where a package of `ELSEWHERE` is not installed."""

    __test__ = False

    def collect(self):
        """Return the tests of the file."""
        try:
            return list(super().collect())
        except self.CollectError as error:
            cause = error.__cause__
            missing = cause.name if isinstance(cause, ModuleNotFoundError) else None
            if (missing or "").partition(".")[0] not in ELSEWHERE.split():
                raise
            pytest.skip(f"{missing} is not installed", allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent) -> pytest.Module:
    """Collect a file of tests even where packages for the book are absent."""
    return TestFile.from_parent(parent, path=module_path)


INTERPRETED = "TRITON_INTERPRET"
ASKED = os.environ.get(INTERPRETED)


def ask_triton_as_before() -> None:
    if ASKED is None:
        os.environ.pop(INTERPRETED, None)
    else:
        os.environ[INTERPRETED] = ASKED


@pytest.fixture(autouse=True)
def triton_as_asked() -> Iterator[None]:
    """Whether Triton interprets: a cell of a chapter asks for it, and other tests compile."""
    ask_triton_as_before()
    yield
    ask_triton_as_before()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what runs every week, and the arrays of a library that cannot run here."""
    for item in items:
        call = getattr(item, "callspec", None)
        library = call.params.get("library") if call else None
        if isinstance(library, ArrayLibrary) and (reason := absent(library)):
            item.add_marker(pytest.mark.skip(reason))
        elif not WEEKLY and item.get_closest_marker("weekly"):
            item.add_marker(pytest.mark.skip("it runs every week: make test WEEKLY=1"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Keep what is collected from the garbage collector: it lives to the end, and passes cost."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
