"""Models to decode, and float64 loops over the whole transformer that say what must come out."""

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

import attnbook as ab

POSITIONS = ("sinusoidal", "interleaved", "learned", "rotary", "none")


def model(seed=0, known=7, *, encoder=True, positions="sinusoidal", n_positions=None, **options):
    """Return weights with every number random, biases too, so that no step resembles another."""
    if positions == "learned" and n_positions is None:
        n_positions = 19
    weights = ab.TransformerWeights.init(
        *(seed, known, 11 if encoder else None),
        **{"d_model": 8, "n_heads": 2, "d_ff": 13, "n_layers": 2, "tied": False} | options,
        n_encoder_layers=1 if encoder else 0,
        positions=positions,
        n_positions=n_positions,
    )
    rng = np.random.default_rng(seed)
    arrays = weights.arrays().items()
    return weights.with_arrays({name: x + rng.normal(0, 0.4, x.shape) for name, x in arrays})


def chain(p):
    """Return a language model whose next token depends on the last alone, with table p."""
    with np.errstate(divide="ignore"):
        output = np.log(np.asarray(p, dtype=np.float64))
    return ab.TransformerWeights(
        ab.DecoderWeights(()),
        target_embedding=np.eye(len(p)),
        output=np.where(np.isfinite(output), output, -1e9),
        positions="none",
        scale_embeddings=False,
    )


RING = np.roll(np.eye(4), 1, axis=1)
"""Each token follows the one before it: 0 1 2 3 0 …"""
TRAP = np.array([[0.0, 0.5, 0.4, 0.1], [0.4, 0.3, 0.3, 0.0], [0.0, 0.9, 0.1, 0.0], [0, 0, 0, 1]])
"""Token 1 is the best first step from 0, and 2, 1 the best two steps: 0.36 against 0.2."""


class Alone:
    """The model's log p of the next token of one sequence, by reading all of it each time."""

    def __init__(self, weights, source=None):
        self.weights, self.source, self.known = weights, source, {}

    def __call__(self, prefix):
        key = tuple(map(int, prefix))
        if key not in self.known:
            logits = ab.transformer(self.source, np.array(key), self.weights)[-1]
            total = math.log(math.fsum(math.exp(x) for x in logits))
            self.known[key] = [x - total for x in logits]
        return self.known[key]


def sampling_loop(log_p, prompt, max_length, stop, u=(), temperature=1.0, top_k=None, top_p=None):
    """Return tokens and their log p; `u` are numbers in [0, 1), and none of them means greedy."""
    tokens, gains, u = [], [], iter(u or [0.0] * max_length)
    while len(tokens) < max_length and not (tokens and tokens[-1] in stop):
        row = log_p([*prompt, *tokens])
        order = sorted(range(len(row)), key=lambda v: (-row[v], v))[:top_k]
        shares = {v: math.exp((row[v] - row[order[0]]) / temperature) for v in order}
        total, kept = 0.0, []
        for v in order:
            kept.append(v)
            total += shares[v] / sum(shares.values())
            if top_p is not None and top_p < 1 and total >= top_p:
                break
        left = next(u) * sum(shares[v] for v in kept)
        for v in kept:
            left -= shares[v]
            if left < 0:
                break
        tokens.append(v)
        gains.append(row[v])
    return tokens, gains


def score(gains, alpha):
    return math.fsum(gains) / ((5 + len(gains)) / 6) ** alpha


def beam_loop(log_p, prompt, max_length, stop, n_beams, alpha):
    """Return the beams as tokens: log p, best first, and whether ties left no choice of them."""
    beams, is_certain = [([], [])], True

    def ended(tokens):
        return len(tokens) == max_length or (tokens and tokens[-1] in stop)

    while not all(ended(tokens) for tokens, _ in beams):
        grown = []
        for tokens, gains in beams:
            if ended(tokens):
                grown.append((tokens, gains))
                continue
            row = log_p([*prompt, *tokens])
            grown += [([*tokens, v], [*gains, row[v]]) for v in range(len(row))]
        grown.sort(key=lambda beam: -score(beam[1], alpha))
        beams, dropped = grown[:n_beams], grown[n_beams : n_beams + 1]
        for _, gains in dropped:
            is_certain &= score(beams[-1][1], alpha) - score(gains, alpha) > 1e-9
    return {tuple(tokens): gains for tokens, gains in beams}, is_certain


@dataclass(frozen=True)
class DecodingCase:
    weights: ab.TransformerWeights
    source: np.ndarray | None
    source_lengths: list[int] | None
    prompt: np.ndarray
    prompt_lengths: list[int]
    max_length: int
    stop: tuple[int, ...]

    def options(self, library, **others):
        """Return (weights, source) and the options in a library."""
        source = None if self.source is None else library.array(self.source)
        return (library.place(self.weights), source), {
            "prompt": library.array(self.prompt),
            "prompt_lengths": self.prompt_lengths,
            "source_lengths": self.source_lengths,
            "max_length": self.max_length,
            "stop": self.stop,
            "pad": 5,
            **others,
        }

    def alone(self):
        """Yield the model, prompt, length and stop tokens of each sequence by itself."""
        for b, n in enumerate(self.prompt_lengths):
            source = None
            if self.source is not None:
                source = self.source[b, : self.source_lengths[b]]  # the padding is cut off
            log_p = Alone(self.weights, source)
            yield log_p, self.prompt[b, :n].tolist(), self.max_length, self.stop


@st.composite
def cases(draw):
    encoder, seed = draw(st.booleans()), draw(st.integers(0, 2**32 - 1))
    weights = model(
        seed,
        encoder=encoder,
        positions=draw(st.sampled_from(POSITIONS)),
        norm=draw(st.sampled_from(("pre", "post"))),
        tied=draw(st.booleans()),
        bias=draw(st.booleans()),
        n_kv_heads=draw(st.sampled_from((1, 2))),
        n_layers=draw(st.sampled_from((0, 1, 2))),
        activation=draw(st.sampled_from(("relu", "gelu"))),
    )
    rng = np.random.default_rng(seed)
    batch, n_p, n_s = (draw(st.sampled_from(sizes)) for sizes in ((1, 2, 3), (1, 2, 5), (0, 1, 4)))
    return DecodingCase(
        weights,
        rng.integers(11, size=(batch, n_s)) if encoder else None,
        rng.integers(n_s + 1, size=batch).tolist() if encoder else None,
        rng.integers(7, size=(batch, n_p)),
        rng.integers(1, n_p + 1, size=batch).tolist(),
        draw(st.sampled_from((1, 2, 3, 6))),
        draw(st.sampled_from(((), (2,), (2, 3, 6)))),
    )
