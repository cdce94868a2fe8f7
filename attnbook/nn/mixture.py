"""The mixture of experts, and its router, as modules."""

import torch

from attnbook.arrays.array import Array
from attnbook.nn.feed_forward import GatedFeedForward
from attnbook.nn.module import WeightsModule
from attnbook.transformers.mixture import MixtureWeights, mixture_of_experts
from attnbook.transformers.router import RouterWeights, route


class Router(WeightsModule, kind=RouterWeights):
    """The router with the arrays of `RouterWeights` as parameters.

    Parameters
    ----------
    weights : RouterWeights
        The initial parameters, of any library and dtype. They are copied.

    Attributes
    ----------
    W : torch.nn.Parameter, shape (d_model, E)
    bias : torch.nn.Parameter or None, shape (E,)
    correction : torch.nn.Parameter or None, shape (E,)
        It gets no gradient, because only the choice depends on it.
    top_k, n_groups, top_groups, best_per_group : int
    score : str
    normalized : bool
    scaling : float

    Examples
    --------
    >>> router = Router(RouterWeights.init(0, 4, n_experts=5, top_k=2).to(dtype="float32"))
    >>> experts, shares = router(torch.ones(3, 4))
    >>> experts.shape, shares.shape
    (torch.Size([3, 2]), torch.Size([3, 2]))
    """

    W: torch.Tensor
    bias: torch.Tensor | None
    correction: torch.Tensor | None
    top_k: int
    score: str
    normalized: bool
    scaling: float
    n_groups: int
    top_groups: int
    best_per_group: int

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Return `route`."""
        return route(x, self.weights)


class MixtureOfExperts(WeightsModule, kind=MixtureWeights):
    """The mixture of experts with the arrays of `MixtureWeights` as parameters.

    Parameters
    ----------
    weights : MixtureWeights
        The initial parameters, of any library and dtype. They are copied.

    Attributes
    ----------
    router : Router
    W_gate, W_1, W_2 : torch.nn.Parameter, shapes (E, d_model, d_ff) and (E, d_ff, d_out)
    b_gate, b_1, b_2 : torch.nn.Parameter or None, shapes (E, d_ff), (E, d_ff) and (E, d_out)
        The state dict has exactly these names, and ``router.W``, ``shared.W_1`` and so on.
    shared : GatedFeedForward or None
    shared_gate : torch.nn.Parameter or None, shape (d_model, 1)
    activation : str

    Examples
    --------
    >>> weights = MixtureWeights.init(0, d_model=4, d_ff=16, n_experts=3, top_k=2)
    >>> MixtureOfExperts(weights.to(dtype="float32"))(torch.ones(2, 5, 4)).shape
    torch.Size([2, 5, 4])
    """

    router: Router
    W_gate: torch.Tensor
    W_1: torch.Tensor
    W_2: torch.Tensor
    b_gate: torch.Tensor | None
    b_1: torch.Tensor | None
    b_2: torch.Tensor | None
    shared: GatedFeedForward | None
    shared_gate: torch.Tensor | None
    activation: str

    def forward(self, x: Array) -> Array:
        """Return `mixture_of_experts`."""
        return mixture_of_experts(x, self.weights)
