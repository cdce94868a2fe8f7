"""What every benchmark shares: provenance, interleaved timing, peak memory and the writer."""

import datetime
import gc
import importlib.util
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

# PyTorch's profiler writes two lines to stderr for each run unless told this before its import
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

Name = TypeVar("Name")

ROOT = Path(__file__).parents[1]
PACKAGES = ("numpy", "array-api-compat", "torch", "cupy", "triton", "numba")
CUPY_NAMES = ("cupy-cuda13x", "cupy-cuda12x", "cupy")  # the wheel's name carries the CUDA version
SETTINGS = (
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "OPENBLAS_NUM_THREADS",
    "OPENBLAS_CORETYPE",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "CUPY_TF32",
    "CUPY_ACCELERATORS",
)
METHODS = {
    "seconds": (
        "Wall-clock seconds of one call. All candidates of a size run in one process, in rounds; "
        "each round runs each candidate once, in random order: one untimed call, then `calls` "
        "timed together and divided by `calls`. The device is synchronized before and after. The "
        "statistics are over rounds."
    ),
    "ratio": (
        "Median over rounds of the candidate's seconds divided by those of the baseline in the "
        "same round; above 1 is slower than the baseline."
    ),
    "extra_bytes": (
        "Peak bytes that one call asks of its library's allocator beyond what was held before, "
        "the result not counted. NumPy: tracemalloc. PyTorch on the CPU: memory events of its "
        "profiler. PyTorch on CUDA: torch.cuda.max_memory_allocated. CuPy: a hook on its memory "
        "pool. What a BLAS allocates for itself is not seen."
    ),
    "max_abs": "Largest absolute difference from a float64 reference on the same (rounded) inputs.",
    "relative": "Euclidean norm of that difference divided by the norm of the reference.",
}


class MissingDeviceError(RuntimeError):
    """The device asked for is not here."""


def log(line: str) -> None:
    """Print one line of progress."""
    print(line, file=sys.stderr, flush=True)


def require(device: str) -> None:
    """Raise MissingDeviceError unless something here can compute on `device`."""
    if device == "cuda" and not (torch_sees_cuda() or cupy_sees_cuda()):
        raise MissingDeviceError(
            "--device cuda needs PyTorch or CuPy with a CUDA device, found neither; "
            "python -m attnbook doctor says what is missing"
        )


def torch_sees_cuda() -> bool:
    """Say whether PyTorch is installed and has a CUDA device."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def cupy_sees_cuda() -> bool:
    """Say whether CuPy is installed and has a CUDA device."""
    if importlib.util.find_spec("cupy") is None:
        return False
    import cupy

    return bool(cupy.cuda.is_available())


# Provenance


def record(name: str, device: str, command: str) -> dict[str, Any]:
    """Return the head of a benchmark's record."""
    return {
        "benchmark": name,
        "provenance": provenance(device, command),
        "methods": METHODS,
    }


def provenance(device: str, command: str) -> dict[str, Any]:
    """Return where, when and with what a benchmark runs."""
    commit, dirty = _commit()
    return {
        "device": _device(device),
        "cpu": _cpu(),
        "threads": _threads(),
        "versions": _versions(),
        "blas": _blas(),
        "os": platform.platform(),
        "settings": {name: os.environ[name] for name in SETTINGS if name in os.environ},
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "commit": commit,
        "dirty": dirty,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
    }


def _device(device: str) -> dict[str, Any]:
    if device == "cpu":
        return {"kind": "cpu", "name": _cpu()["name"]}
    if torch_sees_cuda():
        import torch

        properties = torch.cuda.get_device_properties(0)
        return {
            "kind": "cuda",
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
            "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
            "tf32_matmul": torch.backends.cuda.matmul.allow_tf32,
        }
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    return {
        "kind": "cuda",
        "name": properties["name"].decode(),
        "memory_bytes": int(properties["totalGlobalMem"]),
        "compute_capability": f"{properties['major']}.{properties['minor']}",
        "multiprocessors": int(properties["multiProcessorCount"]),
        "cuda": str(cupy.cuda.runtime.runtimeGetVersion()),
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
    }


def _cpu() -> dict[str, Any]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found: dict[str, Any] = {"name": platform.processor() or platform.machine(), "cores": usable}
    if sys.platform == "darwin":
        found["name"] = _output("sysctl", "-n", "machdep.cpu.brand_string") or found["name"]
    elif Path("/proc/cpuinfo").exists():
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
        lines = (line.partition(":") for line in first.splitlines())
        fields = {key.strip(): value.strip() for key, _, value in lines}
        found["name"] = fields.get("model name", found["name"])
        # virtual machines hide the model's number in its name, but not here
        for field in ("cpu family", "model", "stepping"):
            if field in fields:
                found[field.replace(" ", "_")] = fields[field]
        flags = fields.get("flags", "").split()
        found["simd"] = [flag for flag in flags if flag in {"avx2", "avx512f", "avx512_bf16"}]
        found["virtual"] = "hypervisor" in flags
    return found


def _threads() -> dict[str, int]:
    found = {"cores": _cpu()["cores"]}
    if importlib.util.find_spec("torch") is not None:
        import torch

        found["torch"] = torch.get_num_threads()
    if importlib.util.find_spec("threadpoolctl") is not None:
        import threadpoolctl

        pools = threadpoolctl.threadpool_info()
        found |= {pool["internal_api"]: pool["num_threads"] for pool in pools}
    return found


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        found[name] = None
        for candidate in CUPY_NAMES if name == "cupy" else (name,):
            try:
                found[name] = metadata.version(candidate)
                break
            except metadata.PackageNotFoundError:
                continue
    return found


