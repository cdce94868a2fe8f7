r"""The delta rule: what the state holds for a key is erased before the new value is written.

.. math:: S_t = \alpha_t S_{t-1} + \beta_t\, k_t \bigl(v_t - \alpha_t S_{t-1}^\top k_t\bigr)^\top,
          \qquad o_t = S_t^\top q_t
"""

from typing import Annotated

from attnbook.arrays.array import Array
from attnbook.linear_attention.arguments import check_tokens
from attnbook.linear_attention.forms import Impl, check_form, gradients, output_and_state


def delta_rule(
    query: Annotated[Array, "... n d_k"],
    key: Annotated[Array, "... n d_k"],
    value: Annotated[Array, "... n d_v"],
    beta: Annotated[Array, "... n"],
    log_decay: Annotated[Array, "... n"] | None = None,
    *,
    state: Annotated[Array, "... d_k d_v"] | None = None,
    impl: Impl = "reference",
) -> tuple[Annotated[Array, "... n d_v"], Annotated[Array, "... d_k d_v"]]:
    r"""Overwrite what the state holds for each key, and answer each query from the state.

    .. math:: S_t = \alpha_t S_{t-1}
              + \beta_t\, k_t \bigl(v_t - \alpha_t S_{t-1}^\top k_t\bigr)^\top,
              \qquad o_t = S_t^\top q_t

    It is a step of gradient descent, with step size β, on the squared error of what the state
    returns for the key. With β = 1 and keys of length 1 the state returns exactly the new value
    afterwards. With decay it is the gated delta rule.

    Parameters
    ----------
    query, key, value, log_decay, state, impl
        As in `decayed_attention`. Keys should have length 1: for β‖k‖² above 2 the state grows
        without bound.
    beta : array, shape (..., n)
        How much of the error of each token is corrected, usually from 0 to 1.

    Returns
    -------
    output : array, shape (..., n, d_v)
    state : array, shape (..., d_k, d_v)
        As in `decayed_attention`.

    Raises
    ------
    TypeError, ValueError, ImportError
        As in `decayed_attention`.

    Notes
    -----
    In chunks of C tokens, what the tokens of one chunk write solves a triangular system of C
    equations (the WY representation), so the rest is products of matrices.
    Cost: O(n d_k d_v) time for the recurrence, O(n (C² + C (d_k + d_v) + d_k d_v)) in chunks.

    References
    ----------
    Schlag et al. (2021), "Linear transformers are secretly fast weight programmers"; Yang et al.
    (2024), "Parallelizing linear transformers with the delta rule over sequence length"; Yang et
    al. (2025), "Gated delta networks"; chapter `linear_attention`.

    Examples
    --------
    >>> import numpy as np
    >>> key, value = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[3.0], [5.0]])
    >>> output, state = delta_rule(key, key, value, np.ones(2))
    >>> output[:, 0]  # the second value replaces the first; a sum would be 8
    array([3., 5.])
    """
    check_form(impl)
    tokens = check_tokens(query, key, value, log_decay, state, beta)
    return output_and_state(tokens, query, impl)


def delta_rule_vjp(
    query: Annotated[Array, "... n d_k"],
    key: Annotated[Array, "... n d_k"],
    value: Annotated[Array, "... n d_v"],
    beta: Annotated[Array, "... n"],
    log_decay: Annotated[Array, "... n"] | None,
    grad_output: Annotated[Array, "... n d_v"],
    grad_state: Annotated[Array, "... d_k d_v"] | None = None,
    *,
    state: Annotated[Array, "... d_k d_v"] | None = None,
    impl: Impl = "chunkwise",
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Pull the gradient of a loss back from output and last state to all inputs.

    Parameters
    ----------
    query, key, value, beta, log_decay, state
        As in `delta_rule`.
    grad_output, grad_state, impl
        As in `decayed_attention_vjp`.

    Returns
    -------
    grad_query, grad_key, grad_value, grad_beta, grad_log_decay, grad_state : arrays
        As in `decayed_attention_vjp`.

    Raises
    ------
    TypeError, ValueError
        As in `decayed_attention_vjp`.

    Examples
    --------
    >>> import numpy as np
    >>> ones = np.ones((2, 1))
    >>> grads = delta_rule_vjp(ones, ones, ones, np.ones(2), None, ones)
    >>> grads[2][:, 0]  # the second token erases the first, which is read once
    array([1., 1.])
    """
    tokens = check_tokens(query, key, value, log_decay, state, beta)
    given = (query, key, value, log_decay, beta, state)
    grads = gradients(tokens, given, grad_output, grad_state, impl)
    return (*grads[:3], grads[4], grads[3], grads[5])
