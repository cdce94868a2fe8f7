"""The check of layer normalisation: which axis, which variance, and where epsilon stands."""

from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check._calls import binds, signature_of
from attnbook.check._engine import run
from attnbook.check._model import Case, Check, Mistake, Stage, Values, draw
from attnbook.check._optional import with_options
from attnbook.check._report import Report

_EPSILON = 1e-5
_PARAMETERS = ("x", "gain", "bias")


def layer_norm(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check a layer normalisation with gain and bias.

    Runs `f` on a square, on one token and on sizes that are primes, on rows of tiny variance and on
    constant rows, in float64, float32 and float16, on batches, and with other values of epsilon if
    it takes them.

    Parameters
    ----------
    f : callable
        Called as ``f(x, gain, bias)``, by position, on (n, d_model), (d_model,) and (d_model,), and
        with `epsilon` or `eps` if it takes an argument of that name; otherwise it must use 1e-5.
        A function of `x` alone is taken for one without gain and bias. It returns an array of the
        shape of `x`. It may be written for one sequence, without leading axes.
    time_limit : float
        Seconds for all calls together.

    Returns
    -------
    Report

    Raises
    ------
    TypeError, ValueError
        If `f` is not callable, or `time_limit` is not a finite number of at least 0.

    Examples
    --------
    >>> from attnbook import check
    >>> def my_norm(x, gain, bias):
    ...     deviation = x.std(axis=-1, keepdims=True)
    ...     return gain * (x - x.mean(axis=-1, keepdims=True)) / (deviation + 1e-5) + bias
    >>> check.layer_norm(my_norm).mistake
    'epsilon outside the root'
    """
    return run(LAYER_NORM, f, time_limit)


def _adapt(function: Callable) -> Callable:
    """Return `function` with epsilon under that name, and with gain and bias if it has none."""
    try:
        signature = signature_of(function)
    except Exception:  # some functions do not tell
        return function
    if binds(signature, 1) and not binds(signature, 2):
        return lambda x, gain, bias: function(x) * gain + bias
    return with_options(function, _PARAMETERS, {"epsilon": (_EPSILON, ("eps",))})


def _mean(x, axis=-1):
    return np.mean(x, axis=axis, keepdims=True)


def _right(x, gain, bias, epsilon=_EPSILON):
    y = x - _mean(x)
    return gain * (y / np.sqrt(_mean(y * y) + epsilon)) + bias


def _scaled(standardise: Callable) -> Callable:
    """Return the normalisation by `standardise(x, epsilon)`, then gain and bias."""
    return lambda x, gain, bias, epsilon=_EPSILON: gain * standardise(x, epsilon) + bias


def _over(axis: int | tuple[int, ...] | None) -> Callable:
    def standardise(x, epsilon):
        y = x - _mean(x, axis)
        return y / np.sqrt(_mean(y * y, axis) + epsilon)

    return _scaled(standardise)


def _divided(divisor: Callable) -> Callable:
    """Return the normalisation that divides by `divisor(variance, epsilon)`."""

    def standardise(x, epsilon):
        y = x - _mean(x)
        return y / divisor(_mean(y * y), epsilon)

    return _scaled(standardise)


def _unbiased(outside: bool) -> Callable:
    def standardise(x, epsilon):
        y, variance = x - _mean(x), np.var(x, axis=-1, ddof=1, keepdims=True)
        return y / (np.sqrt(variance) + epsilon if outside else np.sqrt(variance + epsilon))

    return _scaled(standardise)


def _without_keepdims(mean: bool, variance: bool) -> Callable:
    def standardise(x, epsilon):
        y = x - np.mean(x, axis=-1, keepdims=not mean)
        return y / np.sqrt(np.var(x, axis=-1, keepdims=not variance) + epsilon)

    return _scaled(standardise)


def _in_half(x, gain, bias, epsilon=_EPSILON):
    """Square in the dtype of `x` itself."""
    y = x - _mean(x)
    return gain * (y / np.sqrt(_mean(y * y) + np.asarray(epsilon, x.dtype))) + bias


def rows_are_standardised(case: Case, values: Values, again: Callable) -> str | None:
    gain, bias = case.arrays["gain"], case.arrays["bias"]
    totals = np.sum((values[0] - bias) / gain, axis=-1)
    worst = totals.flatten()[np.argmax(np.abs(totals))]
    if abs(worst) < 1e-3:
        return None
    return (
        "Before gain and bias every row has mean 0; take your bias off and divide by your gain, "
        f"and here a row sums to {worst:.4g}."
    )


def tokens_are_normalised_alone(case: Case, values: Values, again: Callable) -> str | None:
    x = case.arrays["x"].copy()
    x[..., -1, :] += np.arange(x.shape[-1])
    moved = again(x=x)
    if moved and not np.allclose(moved[0][..., :-1, :], values[0][..., :-1, :]):
        return "Changing the last token must not change the others; here it does."
    return None


_MISTAKES = (
    Mistake(
        "over the sequence",
        "You take mean and variance over the tokens: every feature has mean 0 along the sequence. "
        "Layer normalisation looks at each token by itself: reduce the last axis, the features.",
        (_over(-2), _over(0)),
    ),
    Mistake(
        "over all axes",
        "You take one mean and one variance for the whole array, so a token depends on all others. "
        "Each token has its own: pass axis=−1 and keepdims=True.",
        (_over(None), _over((-1, -2))),
    ),
    Mistake(
        "variance with n − 1",
        "You divide the sum of squares by d − 1. Layer normalisation divides by d. torch.std and "
        "torch.var use d − 1 unless they are told unbiased=False.",
        (_unbiased(outside=False), _unbiased(outside=True)),
    ),
    Mistake(
        "epsilon outside the root",
        "You add ε to the standard deviation, √σ² + ε. It belongs under the root, √(σ² + ε). Where "
        "the variance is of the size of ε the difference is large.",
        (_divided(lambda variance, epsilon: np.sqrt(variance) + epsilon),),
    ),
    Mistake(
        "no epsilon",
        "You divide by √σ² alone. A row of equal numbers has variance 0, and 0/0 is NaN; a row of "
        "nearly equal numbers is blown up. Add ε under the root: √(σ² + ε).",
        (_divided(lambda variance, epsilon: np.sqrt(variance)),),
    ),
    Mistake(
        "epsilon of another size",
        "Your ε is not 1e-5. Take it as an argument, `epsilon`, or use 1e-5, as PyTorch does. With "
        "trained weights the same ε must be used as in training.",
        tuple(
            _divided(lambda variance, _, e=e: np.sqrt(variance + e))
            for e in (1e-3, 1e-4, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12)
        ),
    ),
    Mistake(
        "variance without the root",
        "You divide by the variance σ² + ε. Divide by its root: then the numbers have variance 1.",
        (_divided(lambda variance, epsilon: variance + epsilon),),
    ),
    Mistake(
        "root multiplied",
        "You multiply by √(σ² + ε) where you should divide: large rows get larger.",
        (_divided(lambda variance, epsilon: 1 / np.sqrt(variance + epsilon)),),
    ),
    Mistake(
        "mean not subtracted",
        "You divide by the size of a row but never subtract its mean. That is RMS normalisation, "
        "another layer. Here the mean of each token goes first.",
        (
            _scaled(lambda x, epsilon: x / np.sqrt(_mean(x * x) + epsilon)),
            _scaled(lambda x, epsilon: x / np.sqrt(np.var(x, axis=-1, keepdims=True) + epsilon)),
        ),
    ),
    Mistake(
        "variance about zero",
        "You subtract the mean, but your variance is the mean of x², of the row as it came. Take "
        "the mean of (x − μ)².",
        (_scaled(lambda x, epsilon: (x - _mean(x)) / np.sqrt(_mean(x * x) + epsilon)),),
    ),
    Mistake(
        "only centred",
        "You subtract the mean and never divide by the standard deviation.",
        (_scaled(lambda x, epsilon: x - _mean(x)),),
    ),
    Mistake(
        "gain and bias forgotten",
        "You return the normalised rows themselves. The gain multiplies them and the bias is "
        "added, feature by feature.",
        (lambda x, gain, bias, epsilon=_EPSILON: _right(x, 1, 0, epsilon),),
    ),
    Mistake(
        "gain forgotten",
        "You add the bias and never multiply by the gain.",
        (lambda x, gain, bias, epsilon=_EPSILON: _right(x, 1, bias, epsilon),),
    ),
    Mistake(
        "bias forgotten",
        "You multiply by the gain and never add the bias.",
        (lambda x, gain, bias, epsilon=_EPSILON: _right(x, gain, 0, epsilon),),
    ),
    Mistake(
        "gain and bias swapped",
        "You multiply by the bias and add the gain. The gain, which starts at 1, multiplies; the "
        "bias, which starts at 0, is added.",
        (lambda x, gain, bias, epsilon=_EPSILON: _right(x, bias, gain, epsilon),),
    ),
    Mistake(
        "bias before the gain",
        "You add the bias first and then multiply by the gain, which scales the bias too. The gain "
        "comes first: g · x̂ + b.",
        (lambda x, gain, bias, epsilon=_EPSILON: gain * (_right(x, 1, 0, epsilon) + bias),),
    ),
    Mistake(
        "gain and bias before",
        "You apply gain and bias to x and normalise afterwards. They come after the division, so "
        "that they can give each feature a mean and a scale of its own.",
        (
            lambda x, gain, bias, epsilon=_EPSILON: _right(gain * x + bias, 1, 0, epsilon),
            lambda x, gain, bias, epsilon=_EPSILON: _right(gain * x, 1, bias, epsilon),
        ),
    ),
    Mistake(
        "keepdims forgotten",
        "The axis that you reduce is gone, so token i gets the mean or the variance of token j. It "
        "runs only where the array is square. Pass keepdims=True.",
        (
            _without_keepdims(True, True),
            _without_keepdims(True, False),
            _without_keepdims(False, True),
        ),
    ),
    Mistake(
        "squares overflow in half precision",
        "You square in float16, whose largest number is 65504: the variance is infinite, and the "
        "rows become 0. Compute in float32 and round the result.",
        (_in_half,),
    ),
    Mistake(
        "axis 1 of a batch",
        "For a matrix axis 1 is the last axis, for a batch it is that of the tokens. Write −1, "
        "which is the last axis of any array.",
        (_over(1),),
    ),
    Mistake(
        "epsilon ignored",
        "Your function takes `epsilon` but always uses 1e-5. Add the one that is given.",
        (lambda x, gain, bias, epsilon=_EPSILON: _right(x, gain, bias),),
    ),
)


def _case(*shape: int, size: float = 1.0, dtype: str = "float64", **options: float) -> Case:
    x = draw(20, *shape) * size + draw(21, *shape[:-1], 1)
    gain, bias = 1 + draw(22, shape[-1]) / 3, draw(23, shape[-1])
    arrays = {"x": x, "gain": gain, "bias": bias}
    return Case({name: a.astype(dtype) for name, a in arrays.items()}, options)


_CONSTANT = Case({**_case(2, 3).arguments, "x": np.full((2, 3), 5.0)})

LAYER_NORM = Check(
    name="layer_norm",
    parameters=_PARAMETERS,
    results={"output": "x.shape"},
    reference=attnbook.layer_norm,
    stages=(
        Stage(
            (
                *(_case(*shape) for shape in ((3, 3), (2, 5), (5, 3), (1, 7))),
                _case(2, 5, size=1e-3),
                _case(3, 5, size=1e-2),
                _CONSTANT,
            ),
            errors={ZeroDivisionError: "no epsilon"},
        ),
        Stage((_case(3, 3, dtype="float32"), _case(2, 5, dtype="float32"))),
        Stage((_case(2, 3, 5), _case(3, 3, 3)), beyond="a batch (leading axes)"),
        Stage((_case(3, 5, epsilon=0.5), _case(2, 3, epsilon=2.0)), option="epsilon"),
        Stage((_case(2, 5, size=500, dtype="float16"),), beyond="half precision (float16)"),
    ),
    mistakes=_MISTAKES,
    properties=(tokens_are_normalised_alone, rows_are_standardised),
    options=("epsilon",),
    remarked_options=(),
    adapt=_adapt,
)
