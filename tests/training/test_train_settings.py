"""Settings refuse what cannot be meant, and a history knows its best."""

import math
import re

import numpy as np
import pytest

from attnbook.training.settings import History, Settings

WRONG = [
    ({"steps": 0}, ValueError, "steps must be at least 1, got 0"),
    ({"steps": 2.0}, TypeError, "steps must be an int, got float"),
    ({"lr": 0}, ValueError, "lr must be above 0, got 0.0"),
    ({"lr": -1.0}, ValueError, "lr must be finite and at least 0, got -1.0"),
    ({"lr": math.nan}, ValueError, "lr must be finite and at least 0, got nan"),
    ({"lr": "1"}, TypeError, "lr must be a real number, got str"),
    ({"optimizer": "adam"}, ValueError, "optimizer must be one of adamw, sgd, got 'adam'"),
    (
        {"schedule": "linear"},
        ValueError,
        "schedule must be one of constant, inverse_sqrt, cosine, got 'linear'",
    ),
    (
        {"precision": "half"},
        ValueError,
        "precision must be one of float32, bfloat16, float16, got 'half'",
    ),
    ({"betas": 0.9}, TypeError, "betas must be a pair of numbers, got 0.9"),
    ({"betas": (0.9,)}, TypeError, "betas must be a pair of numbers, got (0.9,)"),
    ({"betas": (0.9, 1)}, ValueError, "betas[1] must be below 1, got 1.0"),
    (
        {"betas": (0.8, 0.9), "optimizer": "sgd"},
        ValueError,
        "betas are for the optimizer 'adamw', got (0.8, 0.9) with 'sgd'",
    ),
    ({"betas": (-0.1, 0)}, ValueError, "betas[0] must be finite and at least 0, got -0.1"),
    ({"weight_decay": -1}, ValueError, "weight_decay must be finite and at least 0, got -1.0"),
    ({"warmup": -1}, ValueError, "warmup must be at least 0, got -1"),
    (
        {"warmup": 10, "schedule": "cosine"},
        ValueError,
        "warmup must be below steps = 10 with the schedule 'cosine', got 10",
    ),
    (
        {"final_lr": 0.1},
        ValueError,
        "final_lr is for the schedule 'cosine', got 0.1 with 'constant'",
    ),
    (
        {"final_lr": 2, "schedule": "cosine"},
        ValueError,
        "final_lr must be at most lr = 0.5, got 2.0",
    ),
    ({"label_smoothing": 1}, ValueError, "label_smoothing must be below 1, got 1.0"),
    ({"accumulate": 0}, ValueError, "accumulate must be at least 1, got 0"),
    ({"accumulate": None}, TypeError, "accumulate must be an int, got NoneType"),
    ({"clip": 0}, ValueError, "clip must be above 0, got 0.0"),
    ({"clip": math.inf}, ValueError, "clip must be finite and at least 0, got inf"),
    ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
    ({"seed": True}, TypeError, "seed must be an int, got bool"),
    ({"eval_every": 0}, ValueError, "eval_every must be at least 1, got 0"),
    ({"patience": 0, "eval_every": 1}, ValueError, "patience must be at least 1, got 0"),
    ({"patience": 1}, ValueError, "eval_every must be given with patience, got None"),
    ({"checkpoint_every": 0.5}, TypeError, "checkpoint_every must be an int, got float"),
]


@pytest.mark.parametrize(("wrong", "error", "message"), WRONG, ids=lambda x: str(x)[:40])
def test_settings_refuse(wrong, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        Settings(**{"steps": 10, "lr": 0.5, **wrong})


def test_settings_keep_plain_numbers():
    kept = Settings(np.int64(3), np.float32(0.5), betas=[0, np.float64(0.5)], clip=2, warmup=3)
    values = {name: type(value) for name, value in vars(kept).items() if value is not None}
    assert {values[name] for name in ("lr", "weight_decay", "clip")} == {float}
    assert {values[name] for name in ("steps", "warmup", "seed")} == {int}
    assert kept.betas == (0.0, 0.5)
    assert {type(beta) for beta in kept.betas} == {float}


def test_history_knows_its_best():
    assert History().best is None
    assert History(evaluations=[(2, 3.0), (4, 1.0), (6, 1.0)]).best == (4, 1.0)
    assert not History().is_out_of_patience(1)
    assert not History(evaluations=[(2, 1.0), (4, 2.0)]).is_out_of_patience(None)
