"""backends(), its table on the command line, and move()."""

import importlib
import importlib.machinery
import importlib.util
import os
import re
import runpy
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cases import HALF, need

import attnbook
from attnbook import kernels
from attnbook.__main__ import main
from attnbook.arrays.arguments import dtype_name
from attnbook.arrays.move import _to_numpy

NO_CUDA = SimpleNamespace(is_available=lambda: False, get_device_name=lambda: "never asked")
NAMES = ["NumPy, CPU", "PyTorch, CPU", "PyTorch, CUDA", "PyTorch, MPS", "CuPy, CUDA"]
NAMES += ["Numba, CPU", "Triton, CUDA"]
GPU_EXTRA = "pip install 'attnbook[gpu-cuda13]' (or gpu-cuda12, as the driver asks)"
NUMPY_IMPLS = ("reference", "naive", "in_place", "tiled", "threads")
ANY_IMPLS = ("reference", "naive", "tiled")


def fake_torch(cuda=NO_CUDA, built_for=None, hip=None, mps=False):
    return SimpleNamespace(
        __version__="9.8.7",
        cuda=cuda,
        version=SimpleNamespace(cuda=built_for, hip=hip),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: mps)),
    )


def fake_cupy(available=True, name=b"Model T"):
    runtime = SimpleNamespace(getDeviceProperties=lambda number: {"name": name})
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
        "CuPy, CUDA": (*ANY_IMPLS, "cupy_naive", "cupy_tiled"),
        "Numba, CPU": ("numba", "packed"),
        "Triton, CUDA": ("triton",),
    }
    assert {name for impls in found.values() for name in impls} == set(kernels.IMPLS)


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


@pytest.mark.parametrize("set_to", ["1", "0"])
def test_triton_on_the_cpu_wants_its_interpreter(set_to):
    pytest.importorskip("triton", reason="triton is not installed")
    code = "import attnbook; print(attnbook.backends()[6])"
    environment = {**os.environ, "TRITON_INTERPRET": set_to}
    command = [sys.executable, "-W", "error", "-c", code]
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    interpreted = "interpreted on the CPU, since TRITON_INTERPRET is set" in said.stdout
    assert interpreted == (set_to == "1")


def test_nothing_but_numpy(pretend):
    pretend(torch=None, cupy=None, numba=None, triton=None)
    found = attnbook.backends()
    assert [b.name for b in found] == NAMES
    assert [b.available for b in found] == [True] + [False] * 6
    for backend in found[1:4]:
        assert backend.detail == "torch is not installed"
        assert backend.remedy == "pip install 'attnbook[torch]'"
    packages = {"cupy": GPU_EXTRA, "numba": "pip install 'attnbook[fast]'", "triton": GPU_EXTRA}
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


@pytest.mark.parametrize(
    ("fake", "cuda", "mps"),
    [
        (
            fake_torch(),
            attnbook.Backend(
                "PyTorch, CUDA",
                False,
                "this PyTorch is built for the CPU",
                "Needs an NVIDIA GPU and a CUDA build of PyTorch from pytorch.org",
            ),
            False,
        ),
        (
            fake_torch(built_for="13.0", mps=True),
            attnbook.Backend(
                "PyTorch, CUDA",
                False,
                "PyTorch sees no CUDA device",
                "Check the driver with nvidia-smi",
            ),
            True,
        ),
        (
            fake_torch(hip="6.1"),
            attnbook.Backend(
                "PyTorch, CUDA",
                False,
                "PyTorch sees no CUDA device",
                "Check the driver with nvidia-smi",
            ),
            False,
        ),
        (
            fake_torch(SimpleNamespace(is_available=lambda: True, get_device_name=lambda: "H9")),
            attnbook.Backend("PyTorch, CUDA", True, "version 9.8.7, H9", impls=ANY_IMPLS),
            False,
        ),
        (
            fake_torch(SimpleNamespace(is_available=raising(RuntimeError("driver too old\nx")))),
            attnbook.Backend(
                "PyTorch, CUDA",
                False,
                "asking it fails with RuntimeError: driver too old",
                "Check the driver with nvidia-smi",
            ),
            False,
        ),
    ],
    ids=["cpu build", "no driver", "no AMD driver", "a GPU", "an old driver"],
)
def test_torch_on_other_machines(pretend, fake, cuda, mps):
    pretend(torch=fake, cupy=None, numba=None, triton=None)
    found = attnbook.backends()
    assert found[1] == attnbook.Backend("PyTorch, CPU", True, "version 9.8.7", impls=ANY_IMPLS)
    assert found[2] == cuda
    if mps:
        assert found[3] == attnbook.Backend("PyTorch, MPS", True, "version 9.8.7", impls=ANY_IMPLS)
    else:
        assert found[3] == attnbook.Backend(
            "PyTorch, MPS", False, "PyTorch sees no MPS device", "Needs a Mac with Apple silicon"
        )


