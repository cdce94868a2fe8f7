"""The checks of what training does: wrong answers hear their sentence, right ones pass."""

import math

import numpy as np
import pytest

from attnbook import check
from attnbook.check.gradient_lengths import CLIP_GRADIENTS
from attnbook.check.gradient_sums import ACCUMULATE_GRADIENTS
from attnbook.check.optimizer_steps import ADAMW_STEP
from attnbook.check.steps import Case, agree
from attnbook.check.warm_ups import WARMUP_COSINE
from attnbook.training import Settings, learning_rate

CHECKS = {c.name: c for c in (ADAMW_STEP, CLIP_GRADIENTS, ACCUMULATE_GRADIENTS, WARMUP_COSINE)}
WAYS = [
    pytest.param(name, mistake.name, way, id=f"{name}-{mistake.name}-{i}")
    for name, checked in CHECKS.items()
    for mistake in checked.mistakes
    for i, way in enumerate(mistake.ways)
]


@pytest.fixture
def numpy_alone(monkeypatch):
    monkeypatch.setattr("attnbook.check.engine.present", lambda: ["numpy"])


@pytest.mark.parametrize("name", CHECKS)
def test_the_steps_compute_what_the_reference_does(name):
    checked = CHECKS[name]
    for case in (case for stage in checked.stages for case in stage.cases):
        assert agree(checked.expected(case), checked.model({})(case), case), case


@pytest.mark.parametrize(("name", "mistake", "way"), WAYS)
@pytest.mark.usefixtures("numpy_alone")
def test_each_way_to_make_a_mistake_hears_its_sentence(name, mistake, way):
    checked = CHECKS[name]

    def answer(*given):
        values = checked.model(way)(Case(dict(zip(checked.parameters, given, strict=True))))
        return values if len(values) > 1 else values[0]

    report = getattr(check, name)(answer)
    assert not report.passed
    assert report.mistakes == (mistake,)
    assert report.message == next(m.message for m in checked.mistakes if m.name == mistake)


# Answers as readers write them.


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


RIGHT = [
    ("adamw_step", torch_adamw),
    ("adamw_step", adamw_in_loops),
    ("clip_gradients", torch_clip),
    ("clip_gradients", clip_by_a_minimum),
    ("accumulate_gradients", torch_backward_in_pieces),
    ("accumulate_gradients", lambda g, n: (g * n[:, None]).sum(0) / n.sum()),
    ("accumulate_gradients", lambda g, n: np.average(g, axis=0, weights=n)),
    ("warmup_cosine", by_the_package),
]


@pytest.mark.parametrize(("name", "answer"), RIGHT)
@pytest.mark.usefixtures("numpy_alone")
def test_a_right_answer_in_any_style_passes(name, answer):
    report = getattr(check, name)(answer)
    assert report.passed, report


@pytest.mark.parametrize("name", ["adamw_step", "accumulate_gradients"])
def test_right_answers_pass_in_pytorch_too(name):
    pytest.importorskip("torch")
    answers = {
        "adamw_step": lambda W, g, m, s, t, lr, decay: (
            W * (1 - lr * decay)
            - lr
            * ((0.9 * m + 0.1 * g) / (1 - 0.9**t))
            / (((0.98 * s + 0.02 * g * g) / (1 - 0.98**t)) ** 0.5 + 1e-8),
            0.9 * m + 0.1 * g,
            0.98 * s + 0.02 * g * g,
        ),
        "accumulate_gradients": lambda g, n: (g * n[:, None]).sum(0) / n.sum(),
    }
    report = getattr(check, name)(answers[name])
    assert report.passed, report
    assert "torch" in report.libraries
