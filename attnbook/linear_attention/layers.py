r"""A layer of linear attention: projections, a short convolution, a state, a gate.

.. math:: S_t = \alpha_t S_{t-1} + \beta_t\, k_t (v_t - \alpha_t S_{t-1}^\top k_t)^\top, \qquad
          y_t = \bigl[\operatorname{norm}(S_t^\top q_t) \odot \operatorname{silu}(W_g^\top x_t)
          \bigr] W_O

With :math:`W_\beta` the state overwrites (gated DeltaNet), without it the state only adds.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_bool, check_floats, check_int, check_number, generator
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
    sigmoid_of,
    silu_of,
    softplus_of,
    unit_of,
)
from attnbook.multi_head.heads import merge_heads_of, repeat_heads, split_heads_of


@dataclass(frozen=True, eq=False)
class LinearAttentionWeights(Weights):
    r"""The weights of a layer of linear attention; what is None is left out of the layer.

    With all parts it is the gated DeltaNet layer of Qwen3-Next. Without `W_beta` the state only
    adds; without `W_decay` the decay of a head is the same at every token, as in RetNet; without
    `A_log` too, nothing fades, which is DeltaNet or plain linear attention.

    Attributes
    ----------
    W_Q, W_K : arrays, shape (d_model, h_k·d_k)
    W_V : array, shape (d_model, h·d_v)
    W_O : array, shape (h·d_v, d_model)
    W_gate : array, shape (d_model, h·d_v), optional
        Its SiLU multiplies what is read from the state, after the normalisation.
    W_beta : array, shape (d_model, h), optional
        :math:`\beta = \sigma(x W_\beta)`, how much of what a key holds is overwritten.
    W_decay : array, shape (d_model, h), optional
    A_log, dt_bias : arrays, shape (h,), optional
        The log-decay of each token is :math:`-e^{A}\operatorname{softplus}(x W_{decay} + dt)`.
    filters : array, shape (width, 2·h_k·d_k + h·d_v), optional
        The filters of `short_convolution` over queries, keys and values side by side.
    norm_gain : array, shape (d_v,), optional
        Of the root-mean-square normalisation of what each head reads; not normalised without it.
    n_heads : int
        Number of states h, each with values of its own.
    n_key_heads : int
        Number of heads of queries and keys h_k, which must divide h; h by default.
    unit : bool
        Whether queries and keys get length 1, as the delta rule needs.
    epsilon : float
        Of the normalisation.

    Raises
    ------
    TypeError, ValueError
        If the arrays are not of one library, device and real floating dtype, or their shapes do
        not match each other or the numbers of heads.

    Examples
    --------
    >>> weights = LinearAttentionWeights.init(0, d_model=8, n_heads=4, n_key_heads=2)
    >>> weights.d_k, weights.d_v, weights.filters.shape
    (2, 2, (4, 16))
    """

    token_widths = ("d_model",)

    W_Q: Annotated[Array, "d_model hkd_k"]
    W_K: Annotated[Array, "d_model hkd_k"]
    W_V: Annotated[Array, "d_model hd_v"]
    W_O: Annotated[Array, "hd_v d_model"]
    W_gate: Annotated[Array, "d_model hd_v"] | None = None
    W_beta: Annotated[Array, "d_model h"] | None = None
    W_decay: Annotated[Array, "d_model h"] | None = None
    A_log: Annotated[Array, "h"] | None = None
    dt_bias: Annotated[Array, "h"] | None = None
    filters: Annotated[Array, "width channels"] | None = None
    norm_gain: Annotated[Array, "d_v"] | None = None
    n_heads: int = field(kw_only=True)
    n_key_heads: int = field(default=None, kw_only=True)  # type: ignore[assignment]
    unit: bool = field(default=True, kw_only=True)
    epsilon: float = field(default=1e-6, kw_only=True)

    def __post_init__(self) -> None:
        groups = self.n_heads if self.n_key_heads is None else self.n_key_heads
        for name, n in (("n_heads", self.n_heads), ("n_key_heads", groups)):
            object.__setattr__(self, name, check_int(name, n, at_least=1))
        check_head_groups("n_key_heads", self.n_key_heads, self.n_heads)
        check_bool("unit", self.unit)
        check_number("epsilon", self.epsilon)
        self.check_fields()
        if (self.A_log is None) != (self.dt_bias is None):
            raise ValueError("A_log and dt_bias must both be there or both be None")
        if self.W_decay is not None and self.A_log is None:
            raise ValueError("W_decay must be None where there is no A_log")
        check_columns(self, {"W_Q": self.n_key_heads, "W_V": self.n_heads})
        (d_model, keys), (_, values) = self.W_Q.shape, self.W_V.shape
        channels = 2 * keys + values
        check_shapes(
            self,
            {
                **{"W_K": (d_model, keys), "W_V": (d_model, values), "W_O": (values, d_model)},
                "W_gate": (d_model, values),
                **dict.fromkeys(("W_beta", "W_decay"), (d_model, self.n_heads)),
                **dict.fromkeys(("A_log", "dt_bias"), (self.n_heads,)),
                "filters": (None, channels),
                "norm_gain": (self.d_v,),
            },
        )

    @property
    def d_k(self) -> int:
        """Width of queries and keys inside each head."""
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
        *,
        n_key_heads: int | None = None,
        d_k: int | None = None,
        d_v: int | None = None,
        width: int | None = 4,
        delta: bool = True,
        decay: bool = True,
        gate: bool = True,
        unit: bool = True,
    ) -> "LinearAttentionWeights":
        """Draw Xavier-uniform matrices with NumPy (float64); gains are 1, decays those of Mamba-2.

        Parameters
        ----------
        rng : numpy.random.Generator or int
            The source of the random numbers; an int is a seed.
        d_model, n_heads : int
        n_key_heads : int, optional
        d_k, d_v : int, optional
            d_model / n_heads by default.
        width : int, optional
            Of the convolution; None leaves it out.
        delta, decay, gate : bool
            Whether the state overwrites, whether it fades, and whether its output is gated.
        unit : bool

        Raises
        ------
        TypeError, ValueError
            If a number is not an int of at least 1, d_model is not divisible by n_heads where it
            must be, or a flag is not a bool.
        """
        rng = generator(rng)
        check_int("d_model", d_model, at_least=1)
        check_int("n_heads", n_heads, at_least=1)
        if (d_k is None or d_v is None) and d_model % n_heads:
            raise ValueError(
                f"d_model must be divisible by n_heads = {n_heads} without d_k and d_v, "
                f"got {d_model}"
            )
        groups = n_heads if n_key_heads is None else check_int("n_key_heads", n_key_heads, 1)
        keys = groups * (d_model // n_heads if d_k is None else check_int("d_k", d_k, 1))
        values = n_heads * (d_model // n_heads if d_v is None else check_int("d_v", d_v, 1))
        sizes = {"d_model": d_model, "hkd_k": keys, "hd_v": values, "h": n_heads}
        made = cls.drawn(rng, bias=False, **sizes)
        for name, wanted in (("W_gate", gate), ("W_beta", delta), ("W_decay", decay)):
            made[name] = made[name] if check_bool(name, wanted) else None
        if decay:
            made["A_log"], made["dt_bias"] = first_decays(rng, n_heads)
        if width is not None:
            channels = 2 * keys + values
            made["filters"] = first_filters(rng, check_int("width", width, 1), channels)
        made["norm_gain"] = np.ones(values // n_heads)
        return cls(**made, n_heads=n_heads, n_key_heads=groups, unit=unit)


# The mathematics, of checked arrays.


def linear_attention_of(
    x: Array,
    weights: LinearAttentionWeights,
    past: LayerState | None,
    impl: Impl = "chunkwise",
    *,
    shown: Array | None = None,
) -> tuple[Array, LayerState]:
    xp, keys = array_namespace(x), weights.W_Q.shape[1]
    x = only_shown(x, shown)
    mixed = [project(x, matrix) for matrix in (weights.W_Q, weights.W_K, weights.W_V)]
    before = None if past is None else past.inputs
    y, inputs = mixed_of(xp.concat(mixed, axis=-1), weights.filters, None, before)
    y = only_shown(to_accumulate(y), shown)
    query = split_heads_of(y[..., :keys], weights.n_key_heads)
    key = split_heads_of(y[..., keys : 2 * keys], weights.n_key_heads)
    value = split_heads_of(y[..., 2 * keys :], weights.n_heads)
    if weights.unit:
        query, key = unit_of(query), unit_of(key)
    if weights.n_key_heads != weights.n_heads:
        query, key = repeat_heads(query, key, weights.n_heads)
    beta = None
    if weights.W_beta is not None:
        beta = sigmoid_of(to_accumulate(project(x, weights.W_beta)))
        beta = xp.matrix_transpose(beta)  # (..., h, n)
    log_decay = log_decay_of(x, weights)
    state = None if past is None else past.state
    tokens = check_tokens(query / math.sqrt(weights.d_k), key, value, log_decay, state, beta)
    output, state = output_and_state(tokens, query, impl)
    if weights.norm_gain is not None:
        output = root_mean_square_of(output, weights.epsilon) * to_accumulate(weights.norm_gain)
    output = merge_heads_of(output)
    if weights.W_gate is not None:
        output = output * silu_of(to_accumulate(project(x, weights.W_gate)))
    output = project(xp.astype(output, x.dtype, copy=False), weights.W_O)
    return output, LayerState(state, inputs)


def log_decay_of(x: Array, weights: LinearAttentionWeights) -> Array | None:
    """Return the log-decay of every head and token (..., h, n), or None where nothing fades."""
    if weights.A_log is None or weights.dt_bias is None:
        return None
    xp = array_namespace(x)
    step = to_accumulate(weights.dt_bias)
    if weights.W_decay is None:
        step = xp.broadcast_to(step, (*x.shape[:-1], weights.n_heads))
    else:
        step = step + to_accumulate(project(x, weights.W_decay))
    return xp.matrix_transpose(-xp.exp(to_accumulate(weights.A_log)) * softplus_of(step))


# What is checked.


def check_head_groups(name: str, few: int, n_heads: int) -> None:
    """Raise unless `few` heads divide `n_heads`."""
    if n_heads % few:
        raise ValueError(f"{name} must divide n_heads = {n_heads}, got {few}")


def check_columns(weights: Weights, heads: dict[str, int]) -> None:
    """Raise unless each matrix has columns for so many heads."""
    for name, n in heads.items():
        shape = tuple(getattr(weights, name).shape)
        if shape[1] % n or shape[1] == 0:
            raise ValueError(
                f"{name} must have columns for each of {n} heads, a multiple of {n}, "
                f"got shape {shape}"
            )


def check_shapes(weights: Weights, wanted: dict[str, tuple[int | None, ...]]) -> None:
    """Raise unless each array that is there has its shape; None is any length of at least 1."""
    for name, shape in wanted.items():
        x = getattr(weights, name)
        if x is None:
            continue
        got = tuple(x.shape)
        fits = [n == m or (m is None and n > 0) for n, m in zip(got, shape, strict=False)]
        if len(got) != len(shape) or not all(fits):
            told = ", ".join("width" if m is None else str(m) for m in shape)
            told += "," if len(shape) == 1 else ""
            raise ValueError(f"{name} must have shape ({told}) to match the others, got {got}")


def check_past(
    x: Array, past: Any, shape: tuple[int, ...], filters: Array | None, channels: int
) -> None:
    """Raise unless `past` is None, or a state of this `shape` and inputs to go on from with `x`."""
    if past is None:
        return
    check_part("past", past, LayerState)
    check_floats(x=to_accumulate(x), state=past.state)
    check_floats(x=x, inputs=past.inputs)
    kept = (0 if filters is None else filters.shape[0] - 1, channels)
    for name, got, last in (("state", past.state, shape), ("inputs", past.inputs, kept)):
        wanted = (*x.shape[:-2], *last)
        if tuple(got.shape) != wanted:
            raise ValueError(f"past must have {name} of shape {wanted}, got {tuple(got.shape)}")


# The function, which checks what it is given.


def linear_attention_layer(
    x: Annotated[Array, "... n d_model"],
    weights: LinearAttentionWeights,
    past: LayerState | None = None,
    *,
    impl: Impl = "chunkwise",
) -> tuple[Annotated[Array, "... n d_model"], LayerState]:
    r"""Read every token into the states of the heads, and return what they answer, gated.

    .. math:: [Q, K, V] = \operatorname{silu}(\operatorname{conv}(x [W_Q, W_K, W_V])), \quad
              \log\alpha = -e^{A} \operatorname{softplus}(x W_{decay} + dt), \quad
              \beta = \sigma(x W_\beta)

    Queries and keys are divided by their lengths, and queries by √d_k; then `delta_rule`, or
    without β `decayed_attention`, makes O of them, and the output is
    :math:`(\operatorname{RMSNorm}(O) \odot \operatorname{silu}(x W_{gate})) W_O`.

    Parameters
    ----------
    x : array, shape (..., n, d_model), real floating dtype
    weights : LinearAttentionWeights
    past : LayerState, optional
        What was read before, such as an earlier call returned.
    impl : str
        The form of the state, as in `decayed_attention`.

    Returns
    -------
    output : array, shape (..., n, d_model)
        No row depends on a later token.
    past : LayerState
        To go on from. Its size does not depend on n.

    Raises
    ------
    TypeError, ValueError, ImportError
        As in `decayed_attention`, and if `weights` or `past` do not fit.

    Notes
    -----
    It is the layer of gated DeltaNet in ``transformers``' Qwen3-Next, which gives the same numbers.
    Cost: O(n d_model h (d_k + d_v)) for the projections, and that of `delta_rule`.

    References
    ----------
    Yang et al. (2025), "Gated delta networks"; Yang et al. (2024), "Gated linear attention
    transformers"; chapter `linear_attention`.

    Examples
    --------
    >>> import numpy as np
    >>> weights = LinearAttentionWeights.init(0, d_model=8, n_heads=2)
    >>> x = np.random.default_rng(0).standard_normal((5, 8))
    >>> whole, _ = linear_attention_layer(x, weights)
    >>> first, past = linear_attention_layer(x[:3], weights)
    >>> rest, _ = linear_attention_layer(x[3:], weights, past)
    >>> np.allclose(np.concatenate([first, rest]), whole), past.state.shape
    (True, (2, 4, 4))
    """
    check_form(impl)
    check_part("weights", weights, LinearAttentionWeights)
    check_floats(x=x, weights=weights.W_Q)
    check_width("x", x, weights.W_Q.shape[0])
    channels = 2 * weights.W_Q.shape[1] + weights.W_V.shape[1]
    shape = (weights.n_heads, weights.d_k, weights.d_v)
    check_past(x, past, shape, weights.filters, channels)
    return linear_attention_of(x, weights, past, impl)