def test_cupy_on_other_machines(pretend):
    remedy = "Needs an NVIDIA GPU; check the driver with nvidia-smi"
    pretend(torch=None, cupy=fake_cupy(), numba=None, triton=None)
    impls = (*ANY_IMPLS, "cupy_naive", "cupy_tiled")
    expected = attnbook.Backend("CuPy, CUDA", True, "version 6.5.4, Model T", impls=impls)
    assert attnbook.backends()[4] == expected
    pretend(cupy=fake_cupy(available=False))
    expected = attnbook.Backend("CuPy, CUDA", False, "CuPy sees no CUDA device", remedy)
    assert attnbook.backends()[4] == expected
    broken = fake_cupy()
    broken.cuda.runtime.getDeviceProperties = raising(RuntimeError("cudaErrorUnknown"))
    pretend(cupy=broken)
    detail = "asking it fails with RuntimeError: cudaErrorUnknown"
    assert attnbook.backends()[4] == attnbook.Backend("CuPy, CUDA", False, detail, remedy)


def test_numba_names_the_vector_unit(pretend):
    pretend(torch=None, cupy=None, triton=None, **fake_numba())
    detail = "version 3.2.1, AVX-1024, 32 lanes"
    expected = attnbook.Backend("Numba, CPU", True, detail, impls=("numba", "packed"))
    assert attnbook.backends()[5] == expected


def test_triton_on_other_machines(pretend):
    cuda = SimpleNamespace(is_available=lambda: True, get_device_name=lambda: "H9")
    pretend(cupy=None, numba=None, torch=fake_torch(cuda), **fake_triton())
    expected = attnbook.Backend("Triton, CUDA", True, "version 2.1.0, H9", impls=("triton",))
    assert attnbook.backends()[6] == expected
    cuda.is_available = raising(RuntimeError("driver too old"))
    detail = "asking PyTorch fails with RuntimeError: driver too old"
    remedy = "Needs an NVIDIA GPU; with TRITON_INTERPRET=1 it runs on the CPU, slowly"
    assert attnbook.backends()[6] == attnbook.Backend("Triton, CUDA", False, detail, remedy)
    pretend(torch=fake_torch())
    detail = "PyTorch sees no CUDA device"
    assert attnbook.backends()[6] == attnbook.Backend("Triton, CUDA", False, detail, remedy)
    pretend(**fake_triton(("cuda", "cpu")))
    detail = "version 2.1.0, interpreted on the CPU, since TRITON_INTERPRET is set"
    expected = attnbook.Backend("Triton, CUDA", True, detail, impls=("triton",))
    assert attnbook.backends()[6] == expected


def test_backend_reads_as_a_line():
    here = attnbook.Backend("NumPy, CPU", True, "version 2")
    assert str(here) == "NumPy, CPU: version 2"
    gone = attnbook.Backend("CuPy, CUDA", False, "cupy is not installed", "Install it")
    assert str(gone) == "CuPy, CUDA: missing, cupy is not installed. Install it"


def test_doctor_prints_a_table(pretend, capsys):
    pretend(torch=fake_torch(), cupy=None, triton=None, **fake_numba())
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    python = sys.version.split()[0]
    assert lines == [
        f"attnbook {attnbook.__version__}, Python {python}",
        "backend        here  detail",
        f"NumPy, CPU     yes   version {np.__version__}",
        "                     impl= reference, naive, in_place, tiled, threads",
        "PyTorch, CPU   yes   version 9.8.7",
        "                     impl= reference, naive, tiled",
        "PyTorch, CUDA  no    this PyTorch is built for the CPU. "
        "Needs an NVIDIA GPU and a CUDA build of PyTorch from pytorch.org",
        "PyTorch, MPS   no    PyTorch sees no MPS device. Needs a Mac with Apple silicon",
        f"CuPy, CUDA     no    cupy is not installed. {GPU_EXTRA}",
        "Numba, CPU     yes   version 3.2.1, AVX-1024, 32 lanes",
        "                     impl= numba, packed",
        f"Triton, CUDA   no    triton is not installed. {GPU_EXTRA}",
    ]


