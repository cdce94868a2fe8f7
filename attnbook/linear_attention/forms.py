"""The forms in which a state can be computed, each chosen by its name."""

from typing import Any, Literal

from attnbook.arrays.arguments import check_choice
from attnbook.arrays.array import Array, array_namespace, sum_to_shape
from attnbook.linear_attention import chunks
from attnbook.linear_attention.arguments import Tokens, check_gradients

Impl = Literal["reference", "parallel", "chunkwise", "numba"]

FORMS = ("reference", "parallel", "chunkwise", "numba")
LENGTH = 64
"""Tokens in a chunk of the forms `chunkwise` and `numba`."""


def check_form(impl: str) -> str:
    """Return `impl`, or raise ValueError unless it is one of `FORMS`."""
    return check_choice("impl", impl, FORMS)


def recurrence(tokens: Tokens) -> tuple[Array, Array]:
    """Read token by token: the reference."""
    xp, state, outputs = array_namespace(tokens.query), tokens.state, []
    for t in range(tokens.query.shape[-2]):
        q, k, v = (x[..., t, :] for x in tokens[:3])
        state = xp.exp(tokens.log_decay[..., t])[..., None, None] * state
        if tokens.beta is not None:
            held = xp.matmul(k[..., None, :], state)[..., 0, :]  # what the state returns for k
            v = tokens.beta[..., t][..., None] * (v - held)
        state = state + k[..., :, None] * v[..., None, :]
        outputs.append(xp.matmul(q[..., None, :], state))
    return (xp.concat(outputs, axis=-2) if outputs else tokens.value), state


def _length(tokens: Tokens, impl: str) -> int:
    n = tokens.query.shape[-2]
    return max(1, {"reference": 1, "parallel": n}.get(impl, min(n, LENGTH)))


def output_and_state(tokens: Tokens, query: Array, impl: str) -> tuple[Array, Array]:
    """Return the output, in the dtype of `query`, and the last state."""
    if impl == "reference":
        output, state = recurrence(tokens)
    elif impl == "numba":
        from attnbook.linear_attention.numba_chunks import compiled

        output, state = compiled(tokens)
    else:
        output, state, _, _ = chunks.forward(tokens, chunks.cut(tokens, _length(tokens, impl)))
    return array_namespace(query).astype(output, query.dtype, copy=False), state


def gradients(
    tokens: Tokens,
    given: tuple[Array | None, ...],
    grad_output: Array,
    grad_state: Array | None,
    impl: str,
) -> tuple[Any, ...]:
    """Return the gradients of query, key, value, log-decay, beta and state, shaped as `given`."""
    check_choice("impl", impl, FORMS[:3])
    grad_output, grad_state = check_gradients(tokens, given[0], grad_output, grad_state)  # type: ignore[arg-type]
    xp, shaped = array_namespace(grad_output), []
    grads = chunks.backward(tokens, _length(tokens, impl), grad_output, grad_state)
    for grad, x in zip(grads, given, strict=True):
        if grad is not None and x is not None:
            grad = xp.astype(sum_to_shape(grad, tuple(x.shape)), x.dtype, copy=False)
        shaped.append(grad)
    return tuple(shaped)
