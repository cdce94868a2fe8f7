"""The same attention at increasing speed: a ladder of implementations, chosen by name.

Each file holds one implementation and names the one with which it must agree. All have the same
signature:

``attention(query, key, value, mask, bias, scale, is_causal)``

takes arrays that `attnbook.attention` has checked, in the dtype of the caller, and returns the
output in that dtype. If a `Kernel` is `trainable`, its file also has two functions that store no
matrix of weights. `attnbook.attention_vjp` and PyTorch's autograd call them:

``forward(…) -> output, log_total`` and
``backward(query, key, value, mask, bias, scale, is_causal, output, log_total, grad_output)``

where ``log_total``, of shape (..., n_q, 1), is the logarithm of each row's sum of exponentials
(`tiled` keeps it as two numbers).
Only the reference and `Recorder` are imported at once; the others are imported when they are used.

A `masking.Rule` reaches the kernels in `READ_RANGES` as `arrays.intervals.Intervals` in the place
of the mask, and all others as the dense mask.

Instead of a name, you can pass ``impl=`` a function of your own with the signature of
``attention``. It is called with positional arguments. The mask is None or boolean, True = may
attend, and it broadcasts to the scores; ``is_causal`` says whether later keys are hidden, too,
where the last query is aligned with the last key. Multi-head attention makes one call for all
heads, (..., h, n, d), in which grouped keys and values are repeated. PyTorch's autograd
differentiates whatever the function does. For example, `Recorder` is such a function, which keeps
the attention weights. If the weights of the heads have a cap of their scores, the function also
gets ``cap=``, a float.
"""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from attnbook.arrays.arguments import check_float, check_same_home
from attnbook.arrays.array import Array, array_namespace, broadcast_shapes, dtype_name, library
from attnbook.arrays.intervals import Intervals
from attnbook.arrays.move import how_to_install
from attnbook.kernels import naive
from attnbook.kernels.recorder import Recorder as Recorder

REFERENCE = "reference"

Impl = str | Callable[..., Array]
"""What ``impl=`` takes: a name, or a function of your own with the signature above."""


@dataclass(frozen=True)
class Kernel:
    """One rung of the ladder.

    Attributes
    ----------
    name : str
        Its name for ``impl=``, which is also the name of its file.
    takes : tuple of str
        Libraries whose arrays it accepts, such as ``"numpy"``; empty for every library.
    device : str
        Where these arrays must be: ``"cpu"`` or ``"cuda"``; empty for every device.
    dtypes : tuple of str
        Names of the dtypes that it accepts; empty for every real floating dtype.
    needs : str
        The package that it imports in addition to NumPy, or empty.
    reference : str
        The implementation with which it must agree.
    about : str
        What is new on this rung.
    trainable : bool
        Whether it has a backward pass, its own or that of another rung.
    """

    name: str
    takes: tuple[str, ...] = ()
    device: str = ""
    dtypes: tuple[str, ...] = ()
    needs: str = ""
    reference: str = REFERENCE
    about: str = ""
    trainable: bool = False

    def load(self) -> ModuleType:
        """Return the module, or raise an ImportError that says how to install what it needs."""
        try:
            return importlib.import_module(f"attnbook.kernels.{self.name}")
        except ImportError as error:
            if not self.needs:
                raise
            raise ImportError(
                f"impl={self.name!r} needs {self.needs}: {error}; {how_to_install(self.needs)}"
            ) from error


_SINGLE = ("float16", "bfloat16", "float32")
_CPU = ("numpy", "torch")

