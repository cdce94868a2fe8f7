"""Files of weights and checkpoints come back as they were, or say what is wrong with them."""

import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from cases import need
from error_table import assert_raises, error_rows
from train_models import Small, heeding_interrupts, settings, small_batches, weights_of

import attnbook
from attnbook.arrays import tensor_file
from attnbook.arrays.weights import Weights
from attnbook.data import Batches
from attnbook.nn import Transformer
from attnbook.training.checkpoints import Progress, load, load_weights, save, save_weights
from attnbook.training.loop import History, train


@pytest.fixture(autouse=True)
def _interrupts():
    with heeding_interrupts():
        yield


TREES = {
    "one head": lambda: attnbook.SingleHeadWeights.init(0, 5, d_k=3, d_v=2),
    "heads": lambda: attnbook.MultiHeadWeights.init(0, 6, 2, n_kv_heads=1, bias=True),
    "norm": lambda: attnbook.LayerNormWeights.init(5),
    "encoder": lambda: attnbook.EncoderWeights.init(0, 2, 6, 2, 7, norm="post", activation="gelu"),
    "block": lambda: attnbook.TransformerBlockWeights.init(0, 6, 6, 2, 6),
    "transformer": lambda: attnbook.TransformerWeights.init(
        0, 11, 13, d_model=6, n_heads=2, d_ff=7, n_layers=2, n_encoder_layers=1, tied=False
    ),
    "language model": lambda: attnbook.TransformerWeights.init(
        0, 11, d_model=6, n_heads=3, d_ff=7, n_layers=1, n_encoder_layers=0, positions="rotary"
    ),
    "learned positions": lambda: attnbook.TransformerWeights.init(
        0, 11, d_model=6, n_heads=2, d_ff=7, n_layers=1, positions="learned", n_positions=17
    ),
}


def plain(weights):
    """Return everything of `weights` that is no array, with the classes, for comparison."""
    if isinstance(weights, Weights):
        arrays = {id(x) for x in weights.arrays().values()}
        values = {name: plain(x) for name, x in vars(weights).items() if id(x) not in arrays}
        return type(weights), values
    return tuple(map(plain, weights)) if isinstance(weights, tuple) else weights


def assert_same(got, expected):
    """Assert that both have the same classes, fields, dtypes, and arrays bit for bit."""
    assert plain(got) == plain(expected)
    ours, theirs = got.arrays(), expected.arrays()
    assert list(ours) == list(theirs)
    for name, x in theirs.items():
        assert str(ours[name].dtype).split(".")[-1] == str(x.dtype).split(".")[-1]
        np.testing.assert_array_equal(
            attnbook.move(ours[name], "numpy"), attnbook.move(x, "numpy"), strict=True
        )


# Weights


@pytest.mark.parametrize("tree", TREES)
def test_weights_come_back(tmp_path, tree):
    weights = TREES[tree]()
    save_weights(tmp_path / "weights", weights)
    got = load_weights(tmp_path / "weights")
    assert_same(got, weights)
    for x in got.arrays().values():
        assert isinstance(x, np.ndarray)
        x += 1  # they are the caller's own, and writable
    assert os.listdir(tmp_path) == ["weights"]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_weights_of_every_library(tmp_path, library, dtype):
    need(library, dtype)
    weights = TREES["heads"]().to(dtype=dtype)
    save_weights(tmp_path / "weights", weights.to(library.name))
    assert_same(load_weights(tmp_path / "weights"), weights)
    got = load_weights(str(tmp_path / "weights"), library.name)
    assert {attnbook.arrays.array.library(x) for x in got.arrays().values()} == {library.name}
    assert_same(got, weights)


def test_bfloat16_comes_back_in_pytorch_and_as_float32_elsewhere(tmp_path):
    weights = TREES["heads"]().to("torch", dtype="bfloat16")
    save_weights(tmp_path / "weights", weights)
    assert_same(load_weights(tmp_path / "weights", "torch"), weights)
    assert_same(load_weights(tmp_path / "weights"), weights.to("numpy", dtype="float32"))


