"""A small model, its batches and its settings, for the tests of training."""

import contextlib
import signal

import torch

from attnbook.data import reversal
from attnbook.data.batches import Batches
from attnbook.training.loop import Settings

VOCABULARY = 8
N_PAIRS, BATCH_SIZE = 31, 7  # 5 batches an epoch, of unequal sizes


class Small(torch.nn.Module):
    """Called as a transformer is, with what matters here: dropout, matrices, a bias and a gain."""

    def __init__(self, d_model=5, drop=0.3, dtype=torch.float32, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embed = torch.nn.Embedding(VOCABULARY, d_model)
            self.drop = torch.nn.Dropout(drop)
            self.norm = torch.nn.LayerNorm(d_model)
            self.output = torch.nn.Linear(d_model, VOCABULARY)
        self.to(dtype)

    def forward(self, source, inputs, *, source_mask=None, target_mask=None):
        x = self.embed(inputs)
        if source is not None:
            weights = source_mask[:, 0, 0, :, None].to(x.dtype)  # (b, n_source, 1)
            x = x + (weights * self.embed(source)).sum(1, keepdim=True) / weights.sum(1)[:, None]
        if target_mask is not None:
            x = x * target_mask[:, 0, 0, :, None]
        return self.output(self.norm(self.drop(x)))


def small_batches(seed=0):
    """Pairs of reversed sequences of several lengths."""
    pairs = reversal(3, N_PAIRS, length=(1, 6), n_symbols=VOCABULARY - 3)
    return Batches(*pairs, batch_size=BATCH_SIZE, seed=seed)


def language_batches():
    """A corpus without sources."""
    return Batches(None, small_batches()._targets, batch_size=BATCH_SIZE)


def settings(steps=12, lr=0.03, **others):
    """Settings of a short run."""
    return Settings(steps, lr, **others)


def weights_of(model):
    """Return copies of all parameters."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@contextlib.contextmanager
def heeding_interrupts():
    """Let SIGINT raise, as in a terminal; a job in the background starts with it ignored."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)
