"""Measure what each way of decoding does to the writer's text, and to dates.

Run `python tools/decoded_texts.py`: it takes some ten minutes on one core.
Writes `book/data/decoded_texts.cpu.json` for the chapter `decoding`. Every text that is drawn
begins where a speech begins, and beside the texts stand passages of the training, validation and
test plays that begin there too, of as many tokens. A word is known if the training plays have it.
Speeches of the validation plays are read four times in a row, each after the passage before it,
and greedy texts after their speakers' names are searched for loops.
Beams search after beginnings of speeches of the validation plays, and on dates of days that the
readers have not seen. A reader of few updates is kept beside the record.
"""

import argparse
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnbook import data, decoding
from attnbook.data import plays
from attnbook.models import writer
from benchmarks import provenance
from benchmarks.tables import AGAIN

FOLDER = Path(__file__).parents[1] / "book/data"
OUTPUT, EARLY = FOLDER / "decoded_texts.cpu.json", FOLDER / "early_date_reader.npz"
PROMPT, LENGTH, TEXTS, SEEDS = "\n\n", 100, 20, 3
WORD = r"[a-z]+(?:'[a-z]+)?"
SETTINGS = (
    *({"temperature": T} for T in (0.4, 0.6, 0.8, 1.0, 1.2)),
    *({"top_k": k} for k in (3, 10, 30, 100)),
    *({"top_p": p} for p in (0.4, 0.6, 0.8, 0.9)),
    *({"min_p": p} for p in (0.3, 0.1, 0.05, 0.02)),
    *({"temperature": 0.6, "repetition_penalty": r} for r in (1.1, 1.2, 1.4)),
)
BEGINNINGS, LONG, BEAMS = 12, 150, (1, 2, 4, 8, 16)
SPEECHES, LONGEST, BEFORE, COPIES = 30, 48, 60, 4
DAYS, DATE_STEPS = (40_000, 4_000), (300, 600, 1200)


def words(text: str) -> list[str]:
    """Return the words of `text` in lower case."""
    return re.findall(WORD, text.lower())


def grams(sequence: Sequence, n: int) -> Counter:
    """Return how often each run of `n` stands in `sequence`."""
    return Counter(zip(*(sequence[i:] for i in range(n)), strict=False))


def distinct(texts: Sequence[Sequence[str]], n: int) -> float:
    """Return how many of all runs of `n` words in `texts` are different ones, as a share."""
    counts = sum((grams(text, n) for text in texts), Counter())
    return len(counts) / max(sum(counts.values()), 1)


def bleu(text: Sequence[str], others: Sequence[Counter]) -> float:
    """Return BLEU-4 of a text against the largest counts of `others`, of runs of 1 to 4 words.

    There is no penalty for brevity, and a run of `n` words that never occurs counts for a half.
    """
    logs = []
    for n, largest in enumerate(others, start=1):
        own = grams(text, n)
        found = sum(min(count, largest[gram]) for gram, count in own.items())
        logs.append(math.log(max(found, 0.5) / max(sum(own.values()), 1)))
    return math.exp(sum(logs) / len(logs))


def self_bleu(texts: Sequence[Sequence[str]]) -> float:
    """Return the mean BLEU-4 of a text against all others of the set."""
    scores = []
    for i, text in enumerate(texts):
        others = [other for j, other in enumerate(texts) if j != i]
        largest = []
        for n in range(1, 5):
            most: Counter = Counter()
            for other in others:
                most |= grams(other, n)
            largest.append(most)
        scores.append(bleu(text, largest))
    return float(np.mean(scores))


