"""The former place of the training loop, which is `attnbook.training` now."""

import warnings

from attnbook.training.loop import History, Settings, evaluate, learning_rate, train

__all__ = ["History", "Settings", "evaluate", "learning_rate", "train"]

warnings.warn("attnbook.train is attnbook.training now", DeprecationWarning, stacklevel=2)
