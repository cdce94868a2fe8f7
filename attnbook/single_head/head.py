"""The learned head: attention between projections of the inputs."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from attnbook.arrays.arguments import check_int, generator
from attnbook.arrays.array import Array, Mask
from attnbook.arrays.projections import check_inputs, project
from attnbook.arrays.weights import Weights, check_part
from attnbook.kernels import REFERENCE, Impl, check_impl
from attnbook.single_head.attention import attention


@dataclass(frozen=True, eq=False)
class SingleHeadWeights(Weights):
    r"""The matrices of one learned head.

    .. math:: Q = XW_Q, \quad K = YW_K, \quad V = ZW_V, \quad
              \text{head} = \operatorname{Attention}(Q, K, V)\,W_O

    Attributes
    ----------
    W_Q : array, shape (d_query, d_k)
    W_K : array, shape (d_key, d_k)
    W_V : array, shape (d_value, d_v)
    W_O : array, shape (d_v, d_out), optional
        Without it, the head returns the mixed values themselves, of width d_v.

    Raises
    ------
    TypeError, ValueError
        If the matrices are not arrays of one library, device and real floating dtype, or if their
        shapes do not fit together.

    Examples
    --------
    >>> weights = SingleHeadWeights.init(0, 8, d_k=4, d_v=6, d_out=8)
    >>> weights.W_Q.shape, weights.W_O.shape
    ((8, 4), (6, 8))
    """

    W_Q: Annotated[Array, "d_query d_k"]
    W_K: Annotated[Array, "d_key d_k"]
    W_V: Annotated[Array, "d_value d_v"]
    W_O: Annotated[Array, "d_v d_out"] | None = None

    def __post_init__(self) -> None:
        self.check_fields()
        if self.W_K.shape[1] != self.W_Q.shape[1]:
            raise ValueError(
                f"W_K must have shape (d_key, {self.W_Q.shape[1]}) to match W_Q, "
                f"got {tuple(self.W_K.shape)}"
            )
        if self.W_O is not None and self.W_O.shape[0] != self.W_V.shape[1]:
            raise ValueError(
                f"W_O must have shape ({self.W_V.shape[1]}, d_out) to match W_V, "
                f"got {tuple(self.W_O.shape)}"
            )

    @classmethod
    def init(
        cls,
        rng: "np.random.Generator | int",
        d_query: int,
        d_key: int | None = None,
        d_value: int | None = None,
        *,
        d_k: int,
        d_v: int,
        d_out: int | None = None,
    ) -> "SingleHeadWeights":
        r"""Draw Xavier-uniform matrices (NumPy, float64).

        Entries are uniform in ±√(6 / (rows + columns)). This bound is a compromise that keeps the
        variance of activations and of gradients about the same from layer to layer (Glorot and
        Bengio 2010).

        Parameters
        ----------
        rng : numpy.random.Generator or int
            The source of the random numbers; an int is a seed.
        d_query, d_key, d_value : int
            Widths of the inputs. By default d_key is d_query, and d_value is d_key.
        d_k, d_v : int
            Width of queries and keys, and width of values, inside the head.
        d_out : int, optional
            Width of the output. Without it, there is no W_O.

        Raises
        ------
        TypeError, ValueError
            If a width is not an int of at least 1, or `rng` is neither a Generator nor an int of
            at least 0.
        """
        rng = generator(rng)
        d_key = d_query if d_key is None else d_key
        d_value = d_key if d_value is None else d_value
        widths = {"d_query": d_query, "d_key": d_key, "d_value": d_value, "d_k": d_k, "d_v": d_v}
        if d_out is not None:
            widths["d_out"] = d_out
        for name, width in widths.items():
            check_int(name, width, at_least=1)
        return cls(**cls.drawn(rng, bias=False, **widths))


def single_head_attention(
    query: Annotated[Array, "... n_q d_query"],
    key: Annotated[Array, "... n_k d_key"],
    value: Annotated[Array, "... n_k d_value"],
    weights: SingleHeadWeights,
    mask: Mask | None = None,
    *,
    is_causal: bool = False,
    impl: Impl = REFERENCE,
) -> Annotated[Array, "... n_q d_out"]:
    r"""Apply one learned head: project, attend, and project back if there is a W_O.

    .. math:: \operatorname{Attention}(XW_Q,\, YW_K,\, ZW_V)\,W_O

    Parameters
    ----------
    query : array X, shape (..., n_q, d_query)
    key : array Y, shape (..., n_k, d_key)
    value : array Z, shape (..., n_k, d_value)
        For self-attention, pass one array three times. For cross-attention, key and value are
        another array, whose width may differ from that of the query if W_K and W_V have that many
        rows.
    weights : SingleHeadWeights
    mask : boolean array that broadcasts to (..., n_q, n_k), or a `masking.Rule`, optional
        **True = may attend.**
    is_causal : bool
        Also hide every key that comes later than its query, as in `attention`.
    impl : str or callable
        The implementation, as in `attention`; the projections are the same for all of them.

    Returns
    -------
    array, shape (..., n_q, d_out), or (..., n_q, d_v) without W_O
        ``impl=kernels.Recorder()`` keeps the attention weights.

    Raises
    ------
    TypeError, ValueError
        As in `attention`, and ValueError if the width of an input is not the number of rows of its
        matrix.

    Notes
    -----
    In half precision, the projections are rounded to that precision, but the intermediate results
    of attention are not.
    Cost: O(n d_query d_k + n_q n_k (d_k + d_v)) time.

    Examples
    --------
    >>> import numpy as np
    >>> weights = SingleHeadWeights.init(0, 8, d_k=4, d_v=6)
    >>> x = np.ones((5, 8))
    >>> single_head_attention(x, x, x, weights).shape
    (5, 6)
    """
    check_impl(impl)
    check_part("weights", weights, SingleHeadWeights)
    inputs = {"query": query, "key": key, "value": value}
    matrices = {"query": weights.W_Q, "key": weights.W_K, "value": weights.W_V}
    check_inputs(inputs, matrices)
    projected = {name: project(x, matrices[name]) for name, x in inputs.items()}
    output = attention(**projected, mask=mask, is_causal=is_causal, impl=impl)
    return output if weights.W_O is None else project(output, weights.W_O)
