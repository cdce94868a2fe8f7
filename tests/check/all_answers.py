"""All checks that are made of steps, and all answers to them, right and wrong, by their names."""

import importlib
import inspect
import pkgutil
from typing import Any

import attention_answers
import block_answers
import decoding_answers
import distributed_answers
import gradient_answers
import greedy_answers
import hash_answers
import kernel_answers
import language_answers
import layer_answers
import linear_answers
import loss_answers
import masking_answers
import multi_head_answers
import pair_answers
import pytest
import sketch_answers
import training_answers
import transformer_answers
from array_api_compat import array_namespace

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
    *(attention_answers, multi_head_answers, masking_answers, transformer_answers, layer_answers),
    *(block_answers, language_answers, loss_answers, gradient_answers, training_answers),
    *(greedy_answers, decoding_answers, pair_answers, hash_answers, sketch_answers),
    *(distributed_answers, kernel_answers, linear_answers),
)


def gathered(kind: str) -> dict[str, Any]:
    """Return the tables of one kind of all modules in one, by the name of the check."""
    tables = (getattr(module, kind, {}) for module in ANSWERS)
    return {name: answers for table in tables for name, answers in table.items()}


CHECKS = checks()
MESSAGES = {name: {m.name: m.message for m in c.mistakes} for name, c in CHECKS.items()}
WRONG = gathered("WRONG")
DOUBLES = gathered("DOUBLES")
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

ONLY_NUMPY = {
    **{**distributed_answers.RIGHT, **kernel_answers.RIGHT, **training_answers.RIGHT},
    **linear_answers.RIGHT,
}
"""Checks whose answers are written for NumPy."""


def need_torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def run(name, function, **options):
    return getattr(check, name.split(",")[0])(function, **OPTIONS.get(name, {}), **options)


def in_float32(answer):
    """Return the answer of a reader who turns everything into float32."""

    def narrow(*arrays, **options):
        options = {name: _narrowed(x) for name, x in options.items()}
        return answer(*map(_narrowed, arrays), **options)

    narrow.__signature__ = inspect.signature(answer)
    return narrow


def _narrowed(x):
    if isinstance(x, float | int):
        return x
    if isinstance(x, tuple):
        return tuple(map(_narrowed, x))
    xp = array_namespace(x)
    return x if x.dtype == xp.bool else xp.astype(x, xp.float32)
