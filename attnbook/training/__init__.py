"""Chapters `training` and `backpropagation`: loss, gradients, optimizers, the loop, checkpoints.

The names are imported when they are first used, because `train` and `evaluate` need PyTorch, and
checkpoints need safetensors.
"""

import importlib
from typing import Any

_HOMES = {
    "AdamW": "optimizers",
    "History": "settings",
    "SGD": "optimizers",
    "Settings": "settings",
    "clip_gradients": "optimizers",
    "evaluate": "loop",
    "gradients": "backpropagation",
    "learning_rate": "schedules",
    "load_weights": "checkpoints",
    "save_weights": "checkpoints",
    "train": "loop",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
