"""What linear attention is given, checked once and laid out alike."""

from typing import Any, NamedTuple

from array_api_compat import device

from attnbook.arrays.arguments import check_floats
from attnbook.arrays.array import Array, array_namespace, broadcast_shapes, to_accumulate

LENGTH = 64
"""Tokens in a chunk; the kernel for a GPU has its own."""


class Tokens(NamedTuple):
    """The arrays of one call, with the same leading axes and in the dtype to compute in."""

    query: Array  # (..., n, d_k)
    key: Array  # (..., n, d_k)
    value: Array  # (..., n, d_v)
    log_decay: Array  # (..., n)
    beta: Array | None  # (..., n)
    state: Array  # (..., d_k, d_v)


def check_tokens(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None,
    state: Array | None,
    beta: Array | None = None,
) -> Tokens:
    """Return the arrays with all leading axes, zeros where nothing was given, or raise."""
    given = {"query": query, "key": key, "value": value}
    of_tokens = {"beta": beta, "log_decay": log_decay}
    each_token: dict[str, Any] = {name: x for name, x in of_tokens.items() if x is not None}
    check_floats(**given, **each_token)
    for name, x in given.items():
        if x.ndim < 2:
            raise ValueError(f"{name} must have shape (..., n, d), got {tuple(x.shape)}")
    n, d_k, d_v = query.shape[-2], query.shape[-1], value.shape[-1]
    if tuple(key.shape[-2:]) != (n, d_k):
        raise ValueError(
            f"key must have shape (..., {n}, {d_k}) to match query, got {tuple(key.shape)}"
        )
    if value.shape[-2] != n:
        raise ValueError(f"value must have shape (..., {n}, d_v), got {tuple(value.shape)}")
    for name, x in each_token.items():
        if x.ndim < 1 or x.shape[-1] != n:
            raise ValueError(f"{name} must have shape (..., {n}), got {tuple(x.shape)}")
    xp, wide = array_namespace(query), to_accumulate(query)
    where: dict[str, Any] = {"dtype": wide.dtype, "device": device(query)}
    if state is None:
        state = xp.zeros((d_k, d_v), **where)
    check_floats(query=wide, state=state)
    if tuple(state.shape[-2:]) != (d_k, d_v):
        raise ValueError(
            f"state must have shape (..., {d_k}, {d_v}) to match key and value, "
            f"got {tuple(state.shape)}"
        )
    axes = [x.shape[:-2] for x in (*given.values(), state)]
    axes += [x.shape[:-1] for x in each_token.values()]
    leading = broadcast_shapes(*map(tuple, axes))
    if leading is None:
        listed = ", ".join(str(tuple(shape)) for shape in axes)
        raise ValueError(f"leading axes must broadcast, got {listed}")

    def whole(x: Array, *last: int) -> Array:
        return xp.broadcast_to(to_accumulate(x), (*leading, *last))

    return Tokens(
        whole(query, n, d_k),
        whole(key, n, d_k),
        whole(value, n, d_v),
        whole(xp.zeros((n,), **where) if log_decay is None else log_decay, n),
        None if beta is None else whole(beta, n),
        whole(state, d_k, d_v),
    )


def check_gradients(
    tokens: Tokens, query: Array, grad_output: Array, grad_state: Array | None
) -> tuple[Array, Array]:
    """Return the gradients of the output and of the last state, zeros for None, or raise."""
    check_floats(query=query, grad_output=grad_output)
    expected = (*tokens.query.shape[:-1], tokens.value.shape[-1])
    if tuple(grad_output.shape) != tuple(expected):
        raise ValueError(
            f"grad_output must have the shape of the output {tuple(expected)}, "
            f"got {tuple(grad_output.shape)}"
        )
    if grad_state is None:
        return to_accumulate(grad_output), tokens.state * 0
    check_floats(state=tokens.state, grad_state=grad_state)
    if tuple(grad_state.shape) != tuple(tokens.state.shape):
        raise ValueError(
            f"grad_state must have the shape of the state {tuple(tokens.state.shape)}, "
            f"got {tuple(grad_state.shape)}"
        )
    return to_accumulate(grad_output), grad_state