def test_trained_parameters_and_odd_arrays_are_saved(tmp_path):
    weights = TREES["one head"]().to("torch")
    trained = weights.with_arrays(
        {name: torch.nn.Parameter(x.mT.contiguous().mT) for name, x in weights.arrays().items()}
    )
    save_weights(tmp_path / "weights", trained)
    assert_same(load_weights(tmp_path / "weights", "torch"), weights)
    empty = attnbook.SingleHeadWeights(np.ones((0, 3)), np.ones((0, 3)), np.ones((0, 0)))
    save_weights(tmp_path / "weights", empty)
    assert_same(load_weights(tmp_path / "weights"), empty)
    backwards = attnbook.LayerNormWeights(*(np.arange(10.0).astype(">f8").reshape(2, 5)[:, ::-1]))
    save_weights(tmp_path / "weights", backwards)
    np.testing.assert_array_equal(load_weights(tmp_path / "weights").gain, [4, 3, 2, 1, 0])
    np.testing.assert_array_equal(load_weights(tmp_path / "weights").bias, [9, 8, 7, 6, 5])


def test_loads_without_pytorch(tmp_path):
    save_weights(tmp_path / "weights", TREES["transformer"]())
    model = Holder(TREES["heads"]())
    run(tmp_path / "run", model)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from attnbook.training.checkpoints import load_weights\n"
        "print(load_weights(sys.argv[1]).target_embedding.shape)\n"
        "print(load_weights(sys.argv[2]).W_Q.shape)\n"
    )
    command = [sys.executable, "-W", "error", "-c", code, tmp_path / "weights", tmp_path / "run"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "(11, 6)\n(6, 6)\n"


def test_the_files_are_safetensors_with_json_and_the_names_of_the_arrays(tmp_path):
    weights = TREES["encoder"]()
    save_weights(tmp_path / "weights", weights)
    stored = safetensors.numpy.load_file(tmp_path / "weights")
    assert stored.keys() == weights.arrays().keys()
    for name, x in weights.arrays().items():
        np.testing.assert_array_equal(stored[name], x)
    run(tmp_path / "run")
    data = (tmp_path / "run").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    metadata = header.pop("__metadata__")
    assert (metadata["format"], metadata["version"]) == ("attnbook checkpoint", "1")
    content = json.loads(metadata["content"], parse_constant=pytest.fail)["content"]
    assert content["settings"]["lr"] == 0.03
    assert {name.split(".")[0] for name in header} == {"model", "optimizer", "history"}


@dataclass(frozen=True, eq=False)
class Foreign(attnbook.LayerNormWeights):
    """A class of a user."""


NORM = (np.ones(3), np.zeros(3))
NAMESAKE = type("LayerNormWeights", (Foreign,), {})(*NORM)  # the name alone is not enough
ERRORS = r"""
save_weights("file", {"W_Q": np.ones(3)})
    TypeError: weights must be Weights, got dict
save_weights("file", Foreign(*NORM))
    TypeError: weights must be of a class of attnbook, got Foreign
save_weights("file", NAMESAKE)
    TypeError: weights must be of a class of attnbook, got LayerNormWeights
save_weights({}, TREES["norm"]())
    TypeError: path must be a path or a str, got dict
load_weights(3)
    TypeError: path must be a path or a str, got int
load_weights("file", "jax")
    ValueError: library must be one of numpy, torch, cupy, array_api_strict, got 'jax'
"""


@pytest.mark.parametrize(("call", "kind", "message"), error_rows(ERRORS))
def test_saving_and_loading_refuse(tmp_path, monkeypatch, call, kind, message):
    monkeypatch.chdir(tmp_path)
    assert_raises(call, kind, message, globals())
    assert os.listdir(tmp_path) == []


def test_a_checkpoint_of_the_first_version_loads_and_goes_on(tmp_path):
    """The file has four updates, made before modules moved to where they are now."""
    path = tmp_path / "run"
    path.write_bytes(Path(__file__).with_name("version_1.safetensors").read_bytes())
    sizes = {"d_model": 4, "n_heads": 2, "d_ff": 3, "n_layers": 1, "n_encoder_layers": 0}
    weights = attnbook.TransformerWeights.init(1, 5, **sizes)
    assert plain(load_weights(path)) == plain(weights)
    batches = Batches(None, [[3, 4, 3, 4, 3, 4]] * 3, batch_size=2, start=None, stop=None)
    models = [Transformer(weights.to("torch", dtype="float64")) for _ in range(2)]
    for model, checkpoint in zip(models, (path, None), strict=True):
        history = train(model, batches, settings(6, 0.05, seed=3), checkpoint=checkpoint)
    for got, expected in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
    assert history.step == 6


FORGED = [
    ({"class": "system", "fields": {}}, "a structure of a class that attnbook does not have"),
    ({"class": "Backend", "fields": {}}, "a structure of a class that attnbook does not have"),
    ({"class": "_arrays", "fields": {}}, "a structure of a class that attnbook does not have"),
    ({"fields": {}}, "a structure of a class that attnbook does not have, None"),
    ({"class": "LayerNormWeights"}, "a structure of a class that attnbook does not have"),
    ({"class": "LayerNormWeights", "fields": {"no": 1}}, "LayerNormWeights"),
    (
        {"class": "LayerNormWeights", "fields": {"gain": {"array": "gone"}, "bias": None}},
        "a structure whose array 'gone' is not in the file",
    ),
    (
        {"class": "LayerNormWeights", "fields": {"gain": {"array": "x"}, "bias": None}},
        "arrays that are no part of the structure",
    ),
    (3, "weights must be Weights, got int"),
    ({"array": "x"}, "weights must be Weights, got ndarray"),
    ([], "weights must be Weights, got tuple"),
]


@pytest.mark.parametrize(("content", "found"), FORGED, ids=str)
def test_forged_structures_build_nothing(tmp_path, content, found):
    arrays = {"x": np.ones(3), "y": np.ones(3)}
    tensor_file.write(tmp_path / "weights", "weights", arrays, content)
    with pytest.raises(ValueError, match=f"weights must hold attnbook weights, got .*{found}"):
        load_weights(tmp_path / "weights")


# Damaged and foreign files


def run(path, model=None, **others):
    """Train for two updates; return model, optimizer and progress as the file at `path` has them.

    A model without a forward of a transformer gets a loss that needs no batch.
    """
    model = Small(d_model=2) if model is None else model
    chosen = settings(2, **others)
    optimizer = torch.optim.AdamW(model.parameters())
    sum((p**2).sum() for p in model.parameters()).backward()
    optimizer.step()
    progress = Progress(chosen, History([1.0, 2.0], [0.1, 0.2], [3.0, 4.0], [(2, 0.5)]))
    save(path, model, optimizer, progress)
    return model, optimizer, progress


def refuses(path, message="must hold attnbook checkpoint, got "):
    """Assert that neither reader accepts the file, and model and optimizer stay as they are."""
    model = Small(d_model=2, seed=3)
    optimizer = torch.optim.AdamW(model.parameters())
    before = weights_of(model)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        load(path, model, optimizer, settings(2))
    assert str(path) in str(caught.value)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert not optimizer.state
    with pytest.raises(ValueError, match=re.escape(str(path))):
        load_weights(path)


def test_a_flipped_bit_of_every_byte_and_truncations_are_found(tmp_path):
    path = tmp_path / "run"
    save_weights(path, attnbook.LayerNormWeights(np.ones(2), np.zeros(2)))
    good = path.read_bytes()
    assert len(good) < 800
    damaged = [good[:size] for size in range(0, len(good), 5)] + [good + b"\0"]
    for place, byte in enumerate(good):
        damaged.append(good[:place] + bytes([byte ^ 1 << (place % 8)]) + good[place + 1 :])
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"run must hold attnbook weights"):
            load_weights(path)
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))  # where the last number stands
    message = r"got a damaged file: its numbers do not have the stored checksum$"
    with pytest.raises(ValueError, match=message):
        load_weights(path)


