"""The GPU side of the sketches: CuPy, the kernels of `index.cu` and `sketch.cu`, and the hashes.

CuPy is imported when the first object is made. The kernels are compiled when the first one is
launched, once in a process (see `attnbook.compilers.cuda`).
"""

from collections.abc import Iterable
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.array import Array
from attnbook.compilers.cuda import NULL, HostFlag, Source, import_cupy, name_of
from attnbook.hashing.simhash import SimHash
from attnbook.hashing.stable_hash import StableHash

TYPES = {
    "float16": "float16, float",
    "bfloat16": "bfloat16, float",
    "float32": "float, float",
    "float64": "double, double",
}
"""For each dtype, the type of the vectors and the type to compute in."""

TEMPLATES = (
    *(f"attend<{types}>" for types in TYPES.values()),
    *(f"signatures_of<{wide}>" for wide in ("float", "double")),
)
"""The kernels that are templates, with the types that they are used for."""

KERNELS = Source(("compilers/numbers.cu", "sketch/index.cu", "sketch/sketch.cu"), TEMPLATES)

launch = KERNELS.launch

POINTS_AT_ONCE = 2**22
"""How many points are projected together; a million on 80 directions take 320 MB."""

THREADS = 256
MOST_BLOCKS = 2**20  # the kernels stride where there is more to do


def launch_for_each(cupy: Any, name: str, n: int, args: tuple) -> None:
    """Run a kernel with a thread for each of `n` things."""
    if n:
        launch(cupy, name, min(-(-n // THREADS), MOST_BLOCKS), THREADS, args)


class CudaHash:
    """A `SimHash` or `StableHash` on the GPU. Signatures take a matrix product and one kernel.

    The arrays of `hash`, of any library, are copied to the current GPU. `dtype` is that of the
    vectors to come; half precision is computed in float32. It has no `probes`: a query has one
    signature in each table. Raises ImportError without CuPy, and TypeError if `hash` is of another
    class or `dtype` is unknown.
    """

    def __init__(self, hash: SimHash | StableHash, dtype: str = "float32"):
        if not isinstance(hash, (SimHash, StableHash)):
            raise TypeError(f"hash must be a SimHash or StableHash, got {type(hash).__name__}")
        self.wide = wide_dtype("dtype", dtype)
        self._cupy = cupy = import_cupy()
        host = hash.to("numpy")
        self.n_tables, self.n_projections, self.d = host.directions.shape
        flat = np.reshape(np.asarray(host.directions), (-1, self.d))
        self.directions = cupy.asarray(flat.astype(self.wide))
        if isinstance(host, StableHash):
            self.offsets = cupy.asarray(np.asarray(host.offsets).astype(self.wide))
            self.width = float(host.width)
        else:
            self.offsets, self.width = NULL, 1.0
        self.multipliers = cupy.asarray(host.multipliers)

    @property
    def is_of_angles(self) -> bool:
        """Whether it is a SimHash."""
        return self.offsets is NULL

    def signatures(self, x: Annotated[Array, "n d"]) -> Annotated[Array, "n n_tables"]:
        """Return `hash.signatures(x)`. Codes within rounding of an edge or a plane may differ.

        Raises TypeError or ValueError if `x` is no such CuPy array, if it holds NaN or infinity, or
        if it is so large that a code does not fit an int64.
        """
        cupy = self._cupy
        check_cupy("x", x, cupy, ("n", self.d), TYPES)
        if wide_dtype("x", name_of(x.dtype)) != self.wide:
            raise TypeError(
                f"x must be of the precision that the hash was made for, {self.wide}, "
                f"got {name_of(x.dtype)}"
            )
        signatures = cupy.empty((x.shape[0], self.n_tables), dtype=np.int64)
        bad = HostFlag(cupy)
        name = "signatures_of<double>" if self.wide == "float64" else "signatures_of<float>"
        for start in range(0, x.shape[0], POINTS_AT_ONCE):
            points = x[start : start + POINTS_AT_ONCE].astype(self.wide, copy=False)
            along = cupy.ascontiguousarray(cupy.matmul(points, self.directions.T))
            part, n = signatures[start : start + POINTS_AT_ONCE], points.shape[0]
            args = (
                *(along, self.offsets, np.float64(self.width), self.multipliers),
                *(np.int64(n), np.int32(self.n_tables), np.int32(self.n_projections)),
                *(part, bad.pointer),
            )
            launch_for_each(cupy, name, n * self.n_tables, args)
        if bad.is_set():
            raise ValueError(
                "x must be finite and within 2**62 widths of 0 along every direction, "
                "got a point that is not"
            )
        return signatures


def wide_dtype(name: str, dtype: str) -> str:
    """Return the dtype to compute in for `dtype`, or raise TypeError."""
    if dtype not in TYPES:
        raise TypeError(f"{name} must have a dtype among {', '.join(TYPES)}, got {dtype}")
    return "float64" if dtype == "float64" else "float32"


def check_cupy(name: str, x: Array, cupy: Any, shape: tuple, dtypes: Iterable[str]) -> None:
    """Raise unless `x` is a CuPy array of one of `dtypes` and of `shape`, a str for any size."""
    if not isinstance(x, cupy.ndarray):
        raise TypeError(f"{name} must be a CuPy array, got {type(x).__name__}")
    fits = [isinstance(n, str) or n == m for n, m in zip(shape, x.shape, strict=False)]
    if x.ndim != len(shape) or not all(fits):
        raise ValueError(f"{name} must have shape ({shape[0]}, {shape[1]}), got {tuple(x.shape)}")
    if name_of(x.dtype) not in dtypes:
        raise TypeError(f"{name} must have dtype {' or '.join(dtypes)}, got {name_of(x.dtype)}")