def test_doctor_runs_as_a_module(pretend, monkeypatch, capsys):
    pretend(torch=None, cupy=None, numba=None, triton=None)
    monkeypatch.setattr(sys, "argv", ["attnbook", "doctor"])
    monkeypatch.delitem(sys.modules, "attnbook.__main__")
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_module("attnbook", run_name="__main__")
    assert "PyTorch, CPU   no    torch is not installed" in capsys.readouterr().out


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
    said = capsys.readouterr().out
    assert "usage: python -m attnbook" in said
    assert "Attention from a dot product upwards" in said
    assert "print which array libraries and devices can be used here" in said


# move


NUMBERS = np.array([[0.0, -0.0, 1.5], [-2.0, np.inf, -np.inf]])


@pytest.mark.parametrize("dtype", [*HALF, "float32", "float64"])
def test_move_there_and_back(library, dtype):
    need(library, dtype)
    device = library.device if library.name == "torch" else None
    there = attnbook.move(NUMBERS, library.name, device=device, dtype=dtype)
    assert library.same_kind(there, library.array(NUMBERS, dtype))
    back = attnbook.move(there, "numpy", dtype="float64")
    assert type(back) is np.ndarray
    assert back.dtype == np.float64
    np.testing.assert_array_equal(back, NUMBERS)
    assert np.signbit(back[0, 1])


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "uint8", "complex64", "complex128"])
def test_move_keeps_other_dtypes(library, dtype):
    x = np.array([0, 1, 2]).astype(dtype)
    there = attnbook.move(x, library.name)
    assert dtype_name(there.dtype) == dtype
    back = attnbook.move(there, "numpy")
    assert back.dtype == x.dtype
    np.testing.assert_array_equal(back, x)


def test_move_between_two_others(library):
    x = attnbook.move(NUMBERS, "array_api_strict", dtype="float32")
    there = attnbook.move(x, library.name)
    assert dtype_name(there.dtype) == "float32"
    np.testing.assert_array_equal(library.numpy(there), NUMBERS)


def test_move_of_bfloat16_is_exact():
    x = torch.tensor([1 + 2.0**-7, 3.0e38, 1e-40], dtype=torch.bfloat16)
    got = attnbook.move(x, "numpy", dtype="float32")
    np.testing.assert_array_equal(got, x.float().numpy())
    back = attnbook.move(got, "torch", dtype="bfloat16")
    assert torch.equal(back, x)


def test_move_within_a_library_keeps_what_is_there(library):
    x = library.array(NUMBERS, "float32")
    same = attnbook.move(x)
    assert library.same_kind(same, x)
    assert library.same_kind(attnbook.move(x, library.name), x)
    wide = attnbook.move(x, dtype="float64")
    assert library.same_kind(wide, library.array(NUMBERS, "float64"))
    np.testing.assert_array_equal(library.numpy(wide), NUMBERS)


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_move_within_a_library_copies_nothing(name):
    x = NUMBERS if name == "numpy" else torch.tensor(NUMBERS)
    assert attnbook.move(x) is x
    assert attnbook.move(x, device="cpu") is x


def test_move_to_another_library_is_a_copy(library):
    if library.name == "numpy":
        pytest.skip("the same library")
    x = np.zeros(3)
    there = attnbook.move(x, library.name)
    back = attnbook.move(there, "numpy")
    back[0], x[1] = 7, 8
    np.testing.assert_array_equal(library.numpy(there), np.zeros(3))


def test_move_takes_any_strides_and_byte_order(library):
    for x in (NUMBERS[::-1, ::2], NUMBERS.T, np.broadcast_to(NUMBERS[0], (4, 3))):
        np.testing.assert_array_equal(library.numpy(attnbook.move(x, library.name)), x)
    foreign = NUMBERS.astype(NUMBERS.dtype.newbyteorder())
    there = attnbook.move(foreign, library.name, dtype="float64")
    np.testing.assert_array_equal(library.numpy(there), NUMBERS)
    assert library.numpy(there).dtype.isnative


def test_move_within_torch_keeps_the_graph():
    x = torch.ones(3, requires_grad=True)
    attnbook.move(x, "torch", device="cpu", dtype="float64").sum().backward()
    assert x.grad.tolist() == [1, 1, 1]
    left = attnbook.move(x * 2, "numpy")
    assert isinstance(left, np.ndarray)
    assert torch.equal(attnbook.move(x.to(torch.complex64).conj(), "torch"), x.detach() + 0j)
    np.testing.assert_array_equal(attnbook.move((x + 1j).conj(), "numpy"), [1 - 1j] * 3)


