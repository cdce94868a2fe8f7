"""Attention as a module: one head, and many."""

from typing import Any, ClassVar

import torch

from attnbook.arrays.array import Array, Mask
from attnbook.multi_head.attention import multi_head_attention
from attnbook.multi_head.weights import MultiHeadWeights
from attnbook.nn.module import AttendingModule
from attnbook.nn.torch_module import TorchModule
from attnbook.single_head.head import (
    SingleHeadWeights,
    single_head_attention,
)

MATRICES = ("W_Q", "W_K", "W_V", "W_O")
BIASES = ("b_Q", "b_K", "b_V", "b_O")
STACKED = {  # what PyTorch stores in one piece
    "in_proj_weight": ("q_proj_weight", "k_proj_weight", "v_proj_weight"),
    "in_proj_bias": ("b_Q", "b_K", "b_V"),
}


class _Heads(AttendingModule):
    """Base of what is called with queries, keys and values."""

    def forward(
        self,
        query: Array,
        key: Array | None = None,
        value: Array | None = None,
        mask: Mask | None = None,
        *,
        is_causal: bool = False,
    ) -> Array:
        """Return the output; `key` is `query` and `value` is `key` unless given."""
        key = query if key is None else key
        given = (query, key, key if value is None else value, self.weights, mask)
        return self._function(*given, is_causal=is_causal, **self._how())


class Attention(_Heads, kind=SingleHeadWeights):
    """One learned head with the matrices of `SingleHeadWeights` as parameters.

    Parameters
    ----------
    weights : SingleHeadWeights
        The initial matrices, of any library and dtype. They are copied.
    impl : str or callable
        The implementation, as in `attention`.

    Attributes
    ----------
    W_Q : torch.nn.Parameter, shape (d_query, d_k)
    W_K : torch.nn.Parameter, shape (d_key, d_k)
    W_V : torch.nn.Parameter, shape (d_value, d_v)
    W_O : torch.nn.Parameter or None, shape (d_v, d_out)
        None if `weights` has no W_O. The state dict has exactly these names.
    impl : str or callable

    Examples
    --------
    >>> head = Attention(SingleHeadWeights.init(0, 8, d_k=4, d_v=6).to(dtype="float32"))
    >>> x = torch.ones(2, 5, 8)
    >>> head(x).shape
    torch.Size([2, 5, 6])
    """

    _function = staticmethod(single_head_attention)


class MultiHeadAttention(_Heads, TorchModule, kind=MultiHeadWeights):
    """Multi-head attention with the arrays of `MultiHeadWeights` as parameters.

    The module loads the state dict of a `torch.nn.MultiheadAttention` with as many heads. It can
    also return one if PyTorch's module can hold its parameters, which means that heads have width
    d_model / h, there are as many KV heads as query heads, there is a W_O, there are all four
    biases or none, and there is nothing else, such as sinks or a window. Unlike PyTorch's module,
    it has no dropout, expects masks in the convention of this book (**True = may attend**) and the
    batch as the first axis, and returns the attention weights of every head instead of their mean
    over the heads.

    Parameters
    ----------
    weights : MultiHeadWeights
        The initial parameters, of any library and dtype. They are copied.
    impl : str or callable
        The implementation, as in `attention`.

    Attributes
    ----------
    W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O, W_gate, sinks : torch.nn.Parameter or None
        Have the shapes in `MultiHeadWeights`; None where `weights` has None. The state dict has
        exactly these names.
    q_norm, k_norm : RMSNorm, LayerNorm or None
    n_heads, n_kv_heads : int
    scale, cap : float or None
    window : int or None
    impl : str or callable

    Examples
    --------
    >>> layer = MultiHeadAttention(MultiHeadWeights.init(0, 8, 2).to(dtype="float32"))
    >>> x = torch.ones(3, 5, 8)
    >>> layer(x).shape
    torch.Size([3, 5, 8])
    >>> theirs = torch.nn.MultiheadAttention(8, 2, bias=False, batch_first=True)
    >>> layer.load_state_dict(theirs.state_dict())
    <All keys matched successfully>
    >>> torch.allclose(layer(x), theirs(x, x, x)[0], atol=1e-6)
    True
    """

    W_Q: torch.Tensor
    W_K: torch.Tensor
    W_V: torch.Tensor
    W_O: torch.Tensor | None
    b_Q: torch.Tensor | None
    b_K: torch.Tensor | None
    b_V: torch.Tensor | None
    b_O: torch.Tensor | None
    W_gate: torch.Tensor | None
    sinks: torch.Tensor | None
    n_heads: int
    n_kv_heads: int
    scale: float | None
    cap: float | None
    window: int | None
    _function = staticmethod(multi_head_attention)
    _torch = torch.nn.MultiheadAttention
    _theirs: ClassVar = {
        "q_proj_weight": "W_Q",
        "k_proj_weight": "W_K",
        "v_proj_weight": "W_V",
        "out_proj.weight": "W_O",
        "out_proj.bias": "b_O",
    }

    @classmethod
    def _weights_of(cls, module: Any) -> MultiHeadWeights:
        if module.bias_k is not None or module.add_zero_attn:
            raise ValueError(
                "module must be made without add_bias_kv and add_zero_attn, "
                f"got add_bias_kv={module.bias_k is not None}, add_zero_attn={module.add_zero_attn}"
            )
        arrays: dict[str, Any] = cls._from_their_names(module.state_dict())
        return MultiHeadWeights(**arrays, n_heads=module.num_heads)

    @classmethod
    def _from_their_names(cls, theirs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        alone: dict[str, torch.Tensor] = {}
        for name, x in theirs.items():
            alone |= zip(STACKED[name], x.chunk(3), strict=False) if name in STACKED else {name: x}
        return super()._from_their_names(alone)

    def _like_torch(self, state: dict[str, torch.Tensor]) -> torch.nn.Module:
        return torch.nn.MultiheadAttention(
            self.W_Q.shape[0],
            self.n_heads,
            bias=self.b_Q is not None,
            kdim=self.W_K.shape[0],
            vdim=self.W_V.shape[0],
            batch_first=True,
            device=self.W_Q.device,
            dtype=self.W_Q.dtype,
        )

    def _their_state(self) -> dict[str, torch.Tensor]:
        d_model = self.W_Q.shape[0]
        for name, value in self.weights.options().items():
            raise ValueError(f"{name} must be None to fit torch.nn.MultiheadAttention, got {value}")
        matrices = {name: getattr(self, name) for name in MATRICES}
        widths = {name: None if x is None else x.shape[1] for name, x in matrices.items()}
        if set(widths.values()) != {d_model}:  # W_K is narrower where heads share keys
            raise ValueError(
                f"every matrix must have d_model = {d_model} columns and every head its own keys "
                f"to fit torch.nn.MultiheadAttention, got columns {widths}, "
                f"n_heads = {self.n_heads} and n_kv_heads = {self.n_kv_heads}"
            )
        biases = {name: getattr(self, name) for name in BIASES}
        missing = [name for name, x in biases.items() if x is None]
        if len(missing) not in (0, 4):
            raise ValueError(
                "torch.nn.MultiheadAttention has all four biases or none, "
                f"got none for {', '.join(missing)}"
            )
        state = super()._their_state()
        for name, parts in STACKED.items():
            held = [state[part] for part in parts if part in state]
            if len({x.shape for x in held}) == 1:  # PyTorch stores unequal matrices apart
                state = {n: x for n, x in state.items() if n not in parts} | {name: torch.cat(held)}
        return state
