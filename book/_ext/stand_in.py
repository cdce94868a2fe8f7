"""Stand in for PyTorch and its company while the reference page is written.

The page prints docstrings and signatures. For them `import torch` must succeed, a module must have
a class to inherit from, and `torch.Tensor | None` must mean something; nothing computes. The page
is the same whether PyTorch is installed or not, and who reads the book need not download it.
"""

import importlib.abc
import importlib.machinery
import sys
import types

NAMES = {"torch", "safetensors", "tqdm"}


class StandIn(types.ModuleType):
    """A package in which each capitalised name is an empty class, any other one such a package."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper():
            value = type(name, (), {"__module__": self.__name__})
        else:
            value = importlib.import_module(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds these names and whatever stands below them before anything else does."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in NAMES:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        """Leave the module empty: its names come when they are asked for."""


def setup(app):
    sys.meta_path.insert(0, Finder())
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
