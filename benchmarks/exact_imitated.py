"""Exact attention as on a processor with AVX2 alone, imitated on one that has AVX-512 too.

Another process is told before it starts which instructions its libraries may use: Numba compiles
for them, and NumPy's and PyTorch's products choose theirs. The caches and the clock stay those of
this processor.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
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
METHODS = {
    "imitated": (
        "Rows of a process whose libraries were told to use no AVX-512, on a processor that has "
        f"it: {', '.join(name for name in SETTINGS)}."
    ),
}
SIZES, QUICK_SIZES = (256, 1024, 4096), (128,)
ABLE = "avx512f"


def in_another_process(*, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return the rows of `here` in such a process, or none if this processor has no AVX-512."""
    try:
        from attnbook.compilers.register_tiles import features
    except ImportError:
        return []
    if not features().get(ABLE):
        return []
    command = [sys.executable, "-m", "benchmarks.exact_imitated", *(["--quick"] if quick else [])]
    done = subprocess.run(
        command, env=os.environ | SETTINGS, check=True, stdout=subprocess.PIPE, text=True
    )
    rows = [row | {"imitated": "AVX2"} for row in json.loads(done.stdout)]
    log(f"avx2: {len(rows)} rows")
    return rows


def here(quick: bool) -> list[dict[str, Any]]:
    """Return rows of SDPA and *packed* for every pass, and the ceilings, of this process."""
    given: dict[str, Any] = {"quick": quick, "log": harness.log}
    found = exact_ceilings.ceilings("cpu", names=("matrix product", "multiply and add"), **given)
    for n in QUICK_SIZES if quick else SIZES:
        for backward in (False, True):
            for is_causal in (False, True):
                problem = Problem("cpu", "float32", n, is_causal=is_causal, backward=backward)
                only = ("packed", exact_peers.SDPA)
                found += exact_rows.rows(problem, only=only, **given)
    return found


if __name__ == "__main__":
    print(json.dumps(here("--quick" in sys.argv)))
