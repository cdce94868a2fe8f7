"""Decoding by the shipped writer: with and without a cache, the prompt, batches, and a draft.

Five tables. `parity`: whether each strategy, with and without the cache, decodes the tokens that
NumPy decodes in float64. `rows`: n tokens of one sequence after a prompt of 16. `prefill`: a prompt
of n tokens, in one pass and token by token. `batches`: 32 tokens of each of many sequences at once.
`speculative`: text drawn by the writer alone and with its draft, for several lookaheads.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import array_api_compat
import numpy as np

from attnbook import TransformerWeights, decoding, log_softmax, move, transformer
from attnbook.data import plays
from attnbook.models import draft_writer, writer
from benchmarks import harness, inputs
from benchmarks.decode_static import given_tokens
from benchmarks.tables import Step, Tables, steps

N_PROMPT = 16
SIZES, QUICK_SIZES = (16, 64, 192), (4, 8)
PROMPTS, QUICK_PROMPTS = (16, 64, 128, 192), (4,)
BATCHES, QUICK_BATCHES = (1, 4, 16, 64), (1, 4)
BATCH_LENGTH, QUICK_BATCH_LENGTH = 32, 4
LOOKAHEADS, QUICK_LOOKAHEADS = (1, 2, 4, 8), (2,)
OTHER_LOOKAHEADS = (2, 4)  # of libraries after the first
TEMPERATURES, QUICK_TEMPERATURES = (0, 0.8, 1.0), (0.8,)
DRAWN, QUICK_DRAWN = 96, 8
BEGINNINGS = ("ROMEO:\n", "First Citizen:\nWhat say you", "KING HENRY:\nNow, my good lords,")
STRATEGIES: dict[str, Callable[..., decoding.Decoded]] = {
    "greedy": decoding.greedy_decode,
    "sampling": partial(decoding.sample, rng=41, temperature=1.3, top_k=9, top_p=0.9),
    "beam search": partial(decoding.beam_search, n_beams=4, length_penalty=0.6),
}
KERNELS = {"numpy": ("packed",)}  # beside the reference
NAMES = {"numpy": "NumPy", "torch": "PyTorch", "cupy": "CuPy"}
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}  # of log p, through all layers
MOST = 16.0  # seconds of one candidate; it has fewer rounds if it would take longer


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure parity and times on `device` ("cpu" or "cuda")."""
    model = _writer("numpy", "cpu", "float32")
    heads = model.weights.decoder.layers[0].self_attention
    tables.add(
        shape={
            **{"model": "writer", "layers": len(model.weights.decoder.layers)},
            **{"d_model": heads.W_Q.shape[0], "heads": heads.n_heads},
            **{"kv_heads": heads.n_kv_heads, "vocabulary": len(model.tokenizer)},
            **{"n_prompt": N_PROMPT, "draft": "draft_writer"},
        },
        rounds=harness.rounds(quick),
        baseline={"implementation": _baseline(device)["implementation"], "cache": True},
        tolerance=TOLERANCE,
    )
    tables.parity(partial(parity, device))
    dtypes = inputs.TIMED_DTYPES[device]
    found = steps(lengths, device, QUICK_SIZES if quick else SIZES, dtypes, quick=quick)
    tables.measure("rows", found, "implementation", "cache")
    found = steps(prompts, device, QUICK_PROMPTS if quick else PROMPTS, dtypes, quick=quick)
    tables.measure("prefill", found, "implementation", "at_once")
    sizes = QUICK_BATCHES if quick else BATCHES
    found = steps(batches, device, sizes, dtypes, quick=quick, name="batch", power=1)
    tables.measure("batches", found, "implementation", "batch")
    temperatures = QUICK_TEMPERATURES if quick else TEMPERATURES
    found = [
        Step({"temperature": T}, 1, partial(speculation, device, T, quick=quick))
        for T in temperatures
    ]
    tables.measure("speculative", found, "implementation", "lookahead")


def _baseline(device):
    name = NAMES[inputs.libraries(device)[0]]
    return {"implementation": name, "cache": True, "at_once": True, "lookahead": 0}


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
        for kept in (False, True):
            found = decode(weights, source, cache=kept, **options)
            yield name, kept, move(found.tokens, "numpy")


# Time


