"""Reading safetensors with NumPy alone, against the library that writes them."""

import json

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from attnbook.models import read_safetensors
from attnbook.training import load_weights

RNG = np.random.default_rng(0)
KINDS = ("bool", *(f"{sign}int{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64)))
KINDS += ("float16", "float32", "float64")
ARRAYS = {kind: (RNG.standard_normal((3, 5)) * 9).astype(kind) for kind in KINDS}
ARRAYS |= {"empty": np.ones((0, 7)), "number": np.array(3.5), "other": np.ones((2, 1, 3), "f4")}


@pytest.fixture
def path(tmp_path):
    save_file(ARRAYS, tmp_path / "x.safetensors", {"format": "pt"})
    return tmp_path / "x.safetensors"


def test_every_dtype_and_shape_comes_back(path):
    got = read_safetensors(str(path))
    assert got.keys() == ARRAYS.keys()
    for name, x in got.items():
        assert type(x) is np.ndarray
        assert not x.flags.writeable
        np.testing.assert_array_equal(x, ARRAYS[name], strict=True)


def test_bfloat16_becomes_float32(tmp_path):
    x = torch.tensor([1.0, -2.5, 3e38, 1e-40, float("inf")], dtype=torch.bfloat16)
    save_torch({"x": x}, tmp_path / "x.safetensors")
    got = read_safetensors(tmp_path / "x.safetensors")["x"]
    np.testing.assert_array_equal(got, x.float().numpy(), strict=True)
    assert not got.flags.writeable


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 1, exclude_max=True))
def test_no_part_of_a_file_is_taken_for_the_whole(path, share):
    content = path.read_bytes()
    part = path.with_name("part")
    part.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"part must be a whole file of safetensors, got "):
        read_safetensors(part)


def file_of(header):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(16)


ENTRY = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04 an archive of something",
        file_of(b"{"),
        file_of([]),
        file_of({"x": 3}),
        file_of({"x": {"dtype": "F32", "shape": [4]}}),
        file_of({"x": ENTRY | {"dtype": "F8_E4M3"}}),  # four bytes in sixteen
        file_of({"x": ENTRY | {"dtype": 8}}),
        file_of({"x": ENTRY | {"data_offsets": [0, 16.0]}}),
        file_of({"x": ENTRY | {"shape": [5]}}),
        file_of({"x": ENTRY | {"shape": [-1]}}),
        file_of({"x": ENTRY | {"shape": 4}}),
        file_of({"x": ENTRY | {"data_offsets": [0, 20]}}),
        file_of({"x": ENTRY | {"data_offsets": [-16, 16]}}),
        file_of({"x": ENTRY | {"data_offsets": [16, 0]}}),
        file_of({"x": ENTRY | {"data_offsets": [0, 15]}}),
        file_of({"x": ENTRY | {"data_offsets": ["0", "16"]}}),
    ],
)
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match=r"x must be a whole file of safetensors, got "):
        read_safetensors(tmp_path / "x")


@pytest.mark.parametrize(
    "odd", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz"]
)
def test_one_array_of_an_odd_dtype_leaves_the_others(tmp_path, odd):
    path = tmp_path / "mixed.safetensors"
    x = torch.arange(6.0).reshape(2, 3)
    tensors = {"a": x, "odd": x.to(getattr(torch, odd)), "z": x.to(torch.complex64) * 1j}
    try:
        save_torch(tensors, path)
    except KeyError:
        pytest.skip(f"this safetensors writes no {odd}")
    got = read_safetensors(path)
    assert set(got) == {"a", "odd", "z"}
    np.testing.assert_array_equal(got["a"], x.numpy(), strict=True)
    np.testing.assert_array_equal(got["z"], tensors["z"].numpy(), strict=True)
    message = r"mixed\.safetensors must have 'odd' in a dtype that NumPy knows .*, got F8_E"
    with pytest.raises(ValueError, match=message):
        got["odd"]
    with pytest.raises(ValueError, match=message):
        dict(got)
    with pytest.raises(KeyError):
        got["absent"]
    assert "odd" in repr(got)


INDEX = {"metadata": {"total_size": 9}, "weight_map": {"a": "model-1.safetensors", "b": "2"}}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize 12345\n"


@pytest.mark.parametrize(
    ("found", "content"),
    [
        ("an index of shards, whose arrays are in 2, model-1.safetensors", json.dumps(INDEX)),
        ("an index of shards, whose arrays are in 2, model-1", json.dumps(INDEX, indent=2)),
        ("an index of shards", json.dumps({"weight_map": {"x": "y"}}, separators=(",", ":"))),
        ("an index of shards", "\n" + json.dumps(INDEX)),
        ("a text of JSON", json.dumps({"model_type": "bert", "hidden_size": 3})),
        ("a Git LFS pointer", POINTER),
        ("a ZIP archive", "torch"),
        ("a pickle", "pickle"),
        ("a GGUF file", b"GGUF" + bytes(30)),
        ("a page of HTML", b"<!DOCTYPE html><html></html>"),
        ("an empty file", b""),
    ],
)
def test_another_file_is_called_what_it_is(tmp_path, found, content):
    """By both readers, that of published weights and that of the package's own files."""
    path = tmp_path / "model"
    if content in ("torch", "pickle"):
        new = content == "torch"
        torch.save({"x": torch.ones(3)}, path, _use_new_zipfile_serialization=new)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    for read, wanted in (
        (read_safetensors, "a whole file of safetensors"),
        (load_weights, "attnbook weights or attnbook checkpoint"),
    ):
        with pytest.raises(
            ValueError, match=rf"model must (be|hold) {wanted}, got {found}"
        ) as raised:
            read(path)
        assert str(path) in str(raised.value)


def test_what_is_no_path_and_what_is_not_there(tmp_path):
    with pytest.raises(TypeError, match=r"^path must be a path or a str, got int$"):
        read_safetensors(3)
    with pytest.raises(FileNotFoundError):
        read_safetensors(tmp_path / "x")
