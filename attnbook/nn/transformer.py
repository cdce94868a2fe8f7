"""Encoder, decoder and the whole transformer, as modules."""

from typing import Any, ClassVar

import torch

from attnbook.arrays.array import Array, Mask
from attnbook.masking.documents import Documents
from attnbook.nn.layers import DecoderLayer, DecodingModule, EncoderLayer, EncodingModule
from attnbook.nn.normalization import LayerNorm, RMSNorm
from attnbook.nn.torch_module import DroppingModule, TorchModule
from attnbook.transformers.decoder import decoder
from attnbook.transformers.encoder import encoder
from attnbook.transformers.stack import DecoderWeights, EncoderWeights
from attnbook.transformers.transformer import transformer
from attnbook.transformers.weights import TransformerWeights


class _Stack(DroppingModule):
    """Base of encoder and decoder."""

    layers: torch.nn.ModuleList
    final_norm: LayerNorm | RMSNorm | None
    positions: Any
    _layer: ClassVar[type[TorchModule]]
    _theirs: ClassVar = {"norm": "final_norm"}
    _options: ClassVar[dict[str, Any]] = {}  # for PyTorch's constructor

    @classmethod
    def _weights_of(cls, module: Any) -> Any:
        layers = tuple(cls._layer._read(layer) for layer in module.layers)
        norm = RMSNorm if isinstance(module.norm, torch.nn.RMSNorm) else LayerNorm
        final_norm = None if module.norm is None else norm._read(module.norm)
        return cls._kind(layers, final_norm)

    def _their_state(self) -> dict[str, torch.Tensor]:
        if self.positions is not None:
            raise ValueError(
                f"positions must be None to fit torch.nn.{self._torch.__name__}, "
                f"got {type(self.positions).__name__}"
            )
        return super()._their_state()

    def _like_torch(self, state: dict[str, torch.Tensor]) -> torch.nn.Module:
        layers = [layer.to_torch() for layer in self.layers]  # type: ignore[operator]
        if not layers:
            raise ValueError(
                f"layers must be at least 1 to fit torch.nn.{self._torch.__name__}, got 0"
            )
        final_norm = None if self.final_norm is None else self.final_norm.to_torch()
        module: Any = self._torch(layers[0], 1, final_norm, **self._options)
        module.layers, module.num_layers = torch.nn.ModuleList(layers), len(layers)
        return module


class Encoder(_Stack, EncodingModule, kind=EncoderWeights):
    """A stack of encoder layers with the arrays of `EncoderWeights` as parameters.

    The module loads, and can return, the state dict of a `torch.nn.TransformerEncoder` with the
    same structure.

    Parameters
    ----------
    weights : EncoderWeights
    dropout, impl
        As in `EncoderLayer`; the weights are copied.

    Attributes
    ----------
    layers : torch.nn.ModuleList of EncoderLayer
    final_norm : LayerNorm, RMSNorm or None
    positions : Rotary, Alibi, positions.RelativeBias or None
        The state dict has the names of `weights.arrays()`, such as
        ``layers.0.self_attention.W_Q``.
    dropout : float
    impl : str or callable

    Notes
    -----
    In eval mode, with `src_key_padding_mask` and without gradients, PyTorch's own module may
    return zeros, or the bias of its last normalisation, for padding tokens; this module never
    does. `to_torch` therefore sets ``enable_nested_tensor=False``.

    Examples
    --------
    >>> weights = EncoderWeights.init(0, 2, 8, n_heads=2, d_ff=32).to(dtype="float32")
    >>> Encoder(weights, dropout=0.1)(torch.ones(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """

    _function = staticmethod(encoder)
    _torch = torch.nn.TransformerEncoder
    _layer = EncoderLayer
    _options: ClassVar = {"enable_nested_tensor": False}


class Decoder(_Stack, DecodingModule, kind=DecoderWeights):
    """A stack of decoder layers with the arrays of `DecoderWeights` as parameters.

    The module loads, and can return, the state dict of a `torch.nn.TransformerDecoder` with the
    same structure. As in PyTorch, the stack masks nothing on its own, so pass `masking.causal` if
    it shall be causal.

    Parameters
    ----------
    weights : DecoderWeights
    dropout, impl
        As in `EncoderLayer`; the weights are copied.

    Attributes
    ----------
    layers : torch.nn.ModuleList of DecoderLayer
    final_norm : LayerNorm, RMSNorm or None
    positions : Rotary, Alibi, positions.RelativeBias or None
        The state dict has the names of `weights.arrays()`, such as
        ``layers.0.cross_attention.W_Q``.
    dropout : float
    impl : str or callable

    Examples
    --------
    >>> weights = DecoderWeights.init(0, 2, 8, n_heads=2, d_ff=32).to(dtype="float32")
    >>> Decoder(weights)(torch.ones(3, 5, 8), torch.ones(3, 7, 8)).shape
    torch.Size([3, 5, 8])
    """

    _function = staticmethod(decoder)
    _torch = torch.nn.TransformerDecoder
    _layer = DecoderLayer


