"""The former place of checkpoints and files of weights, which are in `attnbook.training` now."""

import warnings

from attnbook.training.checkpoints import (
    Progress,
    load,
    load_weights,
    save,
    save_weights,
    unwrapped,
)

__all__ = ["Progress", "load", "load_weights", "save", "save_weights", "unwrapped"]

warnings.warn("attnbook.checkpoint is attnbook.training now", DeprecationWarning, stacklevel=2)
