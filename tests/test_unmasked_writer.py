"""The script of the writer that cheats measures what it says."""

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))  # no part of the installed package

import unmasked_writer  # noqa: E402

from attnbook import TransformerWeights, nn  # noqa: E402


def model_of(causal):
    sizes = {"d_model": 8, "n_heads": 2, "d_ff": 8, "n_layers": 2, "n_encoder_layers": 0}
    weights = TransformerWeights.init(0, 7, positions="rotary", **sizes).to(dtype="float32")
    return (nn.Transformer if causal else unmasked_writer.Unmasked)(weights)


@pytest.mark.parametrize("causal", [True, False])
def test_only_without_the_mask_a_later_token_moves_an_earlier_row(causal):
    model = model_of(causal)
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        before, after = model(None, ids), model(None, torch.tensor([[1, 2, 3, 5]]))
    assert torch.allclose(before[:, :3], after[:, :3]) is causal
    alone = unmasked_writer.last_rows(model.weights, ids, causal)
    assert torch.allclose(alone[:, -1], before[:, -1], atol=1e-6)  # nothing is left to hide there
    assert torch.allclose(alone, before, atol=1e-5) is causal


def test_losses_are_bits_per_byte_and_weights_those_of_the_next_place():
    model, sizes = model_of(False), torch.tensor([1, 2, 3, 1, 2, 3, 1])
    windows = torch.tensor(np.random.default_rng(0).integers(7, size=(5, 9)))
    found = unmasked_writer.measured(model, False, windows, sizes)
    with torch.no_grad():
        logits = model(None, windows[:, :-1])
    picked = torch.log_softmax(logits, dim=-1).gather(-1, windows[:, 1:, None])
    n_bytes = sizes[windows[:, 1:]].sum()
    np.testing.assert_allclose(found["one_pass"], -picked.sum() / np.log(2) / n_bytes, rtol=1e-5)
    assert found["one_token_at_a_time"] != pytest.approx(found["one_pass"], rel=1e-3)
    shares = np.array([found[name] for name in ("next_place", "own_place", "place_before")])
    assert shares.shape == (3, 2, 2)  # layers, heads
    assert (shares > 0).all()
    assert (shares.sum(axis=0) < 1).all()
    masked = unmasked_writer.measured(model_of(True), True, windows, sizes)
    assert np.max(masked["next_place"]) == 0
    assert masked["one_token_at_a_time"] == pytest.approx(masked["one_pass"], rel=1e-4)
