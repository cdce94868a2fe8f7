"""Reading safetensors, the format of most published weights, with NumPy alone."""

import json
import os

import numpy as np

from attnbook.arrays.arguments import check_path

DTYPES = {
    **{"BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "<u2", "I16": "<i2", "BF16": "<u2"},
    **{"U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8"},
    **{"F16": "<f2", "F32": "<f4", "F64": "<f8"},
}
"""The dtypes of the format, in NumPy; bfloat16 is the upper half of a float32."""


def read_safetensors(path: "str | os.PathLike") -> dict[str, np.ndarray]:
    """Return the arrays of a safetensors file by name.

    The file is a number of 8 bytes, a header in JSON of that many bytes, which says name, dtype,
    shape and place of each array, and the numbers of all arrays. It holds no code.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    dict of str to array
        Read-only, and mapped from the file: what nobody looks at is not read. bfloat16 becomes
        float32, which holds each of its numbers exactly.

    Raises
    ------
    TypeError
        If `path` is neither.
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is damaged, or of another format.

    References
    ----------
    https://huggingface.co/docs/safetensors
    """
    path = check_path("path", path)
    size = path.stat().st_size
    try:
        stored = np.asarray(np.memmap(path, np.uint8, "r")) if size else np.empty(0, np.uint8)
        length = int.from_bytes(stored[:8].tobytes(), "little")
        if size < 8 + length:
            raise ValueError(f"{size} bytes, too few for its header")
        header = json.loads(stored[8 : 8 + length].tobytes())
        header.pop("__metadata__", None)
        return {name: _array(stored[8 + length :], **entry) for name, entry in header.items()}
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        message = f"{path} must be a whole file of safetensors, got {error}"
        raise ValueError(message) from error


def _array(numbers, dtype, shape, data_offsets):
    first, last = data_offsets
    if not 0 <= first <= last <= len(numbers):
        raise ValueError(f"an array at {first} to {last} of {len(numbers)} bytes")
    if any(not isinstance(size, int) or size < 0 for size in shape):
        raise ValueError(f"an array of shape {shape}")
    x = numbers[first:last].view(DTYPES[dtype]).reshape(shape)
    if dtype == "BF16":
        x = (x.astype(np.uint32) << 16).view(np.float32)
        x.flags.writeable = False
    return x
