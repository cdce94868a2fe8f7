"""Several texts in one row: outputs and gradients are those of each text alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from error_table import error_test

import attnbook
from attnbook import TransformerWeights, data, nn, training
from attnbook.kernels import tiled
from attnbook.linear_attention.layers import LinearAttentionWeights
from attnbook.masking import Causal, Chunks, Documents, FirstKeys, SlidingWindow
from attnbook.positions import Alibi, RelativeBias, Rotary
from attnbook.training.loss import cross_entropy

LENGTHS = (5, 1, 7, 3)
KINDS = {
    "learned": {"positions": "learned", "n_positions": 7},
    "sinusoidal": {"positions": "sinusoidal"},
    "interleaved": {"positions": "interleaved"},
    "rotary": {"positions": "rotary"},
    "rotary of its own": {"positions": Rotary(base=500.0, interleaved=True)},
    "ALiBi": {"positions": Alibi()},
    "T5": {
        "positions": RelativeBias(
            np.random.default_rng(1).normal(size=(6, 2)), bidirectional=False, max_distance=9
        )
    },
}


def model(kind, **options):
    sizes = {"d_model": 8, "n_heads": 2, "d_ff": 13, "n_layers": 2, "n_encoder_layers": 0}
    weights = TransformerWeights.init(0, 11, **sizes | KINDS[kind] | options)
    rng = np.random.default_rng(0)
    arrays = weights.arrays().items()
    return weights.with_arrays({name: x + rng.normal(0, 0.2, x.shape) for name, x in arrays})


def texts(seed=2):
    rng = np.random.default_rng(seed)
    return [rng.integers(11, size=n) for n in LENGTHS]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(tiled, "ROWS", 3)
    monkeypatch.setattr(tiled, "COLUMNS", 5)


FROM_THE_FIRST = FirstKeys(1) | (Chunks(3) & SlidingWindow(left=1))


@pytest.mark.parametrize("mask", [None, SlidingWindow(left=2), FROM_THE_FIRST, "array"])
@pytest.mark.parametrize("impl", ["reference", "naive", "tiled"])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_texts_are_the_texts_alone(library, kind, impl, mask):
    weights, rows = library.place(model(kind)), texts()
    packed = library.array(np.concatenate(rows))
    documents = Documents.of_lengths(LENGTHS)

    def run(ids, **options):
        n = ids.shape[-1]
        own = mask
        if mask == "array":
            own = library.array(SlidingWindow(left=2).dense(n))
        return library.numpy(
            attnbook.transformer(None, ids, weights, target_mask=own, impl=impl, **options)
        )

    alone = np.concatenate([run(library.array(row)) for row in rows])
    np.testing.assert_allclose(run(packed, documents=documents), alone, atol=1e-12)
    batch = library.array(np.stack([np.concatenate(rows), np.concatenate(rows[::-1])]))
    ids = np.stack([np.repeat(range(4), LENGTHS), np.repeat(range(4), LENGTHS[::-1])])
    both = run(batch, documents=Documents(ids))  # rows with documents of their own
    np.testing.assert_allclose(both[0], alone, atol=1e-12)
    backwards = np.concatenate([run(library.array(row)) for row in rows[::-1]])
    np.testing.assert_allclose(both[1], backwards, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_texts_by_panels(kind):
    pytest.importorskip("numba")
    weights, rows = model(kind), texts()
    single = weights.with_arrays({n: x.astype(np.float32) for n, x in weights.arrays().items()})
    both = []
    for own, impl in ((weights, "reference"), (single, "packed")):
        packed = np.concatenate(rows)
        documents = Documents.of_lengths(LENGTHS)
        both.append(attnbook.transformer(None, packed, own, documents=documents, impl=impl))
    np.testing.assert_allclose(*both, atol=2e-5)


def batch_and_texts():
    rows = [row for row in texts() if len(row) > 1]
    rows += [row for row in texts(3) if len(row) > 1]
    batches = data.PackedBatches(rows, batch_size=2, length=15, start=None, stop=None)
    batch = batches(0)
    assert len(batches) == 1
    assert np.count_nonzero(batch.label_mask) == sum(len(row) - 1 for row in rows)
    return batch, rows


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_by_hand_are_those_of_the_texts_alone(library, kind):
    weights = library.place(model(kind))
    batch, rows = batch_and_texts()
    loss, grads = training.gradients(
        *(weights, library.array(batch.inputs), library.array(batch.labels)),
        mask=library.array(batch.label_mask),
        documents=batch.documents,
    )
    counted = sum(len(row) - 1 for row in rows)
    total, want = 0.0, dict.fromkeys(weights.arrays(), 0.0)
    for row in rows:
        one, of_one = training.gradients(weights, *(library.array(x) for x in (row[:-1], row[1:])))
        share = (len(row) - 1) / counted
        total += share * float(one)
        for name, x in of_one.arrays().items():
            want[name] = want[name] + share * library.numpy(x)
    assert abs(float(loss) - total) < 1e-12
    for name, x in grads.arrays().items():
        np.testing.assert_allclose(library.numpy(x), want[name], atol=1e-12, err_msg=name)


@pytest.mark.parametrize("impl", ["reference", "tiled"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_pytorch_are_those_by_hand(kind, impl):
    if (kind, impl) == ("T5", "tiled"):
        pytest.skip("only the reference has a gradient of a bias")
    batch, _ = batch_and_texts()
    module = nn.Transformer(model(kind).to("torch"), impl=impl)
    logits = module(None, torch.tensor(batch.inputs), documents=batch.documents)
    loss = cross_entropy(*(logits, torch.tensor(batch.labels), torch.tensor(batch.label_mask)))
    loss.backward()
    want, grads = training.gradients(
        *(model(kind), batch.inputs, batch.labels),
        mask=batch.label_mask,
        documents=batch.documents,
    )
    assert abs(float(loss.detach()) - float(want)) < 1e-12
    own = module.weights.arrays()
    for name, x in grads.arrays().items():
        np.testing.assert_allclose(own[name].grad.numpy(), x, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("rule", [None, SlidingWindow(left=2), FROM_THE_FIRST])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_on_packed_texts_is_training_on_the_texts(accumulate, rule):
    rows = [row for seed in range(4) for row in texts(seed) if len(row) > 1]
    packed = data.PackedBatches(rows, batch_size=5, length=11, start=None, stop=None)
    padded = data.Batches(None, rows, batch_size=len(rows), start=None, stop=None)
    assert len(packed) == 1
    settings = training.Settings(steps=6, lr=0.05, accumulate=accumulate)
    losses = []
    for batches in (packed, padded):
        module = nn.Transformer(model("sinusoidal").to("torch"))
        history = training.train(module, batches, settings, target_mask=rule)
        last = training.evaluate(module, [batches(0)], target_mask=rule)
        losses.append([*history.losses, last])
    np.testing.assert_allclose(*losses, atol=1e-9)
    assert losses[0][-1] < losses[0][0]
    total, count = 0.0, 0
    for row in rows:  # each text alone, with a mask of its own
        mask = None if rule is None else torch.tensor(rule.dense(len(row) - 1))
        ids = torch.tensor(row)
        logits = attnbook.transformer(None, ids[:-1], module.weights, target_mask=mask).detach()
        total += float(torch.nn.functional.cross_entropy(logits, ids[1:], reduction="sum"))
        count += len(row) - 1
    assert abs(total / count - losses[0][-1]) < 1e-9


def test_a_row_may_be_longer_than_the_learned_positions():
    weights = model("learned")
    with pytest.raises(ValueError, match=r"^target must have at most 7 tokens, as many as learned"):
        attnbook.transformer(None, np.zeros(16, int), weights)
    documents = Documents.of_lengths(LENGTHS)
    assert (
        attnbook.transformer(None, np.zeros(16, int), weights, documents=documents).shape[0] == 16
    )


def run(documents, n=4, kind="learned", **options):
    return attnbook.transformer(None, np.zeros(n, int), model(kind, **options), documents=documents)


def hand(documents):
    return training.gradients(
        model("learned"), np.zeros(4, int), np.zeros(4, int), documents=documents
    )


ENCODER = TransformerWeights.init(0, 11, d_model=8, n_heads=2, d_ff=13, n_layers=1)
ERRORS = """
run([0, 0, 1, 1])
    TypeError: documents must be masking.Documents, got list
