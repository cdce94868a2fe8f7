"""The functions of other projects that compute exact attention."""

import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from importlib import metadata
from typing import Any

import numpy as np

from benchmarks.exact_problem import Arrays, Entry, Problem

PACKAGES = {
    "SDPA": "torch",
    "FlexAttention": "torch",
    "JAX": "jax",
    "xformers": "xformers",
    "flash-attn": "flash-attn",
}
BACKENDS = {0: "math", 1: "flash", 2: "efficient", 3: "cuDNN"}  # torch.nn.attention.SDPBackend
SDPA, FLEX, JAX = "SDPA", "FlexAttention", "JAX"
FLEX_SECONDS = {"cpu": 120, "cuda": 60}  # a compiler that takes longer is given up
Run = Callable[[], Any]


def here() -> dict[str, str | None]:
    """Return the version of each peer, None of one that is not installed."""
    found: dict[str, str | None] = {}
    for name, package in PACKAGES.items():
        try:
            found[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def call(function: Callable[..., Any], given: dict[str, Any]) -> Run:
    """Return the call of `function`, with the backward pass if there is a gradient to pull back."""
    arrays = [given[name] for name in ("query", "key", "value")]
    if "grad" not in given:
        return functools.partial(function, *arrays)
    import torch

    leaves = [x.detach().requires_grad_() for x in arrays]

    def run() -> tuple[Any, ...]:
        output = function(*leaves)
        grads = torch.autograd.grad(output, leaves, given["grad"].reshape(output.shape))
        return output.detach(), *grads

    return run


# PyTorch


def sdpa(problem: Problem, arrays: Arrays) -> Iterator[Entry]:
    """Yield PyTorch's function as it chooses by itself, then each other backend of the device."""
    default, backends = sdpa_backends(problem, arrays)
    given = arrays.of("torch")
    about = {"implementation": SDPA, "library": "torch"}
    yield Entry(about | {"backend": default}, call(_sdpa(problem), given))
    for name in backends:
        if name != default:
            about |= {"implementation": f"{SDPA} {name}", "backend": name}
            yield Entry(dict(about), call(_sdpa(problem, name), given))


def sdpa_backends(problem: Problem, arrays: Arrays) -> tuple[str | None, list[str]]:
    """Return which backend SDPA chooses by itself, and all that exist on the device."""
    import torch

    all_here = ["flash", "math"] if problem.device == "cpu" else list(BACKENDS.values())
    query, key, value = (_flat(arrays.of("torch")[name]) for name in ("query", "key", "value"))
    grouped = {"enable_gqa": True} if problem.kv_heads is not None else {}
    try:
        choose = torch._fused_sdp_choice  # private, and it alone knows
        choice = int(choose(query, key, value, None, 0.0, problem.is_causal, **grouped))
    except (AttributeError, RuntimeError, TypeError):
        return None, all_here
    return BACKENDS.get(choice), all_here


def _flat(x: Any) -> Any:
    """Return grouped heads, (batch, kv_heads, group, n, width), as (batch, heads, n, width)."""
    return x.flatten(1, 2) if x.ndim == 5 else x


def _sdpa(problem: Problem, backend: str | None = None) -> Callable[..., Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    grouped = {"enable_gqa": True} if problem.kv_heads is not None else {}

    def attend(query: Any, key: Any, value: Any) -> Any:
        arrays = (_flat(x) for x in (query, key, value))
        return scaled_dot_product_attention(*arrays, is_causal=problem.is_causal, **grouped)

    if backend is None:
        return attend
    members = {name: number for number, name in BACKENDS.items()}
    chosen = SDPBackend(members[backend])

    def forced(query: Any, key: Any, value: Any) -> Any:
        with sdpa_kernel(chosen):
            return attend(query, key, value)

    return forced


def flex(problem: Problem, arrays: Arrays) -> Iterator[Entry]:
    """Yield FlexAttention, compiled; with the mask as blocks where it is causal."""

    @functools.cache
    def compiled() -> Callable[..., Any]:
        if problem.backward and problem.device == "cpu":
            raise NotImplementedError("PyTorch compiles the backward pass for CUDA alone")
        if reason := flex_problem(problem.device):
            raise RuntimeError(reason)
        return _compile_flex(problem)

    def attend(query: Any, key: Any, value: Any) -> Any:
        return compiled()(*(_flat(x) for x in (query, key, value)))

    yield Entry({"implementation": FLEX, "library": "torch"}, call(attend, arrays.of("torch")))


def _compile_flex(problem: Problem) -> Callable[..., Any]:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    options: dict[str, Any] = {"enable_gqa": True} if problem.kv_heads is not None else {}
    if problem.is_causal:
        n = problem.n
        rule = lambda b, h, i, j: j <= i  # noqa: E731
        options["block_mask"] = create_block_mask(rule, None, None, n, n, device=problem.device)
    torch.compiler.reset()  # it refuses to compile one function for more than eight sizes
    # a full graph is an error where it cannot be compiled, not the slow form with a warning
    return functools.partial(
        torch.compile(flex_attention, dynamic=False, fullgraph=True), **options
    )


@functools.cache
def flex_problem(device: str) -> str | None:
    """Return why FlexAttention cannot be compiled here, or None; another process tries it."""
    code = (
        "import torch; from torch.nn.attention.flex_attention import flex_attention; "
        f"x = torch.ones(1, 1, 128, 64, device={device!r}); "
        "torch.compile(flex_attention, dynamic=False, fullgraph=True)(x, x, x)"
    )
    command = [sys.executable, "-c", code]
    seconds = FLEX_SECONDS[device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"FlexAttention is not compiled after {seconds} s"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return None if done.returncode == 0 else (lines or ["no message"])[-1]


# Peers that want (batch, n, heads, width)


def others(problem: Problem, arrays: Arrays, only: Collection[str] = ()) -> Iterator[Entry]:
    """Yield those of JAX, xformers and flash-attn that are installed and take such arrays.

    On a GPU JAX is among them only if `only` names it, since it takes memory of its own.
    """
    half = problem.dtype in {"float16", "bfloat16"}
    if importlib.util.find_spec("jax") and not half and (problem.device == "cpu" or JAX in only):
        yield Entry({"implementation": JAX, "library": "jax"}, _jax(problem, arrays), _jax_back)
    if problem.device != "cuda" or problem.kv_heads is not None:
        return
    for name, package, make in (
        ("xformers", "xformers", _xformers),
        ("flash-attn", "flash_attn", _flash_attn),
    ):
        if importlib.util.find_spec(package) and half:
            given = arrays.of("torch")
            given = {key: x.transpose(1, 2).contiguous() for key, x in given.items()}
            about = {"implementation": name, "library": "torch"}
            yield Entry(about, call(make(problem), given), lambda x: x.transpose(1, 2))


def _xformers(problem: Problem) -> Callable[..., Any]:
    def attend(query: Any, key: Any, value: Any) -> Any:
        from xformers import ops

        bias = ops.LowerTriangularMask() if problem.is_causal else None
        return ops.memory_efficient_attention(query, key, value, attn_bias=bias)

    return attend


def _flash_attn(problem: Problem) -> Callable[..., Any]:
    def attend(query: Any, key: Any, value: Any) -> Any:
        from flash_attn import flash_attn_func

        return flash_attn_func(query, key, value, causal=problem.is_causal)

    return attend


def _jax(problem: Problem, arrays: Arrays) -> Run:
    """Return the call; its arrays are placed at the first one."""

    @functools.cache
    def placed() -> Run:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else 75 % of the memory
        import jax

        given = {
            name: jax.device_put(np.swapaxes(x.reshape(problem.batch, -1, *x.shape[-2:]), 1, 2))
            for name, x in arrays.drawn.items()
        }

        @jax.jit
        def forward(query: Any, key: Any, value: Any) -> Any:
            return jax.nn.dot_product_attention(query, key, value, is_causal=problem.is_causal)

        @jax.jit
        def both(query: Any, key: Any, value: Any, grad: Any) -> tuple[Any, ...]:
            output, pull_back = jax.vjp(forward, query, key, value)
            return output, *pull_back(grad)

        function = both if problem.backward else forward
        return lambda: jax.block_until_ready(function(**given))

    return lambda: placed()()


def _jax_back(x: Any) -> np.ndarray:
    return np.swapaxes(np.asarray(x), 1, 2)