def test_headers_of_every_length_are_read(tmp_path):
    """The first byte of a file is that of the length, which goes in steps of 8."""
    path, lengths = tmp_path / "file", set()
    for size in range(1, 257, 8):
        tensor_file.write(path, "weights", {"x" * size: np.ones(1)}, None)
        lengths.add(path.read_bytes()[0])
        assert tensor_file.read(path, "weights")[1].keys() == {"x" * size}
    assert len(lengths) == 32


def test_damaged_checkpoints_are_refused(tmp_path):
    path = tmp_path / "run"
    run(path)
    good = path.read_bytes()
    for place in np.linspace(9, len(good) - 1, 40).astype(int):
        damaged = bytearray(good)
        damaged[place] ^= 4
        path.write_bytes(damaged)
        refuses(path)
        path.write_bytes(good[:place])
        refuses(path)


KILLED = """
import os, sys
from attnbook.arrays import tensor_file
import numpy as np
tensor_file.os.fsync = lambda file: (print("writing", flush=True), sys.stdin.read(), os._exit(9))
tensor_file.write(sys.argv[1], "weights", {"x": np.ones(3)}, None)
"""


def test_what_killed_writers_left_is_removed_by_the_next(tmp_path):
    """And nothing else: the file of a writer that lives, of another path, with a fixed name."""
    path = tmp_path / "w[1].safetensors"  # as a pattern it would match other names
    old = path.with_name(f"{path.name}.partial")
    old.mkdir()  # what an older version left, or anybody
    other = tmp_path / "w1.safetensors.0123456789ab.partial"
    other.write_bytes(b"of another path")
    names = {old.name, other.name}
    run = (sys.executable, "-c", KILLED, str(path))
    writers = [
        subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)
    ]
    for writer in writers:
        assert writer.stdout.readline() == b"writing\n"
    assert len(list(tmp_path.iterdir())) == len(names) + 2
    writers[0].communicate(b"")  # it dies in the middle of its writing
    tensor_file.write(path, "weights", {"x": np.zeros(3)}, None)
    assert tensor_file.read(path, "weights")[1]["x"].tolist() == [0.0] * 3
    assert len(list(tmp_path.iterdir())) == len(names) + 2  # the new file, and the living one's
    writers[1].communicate(b"")
    tensor_file.write(path, "weights", {"x": np.zeros(3)}, None)
    assert {x.name for x in tmp_path.iterdir()} == names | {path.name}


