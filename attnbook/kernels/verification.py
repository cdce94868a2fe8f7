"""Rungs for a GPU, compared with float64 on the very device, and what was found, kept on disk.

A rung that is written for one kind of GPU, instruction by instruction, may be right in every test
without one and wrong on it. `verify` runs a rung on the device that is here; `record` keeps the
verdict in the user's cache folder, for this device, driver and compiler and this source: after a
change of any of them it counts no more. `is_verified` asks for it.
"""

import functools
import hashlib
import importlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from attnbook.arrays.array import Array, array_namespace, sum_to_shape
from attnbook.arrays.cache import cache
from attnbook.arrays.move import attempt, import_library, move
from attnbook.kernels import KERNELS, LADDER, Kernel

TOLERANCE = {"float32": 2.0**-17, "bfloat16": 3 * 2.0**-7, "float16": 3 * 2.0**-10}
"""Of the largest number of a result. A key too many in a row of few is far outside."""

RIGHT = "right"
NOT_FINISHED = "not finished"
"""So begins the verdict on a rung from when its comparison begins until there is another."""

RUNS = 5
"""How often one call is repeated, which must give the same bits: a race rarely does."""


class Call(NamedTuple):
    """A call of attention: `batch` times 2 heads of keys, each shared by `group`."""

    n_q: int
    n_k: int
    d: int
    is_causal: bool
    group: int
    batch: int = 2


SIZES = (
    *((1, 1, 1), (37, 61, 3), (67, 37, 1), (193, 193, 3)),
    (129, 2111, 1),
    (385, 449, 3, 16),
    (67, 1091, 3, 45),
)
"""Small and odd ones, the most keys, and two with over two blocks of queries a multiprocessor.

Those two are for an H100, which has 132.

Few numbers of heads in a group: the kernels are compiled for each.
"""
CALLS = tuple(
    Call(n_q, n_k, d, is_causal, *heads)
    for n_q, n_k, *heads in SIZES
    for d in (64, 128)
    for is_causal in (False, True)
)


def names() -> tuple[str, ...]:
    """Return the rungs for a GPU whose packages are installed."""
    found = [k for k in LADDER if k.device == "cuda"]
    here = {needs for needs in {k.needs for k in found} if import_library(needs)[0] is not None}
    return tuple(k.name for k in found if k.needs in here)


def kept() -> Path:
    """Return the file of the verdicts of this user."""
    return cache() / "verified.json"


def here(name: str) -> dict[str, str]:
    """Return what a verdict on rung `name` depends on: device, driver, packages, source."""
    kernel = KERNELS[name]
    (library,) = kernel.takes
    package = importlib.import_module(library)
    versions = {x: importlib.import_module(x).__version__ for x in (library, kernel.needs)}
    if library == "torch":
        device = package.cuda.get_device_name()
        driver = f"{package.version.cuda}, {package._C._cuda_getDriverVersion()}"
    else:
        runtime = package.cuda.runtime
        device = runtime.getDeviceProperties(0)["name"].decode()
        driver = f"{runtime.runtimeGetVersion()}, {runtime.driverGetVersion()}"
    return {"device": device, "driver": driver, **versions, "source": source()}


@functools.cache
def source() -> str:
    """Return a digest of all kernels of the package and of what compiles them."""
    root = Path(__file__).parents[1]
    files = [*root.glob("kernels/**/*"), *root.glob("compilers/**/*")]
    digest = hashlib.sha256()
    for file in sorted(files):
        if file.suffix in (".py", ".cu"):
            digest.update(str(file.relative_to(root)).encode() + file.read_bytes())
    return digest.hexdigest()


def verdicts() -> dict[str, Any]:
    """Return the verdicts on disk by the name of the rung; none where the file cannot be read."""
    found, _ = attempt(lambda: json.loads(kept().read_text(encoding="utf-8")))
    return found if isinstance(found, dict) else {}


def verdict_on(name: str) -> str:
    """Return the verdict on rung `name` on this device, with this driver and source, or nothing."""
    now, problem = attempt(lambda: here(name))
    found = verdicts().get(name)
    if problem or not isinstance(found, dict):
        return ""
    verdict = str(found.get("verdict", ""))
    return verdict if found == {**now, "verdict": verdict} else ""


def is_verified(name: str) -> bool:
    """Say whether rung `name` was found right on this device, with this driver and source."""
    return verdict_on(name) == RIGHT


def record(name: str, problems: list[str]) -> None:
    """Keep the verdict on rung `name`: right, or what is wrong with it."""
    verdict = {**here(name), "verdict": "; ".join(problems) or RIGHT}
    kept().parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**verdicts(), name: verdict}, indent=1)
    kept().write_text(text + "\n", encoding="utf-8")