def lengths(device: str, dtype: str, n: int, *, quick: bool) -> list[dict[str, Any]]:
    """Return one row for each implementation, with the cache and without, of n tokens."""
    candidates = [
        _candidate(name, library, impl, device, dtype, 1, n, kept)
        for name, library, impl in _implementations(device, dtype)
        for kept in (True, False)
        if kept or impl is not None  # a cache of fixed size is a cache
    ]
    return _rows(candidates, device, {"dtype": dtype, "n": n}, quick)


def batches(device: str, dtype: str, batch: int, *, quick: bool) -> list[dict[str, Any]]:
    """Return one row for each implementation, with the cache, of many sequences."""
    n = QUICK_BATCH_LENGTH if quick else BATCH_LENGTH
    candidates = [
        _candidate(name, library, impl, device, dtype, batch, n, True)
        for name, library, impl in _implementations(device, dtype)
        if impl is not None
    ]
    return _rows(candidates, device, {"dtype": dtype, "n": n}, quick)


def prompts(device: str, dtype: str, n: int, *, quick: bool) -> list[dict[str, Any]]:
    """Return one row for each implementation that reads n tokens, at once and one by one."""
    candidates = []
    for name, library, impl in _implementations(device, dtype):
        if impl is None:
            continue
        model, tokens = _writer(library, device, dtype), _tokens(1, n + 1)
        expected = _log_probabilities(tokens)[:, -1:]
        given = move(tokens, library, device=device if library == "torch" else None)
        for n_passes in (1, n):
            about = {"implementation": name, "library": library, "at_once": n_passes == 1}
            about |= {"passes": n_passes}
            n_first = n if n_passes == 1 else 1
            run = partial(_given, model.weights, given, n_first, True, impl)
            check = partial(_last_error, expected=expected)
            candidates.append(harness.Candidate(about, run, check))
    return _rows(candidates, device, {"dtype": dtype, "n": n, "batch": 1}, quick)


def speculation(device: str, temperature: float, *, quick: bool) -> list[dict[str, Any]]:
    """Return one row for each library and lookahead; 0 is the writer alone."""
    n = QUICK_DRAWN if quick else DRAWN
    candidates: list[harness.Candidate] = []
    found: dict[Any, dict[str, Any]] = {}

    def keep(output, who, lookahead):
        found[who, lookahead] = _share(output, lookahead)
        return {}

    for i, library in enumerate(inputs.libraries(device)):
        chosen = QUICK_LOOKAHEADS if quick else OTHER_LOOKAHEADS if i else LOOKAHEADS
        for lookahead in (0, *chosen):
            run = partial(_drawn, library, device, temperature, lookahead, n)
            about = {"implementation": NAMES[library], "library": library, "lookahead": lookahead}
            check = partial(keep, who=NAMES[library], lookahead=lookahead)
            candidates.append(harness.Candidate(about, run, check))
    size = {"dtype": "float32", "n": n, "batch": len(BEGINNINGS), "temperature": temperature}
    rows = _rows(candidates, device, size, quick)
    alone = {row["library"]: row["seconds"] for row in rows if row["lookahead"] == 0}
    for row in rows:
        row |= found.get((row["implementation"], row["lookahead"]), {})
        if row["seconds"] and alone[row["library"]]:
            times = alone[row["library"]]["median"] / row["seconds"]["median"]
            row["speedup"] = times
    return rows


def _rows(candidates, device, size, quick):
    """Return the rows of `candidates`, with how many tokens each makes in a second."""
    usual = harness.Pace(
        harness.rounds(quick),
        harness.QUICK_SLICE_SECONDS if quick else harness.SLICE_SECONDS[device],
        long=0.2,
        long_rounds=7,
        most=MOST,
    )
    names = set().union(*(candidate.about for candidate in candidates))
    baseline = {name: x for name, x in _baseline(device).items() if name in names}
    how = {"quick": quick, "pace": usual, "memory": _no_memory}
    rows = harness.rows(candidates, device, about=size, baseline=baseline, **how)
    for row in rows:
        if row["seconds"]:
            made = row["n"] * row["batch"]
            row["tokens_a_second"] = made / row["seconds"]["median"]
    return rows


def _no_memory(run, library, device):
    """Call once more, when everything is compiled, and measure no memory."""
    run()
    return None


# What is timed


def _implementations(device, dtype):
    """Yield name, library and `impl`; None is PyTorch with a cache of fixed size."""
    for library in inputs.libraries(device):
        if dtype not in inputs.DTYPES[library]:
            continue
        yield NAMES[library], library, "reference"
        for impl in KERNELS.get(library, ()):
            yield f"{NAMES[library]}, {impl}", library, impl
        if library == "torch":
            yield "PyTorch, fixed cache", library, None
            yield "torch.compile", library, None


