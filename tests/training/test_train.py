"""Training does what it says, goes on bit for bit, and is the same on two processes."""

import functools
import json
import math
import re
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import need_gpu
from error_table import error_test
from forked import start
from safetensors.torch import load_file
from train_models import (
    BATCH_SIZE,
    Small,
    heeding_interrupts,
    language_batches,
    settings,
    small_batches,
    weights_of,
)

import attnbook
from attnbook import cross_entropy, transformer
from attnbook.data.batches import Batch, Batches
from attnbook.nn import Transformer
from attnbook.training.checkpoints import load_weights
from attnbook.training.loop import Settings, evaluate, train
from attnbook.training.replicas import Replicas, _leave, join
from attnbook.training.run import _seed, evaluating


@pytest.fixture(autouse=True)
def _interrupts():
    with heeding_interrupts():
        yield


def close(got, expected, tolerance=1e-12):
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def same(got, expected):
    """Whether two dictionaries hold the same tensors, bit for bit."""
    assert got.keys() == expected.keys()
    return all(torch.equal(got[name], expected[name]) for name in got)


# One update


def gradients(model, batch, smoothing=0.0):
    """Return the loss and its gradients, with PyTorch's own cross-entropy."""
    labels = torch.tensor(np.where(batch.label_mask, batch.labels, -100))
    mask = torch.tensor(batch.label_mask)[:, None, None]
    source_mask = None if batch.source is None else torch.tensor(batch.source_mask)
    source = None if batch.source is None else torch.tensor(batch.source)
    logits = model(source, torch.tensor(batch.inputs), source_mask=source_mask, target_mask=mask)
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing
    )
    names, parameters = zip(*model.named_parameters(), strict=True)
    return loss.item(), dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


@pytest.mark.parametrize("batches", [small_batches, language_batches])
@pytest.mark.parametrize("clip", [None, 0.01, 1e6])
def test_gradient_descent_is_params_minus_lr_times_grads(batches, clip):
    model, reference = (Small(dtype=torch.float64, drop=0.0) for _ in range(2))
    chosen = settings(3, 0.2, optimizer="sgd", clip=clip, label_smoothing=0.1, weight_decay=0.3)
    history = train(model, batches(), chosen)
    for step in range(3):
        loss, grads = gradients(reference, batches()(step), smoothing=0.1)
        norm = math.sqrt(sum(float((g**2).sum()) for g in grads.values()))
        shrink = min(1.0, (clip or math.inf) / (norm + 1e-6))  # as PyTorch does
        for name, p in reference.named_parameters():
            decay = 0.3 if p.ndim == 2 else 0.0
            p.data = p.data - 0.2 * (shrink * grads[name] + decay * p.data)
        assert history.losses[step] == pytest.approx(loss, rel=1e-12)
        assert history.gradient_norms[step] == pytest.approx(norm, rel=1e-12)
    for name, p in reference.named_parameters():
        close(dict(model.named_parameters())[name], p)


