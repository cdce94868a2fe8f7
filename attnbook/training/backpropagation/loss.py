"""Backwards through the cross-entropy: what the model said minus what came."""

from typing import Annotated

import array_api_compat

from attnbook.arrays.array import Array, array_namespace, to_accumulate
from attnbook.arrays.empty_rows import or_one
from attnbook.single_head.softmax import softmax_of


def cross_entropy_vjp(
    logits: Annotated[Array, "... n V"],
    targets: Annotated[Array, "... n"],
    mask: Annotated[Array, "... n"] | None = None,
    *,
    label_smoothing: float = 0.0,
) -> Annotated[Array, "... n V"]:
    r"""Return the gradient of `cross_entropy` with respect to the logits.

    With p = softmax(logits) and the one-hot row e_y, which is 1 at the target,

    .. math:: \frac{\partial\mathcal L}{\partial\,\text{logits}_i} = \frac1{n_y} \Bigl(
              p_i - (1 - \varepsilon)\, e_{y_i} - \frac{\varepsilon}{\lvert\mathcal V\rvert}
              \Bigr)

    for the n_y tokens that count, and 0 for the others.

    Parameters
    ----------
    logits, targets, mask, label_smoothing
        As in `cross_entropy`.

    Returns
    -------
    array, shape (..., n, V)
        Each row sums to 0.

    Notes
    -----
    Cost: O(n V).

    Examples
    --------
    >>> import numpy as np
    >>> cross_entropy_vjp(np.zeros((1, 4)), np.array([2]))
    array([[ 0.25,  0.25, -0.75,  0.25]])
    """
    xp, device = array_namespace(logits), array_api_compat.device(logits)
    n_tokens = logits.shape[-1]
    chosen = xp.astype(targets, xp.int64, copy=False)[..., None]
    is_target = chosen == xp.arange(n_tokens, device=device)  # (..., n, V)
    wide = to_accumulate(logits)
    right = (1 - label_smoothing) * xp.astype(is_target, wide.dtype)
    difference = softmax_of(wide, -1) - (right + label_smoothing / n_tokens)
    counts = xp.ones_like(wide[..., 0]) if mask is None else xp.astype(mask, wide.dtype)
    grads = difference * (counts / or_one(xp.sum(counts)))[..., None]
    return xp.astype(grads, logits.dtype, copy=False)
