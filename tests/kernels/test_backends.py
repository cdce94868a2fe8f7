"""backends(), and its table on the command line."""

import importlib
import importlib.machinery
import importlib.util
import re
import runpy
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import attnbook
from attnbook import kernels
from attnbook.__main__ import main

NO_CUDA = SimpleNamespace(is_available=lambda: False, get_device_name=lambda: "never asked")
NAMES = ["NumPy, CPU", "PyTorch, CPU", "PyTorch, CUDA", "PyTorch, MPS", "CuPy, CUDA"]
NAMES += ["Numba, CPU", "Triton, CUDA"]
CUPY = "pip install 'cupy-cuda13x[ctk]' (or 'cupy-cuda12x[ctk]', as the driver asks)"


def of(library, *needs):
    """Return the rungs for arrays of a library that need nothing else than one of `needs`."""
    return tuple(
        kernel.name
        for kernel in kernels.LADDER
        if library in (kernel.takes or (library,)) and kernel.needs in ("", *needs)
    )


NUMPY_IMPLS = ("reference", *of("numpy", "threadpoolctl"))
ANY_IMPLS = ("reference", *of("any"))
CUPY_IMPLS = ("reference", *of("cupy", "cupy"))
NUMBA_IMPLS = tuple(name for name in of("numpy", "numba") if kernels.KERNELS[name].needs)


def fake_torch(cuda=NO_CUDA, built_for=None, hip=None, mps=False):
    return SimpleNamespace(
        __version__="9.8.7",
        cuda=cuda,
        version=SimpleNamespace(cuda=built_for, hip=hip),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: mps)),
    )


def fake_cupy(available=True, properties=lambda number: {"name": b"Model T"}):
    runtime = SimpleNamespace(getDeviceProperties=properties)
    cuda = SimpleNamespace(is_available=lambda: available, runtime=runtime)
    return SimpleNamespace(__version__="6.5.4", cuda=cuda)


def fake_numba(unit="AVX-1024, 32 lanes"):
    kernel = SimpleNamespace(vector_unit=lambda: unit)
    return {"numba": SimpleNamespace(__version__="3.2.1"), "attnbook.kernels.packed": kernel}


def fake_triton(devices=("cuda",)):
    kernel = SimpleNamespace(DEVICES=devices)
    return {"triton": SimpleNamespace(__version__="2.1.0"), "attnbook.kernels.triton": kernel}


def raising(error):
    def function(*arguments):
        raise error

    return function


@pytest.fixture
def pretend(monkeypatch):
    """Return a function that says which module, None or error stands for torch and cupy."""

    def pretend(**modules):
        real_spec, real_import = importlib.util.find_spec, importlib.import_module

        def find_spec(name, *rest):
            if name not in modules:
                return real_spec(name, *rest)
            known = modules[name] is not None
            return importlib.machinery.ModuleSpec(name, None) if known else None

        def import_module(name, *rest):
            if name not in modules:
                return real_import(name, *rest)
            if isinstance(modules[name], Exception):
                raise modules[name]
            return modules[name]

        monkeypatch.setattr(importlib.util, "find_spec", find_spec)
        monkeypatch.setattr(importlib, "import_module", import_module)

    return pretend


def test_backends_here():
    found = attnbook.backends()
    assert [b.name for b in found] == NAMES
    version = f"version {np.__version__}"
    assert found[0] == attnbook.Backend("NumPy, CPU", True, version, impls=NUMPY_IMPLS)
    version = f"version {torch.__version__}"
    assert found[1] == attnbook.Backend("PyTorch, CPU", True, version, impls=ANY_IMPLS)
    assert found[2].available == torch.cuda.is_available()
    for backend in found:
        assert bool(backend.remedy) != backend.available
        assert bool(backend.impls) == backend.available


def test_every_kernel_runs_somewhere(pretend):
    cuda = SimpleNamespace(is_available=lambda: True, get_device_name=lambda: "H9")
    pretend(torch=fake_torch(cuda, mps=True), cupy=fake_cupy(), **fake_numba(), **fake_triton())
    found = {backend.name: backend.impls for backend in attnbook.backends()}
    assert found == {
        "NumPy, CPU": NUMPY_IMPLS,
        "PyTorch, CPU": ANY_IMPLS,
        "PyTorch, CUDA": ANY_IMPLS,
        "PyTorch, MPS": ANY_IMPLS,
        "CuPy, CUDA": CUPY_IMPLS,
        "Numba, CPU": NUMBA_IMPLS,
        "Triton, CUDA": ("triton",),
    }
    assert {name for impls in found.values() for name in impls} == set(kernels.IMPLS)