@cache
def _writer(library, device, dtype):
    target = device if library == "torch" else None
    return writer().to(library, device=target, dtype=dtype)


@cache
def _draft(library, device):
    return draft_writer().to(library, device=device if library == "torch" else None)


@cache
def _text():
    model = _writer("numpy", "cpu", "float32")
    return model.tokenizer.encode(plays().texts["Julius Caesar"][:40_000])


def _tokens(batch, n):
    """Return the beginning of a text and n - 1 tokens of as many places of a play."""
    starts = np.arange(batch) * 100
    rows = [_text()[start : start + n - 1] for start in starts]
    stop = _writer("numpy", "cpu", "float32").tokenizer.stop
    return np.array([[stop, *row] for row in rows])


def _candidate(name, library, impl, device, dtype, batch, n, kept):
    """Return the decoding of given tokens, so that all candidates do the same work."""
    model, tokens = _writer(library, device, dtype), _tokens(batch, N_PROMPT + n)
    expected = _log_probabilities(tokens)[:, N_PROMPT - 1 :]
    given = move(tokens, library, device=device if library == "torch" else None)
    n_read = N_PROMPT + n - 1 if kept else n * N_PROMPT + n * (n - 1) // 2
    about = {
        **{"implementation": name, "library": library, "cache": kept, "batch": batch},
        **{"n_prompt": N_PROMPT, "tokens_read": n_read},
    }
    if impl is None:
        read = _fixed(device, dtype, name == "torch.compile")
        run = partial(read, given, N_PROMPT)
    else:
        run = partial(_given, model.weights, given, N_PROMPT, kept, impl)
    return harness.Candidate(about, run, partial(inputs.errors, expected=expected))


@cache
def _fixed(device, dtype, compiled):
    model = _writer("torch", device, dtype)
    return given_tokens(model.weights, model.context, compiled=compiled)


def _given(weights, tokens, n_prompt, kept, impl):
    """Return log p of each of `tokens` after the prompt."""
    xp = array_api_compat.array_namespace(tokens)
    made = decoding.stream(
        weights,
        prompt=tokens[:, :n_prompt],
        max_length=tokens.shape[1] - n_prompt,
        choose=lambda log_p, prefixes: tokens[:, n_prompt + len(prefixes[0].made)],
        cache=kept,
        impl=impl,
    )
    return xp.stack([step.log_probabilities for step in made], axis=-1)


def _last_error(output, expected):
    return inputs.errors(output[:, -1:], expected)


@cache
def _reference():
    return _writer("numpy", "cpu", "float64").weights


def _log_probabilities(tokens):
    """Return the same from one pass over all tokens, in float64."""
    log_p = log_softmax(transformer(None, tokens[:, :-1], _reference()))
    return np.take_along_axis(log_p, tokens[:, 1:, np.newaxis], axis=-1)[..., 0]


def _drawn(library, device, temperature, lookahead, n):
    """Return what is drawn after each beginning, alone and one after the other."""
    model = _writer(library, device, "float32")
    draft, found = _draft(library, device).weights, []
    for seed, beginning in enumerate(BEGINNINGS):
        xp = array_api_compat.array_namespace(model.weights.target_embedding)
        ids = model.ids(beginning)
        prompt = xp.concat([xp.full_like(ids[:1], model.tokenizer.stop), ids])[None, :]
        asked = {"prompt": prompt, "max_length": n}
        if lookahead:
            asked |= {"rng": seed, "temperature": temperature, "lookahead": lookahead}
            found.append(decoding.speculative_sample(model.weights, draft, **asked))
        elif temperature == 0:
            found.append(decoding.greedy_decode(model.weights, **asked))
        else:
            asked |= {"rng": seed, "temperature": temperature}
            found.append(decoding.sample(model.weights, **asked))
    return found


def _share(found, lookahead):
    """Return how much of the draft was accepted, and how many tokens a pass made."""
    if not lookahead:
        return {"accepted": None, "tokens_a_pass": 1.0}
    accepted, drafted = (
        sum(int(getattr(one, name)[0]) for one in found) for name in ("accepted", "drafted")
    )
    made = sum(int(one.lengths[0]) - 1 for one in found)  # the first is that of the prompt
    return {
        "accepted": accepted / drafted,
        "tokens_a_pass": made / sum(x.passes - 1 for x in found),
    }
