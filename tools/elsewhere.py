"""Run the tests as other processors would: `python tools/elsewhere.py [NAME ...] [-- PYTEST ...]`.

Without options of pytest these are all tests, then the cells of all chapters.

What a library computes depends on the instructions that it finds and on the number of its threads:
sums are taken in another order, and the last digits differ. Here each setting hides instructions
from NumPy, its BLAS, PyTorch and Numba. A test that holds in all of them holds on the machine of
whoever reads the book.
"""

import argparse
import contextlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from numpy._core import _multiarray_umath

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ["single_head", "multi_head", "masking", "normalization", "transformers", "decoding"]
ROOMS += ["hashing", "sketch", "kernels"]
DISPATCHED = _multiarray_umath.__cpu_dispatch__  # instructions that NumPy can do without
WIDE = [name for name in DISPATCHED if "AVX512" in name or name.endswith("V4")]

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
SETTINGS = {
    # a processor without AVX: what every library falls back to
    "oldest": ONE_THREAD
    | {
        "OPENBLAS_CORETYPE": "Nehalem",
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_CBWR": "COMPATIBLE",
        "NPY_DISABLE_CPU_FEATURES": " ".join(DISPATCHED),
        "NUMBA_CPU_NAME": "generic",
    },
    # one with AVX2 and without AVX-512, as most have
    "avx2": ONE_THREAD
    | {
        "OPENBLAS_CORETYPE": "Haswell",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_CBWR": "AVX2",
        "NPY_DISABLE_CPU_FEATURES": " ".join(WIDE),
        "NUMBA_CPU_NAME": "haswell",
    },
    # three threads in each library, whatever the number of cores
    "threads": {f"{name}_NUM_THREADS": "3" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")},
    # a machine with more to do than it can: eight processes count beside the tests
    "busy": ONE_THREAD,
}


@contextlib.contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep so many processes busy inside."""
    running = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(processes)]
    for process in running:
        process.start()
    try:
        yield
    finally:
        for process in running:
            process.terminate()


def _spin() -> None:
    while True:
        pass


def run(name: str, options: list[str]) -> int:
    """Run pytest under one of `SETTINGS` and return its exit status."""
    settings = " ".join(f"{key}={value!r}" for key, value in SETTINGS[name].items())
    print(f"{name}: {settings}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
    with load(8 if name == "busy" else 0):
        done = subprocess.run([*command, *options], cwd=ROOT, env=os.environ | SETTINGS[name])
    return done.returncode


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return 0 if all tests passed in all settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SETTINGS)}; default: all")
    parser.add_argument(
        "--fast", action="store_true", help="only the chapters, on NumPy and PyTorch"
    )
    given = sys.argv[1:] if arguments is None else arguments
    tests = ["-p", "no:nbval", "-n", "3", "--dist", "worksteal", "-m", "not site and not gpu"]
    ours, runs = given, [tests]
    if "--" in given:
        ours, runs = given[: given.index("--")], [given[given.index("--") + 1 :]]
    chosen = parser.parse_args(ours)
    if unknown := set(chosen.names) - SETTINGS.keys():
        parser.error(f"names must be of {', '.join(SETTINGS)}, got {', '.join(sorted(unknown))}")
    if chosen.fast:
        runs[0] += ["-k", "not strict", *(f"tests/{room}" for room in ROOMS)]
    elif "--" not in given:
        chapters = sorted(str(path) for path in (ROOT / "book").glob("*.ipynb"))
        runs += [["-n", "3", "--dist", "loadfile", "--nbval", "--nbval-current-env", *chapters]]
    names = chosen.names or SETTINGS
    failed = [
        name for name in names if [status for options in runs if (status := run(name, options))]
    ]
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
