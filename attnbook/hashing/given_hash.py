"""Hash functions that the reader brings, one per table."""

from collections.abc import Callable
from typing import Annotated, Any

from attnbook.arrays.arguments import check_array
from attnbook.arrays.array import Array, array_namespace, dtype_name

ASKED = ("n_tables", "signatures")
"""What a hash needs; `retrieval_probability` and `query_signatures` are optional."""


class GivenHash:
    """Tables addressed by functions of your own.

    Parameters
    ----------
    *functions : callables
        Each takes vectors (n, d) and returns integers (n,): the bucket of each vector in one
        table.

    Raises
    ------
    TypeError, ValueError
        If there is none, or one cannot be called.

    Notes
    -----
    Their chance to find a key is unknown, so estimators that need it refuse this hash.

    Examples
    --------
    >>> import numpy as np
    >>> by_sign = GivenHash(lambda x: (x[:, 0] > 0).astype(int), lambda x: x[:, 1] > 0)
    >>> by_sign.signatures(np.array([[1.0, -1.0], [-1.0, 2.0]]))
    array([[1, 0],
           [0, 1]])
    """

    def __init__(self, *functions: Callable[[Array], Array]):
        if not functions:
            raise ValueError("functions must hold at least one, got none")
        for function in functions:
            if not callable(function):
                raise TypeError(f"functions must be callable, got {type(function).__name__}")
        self.functions = functions

    @property
    def n_tables(self) -> int:
        """L, the number of functions."""
        return len(self.functions)

    def signatures(self, x: Annotated[Array, "n d"]) -> Annotated[Array, "n n_tables"]:
        """Return the answers of all functions side by side, int64.

        Raises TypeError or ValueError if one is not an integer or boolean array (n,).
        """
        check_array("x", x)
        if x.ndim < 1:
            raise ValueError("x must have shape (n, d), got ()")
        xp = array_namespace(x)
        columns = []
        for i, function in enumerate(self.functions):
            answer = function(x)
            check_array(f"the answer of function {i}", answer)
            if not xp.isdtype(answer.dtype, ("bool", "integral")):
                raise TypeError(
                    f"the answer of function {i} must be integers, got {dtype_name(answer.dtype)}"
                )
            if tuple(answer.shape) != (x.shape[0],):
                raise ValueError(
                    f"the answer of function {i} must have shape ({x.shape[0]},), "
                    f"got {tuple(answer.shape)}"
                )
            columns.append(xp.astype(answer, xp.int64))
        return xp.stack(columns, axis=-1)


def check_hash(hash: Any) -> None:
    """Raise TypeError unless `hash` has what every hash needs."""
    missing = [name for name in ASKED if not hasattr(hash, name)]
    if missing or isinstance(hash, type):
        shown = hash.__name__ if isinstance(hash, type) else type(hash).__name__
        raise TypeError(f"hash must have {' and '.join(ASKED)}, got {shown}")
