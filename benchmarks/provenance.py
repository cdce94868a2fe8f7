"""Where, when and with what a benchmark runs: the devices that are here, and their description."""

import datetime
import importlib.util
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from attnbook.arrays.threads import n_threads_for

ROOT = Path(__file__).parents[1]
PACKAGES = ("numpy", "array-api-compat", "torch", "cupy", "triton", "numba")
CUPY_NAMES = ("cupy-cuda13x", "cupy-cuda12x", "cupy")  # the wheel's name carries the CUDA version
STEERING = (
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY",
    "NUMBA_CPU_NAME",
    "NUMBA_CPU_FEATURES",
)
"""What tells a library which instructions or tiles to use, in place of its own choice."""
SETTINGS = (
    *STEERING,
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "CUPY_TF32",
    "CUPY_ACCELERATORS",
)


class MissingDeviceError(RuntimeError):
    """The device asked for is not here."""


def require(device: str) -> None:
    """Raise MissingDeviceError unless something here can compute on `device`."""
    if device == "cuda" and not (torch_sees_cuda() or cupy_sees_cuda()):
        raise MissingDeviceError(
            "--device cuda needs PyTorch or CuPy with a CUDA device, found neither; "
            "python -m attnbook doctor says what is missing"
        )


class SteeredError(RuntimeError):
    """The environment chooses for a library what it should choose itself."""


def refuse_steering() -> None:
    """Raise SteeredError where the environment holds a library to instructions or tiles.

    Then times would compare what is held back with what is not.
    """
    given = [f"{name}={os.environ[name]}" for name in STEERING if name in os.environ]
    if given:
        raise SteeredError(
            "the environment must leave the choice of instructions to each library, got "
            f"{', '.join(given)}: unset it, or try with --quick, which writes no record of the book"
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


def same_machine(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two descriptions are of machines whose times can be compared."""
    if one["device"]["kind"] == "cpu":
        return one["cpu"] == other["cpu"]
    return one["device"]["name"] == other["device"]["name"]


def place(device: Mapping[str, Any]) -> str:
    """Return how file names call a described device: "cpu", or such as "cuda-h200"."""
    if device["kind"] == "cpu":
        return "cpu"
    words = re.findall("[a-z0-9]+", device["name"].lower())
    return "-".join([device["kind"], *(word for word in words if word != "nvidia")])


def describe(device: str, command: str) -> dict[str, Any]:
    """Return where, when and with what a benchmark runs."""
    commit, dirty = _commit()
    cpu = _cpu()
    return {
        "device": _device(device, cpu["name"]),
        "cpu": cpu,
        "threads": _threads(cpu["cores"]),
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


def _device(device: str, cpu_name: str) -> dict[str, Any]:
    if device == "cpu":
        return {"kind": "cpu", "name": cpu_name}
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


def _threads(cores: int) -> dict[str, int]:
    found = {"cores": cores, "attnbook": n_threads_for(2**30)}
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
    return _numpy_blas() + _torch_blas()


def _torch_blas() -> list[dict[str, Any]]:
    """Return what PyTorch multiplies with, which is linked into it and not seen from outside.

    So `core_type` is that of PyTorch's own loops: MKL does not tell which instructions it uses.
    """
    if importlib.util.find_spec("torch") is None:
        return []
    import torch

    with_mkl = torch.backends.mkl.is_available()
    version = re.search(r"Math Kernel Library Version (\S+)", torch.__config__.show())
    return [
        {
            "name": "mkl in torch" if with_mkl else "in torch",
            "version": version[1] if version else None,
            "core_type": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
            "seen_by": "torch.backends",
        }
    ]


def _numpy_blas() -> list[dict[str, Any]]:
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
