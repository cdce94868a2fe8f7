r"""The residual connection: what a sublayer makes of its input is added to it.

.. math:: \text{pre-norm: } x + f(\operatorname{norm}(x)), \qquad
          \text{post-norm: } \operatorname{norm}(x + f(x))

Some models also normalise f(x) before it is added.
"""

import sys
from collections.abc import Callable

from attnbook.arrays.array import Array, array_namespace, dtype_name
from attnbook.normalization.normalization import NORMALIZED, NormWeights

ORDERS = ("pre", "post")


def residual(
    x: Array,
    sublayer: Callable[[Array], Array],
    norm: NormWeights,
    order: str,
    drop: Callable[[Array], Array] | None,
    before_sum: NormWeights | None = None,
) -> Array:
    """Add to `x` what `sublayer` makes of it, normalised by `before_sum` if there is one."""
    y = sublayer(NORMALIZED[type(norm)](x, norm) if order == "pre" else x)
    y = y if before_sum is None else NORMALIZED[type(before_sum)](y, before_sum)
    total = x + (y if drop is None else drop(y))
    if str(x.dtype).endswith(("float16", "f2")):
        check_overflow(x, total)
    return total if order == "pre" else NORMALIZED[type(norm)](total, norm)


def check_overflow(x: Array, total: Array) -> None:
    """Raise where finite numbers of float16 became infinite in a sum.

    Some models, T5 among them, have a residual stream beyond 65504, the largest number of float16,
    and the next normalisation would turn an infinity into NaN. Hugging Face clamps the stream of T5
    there, which changes the output without a word. Inside `torch.compile` and `vmap`, where no
    number can be read, nothing is checked.
    """
    if dtype_name(x.dtype) == "bfloat16" or _all_finite(total) or not _all_finite(x):
        return
    raise ValueError(
        "x must keep the residual stream within float16, which ends at 65504, "
        "got an overflow in a sublayer; compute in bfloat16 or float32"
    )


def _all_finite(x: Array) -> bool:
    """Return whether all numbers are finite, and True where they cannot be read."""
    torch = sys.modules.get("torch")
    if torch and torch.compiler.is_compiling():  # reading a number would cut the graph in two
        return True
    xp = array_namespace(x)
    try:
        return bool(xp.all(xp.isfinite(x)))
    except RuntimeError:  # PyTorch's, in vmap and on the meta device
        return True