run(Causal())
    TypeError: documents must be masking.Documents, got Causal
run(Documents([0, 0, 1]))
    ValueError: documents must match target of shape (4,), got (3,)
run(Documents([0, 0, 1, 1, 1]))
    ValueError: documents must match target of shape (4,), got (5,)
run(Documents([[0, 0, 1, 1]] * 2))
    ValueError: documents must match target of shape (4,), got (2, 4)
run(Documents([0, 1, 0, 1]))
    ValueError: documents must each be in one piece, because their positions count on
run(Documents([0] * 9), 9)
    ValueError: documents must have at most 7 tokens, as many as learned positions, got 9
hand(Documents([0, 1, 0, 1]))
    ValueError: documents must each be in one piece, because their positions count on
hand(Documents([0, 1]))
    ValueError: documents must match inputs of shape (4,), got (2,)
attnbook.transformer(np.zeros(3, int), np.zeros(2, int), ENCODER, documents=Documents([0, 1]))
    ValueError: documents must be None where there is an encoder
"""
test_error = error_test(ERRORS, globals() | {"Causal": Causal})


def test_a_state_cannot_begin_anew():
    weights = model("rotary")
    (first, *others) = weights.decoder.layers
    own = LinearAttentionWeights.init(0, 8, 2)
    layers = (replace(first, self_attention=own), *others)
    weights = replace(weights, decoder=replace(weights.decoder, layers=layers))
    with pytest.raises(ValueError, match="where a layer keeps a state, got the rule"):
        attnbook.transformer(None, np.zeros(4, int), weights, documents=Documents([0, 0, 1, 1]))
