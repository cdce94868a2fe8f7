"""Options that are odd in a way that once reached the code behind the readers of arguments."""

import numpy as np
import pytest
import torch

import attnbook
from attnbook import data, plots, sketch, training

ARRAYS = (np.ones(3), np.ones((2, 2)), torch.ones(3), torch.ones(2, 2))


def candidates(distinct):
    sample = np.random.default_rng(0).normal(size=(30, 4))
    made = sketch.plan(100, delta=0.1, sample=sample)
    return made.expected_candidates(sample, distinct=distinct)


CALLS = {
    "device": lambda odd: attnbook.move(np.ones(3), device=odd),
    "limit": lambda odd: plots.heatmap(np.ones((2, 2)), limit=odd),
    "loss": lambda odd: training.evaluate(torch.nn.Linear(1, 1), [], loss=odd),
    "distinct": candidates,
}


@pytest.mark.parametrize("odd", ARRAYS, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_an_array_as_an_option_is_refused_by_name(name, odd):
    with pytest.raises(TypeError, match=rf"^{name} must be "):
        CALLS[name](odd)


@pytest.mark.parametrize("target", [-1, None, 2.5, "x", np.array(3)])
def test_a_batch_without_rows_names_its_target(target):
    for source in (None, np.ones((1, 2), int)):
        with pytest.raises((TypeError, ValueError), match=r"^target must "):
            data.Batch(source, target, None if source is None else [2], [2])


@pytest.mark.parametrize("x", [3, None, "x", [[1.0]], np.array(1.0)])
def test_a_given_hash_takes_arrays_alone(x):
    with pytest.raises((TypeError, ValueError), match=r"^x must "):
        sketch.GivenHash(lambda x: x[:, 0] > 0).signatures(x)
