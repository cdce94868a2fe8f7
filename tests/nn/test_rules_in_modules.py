"""Every layer, stack and module with a mask takes a rule, and computes what its mask says."""

import numpy as np
import pytest
import torch
from error_table import error_test

import attnbook as ab
from attnbook import kernels, nn, training
from attnbook.masking import Causal, Documents, FirstKeys, SlidingWindow

SIZES = {"d_model": 8, "n_heads": 2, "d_ff": 13}
RULES = {
    "of all": (FirstKeys(1) | SlidingWindow(left=1)) & Causal(),
    "of each": Documents([[0, 0, 1, 1, 1], [0, 1, 1, 1, 2]]),
    "lengths": FirstKeys([3, 5]),
}
rng = np.random.default_rng(0)
X = rng.normal(size=(2, 5, 8))
MEMORY = rng.normal(size=(2, 7, 8))
IDS = rng.integers(11, size=(2, 5))
SOURCE = rng.integers(11, size=(2, 7))
ENCODER = ab.EncoderWeights.init(0, 2, **SIZES)
DECODER = ab.DecoderWeights.init(0, 2, **SIZES)
BOTH = ab.TransformerWeights.init(0, 11, 11, n_layers=2, **SIZES)
ALONE = ab.TransformerWeights.init(0, 11, n_layers=2, n_encoder_layers=0, **SIZES)
HEADS = ab.MultiHeadWeights.init(0, 8, 2)
LATENT = ab.LatentWeights.init(0, 8, 2, rank=6)
BLOCK = ab.TransformerBlockWeights.init(0, 8, 8, 2, 8)
ACROSS = {"of all": SlidingWindow(3), "of each": FirstKeys([2, 6]), "lengths": FirstKeys([3, 7])}


def calls(mask, across, impl):
    """Return every call with a mask; `across` is one of (5, 7)."""
    how = {"impl": impl}
    return {
        "heads": lambda: ab.multi_head_attention(X, X, X, HEADS, mask, **how),
        "latent": lambda: ab.latent_attention(X, LATENT, mask, **how),
        "encoder_layer": lambda: ab.encoder_layer(X, ENCODER.layers[0], mask, **how),
        "encoder": lambda: ab.encoder(X, ENCODER, mask, **how),
        "decoder_layer": lambda: ab.decoder_layer(
            X, MEMORY, DECODER.layers[0], mask, across, **how
        ),
        "decoder": lambda: ab.decoder(X, MEMORY, DECODER, mask, across, **how),
        "block": lambda: ab.transformer_block(X, BLOCK, mask, **how),
        "transformer": lambda: ab.transformer(
            SOURCE, IDS, BOTH, target_mask=mask, memory_mask=across, **how
        ),
        "source": lambda: ab.transformer(IDS, SOURCE, BOTH, source_mask=mask, **how),
        "nn heads": lambda: module(nn.MultiHeadAttention, HEADS, impl)(T(X), mask=t(mask)),
        "nn encoder": lambda: module(nn.Encoder, ENCODER, impl)(T(X), t(mask)),
        "nn decoder": lambda: module(nn.Decoder, DECODER, impl)(
            T(X), T(MEMORY), t(mask), t(across)
        ),
        "nn": lambda: module(nn.Transformer, BOTH, impl)(
            T(SOURCE), T(IDS), target_mask=t(mask), memory_mask=t(across)
        ),
        "by hand": lambda: by_hand(mask),
    }


T = torch.tensor


def t(mask):
    return torch.tensor(mask) if isinstance(mask, np.ndarray) else mask


def module(kind, weights, impl):
    return kind(weights.to("torch"), impl=impl)


def by_hand(mask):
    _, grads = training.gradients(ALONE, IDS, IDS, target_mask=mask)
    return np.concatenate([x.reshape(-1) for x in grads.arrays().values()])


@pytest.mark.parametrize("impl", ["reference", "tiled"])
@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_its_mask(name, impl):
    def dense(rule, n_q, n_k):
        mask = rule.dense(n_q, n_k)
        return mask if mask.ndim == 2 else mask[:, None]

    rule, across = RULES[name], ACROSS[name]
    by_rule = calls(rule, across, impl)
    by_mask = calls(dense(rule, 5, 5), dense(across, 5, 7), impl)
    by_none = calls(None, None, impl)
    for call in by_rule:
        if call == "source" and name == "lengths":
            continue  # the next test: a mask with rows of queries does not hide the memory
        got, want, other = (np.asarray(d(x[call])) for d, x in both(by_rule, by_mask, by_none))
        np.testing.assert_allclose(got, want, atol=1e-12, err_msg=call)
        assert np.abs(got - other).max() > 1e-6, call  # or the rule does nothing


def both(*tables):
    def result(call):
        made = call()
        return made.detach().numpy() if isinstance(made, torch.Tensor) else made

    return [(result, table) for table in tables]


def test_lengths_of_the_source_hide_the_memory():
    lengths = [3, 5]
    padding = ab.masking.padding([[n] for n in lengths], 5)
    want = ab.transformer(IDS, SOURCE, BOTH, source_mask=padding)
    got = ab.transformer(IDS, SOURCE, BOTH, source_mask=FirstKeys(lengths))
    np.testing.assert_allclose(got, want, atol=1e-12)


def test_recorded_weights():
    recorder = kernels.Recorder()
    ab.encoder(X, ENCODER, RULES["of all"], impl=recorder)
    hidden = ~RULES["of all"].dense(5)
    for A in recorder.weights:
        assert (A[..., hidden] == 0).all()


@pytest.mark.filterwarnings("ignore")  # Dynamo warns where it breaks the graph
def test_a_module_that_is_compiled():
    heads = module(nn.MultiHeadAttention, HEADS, "reference")
    compiled = torch.compile(heads, backend="eager")
    for rule in RULES.values():
        np.testing.assert_allclose(
            compiled(T(X), mask=rule).detach(), heads(T(X), mask=rule).detach(), atol=1e-12
        )


ERRORS = """
ab.encoder(X, ENCODER, FirstKeys([1, 2, 3]))
    ValueError: mask must be a rule whose leading axes broadcast to those of the sequences (2,), got
    (3,)
ab.encoder(X, ENCODER, Documents([0, 1]))
    ValueError: there must be at most as many keys as ids, 2, got 5
ab.decoder(X, MEMORY, DECODER, None, FirstKeys([1, 2, 3]))
    ValueError: memory_mask must be a rule whose leading axes broadcast to those of the sequences
    (2,), got (3,)
ab.transformer(SOURCE, IDS, BOTH, source_mask=FirstKeys([1, 2, 3]))
    ValueError: source_mask must be a rule whose leading axes broadcast to those of the sequences
    (2,), got (3,)
training.gradients(ALONE, IDS, IDS, target_mask=FirstKeys([1, 2, 3]))
    ValueError: target_mask must be a rule whose leading axes broadcast to those of the sequences
    (2,), got (3,)
ab.transformer_block(X, BLOCK, Documents([0, 1]))
    ValueError: there must be at most as many keys as ids, 2, got 5
"""
test_error = error_test(ERRORS, globals())