def period(ids: Sequence[int], longest: int = 40) -> int:
    """Return the length of the passage that ends `ids` three times in a row, or 0 without one."""
    ids = list(ids)
    lengths = range(1, min(longest, len(ids) // 3) + 1)
    return next((n for n in lengths if ids[-n:] == ids[-2 * n : -n] == ids[-3 * n : -2 * n]), 0)


def described(model: Any, rows: Sequence[Sequence[int]], known: set[str]) -> dict[str, float]:
    """Return the measures of a set of texts, given as token ids."""
    prompt = [model.tokenizer.stop, *model.tokenizer.encode(PROMPT).tolist()]
    whole = np.array([[*prompt, *row] for row in rows])
    bits = -np.mean(
        [log_p_of(model, ids[None])[0, len(prompt) - 1 :].mean() for ids in whole]
    ) / math.log(2)
    texts = [words(model.tokenizer.decode(np.array(row))) for row in rows]
    every = list(itertools.chain(*texts))
    return {
        "bits_a_token": float(bits),
        "distinct_2": distinct(texts, 2),
        "distinct_2_in_a_text": float(np.mean([distinct([text], 2) for text in texts])),
        "self_bleu": self_bleu(texts),
        "known_words": float(np.mean([word in known for word in every])),
        "loops": float(np.mean([period(row) > 0 for row in rows])),
    }


def log_p_of(model: Any, ids: np.ndarray) -> np.ndarray:
    """Return log p of every token of (batch, n) `ids` but the first."""
    from attnbook import log_softmax, transformer

    log_p = log_softmax(transformer(None, ids[:, :-1], model.weights))
    return np.take_along_axis(log_p, ids[:, 1:, None], axis=-1)[..., 0]


def passages(model: Any, part: str, rng: np.random.Generator) -> list[list[int]]:
    """Return token ids of `TEXTS` passages from a part of the plays, where speeches begin."""
    text, found = getattr(plays(), part), []
    while len(found) < TEXTS:
        start = text.find("\n\n", rng.integers(len(text) - 5000)) + 2
        ids = model.tokenizer.encode(text[start : start + 2000]).tolist()
        if model.tokenizer.stop not in ids[:LENGTH] and len(ids) >= LENGTH:
            found.append(ids[:LENGTH])
    return found


def drawn(model: Any, seed: int, **options: Any) -> list[list[int]]:
    """Return token ids of `TEXTS` texts."""
    prompt = np.array([[model.tokenizer.stop, *model.tokenizer.encode(PROMPT).tolist()]] * TEXTS)
    found = decoding.sample(model.weights, rng=seed, prompt=prompt, max_length=LENGTH, **options)
    return found.tokens.tolist()


def beginnings(model: Any) -> list[list[int]]:
    """Return prompts: a speaker and the first tokens of a speech, from the validation plays."""
    text, prompts = plays().validation, []
    for place in np.linspace(0, len(text) - 5000, BEGINNINGS).astype(int):
        start = text.index("\n\n", place) + 2
        prompts.append(model.tokenizer.encode(text[start : start + 200])[:16].tolist())
    return [[model.tokenizer.stop, *ids] for ids in prompts]


def searched(model: Any, widths: Sequence[int], length: int) -> list[dict[str, Any]]:
    """Return what beam search of each width finds after each beginning, and how it repeats."""
    rows = []
    prompts = np.array(beginnings(model))
    for width in widths:
        texts, bits = [], []
        for prompt in prompts:
            found = decoding.beam_search(
                model.weights, prompt=prompt[None], max_length=length, n_beams=width
            )
            texts.append(found.tokens[0, 0].tolist())
            bits.append(-float(found.log_probabilities[0, 0].mean()) / math.log(2))
        decoded = [words(model.tokenizer.decode(np.array(text))) for text in texts]
        rows.append(
            {
                "beams": width,
                "length": length,
                "bits_a_token": float(np.mean(bits)),
                "distinct_2_in_a_text": float(np.mean([distinct([t], 2) for t in decoded])),
                "loops": float(np.mean([period(text) > 0 for text in texts])),
                "text": model.tokenizer.decode(np.array(texts[0])),
            }
        )
        print(rows[-1] | {"text": ""}, flush=True)
    return rows


def reader(seed: int, steps: int, kept: Path | None) -> Any:
    """Return the weights of a reader of dates after `steps` updates, and keep them in a folder."""
    from attnbook import TransformerWeights
    from attnbook.nn import Transformer
    from attnbook.training import Settings, train

    pairs = data.dates(0, *DAYS)
    weights = TransformerWeights.init(
        seed, len(pairs.vocabulary), d_model=64, n_heads=2, d_ff=128, n_layers=1
    )
    path = kept / f"date_{seed}_{steps}.npz" if kept else None
    if path is not None and path.exists():
        with np.load(path) as arrays:
            return weights.with_arrays(dict(arrays))
    columns = [
        [pairs.vocabulary.encode(x) for x in column] for column in zip(*pairs.train, strict=True)
    ]
    batches = data.Batches(*columns, batch_size=64, seed=seed, pool=2)
    model = Transformer(weights.to("torch", dtype="float32"))
    settings = Settings(steps, lr=0.005, warmup=100, schedule="cosine", clip=1.0, weight_decay=0.01)
    train(model, batches, settings)
    weights = model.weights.to("numpy", dtype="float32")
    if path is not None:
        np.savez(path, **weights.arrays())
    return weights


def read_dates(kept: Path | None, seeds: Sequence[int], steps: Sequence[int]) -> list[dict]:
    """Return how many dates readers after few and many updates read right, by each width."""
    pairs, rows = data.dates(0, *DAYS), []
    vocabulary, (texts, isos) = pairs.vocabulary, zip(*pairs.test[:2000], strict=True)
    source, lengths = data.pad([vocabulary.encode(text) for text in texts])
    asked = {"prompt": vocabulary.start, "stop": vocabulary.stop, "max_length": 12}
    for n_steps, seed in itertools.product(steps, seeds):
        weights, right = reader(seed, n_steps, kept), {}
        for width in (1, 2, 4, 8):
            found = decoding.beam_search(
                weights, source, n_beams=width, source_lengths=lengths, **asked
            )
            written = [vocabulary.decode(row) for row in found.tokens[:, 0]]
            right[str(width)] = float(np.mean([a == b for a, b in zip(written, isos, strict=True)]))
        rows.append({"steps": n_steps, "seed": seed, "dates": len(isos), "right": right})
        print(rows[-1], flush=True)
    early = reader(0, min(steps), kept).arrays()
    np.savez_compressed(EARLY, **{name: x.astype(np.float16) for name, x in early.items()})
    return rows


def texts_drawn(model: Any, settings: Sequence, seeds: Sequence[int]) -> dict[str, list]:
    """Return the measures of passages of each part of the plays, and of the texts of each setting.

    Both have a row for each seed.
    """
    known = set(words(plays().train))
    found: dict[str, list] = {"passages": [], "drawn": []}
    of_plays = [("passages", {"part": part}) for part in ("train", "validation", "test")]
    asked = [*of_plays, *(("drawn", {"options": options}) for options in settings)]
    for (table, about), seed in itertools.product(asked, seeds):
        if table == "drawn":
            texts = drawn(model, seed, **about["options"])
        else:
            texts = passages(model, about["part"], np.random.default_rng(seed))
        row = about | {"seed": seed} | described(model, texts, known)
        found[table].append(row | {"text": model.tokenizer.decode(np.array(texts[0]))})
        print(row, flush=True)
    return found


def speeches(model: Any, seed: int, before: int) -> Iterator[tuple[str, list[int]]]:
    """Yield speeches of the validation plays in random order, each with its last tokens before."""
    text = plays().validation
    found = list(re.finditer(r"(?<=\n\n)[A-Z][A-Za-z ]+:\n(?:.+\n)+\n", text))
    for i in np.random.default_rng(seed).permutation(len(found)):
        place = found[i].start()
        ids = model.tokenizer.encode(text[max(place - 1000, 0) : place]).tolist()
        if len(ids) >= before and model.tokenizer.stop not in ids:
            yield found[i].group(), [model.tokenizer.stop, *ids[-before:]]


def repeated(model: Any, seed: int = 0) -> list[dict[str, Any]]:
    """Return how the writer foresees `SPEECHES` speeches that it reads four times in a row.

    A row for each: its text, and for each of the copies log2 p of the speaker's name, the mean
    log2 p of a token after the name, and the share of those that are the likeliest.
    """
    from attnbook import log_softmax, transformer

    rows, encode = [], model.tokenizer.encode
    for speech, before in speeches(model, seed, BEFORE):
        name, ids = len(encode(speech[: speech.index(":")])), encode(speech).tolist()
        if len(ids) > LONGEST:
            continue
        whole = np.array([*before, *ids * COPIES])
        log_p = log_softmax(transformer(None, whole[:-1], model.weights))[len(before) - 1 :]
        labels = whole[len(before) :]
        hits = (log_p.argmax(axis=-1) == labels).reshape(COPIES, -1)[:, name:]
        bits = (log_p[np.arange(len(labels)), labels] / math.log(2)).reshape(COPIES, -1)
        rows.append(
            {
                "speech": speech,
                "name": bits[:, :name].sum(axis=1).tolist(),
                "others": bits[:, name:].mean(axis=1).tolist(),
                "likeliest": hits.mean(axis=1).tolist(),
            }
        )
        if len(rows) == SPEECHES:
            break
    return rows


def looped(model: Any, seed: int = 0) -> list[dict[str, Any]]:
    """Return whether `SPEECHES` greedy texts end in a loop, each of them after a speaker's name.

    A row for each: the passage that recurs, empty without a loop, and the mean log2 p of its tokens
    in each copy. The first copy is where the passage first stands. For a loop of one speech there
    is also what is greedy without the earlier copies: its words after its name `alone`, and after
    the passage `before` the text and its name; and its name after `one_copy` of it alone.
    """
    rows, (end,) = [], model.tokenizer.encode(PROMPT).tolist()
    line = model.tokenizer.encode("\n")[0]

    def is_greedy(prompt: list[int], ids: list[int]) -> bool:
        asked = {"prompt": np.array([prompt]), "max_length": len(ids)}
        return decoding.greedy_decode(model.weights, **asked).tokens[0].tolist() == ids

    for speech, before in itertools.islice(speeches(model, seed, BEFORE), SPEECHES):
        prompt = [*before, *model.tokenizer.encode(speech[: speech.index("\n") + 1]).tolist()]
        asked = {"prompt": np.array([prompt]), "max_length": model.context - len(prompt)}
        ids = decoding.greedy_decode(model.weights, **asked).tokens[0].tolist()
        n, first = period(ids), len(ids)
        while n and first > n and ids[first - 1] == ids[first - 1 - n]:
            first -= 1
        first -= n
        bits = log_p_of(model, np.array([[*prompt, *ids]]))[0, len(prompt) - 1 :] / math.log(2)
        copies = range(first, len(ids) - n + 1, n) if n else ()
        passage = ids[first : first + n]
        row = {
            "passage": model.tokenizer.decode(np.array(passage, dtype=int)),
            "bits": [float(bits[i : i + n].mean()) for i in copies],
        }
        if passage.count(end) == 1:
            cut, alone = passage.index(end) + 1, [model.tokenizer.stop, end]
            whole = passage[cut:] + passage[:cut]
            name, rest = whole[: whole.index(line) + 1], whole[whole.index(line) + 1 :]
            row["alone"] = is_greedy([*alone, *name], rest)
            row["before"] = is_greedy([*before, *name], rest)
            row["one_copy"] = is_greedy([*alone, *whole], name)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only a few texts, as a trial")
    parser.add_argument("--readers", type=Path, help="the folder of the trained date readers")
    parser.add_argument("--part", choices=("drawn", "repeated", "searched", "dates"))
    asked = parser.parse_args()
    quick, model = asked.quick, writer()
    seeds = range(1 if quick else SEEDS)
    parts = {
        "drawn": lambda: texts_drawn(model, SETTINGS[::6] if quick else SETTINGS, seeds),
        "repeated": lambda: {"repeated": repeated(model), "looped": looped(model)},
        "searched": lambda: {
            "searched": searched(model, BEAMS[::3] if quick else BEAMS, 30 if quick else LONG)
        },
        "dates": lambda: {
            "dates": read_dates(asked.readers, seeds, DATE_STEPS[:1] if quick else DATE_STEPS)
        },
    }
    origin = provenance.describe("cpu", "python tools/decoded_texts.py")
    record = {
        "benchmark": "decoded_texts",
        "prompt": PROMPT,
        "tokens": LENGTH,
        "texts": TEXTS,
        "beginnings": [model.tokenizer.decode(np.array(ids[1:])) for ids in beginnings(model)],
        "provenance": origin,
    }
    if asked.part and OUTPUT.exists():  # the others stay, and say where they come from
        record = json.loads(OUTPUT.read_text("utf8"))
        later = {fact: origin[fact] for fact in AGAIN}
        record["measured"] = record.get("measured", {}) | {asked.part: later}
    for name in [asked.part] if asked.part else parts:
        record |= parts[name]()
    if not quick:
        OUTPUT.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
