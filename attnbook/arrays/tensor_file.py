"""Files of named arrays in safetensors: written at once or not at all, and checked when read."""

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attnbook.arrays.arguments import check_path
from attnbook.arrays.array import Array, dtype_name
from attnbook.arrays.move import move
from attnbook.arrays.safetensors_header import header_of

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

try:
    import safetensors
    import safetensors.numpy
except ImportError as error:
    raise ImportError("attnbook.training needs safetensors: pip install safetensors") from error

VERSION = 1
"""Of the layout of these files; a file of another version is refused."""


def write(path: "str | os.PathLike", kind: str, arrays: dict[str, Array], content: Any) -> None:
    """Write `arrays` and `content`, which JSON can hold, to `path`.

    The file is written beside `path` under a name of its own, forced to the disk and renamed. So
    `path` holds all of the old file or all of the new one at every moment, and several processes
    may write to one path: the last to finish wins. A process that is killed meanwhile may leave
    its unfinished `path`.….partial behind, which nothing reads and the next `write` removes.
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
        _, metadata, _ = header_of(data)
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


def _digest(arrays: dict[str, np.ndarray], text: str) -> str:
    """Return the SHA-256 of all that `write` writes: names, dtypes, shapes, numbers and text."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        x = arrays[name]
        digest.update(json.dumps([name, x.dtype.name, list(x.shape)]).encode())
        digest.update(x.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _write_whole(path: Path, data: bytes) -> None:
    _remove_abandoned(path)
    file = _new_partial(path)
    partial = Path(file.name)
    try:
        with file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if fcntl:  # renamed while it is locked, so that nobody takes it for an abandoned one
                os.replace(partial, path)
        if not fcntl:
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


def _new_partial(path):
    """Return a new file beside `path`, open and locked for as long as its writer lives."""
    while True:
        name = f"{path.name}.{secrets.token_hex(6)}.partial"
        file = open(path.with_name(name), "xb")  # noqa: SIM115 (the caller closes it)
        if _lock(file, wait=True) is not True or os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # another writer took it for an abandoned one before it was locked


def _remove_abandoned(path):
    """Remove what killed writers to `path` have left: the partial files that nobody has locked."""
    name = re.compile(re.escape(path.name) + r"\.[0-9a-f]{12}\.partial")
    with contextlib.suppress(OSError):  # such as a folder that cannot be listed
        for other in [x for x in path.parent.iterdir() if name.fullmatch(x.name)]:
            with contextlib.suppress(OSError), open(other, "rb") as file:
                if _lock(file, wait=False):
                    other.unlink()


def _lock(file, wait):
    """Return whether the lock of `file` is ours now; None where the system has no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # another has it, or the file system has no locks
        return False
    return True
