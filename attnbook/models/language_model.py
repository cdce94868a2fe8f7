"""A language model: a decoder with its tokenizer, which reads, scores and writes text."""

import codecs
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, Self

import numpy as np

from attnbook import kernels
from attnbook.arrays.arguments import check_int, generator
from attnbook.arrays.array import Array, to_accumulate
from attnbook.arrays.lengths import placed
from attnbook.arrays.move import move
from attnbook.arrays.weights import check_part
from attnbook.data.byte_pairs import BytePairs
from attnbook.data.ids import check_text
from attnbook.data.records import packed
from attnbook.decoding.generate import stream
from attnbook.decoding.sampling import sampler
from attnbook.decoding.speculative import speculative_stream
from attnbook.kernels import REFERENCE, Impl, Recorder
from attnbook.masking import causal
from attnbook.single_head.softmax import log_softmax
from attnbook.transformers.decoder import decoder
from attnbook.transformers.stack import DecoderWeights
from attnbook.transformers.transformer import check_tokens, placed_tokens, transformer
from attnbook.transformers.weights import TransformerWeights


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """The weights of a decoder with the tokenizer that it was trained with.

    Attributes
    ----------
    weights : TransformerWeights
        The weights of a decoder-only model, whose cross-attention and encoder are None.
    tokenizer : BytePairs
        A tokenizer with as many tokens as the embedding of `weights` has rows. Its end-of-text
        token, `tokenizer.stop`, is what the model reads before the first token of a text.
    context : int
        The length in tokens of the longest sequence that the model was trained on. Longer texts are
        read in windows.

    Raises
    ------
    TypeError, ValueError
        If a part has the wrong class, or the sizes of the vocabularies differ.

    Examples
    --------
    >>> model = writer()
    >>> model.tokens("To be, or not to be")
    ['To', ' be', ',', ' or', ' not', ' to', ' be']
    """

    weights: TransformerWeights
    tokenizer: BytePairs
    context: int

    def __post_init__(self):
        check_part("weights", self.weights, TransformerWeights)
        check_part("tokenizer", self.tokenizer, BytePairs)
        check_int("context", self.context, at_least=2)
        if self.weights.encoder is not None or self.weights.target_embedding is None:
            raise ValueError("weights must be a decoder alone, with an embedding")
        known = self.weights.target_embedding.shape[0]
        if known != len(self.tokenizer):
            raise ValueError(
                f"tokenizer must have {known} tokens to match weights, got {len(self.tokenizer)}"
            )

    def to(
        self, library: str | None = None, *, device: Any = None, dtype: str | None = None
    ) -> Self:
        """Return the model in another library, on another device or in another dtype.

        The parameters are those of `attnbook.move`.
        """
        weights = self.weights.to(library, device=device, dtype=dtype)
        return type(self)(weights, self.tokenizer, self.context)

    def ids(self, text: str) -> Annotated[Array, "n"]:
        """Return the token ids of `text`, in the library and on the device of the weights."""
        return placed(self.tokenizer.encode(text), self.weights.target_embedding)

    def tokens(self, text: str) -> list[str]:
        """Return the text of every token of `text`."""
        return self.tokenizer.pieces(text)

    def logits(self, text: str, *, impl: Impl = REFERENCE) -> Annotated[Array, "n vocabulary"]:
        """Return the logits of the token that follows each token of `text`.

        `impl` chooses the implementation of attention, by name or as a function, as in `attention`.
        """
        return transformer(None, self.ids(text), self.weights, impl=impl)

    def attention(self, text: str) -> Annotated[np.ndarray, "layers h n n"]:
        """Return the attention weights of every head over `text`, as NumPy arrays.

        Entry [layer, head, i, j] is the weight that token i gives to token j. Where a head has a
        sink, the weights of a token sum to less than 1. Raises a ValueError if the model has no
        layer.
        """
        if not self.weights.decoder.layers:
            raise ValueError("weights must have at least 1 layer to attend, got 0")
        recorder = Recorder()
        transformer(None, self.ids(text), self.weights, impl=recorder)
        n = recorder.weights[0].shape[-2]
        return np.stack([move(A[..., -n:], "numpy") for A in recorder.weights])  # no sinks

    def stream(self, text: str, layer: int) -> Annotated[Array, "n d_model"]:
        """Return the residual stream of `text` before `layer`.

        Before layer 0 the stream is the embedding with positions. Use
        ``len(weights.decoder.layers)`` for the stream after the last layer.
        """
        layer = check_int("layer", layer, at_most=len(self.weights.decoder.layers))
        return self._through(text, layer, REFERENCE)

    def heads(
        self, text: str, layer: int
    ) -> tuple[
        Annotated[Array, "h n d_k"], Annotated[Array, "h n d_k"], Annotated[Array, "h n d_v"]
    ]:
        """Return the queries, keys and values of every head of `layer`, as attention receives them.

        Queries and keys are already rotated by their positions. If heads share keys and values,
        each head has a copy of them.
        """
        layer = check_int("layer", layer, at_most=len(self.weights.decoder.layers) - 1)
        seen = []

        def keep(query, key, value, mask, bias, scale, is_causal, cap=None):
            n = query.shape[-2]
            seen.append((query, key[..., -n:, :], value[..., -n:, :]))  # no sinks
            given = (query, key, value, mask, bias, scale, is_causal, cap)
            return kernels.attention(REFERENCE, *given)

        self._through(text, layer + 1, keep)
        return seen[layer]

    def surprisal(self, text: str, *, impl: Impl = REFERENCE) -> Annotated[np.ndarray, "n"]:
        r"""Return how many bits each token of `text` costs: :math:`-\log_2 p`.

        The model reads windows of `context` tokens that overlap by half. So it sees at least
        ``context // 2`` tokens before every token, except at the beginning of the text. The first
        token is judged after the end-of-text token.

        Cost: each token is read twice.
        """
        ids = np.concatenate([[self.tokenizer.stop], self.tokenizer.encode(text)])
        n, half, bits = len(ids) - 1, self.context // 2, []
        like = self.weights.target_embedding
        starts = range(0, max(n - half, 1), half)
        for start in starts:
            window = ids[start : start + self.context + 1]
            logits = transformer(None, placed(window[:-1], like), self.weights, impl=impl)
            log_p = move(log_softmax(to_accumulate(logits)), "numpy")
            cost = -log_p[np.arange(len(window) - 1), window[1:]] / math.log(2)
            bits.append(cost if start == 0 else cost[self.context - half :])
        return np.concatenate(bits)[:n]

    def bits_per_byte(self, text: str, *, impl: Impl = REFERENCE) -> float:
        """Return the mean `surprisal` per byte of `text` in UTF-8. Lower is better.

        Bits per byte can be compared between models with different tokens, and with compression
        programs.
        """
        check_text("text", text)
        n_bytes = len(text.encode())
        if n_bytes == 0:
            raise ValueError("text must have at least 1 character, got none")
        return float(self.surprisal(text, impl=impl).sum()) / n_bytes

    def write(
        self,
        prompt: str = "",
        length: int = 100,
        *,
        rng: "np.random.Generator | int" = 0,
        temperature: float = 0.8,
        draft: "LanguageModel | None" = None,
        lookahead: int = 4,
        impl: Impl = REFERENCE,
        **options: Any,
    ) -> str:
        """Return `length` tokens that the model draws after `prompt`, as text without the prompt.

        Parameters
        ----------
        prompt : str
            The text that the model reads first. If it is empty, the model begins a new text.
        length : int
            The number of tokens to draw, at least 1. An end-of-text token ends the text earlier.
        rng : numpy.random.Generator or int
            The source of the draws; an int is a seed.
        temperature : float
            The temperature, as in `attnbook.decoding.sampler`. A value below 1 favours likely
            tokens.
        draft : LanguageModel, optional
            A smaller model with the same tokenizer, such as `draft_writer`, that proposes tokens,
            as in `attnbook.decoding.speculative_sample`. The text is different, but it has the same
            distribution.
        lookahead : int
            How many tokens the draft model proposes at once.
        impl : str or callable
            The implementation of attention, as in `attention`.
        **options
            `top_k`, `top_p`, `min_p` and `repetition_penalty` of `attnbook.decoding.sampler`, and
            `processors` of `attnbook.decoding.greedy_decode`.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong type or is out of range.

        Notes
        -----
        The model writes with a KV cache. If prompt and text exceed `context`, the model continues
        from the last ``context // 2`` tokens, and processors see these as the prompt.
        """
        options |= {"rng": rng, "temperature": temperature, "impl": impl}
        options |= {"draft": draft, "lookahead": lookahead}
        return "".join(self.write_stream(prompt, length, **options))

    def write_stream(
        self,
        prompt: str = "",
        length: int = 100,
        *,
        rng: "np.random.Generator | int" = 0,
        temperature: float = 0.8,
        draft: "LanguageModel | None" = None,
        lookahead: int = 4,
        impl: Impl = REFERENCE,
        **options: Any,
    ) -> Iterator[str]:
        """Yield the text of `write` piece by piece, each as soon as it is made.

        It has the parameters of `write` and raises the same errors when it is called. A character
        whose bytes are in several tokens is yielded as a whole, with the last of these tokens.

        Examples
        --------
        >>> for piece in writer().write_stream("ROMEO:", length=6):
        ...     print(piece, end="", flush=True)  # doctest: +SKIP
        """
        check_text("prompt", prompt)
        length = check_int("length", length, at_least=1)
        rng = generator(rng)
        asked = {"stop": self.tokenizer.stop, "processors": options.pop("processors", ())}
        asked |= {"impl": impl}
        context = self.context
        if draft is None:
            choose = sampler(rng, temperature=temperature, **options)
            steps = partial(stream, self.weights, choose=choose, **asked)
        else:
            check_part("draft", draft, LanguageModel)
            if draft.tokenizer != self.tokenizer:
                raise ValueError("draft must have the tokenizer of the model, got another one")
            context = min(context, draft.context)
            asked |= {"rng": rng, "lookahead": lookahead, "temperature": temperature} | options
            steps = partial(speculative_stream, self.weights, draft.weights, **asked)
        before = [self.tokenizer.stop, *self.tokenizer.encode(prompt).tolist()]
        return self._text_of(self._drawn(steps, before, length, context))

    def _drawn(self, steps, ids, length, context):
        """Yield tokens; `steps` begins anew where the context is full."""
        left, stop = length, self.tokenizer.stop
        while left:
            ids = ids[-(context // 2) :] if len(ids) >= context else ids
            prompt = placed(np.array([ids]), self.weights.target_embedding)
            for step in steps(prompt=prompt, max_length=min(left, context - len(ids))):
                token, left = int(step.tokens[0]), left - 1
                if token == stop:
                    return
                ids.append(token)
                yield token

    def _text_of(self, tokens):
        """Yield the characters that the bytes of `tokens` complete."""
        utf8, stop = codecs.getincrementaldecoder("utf-8")("replace"), self.tokenizer.stop
        for token in tokens:
            known = token < stop  # another special token stands for nothing
            if piece := utf8.decode(self.tokenizer.tokens[token] if known else b""):
                yield piece
        if piece := utf8.decode(b"", final=True):
            yield piece

    def _through(self, text, n_layers, impl):
        """Return the residual stream of `text` after the first `n_layers` layers."""
        weights, stack = self.weights, self.weights.decoder
        ids, known = self.ids(text), (weights.target_embedding, weights.target_positions)
        check_tokens("text", ids, weights, *known)
        x = placed_tokens(ids, *known, weights)
        first = DecoderWeights(stack.layers[:n_layers], positions=stack.positions)
        rotate = weights.positions == "rotary" and stack.positions is None
        return decoder(x, None, first, causal(x.shape[0], like=x), rotate=rotate, impl=impl)


def writer() -> LanguageModel:
    """Return the small language model in this package, which writes like Shakespeare.

    It is a decoder-only transformer with today's usual parts: pre-norm with RMSNorm, rotary
    positions, gated feed-forward (SwiGLU), grouped-query attention, tied embeddings and byte-pair
    tokens. It has 2.8 million parameters and was trained on 34 of the plays in
    `attnbook.data.plays`.

    Returns
    -------
    LanguageModel
        The model with NumPy arrays in float32. ``writer().to("torch")`` is the same in PyTorch.

    Notes
    -----
    The weights are stored in half precision. The model card, `attnbook/models/writer.md`, describes
    data, recipe, losses and limits. ``tools/train_writer.py`` trained the weights, which have the
    licence of the package. The plays are in the public domain.

    Cost: one read of a file of 6 MB.

    Examples
    --------
    >>> model = writer()
    >>> model.context, sum(x.size for x in model.weights.arrays().values()) < 3_000_000
    (256, True)
    """
    return _carried("writer.npz")


def draft_writer() -> LanguageModel:
    """Return the small and fast draft model of `writer`, which has the same tokens.

    In speculative decoding it proposes several tokens, which the writer then judges in one pass. It
    has the writer's architecture with a single layer.

    Returns
    -------
    LanguageModel
        The model with NumPy arrays in float32. Its tokenizer is the same object as the writer's.

    Notes
    -----
    The weights are stored in half precision, and the tokenizer is stored only in the writer's file.
    ``python tools/train_writer.py draft_writer`` trained them on the same plays as the writer. The
    model card is `attnbook/models/writer.md`.

    Cost: one read of a file of less than 1 MB, and of the writer's tokenizer.

    References
    ----------
    Leviathan, Kalman and Matias (2023), "Fast inference from transformers via speculative
    decoding"; chapter `decoding`.

    Examples
    --------
    >>> draft, model = draft_writer(), writer()
    >>> draft.tokenizer is model.tokenizer, draft.context == model.context
    (True, True)
    >>> draft.bits_per_byte("To be, or not to be") > model.bits_per_byte("To be, or not to be")
    True
    """
    return _carried("draft_writer.npz")


class _Undrawn(np.random.Generator):
    """A generator that draws nothing, because the numbers of a file replace the draws."""

    def uniform(self, low=0.0, high=1.0, size=None):
        return np.empty(size)


def _carried(name):
    """Return a model that this package holds in a file, in float32."""
    with packed("attnbook.models", name) as arrays:
        content = json.loads(str(arrays["content"]))
        found = {name: arrays[name].astype(np.float32) for name in arrays if name != "content"}
    shapes = TransformerWeights.init(_Undrawn(np.random.PCG64()), **content["sizes"])
    return LanguageModel(shapes.with_arrays(found), _tokenizer(), content["context"])


@cache
def _tokenizer():
    """Return the tokenizer of the writer and of its draft model."""
    with packed("attnbook.models", "writer.npz") as arrays:
        return BytePairs.from_dict(json.loads(str(arrays["content"]))["tokenizer"])
