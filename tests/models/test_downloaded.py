"""Folders of downloaded models, as `transformers` writes them: whole or in shards, and bfloat16."""

import json
import os

import numpy as np
import pytest
import tiny_models
from safetensors.numpy import save_file
from tiny_models import assert_same, numbers, tokens, torch

import attnbook
from attnbook.models import from_folder, from_transformers, read_safetensors

NAME = "model.safetensors.index.json"


KINDS = (*("Llama", "Gemma3", "Phi3", "Mixtral", "Qwen3Moe", "GptOss", "DeepseekV2", "DeepseekV3"),)
"""Those whose files name the tensors in ways of their own."""


@pytest.fixture(scope="module")
def model():
    return tiny_models.llama().to(torch.bfloat16)


@pytest.fixture(scope="module", params=["whole", "shards"])
def folder(request, tmp_path_factory, model):
    path = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(path, max_shard_size="4KB" if request.param == "shards" else "1GB")
    assert len(list(path.glob("*.safetensors"))) > 3 or request.param == "whole"
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_holds_the_model_that_was_saved(kind, tmp_path):
    ids, model = tokens(), tiny_models.decoder(kind).to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="4KB")
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    judge = type(model).from_pretrained(tmp_path, dtype=torch.float32, **eager)
    weights = from_folder(tmp_path)
    assert {x.dtype for x in weights.arrays().values()} == {np.dtype("float32")}
    exact = judge(torch.tensor(ids)).logits
    assert_same(attnbook.transformer(None, ids, weights), exact, 1e-5)


def test_a_folder_holds_the_arrays_that_were_saved(folder, model):
    own = from_transformers(model.state_dict(), model.config).arrays()
    got = from_folder(folder).arrays()
    assert got.keys() == own.keys()
    for name, x in got.items():
        np.testing.assert_array_equal(x, numbers(own[name]), err_msg=name)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_a_folder_in_another_dtype(folder, dtype):
    exact = from_folder(str(folder)).arrays()
    for name, x in from_folder(folder, dtype=dtype).arrays().items():
        np.testing.assert_array_equal(x, exact[name].astype(dtype), err_msg=name, strict=True)


def test_a_folder_in_another_library(folder):
    exact = from_folder(folder).arrays()
    for name, x in from_folder(folder, "torch", dtype="bfloat16").arrays().items():
        assert x.dtype is torch.bfloat16
        np.testing.assert_array_equal(numbers(x), exact[name], err_msg=name)


def test_what_is_not_moved_is_mapped_into_memory(tmp_path):
    save_file({"a": np.arange(6.0)}, tmp_path / "1.safetensors")
    save_file({"b": np.ones(3), "c": np.zeros(2)}, tmp_path / "2.safetensors")
    homes = {"c": "2.safetensors", "a": "1.safetensors"}
    (tmp_path / NAME).write_text(json.dumps({"weight_map": homes}))
    got = read_safetensors(tmp_path / NAME)
    assert list(got) == ["c", "a"]
    assert len(got) == 2
    assert "b" not in got
    assert not got["a"].flags.owndata
    np.testing.assert_array_equal(got["a"], np.arange(6.0))
    with pytest.raises(KeyError):
        got["b"]
    assert repr(got) == f"read_safetensors({os.fspath(tmp_path / NAME)!r}): 2 arrays"


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        ("{", ValueError, "must be an index of shards, got no JSON: Expecting property name"),
        ("[1]", ValueError, "must be an index of shards with a weight_map, got other JSON"),
        ('{"weight_map": 3}', ValueError, "must be an index of shards with a weight_map, got"),
        ({"a": "../1"}, ValueError, r"must name a file of its folder for 'a', got '../1'"),
        ({"a": ".."}, ValueError, r"must name a file of its folder for 'a', got '..'"),
        ({"a": 1}, ValueError, "must name a file of its folder for 'a', got 1"),
        (
            {"a": "1.safetensors", "b": "2.safetensors", "c": "3.safetensors"},
            FileNotFoundError,
            "must hold the 3 shards that .* names, got 2.safetensors, 3.safetensors missing",
        ),
        (
            {"a": "1.safetensors", "b": "1.safetensors"},
            ValueError,
            "must name the shard of each array, got b not in the named shard",
        ),
    ],
)
def test_an_index_that_does_not_fit_its_folder(tmp_path, content, kind, message):
    save_file({"a": np.ones(2)}, tmp_path / "1.safetensors")
    content = content if isinstance(content, str) else json.dumps({"weight_map": content})
    (tmp_path / NAME).write_text(content)
    with pytest.raises(kind, match=message) as raised:
        read_safetensors(tmp_path / NAME)
    assert str(tmp_path) in str(raised.value)


def test_a_folder_that_lacks_a_file(tmp_path):
    with pytest.raises(TypeError, match=r"^path must be a path or a str, got int$"):
        from_folder(3)
    with pytest.raises(FileNotFoundError, match=r"^path must be a folder with config\.json, got "):
        from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"config\.json must be JSON, got Expecting"):
        from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    message = r"with model\.safetensors or .*, got .* with config\.json, pytorch_model\.bin$"
    with pytest.raises(FileNotFoundError, match=message):
        from_folder(tmp_path)