@pytest.mark.parametrize("parts", [2, 3, 6])
@pytest.mark.parametrize("batches", [small_batches, language_batches])
def test_the_parts_of_a_batch_make_the_update_of_the_whole(batches, parts):
    seen, models = [], [Small(drop=0, dtype=torch.float64) for _ in range(2)]
    models[1].embed.register_forward_hook(lambda module, given, out: seen.append(len(given[0])))
    options = {"lr": 0.1, "optimizer": "sgd", "clip": 0.05, "label_smoothing": 0.1}
    histories = [
        train(model, batches(), settings(steps=4, accumulate=n, **options))
        for model, n in zip(models, (1, parts), strict=True)
    ]
    for name in ("losses", "gradient_norms"):
        whole, added = (getattr(history, name) for history in histories)
        assert added == pytest.approx(whole, rel=1e-12)
    for whole, added in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(added, whole, rtol=1e-12, atol=1e-14)
    assert max(seen) <= -(-BATCH_SIZE // parts)  # no more rows at once


def test_frozen_parameters_stay():
    model = Small()
    model.embed.weight.requires_grad_(False)
    before = weights_of(model)
    train(model, small_batches(), settings(weight_decay=0.1))
    assert torch.equal(model.embed.weight, before["embed.weight"])
    assert not torch.equal(model.output.weight, before["output.weight"])


def test_another_loss_takes_the_place_of_the_default():
    seen = []

    def wrong(logits, labels, mask):
        seen.append((logits.detach().clone(), labels, mask))
        return cross_entropy(torch.softmax(logits, -1), labels, mask)

    model = Small(drop=0.0)
    history = train(model, small_batches(), settings(2), loss=wrong)
    for step, (logits, labels, mask) in enumerate(seen):
        batch = small_batches()(step)
        assert labels.tolist() == batch.labels.tolist()
        assert mask.tolist() == batch.label_mask.tolist()
        expected = cross_entropy(torch.softmax(logits, -1), labels, mask)
        assert history.losses[step] == pytest.approx(expected.item(), rel=1e-6)


def test_no_padding_needs_no_mask_of_the_target():
    masks = []

    class Spy(Small):
        def forward(self, source, inputs, *, source_mask=None, target_mask=None):
            masks.append(target_mask)
            return super().forward(source, inputs, source_mask=source_mask)

    full = Batches([[3, 4]] * 3, [[4, 3]] * 3, batch_size=3)
    ragged = Batches([[3, 4]] * 2, [[4, 3], [4]], batch_size=2)
    train(Spy(), full, settings(1))
    train(Spy(), ragged, settings(1))
    assert masks[0] is None
    assert masks[1].tolist() == ragged(0).label_mask[:, None, None].tolist()


# Modes, randomness, evaluation


def test_modes_and_gradients():
    modes, model = [], Small()

    def loss(logits, labels, mask):
        modes.append(("update", model.training, torch.is_grad_enabled()))
        return cross_entropy(logits, labels, mask)

    def validate(given):
        assert given is model
        modes.append(("evaluation", model.training, torch.is_grad_enabled()))
        return 0.0

    batches = small_batches()
    train(model.eval(), batches, settings(4, eval_every=2), loss=loss, validate=validate)
    update, evaluation = ("update", True, True), ("evaluation", False, False)
    assert modes == [update, update, evaluation, update, update, evaluation]
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(ZeroDivisionError):
        train(model, lambda step: batches(1 // (1 - step)), settings())
    assert not model.training


def test_dropout_has_its_own_seed_and_leaves_the_callers_generators_alone():
    torch.manual_seed(7)
    state = torch.get_rng_state()
    first = train(Small(), small_batches(), settings(seed=1)).losses
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(8)
    assert train(Small(), small_batches(), settings(seed=1)).losses == first
    assert train(Small(), small_batches(), settings(seed=2)).losses != first


def test_dropout_is_another_in_each_step_and_process():
    kept = []

    class Spy(Small):
        def forward(self, source, inputs, **masks):
            kept.append(self.drop(torch.ones(50)))
            return super().forward(source, inputs, **masks)

    train(Spy(), small_batches(), settings(5))
    assert len({tuple(draw.tolist()) for draw in kept}) == 5
    draws = []
    with torch.random.fork_rng():
        for rank in (0, 1, 0):
            _seed(3, 5, Replicas(rank, 2, torch.device("cpu")))
            draws.append(torch.rand(7).tolist())
    assert draws[0] == draws[2] != draws[1]


def test_random_numbers_of_an_evaluation_do_not_change_the_run():
    def validate(model):
        torch.rand(3)
        return 1.0

    evaluated = train(Small(), small_batches(), settings(eval_every=3), validate=validate)
    assert evaluated.losses == train(Small(), small_batches(), settings()).losses
    assert evaluated.evaluations == [(3, 1.0), (6, 1.0), (9, 1.0), (12, 1.0)]


@pytest.mark.parametrize(
    ("patience", "last", "best"), [(1, 3, 1), (2, 4, 1), (3, 5, 1), (None, 7, 6)]
)
def test_stops_early_with_the_best_weights(patience, last, best):
    script, seen = iter([5.0, 3.0, 4.0, 3.0, 3.5, 1.0, 2.0]), []

    def validate(model):
        seen.append(weights_of(model))
        return next(script)

    model, chosen = Small(), settings(14, eval_every=2, patience=patience)
    history = train(model, small_batches(), chosen, validate=validate)
    assert len(history.evaluations) == last
    assert history.step == 2 * last
    assert history.best == ((4, 3.0) if patience else (12, 1.0))
    assert same(weights_of(model), seen[best])  # without patience those of the last update


def test_evaluate_is_the_mean_over_all_tokens():
    model, batches = Small(dtype=torch.float64), small_batches()
    got = evaluate(model.train(), [batches(step) for step in range(3)])
    assert model.training
    model.eval()
    total = tokens = 0
    for step in range(3):
        n = int(batches(step).label_mask.sum())
        total, tokens = total + n * gradients(model, batches(step))[0], tokens + n
    assert got == pytest.approx(total / tokens, rel=1e-12)
    one = evaluate(model, [batches(0)], loss=lambda logits, labels, mask: logits.new_tensor(2.5))
    assert one == 2.5
    assert not model.training


# Going on from a checkpoint


def interrupting(batches, at):
    """Return `batches` with a Ctrl-C in step `at`."""

    def batch_of(step):
        if step == at:
            signal.raise_signal(signal.SIGINT)
        return batches(step)

    return batch_of


CHOICES = {
    "adamw": {"weight_decay": 0.1, "schedule": "cosine", "warmup": 3},
    "sgd": {"optimizer": "sgd", "clip": 0.5, "schedule": "inverse_sqrt"},
    "bfloat16": {"precision": "bfloat16"},
}


@pytest.mark.parametrize("choice", CHOICES)
def test_goes_on_bit_for_bit(tmp_path, choice):
    chosen = settings(14, **CHOICES[choice])  # 5 batches an epoch: 7 is in the middle of one
    straight, first, second = Small(), Small(), Small(seed=1)
    paths = [tmp_path / "straight.safetensors", tmp_path / "broken.safetensors"]
    history = train(straight, small_batches(), chosen, checkpoint=paths[0])
    with pytest.raises(KeyboardInterrupt):
        train(first, interrupting(small_batches(), 6), chosen, checkpoint=paths[1])
    with torch.random.fork_rng():
        torch.manual_seed(99)
        torch.rand(11)
        resumed = train(second, small_batches(), chosen, checkpoint=paths[1])
    assert resumed == history
    assert resumed.step == 14
    assert same(weights_of(second), weights_of(straight))
    files = [load_file(path) for path in paths]
    assert any(name.startswith("optimizer.") for name in files[0]) == (choice != "sgd")
    assert same(*files)  # the optimizer's state too


def test_scaled_loss_goes_on_bit_for_bit(tmp_path, monkeypatch):
    """float16 on the CPU, which `train` refuses as slow, does the arithmetic of the GPU."""
    cpu_scaler = functools.partial(torch.amp.GradScaler, "cpu", init_scale=2.0**40)
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device, enabled: cpu_scaler())
    monkeypatch.setitem(train.__globals__, "_check", lambda model, *others: torch.device("cpu"))
    chosen = settings(40, precision="float16", clip=0.1)
    straight, first, second = Small(), Small(), Small(seed=1)
    history = train(straight, small_batches(), chosen)
    left_out = [not math.isfinite(norm) for norm in history.gradient_norms]
    assert left_out[0]  # the scale is far too high, and halved until the gradients fit
    assert not any(left_out[30:])
    whole = [norm for norm in history.gradient_norms if math.isfinite(norm)]
    assert max(whole) < 3  # of the gradient without the scale
    with pytest.raises(KeyboardInterrupt):
        train(first, interrupting(small_batches(), 9), chosen, checkpoint=tmp_path / "run")
    assert left_out[9]
    assert left_out[11]  # so the scale at this point decides what follows
    resumed = train(second, small_batches(), chosen, checkpoint=tmp_path / "run")
    assert resumed.losses == history.losses
    assert same(weights_of(second), weights_of(straight))


@pytest.mark.parametrize("n_encoder_layers", [1, 0])
def test_the_transformer_trains_and_its_checkpoint_loads_into_numpy(tmp_path, n_encoder_layers):
    weights = attnbook.TransformerWeights.init(
        0, 8, d_model=6, n_heads=2, d_ff=7, n_layers=1, n_encoder_layers=n_encoder_layers
    )
    batches = small_batches() if n_encoder_layers else language_batches()
    model = Transformer(weights.to("torch", dtype="float64"), dropout=0.1)
    history = train(model, batches, settings(30, 0.02), checkpoint=tmp_path / "run")
    assert np.mean(history.losses[-5:]) < 0.8 * history.losses[0]
    trained, batch = load_weights(tmp_path / "run"), batches(0)
    logits = transformer(
        *(batch.source, batch.inputs, trained),
        source_mask=batch.source_mask,
        target_mask=batch.label_mask[:, None, None],
    )
    loss = cross_entropy(logits, batch.labels, batch.label_mask)
    assert evaluate(model, [batch]) == pytest.approx(float(loss), rel=1e-12)


def test_longer_runs_go_on_from_shorter_ones(tmp_path):
    path, straight, first, second = tmp_path / "run", Small(), Small(), Small(seed=1)
    kind = {"schedule": "inverse_sqrt", "warmup": 2}
    history = train(straight, small_batches(), settings(12, **kind))
    train(first, small_batches(), settings(7, **kind), checkpoint=path)
    assert train(second, small_batches(), settings(12, **kind), checkpoint=path) == history
    assert same(weights_of(second), weights_of(straight))
    again = Small(seed=2)
    assert train(again, small_batches(), settings(12, **kind), checkpoint=path) == history
    assert same(weights_of(again), weights_of(straight))


def test_early_stop_goes_on_with_the_best_weights_and_the_same_patience(tmp_path):
    chosen = settings(20, eval_every=2, patience=3)
    values = {2: 3.0, 4: 2.0, 6: 2.5, 8: 2.2, 10: 2.1}

    def run(model, batches, path):
        """The value of an evaluation depends on the number of updates alone."""
        done = []

        def validate(model):
            done.append(weights_of(model))
            return values[2 * (len(done) + past)]

        return train(model, batches, chosen, validate=validate, checkpoint=path), done

    past = 0
    straight, path = Small(), tmp_path / "run"
    history, seen = run(straight, small_batches(), None)
    with pytest.raises(KeyboardInterrupt):
        run(Small(), interrupting(small_batches(), 6), path)
    past, second = 3, Small(seed=1)
    assert run(second, small_batches(), path)[0] == history
    assert history.step == 10
    assert same(weights_of(second), seen[1])
    assert same(weights_of(second), weights_of(straight))
    third = Small(seed=2)  # the run is over: nothing happens but that the best is read
    assert run(third, small_batches(), path)[0] == history
    assert same(weights_of(third), weights_of(straight))


CHECKPOINTED = {"steps": 10, "lr": 0.03, "checkpoint_every": 3}
PLAIN = {"steps": 8, "lr": 0.05, "optimizer": "sgd", "clip": 0.3, "label_smoothing": 0.1}
STOPPED = {"steps": 20, "lr": 0.3, "eval_every": 2, "patience": 2, "schedule": "cosine"}


@pytest.fixture(scope="module")
def worked(tmp_path_factory):
    """What the worker says and leaves: of two runs that die, and of three on two processes."""
    folder = tmp_path_factory.mktemp("runs")
    killed = {"settings": CHECKPOINTED, "checkpoint": str(folder / "killed in a step")}
    torn = killed | {"checkpoint": str(folder / "killed in a write")}
    common = {"drop": 0.0, "dtype": "float64", "report": 1}  # of the one that does not evaluate
    resumed = common | {"settings": PLAIN, "checkpoint": str(folder / "resumed")}
    groups = [
        (1, [killed | {"kill_in_step": 8}]),
        (1, [torn | {"kill_in_write": 4}]),
        (
            2,
            [
                resumed | {"interrupt_in_step": 3},  # Ctrl-C reaches one of the two alone
                resumed | {"out": str(folder / "plain"), "progress": True},
                common | {"settings": STOPPED, "out": str(folder / "stopped")},
            ],
        ),
    ]
    # where the processes meet: a port that is ours from the start, as torchrun has it
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    group["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    worker = Path(__file__).with_name("train_worker.py")
    done = start(worker, json.dumps(groups), **group)
    dead = -int(signal.SIGKILL)
    assert f"exit codes: {[[dead], [dead], [0, 0]]}" in done.stdout, done.stderr[-3000:]
    return folder, done.stdout, done.stderr


@pytest.fixture
def one_thread():
    """Let this process add up in the order of the others, which have one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.weekly
@pytest.mark.usefixtures("one_thread")
def test_a_killed_run_loses_the_steps_since_its_last_checkpoint_alone(worked):
    folder, _, _ = worked
    (left,) = folder.glob("*.partial")
    assert left.match("killed in a write.*")
    straight = Small()
    history = train(straight, small_batches(), Settings(10, 0.03))
    for name in ("killed in a step", "killed in a write"):
        # writes after 0, 3, 6 and 9 updates: it dies in the last of them or before
        assert len(load_file(folder / name)["history.losses"]) == 6
        model, chosen = Small(), Settings(**CHECKPOINTED)
        assert train(model, small_batches(), chosen, checkpoint=folder / name) == history
        assert same(weights_of(model), weights_of(straight))


# Two processes


@pytest.mark.weekly
@pytest.mark.usefixtures("one_thread")
def test_two_processes_are_one(worked):
    """Their losses and weights are those of one process with the same batches, resumed or not."""
    folder, out, errors = worked
    assert "step 4 of 8" in out  # where the first task was interrupted
    assert errors.count("4/8 [00:00<?") == 1  # one bar begins, not two
    shards = [[small_batches()(step).shard(rank, 2) for rank in (0, 1)] for step in range(8)]
    tokens = [[shard.label_mask.sum() for shard in pair] for pair in shards]
    assert sum(mine != others for mine, others in tokens) > 4  # else a mean of means would do
    validate = functools.partial(evaluate, batches=[small_batches(seed=1)(0)])
    for name, chosen in (("plain", PLAIN), ("stopped", STOPPED)):
        got, model = load_file(folder / name), Small(dtype=torch.float64, drop=0.0)
        more = {"validate": validate} if name == "stopped" else {}
        history = train(model, small_batches(), Settings(**chosen), **more)
        for kind, values in asdict(history).items():
            close(got[f"history.{kind}"], torch.tensor(values, dtype=torch.float64))
        for parameter, x in weights_of(model).items():
            close(got[parameter], x)
    assert history.step < 20


def test_a_group_that_is_there_is_used():
    device, linear = torch.device("cpu"), torch.nn.Linear(2, 1)
    assert join(device) == Replicas(0, 1, device)
    assert Replicas(0, 1, device).wrap(linear) is linear
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        assert join(device) == Replicas(0, 1, device)
        assert Replicas(0, 2, device).of_first(3) == 3.0
        assert Replicas(1, 2, device).of_first(3) == 0.0
        assert Replicas(0, 2, device).wrap(linear).module is linear
    finally:
        _leave()
    assert not torch.distributed.is_initialized()


# Ctrl-C


@pytest.mark.parametrize("step", [4, 11])  # the last one too
def test_interrupt_finishes_the_update_and_writes(tmp_path, step):
    path, before, model = tmp_path / "run", signal.getsignal(signal.SIGINT), Small()
    with pytest.raises(KeyboardInterrupt):
        train(model, interrupting(small_batches(), step), settings(), checkpoint=path)
    assert signal.getsignal(signal.SIGINT) is before
    stored = load_file(path)
    assert len(stored["history.losses"]) == step + 1
    assert all(torch.equal(stored[f"model.{name}"], p) for name, p in model.named_parameters())


def test_second_interrupt_stops_at_once(tmp_path):
    path = tmp_path / "run"

    def twice(step):
        if step == 2:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return small_batches()(step)

    with pytest.raises(KeyboardInterrupt):
        train(Small(), twice, settings(), checkpoint=path)
    assert len(load_file(path)["history.losses"]) == 0


def test_runs_in_a_thread_and_where_interrupts_are_ignored():
    found = []
    thread = threading.Thread(
        target=lambda: found.append(train(Small(), small_batches(), settings()))
    )
    thread.start()
    thread.join()
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        found.append(train(Small(), interrupting(small_batches(), 3), settings()))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, old)
    assert found[0] == found[1] == train(Small(), small_batches(), settings())


# Precision, compiling, the bar


def test_half_precision_keeps_the_parameters_and_the_loss_whole():
    dtypes = set()

    class Spy(Small):
        def forward(self, source, inputs, **masks):
            logits = super().forward(source, inputs, **masks)
            dtypes.add(logits.dtype)
            return logits

    model = Spy(drop=0.0)
    half = train(model, small_batches(), settings(precision="bfloat16")).losses
    whole = train(Small(drop=0.0), small_batches(), settings()).losses
    assert dtypes == {torch.bfloat16}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert half != whole
    np.testing.assert_allclose(half, whole, rtol=0.05)
    rounded = torch.tensor(half).bfloat16().float()
    assert (rounded != torch.tensor(half)).any()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_gpu_trains_and_goes_on(tmp_path, precision):
    need_gpu("torch")
    state = torch.cuda.get_rng_state()
    chosen = settings(10, precision=precision)
    straight, first, second = (Small(seed=seed).cuda() for seed in (0, 0, 1))
    history = train(straight, small_batches(), chosen)
    with pytest.raises(KeyboardInterrupt):
        train(first, interrupting(small_batches(), 4), chosen, checkpoint=tmp_path / "run")
    resumed = train(second, small_batches(), chosen, checkpoint=tmp_path / "run")
    np.testing.assert_allclose(resumed.losses, history.losses, rtol=1e-3)
    for got, expected in zip(second.parameters(), straight.parameters(), strict=True):
        close(got, expected, 1e-3)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    on_cpu = train(Small(drop=0.0), small_batches(), settings(10)).losses
    on_gpu = train(Small(drop=0.0).cuda(), small_batches(), chosen).losses
    np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-3 if precision == "float32" else 0.05)


def test_compiled_models_train_and_share_checkpoints(tmp_path):
    path, plain = tmp_path / "run", Small()
    compiled = torch.compile(Small(), backend="eager")
    expected = train(plain, small_batches(), settings())
    with pytest.raises(KeyboardInterrupt):
        train(compiled, interrupting(small_batches(), 5), settings(), checkpoint=path)
    other = Small(seed=1)
    assert train(other, small_batches(), settings(), checkpoint=path) == expected
    assert same(weights_of(other), weights_of(plain))
    assert not compiled.training
    assert not compiled._orig_mod.training


def test_bar_appears_on_request(tmp_path, capsys, monkeypatch):
    train(Small(), small_batches(), settings(5), checkpoint=tmp_path / "run")
    assert capsys.readouterr() == ("", "")
    options = {"checkpoint": tmp_path / "run", "progress": True}
    history = train(Small(), small_batches(), settings(), **options)
    out, err = capsys.readouterr()
    assert out == ""
    assert "5/12" in err  # where the run goes on
    assert "12/12" in err
    assert f"loss={history.losses[-1]:.4f}" in err
    monkeypatch.setitem(sys.modules, "tqdm", None)
    train(Small(), small_batches(), settings(1))
    message = re.escape("progress=True needs tqdm: pip install tqdm")
    with pytest.raises(ImportError, match=f"^{message}$"):
        train(Small(), small_batches(), settings(1), progress=True)


@pytest.mark.parametrize(
    ("missing", "library", "name"),
    [("torch", "PyTorch", "train"), ("safetensors", "safetensors", "load_weights")],
)
def test_without_its_libraries_it_says_how_to_get_them(monkeypatch, missing, library, name):
    monkeypatch.setitem(sys.modules, missing, None)
    for module in [module for module in sys.modules if module.startswith("attnbook.training.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "attnbook.arrays.tensor_file")
    monkeypatch.delattr(attnbook.arrays, "tensor_file")
    message = f"attnbook.training needs {library}: pip install {missing}"
    with pytest.raises(ImportError, match=f"^{re.escape(message)}$"):
        getattr(attnbook.training, name)


def test_evaluation_leaves_every_part_in_its_own_mode():
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(2, 2))
    model.train()
    model[0].eval()  # a part that its owner keeps in eval mode
    with evaluating(model):
        assert not any(part.training for part in model.modules())
        assert not torch.is_grad_enabled()
    assert [part.training for part in model.modules()] == [True, False, True]
    assert torch.is_grad_enabled()


# Errors


def refused(**wrong):
    """Call `train` with right arguments but for these."""
    right = {"model": Small(), "batches": small_batches(), "settings": settings()}
    return train(**(right | wrong))


def constant(logits, labels, mask):
    return torch.tensor(3.0)


ERRORS = r"""
refused(model=3)
    TypeError: model must be a torch.nn.Module, got int
refused(model=torch.nn.ReLU())
    ValueError: model must have parameters, got none
refused(model=Small().requires_grad_(False))
    ValueError: model must have parameters that require gradients, got none
refused(batches=[1])
    TypeError: batches must be callable, got list
refused(batches=None)
    TypeError: batches must be callable, got NoneType
refused(batches=lambda step: 3)
    TypeError: batches must give Batch objects, got int
refused(batches=lambda step: EMPTY)
    ValueError: batches(0) must hold at least 1 label, got none
refused(settings={})
    TypeError: settings must be Settings, got dict
refused(settings=settings(precision="float16"))
    ValueError: precision 'float16' needs a model on a CUDA device, got one on cpu; 'bfloat16' runs
    on the CPU too
refused(settings=settings(label_smoothing=0.1), loss=cross_entropy)
    ValueError: label_smoothing is for the default loss and must be 0 with loss=, got 0.1
refused(settings=settings(eval_every=1))
    ValueError: validate must be given with eval_every, got None
refused(settings=settings(checkpoint_every=1))
    ValueError: checkpoint must be given with checkpoint_every, got None
refused(loss=3)
    TypeError: loss must be callable, got int
refused(loss=lambda logits, labels, mask: 3.0)
    TypeError: loss must return a tensor of shape (), got float
refused(loss=lambda logits, labels, mask: logits[0, 0])
    TypeError: loss must return a tensor of shape (), got (8,)
refused(loss=constant)
    ValueError: loss must return a number that depends on the logits, got a constant
refused(loss=lambda logits, labels, mask: (logits**2).sum() * math.inf)
    FloatingPointError: loss must be finite, got inf in step 0; a lower learning rate, a longer
    warm-up or clipping may help
refused(validate=3)
    TypeError: validate must be callable, got int
refused(validate=lambda model: 1.0)
    ValueError: eval_every must be given with validate, got None
refused(validate=lambda model: "low", settings=settings(eval_every=1))
    TypeError: validate must return a number, got str
refused(validate=lambda model: math.nan, settings=settings(eval_every=1))
    ValueError: validate must return a number, got nan
refused(settings=settings(accumulate=8))
    ValueError: accumulate must be at most the rows of a batch on one process, 7, got 8
refused(target_mask=np.ones((3, 3), bool))
    TypeError: target_mask must be a masking.Rule, because batches differ in length, got ndarray
refused(target_mask=attnbook.masking.FirstKeys([2, 3]))
    ValueError: target_mask must be the same for all rows of a batch, got a rule with leading axes
    (2,)
refused(checkpoint=2**63)
    TypeError: checkpoint must be a path or a str, got int
refused(progress="no")
    TypeError: progress must be a bool, got str
evaluate(Small(), [], target_mask="causal")
    TypeError: target_mask must be a masking.Rule, because batches differ in length, got str
evaluate(Small(), 3)
    TypeError: batches must be a sequence of Batch objects, got int
evaluate(Small(), [3])
    TypeError: batches must give Batch objects, got int
evaluate(Small(), [])
    ValueError: batches must hold at least 1 label, got none
evaluate(Small(), [EMPTY])
    ValueError: batches must hold at least 1 label, got none
"""
EMPTY = Batch(None, np.zeros((2, 3), np.int64), None, np.array([1, 1]))

test_training_refuses = error_test(ERRORS, globals())


def test_a_batch_without_labels_does_not_count():
    one = small_batches()(0)
    assert evaluate(Small(), [one, EMPTY]) == evaluate(Small(), [one])


def test_infinite_gradients_leave_the_parameters_as_they_were():
    class Steep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, gradient):
            return gradient * math.inf

    steps = []

    def loss(logits, labels, mask):
        steps.append(weights_of(model))
        value = cross_entropy(logits, labels, mask)
        return Steep.apply(value) if len(steps) == 3 else value

    model = Small()
    with pytest.raises(FloatingPointError, match=r"^gradient must be finite, got .* in step 2; a"):
        train(model, small_batches(), settings(), loss=loss)
    assert same(weights_of(model), steps[2])
    assert not same(steps[1], steps[2])


def test_a_path_that_cannot_be_written_is_found_before_the_first_update(tmp_path):
    def never(step):
        raise AssertionError("no batch is asked for")

    with pytest.raises(FileNotFoundError):
        train(Small(), never, settings(), checkpoint=tmp_path / "missing" / "run")


def test_checkpoints_come_when_they_are_due(tmp_path):
    path, found = tmp_path / "run", []

    def batch_of(step):
        found.append(len(load_file(path)["history.losses"]))
        return small_batches()(step)

    train(Small(), batch_of, settings(8, checkpoint_every=3), checkpoint=path)
    assert found == [0, 0, 0, 3, 3, 3, 6, 6]
    assert len(load_file(path)["history.losses"]) == 8