LADDER = (
    Kernel("naive", about="all scores at once, a new array for every step"),
    Kernel("in_place", ("numpy",), "cpu", about="all scores at once, in one array"),
    Kernel("tiled", about="a tile at a time with an online softmax: O(n) memory", trainable=True),
    Kernel("threads", ("numpy",), "cpu", (), "threadpoolctl", "tiled", "tiles on all cores"),
    Kernel("packed", _CPU, "cpu", _SINGLE, "numba", "tiled", "compiled tiles in registers", True),
    Kernel("cupy_tiled", ("cupy",), "cuda", _SINGLE, "cupy", "tiled", "tiles in shared memory"),
    Kernel("triton", ("torch",), "cuda", _SINGLE, "triton", "tiled", "Tensor Cores (16 bit)", True),
)
"""The implementations, from the first one, which is the reference, to the fastest per device."""

READ_RANGES = ("tiled", "packed", "cupy_tiled", "triton")
"""Those that read the ranges of keys of a rule."""

READ_PAGES = ("packed", "triton")
"""Those that also attend to keys in pages; see `paging`."""

KERNELS = {kernel.name: kernel for kernel in LADDER}
IMPLS = (REFERENCE, *KERNELS)
"""The names that ``impl=`` accepts."""


def check_impl(impl: Impl) -> None:
    """Raise unless `impl` is a name of an implementation or a function."""
    if not isinstance(impl, str) and not callable(impl):
        raise TypeError(f"impl must be a str or a function, got {type(impl).__name__}")
    if isinstance(impl, str) and impl not in IMPLS:
        raise ValueError(f"impl must be one of {', '.join(IMPLS)}, got {impl!r}")


def name_of(impl: Impl) -> str:
    """Return how a message names `impl`."""
    return repr(impl) if isinstance(impl, str) else getattr(impl, "__name__", repr(impl))


def kernel_for(impl: str, query: Array) -> ModuleType:
    """Return the module of `impl`, or raise if it cannot take arrays such as `query`."""
    kernel = KERNELS[impl]
    ours, kind = library(query), _kind(query)
    module = None
    if kernel.takes and ours not in kernel.takes:
        raise TypeError(
            f"query must be an array of {' or '.join(kernel.takes)} for impl={impl!r}, got {ours}"
        )
    if kernel.device and kind != kernel.device:
        module = kernel.load()
        if kind not in getattr(module, "DEVICES", (kernel.device,)):  # Triton's interpreter
            raise ValueError(
                f"query must be on device {kernel.device!r} for impl={impl!r}, got {kind!r}"
            )
    name = dtype_name(query.dtype)
    if kernel.dtypes and name not in kernel.dtypes:
        raise TypeError(
            f"query must have dtype {', '.join(kernel.dtypes[:-1])} or {kernel.dtypes[-1]} "
            f"for impl={impl!r}, got {name}"
        )
    return module or kernel.load()


def _kind(x: Array) -> str:
    """Return the kind of device that holds `x`, such as ``"cpu"``."""
    ours = library(x)
    if ours == "cupy":
        return "cuda"
    return x.device.type if ours == "torch" else "cpu"


def attention(
    impl: Impl,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    bias: Array | None,
    scale: float,
    is_causal: bool,
    cap: float | None = None,
) -> Array:
    """Return the output of `impl` for checked arrays; differentiable for PyTorch's tensors."""
    if isinstance(mask, Intervals) and impl not in READ_RANGES:
        mask = mask.dense(query)
    if impl == REFERENCE or (cap is not None and impl == "naive"):
        return naive.attention(query, key, value, mask, bias, scale, is_causal, cap)
    if callable(impl):
        return _attention_by(impl, query, key, value, mask, bias, scale, is_causal, cap)
    if cap is not None:
        raise ValueError(
            f"impl must be {REFERENCE!r} or a function, since the weights have cap={cap}, "
            f"got {impl!r}"
        )
    if _is_foreign(query):
        native = *_native(query, key, value, mask, bias), scale, is_causal
        return array_namespace(query).astype(attention(impl, *native), query.dtype)
    arguments = (query, key, value, mask, bias, scale, is_causal)
    if KERNELS[impl].needs and library(query) == "torch":
        from attnbook.kernels.autograd import untraced

        return untraced(_attention, impl, *arguments)
    return _attention(impl, *arguments)


