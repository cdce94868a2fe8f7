"""Thin `torch.nn` modules: they hold parameters and call the functions."""

from typing import Any

try:
    import torch
except ImportError as error:
    raise ImportError("attnbook.nn needs PyTorch: pip install 'attnbook[torch]'") from error

from attnbook._arrays import Array
from attnbook.multi_head import multi_head_attention
from attnbook.multi_head_weights import MultiHeadWeights
from attnbook.single_head import SingleHeadWeights, single_head_attention

MATRICES = ("W_Q", "W_K", "W_V", "W_O")
BIASES = ("b_Q", "b_K", "b_V", "b_O")


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
        _hold(self, weights.to("torch"), MATRICES)

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
        return _shapes(self)


class MultiHeadAttention(torch.nn.Module):
    """Multi-head attention with the arrays of `MultiHeadWeights` as parameters.

    Loads the state dict of a `torch.nn.MultiheadAttention` of as many heads, and gives one. It has
    no dropout, takes masks in this book's way (**True = may attend**), batch first, and returns the
    weights of every head where PyTorch's returns their mean over the heads.

    Parameters
    ----------
    weights : MultiHeadWeights
        What to start from, of any library and dtype. It is copied.

    Attributes
    ----------
    W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O : torch.nn.Parameter or None
        Of the shapes in `MultiHeadWeights`; None where `weights` has none. The state dict has just
        these names.
    n_heads, n_kv_heads : int

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

    def __init__(self, weights: MultiHeadWeights):
        super().__init__()
        if not isinstance(weights, MultiHeadWeights):
            raise TypeError(f"weights must be MultiHeadWeights, got {type(weights).__name__}")
        _hold(self, weights.to("torch"), MATRICES + BIASES)
        self.n_heads, self.n_kv_heads = weights.n_heads, weights.n_kv_heads

    @property
    def weights(self) -> MultiHeadWeights:
        """The parameters as the argument that `multi_head_attention` takes, graph included."""
        return MultiHeadWeights(
            **{name: getattr(self, name) for name in MATRICES + BIASES},
            n_heads=self.n_heads,
            n_kv_heads=self.n_kv_heads,
        )

    def forward(
        self,
        query: Array,
        key: Array | None = None,
        value: Array | None = None,
        mask: Array | None = None,
        *,
        return_weights: bool = False,
    ) -> Any:
        """Return `multi_head_attention`; `key` is `query` and `value` is `key` unless given."""
        key = query if key is None else key
        value = key if value is None else value
        return multi_head_attention(
            query, key, value, self.weights, mask, return_weights=return_weights
        )

    @classmethod
    def from_torch(cls, module: torch.nn.MultiheadAttention) -> "MultiHeadAttention":
        """Return a copy of a `torch.nn.MultiheadAttention`, without its dropout.

        All parameters of the copy require gradients, and it is in train mode. Raises ValueError if
        `module` was made with `add_bias_kv` or `add_zero_attn`, which add a key that no input has.
        """
        if not isinstance(module, torch.nn.MultiheadAttention):
            raise TypeError(
                f"module must be a torch.nn.MultiheadAttention, got {type(module).__name__}"
            )
        if module.bias_k is not None or module.add_zero_attn:
            raise ValueError(
                "module must be made without add_bias_kv and add_zero_attn, "
                f"got add_bias_kv={module.bias_k is not None}, add_zero_attn={module.add_zero_attn}"
            )
        arrays = _from_torch_names(module.state_dict())
        return cls(MultiHeadWeights(**arrays, n_heads=module.num_heads))

    def to_torch(self) -> torch.nn.MultiheadAttention:
        """Return a copy as a `torch.nn.MultiheadAttention`, batch first, in train mode.

        Raises ValueError as `torch_state_dict` does.
        """
        state = self.torch_state_dict()
        module = torch.nn.MultiheadAttention(
            self.W_Q.shape[0],
            self.n_heads,
            bias=self.b_Q is not None,
            kdim=self.W_K.shape[0],
            vdim=self.W_V.shape[0],
            batch_first=True,
            device=self.W_Q.device,
            dtype=self.W_Q.dtype,
        )
        module.load_state_dict(state)
        return module

    def torch_state_dict(self) -> dict[str, torch.Tensor]:
        """Return the parameters under the names and in the shapes of `torch.nn.MultiheadAttention`.

        Raises ValueError if that module cannot hold them: it has heads of width d_model / h, as
        many key heads as query heads, a W_O, and all four biases or none.
        """
        d_model = self.W_Q.shape[0]
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
        q, k, v, o = (matrices[name].detach().mT.contiguous() for name in MATRICES)
        if k.shape == v.shape == q.shape:
            state = {"in_proj_weight": torch.cat([q, k, v])}
        else:
            state = {"q_proj_weight": q, "k_proj_weight": k, "v_proj_weight": v}
        state["out_proj.weight"] = o
        if not missing:
            *stacked, last = (x.detach() for x in biases.values())
            state["in_proj_bias"], state["out_proj.bias"] = torch.cat(stacked), last.clone()
        return state

    def _load_from_state_dict(self, state_dict, prefix, *others):
        if f"{prefix}out_proj.weight" in state_dict:
            theirs = {
                name.removeprefix(prefix): state_dict.pop(name)
                for name in list(state_dict)
                if name.startswith(prefix)
            }
            for name, x in _from_torch_names(theirs).items():
                state_dict[prefix + name] = x
        super()._load_from_state_dict(state_dict, prefix, *others)

    def extra_repr(self) -> str:
        """Return the numbers of heads and the shapes, for the printed form of the module."""
        return f"n_heads={self.n_heads}, n_kv_heads={self.n_kv_heads}, {_shapes(self)}"


def _hold(module, weights, names):
    """Register copies of the arrays of `weights` as parameters of `module`."""
    for name in names:
        x = getattr(weights, name)
        parameter = None if x is None else torch.nn.Parameter(x.detach().clone())
        module.register_parameter(name, parameter)


def _shapes(module):
    return ", ".join(f"{name}={tuple(p.shape)}" for name, p in module.named_parameters())


def _from_torch_names(theirs):
    """Return the arrays of a `torch.nn.MultiheadAttention` under our names, transposed to ours.

    Its Linear layers hold (out, in) and compute x Wᵀ. What it does not know stays as it is.
    """
    stacked = {"in_proj_weight": MATRICES, "in_proj_bias": BIASES}
    alone = {
        "q_proj_weight": "W_Q",
        "k_proj_weight": "W_K",
        "v_proj_weight": "W_V",
        "out_proj.weight": "W_O",
        "out_proj.bias": "b_O",
    }
    ours: dict[str, torch.Tensor] = {}
    for name, x in theirs.items():
        if name in stacked:
            ours |= zip(stacked[name], x.chunk(3), strict=False)
        else:
            ours[alone.get(name, name)] = x
    return {name: x.mT.contiguous() if name in MATRICES else x for name, x in ours.items()}
