"""Thin `torch.nn` modules: they hold parameters and call the functions."""

from typing import Any

try:
    import torch
except ImportError as error:
    raise ImportError("attnbook.nn needs PyTorch: pip install 'attnbook[torch]'") from error

from attnbook._arrays import Array
from attnbook.single_head import SingleHeadWeights, single_head_attention


class Attention(torch.nn.Module):
    """One learned head with the matrices of `SingleHeadWeights` as parameters.

    Parameters
    ----------
    weights : SingleHeadWeights
        The matrices to start from, of any library and dtype. They are copied.

    Attributes
    ----------
    W_Q : torch.nn.Parameter, shape (d_query, d_k)
    W_K : torch.nn.Parameter, shape (d_key, d_k)
    W_V : torch.nn.Parameter, shape (d_value, d_v)
    W_O : torch.nn.Parameter or None, shape (d_v, d_out)
        None if `weights` has none. The state dict has just these names.

    Examples
    --------
    >>> head = Attention(SingleHeadWeights.init(0, 8, d_k=4, d_v=6).to(dtype="float32"))
    >>> x = torch.ones(2, 5, 8)
    >>> head(x).shape
    torch.Size([2, 5, 6])
    """

    def __init__(self, weights: SingleHeadWeights):
        super().__init__()
        if not isinstance(weights, SingleHeadWeights):
            raise TypeError(f"weights must be SingleHeadWeights, got {type(weights).__name__}")
        weights = weights.to("torch")
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            matrix = getattr(weights, name)
            parameter = None if matrix is None else torch.nn.Parameter(matrix.detach().clone())
            self.register_parameter(name, parameter)

    @property
    def weights(self) -> SingleHeadWeights:
        """The parameters as the argument that `single_head_attention` takes, graph included."""
        return SingleHeadWeights(self.W_Q, self.W_K, self.W_V, self.W_O)

    def forward(
        self,
        query: Array,
        key: Array | None = None,
        value: Array | None = None,
        mask: Array | None = None,
        *,
        return_weights: bool = False,
    ) -> Any:
        """Return `single_head_attention`; `key` is `query` and `value` is `key` unless given."""
        key = query if key is None else key
        value = key if value is None else value
        return single_head_attention(
            query, key, value, self.weights, mask, return_weights=return_weights
        )

    def extra_repr(self) -> str:
        """Return the shapes of the matrices, for the printed form of the module."""
        shapes = {name: tuple(p.shape) for name, p in self.named_parameters()}
        return ", ".join(f"{name}={shape}" for name, shape in shapes.items())
