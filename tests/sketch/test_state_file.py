"""A sketch that is written and read again is the same, and nothing else is read."""

import os
import pathlib
import sys

import numpy as np
import pytest

import attnbook
from attnbook.arrays import tensor_file
from attnbook.sketch import GivenHash, LearnedCells, LiftedHash, SimHash, StableHash
from attnbook.sketch.attention import SketchAttention
from attnbook.sketch.state_file import FORMER, SETTINGS

pytest.importorskip("safetensors")

RNG = np.random.default_rng(0)
KEY, VALUE, QUERY = RNG.normal(size=(211, 7)), RNG.normal(size=(211, 3)), RNG.normal(size=(13, 7))
HASHES = {
    "simhash": SimHash.init(1, 7, n_tables=3, n_projections=4),
    "stable": StableHash.init(2, 7, 4.0, n_tables=2, n_projections=3),
    "cells": LearnedCells.fit(4, KEY, 11, n_tables=2),
    "lifted": LiftedHash(SimHash.init(3, 8, n_tables=3, n_projections=3), 10.0),
}


def cast(library, x):
    return library.array(x, "float32")


def filled(hash=HASHES["simhash"], convert=np.asarray, **settings):
    """A sketch that has grown, lost keys and grown again."""
    if hasattr(hash, "to") and convert is not np.asarray:
        hash = hash.to(attnbook.arrays.array.library(convert(KEY)), dtype="float32")
    sketch = SketchAttention(hash, **settings)
    sketch.update(convert(KEY[:150]), convert(VALUE[:150]))
    sketch.remove([4, 0, 149])
    sketch.update(convert(KEY[150:200]), convert(VALUE[150:200]))
    sketch.remove([199])
    return sketch


def check_same(again, sketch, library, convert):
    """Two sketches give the same answers, now and after the same changes."""
    query = convert(QUERY)
    for step in range(3):
        assert len(again) == len(sketch)
        for got, expected in (
            (again.query(query), sketch.query(query)),
            (again.attention_weights(query), sketch.attention_weights(query)),
            ((again.attention_output(query),), (sketch.attention_output(query),)),
        ):
            for x, y in zip(got, expected, strict=True):
                assert library.same_kind(x, y)
                assert np.array_equal(library.numpy(x), library.numpy(y))
        if step == 0:
            new = [s.update(convert(KEY[200:]), convert(VALUE[200:])) for s in (again, sketch)]
            assert library.numpy(new[0]).tolist() == library.numpy(new[1]).tolist()
        if step == 1:
            for s in (again, sketch):
                s.remove([7, 201])
                s.merge()
    for s in (again, sketch):  # a removed id stays removed
        with pytest.raises(ValueError, match="got 4"):
            s.remove([4])


@pytest.mark.parametrize("name", list(HASHES))
def test_a_sketch_comes_back(tmp_path, library, name):
    if library.name == "array_api_strict":
        pytest.skip("files hold arrays of the libraries that users have")
    sketch = filled(HASHES[name], lambda x: cast(library, x))
    sketch.save(tmp_path / "sketch")
    again = SketchAttention.load(tmp_path / "sketch", library.name)
    check_same(again, sketch, library, lambda x: cast(library, x))


@pytest.mark.parametrize("impl", ["reference", "numba"])
@pytest.mark.parametrize(
    "settings",
    [
        {"estimator": "importance", "scale": 0.5},
        {"estimator": "duplicates", "scale": np.float32(0.25), "seed": 4},
        {"n_probes": 2},
    ],
    ids=["importance", "duplicates", "probes"],
)
def test_a_sketch_comes_back_with_all_settings(tmp_path, impl, settings):
    if impl == "numba":
        pytest.importorskip("numba")
    sketch = filled(impl=impl, **settings)
    expected = sketch.attention_output(QUERY)
    sketch.save(tmp_path / "sketch")
    again = SketchAttention.load(tmp_path / "sketch")
    assert {name: getattr(again, name) for name in SETTINGS} == {
        name: getattr(sketch, name) for name in SETTINGS
    }
    assert settings.keys() <= set(SETTINGS)
    assert np.array_equal(again.attention_output(QUERY), expected)