def test_devices_are_what_move_takes(pretend):
    assert attnbook.devices()[:2] == [("numpy", None), ("torch", "cpu")]
    for library, device in attnbook.devices():
        assert attnbook.move(np.ones(2), library, device=device).shape == (2,)
    cuda = SimpleNamespace(is_available=lambda: True, get_device_name=lambda: "H9")
    pretend(torch=fake_torch(cuda, mps=True), cupy=fake_cupy())
    gpus = [("torch", "cuda"), ("cupy", None)]
    assert attnbook.devices() == [("numpy", None), ("torch", "cpu"), *gpus]
    pretend(torch=None, cupy=fake_cupy(available=False))
    assert attnbook.devices() == [("numpy", None)]


def test_a_kernel_in_numpy_may_want_a_package_that_is_absent(pretend):
    pretend(threadpoolctl=None, torch=None, cupy=None, numba=None, triton=None)
    assert attnbook.backends()[0].impls == NUMPY_IMPLS[:-1]


def test_impls_are_what_attention_takes():
    taken = {"NumPy, CPU": (np.ones((3, 2)), {}), "PyTorch, CPU": (torch.ones(3, 2), {})}
    for backend in attnbook.backends():
        if backend.name in taken:
            x, _ = taken[backend.name]
            for impl in backend.impls:
                assert attnbook.attention(x, x, x, impl=impl).shape == (3, 2)


def test_nothing_but_numpy(pretend):
    pretend(torch=None, cupy=None, numba=None, triton=None)
    found = attnbook.backends()
    assert [b.name for b in found] == NAMES
    assert [b.available for b in found] == [True] + [False] * 6
    for backend in found[1:4]:
        assert backend.detail == "torch is not installed"
        assert backend.remedy == "pip install torch"
    packages = {"cupy": CUPY, "numba": "pip install numba", "triton": "pip install triton"}
    for backend, (package, remedy) in zip(found[4:], packages.items(), strict=True):
        assert backend.detail == f"{package} is not installed"
        assert backend.remedy == remedy
        assert backend.impls == ()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ImportError("libcudart.so: cannot open\nmore"), "ImportError: libcudart.so: cannot open"),
        (OSError("broken"), "OSError: broken"),
        (RuntimeError(), "RuntimeError: "),
    ],
)
def test_broken_installations_are_reported(pretend, error, text):
    pretend(torch=error, cupy=error, numba=error, triton=error)
    found = attnbook.backends()
    assert [b.available for b in found] == [True] + [False] * 6
    assert found[1].detail == f"importing torch fails with {text}"
    for backend, package in zip(found[4:], ("cupy", "numba", "triton"), strict=True):
        assert backend.detail == f"importing {package} fails with {text}"
    pretend(**{"attnbook.kernels.packed": error, "attnbook.kernels.triton": error})
    pretend(numba=fake_numba()["numba"], triton=fake_triton()["triton"])
    numba, triton = attnbook.backends()[5:]
    assert numba.detail == f"importing the kernels fails with {text}"
    assert triton.detail == f"importing the kernel fails with {text}"
    assert not numba.available
    assert not triton.available


