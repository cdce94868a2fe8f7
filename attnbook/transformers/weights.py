"""The learned arrays of a whole transformer."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_bool, check_choice, check_int, check_positive, generator
from attnbook.arrays.array import Array
from attnbook.arrays.projections import xavier
from attnbook.arrays.weights import Weights
from attnbook.positions.piece import AttentionPositions
from attnbook.positions.rotation import Rotary
from attnbook.transformers.self_attention import with_scores
from attnbook.transformers.stack import DecoderWeights, EncoderWeights

POSITIONS = ("sinusoidal", "interleaved", "learned", "rotary", "none")


@dataclass(frozen=True, eq=False)
class TransformerWeights(Weights):
    r"""The weights of an encoder-decoder or of a decoder-only model, with its embeddings.

    Attributes
    ----------
    decoder : DecoderWeights
    encoder : EncoderWeights, optional
        Without it, this is a language model, whose decoder has no cross-attention.
    target_embedding : array, shape (V_t, d_model), optional
        One row per token of the target. Without it, the model works on features instead of token
        ids, as `torch.nn.Transformer` does.
    source_embedding : array, shape (V_s, d_model), optional
        Without it, source and target share `target_embedding`.
    output : array, shape (d_model, V_t), optional
        Maps features to logits. Without it, the output is *tied*, which means that the transposed
        target_embedding takes its place.
    b_out : array, shape (V_t,), optional
        Added to the logits.
    target_positions, source_positions : arrays, shapes (N_t, d_model) and (N_s, d_model), optional
        The learned tables, only for ``positions="learned"``.
    positions : str
        How the model gets the positions of tokens: ``"sinusoidal"`` (all sines, then all cosines),
        ``"interleaved"`` (sine, cosine, sine, …), ``"learned"``, ``"rotary"`` (in every
        self-attention, by the stack's own `positions` or else by a plain `Rotary`), or ``"none"``
        (no positions, or those that the stacks hold).
        Without embeddings, only rotary positions have an effect; add others to the features
        yourself.
    scale_embeddings : bool
        Whether to multiply embeddings by √d_model.
    logit_cap : float, optional
        Soft-capping: a logit l becomes cap · tanh(l / cap).

    Raises
    ------
    TypeError, ValueError
        If a part does not have the right class, library, device, dtype or width, or a part that
        another one needs is missing.

    Examples
    --------
    >>> weights = TransformerWeights.init(0, 11, d_model=8, n_heads=2, d_ff=32, n_layers=2)
    >>> weights.target_embedding.shape, weights.output is None
    ((11, 8), True)
    """

    decoder: DecoderWeights
    encoder: EncoderWeights | None = None
    target_embedding: Annotated[Array, "V_t d_model"] | None = None
    source_embedding: Annotated[Array, "V_s d_model"] | None = None
    output: Annotated[Array, "d_model V_t"] | None = None
    b_out: Annotated[Array, "V_t"] | None = None
    target_positions: Annotated[Array, "N_t d_model"] | None = None
    source_positions: Annotated[Array, "N_s d_model"] | None = None
    positions: str = "sinusoidal"
    scale_embeddings: bool = True
    logit_cap: float | None = None

    def __post_init__(self) -> None:
        if self.logit_cap is not None:
            object.__setattr__(self, "logit_cap", check_positive("logit_cap", self.logit_cap))
        check_choice("positions", self.positions, POSITIONS)
        check_bool("scale_embeddings", self.scale_embeddings)
        self.check_fields()
        self._check_parts()
        self._check_shapes()
        self._check_pairs()

    def _check_parts(self) -> None:
        """Raise unless the parts that need each other are there."""
        crossed = [layer.cross_attention is not None for layer in self.decoder.layers]
        if self.encoder is None and any(crossed):
            raise ValueError("decoder must have no cross-attention where there is no encoder")
        if self.encoder is not None and crossed and not all(crossed):
            raise ValueError("decoder must have a cross-attention where there is an encoder")
        if self.target_embedding is None:
            for name in ("source_embedding", "target_positions", "source_positions"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} must be None where there is no target_embedding")
            if self.b_out is not None and self.output is None:
                raise ValueError("b_out must be None where there is no output")
        tables = {"target_positions": True, "source_positions": self.encoder is not None}
        for name, used in tables.items():
            needed = used and self.positions == "learned" and self.target_embedding is not None
            if needed != (getattr(self, name) is not None):
                verb = "be an array" if needed else "be None"
                raise ValueError(f'{name} must {verb} with positions="{self.positions}"')
        if self.encoder is None and self.source_embedding is not None:
            raise ValueError("source_embedding must be None where there is no encoder")

    def _check_shapes(self) -> None:
        """Raise unless every part has the width of the others."""
        if self.b_out is not None and self.b_out.ndim != 1:
            raise ValueError(f"b_out must have 1 axis, got shape {tuple(self.b_out.shape)}")
        widths = {
            name: getattr(self, name).shape[-1]
            for name, letters in self.axis_letters.items()
            if letters[-1] == "d_model" and getattr(self, name) is not None
        }
        for name, stack in (("decoder", self.decoder), ("encoder", self.encoder)):
            if stack is not None and stack.layers:
                widths[name] = stack.layers[0].d_model
            if stack is not None and stack.final_norm is not None:
                for part, x in stack.final_norm.arrays().items():
                    widths[f"{name}.final_norm.{part}"] = x.shape[0]
        for layer in self.decoder.layers[:1]:
            if layer.d_memory is not None:
                widths["the decoder's memory"] = layer.d_memory
        if self.output is not None:
            widths["output"] = self.output.shape[0]
        if len(set(widths.values())) > 1:
            listed = ", ".join(f"{name} {width}" for name, width in widths.items())
            raise ValueError(f"all parts must have one width d_model, got {listed}")
        if self.target_embedding is None:
            known = None if self.output is None else self.output.shape[1]
        else:
            known = self.target_embedding.shape[0]
        for name in ("output", "b_out"):
            x = getattr(self, name)
            if x is not None and x.shape[-1] != known:
                raise ValueError(
                    f"{name} must have {known} entries on its last axis, one for each token of "
                    f"the target, got shape {tuple(x.shape)}"
                )

    def _check_pairs(self) -> None:
        """Raise unless features come in pairs where positions rotate pairs of them."""
        stacks = [stack for stack in (self.decoder, self.encoder) if stack is not None]
        attentions = [
            attention
            for stack in stacks
            for attention in with_scores(stack.layers if stack.positions is None else ())
        ]
        for attention in attentions if self.positions == "rotary" else ():
            if attention.d_k % 2:
                raise ValueError(f'd_k must be even with positions="rotary", got {attention.d_k}')
        sines = self.positions in ("sinusoidal", "interleaved")
        if sines and self.target_embedding is not None and self.target_embedding.shape[-1] % 2:
            raise ValueError(
                f'd_model must be even with positions="{self.positions}", '
                f"got {self.target_embedding.shape[-1]}"
            )

    @property
    def d_model(self) -> int | None:
        """Width of the tokens; None if no part has a width."""
        for stack in (self.decoder, self.encoder):
            if stack is not None and stack.d_model is not None:
                return stack.d_model
        if self.target_embedding is not None:
            return self.target_embedding.shape[1]
        return None if self.output is None else self.output.shape[0]

    def embedding(self, name: str) -> Array | None:
        """Return the embedding of the ``"source"`` or of the ``"target"``, shared or not."""
        own = self.source_embedding if name == "source" else None
        return self.target_embedding if own is None else own

    @classmethod
    def init(
        cls,
        rng: "np.random.Generator | int",
        target_vocabulary: int,
        source_vocabulary: int | None = None,
        *,
        d_model: int,
        n_heads: int,
        d_ff: int,
        n_layers: int,
        n_encoder_layers: int | None = None,
        norm: str = "pre",
        activation: str = "relu",
        bias: bool = True,
        tied: bool = True,
        positions: str | AttentionPositions = "sinusoidal",
        n_positions: int | None = None,
        n_kv_heads: int | None = None,
        normalization: str = "layer",
        gated: bool = False,
        final_norm: bool | None = None,
        scale_embeddings: bool = True,
    ) -> "TransformerWeights":
        """Draw Xavier-uniform matrices with NumPy (float64); gains are 1, and biases are 0.

        Parameters
        ----------
        rng : numpy.random.Generator or int
            The source of the random numbers; an int is a seed.
        target_vocabulary : int
            Number of tokens V_t.
        source_vocabulary : int, optional
            V_s. Without it, source and target share one embedding.
        d_model, n_heads, d_ff : int
            Width of the tokens, number of heads, width of the hidden layers.
        n_layers : int
            Number of decoder layers.
        n_encoder_layers : int, optional
            n_layers by default; 0 makes a decoder-only model, which is a language model.
        norm, activation : str
            ``"pre"`` or ``"post"``; ``"relu"``, ``"gelu"``, ``"gelu_tanh"`` or ``"silu"``.
        bias : bool
            Whether matrices and normalisations have biases.
        tied : bool
            Whether the logits use the target embedding. If False, they have a matrix of their own
            and, if `bias` is True, a bias of their own.
        positions : str, Rotary, positions.RelativeBias or Alibi
            If it is not a str, the stacks hold it; then the `positions` of the model is
            ``"rotary"`` for a `Rotary` and ``"none"`` for the others.
        n_positions : int, optional
            Length of the longest sequence for learned positions; required only for those.
        n_kv_heads : int, optional
            As in `MultiHeadWeights`.
        normalization : str
            ``"layer"`` or ``"rms"``, the same in every slot.
        gated : bool
            Whether feed-forward networks are gated; with ``activation="silu"`` that is SwiGLU.
        final_norm : bool, optional
            Whether to normalise after the last layer; by default only for pre-norm.
        scale_embeddings : bool
            Whether to multiply embeddings by √d_model.

        Raises
        ------
        TypeError, ValueError
            If a number is not an int of at least 1 (0 for layers), d_model is not divisible by
            n_heads, a name is unknown, or n_positions is given without learned positions.
        """
        rng = generator(rng)
        check_bool("tied", tied)
        check_bool("bias", bias)
        n_layers = check_int("n_layers", n_layers)
        n_encoder_layers = n_layers if n_encoder_layers is None else n_encoder_layers
        crossed = check_int("n_encoder_layers", n_encoder_layers) > 0
        if source_vocabulary is not None:
            check_int("source_vocabulary", source_vocabulary, at_least=1)
            if not crossed:
                raise ValueError(
                    f"source_vocabulary must be None where there is no encoder, "
                    f"got {source_vocabulary}"
                )
        check_int("target_vocabulary", target_vocabulary, at_least=1)
        piece = None
        if isinstance(positions, AttentionPositions):
            piece, positions = positions, "rotary" if isinstance(positions, Rotary) else "none"
        check_choice("positions", positions, POSITIONS)
        if (n_positions is not None) != (positions == "learned"):
            raise ValueError(
                f'n_positions must be given with positions="learned" and only then, '
                f"got {n_positions} with {positions!r}"
            )
        check_int("d_model", d_model, at_least=1)
        sizes: Any = (d_model, n_heads, d_ff)
        options: Any = {
            **{"norm": norm, "activation": activation, "bias": bias},
            **{"n_kv_heads": n_kv_heads, "final_norm": final_norm},
            **{"normalization": normalization, "gated": gated, "positions": piece},
        }
        tables: dict[str, Any] = {}
        if n_positions is not None:
            check_int("n_positions", n_positions, at_least=1)
            tables["target_positions"] = xavier(rng, n_positions, d_model)
            if crossed:
                tables["source_positions"] = xavier(rng, n_positions, d_model)
        if source_vocabulary is not None:
            tables["source_embedding"] = xavier(rng, source_vocabulary, d_model)
        if not tied:
            tables["output"] = xavier(rng, d_model, target_vocabulary)
            if bias:
                tables["b_out"] = np.zeros(target_vocabulary)
        stack = EncoderWeights.init(rng, n_encoder_layers, *sizes, **options) if crossed else None
        return cls(
            decoder=DecoderWeights.init(rng, n_layers, *sizes, cross=crossed, **options),
            encoder=stack,
            target_embedding=xavier(rng, target_vocabulary, d_model),
            positions=positions,
            scale_embeddings=scale_embeddings,
            **tables,
        )