def test_another_implementation_may_go_on(tmp_path):
    pytest.importorskip("numba")
    sketch = filled(impl="numba")
    sketch.save(tmp_path / "sketch")
    again = SketchAttention.load(tmp_path / "sketch", impl="reference")
    assert (sketch.impl, again.impl) == ("numba", "reference")
    for x, y in zip(again.query(QUERY), sketch.query(QUERY), strict=True):
        assert np.array_equal(x, y)


def test_signatures_are_read_not_made_anew(tmp_path, monkeypatch):
    sketch = filled()
    sketch.save(tmp_path / "sketch")
    monkeypatch.setattr(SimHash, "signatures", lambda *_: pytest.fail("hashed again"))
    assert len(SketchAttention.load(tmp_path / "sketch")) == len(sketch)


@pytest.mark.parametrize("n", [0, 3])
def test_a_sketch_without_keys_comes_back(tmp_path, n):
    sketch = SketchAttention(HASHES["stable"])
    if n:
        sketch.update(KEY[:n])
        sketch.remove(np.arange(n))
    sketch.save(tmp_path / "sketch")
    again = SketchAttention.load(tmp_path / "sketch")
    assert len(again) == 0
    assert again.update(KEY).tolist() == list(range(n, n + 211))
    sketch.update(KEY)
    assert np.array_equal(again.attention_output(QUERY), sketch.attention_output(QUERY))


def test_keys_that_are_the_values_too_are_written_once(tmp_path):
    one, two = SketchAttention(HASHES["simhash"]), SketchAttention(HASHES["simhash"])
    one.update(KEY)
    two.update(KEY, KEY.copy())
    outputs = []
    for name, sketch in (("one", one), ("two", two)):
        sketch.save(tmp_path / name)
        outputs.append(SketchAttention.load(tmp_path / name).attention_output(QUERY))
    assert np.array_equal(*outputs)
    sizes = [os.path.getsize(tmp_path / name) for name in ("one", "two")]
    assert sizes[1] - sizes[0] > 0.9 * KEY.nbytes


def test_bfloat16_comes_back_in_pytorch_and_as_float32_elsewhere(tmp_path):
    torch = pytest.importorskip("torch")
    key = torch.tensor(KEY).bfloat16()
    sketch = SketchAttention(HASHES["simhash"].to("torch", dtype="bfloat16"))
    sketch.update(key)
    sketch.save(tmp_path / "sketch")
    again = SketchAttention.load(tmp_path / "sketch", "torch")
    query = torch.tensor(QUERY).bfloat16()
    assert again.attention_output(query).dtype == torch.bfloat16
    assert torch.equal(again.attention_output(query), sketch.attention_output(query))
    wide = SketchAttention.load(tmp_path / "sketch")
    assert wide.attention_output(np.float32(QUERY)).dtype == np.float32


# A hash of one's own


def by_sign(x):
    return x[:, 0] > 0


def test_a_hash_of_your_own_is_asked_for(tmp_path):
    hash = GivenHash(by_sign, lambda x: x[:, 1] > 0)
    sketch = filled(hash)
    sketch.save(tmp_path / "sketch")
    with pytest.raises(ValueError, match=r"hash must be that of the sketch in .*, got None"):
        SketchAttention.load(tmp_path / "sketch")
    again = SketchAttention.load(tmp_path / "sketch", hash=hash)
    assert np.array_equal(again.attention_output(QUERY), sketch.attention_output(QUERY))
    with pytest.raises(ValueError, match=r"signatures of shape \(196, 2\), not \(196, 1\)"):
        SketchAttention.load(tmp_path / "sketch", hash=GivenHash(by_sign))
    with pytest.raises(TypeError, match="hash must have n_tables and signatures, got function"):
        SketchAttention.load(tmp_path / "sketch", hash=by_sign)


