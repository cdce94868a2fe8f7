"""The folder of a downloaded model: its config and its tensors, whole or in shards."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attnbook.arrays.arguments import check_path
from attnbook.arrays.move import move
from attnbook.arrays.weights import some
from attnbook.models.hugging_face import from_transformers
from attnbook.models.safetensors_file import read_safetensors

FILES = ("model.safetensors", "model.safetensors.index.json")
"""What can hold the tensors; the first that is there is read."""


def from_folder(
    path: "str | os.PathLike",
    library: str | None = None,
    *,
    device: Any = None,
    dtype: str | None = None,
) -> Any:
    """Return the weights of a model of the Hugging Face Hub that you have downloaded.

    Parameters
    ----------
    path : str or path
        The folder, which holds ``config.json`` and either ``model.safetensors`` or the shards and
        their index, ``model.safetensors.index.json``. Nothing is downloaded.
    library, device, dtype : optional
        Where the arrays belong, as in `attnbook.move`. By default, they are NumPy arrays in the
        dtype of the file, and bfloat16 becomes float32, which holds each of its numbers exactly.

    Returns
    -------
    TransformerWeights, or BertWeights for BERT
        As `from_transformers` returns.

    Raises
    ------
    TypeError
        If `path` is neither a str nor a path.
    FileNotFoundError
        If there is no such folder, or a file or shard is missing.
    ValueError
        If a file is damaged, or as `from_transformers` and `attnbook.move` raise.

    See Also
    --------
    from_transformers : the architectures that can be read.

    Notes
    -----
    Tensors are moved one after the other. Those that need no copy are memory-mapped, so that only
    what you use is read. A dtype makes a model of several dtypes one of a single dtype.
    Cost: the cost of reading the files.

    Examples
    --------
    >>> import json, tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from safetensors.numpy import save_file
    >>> config = {"model_type": "gpt2", "vocab_size": 5, "n_positions": 7, "n_embd": 4}
    >>> config |= {"n_head": 2, "n_layer": 0}
    >>> tensors = {"wte.weight": np.ones((5, 4)), "wpe.weight": np.ones((7, 4))}
    >>> tensors |= {"ln_f.weight": np.ones(4), "ln_f.bias": np.zeros(4)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file(tensors, Path(folder) / "model.safetensors")
    ...     _ = (Path(folder) / "config.json").write_text(json.dumps(config))
    ...     weights = from_folder(folder, dtype="float32")
    >>> weights.target_positions.dtype
    dtype('float32')
    """
    path = check_path("path", path)
    config = _read(path / "config.json")
    found = next((path / file for file in FILES if (path / file).is_file()), None)
    if found is None:
        raise FileNotFoundError(
            f"path must be a folder with {' or '.join(FILES)}, got {path} with "
            f"{some(sorted(file.name for file in path.iterdir()))}"
        )
    return from_transformers(_Moved(read_safetensors(found), library, device, dtype), config)


class _Moved(Mapping):
    """The arrays of a file by name, each moved when it is asked for."""

    def __init__(self, stored: Mapping[str, Any], *home: Any):
        self._stored, self._home = stored, home

    def __len__(self) -> int:
        return len(self._stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def __getitem__(self, name: str) -> Any:
        x, (library, device, dtype) = self._stored[name], self._home
        return move(x, library, device=device, dtype=dtype if x.dtype.kind == "f" else None)


def _read(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"path must be a folder with config.json, got {path.parent}")
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} must be JSON, got {error}") from error