def _blas() -> list[dict[str, Any]]:
    if importlib.util.find_spec("threadpoolctl") is None:
        built = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        return [
            {
                "name": built.get("name"),
                "version": built.get("version"),
                "core_type": None,
                "threads": None,
                "seen_by": "numpy.show_config; threadpoolctl, which knows more, is not installed",
            }
        ]
    import threadpoolctl

    return [
        {
            "name": pool["internal_api"],
            "version": pool["version"],
            "core_type": pool.get("architecture"),
            "threads": pool["num_threads"],
            "file": Path(pool["filepath"]).name,
            "seen_by": "threadpoolctl",
        }
        for pool in threadpoolctl.threadpool_info()
        if pool["user_api"] == "blas"
    ]


def _commit() -> tuple[str, bool | None]:
    commit = _output("git", "-C", str(ROOT), "rev-parse", "HEAD")
    if commit is None:  # a copy without its history is told the commit
        return os.environ.get("ATTNBOOK_COMMIT", "unknown"), None
    measured = ("attnbook", "benchmarks")  # prose and records do not change what is measured
    changes = _output("git", "-C", str(ROOT), "status", "--porcelain", "--", *measured)
    return commit, changes is None or changes != ""


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


# Time


def interleave(
    candidates: Mapping[Name, Callable[[], Any]],
    *,
    rounds: int,
    slice_seconds: float,
    synchronize: Callable[[], None] = lambda: None,
    seed: int = 0,
) -> dict[Name, tuple[int, list[float]]]:
    """Time `candidates` side by side.

    Parameters
    ----------
    candidates : name to function without arguments
    rounds : int
        How often each candidate is measured.
    slice_seconds : float
        About how long one measurement lasts; short calls are repeated to fill it.
    synchronize : function
        Waits until the device has finished.
    seed : int
        Of the order of the candidates in each round.

    Returns
    -------
    dict
        For each name the number of calls in a measurement, and the seconds of one call in each
        round.
    """
    calls = {}
    for name, function in candidates.items():
        function()
        once = _seconds(function, 1, synchronize)
        calls[name] = max(1, round(slice_seconds / once)) if once > 0 else 1000
    samples: dict[Name, list[float]] = {name: [] for name in candidates}
    order, draw = list(candidates), random.Random(seed)
    gc_was_on = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            draw.shuffle(order)
            for name in order:
                candidates[name]()
                samples[name].append(_seconds(candidates[name], calls[name], synchronize))
    finally:
        if gc_was_on:
            gc.enable()
    return {name: (calls[name], samples[name]) for name in candidates}


def _seconds(function: Callable[[], Any], calls: int, synchronize: Callable[[], None]) -> float:
    synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        function()
    synchronize()
    return (time.perf_counter() - start) / calls


def spread(samples: Sequence[float]) -> dict[str, float]:
    """Return minimum, quartiles, median and maximum of `samples`."""
    ordered = np.asarray(samples, dtype=np.float64)
    names = ("minimum", "first_quartile", "median", "third_quartile", "maximum")
    return dict(zip(names, np.quantile(ordered, (0, 0.25, 0.5, 0.75, 1)).tolist(), strict=True))


def ratio(samples: Sequence[float], baseline: Sequence[float]) -> float:
    """Return the median over rounds of `samples` divided by `baseline`."""
    return statistics.median(ours / theirs for ours, theirs in zip(samples, baseline, strict=True))


# Memory


def extra_bytes(function: Callable[[], Any], library: str, device: str) -> int | None:
    """Return the peak bytes that one call of `function` asks for beyond its result.

    None where the library does not tell.
    """
    gc.collect()
    if library == "numpy":
        return _numpy_extra(function)
    if library == "torch":
        return _torch_cpu_extra(function) if device == "cpu" else _torch_cuda_extra(function)
    if library == "cupy":
        return _cupy_extra(function)
    raise ValueError(f"library must be one of numpy, torch, cupy, got {library!r}")


def _numpy_extra(function: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        result = function()
        return tracemalloc.get_traced_memory()[1] - result.nbytes
    finally:
        tracemalloc.stop()


def _torch_cpu_extra(function: Callable[[], Any]) -> int | None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        result = function()
    events = run.profiler.kineto_results.events() if run.profiler else []
    steps = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    if not steps:
        return None
    held = np.cumsum([step for _, step in steps])
    return int(held.max()) - result.nbytes


def _torch_cuda_extra(function: Callable[[], Any]) -> int:
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before - result.nbytes


def _cupy_extra(function: Callable[[], Any]) -> int:
    import cupy

    class Peak(cupy.cuda.MemoryHook):
        name = "peak"
        held = 0
        peak = 0

        def malloc_postprocess(self, **event):
            self.held += event["mem_size"]
            self.peak = max(self.peak, self.held)

        def free_postprocess(self, **event):
            self.held -= event["mem_size"]

    hook = Peak()
    with hook:
        result = function()
    return hook.peak - result.nbytes


# Record


def write(record: Mapping[str, Any], path: Path) -> Path:
    """Write `record` as strict JSON, NaN and infinities as null, and return `path`."""
    text = json.dumps(_finite(record), indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8", newline="\n")
    return path


def _finite(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {name: _finite(value) for name, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [_finite(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
