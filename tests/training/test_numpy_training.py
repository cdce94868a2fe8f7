"""A writer that is trained in NumPy alone is the one that PyTorch trains, and needs no PyTorch."""

import subprocess
import sys

import numpy as np
import pytest
from cases import WEEKLY

from attnbook import TransformerWeights, nn
from attnbook.data import Batches, markov
from attnbook.training import (
    SGD,
    AdamW,
    Settings,
    clip_gradients,
    gradients,
    learning_rate,
    train,
)

VOCABULARY = 14  # with the marks of Batches


def writer():
    """Draw a small decoder of the writer's kind."""
    sizes = {"d_model": 16, "n_heads": 4, "n_kv_heads": 2, "d_ff": 24, "n_layers": 2}
    kinds = {"normalization": "rms", "gated": True, "activation": "silu", "bias": False}
    options = sizes | kinds | {"positions": "rotary", "n_encoder_layers": 0}
    return TransformerWeights.init(0, VOCABULARY, **options, scale_embeddings=False)


def batches():
    """Sequences of a Markov chain, of several lengths."""
    source = markov(0, VOCABULARY - 3, order=1, concentration=0.2)
    rng = np.random.default_rng(1)
    lengths = rng.integers(3, 13, size=60)
    return Batches(None, [source.sample(rng, 1, n)[0] + 3 for n in lengths], batch_size=6, seed=2)


def trained_in_numpy(weights, batches, settings):
    """Return the weights, the losses and the norms of a run that `settings` describe."""
    adam = {"betas": settings.betas, "weight_decay": settings.weight_decay}
    optimizer = AdamW(weights, **adam) if settings.optimizer == "adamw" else SGD()
    losses, norms = [], []
    for step in range(settings.steps):
        batch = batches(step)
        smoothing = {"label_smoothing": settings.label_smoothing}
        loss, grads = gradients(
            weights, batch.inputs, batch.labels, mask=batch.label_mask, **smoothing
        )
        grads, norm = clip_gradients(grads, settings.clip)
        weights = optimizer.step(weights, grads, lr=learning_rate(step, settings))
        losses.append(float(loss))
        norms.append(norm)
    return weights, losses, norms


SETTINGS = {
    "adamw": Settings(
        300 if WEEKLY else 40,
        0.01,
        **{"warmup": 10, "schedule": "cosine", "final_lr": 0.001, "clip": 1.0},
        **{"weight_decay": 0.1, "label_smoothing": 0.05, "betas": (0.8, 0.95)},
    ),
    "sgd": Settings(20, 0.3, optimizer="sgd", clip=1.0),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_writer_trained_in_numpy_is_that_of_pytorch(name):
    """Step by step in float64: there the two differ by rounding alone, which stays small."""
    settings, data = SETTINGS[name], batches()
    weights, losses, norms = trained_in_numpy(writer(), data, settings)
    model = nn.Transformer(writer())
    history = train(model, data, settings)
    np.testing.assert_allclose(losses, history.losses, rtol=0, atol=1e-8)
    np.testing.assert_allclose(norms, history.gradient_norms, rtol=1e-6, atol=1e-8)
    assert np.mean(losses[-10:]) < losses[0] - 0.2
    for key, x in model.weights.to("numpy").arrays().items():
        np.testing.assert_allclose(weights.arrays()[key], x, rtol=0, atol=1e-8, err_msg=key)


def test_it_needs_no_pytorch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np\n"
        "from attnbook import TransformerWeights\n"
        "from attnbook.training import (\n"
        "    AdamW, Settings, backpropagation, clip_gradients, gradients, learning_rate)\n"
        "sizes = {'d_model': 8, 'n_heads': 2, 'd_ff': 16, 'n_layers': 1, 'n_encoder_layers': 0}\n"
        "weights = TransformerWeights.init(0, 5, **sizes, activation='gelu').to(dtype='float32')\n"
        "ids, settings = np.array([[3, 1, 4, 1, 2]]), Settings(60, 0.02, warmup=5, clip=1.0)\n"
        "optimizer = AdamW(weights)\n"
        "for step in range(settings.steps):\n"
        "    loss, grads = gradients(weights, ids[:, :-1], ids[:, 1:])\n"
        "    grads, norm = clip_gradients(grads, settings.clip)\n"
        "    weights = optimizer.step(weights, grads, lr=learning_rate(step, settings))\n"
        "assert loss.dtype == weights.target_embedding.dtype == np.float32\n"
        "print(float(loss) < 0.1)\n"
        "print({'torch', 'cupy', 'numba', 'scipy'} & {m for m in sys.modules if sys.modules[m]})\n"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "True\nset()\n"
