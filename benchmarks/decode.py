"""Decoding with and without the cache of keys and values, alone and in batches.

Three tables. `parity`: whether each strategy, with and without the cache, decodes the tokens that
NumPy decodes in float64. `rows`: n tokens of one sequence after a start token, by a language model
of 4 layers, d_model 256 and 8 heads. `batches`: 64 tokens of each of many sequences at once.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import array_api_compat
import numpy as np

from attnbook import TransformerWeights, decoding, log_softmax, move, transformer
from benchmarks import harness, inputs
from benchmarks.tables import Tables, steps

D_MODEL, HEADS, D_FF, LAYERS, VOCABULARY = 256, 8, 1024, 4, 128
SIZES, QUICK_SIZES = (16, 32, 64, 128, 256), (4, 8)
BATCHES, QUICK_BATCHES = (1, 4, 16, 64), (1, 4)
BATCH_LENGTH, QUICK_BATCH_LENGTH = 64, 4
STRATEGIES: dict[str, Callable[..., decoding.Decoded]] = {
    "greedy": decoding.greedy_decode,
    "sampling": partial(decoding.sample, rng=41, temperature=1.3, top_k=9, top_p=0.9),
    "beam search": partial(decoding.beam_search, n_beams=4, length_penalty=0.6),
}
CACHE, NO_CACHE = "with the cache", "without the cache"
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}  # of log p, through all layers


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure parity and times on `device` ("cpu" or "cuda")."""
    tables.add(
        shape={
            **{"layers": LAYERS, "d_model": D_MODEL, "heads": HEADS, "d_ff": D_FF},
            "vocabulary": VOCABULARY,
        },
        rounds=harness.rounds(quick),
        baseline=_baseline(device),
        tolerance=TOLERANCE,
    )
    tables.parity(parity(device))
    sizes, dtypes = QUICK_SIZES if quick else SIZES, inputs.TIMED_DTYPES[device]
    found = steps(lengths, device, sizes, dtypes, quick=quick)
    tables.measure("rows", found, "implementation", "library")
    sizes = QUICK_BATCHES if quick else BATCHES
    found = steps(batches, device, sizes, dtypes, quick=quick, name="batch", power=1)
    tables.measure("batches", found, "batch", "library")


def _baseline(device):
    return {"implementation": CACHE, "library": inputs.libraries(device)[0]}


# Parity


def parity(device: str) -> list[dict[str, Any]]:
    """Return, for each library and strategy, whether it decodes the tokens of NumPy."""
    expected = {name: tokens for name, cache, tokens in _decoded("numpy", "cpu") if not cache}
    return [
        {
            **{"library": library, "dtype": "float64", "strategy": name, "cache": cache},
            "holds": np.array_equal(tokens, expected[name]),
        }
        for library in inputs.libraries(device)
        for name, cache, tokens in _decoded(library, device)
    ]


def _decoded(library: str, device: str) -> Iterator[tuple[str, bool, np.ndarray]]:
    """Yield the strategy, whether there is a cache, and the tokens of a ragged batch."""
    rng = np.random.default_rng(40)
    weights = TransformerWeights.init(
        *(rng, 13, 17),
        d_model=16,
        n_heads=4,
        d_ff=32,
        n_layers=2,
        n_kv_heads=2,
        positions="rotary",
    )
    arrays = weights.arrays()
    weights = weights.with_arrays(
        {name: x + 0.3 * rng.standard_normal(x.shape) for name, x in arrays.items()}
    )
    weights = inputs.place_weights(weights, library, device, "float64")
    source, prompt = rng.integers(17, size=(5, 7)), rng.integers(13, size=(5, 3))
    target = device if library == "torch" else None
    options = {
        "prompt": move(prompt, library, device=target),
        **{"prompt_lengths": [1, 3, 2, 3, 1], "source_lengths": [7, 1, 4, 6, 2]},
        **{"max_length": 12, "stop": 2},
    }
    source = move(source, library, device=target)
    for name, decode in STRATEGIES.items():
        for cache in (False, True):
            found = decode(weights, source, cache=cache, **options)
            yield name, cache, move(found.tokens, "numpy")


# Time


def lengths(device: str, dtype: str, n: int, *, quick: bool) -> list[dict[str, Any]]:
    """Return one row for each library, with the cache and without, of n tokens."""
    candidates = [
        _candidate(library, device, dtype, 1, n, cache)
        for library in inputs.libraries(device)
        if dtype in inputs.DTYPES[library]
        for cache in (True, False)
    ]
    size = {"dtype": dtype, "n": n}
    return harness.rows(candidates, device, about=size, baseline=_baseline(device), quick=quick)


def batches(device: str, dtype: str, batch: int, *, quick: bool) -> list[dict[str, Any]]:
    """Return one row for each library, with the cache, of many sequences."""
    n = QUICK_BATCH_LENGTH if quick else BATCH_LENGTH
    candidates = [
        _candidate(library, device, dtype, batch, n, cache=True)
        for library in inputs.libraries(device)
        if dtype in inputs.DTYPES[library]
    ]
    size = {"dtype": dtype, "n": n}
    return harness.rows(candidates, device, about=size, baseline=_baseline(device), quick=quick)


def _candidate(library, device, dtype, batch, n, cache):
    """Return the decoding of given tokens, so that all candidates do the same work."""
    weights = TransformerWeights.init(
        *(0, VOCABULARY),
        d_model=D_MODEL,
        n_heads=HEADS,
        d_ff=D_FF,
        n_layers=LAYERS,
        n_encoder_layers=0,
    )
    weights = inputs.place_weights(weights, library, device, dtype)
    tokens = np.random.default_rng(n).integers(VOCABULARY, size=(batch, n + 1))
    expected = _log_probabilities(tokens, weights.to("numpy", dtype="float64"))
    given = move(tokens, library, device=device if library == "torch" else None)
    about = {
        **{"implementation": CACHE if cache else NO_CACHE, "library": library, "batch": batch},
        "tokens_read": n if cache else n * (n + 1) // 2,
    }
    run = partial(_decode, weights, given, cache)
    return harness.Candidate(about, run, partial(inputs.errors, expected=expected))


def _decode(weights, tokens, cache):
    """Return log p of each of `tokens` but the first, which is the prompt."""
    xp = array_api_compat.array_namespace(tokens)
    steps = decoding.stream(
        weights,
        prompt=tokens[:, :1],
        max_length=tokens.shape[1] - 1,
        choose=lambda log_p, prefixes: tokens[:, 1 + len(prefixes[0].made)],
        cache=cache,
    )
    return xp.stack([step.log_probabilities for step in steps], axis=-1)


def _log_probabilities(tokens, weights):
    """Return the same from one pass over all tokens."""
    log_p = log_softmax(transformer(None, tokens[:, :-1], weights))
    return np.take_along_axis(log_p, tokens[:, 1:, np.newaxis], axis=-1)[..., 0]
