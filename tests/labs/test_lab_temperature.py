"""Scale and temperature: the numbers of the figure are those of the package and of PyTorch."""

import math

import numpy as np
import pytest
import torch
from figures import SEEDS, fits, lab_named

import attnbook as ab


def judged(scores):
    """Return the entropy of the weights and the size of the Jacobian, by PyTorch."""
    s = torch.tensor(scores, dtype=torch.float64)
    weights = torch.softmax(s, dim=-1)
    jacobian = torch.autograd.functional.jacobian(lambda x: torch.softmax(x, dim=-1), s)
    return torch.special.entr(weights).sum().item(), torch.linalg.norm(jacobian).item()


@pytest.mark.parametrize("seed", SEEDS)
def test_numbers(seed):
    lab, rng = lab_named("temperature"), np.random.default_rng(seed)
    width, heat = int(rng.integers(11)), round(rng.uniform(-1, 5), 1)
    state = fits(lab, width=width, heat=heat, divided=["no", "yes"][seed % 2])
    found = lab.numbers(**state)
    scale = 1 / math.sqrt(2**width) if seed % 2 else 1.0
    # products of a query and keys whose spread is the root of their width
    products = np.array(lab.numbers(width=0)["scores"]) * math.sqrt(2**width)
    scores = products * scale / 2**heat
    np.testing.assert_allclose(found["scores"], scores, rtol=1e-12)
    np.testing.assert_allclose(found["spread"], scores.std(), rtol=1e-12)
    np.testing.assert_allclose(found["weights"], ab.softmax(scores), rtol=1e-11)
    entropy, size = judged(scores)
    np.testing.assert_allclose([found["entropy"], found["size"]], [entropy, size], atol=1e-12)


def test_products_at_random_scatter_as_the_root_of_the_width():
    first = np.array(lab_named("temperature").numbers(width=0)["scores"])
    assert first.mean() == pytest.approx(0, abs=1e-12)
    assert first.std() == pytest.approx(1)


def test_curves():
    found = lab_named("temperature").numbers()
    first = np.array(lab_named("temperature").numbers(width=0)["scores"])
    spreads = 2.0 ** np.linspace(-5, 6, 89)
    curves = np.array([judged(spread * first) for spread in spreads])
    np.testing.assert_allclose(found["entropies"], curves[:, 0], atol=1e-12)
    np.testing.assert_allclose(found["sizes"], curves[:, 1], atol=1e-12)


def test_to_divide_by_the_root_of_the_width_is_a_temperature():
    lab = lab_named("temperature")
    divided, heated = lab.numbers(divided="yes"), lab.numbers(heat=2)
    np.testing.assert_allclose(divided["weights"], heated["weights"], rtol=1e-14)


@pytest.mark.parametrize("spread", [1, 2, 4])
def test_the_spread_can_be_dragged(spread):
    lab = lab_named("temperature")
    act = "(x, w) => lab.act(lab.start, 'spread', { kind: 'drag', x, width: w })"
    at = "spread => lab.draw(lab.start, { ...lab.numbers(lab.start), spread }, 340)"
    x = float(lab.call(at, spread).split('class="reach"')[0].rpartition('cx="')[2].split('"')[0])
    assert lab.numbers(**lab.call(act, x, 340))["spread"] == pytest.approx(spread, rel=0.04)
