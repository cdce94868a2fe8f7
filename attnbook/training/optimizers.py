r"""Optimizers in any array library: plain gradient descent and AdamW, and the clipping before them.

.. math:: W \leftarrow W - \eta\,g, \qquad
          W \leftarrow W - \eta\,\frac{\bar g}{\sqrt{\overline{g^2}} + \varepsilon}
"""

import math
from dataclasses import dataclass
from typing import Any

from attnbook.arrays.arguments import check_number, check_positive, check_same_home
from attnbook.arrays.array import array_namespace, to_accumulate
from attnbook.arrays.weights import Weights, check_part
from attnbook.training.settings import check_betas


@dataclass(frozen=True)
class SGD:
    r"""Stochastic gradient descent without momentum.

    .. math:: W \leftarrow (1 - \eta\lambda)\, W - \eta\,g

    with the gradient g and the learning rate η.

    Attributes
    ----------
    weight_decay : float
        λ, only for matrices; arrays with one axis, which are biases and gains, do not decay.

    Raises
    ------
    TypeError, ValueError
        If `weight_decay` is not a number of at least 0.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import LayerNormWeights
    >>> SGD().step(LayerNormWeights(np.array([1.0])), LayerNormWeights(np.array([2.0])), lr=0.25)
    LayerNormWeights(gain=array([0.5]), bias=None, epsilon=1e-05)
    """

    weight_decay: float = 0.0

    def __post_init__(self):
        object.__setattr__(self, "weight_decay", check_number("weight_decay", self.weight_decay))

    def step(self, weights: Any, gradients: Any, lr: float) -> Any:
        """Return the weights after one update with the learning rate `lr`."""
        grads, lr = _paired(weights, gradients), check_number("lr", lr)
        return weights.filled(
            {
                name: _decayed(x, lr * self.weight_decay) - lr * grads[name]
                for name, x in weights.arrays().items()
            }
        )


class AdamW:
    r"""Adam with decoupled weight decay, as `torch.optim.AdamW` updates.

    With the gradient g of update t,

    .. math:: \bar g \leftarrow \beta_1\, \bar g + (1 - \beta_1)\, g, \qquad
              \overline{g^2} \leftarrow \beta_2\, \overline{g^2} + (1 - \beta_2)\, g \odot g,
              \qquad W \leftarrow (1 - \eta\lambda)\, W - \eta\,
              \frac{\bar g / (1 - \beta_1^t)}
              {\sqrt{\overline{g^2} / (1 - \beta_2^t)} + \varepsilon}

    Parameters
    ----------
    weights : Weights
        The weights to train, in any library; only their shapes are used.
    betas : pair of floats
        β₁ and β₂: the share of its old value that the running mean of the gradients, and that of
        their squares, keeps in each update.
    epsilon : float
        ε, which prevents a division by 0 where the gradient was always 0.
    weight_decay : float
        λ, only for matrices; arrays with one axis, which are biases and gains, do not decay.

    Attributes
    ----------
    means, squares : Weights
        The running means of the gradient and of its square, with the structure of the weights; 0
        at the start. For weights in half precision, these means and each step are float32.
    n_steps : int
        The number of updates made.

    Raises
    ------
    TypeError, ValueError
        If `weights` is not a `Weights` object, or a number is out of its range.

    Notes
    -----
    A step changes no array in place; it returns new weights, and the optimizer keeps new means. The
    defaults are those of `Settings`, not those of PyTorch.

    References
    ----------
    Kingma and Ba (2015), "Adam"; Loshchilov and Hutter (2019), "Decoupled weight decay
    regularization"; chapter `training`.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import LayerNormWeights
    >>> weights = LayerNormWeights(np.array([1.0, 1.0]))
    >>> optimizer = AdamW(weights)
    >>> optimizer.step(weights, LayerNormWeights(np.array([0.1, -7.0])), lr=0.5).gain.round(4)
    array([0.5, 1.5])
    >>> optimizer.n_steps
    1
    """

    def __init__(
        self,
        weights: Any,
        *,
        betas: tuple[float, float] = (0.9, 0.98),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
    ):
        check_part("weights", weights, Weights)
        self.betas = check_betas(betas)
        self.epsilon = check_number("epsilon", epsilon)
        self.weight_decay = check_number("weight_decay", weight_decay)
        zeros = {
            name: array_namespace(x).zeros_like(to_accumulate(x))
            for name, x in weights.arrays().items()
        }
        self.means = self.squares = weights.with_arrays(zeros)
        self.n_steps = 0

    def step(self, weights: Any, gradients: Any, lr: float) -> Any:
        """Return the weights after one update with the learning rate `lr`."""
        _paired(self.means, weights, "weights")
        grads, lr = _paired(weights, gradients), check_number("lr", lr)
        self.n_steps += 1
        updated, means, squares = {}, self.means.arrays(), self.squares.arrays()
        beta_1, beta_2 = self.betas
        to_mean, to_square = (1 / (1 - beta**self.n_steps) for beta in self.betas)
        for name, x in weights.arrays().items():
            grad, xp = to_accumulate(grads[name]), array_namespace(x)
            means[name] = beta_1 * means[name] + (1 - beta_1) * grad
            squares[name] = beta_2 * squares[name] + (1 - beta_2) * (grad * grad)
            spread = xp.sqrt(squares[name] * to_square) + self.epsilon
            new = _decayed(to_accumulate(x), lr * self.weight_decay)
            new = new - (lr * to_mean) * means[name] / spread
            updated[name] = xp.astype(new, x.dtype, copy=False)
        self.means, self.squares = weights.filled(means), weights.filled(squares)
        return weights.filled(updated)


