"""A training step on shards of a text against the same step in one process."""

import numpy as np
import pytest
import ring_cases
import torch


def expected(name):
    """Return the loss and the gradients of the mean over all counted labels, in one process."""
    weights, ids, labels = ring_cases.model()

    def attend(q, k, v):
        heads = (x[None] for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)[0]

    losses = ring_cases.losses_of(weights, ids, labels, torch.arange(24), attend)
    loss = losses[ring_cases.COUNTED[name]].mean()
    loss.backward()
    return loss.item(), {x: w.grad.numpy() for x, w in weights.items()}


def assert_same(found, name):
    loss, grads = expected(name)
    for of_rank in found:
        ours, theirs = of_rank[name]
        assert ours == pytest.approx(loss, rel=1e-13, abs=0)
        assert (theirs.pop("unused") == 0).all()
        for x, grad in grads.items():
            np.testing.assert_allclose(theirs[x], grad, rtol=0, atol=1e-13, err_msg=x)
            np.testing.assert_array_equal(theirs[x], found[0][name][1][x])  # the same step on all


@pytest.mark.parametrize("name", ring_cases.COUNTED)
@pytest.mark.parametrize("shards", [1, 2, 3, "striped"])
def test_a_training_step_on_shards_is_that_of_one_process(equal, shards, name):
    found = [of_rank["train"][shards] for of_rank in equal]
    assert_same([x for x in found if x], name)


@pytest.mark.weekly
@pytest.mark.parametrize("name", ring_cases.COUNTED)
def test_a_training_step_on_four_shards_is_that_of_one_process(lost, name):
    _, _, before = lost
    assert_same([before[rank]["train"] for rank in range(4)], name)


def test_a_mean_of_means_would_be_another_step():
    """Or the cases above would not tell a global mean from it."""
    for name, counted in ring_cases.COUNTED.items():
        runs = np.isin(np.arange(24), np.arange(24)[counted]).reshape(6, 4).sum(1)
        per_shard = {runs[r] + runs[5 - r] for r in range(3)}
        assert (len(per_shard) == 1) == (name == "every label")


def test_wrong_arguments(equal):
    x = "losses must be a floating tensor, got torch.int64"
    y = "counted must be a boolean tensor, got torch.float32"
    z = "counted must have the shape (3,) of losses, got (2,)"
    u = "losses must be a tensor of PyTorch, got list"
    w = "parameters[1] must be a tensor of PyTorch, got int"
    wanted = [("TypeError", x), ("TypeError", y), ("ValueError", z), ("TypeError", u)]
    for of_rank in equal:
        assert of_rank["errors"]["reductions"] == [*wanted, ("TypeError", w)]
    for rank, other in ((0, 2), (1, 2), (2, 0)):
        kind, message = equal[rank]["errors"]["parameters"]
        assert kind == "ValueError"
        assert message.startswith("all ranks must have ")
        assert message.endswith(f"on rank {other}")


def test_a_mean_of_nothing_is_nan(equal):
    assert all(np.isnan(of_rank["errors"]["no label"]) for of_rank in equal)


def test_half_precision_is_summed_in_float32(equal):
    for of_rank in equal:
        mean, grad = of_rank["errors"]["half"]
        assert mean == 1  # the sum of 3 · 3000 ones in float16 would stop at 2048
        assert grad == [2050.0] * 3  # 2048 + 0.9 is 2048 in float16
