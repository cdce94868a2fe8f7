"""What an import loads, what it offers, and what its documentation promises."""

import importlib
import inspect
import re
import subprocess
import sys

import pytest

import attnbook
import attnbook.sketch

HEAVY = {"torch", "cupy", "numba", "triton", "matplotlib", "scipy", "pandas", "sklearn"}
NOT_YET = {
    *("check", "data", "decoding", "distributed", "hashing"),
    *("models", "nn", "plots", "sketch", "sparse_attention"),
}
"""Rooms that are imported when they are first used."""


def run(code: str) -> str:
    """Return what a fresh interpreter prints."""
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_import_loads_numpy_and_array_api_compat_alone():
    before = "import numpy, sys; print(*sys.modules)"
    after = "import numpy, attnbook, sys; print(*sys.modules)"
    added = set(run(after).split()) - set(run(before).split())
    packages = {name.split(".")[0] for name in added}
    assert not packages & HEAVY
    outside = packages - set(sys.stdlib_module_names) - {"attnbook", "array_api_compat", "numpy"}
    assert outside == set()
    assert not {name.split(".")[1] for name in added if name.startswith("attnbook.")} & NOT_YET


def test_attention_on_numpy_loads_nothing_more():
    code = (
        "import numpy as np, attnbook, sys\n"
        "x = np.ones((3, 2))\n"
        "weights = attnbook.SingleHeadWeights.init(0, 2, d_k=2, d_v=2)\n"
        "attnbook.single_head_attention(x, x, x, weights.to('numpy', dtype='float64'))\n"
        "attnbook.attention_vjp(x, x, x, x)\n"
        "for impl in ('naive', 'in_place', 'tiled', 'threads'):\n"
        "    attnbook.attention(x, x, x, impl=impl, is_causal=True)\n"
        "attnbook.attention_vjp(x, x, x, x, impl='tiled')\n"
        "weights = attnbook.MultiHeadWeights.init(0, 2, 2, bias=True)\n"
        "mask = attnbook.masking.causal(3) & attnbook.masking.padding([3], 3)\n"
        "attnbook.multi_head_attention(x, x, x, weights, mask)\n"
        "attnbook.masking.to_additive(mask)\n"
        "weights = attnbook.TransformerWeights.init(\n"
        "    0, 5, d_model=4, n_heads=2, d_ff=3, n_layers=1, activation='gelu')\n"
        "ids = np.array([[1, 2]])\n"
        "logits = attnbook.transformer(ids, ids, weights)\n"
        "attnbook.cross_entropy(attnbook.dropout(logits, 0.5, 0), ids)\n"
        "print(*sys.modules)"
    )
    assert not {name.split(".")[0] for name in run(code).split()} & HEAVY


def test_nn_without_torch_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("attnbook.nn")]:
        monkeypatch.delitem(sys.modules, name)
    message = re.escape("attnbook.nn needs PyTorch: pip install torch")
    with pytest.raises(ImportError, match=f"^{message}$"):
        importlib.import_module("attnbook.nn")


def test_public_names():
    assert attnbook.__all__ == sorted(attnbook.__all__)
    for name in attnbook.__all__:
        thing = getattr(attnbook, name)
        home = thing.__name__ if inspect.ismodule(thing) else thing.__module__
        assert home.startswith("attnbook.")
        assert thing.__doc__
    for module in (attnbook, attnbook.masking, attnbook.positions):
        everything = {}
        exec(f"from {module.__name__} import *", everything)
        assert set(module.__all__) == {name for name in everything if not name.startswith("__")}


def documented():
    """Return every public function and method, and every class with fields, by name."""
    found = {}
    for name in attnbook.sketch.__all__:
        thing = getattr(attnbook.sketch, name)
        if inspect.isfunction(thing) or hasattr(thing, "__dataclass_fields__"):
            found[f"sketch.{name}"] = thing
    for name in attnbook.__all__:
        thing = getattr(attnbook, name)
        if inspect.ismodule(thing):
            found |= {f"{name}.{member}": getattr(thing, member) for member in thing.__all__}
            continue
        found[name] = thing
        if inspect.isclass(thing):
            for method, member in vars(thing).items():
                member = getattr(member, "__func__", member)
                if inspect.isfunction(member) and not method.startswith("_"):
                    found[f"{name}.{method}"] = member
    return found


@pytest.mark.parametrize("name", documented())
def test_docstring_is_complete(name):
    thing = documented()[name]
    text = inspect.getdoc(thing)
    first = text.splitlines()[0]
    assert first.endswith(".")
    assert len(first) <= 100
    if inspect.isclass(thing):
        assert "Attributes\n----------" in text
        fields = getattr(thing, "__dataclass_fields__", {})
        for field in fields:
            assert field in text, f"{name} does not say what {field} is"
        return
    parameters = [p for p in inspect.signature(thing).parameters if p not in ("self", "cls")]
    if "." not in thing.__qualname__:  # methods may say all they have to say in a sentence
        sections = ["Returns", "Raises"] if parameters else ["Returns"]
        sections += ["Parameters", "Examples"] if parameters else []
        for section in sections:
            assert f"{section}\n{'-' * len(section)}\n" in text, f"{name} lacks {section}"
    if "Parameters\n" in text:
        listed = text.split("Parameters\n")[1].split("\n\n")[0]
        for parameter in parameters:
            assert parameter in listed, f"{name} does not say what {parameter} is"


def test_version_is_that_of_the_installed_package():
    metadata = importlib.import_module("importlib.metadata")
    assert metadata.version("attnbook") == attnbook.__version__
