"""The CUDA rungs, imported with CuPy or with its stand-in on the CPU."""

import contextlib
import dataclasses
import importlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

MODULES = {
    "arrays": "attnbook.kernels.cuda.arrays",
    "cupy_tiled": "attnbook.kernels.cupy_tiled",
}
BLOCKS = ("64, 8, 4", "128, 8, 4", "256, 4, 2", "64, 1, 4", "128, 1, 4", "256, 1, 2")
TYPES = ("float", "float16", "bfloat16")
TEMPLATES = {
    "cupy_tiled": (
        *(f"attend<float, {block}{rule}>" for block in BLOCKS for rule in ("", ", true")),
        *(f"attend<{half}, 64, {r}, 4>" for half in TYPES[1:] for r in (1, 8)),
        *(f"merge<{type}>" for type in TYPES),
    ),
}


@contextlib.contextmanager
def imported(cupy: Any) -> Iterator[dict[str, Any]]:
    """Import the rungs with this CuPy; afterwards all is as before."""
    package = importlib.import_module("attnbook.kernels")
    names = [*MODULES.values(), "cupy"]
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.modules["cupy"] = cupy
    try:
        yield {short: importlib.import_module(name) for short, name in MODULES.items()}
    finally:
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(before)
        for short, name in MODULES.items():
            if name in before:
                setattr(package, short, before[name])
            elif hasattr(package, short):
                delattr(package, short)


@dataclasses.dataclass(frozen=True)
class Gpu:
    """CuPy or its stand-in, with the rungs; an array library like those of cases.py."""

    cupy: Any
    modules: dict[str, Any]
    name = "cupy"
    device = "cuda"
    dtypes = ("float16", "float32")

    def array(self, x, dtype=None):
        return self.cupy.asarray(np.array(x, dtype=dtype))

    def numpy(self, x):
        x = x.get() if hasattr(x, "get") else np.array(x)
        return x.astype(np.float64) if x.dtype.kind == "f" else x

    def same_kind(self, x, like):
        return type(x) is type(like) and x.dtype == like.dtype

    def attention(
        self, impl, query, key, value, mask=None, bias=None, *, scale=None, is_causal=False
    ):
        """Call a rung as `attnbook.attention` does, which does not take the stand-in's arrays."""
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return self.modules[impl].attention(query, key, value, mask, bias, scale, is_causal)
