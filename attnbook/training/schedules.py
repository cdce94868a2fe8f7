"""The learning rate of each update: a warm-up, then constant, falling as 1/√step, or a cosine."""

import math

from attnbook.arrays.arguments import check_int
from attnbook.arrays.weights import check_part
from attnbook.training.settings import Settings


def learning_rate(step: int, settings: Settings) -> float:
    r"""Return the learning rate of the update that follows `step` updates.

    With the number of the update t = step + 1, and w = max(warmup, 1), it rises linearly,

    .. math:: \eta_t = \text{lr} \cdot t / w \qquad (t \le w),

    to its peak lr at t = w, and then,

    .. math:: \eta_t = \begin{cases}
        \text{lr} & \text{constant} \\
        \text{lr} \cdot \sqrt{w / t} & \text{inverse\_sqrt} \\
        \text{final\_lr} + (\text{lr} - \text{final\_lr})
            \cdot \tfrac12 \bigl(1 + \cos \pi \tfrac{t - w}{\text{steps} - w}\bigr) & \text{cosine}
        \end{cases}

    Parameters
    ----------
    step : int
        The number of updates already made; the first update is that of step 0.
    settings : Settings

    Returns
    -------
    float

    Raises
    ------
    TypeError, ValueError
        If `step` is not an int of at least 0, or `settings` is not a `Settings` object.

    Notes
    -----
    The original Transformer uses ``inverse_sqrt`` with lr = (d_model · warmup)^-½. The cosine
    reaches its last value, `final_lr`, in the last update and keeps it after that.

    References
    ----------
    Vaswani et al. (2017), "Attention is all you need", section 5.3; Loshchilov and Hutter (2017),
    "SGDR"; chapter `training`.

    Examples
    --------
    >>> settings = Settings(steps=100, lr=0.5, warmup=4, schedule="inverse_sqrt")
    >>> [learning_rate(step, settings) for step in (0, 1, 3, 15)]
    [0.125, 0.25, 0.5, 0.25]
    """
    check_part("settings", settings, Settings)
    k = check_int("step", step, at_most=2**63 - 1) + 1
    w = max(settings.warmup, 1)
    if k <= w:
        return settings.lr * (k / w)
    if settings.schedule == "inverse_sqrt":
        return settings.lr * math.sqrt(w / k)
    if settings.schedule == "cosine":
        part = min((k - w) / max(settings.steps - w, 1), 1.0)
        rest = (1 + math.cos(math.pi * part)) / 2
        return settings.final_lr + (settings.lr - settings.final_lr) * rest
    return settings.lr