class Trap:
    def __reduce__(self):
        return os.mkdir, ("trapped",)


def test_foreign_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, npy = tmp_path / "run", io.BytesIO()
    np.save(npy, np.ones(3))
    foreign = {
        "an empty file": lambda: path.write_bytes(b""),
        "a pickle": lambda: path.write_bytes(pickle.dumps(Trap())),
        "a ZIP archive": lambda: torch.save({"model": Small().state_dict()}, path),
        "a NumPy array": lambda: path.write_bytes(npy.getvalue()),
        "5 bytes that are no safetensors": lambda: path.write_bytes(b"hello"),
        "no safetensors file": lambda: path.write_bytes(b"hello world" * 100),
        "a file whose header cannot be read": lambda: path.write_bytes(
            (6).to_bytes(8, "little") + b"[[]]  "
        ),
        "a safetensors file of something else (metadata: none)": lambda: (
            safetensors.numpy.save_file({"x": np.ones(3)}, path)
        ),
        "a safetensors file of something else (metadata: epoch, format)": lambda: (
            safetensors.numpy.save_file({"x": np.ones(3)}, path, {"format": "pt", "epoch": "3"})
        ),
    }
    for found, write in foreign.items():
        write()
        refuses(path, found)
    assert not (tmp_path / "trapped").exists()


def test_other_versions_and_kinds_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "run"
    monkeypatch.setattr(tensor_file, "VERSION", 2)
    run(path)
    monkeypatch.undo()
    refuses(path, "must hold attnbook checkpoint, got version 2 of its format, not 1")
    save_weights(path, TREES["norm"]())
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(ValueError, match=r"must hold attnbook checkpoint, got attnbook weights$"):
        load(path, model, optimizer, settings())
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing", model, optimizer, settings())
    with pytest.raises(FileNotFoundError):
        load_weights(tmp_path / "missing")


# Checkpoints


class Holder(torch.nn.Module):
    """A module whose parameters are Weights, as those of attnbook.nn."""

    def __init__(self, weights, dtype="float32"):
        super().__init__()
        self.like = weights.to("torch", dtype=dtype)
        for name, x in self.like.arrays().items():
            self.register_parameter(name, torch.nn.Parameter(x.clone()))

    @property
    def weights(self):
        return self.like.with_arrays(dict(self.named_parameters()))


