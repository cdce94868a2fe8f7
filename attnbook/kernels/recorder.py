"""An implementation that also keeps the weights: what each query attended to, call after call."""

from dataclasses import dataclass, field

from attnbook.arrays.array import Array, array_namespace
from attnbook.kernels.naive import weights_of


@dataclass(eq=False)
class Recorder:
    r"""Compute attention as the reference does, and keep the attention weights of each call.

    .. math:: A = \operatorname{softmax}(\beta\,QK^\top + B), \qquad O = AV

    Pass a recorder as ``impl=`` to any function that computes attention, for example to that of a
    single head, of many heads, of a layer or of a whole model, or to a module of `attnbook.nn`.

    Attributes
    ----------
    weights : list of arrays, shape (..., n_q, n_k), or (..., h, n_q, n_k) from many heads
        The weights A of each call, in the order of the calls, with the library, device and dtype of
        the queries. Rows sum to 1, but fully masked rows are 0. An encoder makes one call per
        layer. A decoder with cross-attention makes two calls per layer: first over the target, then
        over the memory. A transformer runs its encoder first. Decoding adds the calls of every
        step. If the weights have sinks, the weights of the sinks come first, (..., n_q, 1 + n_k).

    Notes
    -----
    Outputs and weights are those of ``impl="reference"``, bit for bit; inputs and errors are the
    same, too. Query heads that share a KV head have weights of their own. PyTorch's autograd
    differentiates both outputs and weights. However, the recorder has no backward pass of its own,
    so `attention_vjp` refuses it. The list grows until you clear it, so use a new recorder for each
    question.
    Cost: that of the reference, plus the memory of all weights that it keeps.

    References
    ----------
    Chapter `multi_head`.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import EncoderWeights, encoder, kernels
    >>> recorder = kernels.Recorder()
    >>> weights = EncoderWeights.init(0, 3, d_model=8, n_heads=2, d_ff=32)
    >>> encoder(np.eye(5, 8), weights, impl=recorder).shape
    (5, 8)
    >>> [A.shape for A in recorder.weights]
    [(2, 5, 5), (2, 5, 5), (2, 5, 5)]
    """

    weights: list[Array] = field(default_factory=list, init=False, repr=False)

    def __call__(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: Array | None,
        bias: Array | None,
        scale: float,
        is_causal: bool,
        cap: float | None = None,
    ) -> Array:
        """Return the output, and append the weights to `weights`."""
        xp = array_namespace(query)
        A = weights_of(query, key, mask, bias, scale, is_causal, cap)
        self.weights.append(xp.astype(A, query.dtype, copy=False))
        output = xp.matmul(A, xp.astype(value, A.dtype, copy=False))
        return xp.astype(output, query.dtype, copy=False)
