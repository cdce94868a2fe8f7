r"""The kernel trick: a product of features in the place of the exponential.

.. math:: o_i = \frac{\sum_j \varphi(q_i)^\top\varphi(k_j)\, v_j}
                     {\sum_j \varphi(q_i)^\top\varphi(k_j)}
              = \frac{\bigl(\sum_j \varphi(k_j) v_j^\top\bigr)^\top \varphi(q_i)}
                     {\varphi(q_i)^\top \sum_j \varphi(k_j)}
"""

from collections.abc import Callable
from typing import Annotated

from attnbook.arrays.arguments import check_float
from attnbook.arrays.array import Array, array_namespace, to_accumulate
from attnbook.linear_attention.arguments import check_tokens
from attnbook.linear_attention.forms import Impl, check_form, output_and_state

FeatureMap = Callable[[Array], Array]
"""What makes features (..., n, m) of rows (..., n, d)."""


def elu_plus_one(x: Annotated[Array, "... d"]) -> Annotated[Array, "... d"]:
    """Return ELU(x) + 1, entry by entry: x + 1 above 0, eˣ below, always positive.

    Parameters
    ----------
    x : array of any shape, real floating dtype

    Returns
    -------
    array of the shape and dtype of `x`
        Its gradient is continuous.

    Raises
    ------
    TypeError
        For anything but an array of real floating-point numbers.

    References
    ----------
    Katharopoulos et al. (2020), "Transformers are RNNs", section 3.2.

    Examples
    --------
    >>> import numpy as np
    >>> elu_plus_one(np.array([-1.0, 0.0, 2.0])).round(3)
    array([0.368, 1.   , 3.   ])
    """
    check_float("x", x)
    xp = array_namespace(x)
    below = xp.where(x < 0, x, xp.zeros_like(x))  # the exponential never sees what would overflow
    return xp.where(x < 0, xp.exp(below), x + 1)


def kernel_attention(
    query: Annotated[Array, "... n d_k"],
    key: Annotated[Array, "... n d_k"],
    value: Annotated[Array, "... n d_v"],
    feature_map: FeatureMap = elu_plus_one,
    *,
    impl: Impl = "reference",
) -> Annotated[Array, "... n d_v"]:
    r"""Return for each query the mean of the values so far, weighted by products of features.

    .. math:: o_i = \frac{\sum_{j \le i} \varphi(q_i)^\top\varphi(k_j)\, v_j}
                         {\sum_{j \le i} \varphi(q_i)^\top\varphi(k_j)}

    Parameters
    ----------
    query, key, value
        As in `decayed_attention`.
    feature_map : callable
        φ, which turns rows (..., n, d_k) into features (..., n, m). Where products of features are
        not positive, neither are the weights.
    impl : str
        As in `decayed_attention`.

    Returns
    -------
    array, shape (..., n, d_v)
        Of the dtype of `query`. A query whose weights sum to 0 gets NaN or an infinity.

    Raises
    ------
    TypeError, ValueError, ImportError
        As in `decayed_attention`; TypeError if `feature_map` cannot be called.

    Notes
    -----
    A column of ones beside the values makes the sum of the weights in the same pass.
    Cost: that of `decayed_attention` with m in the place of d_k.

    References
    ----------
    Katharopoulos et al. (2020), "Transformers are RNNs"; chapter `linear_attention`.

    Examples
    --------
    >>> import numpy as np
    >>> query, value = np.zeros((2, 1)), np.array([[1.0], [3.0]])
    >>> kernel_attention(query, query, value)[:, 0]
    array([1., 2.])
    """
    check_form(impl)
    check_tokens(query, key, value, None, None)
    if not callable(feature_map):
        raise TypeError(f"feature_map must be callable, got {type(feature_map).__name__}")
    xp = array_namespace(query)
    wide = [to_accumulate(x) for x in (query, key, value)]
    ones = xp.ones_like(wide[2][..., :1])
    both = xp.concat([wide[2], ones], axis=-1)
    tokens = check_tokens(feature_map(wide[0]), feature_map(wide[1]), both, None, None)
    sums, _ = output_and_state(tokens, wide[0], impl)
    return xp.astype(sums[..., :-1] / sums[..., -1:], query.dtype, copy=False)
