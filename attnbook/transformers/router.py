r"""The router of a mixture of experts: for each token, a few experts and the weight of each.

.. math:: s = \operatorname{softmax}(x W + b) \;\text{ or }\; \sigma(x W + b), \qquad
          E(x) = \operatorname{top}_k(s + \text{correction}), \qquad
          g_e = \lambda\, s_e \Big/ \sum_{e' \in E(x)} s_{e'}
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from array_api_compat import device

from attnbook.arrays.arguments import (
    check_array,
    check_bool,
    check_choice,
    check_floats,
    check_ids,
    check_int,
    check_positive,
    generator,
)
from attnbook.arrays.array import Array, array_namespace, to_accumulate
from attnbook.arrays.empty_rows import or_one
from attnbook.arrays.projections import check_width, project, xavier
from attnbook.arrays.weights import Weights, check_part
from attnbook.single_head.softmax import softmax_of

SCORES = ("softmax", "sigmoid")
"""The names that ``score=`` takes."""

# The mathematics, of checked arrays.


def scores_of(x: Array, weights: "RouterWeights") -> Array:
    """Return the score of every expert (..., n, E), at least in float32."""
    bias = None if weights.bias is None else to_accumulate(weights.bias)
    logits = project(to_accumulate(x), to_accumulate(weights.W), bias)
    if weights.score == "softmax":
        return softmax_of(logits, -1)
    return 0.5 + 0.5 * array_namespace(x).tanh(0.5 * logits)  # exp(-x) would overflow


def chosen_of(scores: Array, weights: "RouterWeights") -> Array:
    """Return the chosen experts (..., n, k), the best first; of equals, the one with less index."""
    xp, k = array_namespace(scores), weights.top_k
    if weights.correction is not None:
        scores = scores + xp.astype(weights.correction, scores.dtype, copy=False)
    if weights.n_groups > 1:
        *leading, n_experts = scores.shape
        groups = xp.reshape(scores, (*leading, weights.n_groups, n_experts // weights.n_groups))
        best = xp.sort(groups, axis=-1, descending=True)[..., : weights.best_per_group]
        order = xp.argsort(xp.sum(best, axis=-1), axis=-1, descending=True, stable=True)
        order = order[..., : weights.top_groups]  # (..., n, top_groups)
        every = xp.arange(weights.n_groups, device=device(scores))
        may = xp.any(order[..., None, :] == every[:, None], axis=-1)  # (..., n, n_groups)
        groups = xp.where(may[..., None], groups, xp.full_like(groups, -xp.inf))
        scores = xp.reshape(groups, (*leading, n_experts))
    return xp.argsort(scores, axis=-1, descending=True, stable=True)[..., :k]


def route_of(x: Array, weights: "RouterWeights") -> tuple[Array, Array]:
    """Return the chosen experts and their weights, both (..., n, k); weights at least float32."""
    xp, scores = array_namespace(x), scores_of(x, weights)
    experts = chosen_of(scores, weights)
    shares = xp.take_along_axis(scores, experts, axis=-1)
    if weights.normalized:
        shares = shares / or_one(xp.sum(shares, axis=-1, keepdims=True))
    return experts, shares if weights.scaling == 1 else shares * weights.scaling


# The weights, and the functions, which check what they are given.


@dataclass(frozen=True, eq=False)
class RouterWeights(Weights):
    """The matrix of a router, and how it chooses experts.

    Attributes
    ----------
    W : array, shape (d_model, E)
        One column per expert.
    bias : array, shape (E,), optional
        Added to x W.
    correction : array, shape (E,), optional
        Added to the scores only for the choice, not for the weights. DeepSeek-V3 balances its
        experts with it and needs no loss for that.
    top_k : int
        How many experts each token gets, from 1 to E.
    score : str
        ``"softmax"`` over all experts, or ``"sigmoid"`` of each logit.
    normalized : bool
        Whether to divide the scores of the chosen experts by their sum. With ``"softmax"``, that is
        a softmax over the chosen logits.
    scaling : float
        Multiplies the weights in the end, above 0.
    n_groups : int
        Into how many groups of neighbours the experts are divided; 1 by default.
    top_groups : int
        In how many groups, the best, a token may choose its experts.
    best_per_group : int
        How many of its best experts' scores add up to the score of a group.

    Raises
    ------
    TypeError, ValueError
        If the arrays are not of one library, device and real floating dtype, their shapes do not
        match, a name is unknown, or a number is not as above.

    Notes
    -----
    Mixtral, Qwen3-MoE (with ``norm_topk_prob``) and gpt-oss use softmax and `normalized`; gpt-oss
    has a bias. DeepSeek-V2 uses softmax without `normalized`, and groups with
    ``best_per_group=1``. DeepSeek-V3 uses sigmoid, a correction, `normalized`, and groups with
    ``best_per_group=2``.

    References
    ----------
    Shazeer et al. (2017), "Outrageously large neural networks"; DeepSeek-AI (2024), "DeepSeek-V3",
    section 2.1.2.

    Examples
    --------
    >>> RouterWeights.init(0, d_model=8, n_experts=4, top_k=2).W.shape
    (8, 4)
    """

    token_widths = ("d_model",)

    W: Annotated[Array, "d_model E"]
    bias: Annotated[Array, "E"] | None = None
    correction: Annotated[Array, "E"] | None = None
    top_k: int = 2
    score: str = "softmax"
    normalized: bool = True
    scaling: float = 1.0
    n_groups: int = 1
    top_groups: int = 1
    best_per_group: int = 1

    def __post_init__(self) -> None:
        self.check_fields()
        n_experts = self.n_experts
        for name in ("bias", "correction"):
            x = getattr(self, name)
            if x is not None and tuple(x.shape) != (n_experts,):
                raise ValueError(
                    f"{name} must have shape ({n_experts},) to match W, got {tuple(x.shape)}"
                )
        check_int("top_k", self.top_k, 1, n_experts)
        check_choice("score", self.score, SCORES)
        check_bool("normalized", self.normalized)
        check_positive("scaling", self.scaling)
        check_int("n_groups", self.n_groups, 1)
        if n_experts % self.n_groups:
            raise ValueError(
                f"n_groups must divide the number of experts {n_experts}, got {self.n_groups}"
            )
        check_int("top_groups", self.top_groups, 1, self.n_groups)
        check_int("best_per_group", self.best_per_group, 1, n_experts // self.n_groups)
        if self.top_k > (most := self.top_groups * n_experts // self.n_groups):
            raise ValueError(
                f"top_k must be at most {most}, the experts of the chosen groups, got {self.top_k}"
            )

    @property
    def n_experts(self) -> int:
        """Number of experts E."""
        return self.W.shape[1]

    @classmethod
    def init(
        cls, rng: "np.random.Generator | int", d_model: int, n_experts: int, top_k: int
    ) -> "RouterWeights":
        """Draw the matrix Xavier-uniformly with NumPy (float64).

        Parameters
        ----------
        rng : numpy.random.Generator or int
            The source of the random numbers; an int is a seed.
        d_model, n_experts : int
        top_k : int
            At most n_experts.
        """
        d_model = check_int("d_model", d_model, 1)
        n_experts = check_int("n_experts", n_experts, 1)
        return cls(xavier(generator(rng), d_model, n_experts), top_k=top_k)


def route(
    x: Annotated[Array, "... n d_model"], weights: RouterWeights
) -> tuple[Annotated[Array, "... n k"], Annotated[Array, "... n k"]]:
    r"""Choose the experts of every token, and say how much each contributes.

    .. math:: g_e = \lambda\, \frac{s_e}{\sum_{e' \in E(x)} s_{e'}} \quad\text{or}\quad
              \lambda\, s_e \qquad \text{for } e \in E(x)

    Parameters
    ----------
    x : array, shape (..., n, d_model)
    weights : RouterWeights

    Returns
    -------
    experts : array of integers, shape (..., n, k)
        From 0 to E - 1, the best first. Of two experts with the same score, the one with the lower
        index comes first.
    shares : array, shape (..., n, k)
        The weights g of these experts, in the dtype of `x`. Half precision is computed in float32.

    Raises
    ------
    TypeError, ValueError
        If `x` and the weights are not of one library, device and dtype, or the width of `x` is not
        the number of rows of W.

    Notes
    -----
    Gradients reach the router through the weights g, not through the choice.
    Cost: O(n E (d_model + log E)).

    Examples
    --------
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> weights = RouterWeights(np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 3.0]]), top_k=2)
    >>> experts, shares = route(x, weights)
    >>> experts
    array([[0, 1],
           [1, 2]])
    >>> shares.round(3)
    array([[0.731, 0.269],
           [0.5  , 0.5  ]])
    """
    _check(x, weights)
    experts, shares = route_of(x, weights)
    return experts, array_namespace(x).astype(shares, x.dtype, copy=False)


def expert_load(experts: Annotated[Array, "..."], n_experts: int) -> Annotated[Array, "E"]:
    """Count how often each expert was chosen.

    Parameters
    ----------
    experts : array of integers, shape (..., k)
        What `route` returns, from 0 to n_experts - 1.
    n_experts : int
        E, at least 1.

    Returns
    -------
    array of integers, shape (E,)
        Its sum is the number of choices, which is the number of tokens times k.

    Raises
    ------
    TypeError, ValueError
        If `experts` is not an array of integers from 0 to n_experts - 1 with at least one axis, or
        n_experts is not an int of at least 1.

    Notes
    -----
    Cost: O(n k log(n k)).

    Examples
    --------
    >>> expert_load(np.array([[0, 2], [2, 3]]), 4)
    array([1, 0, 2, 1])
    """
    n_experts = check_int("n_experts", n_experts, 1)
    check_array("experts", experts)
    check_ids("experts", experts, n_experts, "the router", experts)
    xp = array_namespace(experts)
    bounds = bounds_of(xp.sort(xp.reshape(experts, (-1,))), n_experts)
    return bounds[1:] - bounds[:-1]


def bounds_of(ordered: Array, n_experts: int) -> Array:
    """Return where the choices of each expert begin among sorted ones, and the end: (E + 1,)."""
    xp = array_namespace(ordered)
    every = xp.arange(n_experts + 1, dtype=ordered.dtype, device=device(ordered))
    return xp.searchsorted(ordered, every)


def load_balancing_loss(
    x: Annotated[Array, "... n d_model"], weights: RouterWeights
) -> Annotated[Array, ""]:
    r"""Return the loss that is least if all experts are used equally.

    .. math:: \mathcal L = E \sum_{e=1}^{E} f_e P_e

    Here f_e is the share of the tokens that choose expert e, and P_e is the mean over the tokens of
    its score, divided by the sum of all scores.

    Parameters
    ----------
    x : array, shape (..., n, d_model)
        At least one token.
    weights : RouterWeights

    Returns
    -------
    array, shape ()
        k if all experts have the same load and the same mean score; larger where the experts with
        many tokens also have high scores. At least float32.

    Raises
    ------
    TypeError, ValueError
        As in `route`; ValueError if there is no token.

    Notes
    -----
    The choice has no gradient, so the loss lowers the scores of experts with a high load. It is
    added to the loss of a model with a small factor, such as 0.01.
    Cost: that of `route`.

    References
    ----------
    Shazeer et al. (2017), "Outrageously large neural networks", section 4; Fedus, Zoph and Shazeer
    (2021), "Switch Transformers", equations (4) to (6).

    Examples
    --------
    >>> balanced = RouterWeights(np.eye(2), top_k=1)
    >>> float(load_balancing_loss(np.eye(2), balanced))
    1.0
    >>> round(float(load_balancing_loss(np.array([[1.0, 0.0], [2.0, 0.0]]), balanced)), 2)
    1.61
    """
    _check(x, weights)
    xp, n_experts = array_namespace(x), weights.n_experts
    scores = scores_of(x, weights)
    experts = chosen_of(scores, weights)
    scores = xp.reshape(scores, (-1, n_experts))
    if scores.shape[0] == 0:
        raise ValueError(f"x must have at least 1 token, got shape {tuple(x.shape)}")
    load = expert_load(experts, n_experts)
    chosen = xp.astype(load, scores.dtype) / scores.shape[0]  # f_e, whose sum is k
    shares = scores / or_one(xp.sum(scores, axis=-1, keepdims=True))
    return n_experts * xp.sum(chosen * xp.mean(shares, axis=0))


def _check(x: Array, weights: RouterWeights) -> None:
    check_part("weights", weights, RouterWeights)
    check_floats(x=x, weights=weights.W)
    check_width("x", x, weights.W.shape[0])