def _attention(impl: str, query: Any, *others: Any) -> Array:
    module = kernel_for(impl, query)
    if KERNELS[impl].trainable and library(query) == "torch":
        from attnbook.kernels.autograd import differentiable

        return differentiable(module, query, *others)
    return module.attention(query, *others)


def _attention_by(
    function: Callable[..., Array],
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    bias: Array | None,
    scale: float,
    is_causal: bool,
    cap: float | None,
) -> Array:
    """Return what a function of the caller makes of checked arrays, or raise if it does not fit."""
    arguments = (query, key, value, mask, bias, scale, is_causal)
    options = {} if cap is None else {"cap": cap}
    try:
        output = function(*arguments, **options)
    except TypeError as error:
        if _takes(function, arguments, options):  # it is the caller's own
            raise
        too = " and cap= by name" if options else ""
        raise TypeError(
            "impl must take (query, key, value, mask, bias, scale, is_causal) by position"
            f"{too}, got {name_of(function)}: {error}"
        ) from error
    name = f"the output of {name_of(function)}"
    check_same_home(name, output, "query", query)
    check_float(name, output)
    leading = broadcast_shapes(*(tuple(x.shape[:-2]) for x in (query, key, value)))
    expected = (*(leading or ()), query.shape[-2], value.shape[-1])
    if tuple(output.shape) != expected:
        raise ValueError(
            f"impl must return the values that each query mixes, shape {expected}, "
            f"got {tuple(output.shape)} from {name_of(function)}"
        )
    return array_namespace(output).astype(output, query.dtype, copy=False)


def _takes(
    function: Callable[..., Array], arguments: tuple[Any, ...], options: dict[str, Any]
) -> bool:
    """Tell whether a function can be called with so many arguments, as far as it says so."""
    try:
        inspect.signature(function).bind(*arguments, **options)
    except (TypeError, ValueError):  # what is written in C may not say
        return False
    return True


def attention_vjp(
    impl: Impl,
    query: Array,
    key: Array,
    value: Array,
    grad_output: Array,
    mask: Array | None,
    bias: Array | None,
    scale: float,
    is_causal: bool,
) -> tuple[Array, Array, Array]:
    """Return the gradients of query, key and value by the backward pass of `impl`.

    Their leading axes may be more than those of the inputs, whose gradients are the sums over them:
    so half precision is rounded after the sum, and before it the gradients are float32.
    """
    if callable(impl):
        raise TypeError(f"impl must be a str to have a backward pass, got {name_of(impl)}")
    if _is_foreign(query):
        native = *_native(query, key, value, grad_output, mask, bias), scale, is_causal
        return attention_vjp(impl, *native)
    module = kernel_for(impl, query)
    if isinstance(mask, Intervals) and impl not in READ_RANGES:
        mask = mask.dense(query)
    if not KERNELS[impl].trainable:
        able = [kernel.name for kernel in LADDER if kernel.trainable]
        raise ValueError(
            f"impl must have a backward pass ({', '.join((REFERENCE, *able))}), got {impl!r}"
        )
    if KERNELS[impl].needs and library(query) == "torch":  # no graph: see attnbook.attention_vjp
        from attnbook.kernels.autograd import check_bias

        check_bias(impl, bias)
    arguments = (query, key, value, mask, bias, scale, is_causal)
    output, log_total = module.forward(*arguments)
    return module.backward(*arguments, output, log_total, grad_output)


def _is_foreign(x: Array) -> bool:
    """Say whether the numbers of `x` are in the byte order of another processor, as ">f4" is."""
    return not getattr(x.dtype, "isnative", True)


def _native(*arrays: Any) -> list[Any]:
    """Return arrays of NumPy in the byte order of this processor; None stays None."""
    return [
        x
        if x is None or isinstance(x, Intervals)
        else x.astype(x.dtype.newbyteorder("="), copy=False)
        for x in arrays
    ]