class Transformer(DroppingModule, kind=TransformerWeights):
    """The whole model with the arrays of `TransformerWeights` as parameters.

    The model is an encoder-decoder or, if `weights` has no encoder, a language model. Weights
    without a `source_embedding` or an `output` share the target's embedding, which is then one
    parameter. However, an array that appears in two fields, or a layer that appears twice in a
    stack, becomes two parameters, because every field is copied, and they diverge in training. So
    to tie the embeddings, leave `source_embedding` and `output` None.

    Parameters
    ----------
    weights : TransformerWeights
    dropout, impl
        As in `EncoderLayer`; the weights are copied.

    Attributes
    ----------
    decoder : Decoder
    encoder : Encoder or None
    target_embedding, source_embedding : torch.nn.Parameter or None, shapes (V_t, d_model), \
(V_s, d_model)
    output, b_out : torch.nn.Parameter or None, shapes (d_model, V_t), (V_t,)
    target_positions, source_positions : torch.nn.Parameter or None, shape (N, d_model)
    positions : str
    scale_embeddings : bool
    logit_cap : float or None
    dropout : float
    impl : str or callable

    Notes
    -----
    The names in the state dict are those of `weights.arrays()`. They are listed here for layer 0,
    and they are the same for every other layer; each ``W`` has shape (in, out), and each ``b`` has
    shape (out,):

    - ``encoder.layers.0.self_attention.W_Q``, ``W_K``, ``W_V``, ``W_O``, ``b_Q``, ``b_K``, ``b_V``,
      ``b_O``: (d_model, d_model), or (d_model, h_kv·d_k) for K and V if there are fewer KV heads;
    - ``encoder.layers.0.feed_forward.W_1`` (d_model, d_ff), ``b_1``, ``W_2`` (d_ff, d_model),
      ``b_2``;
    - ``encoder.layers.0.self_attention_norm.gain``, ``.bias``, and of ``feed_forward_norm``:
      (d_model,);
    - ``encoder.final_norm.gain``, ``.bias``: (d_model,);
    - ``decoder…`` likewise, with ``cross_attention`` and ``cross_attention_norm``;
    - ``target_embedding`` and the other attributes above, where they are not None.

    `from_torch` turns a `torch.nn.Transformer` into a model without embeddings, which maps features
    to features. **Unlike PyTorch's model, this one is causal by default**, so pass
    ``is_causal=False`` to get what PyTorch computes without `tgt_mask`. Moreover, a `source_mask`
    that is the same for all queries also hides source tokens from the target; PyTorch needs
    `memory_key_padding_mask` for that.

    Examples
    --------
    >>> weights = TransformerWeights.init(0, 11, d_model=8, n_heads=2, d_ff=32, n_layers=2)
    >>> model = Transformer(weights.to(dtype="float32"), dropout=0.1)
    >>> model(torch.tensor([[3, 1, 4]]), torch.tensor([[0, 5]])).shape
    torch.Size([1, 2, 11])
    >>> theirs = torch.nn.Transformer(8, 2, 1, 1, 32, batch_first=True).eval()
    >>> source, target = torch.ones(3, 7, 8), torch.ones(3, 5, 8)
    >>> features = Transformer.from_torch(theirs)(source, target, is_causal=False)
    >>> torch.allclose(features, theirs(source, target), atol=1e-5)
    True
    """

    decoder: Decoder
    encoder: Encoder | None
    target_embedding: torch.Tensor | None
    source_embedding: torch.Tensor | None
    output: torch.Tensor | None
    b_out: torch.Tensor | None
    target_positions: torch.Tensor | None
    source_positions: torch.Tensor | None
    positions: str
    scale_embeddings: bool
    logit_cap: float | None
    _torch = torch.nn.Transformer

    def forward(
        self,
        source: Array | None,
        target: Array,
        *,
        source_mask: Mask | None = None,
        target_mask: Mask | None = None,
        memory_mask: Mask | None = None,
        is_causal: bool = True,
        documents: Documents | None = None,
    ) -> Array:
        """Return `transformer`; `source` is None if there is no encoder."""
        masks: Any = {
            "source_mask": source_mask,
            "target_mask": target_mask,
            "memory_mask": memory_mask,
        }
        options: Any = {"is_causal": is_causal, "documents": documents} | self._how()
        return transformer(source, target, self.weights, **masks, **options)

    @classmethod
    def _weights_of(cls, module: Any) -> TransformerWeights:
        return TransformerWeights(
            Decoder._read(module.decoder), Encoder._read(module.encoder), positions="none"
        )

    def _their_state(self) -> dict[str, torch.Tensor]:
        own = [name for name, _ in self.named_parameters(recurse=False)]
        wrong = {
            "encoder": ("be there", self.encoder is None),
            "positions": ('not be "rotary"', self.positions == "rotary"),
            "logit_cap": ("be None", self.logit_cap is not None),
            ", ".join(own): ("be None", bool(own)),
        }
        for name, (verb, holds) in wrong.items():
            if holds:
                raise ValueError(
                    f"{name} must {verb} to fit torch.nn.Transformer, which holds an encoder and "
                    f"a decoder of features; model.encoder and model.decoder fit alone"
                )
        return super()._their_state()

    def _like_torch(self, state: dict[str, torch.Tensor]) -> torch.nn.Module:
        assert self.encoder is not None  # as _their_state has checked
        encoder, decoder = self.encoder.to_torch(), self.decoder.to_torch()
        return torch.nn.Transformer(
            *(encoder.layers[0].linear1.in_features, encoder.layers[0].self_attn.num_heads),
            custom_encoder=encoder,
            custom_decoder=decoder,
            batch_first=True,
        )