def clip_gradients(gradients: Any, longest: float | None) -> tuple[Any, float]:
    r"""Scale the gradient of all weights down if its norm is above `longest`.

    .. math:: g \leftarrow \min\Bigl(1, \frac{c}{\lVert g \rVert}\Bigr)\, g,

    where ‖g‖ is the norm over the entries of all arrays together.

    Parameters
    ----------
    gradients : Weights
    longest : float, or None
        c, above 0; None leaves the gradient unchanged.

    Returns
    -------
    gradients : Weights of the same class
    norm : float
        The norm before clipping.

    Raises
    ------
    TypeError, ValueError
        If `gradients` is not a `Weights` object, or `longest` is not a number above 0.

    Notes
    -----
    The function agrees with `torch.nn.utils.clip_grad_norm_`, except that PyTorch divides by the
    norm plus 10⁻⁶.

    References
    ----------
    Pascanu, Mikolov and Bengio (2013), "On the difficulty of training recurrent neural networks".

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import LayerNormWeights
    >>> shorter, norm = clip_gradients(LayerNormWeights(np.array([3.0, 4.0])), 1.0)
    >>> shorter.gain.round(4), norm
    (array([0.6, 0.8]), 5.0)
    """
    check_part("gradients", gradients, Weights)
    if longest is not None:
        longest = check_positive("longest", longest)
    grads = gradients.arrays()
    norm = _length([to_accumulate(x) for x in grads.values()])
    factor = 1.0 if longest is None else longest / (norm + 1e-6)
    if factor >= 1:
        return gradients, norm
    return gradients.filled({name: x * factor for name, x in grads.items()}), norm


def _length(arrays):
    """Return the length over all numbers; no square overflows or vanishes."""
    tops = (float(array_namespace(x).max(abs(x))) for x in arrays if 0 not in x.shape)
    largest = max(tops, default=0.0)
    # divided by a power of two, which rounds nothing
    unit = 2.0 ** (math.frexp(largest)[1] - 1) if 0 < largest < math.inf else 1.0
    return unit * math.sqrt(sum(float(array_namespace(x).sum((x / unit) ** 2)) for x in arrays))


def _decayed(x, part):
    """Return a matrix made smaller by `part` of itself; biases and gains stay."""
    return x * (1 - part) if part and x.ndim >= 2 else x


def _paired(weights, gradients, name="gradients"):
    """Return the arrays of `gradients`, which stand beside those of `weights`, or raise."""
    check_part("weights", weights, Weights)
    check_part(name, gradients, type(weights))
    grads = gradients.arrays()
    weights.check_fit(grads)
    if (like := weights.any_array()) is not None:
        check_same_home(name, next(iter(grads.values())), "weights", like)
    return grads
