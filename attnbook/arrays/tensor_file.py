"""Files of named arrays in safetensors: written at once or not at all, and checked when read."""

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attnbook.arrays.arguments import check_path
from attnbook.arrays.array import Array, dtype_name
from attnbook.arrays.move import move

try:
    import safetensors
    import safetensors.numpy
except ImportError as error:
    raise ImportError("attnbook.training needs safetensors: pip install safetensors") from error

VERSION = 1
"""Of the layout of these files; a file of another version is refused."""

FOREIGN = {
    b"PK\x03\x04": "a ZIP archive, such as torch.save or numpy.savez writes",
    b"\x80": "a pickle, which can run any code when it is read",
    b"\x93NUMPY": "a NumPy array",
    b"\x89HDF": "an HDF5 file",
}
"""How other files begin, to say what was found."""


def write(path: "str | os.PathLike", kind: str, arrays: dict[str, Array], content: Any) -> None:
    """Write `arrays` and `content`, which JSON can hold, to `path`.

    The file is written beside `path` under a name of its own, forced to the disk and renamed. So
    `path` holds all of the old file or all of the new one at every moment, and several processes
    may write to one path: the last to finish wins. A process that is killed meanwhile may leave
    its unfinished `path`.….partial behind, which nothing reads.
    """
    path = check_path("path", path)
    stored, narrow = {}, []
    for name, x in arrays.items():
        if dtype_name(x.dtype) == "bfloat16":  # NumPy has none; float32 holds each exactly
            narrow.append(name)
        if isinstance(x, np.ndarray):
            x = x.astype(x.dtype.newbyteorder("="))
        stored[name] = np.ascontiguousarray(move(x, "numpy")).reshape(tuple(x.shape))
    text = json.dumps({"bfloat16": narrow, "content": content}, sort_keys=True)
    metadata = {
        "format": f"attnbook {kind}",
        "version": str(VERSION),
        "content": text,
        "sha256": _digest(stored, text),
    }
    _write_whole(path, safetensors.numpy.save(stored, metadata))


def read(path: "str | os.PathLike", *kinds: str) -> tuple[str, dict[str, np.ndarray], set, Any]:
    """Return what `write` wrote: kind, arrays, names of those in bfloat16, and content.

    Raises ValueError if the file is damaged or is none of `kinds`, and FileNotFoundError if there
    is none.
    """
    data = check_path("path", path).read_bytes()
    expected = " or ".join(f"attnbook {kind}" for kind in kinds)
    with describing(path, expected):
        metadata = _metadata(data)
        name = metadata.get("format", "")
        if not name.startswith("attnbook "):
            keys = ", ".join(sorted(metadata)) or "none"
            raise ValueError(f"a safetensors file of something else (metadata: {keys:.80})")
        if metadata.get("version") != str(VERSION):
            raise ValueError(f"version {metadata.get('version')} of its format, not {VERSION}")
        try:
            arrays = safetensors.numpy.load(data)
        except (safetensors.SafetensorError, KeyError) as error:
            raise ValueError(f"a damaged file: {error}") from error
        text = metadata.get("content", "")
        if _digest(arrays, text) != metadata.get("sha256"):
            raise ValueError("a damaged file: its numbers do not have the stored checksum")
        kind = name.removeprefix("attnbook ")
        if kind not in kinds:
            raise ValueError(f"attnbook {kind}")
        loaded = json.loads(text)
        return kind, arrays, set(loaded["bfloat16"]), loaded["content"]


@contextlib.contextmanager
def describing(path: "str | os.PathLike", expected: str) -> Iterator[None]:
    """Name the file and what it should be in every error that its content makes within."""
    try:
        yield
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{os.fspath(path)} must hold {expected}, got {error}") from error


def to_library(x: np.ndarray, library: str, *, narrow: bool) -> Array:
    """Return `x` in `library`; in bfloat16 if it was so and the library knows that dtype."""
    return move(x, library, dtype="bfloat16" if narrow and library == "torch" else None)


def _metadata(data: bytes) -> dict[str, str]:
    """Return the metadata of a safetensors file, or raise ValueError that says what it is."""
    if not data:
        raise ValueError("an empty file")
    for start, found in FOREIGN.items():
        # ours begins with the length of its header, which may look like anything, and then "{"
        if data.startswith(start) and data[8:9] != b"{":
            raise ValueError(found)
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 + length:
        raise ValueError(
            f"{len(data)} bytes that are no safetensors file, or the beginning of a longer one"
        )
    try:
        header = json.loads(data[8 : 8 + length])
        metadata = header.get("__metadata__", {})
        return {str(name): str(value) for name, value in metadata.items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"a file whose header cannot be read: {error}") from error


def _digest(arrays: dict[str, np.ndarray], text: str) -> str:
    """Return the SHA-256 of all that `write` writes: names, dtypes, shapes, numbers and text."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        x = arrays[name]
        digest.update(json.dumps([name, x.dtype.name, list(x.shape)]).encode())
        digest.update(x.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _write_whole(path: Path, data: bytes) -> None:
    partial = path.with_name(f"{path.name}.{secrets.token_hex(6)}.partial")
    try:
        with open(partial, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:  # a full disk, an interrupt: the old file stays, nothing else is left
        partial.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the new name is on the disk only when its directory is
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
