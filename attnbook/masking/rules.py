"""What a rule is, and how two rules are combined."""

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_int
from attnbook.arrays.array import Array, broadcast_shapes
from attnbook.arrays.intervals import Intervals
from attnbook.arrays.lengths import placed
from attnbook.masking.masks import draw

KEPT = 8
"""For so many pairs (n_q, n_k) a rule keeps the intervals that it has made."""

At = Callable[..., Any]


class Rule:
    """Which key a query may see, said by their positions instead of an array.

    A rule without numbers of tokens, such as ``Causal()``, serves every n_q and n_k. Combinations
    say what has no rule of its own:

    - ``Causal() & SlidingWindow(left=1023)``: a window of 1,024 keys, the own one included;
    - ``(FirstKeys(4) | SlidingWindow(left=1023)) & Causal()``: the same with 4 attention sinks;
    - ``FirstKeys(n) | Causal()``: the prefix mask;
    - ``Documents.of_lengths(lengths) & Causal()``: texts that are packed into one row;
    - ``Chunks(size) & Causal()``: chunked attention.

    Attributes
    ----------
    leading : tuple of int
        The leading axes of its masks.

    Notes
    -----
    A rule is immutable, and keeps what it has made for the last few shapes, so use one rule for all
    layers and steps. Its leading axes, which `FirstKeys` and `Documents` can have, are those of the
    sequences; all heads share it.

    References
    ----------
    Wang et al. (2025), "FlashMask", stores a few ranges for each column, as this does for each row.

    Examples
    --------
    >>> from attnbook.masking import Causal, FirstKeys, SlidingWindow
    >>> rule = (FirstKeys(1) | SlidingWindow(left=1)) & Causal()
    >>> rule.dense(5).astype(int)
    array([[1, 0, 0, 0, 0],
           [1, 1, 0, 0, 0],
           [1, 1, 1, 0, 0],
           [1, 0, 1, 1, 0],
           [1, 0, 0, 1, 1]])
    """

    leading: tuple[int, ...] = ()
    is_causal = False
    """Whether the rule is `Causal`, which implementations have as a case of its own."""

    def allows(self, position: Any, key: Any, at: At) -> Any:
        """Return where the query at a position may see a key: the definition of the rule.

        Parameters
        ----------
        position, key : arrays of ints that broadcast
        at : function
            ``at(x)`` and ``at(x, index)`` read an array (...) or (..., n) of the rule for the
            sequence in question, at no index or at positions.
        """
        raise NotImplementedError

    def _intervals(self, n_q: int, n_k: int) -> Intervals:
        raise NotImplementedError

    def intervals(self, n_q: int, n_k: int | None = None) -> Intervals:
        """Return the ranges of keys that each of n_q queries sees; n_k is n_q by default.

        ``intervals(…).tiles(block_q, block_k)`` says of each tile whether all, some or none of it
        is seen.

        Raises
        ------
        TypeError, ValueError
            If a number is not an int of at least 0, or the rule has documents for fewer tokens.
        """
        n_q, n_k = _sizes(n_q, n_k)
        kept: dict[tuple[int, int], Intervals] = self.__dict__.setdefault("_kept", {})
        if (n_q, n_k) not in kept:
            while len(kept) >= KEPT:
                del kept[next(iter(kept))]
            kept[n_q, n_k] = self._intervals(n_q, n_k)
        return kept[n_q, n_k]

    def dense(
        self, n_q: int, n_k: int | None = None, *, like: Array | None = None
    ) -> Annotated[Array, "... n_q n_k"]:
        """Return the mask as an array, as `to_sdpa`, `to_mha` and `to_additive` take it.

        Parameters
        ----------
        n_q, n_k : int
            Numbers of queries and of keys, at least 0; n_k is n_q by default.
        like : array, optional
            The mask gets the library and the device of this array; by default it is a NumPy array.

        Returns
        -------
        boolean array, shape (..., n_q, n_k), **True = may attend**

        Raises
        ------
        TypeError, ValueError
            As in `intervals`, and if `like` is not an array.

        Notes
        -----
        Cost: O(n_q n_k) time and memory.
        """
        n_q, n_k = _sizes(n_q, n_k)
        self.check_keys(n_k)
        position = np.arange(n_k - n_q, n_k)[:, np.newaxis]

        def at(x: np.ndarray, index: Any = None) -> Any:
            return x[..., np.newaxis, np.newaxis] if index is None else x[..., index]

        seen = self.allows(position, np.arange(n_k)[np.newaxis], at)
        return placed(np.broadcast_to(seen, (*self.leading, n_q, n_k)).copy(), like)

    def mask_mod(
        self, n_q: int, n_k: int | None = None, *, device: Any = None
    ) -> Callable[[Any, Any, Any, Any], Any]:
        """Return the rule as a function of PyTorch's FlexAttention.

        Transformers by Hugging Face takes the same function as a mask function (`masking_utils`).

        Parameters
        ----------
        n_q, n_k : int
            As in `dense`. They say where the first query stands.
        device : torch.device or str, optional
            Where the numbers of the rule shall lie; the CPU by default.

        Returns
        -------
        function
            ``mask_mod(b, h, q_idx, kv_idx)`` returns True where the query may see the key; pass it
            to ``torch.nn.attention.flex_attention.create_block_mask``.

        Raises
        ------
        TypeError, ValueError
            As in `intervals`, and if the rule has more than one leading axis.

        Examples
        --------
        >>> from attnbook.masking import SlidingWindow
        >>> seen = SlidingWindow(left=1).mask_mod(4)
        >>> seen(0, 0, 2, 1), seen(0, 0, 3, 1)
        (True, False)
        """
        n_q, n_k = _sizes(n_q, n_k)
        self.check_keys(n_k)
        if len(self.leading) > 1:
            raise ValueError(
                f"the rule must have at most one leading axis, (batch,), got {self.leading}"
            )
        arrays = {id(x): _tensor(x, device) for x in self.arrays()}

        def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            def at(x: np.ndarray, index: Any = None) -> Any:
                own = arrays[id(x)]
                has_batch = own.ndim > (index is not None)
                where = (*([b] if has_batch else []), *([] if index is None else [index]))
                return own[where] if where else own  # FlexAttention has no x[()]

            return self.allows(q_idx + (n_k - n_q), kv_idx, at)

        return mask_mod

    def draw(self, n_q: int, n_k: int | None = None, **options: Any) -> Any:
        """Draw the mask with `masking.draw`, which gets the `options`; the rule needs one mask.

        Raises
        ------
        TypeError, ValueError, ImportError
            As in `intervals` and `masking.draw`.
        """
        return draw(self.dense(n_q, n_k), **options)

    def arrays(self) -> list[np.ndarray]:
        """Return the arrays that the rule reads."""
        return []

    def check_keys(self, n_k: int) -> None:
        """Raise ValueError if the rule does not know about so many keys."""

    def __and__(self, other: "Rule") -> "Rule":
        return _Both(self, other, "&") if isinstance(other, Rule) else NotImplemented

    def __or__(self, other: "Rule") -> "Rule":
        return _Both(self, other, "|") if isinstance(other, Rule) else NotImplemented

    def __invert__(self) -> "Rule":
        return _Not(self)


