"""All checks that are made of steps, and all answers to them, right and wrong, by their names."""

import importlib
import pkgutil

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
from attnbook.check.steps import Check

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
    for module in pkgutil.iter_modules(check.__path__):
        for value in vars(importlib.import_module(f"attnbook.check.{module.name}")).values():
            for one in value.values() if isinstance(value, dict) else [value]:
                if isinstance(one, Check):
                    found.setdefault(one.name, one)
    return found


CHECKS = checks()
MESSAGES = {name: {m.name: m.message for m in c.mistakes} for name, c in CHECKS.items()}
WRONG = {
    **attention_answers.WRONG,
    **layer_answers.WRONG,
    **language_answers.WRONG,
    **block_answers.WRONG,
    **gradient_answers.WRONG,
    **decoding_answers.WRONG,
    **pair_answers.WRONG,
    **sketch_answers.WRONG,
    **distributed_answers.WRONG,
    **kernel_answers.WRONG,
    **training_answers.WRONG,
}
DOUBLES = {
    **attention_answers.DOUBLES,
    **layer_answers.DOUBLES,
    **language_answers.DOUBLES,
    **block_answers.DOUBLES,
    **gradient_answers.DOUBLES,
    **decoding_answers.DOUBLES,
    **pair_answers.DOUBLES,
    **sketch_answers.DOUBLES,
    **kernel_answers.DOUBLES,
}
RIGHT = {
    **right_answers.RIGHT,
    **language_answers.RIGHT,
    **block_answers.RIGHT,
    **gradient_answers.RIGHT,
    **decoding_answers.RIGHT,
    **pair_answers.RIGHT,
    **sketch_answers.RIGHT,
    **distributed_answers.RIGHT,
    **kernel_answers.RIGHT,
    **training_answers.RIGHT,
}
ONLY_TORCH = {
    **right_answers.ONLY_TORCH,
    **language_answers.ONLY_TORCH,
    **block_answers.ONLY_TORCH,
    **gradient_answers.ONLY_TORCH,
    **sketch_answers.ONLY_TORCH,
}
ONLY_NUMPY = {**distributed_answers.RIGHT, **kernel_answers.RIGHT, **training_answers.RIGHT}
"""Checks whose answers are written for NumPy."""


def need_torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def run(name, function, **options):
    return getattr(check, name.split(",")[0])(function, **OPTIONS.get(name, {}), **options)
