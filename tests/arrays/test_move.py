"""move(): an array to another library, device or dtype."""

import importlib
import importlib.util
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cases import HALF, need
from error_table import assert_raises, error_rows

import attnbook
from attnbook.arrays.array import dtype_name
from attnbook.arrays.move import _to_numpy

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
    for dtype in (None, "float64"):
        there = attnbook.move(foreign, library.name, dtype=dtype)
        np.testing.assert_array_equal(library.numpy(there), NUMBERS)
        assert attnbook.move(there, "numpy").dtype == np.float64  # which CuPy does only when asked


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


DTYPES = (
    "bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, {}float32, float64, "
    "complex64, complex128 for {}"
)
LIBRARIES = "numpy, torch, cupy, array_api_strict"
MOVES = f"""
move([1.0])
    TypeError: x must be an array of NumPy, CuPy, PyTorch or another Array API library, got list
move(x, "jax")
    ValueError: library_name must be one of {LIBRARIES}, got 'jax'
move(x, np)
    ValueError: library_name must be one of {LIBRARIES}, got {np!r}
move(x, dtype="float7")
    ValueError: dtype must be one of {DTYPES.format("float16, ", "numpy")}, got 'float7'
move(x, dtype=np.float32)
    ValueError: dtype must be one of {DTYPES.format("float16, ", "numpy")}, got {np.float32!r}
move(x, "torch", dtype="sum")
    ValueError: dtype must be one of {DTYPES.format("float16, bfloat16, ", "torch")}, got 'sum'
move(torch.ones(2).bfloat16(), "numpy", dtype="bfloat16")
    ValueError: dtype must be one of {DTYPES.format("float16, ", "numpy")}, got 'bfloat16'
move(x.astype(np.float16), "array_api_strict")
    ValueError: dtype must be one of {DTYPES.format("", "array_api_strict")}, got 'float16'
move(np.array([None]), "torch")
    ValueError: dtype must be one of {DTYPES.format("float16, bfloat16, ", "torch")}, got 'object'
move(x, device="cuda")
    ValueError: x cannot be moved to numpy, device 'cuda': ValueError: Unsupported device 'cuda'
move(torch.ones(2, device="meta"), "numpy")
    ValueError: x cannot be moved to numpy, its default device:
    NotImplementedError: Cannot copy out of meta tensor; no data!
"""


@pytest.mark.parametrize(("call", "kind", "message"), error_rows(MOVES))
def test_move_error(call, kind, message):
    names = {"move": attnbook.move, "x": NUMBERS, "np": np, "torch": torch}
    assert_raises(call, kind, message, names)


def test_move_to_an_absent_torch_device_gives_its_reason():
    with pytest.raises(ValueError, match=r"^x cannot be moved to torch, device 'elsewhere': Runt"):
        attnbook.move(NUMBERS, "torch", device="elsewhere")
    with pytest.raises(ValueError, match=r"^x cannot be moved to torch, device 'elsewhere': Runt"):
        attnbook.move(torch.ones(2), device="elsewhere")


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("torch", "torch"),
        ("cupy", "'cupy-cuda13x[ctk]' (or 'cupy-cuda12x[ctk]', as the driver asks)"),
        ("array_api_strict", "array-api-strict"),
    ],
)
def test_move_to_an_absent_library_says_how_to_get_it(monkeypatch, name, package):
    remedy = f"; pip install {package}"
    real = importlib.import_module

    def broken(module, *rest):
        if module == name:
            raise OSError("broken")
        return real(module, *rest)

    names = {"move": attnbook.move, "x": NUMBERS}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(importlib, "import_module", broken)
    message = f"importing {name} fails with OSError: broken{remedy}"
    assert_raises(f"move(x, {name!r})", ImportError, message, names)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = f"{name} is not installed{remedy}"
    assert_raises(f"move(x, {name!r})", ImportError, message, names)


def test_move_out_of_cupy_asks_it_for_its_numbers():
    array = SimpleNamespace(get=lambda: NUMBERS)
    np.testing.assert_array_equal(_to_numpy(array, "cupy"), NUMBERS)


def test_bfloat16_becomes_float32_where_it_is_unknown():
    x = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    moved = attnbook.move(x, "numpy")
    assert moved.dtype == np.float32
    assert moved.tolist() == [1.5, -2.0]
    assert attnbook.move(x, "torch").dtype == torch.bfloat16
