"""The layers of encoder and decoder as modules."""

from typing import Any, ClassVar

import torch

from attnbook.arrays.array import Array, Mask
from attnbook.multi_head.weights import MultiHeadWeights
from attnbook.nn.attention import MultiHeadAttention
from attnbook.nn.feed_forward import FeedForward, GatedFeedForward
from attnbook.nn.normalization import LayerNorm
from attnbook.nn.torch_module import DroppingModule
from attnbook.transformers.decoder import decoder_layer
from attnbook.transformers.encoder import encoder_layer
from attnbook.transformers.feed_forward import FeedForwardWeights
from attnbook.transformers.layer import DecoderLayerWeights, EncoderLayerWeights


class EncodingModule(DroppingModule):
    """Base of what is called with tokens that attend to each other."""

    def forward(
        self,
        x: Array,
        mask: Mask | None = None,
        *,
        rotate: bool = False,
        bias: Array | None = None,
    ) -> Array:
        """Return the output."""
        return self._function(x, self.weights, mask, rotate=rotate, bias=bias, **self._how())


class DecodingModule(DroppingModule):
    """Base of what is called with tokens of the target, and those of the source as a memory."""

    def forward(
        self,
        x: Array,
        memory: Array | None = None,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        *,
        rotate: bool = False,
        bias: Array | None = None,
    ) -> Array:
        """Return the output; `memory` is None where there is no cross-attention."""
        given = (x, memory, self.weights, mask, memory_mask)
        return self._function(*given, rotate=rotate, bias=bias, **self._how())


class _Layer(DroppingModule):
    """Base of the layers of encoder and decoder."""

    self_attention: MultiHeadAttention
    feed_forward: FeedForward | GatedFeedForward
    norm: str

    @classmethod
    def _weights_of(cls, module: Any) -> Any:
        one, two = module.linear1, module.linear2
        matrices = [x.weight.mT.contiguous() for x in (one, two)]
        network = FeedForwardWeights(
            *(matrices[0], one.bias, matrices[1], two.bias, _name_of(module.activation))
        )
        parts: dict[str, Any] = {"feed_forward": network}
        for theirs, ours in cls._theirs.items():
            if ours in cls._kind.field_names:
                holds = MultiHeadWeights in cls._kind.part_kinds[ours]
                held: Any = MultiHeadAttention if holds else LayerNorm
                parts[ours] = held._read(getattr(module, theirs))
        return cls._kind(**parts, norm="pre" if module.norm_first else "post")

    def _their_state(self) -> dict[str, torch.Tensor]:
        for name in self._kind.field_names:
            if name in self._kind.undrawn and getattr(self, name) is not None:
                raise ValueError(f"{name} must be None to fit torch.nn.{self._torch.__name__}")
        for name, part in self.named_children():
            wanted = _their_part(name)
            if not isinstance(part, wanted):
                raise ValueError(
                    f"{name} must be {wanted.__name__} to fit torch.nn.{self._torch.__name__}, "
                    f"got {type(part).__name__}"
                )
        return super()._their_state()

    def _like_torch(self, state: dict[str, torch.Tensor]) -> torch.nn.Module:
        d_model, d_ff = self.feed_forward.W_1.shape
        n_heads = [x.n_heads for x in self.children() if isinstance(x, MultiHeadAttention)]
        if len(set(n_heads)) > 1:
            raise ValueError(
                f"every attention must have as many heads to fit torch.nn."
                f"{self._torch.__name__}, got {n_heads}"
            )
        module = self._torch(
            *(d_model, n_heads[0], d_ff, self.dropout, _their(self.feed_forward.activation)),
            batch_first=True,
            norm_first=self.norm == "pre",
            bias="linear1.bias" in state,
            device=self.feed_forward.W_1.device,
            dtype=self.feed_forward.W_1.dtype,
        )
        for theirs, ours in self._theirs.items():
            part = getattr(self, ours, None)
            if isinstance(part, LayerNorm):
                getattr(module, theirs).eps = part.epsilon
        return module


