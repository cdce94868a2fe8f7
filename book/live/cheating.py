"""Figure `cheating`: two small models trained alike, one with the causal mask and one without.

They read letters of the plays, and every letter is one byte, so that bits per letter are bits per
byte. The page's Python runs `begin`, `train` and `end`, which print JSON; the site is built with
`recorded`.
"""

import json
import math

import numpy as np

from attnbook import TransformerWeights, cross_entropy, data, transformer
from attnbook.training import AdamW, clip_gradients, gradients

SHAPE = {"d_model": 64, "n_heads": 4, "d_ff": 128, "n_layers": 2}
KIND = {"normalization": "rms", "activation": "silu", "gated": True, "positions": "rotary"}
CONTEXT, BATCH, STEPS, WARMUP, RATE = 32, 32, 120, 20, 0.01
READ, HELD = 300_000, 32  # letters to learn from, and windows of a play that was not read
PROMPT, LENGTH, TEMPERATURE = "ROMEO:\n", 80, 0.7


class Pair:
    """Both models, from the same first weights on the same windows."""

    def __init__(self, seed: int):
        plays = data.plays()
        self.letters = sorted(set(plays.train[:READ]))
        self.ids = self.numbers(plays.train[:READ])
        held = self.numbers(plays.validation[: 4 * READ])
        starts = np.linspace(0, len(held) - CONTEXT - 1, HELD).astype(int)
        self.held = held[starts[:, None] + np.arange(CONTEXT + 1)]
        weights = TransformerWeights.init(
            seed, len(self.letters), n_encoder_layers=0, bias=False, scale_embeddings=False,
            **SHAPE, **KIND,
        ).to(dtype="float32")  # fmt: skip
        self.weights = {True: weights, False: weights}  # by is_causal
        self.optimizers = {causal: AdamW(weights) for causal in self.weights}
        self.rng, self.step = np.random.default_rng(seed), 0

    def numbers(self, text: str) -> np.ndarray:
        """Return the number of each letter of a text; letters that were not read are left out."""
        known = {letter: number for number, letter in enumerate(self.letters)}
        return np.array([known[letter] for letter in text if letter in known])

    def train(self, steps: int) -> dict:
        """Make up to so many updates of both models; return their losses in bits."""
        losses: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(min(steps, STEPS - self.step)):
            starts = self.rng.integers(len(self.ids) - CONTEXT, size=BATCH)
            windows = self.ids[starts[:, None] + np.arange(CONTEXT + 1)]
            decay = (1 + math.cos(math.pi * self.step / STEPS)) / 2
            rate = RATE * min(1, (self.step + 1) / WARMUP) * decay
            for causal, weights in self.weights.items():
                loss, found = gradients(weights, windows[:, :-1], windows[:, 1:], is_causal=causal)
                found, _ = clip_gradients(found, 1.0)
                self.weights[causal] = self.optimizers[causal].step(weights, found, rate)
                losses[causal].append(round(float(loss) / math.log(2), 3))
            self.step += 1
        return {"masked": losses[True], "unmasked": losses[False]}

    def end(self) -> dict:
        """Return what both lose on a play that they have not read, and what they write."""
        return {"masked": self.judged(True), "unmasked": self.judged(False)}

    def judged(self, causal: bool) -> dict:
        """Return the loss of one model in one pass and token by token, and a text."""
        weights, inputs, labels = self.weights[causal], self.held[:, :-1], self.held[:, 1:]
        whole = transformer(None, inputs, weights, is_causal=causal)
        alone = np.stack(
            [
                transformer(None, inputs[:, : t + 1], weights, is_causal=causal)[:, -1]
                for t in range(CONTEXT)
            ],
            axis=1,
        )
        bits = [float(cross_entropy(logits, labels)) / math.log(2) for logits in (whole, alone)]
        one_pass, one_by_one = (round(loss, 3) for loss in bits)
        return {"one_pass": one_pass, "one_by_one": one_by_one, "text": self.written(causal)}

    def written(self, causal: bool) -> str:
        """Return what a model writes, one letter after the other."""
        rng, ids = np.random.default_rng(0), self.numbers(PROMPT).tolist()
        for _ in range(LENGTH):
            window = np.array(ids[-CONTEXT:])
            logits = transformer(None, window, self.weights[causal], is_causal=causal)[-1]
            p = np.exp((logits - logits.max()).astype(float) / TEMPERATURE)
            ids.append(int(rng.choice(len(p), p=p / p.sum())))
        return "".join(self.letters[i] for i in ids[len(PROMPT) :])


def recorded(seed: int = 0) -> dict:
    """Return all losses, and what stands at the end."""
    pair = Pair(seed)
    return {"steps": STEPS, "losses": pair.train(STEPS), "end": pair.end()}


class Page:
    """What a page has of its run."""

    pair: Pair


def begin(seed: int) -> None:
    """Begin a run, and print how long it is."""
    Page.pair = Pair(seed)
    print(json.dumps({"steps": STEPS}))


def train(steps: int) -> None:
    """Go on, and print the losses of the new steps."""
    print(json.dumps(Page.pair.train(steps)))


def end() -> None:
    """Print what stands at the end."""
    print(json.dumps(Page.pair.end()))
