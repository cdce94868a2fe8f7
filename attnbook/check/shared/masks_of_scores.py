"""The ways to get the mask of attention wrong."""

from collections.abc import Callable

import numpy as np

from attnbook.check.engine.text import Text
from attnbook.check.exercises import softmax as soft
from attnbook.check.shared.scores import hide, hide_nothing


def filled_with(number: float) -> dict[str, Callable]:
    return {"hide": lambda scores, mask: hide(scores, mask, number)}


def _after(function: Callable) -> dict[str, Callable]:
    """Return the way that hides weights instead of scores."""
    return {
        "hide": hide_nothing,
        "after": lambda weights, mask, *others: (
            weights if mask is None else function(weights, mask)
        ),
    }


RENORMALIZED = tuple(
    _after(lambda weights, mask, guard=guard: guard(soft.normalized(weights * mask)))
    for guard in (np.asarray, np.nan_to_num)
)
"""Zero the hidden weights and divide by the rest, with a guard or without."""

TEXT = Text(globals())

MASK_MISTAKES = TEXT.mistakes