def verify(name: str, device: Any = "cuda", calls: tuple[Call, ...] = CALLS) -> list[str]:
    """Return what is wrong with rung `name` on the device that is here; nothing if it is right.

    Every call runs in every dtype that the rung and its library have, forward and, where it has
    one, backward, and is compared with the formula in float64, computed on the device. The last
    call is repeated and must give the same bits.
    """
    kernel, problems = KERNELS[name], []
    (library,) = kernel.takes
    xp = importlib.import_module(f"array_api_compat.{library}")
    device = device if library == "torch" else None
    for dtype in (dtype for dtype in kernel.dtypes if hasattr(xp, dtype)):
        for call in calls:
            asked = functools.partial(_wrong, kernel, call, dtype, device, call is calls[-1])
            found, error = attempt(asked)
            problems += [f"{dtype}, {call}: {text}" for text in ([error] if error else found)]
            if error:  # a device that has failed once may answer no more
                return problems
    return problems


def _wrong(kernel: Kernel, call: Call, dtype: str, device: Any, again: bool) -> list[str]:
    """Return what is wrong with one call, which is repeated if it is to be done `again`."""
    n_q, n_k, d, is_causal, group, batch = call
    rng = np.random.default_rng(n_q + n_k + d)
    of_queries, of_keys = (batch, 2, group, n_q, d), (batch, 2, 1, n_k, d)
    arrays = [
        move(rng.standard_normal(shape, "float32"), kernel.takes[0], device=device, dtype=dtype)
        for shape in (of_queries, of_keys, of_keys, of_queries)
    ]
    module = kernel.load()
    *inputs, grad = arrays
    scale = 1 / math.sqrt(d)
    rest = (None, None, scale, is_causal)
    output, log_total, *grads = exact([move(x, dtype="float64") for x in arrays], scale, is_causal)
    if not kernel.trainable:
        return _far("the output", module.attention(*inputs, *rest), output, dtype)
    made = module.forward(*inputs, *rest)
    problems = _far("the output", made[0], output, dtype)
    problems += _far("log_total", made[1], log_total, "float32")
    found = module.backward(*inputs, *rest, *made, grad)
    for what, own, other in zip(("query", "key", "value"), found, grads, strict=True):
        own = sum_to_shape(own, tuple(other.shape))
        problems += _far(f"the gradient of {what}", own, other, dtype)
    for _ in range(RUNS if again and not problems else 0):
        more = module.forward(*inputs, *rest)
        if not all(bool((x == y).all()) for x, y in zip(made, more, strict=True)):
            return [*problems, "the same call gives other bits"]
    return problems


def _far(what: str, got: Any, expected: Any, dtype: str) -> list[str]:
    """Return a sentence if a result is further from the exact one than its dtype explains."""
    got, expected = (np.asarray(move(x, "numpy", dtype="float64")) for x in (got, expected))
    finite = np.isfinite(expected)
    if (got[~finite] != expected[~finite]).any() or not np.isfinite(got[finite]).all():
        return [f"{what} is not finite where it should be, or finite where not"]
    largest = np.max(np.abs(expected), initial=1.0, where=finite)
    off = np.max(np.abs(got[finite] - expected[finite]), initial=0.0)
    if off > TOLERANCE[dtype] * largest:
        return [f"{what} is {off:.2e} off, and the largest of the exact numbers is {largest:.2g}"]
    return []


def exact(arrays: Sequence[Array], scale: float, is_causal: bool) -> tuple[Array, ...]:
    """Return output, log Σ exp(score) and the three gradients, by the formula.

    `arrays` of any library are query, key, value and the gradient of the output, in float64, with
    one head of keys and values for the heads of queries along the third axis from the right.
    """
    query, key, value, grad = arrays
    xp = array_namespace(query)
    where = {"device": array_api_compat.device(query)}
    scores = query @ xp.matrix_transpose(key) * scale
    n_q, n_k = scores.shape[-2:]
    last = xp.arange(n_q, **where)[:, None] + (n_k - n_q if is_causal else n_k)
    scores = xp.where(xp.arange(n_k, **where) <= last, scores, -xp.inf)
    top = xp.max(scores, axis=-1, keepdims=True)
    weights = xp.exp(scores - xp.where(xp.isfinite(top), top, 0.0))
    total = xp.sum(weights, axis=-1, keepdims=True)
    divisor = xp.where(total == 0, 1.0, total)
    log_total = xp.log(divisor) + top
    weights = weights / divisor
    output = weights @ value
    of_weights = grad @ xp.matrix_transpose(value)
    mean = xp.sum(grad * output, axis=-1, keepdims=True)
    of_scores = weights * (of_weights - mean) * scale
    of_key = xp.sum(xp.matrix_transpose(of_scores) @ query, axis=-3, keepdims=True)
    of_value = xp.sum(xp.matrix_transpose(weights) @ grad, axis=-3, keepdims=True)
    return output, log_total, of_scores @ key, of_key, of_value
