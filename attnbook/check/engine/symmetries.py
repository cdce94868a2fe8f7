"""What must hold of the results when the arguments are changed together."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.steps import Case, Values


def moved(
    change: Callable[[dict[str, Any]], dict[str, Any]],
    right: Callable[[np.ndarray, np.ndarray], Any],
    sentence: str,
) -> Callable[..., str | None]:
    """Return the property that ``right(result, other)`` holds if `change` replaces arguments."""

    def holds(case: Case, values: Values, again: Callable) -> str | None:
        others = again(**change(case.arguments))
        fits = others and others[0].shape == values[0].shape
        return sentence if fits and not np.all(right(values[0], others[0])) else None

    return holds
