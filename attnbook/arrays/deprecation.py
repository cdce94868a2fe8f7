"""Arguments that work for one more release, with a warning that names what takes their place."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from attnbook.arrays.arguments import check_bool

Function = TypeVar("Function", bound=Callable[..., Any])


def takes_return_weights(with_weights: Callable[..., Any]) -> Callable[[Function], Function]:
    """Let a function take `return_weights` as it did: if that is True, call `with_weights`."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            if "return_weights" not in options:
                return function(*arguments, **options)
            wanted = check_bool("return_weights", options.pop("return_weights"))
            if wanted and (impl := options.pop("impl", "reference")) != "reference":
                raise ValueError(
                    f"return_weights must be False for impl={impl!r}, which keeps no weights, "
                    f"got True"
                )
            name = with_weights.__name__
            if with_weights.__qualname__ != name:  # a method
                name = f"{type(arguments[0]).__name__}.{name}"
            warnings.warn(
                f"return_weights is deprecated: call {name} for the weights",
                DeprecationWarning,
                stacklevel=2,
            )
            return (with_weights if wanted else function)(*arguments, **options)

        return wrapper  # type: ignore[return-value]  # the signature that is shown lacks it

    return decorate