def test_move_to_a_device():
    there = attnbook.move(np.ones(3), "torch", device="meta")
    assert there.device.type == "meta"
    assert attnbook.move(torch.ones(3), device="meta").device.type == "meta"


KNOWN = "bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, {}float32, float64, "
KNOWN += "complex64, complex128 for "
NUMPY = KNOWN.format("float16, ") + "numpy"
TORCH = KNOWN.format("float16, bfloat16, ") + "torch"
STRICT = KNOWN.format("") + "array_api_strict"
MOVES = {
    "a list": (
        ([1.0],),
        {},
        TypeError,
        "x must be an array of NumPy, CuPy, PyTorch or another Array API library, got list",
    ),
    "an unknown library": (
        (NUMBERS, "jax"),
        {},
        ValueError,
        "library_name must be one of numpy, torch, cupy, array_api_strict, got 'jax'",
    ),
    "no name of a library": (
        (NUMBERS, np),
        {},
        ValueError,
        f"library_name must be one of numpy, torch, cupy, array_api_strict, got {np!r}",
    ),
    "an unknown dtype": (
        (NUMBERS,),
        {"dtype": "float7"},
        ValueError,
        f"dtype must be one of {NUMPY}, got 'float7'",
    ),
    "no name of a dtype": (
        (NUMBERS,),
        {"dtype": np.float32},
        ValueError,
        f"dtype must be one of {NUMPY}, got {np.float32!r}",
    ),
    "a name of something else": (
        (NUMBERS, "torch"),
        {"dtype": "sum"},
        ValueError,
        f"dtype must be one of {TORCH}, got 'sum'",
    ),
    "bfloat16 to NumPy": (
        (torch.ones(2).bfloat16(), "numpy"),
        {"dtype": "bfloat16"},
        ValueError,
        f"dtype must be one of {NUMPY}, got 'bfloat16'",
    ),
    "float16 to the strict library": (
        (NUMBERS.astype(np.float16), "array_api_strict"),
        {},
        ValueError,
        f"dtype must be one of {STRICT}, got 'float16'",
    ),
    "objects": (
        (np.array([None]), "torch"),
        {},
        ValueError,
        f"dtype must be one of {TORCH}, got 'object'",
    ),
    "a device that NumPy lacks": (
        (NUMBERS,),
        {"device": "cuda"},
        ValueError,
        "x cannot be moved to numpy, device 'cuda': ValueError: Unsupported device 'cuda'",
    ),
    "a meta tensor": (
        (torch.ones(2, device="meta"), "numpy"),
        {},
        ValueError,
        "x cannot be moved to numpy, its default device: "
        "NotImplementedError: Cannot copy out of meta tensor; no data!",
    ),
}


@pytest.mark.parametrize("row", MOVES)
def test_move_error(row):
    arguments, options, kind, message = MOVES[row]
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        attnbook.move(*arguments, **options)


def test_move_to_an_absent_torch_device_gives_its_reason():
    with pytest.raises(ValueError, match=r"^x cannot be moved to torch, device 'elsewhere': Runt"):
        attnbook.move(NUMBERS, "torch", device="elsewhere")
    with pytest.raises(ValueError, match=r"^x cannot be moved to torch, device 'elsewhere': Runt"):
        attnbook.move(torch.ones(2), device="elsewhere")


@pytest.mark.parametrize(
    ("name", "extra"), [("torch", "torch"), ("cupy", "gpu-cuda13"), ("array_api_strict", "test")]
)
def test_move_to_an_absent_library_says_how_to_get_it(pretend, name, extra):
    pretend(**{name: None})
    message = f"{name} is not installed; pip install 'attnbook[{extra}]'"
    with pytest.raises(ImportError, match=f"^{re.escape(message)}$"):
        attnbook.move(NUMBERS, name)
    pretend(**{name: OSError("broken")})
    message = f"importing {name} fails with OSError: broken; pip install 'attnbook[{extra}]'"
    with pytest.raises(ImportError, match=f"^{re.escape(message)}$"):
        attnbook.move(NUMBERS, name)


def test_move_out_of_cupy_asks_it_for_its_numbers():
    array = SimpleNamespace(get=lambda: NUMBERS)
    np.testing.assert_array_equal(_to_numpy(array, "cupy"), NUMBERS)


def test_bfloat16_becomes_float32_where_it_is_unknown():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    moved = attnbook.move(x, "numpy")
    assert moved.dtype == np.float32
    assert moved.tolist() == [1.5, -2.0]
    assert attnbook.move(x, "torch").dtype == torch.bfloat16
