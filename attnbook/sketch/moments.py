r"""Attention to Gaussian keys in closed form, which reads none of them.

.. math:: \mathbb E\, e^{\beta\,q \cdot k}
          = e^{\beta\,q \cdot \mu + \frac12 \beta^2 q^\top \Sigma q}, \qquad
          k \sim \mathcal N(\mu, \Sigma)
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from attnbook.arrays.arguments import (
    check_float,
    check_floats,
    check_int,
    check_number,
    check_same_home,
    generator,
)
from attnbook.arrays.array import Array, array_namespace, dtype_name, to_accumulate
from attnbook.arrays.weights import ArrayTree
from attnbook.hashing.k_means import centres, nearest, sums
from attnbook.sketch import gaussian_mixture


@dataclass(frozen=True, eq=False)
class Moments(ArrayTree):
    r"""Keys and values as a mixture of Gaussian cells.

    In cell c lie n_c keys with mean μ_c and covariance w_c Σ, whose values have mean v_c and
    covariance w_c Σ_kv with the keys. If they are Gaussian, a query q finds there the mass and the
    mean value

    .. math::
        \log z_c = \log n_c + \beta\,q \cdot \mu_c + \tfrac12 \beta^2 w_c\, q^\top \Sigma q, \qquad
        O_c = v_c + \beta\,w_c\, \Sigma_{kv}^\top q,

    by completing the square: the weight exp(β q·k) moves a Gaussian by β w_c Σ q. All cells share
    the shape Σ and the cross-covariance Σ_kv, and each has its own size w_c.

    Attributes
    ----------
    counts : array, shape (n_cells,)
        n_c, as floats.
    means : array, shape (n_cells, d_k)
        μ_c; 0 in an empty cell.
    value_means : array, shape (n_cells, d_v)
        v_c; 0 in an empty cell.
    spread : array, shape (n_cells,)
        w_c, the trace of the covariance of the cell, divided by that of Σ.
    covariance : array, shape (d_k, d_k)
        Σ, the mean over all keys of (k - μ_c)(k - μ_c)ᵀ.
    cross : array, shape (d_k, d_v)
        Σ_kv, the mean over all keys of (k - μ_c)(v - v_c)ᵀ.

    Raises
    ------
    TypeError, ValueError
        If these are not arrays of one library, device and real floating dtype of these shapes.

    See Also
    --------
    attnbook.sketch.tails.uniform_tail : the same from a sample, for keys that are not Gaussian.

    References
    ----------
    Chapter `estimators`.

    Examples
    --------
    >>> key = np.random.default_rng(0).standard_normal((4099, 3))
    >>> moments = Moments.fit(key, key)
    >>> log_mass, output = moments.tail(key[:1], scale=1.0)
    >>> weights = np.exp(key[:1] @ key.T)
    >>> bool(abs(log_mass[0] - np.log(weights.sum())) < 0.1)
    True
    >>> bool(np.max(np.abs(output - weights @ key / weights.sum())) < 0.1)
    True
    """

    counts: Annotated[Array, "n_cells"]
    means: Annotated[Array, "n_cells d_k"]
    value_means: Annotated[Array, "n_cells d_v"]
    spread: Annotated[Array, "n_cells"]
    covariance: Annotated[Array, "d_k d_k"]
    cross: Annotated[Array, "d_k d_v"]

    def __post_init__(self):
        check_floats(**{name: getattr(self, name) for name in self.field_names})
        for name in ("means", "value_means"):
            if getattr(self, name).ndim != 2:
                raise ValueError(
                    f"{name} must have 2 axes, got shape {tuple(getattr(self, name).shape)}"
                )
        (n_cells, d_k), d_v = self.means.shape, self.value_means.shape[1]
        expected = {
            "counts": (n_cells,),
            "value_means": (n_cells, d_v),
            "spread": (n_cells,),
            "covariance": (d_k, d_k),
            "cross": (d_k, d_v),
        }
        for name, shape in expected.items():
            got = tuple(getattr(self, name).shape)
            if got != shape:
                raise ValueError(f"{name} must have shape {shape} to match means, got {got}")

    @classmethod
    def fit(
        cls,
        key: Annotated[Array, "n d_k"],
        value: Annotated[Array, "n d_v"],
        n_cells: int = 1,
        cells: Annotated[Array, "n"] | None = None,
        *,
        seed: "int | np.random.Generator" = 0,
    ) -> "Moments":
        """Return the moments of keys and values.

        `cells` is the cell of each key, from 0 to n_cells - 1. By default k-means finds them with a
        few steps of Lloyd's algorithm on a sample, from keys drawn with `seed`, a Generator or an
        int. The moments have the library, device and dtype of `key`, or float32 for half precision.
        Raises TypeError or ValueError for anything but arrays of one library and dtype and of n
        rows, or for cells out of range. It costs O(n d_k (d_k + d_v)), and O(n n_cells (d_k + d_v))
        more for several cells.
        """
        n_cells = check_int("n_cells", n_cells, at_least=1)
        seed = generator(seed)
        _check_pairs(key, value)
        key, value = to_accumulate(key), to_accumulate(value)
        if cells is not None:
            _check_cells(cells, key, n_cells)
        elif n_cells > 1 and key.shape[0] > 0:
            cells = nearest(key, centres(key, n_cells, seed))
        return cls(*gaussian_mixture.moments_of(*sums(key, value, cells, n_cells)))

    def assign(self, key: Annotated[Array, "n d_k"]) -> Annotated[Array, "n"]:
        """Return for each key the cell with the nearest mean, int64, and never an empty one.

        Raises TypeError or ValueError if `key` does not have the width, library and dtype of these
        moments.
        """
        key = self._like(key, "key", "n")
        xp = array_namespace(key)
        if self.counts.shape[0] == 1:
            return xp.zeros_like(key[:, 0], dtype=xp.int64)
        return nearest(key, self.means, self.counts > 0)

    def add(
        self,
        key: Annotated[Array, "n d_k"],
        value: Annotated[Array, "n d_v"],
        cells: Annotated[Array, "n"] | None = None,
    ) -> "Moments":
        """Return the moments with more keys.

        Up to rounding they are those of `fit` on old and new keys with these cells, in whatever
        order the keys come. `cells` is the cell of each key, by default that of the nearest mean.
        The cells stay where they are, though k-means would move them: after many keys from
        elsewhere, `fit` anew. Raises as `fit`. It costs O(n d_k (d_k + d_v + n_cells)), however
        many keys there are already.
        """
        return self._changed(key, value, cells, 1.0)

    def remove(
        self,
        key: Annotated[Array, "n d_k"],
        value: Annotated[Array, "n d_v"],
        cells: Annotated[Array, "n"] | None = None,
    ) -> "Moments":
        """Return the moments without some of their keys, the inverse of `add`.

        It is not checked that they have these keys. `cells` is the cell of each key, and is needed
        if there is more than one. What is left keeps the rounding errors of what was there, so
        `fit` anew when little is left. A cell that becomes empty is exactly 0 again. Raises as
        `add`, and ValueError if `cells` is missing or a cell has fewer keys than are removed.
        """
        if cells is None and self.counts.shape[0] > 1:
            raise ValueError("cells must say which cell each key is in, got None")
        return self._changed(key, value, cells, -1.0)

    def limit(
        self, query: Annotated[Array, "... n_q d_k"], scale: float
    ) -> Annotated[Array, "... n_q"]:
        r"""Return a score (..., n_q) that keys from these Gaussians hardly ever exceed.

        .. math:: \max_c \; \bar s_c + \sigma_c \sqrt{2 \log(1 + n_c)}, \qquad
                  \bar s_c = \beta\,q \cdot \mu_c, \quad \sigma_c^2 = \beta^2 w_c\, q^\top \Sigma q

        The Gaussians do not explain a key above it: score that key, and let `tail` count those
        `below`. The limit is -∞ if there are no keys. Parameters and errors are those of `tail`.
        """
        query, scale = self._like(query, "query", "..., n_q"), check_number("scale", scale)
        return gaussian_mixture.limit(self, query * scale)

    def tail(
        self,
        query: Annotated[Array, "... n_q d_k"],
        scale: float,
        *,
        below: Annotated[Array, "... n_q"] | None = None,
        counts: Annotated[Array, "... n_q n_cells"] | None = None,
    ) -> tuple[Annotated[Array, "... n_q"], Annotated[Array, "... n_q d_v"]]:
        r"""Return the log mass and the mean value that each query finds, over all cells.

        .. math:: \log \sum_c z_c, \qquad \sum_c z_c O_c \Big/ \sum_c z_c

        Parameters
        ----------
        query : array, shape (..., n_q, d_k)
            Of the library, device and dtype of the moments, or in half precision for float32.
        scale : float
            β, finite and at least 0.
        below : array, shape (..., n_q), optional
            Count only keys whose score β q·k is at most this, because those above are scored one
            by one. Each Gaussian is cut there: with a = (below - s̄_c)/σ_c - σ_c,

            .. math::
                z_c' = z_c\,\Phi(a), \qquad
                O_c' = v_c + \beta\,w_c\,\Sigma_{kv}^\top q\,
                       \Bigl(1 - \frac{\varphi(a)}{\sigma_c\,\Phi(a)}\Bigr).

        counts : array, shape (..., n_q, n_cells), optional
            How many keys of each cell to count for each query, instead of n_c. It is 0 for a
            cell whose keys are scored one by one.

        Returns
        -------
        log_mass : array, shape (..., n_q)
            -∞ where no key is counted.
        output : array, shape (..., n_q, d_v)
            0 where no key is counted. Both in the dtype of the moments.

        Raises
        ------
        TypeError
            For anything but arrays of one library and dtype, or a scale that is not a real number.
        ValueError
            For shapes that do not fit, arrays on different devices, or a scale that is negative,
            infinite or NaN.

        Notes
        -----
        All sums are in logarithms, so scores of ±1000 do no harm. But a Gaussian has no largest
        key: where σ_c exceeds √(2 log n_c), most of z_c comes from keys so far out that n_c draws
        hardly hold one. Pass ``below=limit(query, scale)`` then.
        For n Gaussian keys in one cell the relative variance of the estimate is
        (exp(σ²) - 1 - σ² - σ⁴/2)/n, where the moments of the sample take away the first terms.
        A query costs O(d_k (d_k + d_v) + n_cells (d_k + d_v)).

        Examples
        --------
        >>> moments = Moments.fit(np.zeros((4, 2)), np.ones((4, 1)))
        >>> log_mass, output = moments.tail(np.ones((1, 2)), scale=1.0)
        >>> np.exp(log_mass).round(9), output
        (array([4.]), array([[1.]]))
        """
        query, scale = self._like(query, "query", "..., n_q"), check_number("scale", scale)
        shape = tuple(query.shape[:-1])
        if below is not None:
            below = _fitting("below", below, query, shape)
        if counts is not None:
            counts = _fitting("counts", counts, query, (*shape, self.counts.shape[0]))
        return gaussian_mixture.tail(
            self, query * scale, below, self.counts if counts is None else counts
        )

    def _changed(self, key, value, cells, sign):
        key, value = self._like(key, "key", "n"), self._like(value, "value", "n")
        _check_pairs(key, value)
        n_cells = self.counts.shape[0]
        if cells is None:
            cells = self.assign(key)
        _check_cells(cells, key, n_cells)
        return Moments(*gaussian_mixture.merged(self, sums(key, value, cells, n_cells), sign))

    def _like(self, x, name, axes):
        """Return `x` in the dtype of these moments, or raise."""
        check_float(name, x)
        width = self.value_means.shape[1] if name == "value" else self.means.shape[1]
        if x.ndim < 2 or x.shape[-1] != width or (axes == "n" and x.ndim != 2):
            raise ValueError(f"{name} must have shape ({axes}, {width}), got {tuple(x.shape)}")
        x = to_accumulate(x)
        check_floats(means=self.means, **{name: x})
        return x


def _fitting(name, x, query, shape):
    """Return `x` in the dtype of `query`, or raise unless it has the shape."""
    check_same_home(name, x, "query", query)
    check_float(name, x)
    if tuple(x.shape) != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(x.shape)}")
    return array_namespace(x).astype(x, query.dtype, copy=False)


def _check_pairs(key, value):
    check_floats(key=key, value=value)
    for name, x in (("key", key), ("value", value)):
        if x.ndim != 2:
            raise ValueError(f"{name} must have 2 axes, got shape {tuple(x.shape)}")
    if value.shape[0] != key.shape[0]:
        raise ValueError(
            f"value must have shape ({key.shape[0]}, d_v) to match key, got {tuple(value.shape)}"
        )


def _check_cells(cells, key, n_cells):
    check_same_home("cells", cells, "key", key)
    xp = array_namespace(cells)
    if not xp.isdtype(cells.dtype, "integral"):
        raise TypeError(f"cells must have an integer dtype, got {dtype_name(cells.dtype)}")
    if tuple(cells.shape) != (key.shape[0],):
        raise ValueError(f"cells must have shape ({key.shape[0]},), got {tuple(cells.shape)}")
    if key.shape[0] and not bool(xp.all((cells >= 0) & (cells < n_cells))):
        raise ValueError(
            f"cells must be from 0 to {n_cells - 1}, "
            f"got {int(xp.min(cells))} to {int(xp.max(cells))}"
        )
