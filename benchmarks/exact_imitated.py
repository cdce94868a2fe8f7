"""Exact attention as on another processor, imitated on one of AMD that has AVX-512.

Another process is told before it starts which instructions its libraries may use. `avx2`: AVX2
alone; Numba compiles for it, and NumPy's and PyTorch's products choose it. `mkl`: all of them have
AVX-512, MKL too, which by itself uses it on Intel's processors alone. MKL, with which PyTorch
multiplies, asks a function who made the processor; one that says Intel is loaded before it. The
caches and the clock stay those of this processor.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import exact_ceilings, exact_peers, exact_rows, harness
from benchmarks.exact_problem import Problem

FEATURES = (
    "64bit,adx,aes,avx,avx2,bmi,bmi2,clflushopt,clwb,clzero,cmov,crc32,cx16,cx8,f16c,fma,fsgsbase,"
    "fxsr,lzcnt,mmx,movbe,pclmul,popcnt,prfchw,rdpid,rdrnd,rdseed,sahf,sha,sse,sse2,sse3,sse4.1,"
    "sse4.2,sse4a,ssse3,xsave,xsavec,xsaveopt,xsaves"
)
SETTINGS = {
    "NUMBA_CPU_NAME": "znver2",
    "NUMBA_CPU_FEATURES": ",".join(f"+{name}" for name in FEATURES.split(",")),
    "OPENBLAS_CORETYPE": "Haswell",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
INTEL = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"
METHODS = {
    "imitated": (
        "AVX2: rows of a process whose libraries were told to use no AVX-512, on a processor that "
        f"has it: {', '.join(name for name in SETTINGS)}. MKL: rows of a process in which MKL "
        "takes the processor for one of Intel and uses AVX-512, by LD_PRELOAD of a library with "
        f"the line {INTEL.strip()}"
    ),
}
SIZES, QUICK_SIZES = (256, 1024, 4096), (128,)
ABLE = "avx512f"


def avx2(*, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return the rows of `here` where AVX2 is all; none if this processor has no AVX-512."""
    return _in_another_process("AVX2", SETTINGS, quick, log) if _is_able() else []


def mkl(*, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return the rows of `here` where MKL uses AVX-512; none if it cannot be told to."""
    compiler = shutil.which("cc")
    if not _is_able() or compiler is None or not sys.platform.startswith("linux"):
        return []
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "intel.so"
        command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
        subprocess.run(command, input=INTEL, check=True, text=True)
        return _in_another_process("MKL", {"LD_PRELOAD": str(library)}, quick, log)


def _is_able() -> bool:
    try:
        from attnbook.compilers.register_tiles import features
    except ImportError:
        return False
    return bool(features().get(ABLE))


def _in_another_process(
    name: str, settings: Mapping[str, str], quick: bool, log: Callable[[str], None]
) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks.exact_imitated", *(["--quick"] if quick else [])]
    done = subprocess.run(
        command, env=os.environ | settings, check=True, stdout=subprocess.PIPE, text=True
    )
    rows = [row | {"imitated": name} for row in json.loads(done.stdout)]
    log(f"{name}: {len(rows)} rows")
    return rows


def here(quick: bool) -> list[dict[str, Any]]:
    """Return rows of SDPA and *packed* for every pass, and the ceilings, of this process.

    Those of bfloat16 are forward passes, where the processor multiplies its pairs.
    """
    from attnbook.compilers.register_tiles import has_pairs

    given: dict[str, Any] = {"quick": quick, "log": harness.log}
    found = exact_ceilings.ceilings("cpu", names=("matrix product", "multiply and add"), **given)
    sizes, flags = QUICK_SIZES if quick else SIZES, (False, True)
    for n, backward, is_causal in itertools.product(sizes, flags, flags):
        for dtype in ["float32", *["bfloat16"] * (has_pairs() and not backward)]:
            problem = Problem("cpu", dtype, n, is_causal=is_causal, backward=backward)
            found += exact_rows.rows(problem, only=("packed", exact_peers.SDPA), **given)
    return found


if __name__ == "__main__":
    print(json.dumps(here("--quick" in sys.argv)))
