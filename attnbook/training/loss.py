r"""Cross-entropy: how surprised a model is by the tokens that came.

.. math:: \mathcal L = -\frac1{n_y} \sum_i \log p_{i, y_i}, \qquad
          p_i = \operatorname{softmax}(\text{logits}_i)
"""

from typing import Annotated

from attnbook.arrays.arguments import check_float, check_ids, check_number, check_same_home
from attnbook.arrays.array import Array, array_namespace, to_accumulate
from attnbook.arrays.attention_arguments import check_boolean
from attnbook.arrays.empty_rows import or_one
from attnbook.single_head.softmax import log_softmax_of


def cross_entropy(
    logits: Annotated[Array, "... n V"],
    targets: Annotated[Array, "... n"],
    mask: Annotated[Array, "... n"] | None = None,
    *,
    label_smoothing: float = 0.0,
) -> Annotated[Array, ""]:
    r"""Return the cross-entropy loss: the mean surprisal in nats over the tokens that count.

    .. math:: \mathcal L = -\frac1{n_y} \sum_i \Bigl( (1 - \varepsilon) \log p_{i, y_i}
              + \frac{\varepsilon}{\lvert\mathcal V\rvert} \sum_j \log p_{i,j} \Bigr),
              \qquad p_i = \operatorname{softmax}(\text{logits}_i),

    over the n_y tokens that count.

    Parameters
    ----------
    logits : array, shape (..., n, V), real floating dtype
        Logits, **not** probabilities, because this function applies the softmax.
    targets : integer array y, shape (..., n)
        The correct tokens. Where the mask is False, they may be any number, such as -100.
    mask : boolean array, shape (..., n), optional
        **True = counts.** Padding must be False.
    label_smoothing : float
        ε, from 0 to 1: the share of the target that is spread over all V tokens.

    Returns
    -------
    array, shape ()
        Has the dtype of `logits`; half precision is computed in float32. If no token counts, the
        result is 0, whereas PyTorch's function returns NaN.

    Raises
    ------
    TypeError
        If dtypes or libraries do not match.
    ValueError
        If shapes do not match, a target that counts is not from 0 to V - 1, or `label_smoothing` is
        not from 0 to 1.

    Notes
    -----
    ``exp(L)`` is the perplexity, and L / log 2 is the number of bits per token. A uniform guess has
    L = log V.
    Cost: O(n V).

    References
    ----------
    Szegedy et al. (2016), "Rethinking the Inception architecture", section 7, on label smoothing;
    chapter `training`.

    Examples
    --------
    >>> import numpy as np
    >>> cross_entropy(np.zeros((3, 4)), np.array([0, 3, 1])).round(4)  # log 4
    np.float64(1.3863)
    """
    targets = checked_targets(logits, targets, mask, label_smoothing)
    loss = cross_entropy_of(logits, targets, mask, float(label_smoothing))
    return array_namespace(logits).astype(loss, logits.dtype, copy=False)


def checked_targets(logits, targets, mask, label_smoothing):
    """Return `targets` with 0 where the mask is False, or raise."""
    check_float("logits", logits)
    if logits.ndim < 2 or logits.shape[-1] == 0:
        raise ValueError(f"logits must have shape (..., n, V), V >= 1, got {tuple(logits.shape)}")
    if check_number("label_smoothing", label_smoothing) > 1:
        raise ValueError(f"label_smoothing must be at most 1, got {label_smoothing}")
    check_ids("targets", targets, None, "logits", logits)
    _check_shape("targets", targets, logits)
    xp = array_namespace(logits)
    if mask is not None:
        check_same_home("mask", mask, "logits", logits)
        check_boolean(mask)
        _check_shape("mask", mask, logits)
        targets = xp.where(mask, targets, xp.zeros_like(targets))
    check_ids("targets", targets, logits.shape[-1], "logits", logits)
    return targets


def _check_shape(name, x, logits):
    if tuple(x.shape) != tuple(logits.shape[:-1]):
        raise ValueError(
            f"{name} must have shape {tuple(logits.shape[:-1])} to match logits, "
            f"got {tuple(x.shape)}"
        )


# The mathematics. These may rely on checked arrays.


def cross_entropy_of(logits, targets, mask, smoothing):
    xp = array_namespace(logits)
    log_p = log_softmax_of(to_accumulate(logits), -1)  # (..., n, V)
    chosen = xp.astype(targets, xp.int64, copy=False)[..., None]
    surprise = -xp.take_along_axis(log_p, chosen, axis=-1)[..., 0]  # (..., n)
    if smoothing:
        surprise = (1 - smoothing) * surprise - smoothing * xp.mean(log_p, axis=-1)
    counts = xp.ones_like(surprise) if mask is None else xp.astype(mask, log_p.dtype)
    surprise = xp.where(counts > 0, surprise, xp.zeros_like(surprise))
    return xp.sum(surprise) / or_one(xp.sum(counts))