def test_a_hash_of_a_class_made_of_ours_is_your_own(tmp_path):
    class Mine(SimHash):
        pass

    sketch = filled(Mine(HASHES["simhash"].directions))
    sketch.save(tmp_path / "sketch")
    with pytest.raises(ValueError, match="hash must be that of the sketch"):
        SketchAttention.load(tmp_path / "sketch")


def test_a_hash_is_not_given_for_a_sketch_that_has_one(tmp_path):
    filled().save(tmp_path / "sketch")
    with pytest.raises(TypeError, match=r"hash must be None, since .* holds one, got SimHash"):
        SketchAttention.load(tmp_path / "sketch", hash=HASHES["simhash"])


# What is refused


def test_only_paths_are_written_to(tmp_path):
    for call in (lambda: filled().save({}), lambda: SketchAttention.load({})):
        with pytest.raises(TypeError, match="path must be a path or a str, got dict"):
            call()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"library": "jax"}, "library must be one of numpy, torch, .*, got 'jax'"),
        ({"impl": "fast"}, "impl must be one of reference, numba, cupy, got 'fast'"),
        ({"library": "torch", "impl": "numba"}, "library must be numpy for impl 'numba', got 'tor"),
        ({"library": "numpy", "impl": "cupy"}, "library must be cupy for impl 'cupy', got 'numpy'"),
    ],
)
def test_choices_of_load_are_named(tmp_path, arguments, message):
    filled().save(tmp_path / "sketch")
    with pytest.raises(ValueError, match=message):
        SketchAttention.load(tmp_path / "sketch", **arguments)


def test_an_implementation_that_is_not_there_says_so(tmp_path, monkeypatch):
    filled().save(tmp_path / "sketch")
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError, match="cupy"):
        SketchAttention.load(tmp_path / "sketch", impl="cupy")


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        SketchAttention.load(tmp_path / "sketch")


def test_files_of_weights_are_no_sketches(tmp_path):
    from attnbook.training import checkpoints as checkpoint

    weights = attnbook.SingleHeadWeights.init(0, 8, d_k=3, d_v=5)
    checkpoint.save_weights(tmp_path / "weights", weights)
    with pytest.raises(ValueError, match="must hold attnbook sketch, got attnbook weights"):
        SketchAttention.load(tmp_path / "weights")
    filled().save(tmp_path / "sketch")
    with pytest.raises(ValueError, match="got attnbook sketch"):
        checkpoint.load_weights(tmp_path / "sketch")


