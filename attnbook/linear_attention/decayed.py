r"""Linear attention with decay: the state fades, and adds the value of each token at its key.

.. math:: S_t = \alpha_t S_{t-1} + k_t v_t^\top, \qquad o_t = S_t^\top q_t
"""

from typing import Annotated

from attnbook.arrays.array import Array
from attnbook.linear_attention.arguments import check_tokens
from attnbook.linear_attention.forms import Impl, check_form, gradients, output_and_state


def decayed_attention(
    query: Annotated[Array, "... n d_k"],
    key: Annotated[Array, "... n d_k"],
    value: Annotated[Array, "... n d_v"],
    log_decay: Annotated[Array, "... n"] | None = None,
    *,
    state: Annotated[Array, "... d_k d_v"] | None = None,
    impl: Impl = "reference",
) -> tuple[Annotated[Array, "... n d_v"], Annotated[Array, "... d_k d_v"]]:
    r"""Read every token into a state that fades, and answer each query from the state.

    .. math:: S_t = \alpha_t S_{t-1} + k_t v_t^\top, \qquad o_t = S_t^\top q_t, \qquad
              \alpha_t = e^{\text{log\_decay}_t}

    Without decay it is causal linear attention; a constant decay for each head makes RetNet's
    retention, one that depends on the token makes the scalar state space of Mamba-2.

    Parameters
    ----------
    query, key : arrays, shape (..., n, d_k), real floating dtype
        Scale the queries yourself. Leading axes broadcast.
    value : array, shape (..., n, d_v)
    log_decay : array, shape (..., n), optional
        log α of each token, finite and at most 0; 0, which keeps everything, unless given.
    state : array, shape (..., d_k, d_v), optional
        What was read before, such as the state that an earlier call returned; zeros unless given.
        It is of the dtype to compute in.
    impl : str
        ``"reference"``, the recurrence, token by token; ``"parallel"``, with all n × n pairs;
        ``"chunkwise"``, in chunks of 64 tokens; ``"numba"`` and ``"triton"``, such chunks in
        compiled loops and on a GPU.

    Returns
    -------
    output : array, shape (..., n, d_v)
        Of the dtype of `query`.
    state : array, shape (..., d_k, d_v)
        The state after the last token, to go on from. float16 and bfloat16 are computed in
        float32, and the state stays in float32.

    Raises
    ------
    TypeError
        For anything but arrays of one library and one real floating dtype.
    ValueError
        If shapes do not fit or `impl` is unknown. ``"numba"`` and ``"triton"`` also refuse float64,
        tensors that require a gradient, and arrays that they cannot read.
    ImportError
        If `impl` needs a package that is not installed.

    Notes
    -----
    The forms differ by rounding alone. In the parallel form a decay is :math:`e^{g_i - g_j}`, with
    g the running sum of the log-decays, so nothing overflows however strong the decay is.
    Gradients flow through PyTorch's autograd; `decayed_attention_vjp` has them for other libraries.
    Cost: O(n d_k d_v) time and O(d_k d_v) memory beside the output for the recurrence,
    O(n (C + d_k) d_v) time in chunks of C, O(n² (d_k + d_v)) time in the parallel form.

    References
    ----------
    Katharopoulos et al. (2020), "Transformers are RNNs"; Sun et al. (2023), "Retentive network";
    Dao and Gu (2024), "Transformers are SSMs"; chapter `linear_attention`.

    Examples
    --------
    >>> import numpy as np
    >>> key, value = np.eye(2), np.array([[3.0], [5.0]])
    >>> output, state = decayed_attention(key, key, value, np.log([1.0, 0.5]))
    >>> output[:, 0], state[:, 0]  # the first value has faded to one half
    (array([3., 5.]), array([1.5, 5. ]))
    """
    check_form(impl)
    tokens = check_tokens(query, key, value, log_decay, state)
    return output_and_state(tokens, query, impl)


def decayed_attention_vjp(
    query: Annotated[Array, "... n d_k"],
    key: Annotated[Array, "... n d_k"],
    value: Annotated[Array, "... n d_v"],
    log_decay: Annotated[Array, "... n"] | None,
    grad_output: Annotated[Array, "... n d_v"],
    grad_state: Annotated[Array, "... d_k d_v"] | None = None,
    *,
    state: Annotated[Array, "... d_k d_v"] | None = None,
    impl: Impl = "chunkwise",
) -> tuple[Array, Array, Array, Array, Array]:
    """Pull the gradient of a loss back from output and last state to all inputs.

    Parameters
    ----------
    query, key, value, log_decay, state
        As in `decayed_attention`.
    grad_output : array, shape (..., n, d_v)
    grad_state : array, shape (..., d_k, d_v), optional
        The gradient of the last state; 0 unless given.
    impl : str
        ``"reference"``, ``"parallel"`` or ``"chunkwise"``.

    Returns
    -------
    grad_query, grad_key, grad_value, grad_log_decay, grad_state : arrays
        Of the shapes of the inputs, axes that were broadcast summed. The last one is of the first
        state. Where no decay or state was given, the gradient has the shape that one would have.

    Raises
    ------
    TypeError, ValueError
        As in `decayed_attention`, and ValueError if a gradient has another shape.

    Notes
    -----
    The state before each chunk is computed again and kept: O(n/C d_k d_v) memory.

    Examples
    --------
    >>> import numpy as np
    >>> ones = np.ones((2, 1))
    >>> decayed_attention_vjp(ones, ones, ones, None, ones)[2][:, 0]  # the first is read twice
    array([2., 1.])
    """
    tokens = check_tokens(query, key, value, log_decay, state)
    given = (query, key, value, log_decay, None, state)
    grads = gradients(tokens, given, grad_output, grad_state, impl)
    return (*grads[:4], grads[5])
