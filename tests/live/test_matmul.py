"""The machine code for products in a page was built from the source beside it."""

import hashlib
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

MATMUL = Path(__file__).parents[2] / "book" / "live" / "matmul"


def test_the_machine_code_is_of_this_source():
    """`build.sh` writes the digests, so a source that was edited since does not fit them."""
    lines = (MATMUL / "loops.sha256").read_text(encoding="utf-8").splitlines()
    digests = {name: digest for digest, name in map(str.split, lines)}
    assert set(digests) == {"build.sh", "loops.c", "loops.so"}
    for name, digest in digests.items():
        assert hashlib.sha256((MATMUL / name).read_bytes()).hexdigest() == digest, name


def test_the_compiler_gives_the_same_machine_code(tmp_path):
    try:
        version = metadata.version("ziglang")
    except metadata.PackageNotFoundError:
        version = "none"
    if version not in (MATMUL / "build.sh").read_text(encoding="utf-8"):
        pytest.skip(f"needs the ziglang of build.sh, found {version}")
    for name in ("build.sh", "loops.c"):
        shutil.copy(MATMUL / name, tmp_path)
    (tmp_path / "python3").symlink_to(sys.executable)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    subprocess.run(["sh", "build.sh"], cwd=tmp_path, check=True, env=os.environ | {"PATH": path})
    assert (tmp_path / "loops.so").read_bytes() == (MATMUL / "loops.so").read_bytes()
