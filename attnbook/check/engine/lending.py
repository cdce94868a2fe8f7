"""The modules of PyTorch that a model is or uses, borrowed and given back as they were.

A module is copied. Where it cannot be, and for a function that uses modules, their modes, buffers
and parameters are put back at the end. Buffers and attributes are put back before each run too, so
that every run starts from the same state.
"""

import contextlib
import copy
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from attnbook.check.engine.sandbox import Budget, call

DEPTH = 4
"""How far to follow a function to the functions and objects that it uses."""


def modules_of(model: Any) -> list[Any]:
    """Return the `torch.nn.Module`s that `model` is or uses, each once."""
    torch = sys.modules.get("torch")
    return [] if torch is None else [x for x in _reached(model) if isinstance(x, torch.nn.Module)]


def uses_torch(function: Any) -> bool:
    """Tell whether a function or what it uses names something of PyTorch."""
    names = (
        getattr(x, "__module__", None) or getattr(x, "__name__", "") for x in _reached(function)
    )
    return any(str(name).partition(".")[0] == "torch" for name in names)


def _reached(model: Any) -> Iterator[Any]:
    """Yield `model` and all that it uses, each once; a module is not followed further."""
    torch = sys.modules.get("torch")
    seen: set[int] = set()
    near = [model]
    for _ in range(DEPTH):
        further: list[Any] = []
        for x in near:
            if id(x) in seen:
                continue
            seen.add(id(x))
            yield x
            if torch is None or not isinstance(x, torch.nn.Module):
                with contextlib.suppress(Exception):  # an object may do anything when it is asked
                    further += _used_by(x)
        near = further


def _used_by(x: Any) -> list[Any]:
    if isinstance(x, functools.partial):
        return [x.func, *x.args, *x.keywords.values()]
    if isinstance(x, types.MethodType):
        return [x.__self__, x.__func__]
    if isinstance(x, types.FunctionType):
        cells = [cell.cell_contents for cell in x.__closure__ or () if _is_filled(cell)]
        named = [x.__globals__[name] for name in _names(x.__code__) if name in x.__globals__]
        return [*cells, *(x.__defaults__ or ()), *named]
    if isinstance(x, (list, tuple)):
        return list(x)
    if isinstance(x, dict):
        return list(x.values())
    if isinstance(x, (type, types.ModuleType)) or not hasattr(x, "__dict__"):
        return []
    return [*vars(x).values(), type(x).__call__]


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _names(code: types.CodeType) -> set[str]:
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


@contextlib.contextmanager
def lent(model: Callable, budget: Budget) -> Iterator[tuple[Callable, list[Any], Callable]]:
    """Yield `model` or a copy of it, its modules, and a function that puts these back.

    At the end the reader's modules are as before.
    """
    modules = modules_of(model)
    if modules and modules[0] is model:
        copied = call(copy.deepcopy, (model,), {}, budget)  # some modules cannot be copied
        if isinstance(copied.value, type(model)):
            model, modules = copied.value, [copied.value]
    kept = _keep(modules)
    tensors = [(p, p.detach().clone()) for top in modules for p in top.parameters() if _full(p)]
    try:
        yield model, modules, lambda: _rewind(kept)
    finally:
        _rewind(kept)
        _write(tensors)


class _Kept:
    """Attributes and buffers of one module, submodules and parameters aside."""

    def __init__(self, module: Any):
        self.module = module
        self.attributes = dict(vars(module))
        self.tables = [(x, x.copy()) for x in self.attributes.values() if isinstance(x, dict)]
        self.buffers = [(x, x.detach().clone()) for x in module.buffers(recurse=False) if _full(x)]


def _keep(modules: list[Any]) -> list[_Kept]:
    every = (module for top in modules for module in top.modules())
    # a module that waits for its first input becomes another one by it, which cannot be undone
    return [_Kept(m) for m in every if all(map(_full, m.parameters(recurse=False)))]


def _rewind(kept: list[_Kept]) -> None:
    for one in kept:
        vars(one.module).clear()
        vars(one.module).update(one.attributes)
        for table, before in one.tables:
            table.clear()
            table.update(before)
        _write(one.buffers)


def _write(tensors: list[tuple[Any, Any]]) -> None:
    for x, before in tensors:
        if not x.equal(before):  # a write would end a backward pass under way
            x.detach().copy_(before)


def _full(x: Any) -> bool:
    return not sys.modules["torch"].nn.parameter.is_lazy(x)
