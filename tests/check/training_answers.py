"""Answers to the exercises on training, right and wrong, as readers write them."""

import functools
import math

import numpy as np
import pytest

from attnbook.training import Settings, learning_rate


def torch_adamw(W, g, mean, square, t, lr, decay, kind="AdamW", betas=(0.9, 0.98)):
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.tensor(np.array(W)))
    make = getattr(torch.optim, kind)
    optimizer = make([parameter], lr=lr, betas=betas, weight_decay=decay)
    state = {"step": torch.tensor(float(t - 1))}
    state |= {"exp_avg": torch.tensor(np.array(mean)), "exp_avg_sq": torch.tensor(np.array(square))}
    optimizer.state[parameter].update(state)
    parameter.grad = torch.tensor(np.array(g))
    optimizer.step()
    return parameter.detach().numpy(), state["exp_avg"].numpy(), state["exp_avg_sq"].numpy()


def torch_clip(first, second, longest, norm=2):
    torch = pytest.importorskip("torch")
    parameters = [torch.nn.Parameter(torch.zeros(x.shape).double()) for x in (first, second)]
    for parameter, x in zip(parameters, (first, second), strict=True):
        parameter.grad = torch.tensor(np.array(x))
    torch.nn.utils.clip_grad_norm_(parameters, longest, norm)
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


def each_by_itself(first, second, longest):
    return tuple(min(1, longest / (np.linalg.norm(x) + 1e-12)) * x for x in (first, second))


def overwritten(gradients, counts):
    for row, n in zip(gradients, counts, strict=True):
        gradient = row * n / counts.sum()
    return gradient


def no_root(W, g, mean, square, t, lr, decay):
    mean, square = (
        np.average([mean, g], 0, [0.9, 0.1]),
        np.average([square, g * g], 0, [0.98, 0.02]),
    )
    fair, fair_square = mean / (1 - 0.9**t), square / (1 - 0.98**t)
    return W - lr * (decay * W + fair / (fair_square + 1e-8)), mean, square


def written_over(W, g, mean, square, t, lr, decay):
    """Move the weights, and let what has been moved decay."""
    moved, *means = adamw_in_loops(W, g, mean, square, t, lr, 0)
    return moved - lr * decay * moved, *means


WRONG = {
    "adamw_step": {
        "decay in the gradient": lambda *given: torch_adamw(*given, kind="Adam"),
        "β₂ of another model": lambda *given: torch_adamw(*given, betas=(0.9, 0.95)),
        "no root": no_root,
        "decay after the step": written_over,
        "results in another order": lambda *given: (
            adamw_in_loops(*given)[::2] + adamw_in_loops(*given)[1:2]
        ),
        "step counted from 0": lambda W, g, m, s, t, *more: adamw_in_loops(
            W, g, m, s, t - 1, *more
        ),
    },
    "clip_gradients": {
        "each array by itself": each_by_itself,
        "each number cut": lambda a, b, c: [np.maximum(-c, np.minimum(x, c)) for x in (a, b)],
        "largest for the length": lambda *given: torch_clip(*given, norm=math.inf),
        "squares forgotten": lambda *given: torch_clip(*given, norm=1),
        "set to zero": lambda a, b, c: (
            (a, b) if math.hypot(*a.flat, *b.flat) <= c else (0 * a, 0 * b)
        ),
        "never scaled": lambda a, b, c: (a.copy(), b.copy()),
    },
    "accumulate_gradients": {
        "mean of the means": lambda g, n: g.mean(axis=0),
        "sum over the labels": lambda g, n: n @ g,
        "sum of the means": lambda g, n: np.einsum("ij->j", g),
        "running mean of two": lambda g, n: functools.reduce(lambda a, b: (a + b) / 2, g),
        "weighed by the root": lambda g, n: np.average(g, axis=0, weights=np.sqrt(n)),
        "last piece alone": overwritten,
    },
    "warmup_cosine": {  # and those of public code
        "fall along a line": lambda step, steps, warmup, peak: float(
            np.interp(step + 1, [0, warmup, steps], [0, peak, 0])
        ),
        "inverse square root": lambda step, steps, warmup, peak: (
            peak * min((step + 1) / warmup, (warmup / (step + 1)) ** 0.5)
        ),
        "no warm-up": lambda step, steps, warmup, peak: by_the_package(
            max(step, warmup - 1), steps, warmup, peak
        ),
    },
}


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