def test_every_truncation_and_damage_is_found(tmp_path):
    path = tmp_path / "sketch"
    sketch = SketchAttention(SimHash.init(0, 2, n_tables=1))
    sketch.update(KEY[:3, :2])
    sketch.save(path)
    good = path.read_bytes()
    for size in (*range(0, 12), *range(12, len(good), 37), len(good) - 1):
        path.write_bytes(good[:size])
        with pytest.raises(ValueError, match="must hold attnbook sketch, got "):
            SketchAttention.load(path)
    for place in range(8, len(good), 23):
        damaged = bytearray(good)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="must hold attnbook sketch, got "):
            SketchAttention.load(path)
    path.write_bytes(good)
    assert len(SketchAttention.load(path)) == 3


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda a, c: a.update(live=a["live"] + 9), "live keys beyond the 200 that there are"),
        (lambda a, c: a.update(live=a["live"] - 9), "live keys beyond the 200 that there are"),
        (lambda a, c: a.update(live=a["live"][::-1].copy()), "live that is no ascending int64"),
        (lambda a, c: a.update(live=a["live"] * 1.0), "live that is no ascending int64 array"),
        (lambda a, c: a.update(live=a["live"][:, None]), "live that is no ascending int64 array"),
        (lambda a, c: a.update(live=a["live"][1:]), r"signatures of shape \(196, 3\), not \(195,"),
        (lambda a, c: a.update(signatures=a["signatures"] * 1.0), "signatures of shape"),
        (lambda a, c: a.update(key=a["key"][:, 0]), r"key must have shape \(m, d\)"),
        (lambda a, c: a.update(key=a["key"][0, 0]), "live keys beyond the 0 that there are"),
        (lambda a, c: a.update(key=a["key"] * np.nan), "key must be finite"),
        (lambda a, c: a.update(value=a["value"][:9]), "value must have shape"),
        (lambda a, c: a.pop("signatures"), "'signatures'"),
        (lambda a, c: a.pop("hash.directions"), "directions"),
        (lambda a, c: c.update(hash={"class": "system"}), "a 'system', which no sketch has"),
        (lambda a, c: c.update(hash=[]), ""),
        (lambda a, c: c["hash"].update(plain={"n": 1}), "n"),
        (lambda a, c: c["settings"].pop("seed"), "'seed'"),
        (lambda a, c: c["settings"].update(seed=-1), "seed must be at least 0, got -1"),
        (lambda a, c: c["settings"].update(impl="x"), "impl must be one of"),
        (lambda a, c: c["settings"].update(impl=[]), "impl"),
        (lambda a, c: c.clear(), "'settings'"),
    ],
)
def test_forged_files_build_nothing(tmp_path, change, found):
    sketch = filled()
    sketch.save(tmp_path / "sketch")
    kind, arrays, _, content = tensor_file.read(tmp_path / "sketch", "sketch")
    change(arrays, content)
    tensor_file.write(tmp_path / "sketch", kind, arrays, content)
    with pytest.raises(ValueError, match=f"must hold an attnbook sketch, got .*{found}"):
        SketchAttention.load(tmp_path / "sketch")


# Files that were written before


def test_a_file_of_an_earlier_version_answers_as_before():
    """`plain.safetensors` was written when sketches had more options; it has their defaults."""
    rng = np.random.default_rng(0)
    key, value, query = (rng.standard_normal(size) for size in ((61, 7), (61, 3), (5, 7)))
    path = pathlib.Path(__file__).with_name("plain.safetensors")
    assert FORMER.items() <= tensor_file.read(path, "sketch")[3]["settings"].items()
    sketch = SketchAttention.load(path)
    assert len(sketch) == 58
    assert (sketch.estimator, sketch.scale, sketch.seed) == ("importance", 0.5, 3)
    again = SketchAttention(sketch.hash, **{name: getattr(sketch, name) for name in SETTINGS})
    again.update(key[:50], value[:50])
    again.remove([4, 0, 49])
    again.update(key[50:], value[50:])
    assert np.array_equal(sketch.query(query)[0], again.query(query)[0])
    np.testing.assert_allclose(
        sketch.attention_output(query), again.attention_output(query), rtol=1e-12
    )
    with pytest.raises(ValueError, match="each named once, got 49"):
        sketch.remove([49])


def test_a_file_that_sets_an_option_of_an_earlier_version_is_refused():
    """`lifted.safetensors` was written with a tail, and with heavy keys."""
    path = pathlib.Path(__file__).with_name("lifted.safetensors")
    with pytest.raises(
        ValueError, match=r"got .*tail='moments', an option that sketches no longer"
    ):
        SketchAttention.load(path)


def test_lengths_of_numpy_can_be_written(tmp_path):
    longest = np.linalg.norm(KEY.astype(np.float32), axis=1).max()
    sketch = SketchAttention(LiftedHash(SimHash.init(3, 8, 3, 3), longest * 2))
    sketch.update(KEY, VALUE)
    sketch.save(tmp_path / "sketch")
    assert SketchAttention.load(tmp_path / "sketch").hash.longest == float(longest * 2)
