r"""The layer of Mamba-2: a state that fades by as much as it takes in.

.. math:: S_t = e^{-A\Delta_t} S_{t-1} + \Delta_t\, k_t v_t^\top, \qquad
          y_t = \operatorname{norm}\bigl((S_t^\top q_t + D v_t) \odot \operatorname{silu}(g_t)\bigr)
          W_O

Mamba writes x for the values v, B for the keys k, C for the queries q and z for the gate g.
"""

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from attnbook.arrays.arguments import check_floats, check_int, check_number, generator
from attnbook.arrays.array import Array, array_namespace, to_accumulate
from attnbook.arrays.projections import check_width, project
from attnbook.arrays.weights import Weights, check_part
from attnbook.linear_attention.arguments import check_tokens
from attnbook.linear_attention.forms import Impl, check_form, output_and_state
from attnbook.linear_attention.gates import (
    LayerState,
    first_decays,
    first_filters,
    mixed_of,
    only_shown,
    root_mean_square_of,
    silu_of,
    softplus_of,
)
from attnbook.linear_attention.layers import (
    check_columns,
    check_head_groups,
    check_past,
    check_shapes,
)
from attnbook.multi_head.heads import merge_heads_of, repeat_heads, split_heads_of


@dataclass(frozen=True, eq=False)
class Mamba2Weights(Weights):
    r"""The weights of a Mamba-2 layer.

    Attributes
    ----------
    W_Q, W_K : arrays, shape (d_model, h_k·d_k)
        What makes C and B; d_k is the size that Mamba calls the state's.
    W_V : array, shape (d_model, h·d_v)
        What makes x.
    W_O : array, shape (h·d_v, d_model)
    W_gate : array, shape (d_model, h·d_v)
        What makes z.
    W_step : array, shape (d_model, h)
    A_log, dt_bias : arrays, shape (h,)
        :math:`\Delta = \operatorname{softplus}(x W_{step} + dt)`, and the log-decay is
        :math:`-e^{A}\Delta`.
    skip : array D, shape (h,)
        How much of the value of a token its own output gets.
    filters : array, shape (width, 2·h_k·d_k + h·d_v)
        The filters of `short_convolution` over queries, keys and values side by side.
    filter_bias : array, shape (2·h_k·d_k + h·d_v,), optional
    norm_gain : array, shape (h·d_v,)
        Of the root-mean-square normalisation after the gate, over the heads that share keys.
    n_heads, n_key_heads : int
        h and h_k, which Mamba calls groups; h_k must divide h and is 1 by default.
    epsilon : float

    Raises
    ------
    TypeError, ValueError
        As in `LinearAttentionWeights`.

    Examples
    --------
    >>> weights = Mamba2Weights.init(0, d_model=8, n_heads=4, d_k=5)
    >>> weights.d_k, weights.d_v, weights.filters.shape
    (5, 4, (4, 26))
    """

    token_widths = ("d_model",)

    W_Q: Annotated[Array, "d_model hkd_k"]
    W_K: Annotated[Array, "d_model hkd_k"]
    W_V: Annotated[Array, "d_model hd_v"]
    W_O: Annotated[Array, "hd_v d_model"]
    W_gate: Annotated[Array, "d_model hd_v"]
    W_step: Annotated[Array, "d_model h"]
    A_log: Annotated[Array, "h"]
    dt_bias: Annotated[Array, "h"]
    skip: Annotated[Array, "h"]
    filters: Annotated[Array, "width channels"]
    filter_bias: Annotated[Array, "channels"] | None
    norm_gain: Annotated[Array, "hd_v"]
    n_heads: int = field(kw_only=True)
    n_key_heads: int = field(default=1, kw_only=True)
    epsilon: float = field(default=1e-5, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("n_heads", "n_key_heads"):
            object.__setattr__(self, name, check_int(name, getattr(self, name), at_least=1))
        check_head_groups("n_key_heads", self.n_key_heads, self.n_heads)
        check_number("epsilon", self.epsilon)
        self.check_fields()
        check_columns(self, {"W_Q": self.n_key_heads, "W_V": self.n_heads})
        (d_model, keys), (_, values) = self.W_Q.shape, self.W_V.shape
        channels = 2 * keys + values
        check_shapes(
            self,
            {
                **{"W_K": (d_model, keys), "W_V": (d_model, values), "W_O": (values, d_model)},
                **{"W_gate": (d_model, values), "W_step": (d_model, self.n_heads)},
                **dict.fromkeys(("A_log", "dt_bias", "skip"), (self.n_heads,)),
                **{"filters": (None, channels), "filter_bias": (channels,), "norm_gain": (values,)},
            },
        )

    @property
    def d_k(self) -> int:
        """Width of queries and keys."""
        return self.W_Q.shape[1] // self.n_key_heads

    @property
    def d_v(self) -> int:
        """Width of values inside each head."""
        return self.W_V.shape[1] // self.n_heads

    @property
    def d_query(self) -> int:
        """Width of the tokens."""
        return self.W_Q.shape[0]

    @property
    def d_out(self) -> int:
        """Width of the output."""
        return self.W_O.shape[1]

    @classmethod
    def init(
        cls,
        rng: "np.random.Generator | int",
        d_model: int,
        n_heads: int,
        d_k: int,
        *,
        d_v: int | None = None,
        n_key_heads: int = 1,
        width: int = 4,
    ) -> "Mamba2Weights":
        """Draw Xavier-uniform matrices with NumPy (float64); gains and skips are 1.

        Parameters
        ----------
        rng : numpy.random.Generator or int
            The source of the random numbers; an int is a seed.
        d_model, n_heads, d_k : int
        d_v : int, optional
            2·d_model / n_heads by default, as in Mamba.
        n_key_heads, width : int

        Raises
        ------
        TypeError, ValueError
            If a number is not an int of at least 1, or 2·d_model is not divisible by n_heads
            without `d_v`.
        """
        rng = generator(rng)
        numbers = {"d_model": d_model, "n_heads": n_heads, "d_k": d_k, "width": width}
        for name, n in (numbers | {"n_key_heads": n_key_heads}).items():
            check_int(name, n, at_least=1)
        if d_v is None and 2 * d_model % n_heads:
            raise ValueError(
                f"d_model must have a double divisible by n_heads = {n_heads} without d_v, "
                f"got {d_model}"
            )
        each = 2 * d_model // n_heads if d_v is None else check_int("d_v", d_v, at_least=1)
        keys, values = n_key_heads * d_k, n_heads * each
        sizes = {"d_model": d_model, "hkd_k": keys, "hd_v": values, "h": n_heads}
        made = cls.drawn(rng, bias=False, **sizes)
        made["A_log"], made["dt_bias"] = first_decays(rng, n_heads)
        made["filters"] = first_filters(rng, width, 2 * keys + values)
        made["filter_bias"] = np.zeros(2 * keys + values)
        made["skip"], made["norm_gain"] = np.ones(n_heads), np.ones(values)
        return cls(**made, n_heads=n_heads, n_key_heads=n_key_heads)


# The mathematics, of checked arrays.


def mamba2_of(
    x: Array,
    weights: Mamba2Weights,
    past: LayerState | None,
    impl: Impl = "chunkwise",
    *,
    shown: Array | None = None,
) -> tuple[Array, LayerState]:
    xp, keys = array_namespace(x), weights.W_Q.shape[1]
    x = only_shown(x, shown)
    mixed = [project(x, matrix) for matrix in (weights.W_Q, weights.W_K, weights.W_V)]
    before = None if past is None else past.inputs
    joined = xp.concat(mixed, axis=-1)
    y, inputs = mixed_of(joined, weights.filters, weights.filter_bias, before)
    y = only_shown(to_accumulate(y), shown)
    query = split_heads_of(y[..., :keys], weights.n_key_heads)
    key = split_heads_of(y[..., keys : 2 * keys], weights.n_key_heads)
    value = split_heads_of(y[..., 2 * keys :], weights.n_heads)
    if weights.n_key_heads != weights.n_heads:
        query, key = repeat_heads(query, key, weights.n_heads)
    step = to_accumulate(project(x, weights.W_step)) + to_accumulate(weights.dt_bias)
    step = xp.matrix_transpose(softplus_of(step))  # (..., h, n)
    log_decay = -xp.exp(to_accumulate(weights.A_log))[:, None] * step
    state = None if past is None else past.state
    tokens = check_tokens(query, key, step[..., None] * value, log_decay, state)
    output, state = output_and_state(tokens, query, impl)
    output = output + to_accumulate(weights.skip)[:, None, None] * value
    output = merge_heads_of(output) * silu_of(to_accumulate(project(x, weights.W_gate)))
    groups = (*output.shape[:-1], weights.n_key_heads, output.shape[-1] // weights.n_key_heads)
    normed = root_mean_square_of(xp.reshape(output, groups), weights.epsilon)
    output = xp.reshape(normed, output.shape) * to_accumulate(weights.norm_gain)
    output = project(xp.astype(output, x.dtype, copy=False), weights.W_O)
    return output, LayerState(state, inputs)


# The function, which checks what it is given.


def mamba2_layer(
    x: Annotated[Array, "... n d_model"],
    weights: Mamba2Weights,
    past: LayerState | None = None,
    *,
    impl: Impl = "chunkwise",
) -> tuple[Annotated[Array, "... n d_model"], LayerState]:
    r"""Read every token into states that fade, and return what they answer, gated and normalised.

    .. math:: [Q, K, V] = \operatorname{silu}(\operatorname{conv}(x [W_Q, W_K, W_V])), \quad
              \Delta = \operatorname{softplus}(x W_{step} + dt)

    `decayed_attention` with the values ΔV and the log-decays :math:`-e^{A}\Delta` makes O, and the
    output is :math:`\operatorname{RMSNorm}((O + DV) \odot \operatorname{silu}(x W_{gate})) W_O`.

    Parameters
    ----------
    x : array, shape (..., n, d_model), real floating dtype
    weights : Mamba2Weights
    past : LayerState, optional
        What was read before, such as an earlier call returned.
    impl : str
        The form of the state, as in `decayed_attention`.

    Returns
    -------
    output : array, shape (..., n, d_model)
    past : LayerState
        As in `linear_attention_layer`.

    Raises
    ------
    TypeError, ValueError, ImportError
        As in `linear_attention_layer`.

    Notes
    -----
    The queries are not scaled. It is the layer of ``transformers``' Mamba2, which gives the same
    numbers.
    Cost: as for `linear_attention_layer`.

    References
    ----------
    Dao and Gu (2024), "Transformers are SSMs"; chapter `linear_attention`.

    Examples
    --------
    >>> import numpy as np
    >>> weights = Mamba2Weights.init(0, d_model=8, n_heads=4, d_k=5)
    >>> output, past = mamba2_layer(np.ones((3, 8)), weights)
    >>> output.shape, past.state.shape, past.inputs.shape
    ((3, 8), (4, 5, 4), (3, 26))
    """
    check_form(impl)
    check_part("weights", weights, Mamba2Weights)
    check_floats(x=x, weights=weights.W_Q)
    check_width("x", x, weights.W_Q.shape[0])
    channels = weights.filters.shape[1]
    shape = (weights.n_heads, weights.d_k, weights.d_v)
    check_past(x, past, shape, weights.filters, channels)
    return mamba2_of(x, weights, past, impl)
