r"""A mixture of experts: many feed-forward networks, of which each token uses a few.

.. math:: \operatorname{Mixture}(x) = \sum_{e \in E(x)} g_e\, F_e(x) + F_{\text{shared}}(x)

The choices of all tokens are sorted by expert. Then the tokens of an expert are consecutive rows,
each expert computes its rows at once, and no token is computed by an expert that it did not choose.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_bool, check_choice, check_floats, check_int, generator
from attnbook.arrays.array import Array, array_namespace, to_accumulate
from attnbook.arrays.projections import check_width, project, xavier
from attnbook.arrays.weights import Weights, check_part
from attnbook.linear_attention.gates import sigmoid_of
from attnbook.transformers.activations import ACTIVATIONS
from attnbook.transformers.feed_forward import GatedFeedForwardWeights, feed_forward_of
from attnbook.transformers.router import RouterWeights, bounds_of, route_of

ALPHA, LIMIT = 1.702, 7.0
"""The constants of the clamped SwiGLU of gpt-oss."""

GATED = (*ACTIVATIONS, "clamped_swiglu")
"""The names that ``activation=`` takes."""

Drop = Callable[[Array], Array]

# The mathematics, of checked arrays.


def mixture_of(x: Array, weights: "MixtureWeights", drop: Drop | None = None) -> Array:
    xp, k = array_namespace(x), weights.router.top_k
    rows = xp.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))
    experts, shares = route_of(rows, weights.router)  # (m, k)
    choices = xp.reshape(experts, (-1,))
    order = xp.argsort(choices, stable=True)  # by expert, and by token within one
    inputs = xp.take(rows, order // k, axis=0)  # (m·k, d_model)
    starts: Any = bounds_of(xp.take(choices, order), weights.n_experts)
    bounds = [int(i) for i in starts]
    used = [e for e in range(weights.n_experts) if bounds[e + 1] > bounds[e]] or [0]
    outputs = xp.concat(
        [_expert(inputs[bounds[e] : bounds[e + 1], :], weights, e, drop) for e in used], axis=0
    )
    outputs = xp.take(outputs, xp.argsort(order, stable=True), axis=0)  # back to token by token
    outputs = xp.reshape(outputs, (rows.shape[0], k, weights.d_out))
    mixed = xp.sum(to_accumulate(outputs) * shares[..., None], axis=1)  # (m, d_out)
    mixed = xp.reshape(xp.astype(mixed, x.dtype, copy=False), (*x.shape[:-1], weights.d_out))
    if weights.shared is None:
        return mixed
    shared = feed_forward_of(x, weights.shared, drop)
    if weights.shared_gate is not None:
        shared = shared * sigmoid_of(project(x, weights.shared_gate))
    return mixed + shared


def _expert(x: Array, weights: "MixtureWeights", e: int, drop: Drop | None) -> Array:
    """Return the output of expert e for rows of tokens."""
    gate = project(x, weights.W_gate[e, :, :], _row(weights.b_gate, e))
    up = project(x, weights.W_1[e, :, :], _row(weights.b_1, e))  # (m, d_ff)
    if weights.activation == "clamped_swiglu":
        hidden = clamped_swiglu_of(gate, up)
    else:
        hidden = ACTIVATIONS[weights.activation](gate) * up
    hidden = hidden if drop is None else drop(hidden)
    return project(hidden, weights.W_2[e, :, :], _row(weights.b_2, e))


def _row(biases: Array | None, e: int) -> Array | None:
    return None if biases is None else biases[e, :]


def clamped_swiglu_of(gate: Array, up: Array) -> Array:
    """Return g σ(1.702 g) (u + 1), where g is at most 7, and u is clamped to ±7."""
    silu = ACTIVATIONS["silu"]
    gate = array_namespace(gate).clip(gate, max=LIMIT)
    up = array_namespace(up).clip(up, min=-LIMIT, max=LIMIT)
    return silu(gate * ALPHA) / ALPHA * (up + 1)


# The weights, and the function, which checks what it is given.


@dataclass(frozen=True, eq=False)
class MixtureWeights(Weights):
    """The router and the gated feed-forward networks of all experts, stacked along the first axis.

    Attributes
    ----------
    router : RouterWeights
    W_gate, W_1 : arrays, shape (E, d_model, d_ff)
        Expert e computes (act(x W_gate[e]) ⊙ x W_1[e]) W_2[e], as `GatedFeedForwardWeights` do.
    W_2 : array, shape (E, d_ff, d_out)
    b_gate, b_1 : arrays, shape (E, d_ff), optional
    b_2 : array, shape (E, d_out), optional
    shared : GatedFeedForwardWeights, optional
        The shared expert, which every token uses with weight 1. Several shared experts are one, of
        which the hidden layers are concatenated.
    shared_gate : array, shape (d_model, 1), optional
        With it, the output of the shared expert is multiplied by σ(x shared_gate), as in Qwen.
    activation : str
        ``"silu"``, ``"gelu"``, ``"gelu_tanh"``, ``"relu"``, or ``"clamped_swiglu"`` of gpt-oss:
        g σ(1.702 g) (u + 1) with g = min(x W_gate, 7) and u = x W_1 clamped to ±7.

    Raises
    ------
    TypeError, ValueError
        If the arrays are not of one library, device and real floating dtype, their shapes do not
        match, or `activation` is unknown.

    Examples
    --------
    >>> weights = MixtureWeights.init(0, d_model=8, d_ff=16, n_experts=4, top_k=2)
    >>> weights.W_1.shape, weights.router.W.shape
    ((4, 8, 16), (8, 4))
    """

    token_widths = ("d_model", "d_out")

    router: RouterWeights
    W_gate: Annotated[Array, "E d_model d_ff"]
    W_1: Annotated[Array, "E d_model d_ff"]
    W_2: Annotated[Array, "E d_ff d_out"]
    b_gate: Annotated[Array, "E d_ff"] | None = None
    b_1: Annotated[Array, "E d_ff"] | None = None
    b_2: Annotated[Array, "E d_out"] | None = None
    shared: GatedFeedForwardWeights | None = None
    shared_gate: Annotated[Array, "d_model one"] | None = None
    activation: str = "silu"

    def __post_init__(self) -> None:
        self.check_fields()
        check_choice("activation", self.activation, GATED)
        if self.W_2.ndim != 3:
            raise ValueError(f"W_2 must have 3 axes, got shape {tuple(self.W_2.shape)}")
        d_model, n_experts = self.router.W.shape
        d_ff, d_out = self.W_2.shape[1:]
        sizes = {"E": n_experts, "d_model": d_model, "d_ff": d_ff, "d_out": d_out, "one": 1}
        for name, letters in self.axis_letters.items():
            x, shape = getattr(self, name), tuple(sizes[letter] for letter in letters)
            if x is not None and tuple(x.shape) != shape:
                raise ValueError(
                    f"{name} must have shape {shape} to match the router and W_2, "
                    f"got {tuple(x.shape)}"
                )
        if self.shared is None and self.shared_gate is not None:
            raise ValueError("shared_gate must be None where there is no shared expert")
        if (shared := self.shared) is not None:
            own = (shared.W_1.shape[0], shared.W_2.shape[1])
            if own != (d_model, d_out):
                raise ValueError(
                    f"shared must lead from width {d_model} to width {d_out}, "
                    f"got {own[0]} and {own[1]}"
                )

    @property
    def n_experts(self) -> int:
        """Number of experts E, without the shared one."""
        return self.W_1.shape[0]

    @property
    def d_out(self) -> int:
        """Width of the output."""
        return self.W_2.shape[2]

    @classmethod
    def init(
        cls,
        rng: "np.random.Generator | int",
        d_model: int,
        d_ff: int,
        *,
        n_experts: int,
        top_k: int,
        shared: int = 0,
        activation: str = "silu",
        bias: bool = False,
    ) -> "MixtureWeights":
        """Draw the matrices of every expert Xavier-uniformly with NumPy; the biases are 0.

        Parameters
        ----------
        rng : numpy.random.Generator or int
            The source of the random numbers; an int is a seed.
        d_model, d_ff : int
            Width of the tokens, and width of the hidden layer of each expert.
        n_experts, top_k : int
            Number of experts, and how many of them each token uses.
        shared : int
            Width of the hidden layer of the shared expert; 0 for none.
        activation : str
        bias : bool
            Whether router and experts have biases.

        Raises
        ------
        TypeError, ValueError
            If a number is not an int of at least 1 (`shared`: 0), or top_k exceeds n_experts.
        """
        rng = generator(rng)
        d_model, d_ff = check_int("d_model", d_model, 1), check_int("d_ff", d_ff, 1)
        shared = check_int("shared", shared)
        check_choice("activation", activation, GATED)
        router = RouterWeights.init(rng, d_model, n_experts, top_k)
        shapes = {"W_gate": (d_model, d_ff), "W_1": (d_model, d_ff), "W_2": (d_ff, d_model)}
        made = {
            name: np.stack([xavier(rng, *shape) for _ in range(n_experts)])
            for name, shape in shapes.items()
        }
        if check_bool("bias", bias):
            router = RouterWeights(router.W, np.zeros(n_experts), top_k=top_k)
            biases = {"b_gate": d_ff, "b_1": d_ff, "b_2": d_model}
            made |= {name: np.zeros((n_experts, width)) for name, width in biases.items()}
        own = "silu" if activation == "clamped_swiglu" else activation
        network = None
        if shared:
            network = GatedFeedForwardWeights.init(rng, d_model, shared, activation=own)
        return cls(router, **made, shared=network, activation=activation)


def mixture_of_experts(
    x: Annotated[Array, "... n d_model"], weights: MixtureWeights
) -> Annotated[Array, "... n d_out"]:
    r"""Apply to each token the experts that the router chooses for it, and the shared expert.

    .. math:: y = \sum_{e \in E(x)} g_e \bigl(\operatorname{act}(x W_g^{(e)}) \odot
              x W_1^{(e)}\bigr) W_2^{(e)} + F_{\text{shared}}(x)

    Parameters
    ----------
    x : array, shape (..., n, d_model)
    weights : MixtureWeights

    Returns
    -------
    array, shape (..., n, d_out)

    Raises
    ------
    TypeError, ValueError
        If `x` and the weights are not of one library, device and dtype, or the width of `x` is not
        that of the experts.

    Notes
    -----
    Each token is computed on its own, so the number of parameters grows with E, but the time per
    token grows only with k. The router computes half precision in float32. The sizes of the
    products depend on the choices, so they must be read from the device once per call.
    Cost: O(n d_model (E + k d_ff)) time, plus sorting n k choices; O(n k (d_model + d_ff)) memory.

    References
    ----------
    Shazeer et al. (2017), "Outrageously large neural networks"; Jiang et al. (2024), "Mixtral of
    experts"; DeepSeek-AI (2024), "DeepSeek-V3".

    Examples
    --------
    >>> weights = MixtureWeights.init(0, d_model=8, d_ff=16, n_experts=4, top_k=2)
    >>> mixture_of_experts(np.ones((3, 5, 8)), weights).shape
    (3, 5, 8)
    """
    check_part("weights", weights, MixtureWeights)
    check_floats(x=x, weights=weights.W_1)
    check_width("x", x, weights.W_1.shape[1])
    return mixture_of(x, weights)
