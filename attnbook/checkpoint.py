"""The former place of `load_weights` and `save_weights`, which is `attnbook.training` now."""

import warnings

from attnbook.training.checkpoints import load_weights, save_weights

__all__ = ["load_weights", "save_weights"]

warnings.warn("attnbook.checkpoint is attnbook.training now", DeprecationWarning, stacklevel=2)