class _Both(Rule):
    """Two rules, joined by & or |."""

    def __init__(self, first: Rule, second: Rule, sign: str):
        leading = broadcast_shapes(first.leading, second.leading)
        if leading is None:
            raise ValueError(
                f"the leading axes of two rules must broadcast, got {first.leading} and "
                f"{second.leading}"
            )
        self.first, self.second, self.sign, self.leading = first, second, sign, leading

    def _join(self, a: Any, b: Any) -> Any:
        return a & b if self.sign == "&" else a | b

    def allows(self, position: Any, key: Any, at: At) -> Any:
        return self._join(
            self.first.allows(position, key, at), self.second.allows(position, key, at)
        )

    def _intervals(self, n_q: int, n_k: int) -> Intervals:
        return self._join(self.first.intervals(n_q, n_k), self.second.intervals(n_q, n_k))

    def arrays(self) -> list[np.ndarray]:
        return self.first.arrays() + self.second.arrays()

    def check_keys(self, n_k: int) -> None:
        self.first.check_keys(n_k)
        self.second.check_keys(n_k)

    def __repr__(self) -> str:
        return f"({self.first} {self.sign} {self.second})"


class _Not(Rule):
    """What a rule hides."""

    def __init__(self, rule: Rule):
        self.rule, self.leading = rule, rule.leading

    def allows(self, position: Any, key: Any, at: At) -> Any:
        return self.rule.allows(position, key, at) ^ True  # ~ of Python's own True is -2

    def _intervals(self, n_q: int, n_k: int) -> Intervals:
        return ~self.rule.intervals(n_q, n_k)

    def arrays(self) -> list[np.ndarray]:
        return self.rule.arrays()

    def check_keys(self, n_k: int) -> None:
        self.rule.check_keys(n_k)

    def __repr__(self) -> str:
        return f"~{self.rule}"


def _sizes(n_q: int, n_k: int | None) -> tuple[int, int]:
    n_q = check_int("n_q", n_q)
    return n_q, n_q if n_k is None else check_int("n_k", n_k)


def _tensor(x: np.ndarray, device: Any) -> Any:
    import torch

    return torch.asarray(x, device=device)
