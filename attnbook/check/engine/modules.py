"""Layers as classes and as modules: built from their weights, and run in train and eval mode."""

import contextlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attnbook.check.engine.diagnosis import patience
from attnbook.check.engine.lending import lent, modules_of
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import run
from attnbook.check.engine.sandbox import Budget
from attnbook.check.engine.signatures import signature_of
from attnbook.check.engine.steps import Check


@patience()
def run_in_modes(check: Check, function: Callable, time_limit: float) -> Report:
    """Run `check` once, or for what is or uses modules of PyTorch in eval and in train mode."""
    if inspect.isclass(function):
        if not _is_module(function):
            return run(check, _from_class(function, check, "eval"), time_limit)
        return _of_modes(lambda mode: run(check, _from_class(function, check, mode), time_limit))
    if not callable(function) or not modules_of(function):
        return run(check, function, time_limit)

    def in_mode(mode: str) -> Report:
        with lent(function, Budget(time_limit)) as (model, modules, _):
            for module in modules:
                module.train(mode == "train")
            return run(check, model, time_limit)

    return _of_modes(in_mode)


def _of_modes(in_mode: Callable[[str], Report]) -> Report:
    evaluated, trained = in_mode("eval"), in_mode("train")
    if not evaluated.passed:
        only = " In eval mode only: in train mode it is right." if trained.passed else ""
        return replace(evaluated, message=evaluated.message + only)
    if trained.passed:
        return evaluated
    if trained.mistake == "not deterministic":
        remark = "in train mode its random numbers change the output, so only eval mode is checked."
        return replace(evaluated, remarks=(*evaluated.remarks, remark))
    return replace(
        trained, message=f"{trained.message} In train mode only: in eval mode it is right."
    )


def _is_module(cls: type) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(cls, torch.nn.Module)


def _from_class(cls: Any, check: Check, mode: str) -> Callable:
    """Return a function of the check's parameters that builds `cls` from the weights first."""
    place = check.parameters.index("weights")

    def layer(*given, **options):
        built = cls(given[place])
        if _is_module(cls):
            built.train(mode == "train")
        return built(*given[:place], *given[place + 1 :], **options)

    signature = signature_of(cls.forward if _is_module(cls) else cls.__call__)
    if signature is None or not signature.parameters:
        return layer
    _, *taken = signature.parameters.values()
    weights = inspect.Parameter("weights", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    before = [p.replace(default=p.empty) for p in taken[:place]]
    with contextlib.suppress(ValueError):  # an argument by name alone before the weights
        signature = inspect.Signature([*before, weights, *taken[place:]])
        layer.__signature__ = signature  # type: ignore[attr-defined]
    return layer
