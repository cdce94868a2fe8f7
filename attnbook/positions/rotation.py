r"""Rotary positions: every feature pair of queries and keys turns by its position's angle.

.. math:: q_i \cdot k_j \;\text{ depends on }\; i - j \;\text{ alone, with angles }\; i\,\omega_l,
          \qquad \omega_l = \text{base}^{-2l/d}
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import array_api_compat
import numpy as np

from attnbook.arrays.arguments import (
    check_array,
    check_bool,
    check_float,
    check_int,
    check_positive,
)
from attnbook.arrays.array import Array, array_namespace, to_accumulate
from attnbook.positions.angles import cosines_and_sines, frequencies, placed
from attnbook.positions.piece import AttentionPositions
from attnbook.positions.scaling import Scaling

# The mathematics, of checked arguments.


def rotation(
    start: int,
    interleaved: bool = False,
    frequencies: Callable[[int, int], np.ndarray] = lambda d, length: frequencies(d),
    amplitude: float = 1.0,
) -> Callable[[Array], Array]:
    """Return what rotates rows (..., n, d), of one n and one library, at start, start + 1, ….

    It rotates as many feature pairs as there are ``frequencies(d, length)``, where the length is
    start + n; the features after them stay. Cosines and sines are multiplied by the amplitude.
    Cosines and sines are computed, and copied to the device, at the first call for each d, so that
    all layers of a forward pass may share one copy.
    """
    tables: dict[int, Array] = {}

    def turn(x: Array) -> Array:
        xp, d = array_namespace(x), x.shape[-1]
        if d not in tables:
            n = x.shape[-2]
            both = cosines_and_sines(start, n, frequencies(d, start + n))
            tables[d] = placed(amplitude * both, to_accumulate(x[..., :0]))  # (2, n, d/2)
        table = tables[d]
        y, cosines, sines = xp.astype(x, table.dtype, copy=False), table[0, :, :], table[1, :, :]
        half = cosines.shape[-1]
        y, rest = y[..., : 2 * half], y[..., 2 * half :]
        a, b = (y[..., 0::2], y[..., 1::2]) if interleaved else (y[..., :half], y[..., half:])
        parts = [a * cosines - b * sines, a * sines + b * cosines]
        if interleaved:
            parts = [xp.reshape(xp.stack(parts, axis=-1), y.shape)]
        parts = [*parts, rest] if rest.shape[-1] else parts
        y = parts[0] if len(parts) == 1 else xp.concat(parts, axis=-1)
        return xp.astype(y, x.dtype, copy=False)

    return turn


# The pieces of a model.


@dataclass(frozen=True)
class Rotary(AttentionPositions):
    """Rotary positions (RoPE) of a model: which features rotate, in which pairs, and how fast.

    Attributes
    ----------
    base : float
        Above 0; 10000 by default, and 500000 in Llama 3.
    interleaved : bool
        If True, feature 2l is paired with 2l + 1, as in Su et al. and GPT-J. If False, feature l is
        paired with l + w/2, as in GPT-NeoX and Hugging Face's Llama. `rotary_layout` converts
        between the two.
    width : int, optional
        w, an even number of at least 2: the first w features of each head are rotated; all of them
        by default.
    scaling : LinearScaling, DynamicScaling, Llama3Scaling, YarnScaling or LongRopeScaling, optional
        Changes the frequency of each pair, for texts longer than those of the first training. Its
        attention factor, if it has one, multiplies the rotated features.

    Raises
    ------
    TypeError, ValueError
        If a number is not as above.

    Examples
    --------
    >>> from attnbook import DecoderWeights
    >>> weights = DecoderWeights.init(
    ...     0, 2, d_model=8, n_heads=2, d_ff=32, cross=False, positions=Rotary(base=500000.0)
    ... )
    >>> weights.positions.base
    500000.0
    """

    base: float = 10000.0
    interleaved: bool = False
    width: int | None = None
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        check_positive("base", self.base)
        check_bool("interleaved", self.interleaved)
        if self.width is not None:
            check_width_of_pairs(self.width)
        self.check_fields()

    def check_heads(self, n_heads: int, d_k: int) -> None:
        """Raise ValueError unless every head has the features to rotate, in pairs."""
        if self.width is None and d_k % 2:
            raise ValueError(f"d_k must be even to rotate pairs of features, got {d_k}")
        if self.width is not None and self.width > d_k:
            raise ValueError(f"d_k must be at least the width {self.width} to rotate, got {d_k}")
        if self.scaling is not None:
            self.scaling.check_pairs((self.width or d_k) // 2)

    def turn(self, start: int) -> Callable[[Array], Array]:
        """Return what rotates queries and keys (..., n, d_k) at the positions start, start + 1, ….

        The first call fixes n, and it computes the cosines and sines, which are then kept.
        """
        return rotation(start, self.interleaved, self._frequencies, self._amplitude)

    def turned_back(
        self, x: Annotated[Array, "... n d_k"], start: int
    ) -> Annotated[Array, "... n d_k"]:
        """Return rows at the positions start, start + 1, …, rotated by the opposite angles.

        The attention factor of a scaling multiplies them again, since this is the transpose.
        """
        turn = rotation(
            *(start, self.interleaved),
            lambda d_k, length: -self._frequencies(d_k, length),
            self._amplitude,
        )
        return turn(x)

    @property
    def _amplitude(self) -> float:
        return 1.0 if self.scaling is None else self.scaling.amplitude

    def _frequencies(self, d_k: int, length: int) -> np.ndarray:
        known = frequencies(self.width or d_k, float(self.base))
        return known if self.scaling is None else self.scaling.scaled(known, length)


def check_width_of_pairs(width: int) -> int:
    """Return `width` as an even int of at least 2, or raise."""
    if check_int("width", width, at_least=2) % 2:
        raise ValueError(f"width must be even, got {width}")
    return int(width)


# The functions, which check what they are given.


def rotary(
    x: Annotated[Array, "... n d"],
    *,
    start: int = 0,
    interleaved: bool = False,
    base: float = 10000.0,
    width: int | None = None,
) -> Annotated[Array, "... n d"]:
    r"""Rotate every pair of features by the angle of its position: rotary position embedding.

    .. math:: \begin{pmatrix} y_a \\ y_b \end{pmatrix} =
              \begin{pmatrix} \cos i\omega_l & -\sin i\omega_l \\
                              \sin i\omega_l & \cos i\omega_l \end{pmatrix}
              \begin{pmatrix} x_a \\ x_b \end{pmatrix}

    for the row at position i and its pair l of features a and b.

    Parameters
    ----------
    x : array, shape (..., n, d), real floating dtype
        Queries or keys of one or more heads, with even d unless `width` is given. Values are not
        rotated.
    start : int
        Position of the first row, at least 0.
    interleaved : bool
        If True, feature 2l is paired with 2l + 1; by default, l is paired with l + d/2.
    base : float
        Above 0.
    width : int, optional
        Rotate only the first `width` features, an even number of at least 2; all by default. Its
        value replaces d in the angles.

    Returns
    -------
    array, shape (..., n, d)
        Has the dtype of `x`; half precision is rotated in float32.

    Raises
    ------
    TypeError, ValueError
        If `x` is not such an array, or a number is not as above.

    Notes
    -----
    A rotation does not change the lengths of rows, and the score of a rotated query and a rotated
    key depends only on the difference of their positions. `interleaved=True` is the layout of Su
    et al. and of GPT-J; the default is that of GPT-NeoX and of Hugging Face's Llama.
    `to_interleaved` and `to_halves` convert between the two. Layers with ``rotate=True`` use the
    default layout, halves, and base 10000, but a stack of layers may hold a `Rotary` of its own.
    Cost: O(n d) per head. NumPy computes the angles in float64 at every call, and they are copied
    to the device.

    References
    ----------
    Su et al. (2021), "RoFormer"; chapter `transformer`.

    Examples
    --------
    >>> rotary(np.array([[1.0, 0.0], [1.0, 0.0]])).round(3)
    array([[1.   , 0.   ],
           [0.54 , 0.841]])
    """
    check_float("x", x)
    if width is not None and (x.ndim < 2 or x.shape[-1] < check_width_of_pairs(width)):
        raise ValueError(
            f"x must have shape (..., n, d) with d >= width = {width}, got {tuple(x.shape)}"
        )
    if width is None and (x.ndim < 2 or x.shape[-1] < 2 or x.shape[-1] % 2):
        raise ValueError(f"x must have shape (..., n, d) with even d >= 2, got {tuple(x.shape)}")
    check_bool("interleaved", interleaved)
    base, start = check_positive("base", base), check_int("start", start)
    return rotation(start, interleaved, lambda d, length: frequencies(width or d, base))(x)


def to_interleaved(
    x: Annotated[Array, "... hd"], n_heads: int = 1, *, width: int | None = None
) -> Annotated[Array, "... hd"]:
    r"""Reorder the features of each head from halves to pairs side by side.

    .. math:: y_{2l} = x_l, \qquad y_{2l+1} = x_{l + w/2}

    Parameters
    ----------
    x : array, shape (..., h·d)
        Queries or keys, a W_Q or W_K, or their biases, with head i in the columns i·d to
        (i + 1)·d - 1.
    n_heads : int
        h; for a W_K, the number of KV heads.
    width : int, optional
        w: only the first w features of each head are rotated; all by default.

    Returns
    -------
    array of the shape and dtype of `x`

    Raises
    ------
    TypeError, ValueError
        If `x` is not such an array, or a number does not match it.

    Notes
    -----
    ``rotary(to_interleaved(x), interleaved=True)`` is ``to_interleaved(rotary(x))``. Scores do not
    change if both queries and keys are reordered, so a model can be converted to another layout;
    see `rotary_layout`. The inverse is `to_halves`.
    Cost: a copy.

    Examples
    --------
    >>> to_interleaved(np.arange(8), n_heads=2)
    array([0, 2, 1, 3, 4, 6, 5, 7])
    """
    return _reordered(x, n_heads, width, lambda w: np.arange(w).reshape(2, w // 2).T)


def to_halves(
    x: Annotated[Array, "... hd"], n_heads: int = 1, *, width: int | None = None
) -> Annotated[Array, "... hd"]:
    r"""Reorder the features of each head from pairs side by side to halves.

    .. math:: y_l = x_{2l}, \qquad y_{l + w/2} = x_{2l+1}

    Parameters
    ----------
    x, n_heads, width
        As in `to_interleaved`, of which this function is the inverse.

    Returns
    -------
    array of the shape and dtype of `x`

    Raises
    ------
    TypeError, ValueError
        As in `to_interleaved`.

    Notes
    -----
    Cost: a copy.

    Examples
    --------
    >>> to_halves(np.arange(8), n_heads=2)
    array([0, 2, 1, 3, 4, 6, 5, 7])
    >>> to_halves(np.arange(6))
    array([0, 2, 4, 1, 3, 5])
    """
    return _reordered(x, n_heads, width, lambda w: np.arange(w).reshape(w // 2, 2).T)


def _reordered(
    x: Array, n_heads: int, width: int | None, order: Callable[[int], np.ndarray]
) -> Array:
    check_array("x", x)
    n_heads = check_int("n_heads", n_heads, at_least=1)
    if x.ndim == 0 or x.shape[-1] % n_heads:
        raise ValueError(
            f"x must have shape (..., h·d) with n_heads = {n_heads}, got {tuple(x.shape)}"
        )
    d = x.shape[-1] // n_heads
    width = d if width is None else check_width_of_pairs(width)
    if width > d or width % 2:
        wanted = "even" if width % 2 else f"at least {width}"
        raise ValueError(f"x must have heads of {wanted} width, got {d}")
    own = np.concatenate([order(width).reshape(-1), np.arange(width, d)])
    index = (np.arange(n_heads)[:, np.newaxis] * d + own).reshape(-1)
    xp, device = array_namespace(x), array_api_compat.device(x)
    return xp.take(x, xp.asarray(index, device=device), axis=-1)
