"""The forms in which a state can be computed, each chosen by its name."""

import importlib
from collections.abc import Callable
from typing import Any, Literal

from attnbook.arrays.arguments import check_choice
from attnbook.arrays.array import Array, array_namespace, dtype_name, sum_to_shape
from attnbook.arrays.move import how_to_install
from attnbook.linear_attention import chunks
from attnbook.linear_attention.arguments import LENGTH, Tokens, check_gradients

Impl = Literal["reference", "parallel", "chunkwise", "numba", "triton"]

FORMS = ("reference", "parallel", "chunkwise", "numba", "triton")


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


def _compiled(impl: str, tokens: Tokens) -> Callable[[Tokens, bool], tuple[Array, Array]]:
    """Return the compiled form, or raise where it does not take such tokens."""
    if (kind := dtype_name(tokens.query.dtype)) != "float32":
        raise ValueError(f'impl="{impl}" takes float32 or half precision, got {kind}')
    for name, x in tokens._asdict().items():
        if getattr(x, "requires_grad", False):
            raise ValueError(f'{name} must need no gradient with impl="{impl}": use "chunkwise"')
    try:
        return importlib.import_module(f"attnbook.linear_attention.{impl}_chunks").compiled
    except ImportError as error:
        raise ImportError(f"impl={impl!r} needs {impl}: {error}; {how_to_install(impl)}") from error


def output_and_state(tokens: Tokens, query: Array, impl: str) -> tuple[Array, Array]:
    """Return the output, in the dtype of `query`, and the last state."""
    if impl == "reference":
        output, state = recurrence(tokens)
    elif impl in ("numba", "triton"):
        compiled = _compiled(impl, tokens)
        output, state = compiled(tokens, query.dtype != tokens.query.dtype)
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
