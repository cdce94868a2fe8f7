r"""Tails estimate what the keys that a sketch did not score add to attention.

.. math:: z = \sum_{i \text{ unseen}} e^{\beta\,q \cdot k_i}, \qquad
          O = \frac1z \sum_{i \text{ unseen}} e^{\beta\,q \cdot k_i}\, v_i

`Moments` has both in closed form for Gaussian keys and reads none of them. `uniform_tail` estimates
them from a uniform sample and says how far off it may be. Scored keys and tail are then joined in
one softmax, through log z.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated

from attnbook.arrays.arguments import check_floats, check_int, check_number
from attnbook.arrays.array import Array, array_namespace, broadcast_shapes, to_accumulate
from attnbook.arrays.attention_arguments import check_boolean, check_mask
from attnbook.single_head.softmax import softmax_of
from attnbook.sketch.logits import log_sum, masked
from attnbook.sketch.moments import Moments

__all__ = ["Moments", "UniformTail", "uniform_tail"]


@dataclass(frozen=True, eq=False)
class UniformTail:
    """Mass and mean value of unseen keys, estimated from a sample, with bounds of their errors.

    Attributes
    ----------
    log_mass : array, shape (..., n_q)
        log z, and -∞ where the sample has no unseen key.
    output : array, shape (..., n_q, d_v)
        O, and 0 where the sample has no unseen key.
    mass_error : array, shape (..., n_q)
        The half-width of the confidence interval of z, divided by the estimate. ∞ where the sample
        cannot tell: it has fewer than 2 keys or no unseen one, and is not all keys.
    output_error : array, shape (..., n_q)
        The radius around the estimate in which O lies with the same confidence, in the Euclidean
        norm.
    """

    log_mass: Annotated[Array, "... n_q"]
    output: Annotated[Array, "... n_q d_v"]
    mass_error: Annotated[Array, "... n_q"]
    output_error: Annotated[Array, "... n_q"]


def uniform_tail(
    scores: Annotated[Array, "... n_q s"],
    value: Annotated[Array, "... s d_v"],
    n_keys: int,
    *,
    unseen: Annotated[Array, "... n_q s"] | None = None,
    delta: float = 0.05,
) -> UniformTail:
    r"""Estimate the mass and the mean value of the unseen keys from a uniform sample.

    Of n keys s were drawn, each set of s with equal chance. An unseen key is in the sample with
    probability s/n, so that (Horvitz and Thompson 1952)

    .. math::
        \hat z = \frac{n}{s} \sum_{i \in \text{sample}} u_i e^{x_i}, \qquad
        \hat O = \sum_{i \in \text{sample}} u_i e^{x_i} v_i \Big/ \sum_{i \in \text{sample}}
        u_i e^{x_i},

    where x are scaled scores and u is 1 for an unseen key and 0 for one that was scored apart.

    Parameters
    ----------
    scores : array, shape (..., n_q, s), real floating dtype
        β q·k for the keys of the sample. All n_q queries share one sample.
    value : array, shape (..., s, d_v)
        Their values, of the library, device and dtype of `scores`. Leading axes broadcast.
    n_keys : int
        n, at least s: from how many keys the sample was drawn, without replacement.
    unseen : boolean array that broadcasts to the shape of `scores`, optional
        **True = counts.** False for a key that this query has scored already or may not see.
    delta : float
        The probability that an error exceeds its bound, above 0 and at most 0.2.

    Returns
    -------
    UniformTail
        In the dtype of `scores`; float32 for half precision.

    Raises
    ------
    TypeError
        For anything but arrays of one library and dtype, or `unseen` that is not boolean.
    ValueError
        For shapes that do not fit, `n_keys` below s, or `delta` out of range.

    Notes
    -----
    For every n and s the mean of :math:`\hat z` is z, and the numerator of :math:`\hat O` has the
    right mean too. The ratio is biased by O(1/s).

    The bounds are asymptotic. With :math:`\hat\sigma^2` the sample's variance of
    :math:`y_i = u_i e^{x_i}` and q the quantile 1 - δ/2 of the normal distribution,

    .. math::
        \frac{|\hat z - z|}{\hat z} \le q\, \frac{\hat\sigma}{\bar y}
            \sqrt{\frac{1 - s/n}{s}}, \qquad
        \|\hat O - O\| \le \frac{q}{\bar y} \sqrt{\frac{1 - s/n}{s} \cdot
            \frac{1}{s - 1} \sum_i y_i^2 \|v_i - \hat O\|^2}

    hold with probability 1 - δ in the limit of large s by the central limit theorem for samples of
    a finite population, the second by linearizing the ratio. A normal vector is longer than q times
    the root of its total variance with probability at most δ for δ ≤ 0.215 (Székely and Bakirov
    2003), whatever its covariance. Variance and mean are themselves estimates from the sample. If
    one key in n holds most of z, a sample without it knows neither, and the interval is far too
    short. Score the keys of largest weight and sample the rest (Desai et al. 2025).

    A query costs O(s d_v), beyond the scores.

    References
    ----------
    Horvitz and Thompson (1952); Székely and Bakirov (2003), "Extremal probabilities for Gaussian
    quadratic forms"; Desai et al. (2025), "vAttention"; chapter `estimators`.

    Examples
    --------
    >>> import numpy as np
    >>> key = np.random.default_rng(0).standard_normal(1009)
    >>> rows = np.random.default_rng(1).permutation(1009)[:251]
    >>> tail = uniform_tail(key[None, rows], key[rows, None], 1009)
    >>> relative = abs(np.exp(tail.log_mass) / np.exp(key).sum() - 1)
    >>> bool(relative[0] < tail.mass_error[0] < 0.2)
    True
    """
    check_floats(scores=scores, value=value)
    for name, x in (("scores", scores), ("value", value)):
        if x.ndim < 2:
            axes = {"scores": "n_q, s", "value": "s, d_v"}[name]
            raise ValueError(f"{name} must have shape (..., {axes}), got {tuple(x.shape)}")
    s = scores.shape[-1]
    leading = tuple(scores.shape[:-2])
    if value.shape[-2] != s or broadcast_shapes(leading, tuple(value.shape[:-2])) != leading:
        raise ValueError(
            f"value must have shape (..., {s}, d_v) to match scores of shape "
            f"{tuple(scores.shape)}, got {tuple(value.shape)}"
        )
    if unseen is not None:
        check_boolean(unseen, "unseen")
        check_mask(unseen, scores, tuple(scores.shape), "unseen", "scores")
    n_keys = check_int("n_keys", n_keys, at_least=s, at_most=2**62)
    delta = check_number("delta", delta)
    if not 0 < delta <= 0.2:
        raise ValueError(f"delta must be above 0 and at most 0.2, got {delta}")
    return _uniform_tail(to_accumulate(scores), to_accumulate(value), n_keys, unseen, delta)


# The mathematics. This may rely on checked arguments.


def _uniform_tail(scores, value, n_keys, unseen, delta):
    xp = array_namespace(scores)
    s = scores.shape[-1]
    if unseen is not None:
        scores = masked(scores, unseen)
    if s == 0:
        nothing = xp.sum(scores, axis=-1)
        output = xp.matmul(scores, value)
        error = nothing + (xp.inf if n_keys else 0.0)
        return UniformTail(nothing - xp.inf, output, error, error)
    log_mass = math.log(n_keys / s) + log_sum(scores)
    weights = softmax_of(scores, axis=-1)
    output = xp.matmul(weights, value)
    # ‖v_i - O‖² = ‖v_i‖² - 2 v_i·O + ‖O‖², so that no (n_q, s, d_v) array is made
    centre = xp.mean(value, axis=-2, keepdims=True)
    moved, away = value - centre, output - centre
    square = xp.expand_dims(xp.sum(moved * moved, axis=-1), axis=-2)
    distance = square - 2 * xp.matmul(away, xp.matrix_transpose(moved))
    distance = distance + xp.sum(away * away, axis=-1, keepdims=True)
    distance = xp.where(distance > 0, distance, xp.zeros_like(distance))
    mass_variance = xp.sum((s * weights - 1) ** 2, axis=-1)
    output_variance = xp.sum((s * weights) ** 2 * distance, axis=-1)
    if s == n_keys:  # every key is in: nothing was estimated
        zero = xp.zeros_like(log_mass)
        return UniformTail(log_mass, output, zero, zero)
    unknown = (log_mass == -xp.inf) | (s == 1)
    quantile = -NormalDist().inv_cdf(max(delta / 2, 5e-324))  # that of 1 - δ/2
    factor = math.sqrt((1 - s / n_keys) / s / max(s - 1, 1)) * quantile
    errors = (
        xp.where(unknown, xp.full_like(log_mass, xp.inf), factor * xp.sqrt(variance))
        for variance in (mass_variance, output_variance)
    )
    return UniformTail(log_mass, output, *errors)