def test_a_finder_that_raises_is_reported(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", raising(ValueError("torch.__spec__ is None")))
    monkeypatch.setattr(importlib, "import_module", raising(ImportError("no such thing")))
    assert attnbook.backends()[1].detail == "importing torch fails with ImportError: no such thing"


H9 = SimpleNamespace(is_available=lambda: True, get_device_name=lambda: "H9")
OLD = SimpleNamespace(is_available=raising(RuntimeError("driver too old\nx")))
NO_MPS = "PyTorch, MPS: missing, PyTorch sees no MPS device. Needs a Mac with Apple silicon"
NO_NVIDIA = "missing, PyTorch sees no CUDA device. Check the driver with nvidia-smi"
INTERPRET = "Needs an NVIDIA GPU; with TRITON_INTERPRET=1 it runs on the CPU, slowly"
NO_GPU = "Needs an NVIDIA GPU; check the driver with nvidia-smi"
MACHINES = {  # what is installed; what is said of a backend; and what runs on it
    "a build for the CPU": (
        {"torch": fake_torch()},
        "PyTorch, CUDA: missing, this PyTorch is built for the CPU. "
        "Needs an NVIDIA GPU and a CUDA build of PyTorch from pytorch.org",
        (),
    ),
    "any PyTorch": ({"torch": fake_torch()}, "PyTorch, CPU: version 9.8.7", ANY_IMPLS),
    "no MPS": ({"torch": fake_torch()}, NO_MPS, ()),
    "a Mac": ({"torch": fake_torch(mps=True)}, "PyTorch, MPS: version 9.8.7", ANY_IMPLS),
    "no driver": ({"torch": fake_torch(built_for="13.0")}, f"PyTorch, CUDA: {NO_NVIDIA}", ()),
    "no driver of AMD": ({"torch": fake_torch(hip="6.1")}, f"PyTorch, CUDA: {NO_NVIDIA}", ()),
    "a GPU": ({"torch": fake_torch(H9)}, "PyTorch, CUDA: version 9.8.7, H9", ANY_IMPLS),
    "an old driver": (
        {"torch": fake_torch(OLD)},
        "PyTorch, CUDA: missing, asking it fails with RuntimeError: driver too old. "
        "Check the driver with nvidia-smi",
        (),
    ),
    "a GPU for CuPy": (*({"cupy": fake_cupy()}, "CuPy, CUDA: version 6.5.4, Model T", CUPY_IMPLS),),
    "no GPU for CuPy": (
        {"cupy": fake_cupy(available=False)},
        f"CuPy, CUDA: missing, CuPy sees no CUDA device. {NO_GPU}",
        (),
    ),
    "a broken GPU for CuPy": (
        {"cupy": fake_cupy(properties=raising(RuntimeError("cudaErrorUnknown")))},
        f"CuPy, CUDA: missing, asking it fails with RuntimeError: cudaErrorUnknown. {NO_GPU}",
        (),
    ),
    "a vector unit": (
        *(fake_numba(), "Numba, CPU: version 3.2.1, AVX-1024, 32 lanes", NUMBA_IMPLS),
    ),
    "a GPU for Triton": (
        {"torch": fake_torch(H9), **fake_triton()},
        "Triton, CUDA: version 2.1.0, H9",
        ("triton",),
    ),
    "an old driver for Triton": (
        {"torch": fake_torch(OLD), **fake_triton()},
        "Triton, CUDA: missing, asking PyTorch fails with RuntimeError: driver too old. "
        + INTERPRET,
        (),
    ),
    "no GPU for Triton": (
        {"torch": fake_torch(), **fake_triton()},
        f"Triton, CUDA: missing, PyTorch sees no CUDA device. {INTERPRET}",
        (),
    ),
    "Triton's interpreter": (
        {"torch": fake_torch(), **fake_triton(("cuda", "cpu"))},
        "Triton, CUDA: version 2.1.0, interpreted on the CPU, since TRITON_INTERPRET is set",
        ("triton",),
    ),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_other_machines(pretend, machine):
    modules, said, impls = MACHINES[machine]
    pretend(**(dict.fromkeys(("torch", "cupy", "numba", "triton")) | modules))
    (backend,) = (b for b in attnbook.backends() if b.name == said.partition(":")[0])
    assert str(backend) == said
    assert backend.impls == impls
    assert backend.available == bool(impls)


def test_doctor_prints_a_table(pretend, capsys):
    pretend(torch=fake_torch(), cupy=None, triton=None, **fake_numba())
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    python = sys.version.split()[0]
    assert lines == [
        f"attnbook {attnbook.__version__}, Python {python}",
        "backend        here  detail",
        f"NumPy, CPU     yes   version {np.__version__}",
        f"                     impl= {', '.join(NUMPY_IMPLS)}",
        "PyTorch, CPU   yes   version 9.8.7",
        f"                     impl= {', '.join(ANY_IMPLS)}",
        "PyTorch, CUDA  no    this PyTorch is built for the CPU. "
        "Needs an NVIDIA GPU and a CUDA build of PyTorch from pytorch.org",
        "PyTorch, MPS   no    PyTorch sees no MPS device. Needs a Mac with Apple silicon",
        f"CuPy, CUDA     no    cupy is not installed. {CUPY}",
        "Numba, CPU     yes   version 3.2.1, AVX-1024, 32 lanes",
        f"                     impl= {', '.join(NUMBA_IMPLS)}",
        "Triton, CUDA   no    triton is not installed. pip install triton",
    ]


def test_doctor_runs_as_a_module(pretend, monkeypatch, capsys):
    pretend(torch=None, cupy=None, numba=None, triton=None)
    monkeypatch.setattr(sys, "argv", ["attnbook", "doctor"])
    monkeypatch.delitem(sys.modules, "attnbook.__main__")
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_module("attnbook", run_name="__main__")
    assert "PyTorch, CPU   no    torch is not installed" in capsys.readouterr().out


def test_doctor_imports_no_grader():
    code = "import sys; from attnbook.__main__ import main; main(['doctor']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = done.stdout.splitlines()[-1].split()
    assert "attnbook.kernels" in modules
    assert [name for name in modules if re.match(r"course\b|attnbook\.check\b", name)] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "required: command"), (["surgeon"], "invalid choice: 'surgeon'")],
)
def test_other_commands_are_refused(capsys, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    said = capsys.readouterr().err
    assert said.startswith("usage: python -m attnbook ")
    assert message in said


def test_help_names_the_command(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    said = " ".join(capsys.readouterr().out.split())  # lines break where columns end
    assert "usage: python -m attnbook" in said
    assert "Attention from a dot product upwards" in said
    assert "print which array libraries and devices can be used here" in said
