"""The learning rate follows the formulas of the papers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnbook.training.schedules import learning_rate
from attnbook.training.settings import Settings


def test_inverse_square_root_is_that_of_the_paper():
    d_model, warmup = 512, 40
    lr = (d_model * warmup) ** -0.5
    chosen = Settings(1000, lr, warmup=warmup, schedule="inverse_sqrt")
    for k in range(1, 500):
        expected = d_model**-0.5 * min(k**-0.5, k * warmup**-1.5)
        assert learning_rate(k - 1, chosen) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("final", [0.0, 0.02])
def test_cosine_is_that_of_pytorch(final):
    warmup, steps, lr = 5, 37, 0.3
    chosen = Settings(steps, lr, warmup=warmup, schedule="cosine", final_lr=final)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - warmup, eta_min=final)
    for step in range(warmup - 1, steps):
        assert learning_rate(step, chosen) == pytest.approx(theirs.get_last_lr()[0], abs=1e-15)
        optimizer.step()
        theirs.step()
    assert learning_rate(steps - 1, chosen) == final
    assert learning_rate(steps + 7, chosen) == final


@given(
    schedule=st.sampled_from(["constant", "inverse_sqrt", "cosine"]),
    steps=st.integers(1, 50),
    warmup=st.integers(0, 49),
)
def test_rate_rises_along_a_line_to_its_peak_and_never_again(schedule, steps, warmup):
    warmup = min(warmup, steps - 1)
    chosen = Settings(steps, 0.7, warmup=warmup, schedule=schedule)
    rates = [learning_rate(step, chosen) for step in range(steps + 3)]
    peak = max(warmup, 1) - 1
    for step in range(warmup):
        assert rates[step] == pytest.approx(0.7 * (step + 1) / warmup)
    assert rates[peak] == 0.7
    falls = [a - b for a, b in zip(rates[peak:], rates[peak + 1 :], strict=False)]
    assert min(falls) >= 0
    assert (max(falls) > 0) == (schedule != "constant")


def test_learning_rate_refuses():
    with pytest.raises(TypeError, match=r"^settings must be Settings, got dict$"):
        learning_rate(0, {})
    with pytest.raises(ValueError, match=r"^step must be at least 0, got -1$"):
        learning_rate(-1, Settings(10, 0.5))
