"""Answers to the exercises on training, as readers write them; the wrong ones are the ways."""

import math

import numpy as np
import pytest

from attnbook.check.engine.steps import Case
from attnbook.check.exercises.accumulate_gradients import ACCUMULATE_GRADIENTS
from attnbook.check.exercises.adamw_step import ADAMW_STEP
from attnbook.check.exercises.clip_gradients import CLIP_GRADIENTS
from attnbook.check.exercises.warmup_cosine import WARMUP_COSINE
from attnbook.training import Settings, learning_rate


def made(checked, way):
    """Return the answer that goes a wrong way of the check."""

    def answer(*given):
        values = checked.model(way)(Case(dict(zip(checked.parameters, given, strict=True))))
        return values if len(values) > 1 else values[0]

    return answer


WRONG = {
    checked.name: {
        f"{mistake.name} {i + 1}" if i else mistake.name: made(checked, way)
        for mistake in checked.mistakes
        for i, way in enumerate(mistake.ways)
    }
    for checked in (ADAMW_STEP, CLIP_GRADIENTS, ACCUMULATE_GRADIENTS, WARMUP_COSINE)
}


def torch_adamw(W, g, mean, square, t, lr, decay):
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.tensor(np.array(W)))
    optimizer = torch.optim.AdamW([parameter], lr=lr, betas=(0.9, 0.98), weight_decay=decay)
    state = {"step": torch.tensor(float(t - 1))}
    state |= {"exp_avg": torch.tensor(np.array(mean)), "exp_avg_sq": torch.tensor(np.array(square))}
    optimizer.state[parameter].update(state)
    parameter.grad = torch.tensor(np.array(g))
    optimizer.step()
    return parameter.detach().numpy(), state["exp_avg"].numpy(), state["exp_avg_sq"].numpy()


def torch_clip(first, second, longest):
    torch = pytest.importorskip("torch")
    parameters = [torch.nn.Parameter(torch.zeros(x.shape).double()) for x in (first, second)]
    for parameter, x in zip(parameters, (first, second), strict=True):
        parameter.grad = torch.tensor(np.array(x))
    torch.nn.utils.clip_grad_norm_(parameters, longest)
    return tuple(parameter.grad.numpy() for parameter in parameters)


def torch_backward_in_pieces(gradients, counts):
    """Let every label of a piece have the gradient of the piece."""
    torch = pytest.importorskip("torch")
    w = torch.nn.Parameter(torch.zeros(gradients.shape[1]).double())
    for row, n in zip(gradients, counts, strict=True):
        mean = w @ torch.tensor(np.array(row))
        (mean * int(n) / int(counts.sum())).backward()
    return w.grad.numpy()


def by_the_package(step, steps, warmup, peak):
    settings = Settings(steps, lr=peak, warmup=warmup, schedule="cosine")
    return learning_rate(step, settings)


def adamw_in_loops(W, g, mean, square, t, lr, decay):
    W, mean, square = (np.array(x) for x in (W, mean, square))
    for i in np.ndindex(W.shape):
        mean[i] = 0.9 * mean[i] + (1 - 0.9) * g[i]
        square[i] = 0.98 * square[i] + (1 - 0.98) * g[i] ** 2
        size = math.sqrt(square[i] / (1 - 0.98**t)) + 1e-8
        W[i] -= lr * (decay * W[i] + mean[i] / (1 - 0.9**t) / size)
    return W, mean, square


def clip_by_a_minimum(first, second, longest):
    squares = sum((x * x).sum() for x in (first, second))
    factor = min(1.0, longest / (math.sqrt(squares) + 1e-12))
    return factor * first, factor * second


RIGHT = {
    "adamw_step": [adamw_in_loops, torch_adamw],
    "clip_gradients": [clip_by_a_minimum, torch_clip],
    "accumulate_gradients": [
        lambda g, n: (g * n[:, None]).sum(0) / n.sum(),
        lambda g, n: np.average(g, axis=0, weights=n),
        torch_backward_in_pieces,
    ],
    "warmup_cosine": [by_the_package],
}


def rising_alone(step, steps, warmup, peak):
    return peak * step / warmup if step < warmup else peak


def adamw_uphill(W, g, mean, square, t, lr, decay):
    mean, square = 0.9 * mean + 0.1 * g, 0.98 * square + 0.02 * g**2
    direction = mean / (1 - 0.9**t) / ((square / (1 - 0.98**t)) ** 0.5 + 1e-8)
    return W + lr * direction, mean, square


DOUBLES = {
    "accumulate_gradients": {
        "sum over the labels; first piece left out": lambda g, n: (g * n[:, None])[1:].sum(axis=0),
        "divided by the pieces; sign": lambda g, n: -(g * n[:, None]).mean(axis=0),
    },
    "adamw_step": {"decay forgotten; sign": adamw_uphill},
    "warmup_cosine": {"updates counted from 0; no fall": rising_alone},
}