def test_a_checkpoint_comes_back(tmp_path):
    model, optimizer, progress = run(tmp_path / "run")
    other = Small(d_model=2, seed=1)
    empty = torch.optim.AdamW(other.parameters())
    got = load(tmp_path / "run", other, empty, progress.settings)
    assert got.settings == progress.settings
    assert got.history == progress.history
    assert got.best is None
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
        assert (
            optimizer.state[p].keys() == empty.state[q].keys() == {"step", "exp_avg", "exp_avg_sq"}
        )
        for key, x in optimizer.state[p].items():
            assert torch.equal(x, empty.state[q][key])
            assert x.dtype == empty.state[q][key].dtype


def test_best_weights_and_the_scale_come_back(tmp_path):
    model, optimizer, progress = run(tmp_path / "run")
    best = Small(d_model=2, seed=5).state_dict()
    scaler = {"scale": 65536.0, "growth_factor": 2.0, "_growth_tracker": 3}
    save(tmp_path / "run", model, optimizer, replace(progress, best=best, scaler=scaler))
    got = load(tmp_path / "run", model, optimizer, progress.settings)
    assert got.scaler == scaler
    assert got.best.keys() == best.keys()
    assert all(torch.equal(got.best[name], x) for name, x in best.items())


def test_weights_of_a_checkpoint_are_those_that_training_leaves(tmp_path):
    model, optimizer, progress = run(tmp_path / "run", Holder(TREES["heads"]()))
    assert_same(load_weights(tmp_path / "run", "torch"), model.weights)
    better = Holder(attnbook.MultiHeadWeights.init(7, 6, 2, n_kv_heads=1, bias=True))
    save(tmp_path / "run", model, optimizer, replace(progress, best=better.state_dict()))
    assert_same(load_weights(tmp_path / "run"), better.weights.to("numpy"))
    run(tmp_path / "run", Holder(TREES["heads"](), dtype="bfloat16"))
    assert load_weights(tmp_path / "run", "torch").W_Q.dtype == torch.bfloat16


def test_a_model_without_weights_has_none_to_load(tmp_path):
    run(tmp_path / "run")
    message = "got the checkpoint of a model whose parameters are no Weights"
    with pytest.raises(ValueError, match=message):
        load_weights(tmp_path / "run")

    class Other(Holder):
        weights = TREES["one head"]().to("torch")  # of other names than its parameters

    class Wider(Holder):
        weights = attnbook.LayerNormWeights.init(7).to("torch")  # of other shapes

    for model in (Other(TREES["norm"]()), Wider(TREES["norm"]())):
        run(tmp_path / "run", model)
        with pytest.raises(ValueError, match=message):
            load_weights(tmp_path / "run")


OTHERS = [
    (
        lambda: Small(d_model=3),
        "must hold embed.weight of shape (8, 3) and dtype float32, got (8, 2) and float32",
    ),
    (
        lambda: Small(d_model=2, dtype=torch.float64),
        "must hold embed.weight of shape (8, 2) and dtype float64, got (8, 2) and float32",
    ),
    (
        lambda: torch.nn.Linear(2, 2),
        "must hold the 2 arrays of this model, got bias, weight missing and "
        "embed.weight, norm.bias, norm.weight and 2 more unknown",
    ),
]


@pytest.mark.parametrize(("other", "message"), OTHERS, ids=["width", "dtype", "names"])
def test_another_model_is_refused(tmp_path, other, message):
    path = tmp_path / "run"
    _, _, progress = run(path)
    model = other()
    before = weights_of(model)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} {re.escape(message)}$"):
        load(path, model, torch.optim.AdamW(model.parameters()), progress.settings)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_other_settings_are_refused(tmp_path):
    path = tmp_path / "run"
    model, optimizer, progress = run(path, warmup=1)
    chosen = progress.settings
    assert load(path, model, optimizer, replace(chosen, checkpoint_every=7)).settings != chosen
    assert load(path, model, optimizer, replace(chosen, steps=9)).history.step == 2
    message = "run must be of a run with the same settings, got lr = 0.03 there and 0.1 here, "
    message += "seed = 0 there and 4 here"
    with pytest.raises(ValueError, match=f"{re.escape(message)}$"):
        load(path, model, optimizer, replace(chosen, lr=0.1, seed=4))
    with pytest.raises(ValueError, match=r"steps must be at least the 2 that the run in .* got 1$"):
        load(path, model, optimizer, replace(chosen, steps=1))
    model, optimizer, progress = run(path, schedule="cosine")
    load(path, model, optimizer, progress.settings)
    with pytest.raises(ValueError, match=r"got steps = 2 there and 3 here$"):
        load(path, model, optimizer, replace(progress.settings, steps=3))


