"""All checks that are made of steps, and all answers to them, right and wrong, by their names."""

import importlib
import pkgutil
from typing import Any

import attention_answers
import block_answers
import decoding_answers
import distributed_answers
import gradient_answers
import kernel_answers
import language_answers
import layer_answers
import pair_answers
import pytest
import right_answers
import sketch_answers
import training_answers

from attnbook import check
from attnbook.check.engine.steps import Check

OPTIONS = {
    "positional_encoding": {"interleaved": False},
    "positional_encoding, interleaved": {"interleaved": True},
    "greedy_decode, cached": {"cached": True},
    "rotary": {"interleaved": False},
    "rotary, interleaved": {"interleaved": True},
}


def checks() -> dict[str, Check]:
    """Return every check of the package by its name; of several conventions the first."""
    found: dict[str, Check] = {}
    for module in pkgutil.walk_packages(check.__path__, "attnbook.check."):
        for value in vars(importlib.import_module(module.name)).values():
            for one in value.values() if isinstance(value, dict) else [value]:
                if isinstance(one, Check):
                    found.setdefault(one.name, one)
    return found


ANSWERS = (
    *(right_answers, language_answers, block_answers, gradient_answers, decoding_answers),
    *(pair_answers, sketch_answers, distributed_answers, kernel_answers, training_answers),
)


def gathered(kind: str, *first: dict[str, Any]) -> dict[str, Any]:
    """Return the tables of one kind of all modules in one, by the name of the check."""
    tables = (*first, *(getattr(module, kind, {}) for module in ANSWERS))
    return {name: answers for table in tables for name, answers in table.items()}


CHECKS = checks()
MESSAGES = {name: {m.name: m.message for m in c.mistakes} for name, c in CHECKS.items()}
WRONG = gathered("WRONG", attention_answers.WRONG, layer_answers.WRONG)
DOUBLES = gathered("DOUBLES", attention_answers.DOUBLES, layer_answers.DOUBLES)
RIGHT = gathered("RIGHT")
IN_TORCH = {
    "adamw_step": lambda W, g, m, s, t, lr, decay: (
        W * (1 - lr * decay)
        - lr
        * ((0.9 * m + 0.1 * g) / (1 - 0.9**t))
        / (((0.98 * s + 0.02 * g * g) / (1 - 0.98**t)) ** 0.5 + 1e-8),
        0.9 * m + 0.1 * g,
        0.98 * s + 0.02 * g * g,
    ),
    "accumulate_gradients": lambda g, n: (g * n[:, None]).sum(0) / n.sum(),
    **gathered("ONLY_TORCH"),
}
"""Answers that are right in PyTorch, most of them in no other library."""

ONLY_NUMPY = {**distributed_answers.RIGHT, **kernel_answers.RIGHT, **training_answers.RIGHT}
"""Checks whose answers are written for NumPy."""


def need_torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def run(name, function, **options):
    return getattr(check, name.split(",")[0])(function, **OPTIONS.get(name, {}), **options)