class EncoderLayer(_Layer, EncodingModule, kind=EncoderLayerWeights):
    """One encoder layer with the arrays of `EncoderLayerWeights` as parameters.

    The module loads, and can return, the state dict of a `torch.nn.TransformerEncoderLayer` with
    as many heads and the same norm order, activation and epsilon.

    Parameters
    ----------
    weights : EncoderLayerWeights
        The initial parameters, of any library and dtype. They are copied.
    dropout : float
        The share of entries to drop in train mode, wherever `encoder_layer` applies `drop`.
    impl : str or callable
        The implementation, as in `attention`.

    Attributes
    ----------
    self_attention : MultiHeadAttention
    feed_forward : FeedForward
    self_attention_norm, feed_forward_norm : LayerNorm
        The state dict has the names of `weights.arrays()`, such as ``self_attention.W_Q``.
    norm : str
    dropout : float
    impl : str or callable

    Examples
    --------
    >>> weights = EncoderLayerWeights.init(0, 8, n_heads=2, d_ff=32, norm="post")
    >>> layer = EncoderLayer(weights.to(dtype="float32"), dropout=0.1)
    >>> layer(torch.ones(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    >>> theirs = torch.nn.TransformerEncoderLayer(8, 2, 32, batch_first=True).eval()
    >>> x = torch.linspace(0, 1, 120).reshape(3, 5, 8)
    >>> torch.allclose(EncoderLayer.from_torch(theirs)(x), theirs(x), atol=1e-5)
    True
    """

    _function = staticmethod(encoder_layer)
    _torch = torch.nn.TransformerEncoderLayer
    _theirs: ClassVar = {
        "self_attn": "self_attention",
        "linear1": "feed_forward.linear1",
        "linear2": "feed_forward.linear2",
        "norm1": "self_attention_norm",
        "norm2": "feed_forward_norm",
    }


class DecoderLayer(_Layer, DecodingModule, kind=DecoderLayerWeights):
    """One decoder layer with the arrays of `DecoderLayerWeights` as parameters.

    The module loads, and can return, the state dict of a `torch.nn.TransformerDecoderLayer` with
    as many heads and the same norm order, activation and epsilon. As in PyTorch, the layer masks
    nothing on its own, so pass `masking.causal` if it shall be causal.

    Parameters
    ----------
    weights : DecoderLayerWeights
    dropout, impl
        As in `EncoderLayer`; the weights are copied.

    Attributes
    ----------
    self_attention : MultiHeadAttention
    cross_attention : MultiHeadAttention or None
    feed_forward : FeedForward
    self_attention_norm, feed_forward_norm : LayerNorm
    cross_attention_norm : LayerNorm or None
        The state dict has the names of `weights.arrays()`, such as ``self_attention.W_Q``.
    norm : str
    rotary : Rotary or None
    self_attention_post_norm, feed_forward_post_norm : LayerNorm, RMSNorm or None
    dropout : float
    impl : str or callable

    Examples
    --------
    >>> weights = DecoderLayerWeights.init(0, 8, n_heads=2, d_ff=32).to(dtype="float32")
    >>> DecoderLayer(weights)(torch.ones(3, 5, 8), torch.ones(3, 7, 8)).shape
    torch.Size([3, 5, 8])
    """

    _function = staticmethod(decoder_layer)
    _torch = torch.nn.TransformerDecoderLayer
    _theirs: ClassVar = {
        "self_attn": "self_attention",
        "multihead_attn": "cross_attention",
        "linear1": "feed_forward.linear1",
        "linear2": "feed_forward.linear2",
        "norm1": "self_attention_norm",
        "norm2": "cross_attention_norm",
        "norm3": "feed_forward_norm",
    }


def _their_part(name: str) -> type[torch.nn.Module]:
    """Return the class of the only part that PyTorch's layers can have under our name."""
    if name.endswith("attention"):
        return MultiHeadAttention
    return FeedForward if name == "feed_forward" else LayerNorm


def _name_of(activation: Any) -> str:
    """Return our name of what PyTorch's layer applies between its two matrices."""
    functions = torch.nn.functional
    if activation in (torch.relu, functions.relu) or isinstance(activation, torch.nn.ReLU):
        return "relu"
    if isinstance(activation, torch.nn.GELU):
        return "gelu" if activation.approximate == "none" else "gelu_tanh"
    if activation is functions.gelu:
        return "gelu"
    if activation is functions.silu or isinstance(activation, torch.nn.SiLU):
        return "silu"
    raise ValueError(f"activation must be ReLU, GELU or SiLU, got {activation!r}")


def _their(name: str) -> Any:
    """Return what PyTorch's layers take for our name of an activation."""
    if name == "gelu_tanh":
        return torch.nn.GELU("tanh")
    return torch.nn.functional.silu if name == "silu" else name