def test_training_refuses_what_is_no_checkpoint(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("do not overwrite me")
    with pytest.raises(ValueError, match=r"notes.txt must hold attnbook checkpoint"):
        train(Small(), small_batches(), settings(), checkpoint=path)
    assert path.read_text() == "do not overwrite me"


# At once or not at all


def failing(*_):
    raise OSError("no space left on device")


@pytest.mark.parametrize(
    ("broken", "how", "error"),
    [
        ("fsync", failing, OSError),
        ("replace", failing, OSError),
        ("fsync", lambda file: signal.raise_signal(signal.SIGINT), KeyboardInterrupt),
    ],
)
def test_a_failing_write_leaves_the_old_file_alone(tmp_path, monkeypatch, broken, how, error):
    path = tmp_path / "weights"
    save_weights(path, TREES["norm"]())
    good = path.read_bytes()
    monkeypatch.setattr(os, broken, how)
    with pytest.raises(error):
        save_weights(path, TREES["heads"]())
    monkeypatch.undo()
    assert path.read_bytes() == good
    assert os.listdir(tmp_path) == ["weights"]


def test_the_file_is_on_the_disk_before_its_name_is(tmp_path, monkeypatch):
    """Data first, then the name, then the directory that holds the name."""
    calls, fsync, rename = [], os.fsync, os.replace
    where = {tmp_path.stat().st_ino: "directory"}

    def synced(file):
        calls.append(("fsync", where.get(os.fstat(file).st_ino, "file"), os.fstat(file).st_size))
        fsync(file)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("replace"), rename(a, b)))
    save_weights(tmp_path / "weights", TREES["norm"]())
    assert [call[:2] if call != "replace" else call for call in calls] == [
        ("fsync", "file"),
        "replace",
        ("fsync", "directory"),
    ]
    assert calls[0][2] == (tmp_path / "weights").stat().st_size


WRITE = """
import sys, numpy as np, attnbook
path, gain = sys.argv[1], np.full(997, float(sys.argv[2]))
while True:
    attnbook.training.save_weights(path, attnbook.LayerNormWeights(gain, gain))
"""


def test_two_processes_write_to_one_path_and_a_third_reads_it(tmp_path):
    path = tmp_path / "weights"
    save_weights(path, attnbook.LayerNormWeights(np.zeros(997), np.zeros(997)))
    command = [sys.executable, "-c", WRITE, path]
    writers = [
        subprocess.Popen([*command, str(n)], stderr=subprocess.PIPE, text=True) for n in (1, 2)
    ]
    seen = set()
    try:
        while not {1.0, 2.0} <= seen:
            assert [writer.poll() for writer in writers] == [None, None]
            got = load_weights(path)
            assert len({*got.gain, *got.bias}) == 1
            seen.add(float(got.gain[0]))
    finally:
        for writer in writers:
            writer.kill()
            assert writer.communicate()[1] == ""
    assert len(list(tmp_path.iterdir())) <= 3  # a killed writer may leave an unfinished file


@pytest.mark.parametrize("frozen", ["then", "now"])
def test_other_trained_parameters_are_refused(tmp_path, frozen):
    models = {"then": Small(), "now": Small()}
    models[frozen].embed.requires_grad_(False)
    path, chosen = tmp_path / "run", settings(steps=3, lr=0.1)
    train(models["then"], small_batches(), chosen, checkpoint=path)
    where = "here" if frozen == "then" else "there"
    with pytest.raises(ValueError, match=rf"got embed.weight, which is trained {where} alone$"):
        train(models["now"], small_batches(), replace(chosen, steps=5), checkpoint=path)
