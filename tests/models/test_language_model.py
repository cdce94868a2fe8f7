"""A language model: a decoder and its tokenizer."""

import dataclasses
import hashlib
import json
import math
import pathlib

import numpy as np
import pytest
from cases import calls_in_package

import attnbook
from attnbook import attention_weights, feed_forward, kernels, merge_heads, rms_norm
from attnbook.data import BytePairs, plays
from attnbook.decoding import greedy_decode
from attnbook.masking import sliding_window
from attnbook.models import LanguageModel, draft_writer, writer
from attnbook.positions import Rotary
from attnbook.transformers.weights import TransformerWeights

torch = pytest.importorskip("torch")

ROOT = pathlib.Path(attnbook.__file__).parents[1]
TEXT = "HAMLET:\nTo be, or not to be, that is the question.\n\n"


def small(context=11, **options):
    tokenizer = BytePairs.learn(TEXT, 260)
    sizes = {"d_model": 12, "n_heads": 6, "n_kv_heads": 2, "d_ff": 17, "n_layers": 3}
    kinds = {"normalization": "rms", "gated": True, "activation": "silu", "positions": "rotary"}
    kinds |= {"n_encoder_layers": 0, "bias": False, "scale_embeddings": False}
    weights = TransformerWeights.init(5, 260, **sizes | kinds | options)
    arrays = {name: 3 * x if x.ndim == 2 else x for name, x in weights.arrays().items()}
    return LanguageModel(weights.with_arrays(arrays), tokenizer, context)  # sharp, not uniform


@pytest.fixture(scope="module")
def shipped():
    return writer()


def test_surprisal_is_the_cross_entropy_of_pytorch():
    model = small(context=100)
    ids = [model.tokenizer.stop, *model.tokenizer.encode(TEXT)]
    logits = attnbook.transformer(None, np.array(ids[:-1]), model.weights)
    expected = torch.nn.functional.cross_entropy(
        torch.from_numpy(logits), torch.tensor(ids[1:]), reduction="none"
    )
    np.testing.assert_allclose(model.surprisal(TEXT), expected / math.log(2), rtol=1e-12)
    bits = expected.sum().item() / math.log(2)
    assert model.bits_per_byte(TEXT) == pytest.approx(bits / len(TEXT.encode()), rel=1e-12)


@pytest.mark.parametrize("context", [2, 3, 8, 11])
def test_windows_judge_every_token_once_after_half_a_context(context):
    model = small(context)
    ids = np.array([model.tokenizer.stop, *model.tokenizer.encode(TEXT)])
    expected, half = [], context // 2
    for i in range(1, len(ids)):  # each token alone, in the window that judges it
        start = 0 if i <= context else half * math.ceil((i - context) / half)
        logits = attnbook.transformer(None, ids[start:i], model.weights)[-1]
        assert i <= context or i - start >= context - half
        expected.append((np.logaddexp.reduce(logits) - logits[ids[i]]) / math.log(2))
    np.testing.assert_allclose(model.surprisal(TEXT), expected, rtol=1e-9)


def test_surprisal_of_nothing_is_empty():
    assert small().surprisal("").shape == (0,)
    with pytest.raises(ValueError, match="text must have at least 1 character, got none"):
        small().bits_per_byte("")


def test_heads_are_read_without_the_layers_above_them(monkeypatch):
    calls, attend = [], kernels.attention
    monkeypatch.setattr(
        kernels, "attention", lambda *given: calls.append(given[0]) or attend(*given)
    )
    small().heads(TEXT, 1)
    assert calls.count("reference") == 2  # as many layers as are needed


def test_a_token_takes_few_calls_and_its_rotary_angles_are_computed_once(shipped):
    """Each further token of the writer, whose six layers turn a query and a key each."""
    five, six = (calls_in_package(shipped.write, "ROMEO:", n) for n in (5, 6))
    assert len(six) - len(five) <= 250
    for calls, n in ((five, 5), (six, 6)):
        names = [name for _, name in calls]
        assert names.count("cosines_and_sines") == n


def test_the_model_runs_in_pytorch():
    model = small(context=100)
    there = model.to("torch")
    assert isinstance(there.logits(TEXT), torch.Tensor)
    np.testing.assert_allclose(there.logits(TEXT), model.logits(TEXT), rtol=1e-10)
    np.testing.assert_allclose(there.surprisal(TEXT), model.surprisal(TEXT), rtol=1e-10)
    assert there.write(TEXT, 9) == model.write(TEXT, 9)
    assert model.to("torch", dtype="float32").logits(TEXT).dtype == torch.float32


def test_writing_follows_its_seed():
    model = small(context=100)
    one, again, other = (model.write("HAMLET:", 30, rng=seed) for seed in (1, 1, 2))
    assert one == again != other


def test_writing_at_a_low_temperature_takes_the_likeliest():
    model = small(context=100)
    prompt = np.array([[model.tokenizer.stop, *model.tokenizer.encode("HAMLET:")]])
    expected = greedy_decode(model.weights, prompt=prompt, max_length=20).tokens[0]
    assert model.write("HAMLET:", 20, temperature=1e-4) == model.tokenizer.decode(expected)
    assert model.write("HAMLET:", 20, top_k=1) == model.tokenizer.decode(expected)


def test_writing_goes_on_beyond_the_context():
    model = small(context=11)
    read = []

    def count(query, key, value, mask, bias, scale, is_causal):
        read.append(key.shape[-2])
        scores = query @ np.swapaxes(key, -1, -2) * scale
        n_q, n_k = scores.shape[-2:]
        scores = np.where(np.tri(n_q, n_k, n_k - n_q, dtype=bool), scores, -np.inf)
        A = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return A / A.sum(axis=-1, keepdims=True) @ value

    text = model.write(TEXT, 40, impl=count)
    assert max(read) == 10  # never more than the context; the last token drawn is not read
    assert text == model.write(TEXT, 40)


@pytest.mark.parametrize("name", ["logits", "surprisal", "bits_per_byte"])
def test_an_attention_of_your_own_reads_the_text(name):
    called = []

    def attend(query, key, value, mask, bias, scale, is_causal):
        called.append(query.shape)
        return np.zeros((*query.shape[:-1], value.shape[-1]))

    read = getattr(small(), name)
    assert not np.allclose(read(TEXT[:9], impl=attend), read(TEXT[:9]))
    assert called


@pytest.mark.parametrize("context", [11, 100])
def test_writing_in_pieces_is_writing(context):
    model = small(context)
    options = {"rng": 3, "temperature": 0.9, "top_p": 0.95, "repetition_penalty": 1.1}
    pieces = list(model.write_stream(TEXT[:9], 40, **options))
    assert "".join(pieces) == model.write(TEXT[:9], 40, **options)
    assert 1 < len(pieces) <= 41
    first = next(model.write_stream(TEXT[:9], 40, **options))
    assert first == pieces[0]


def test_pieces_are_made_one_after_the_other():
    model, read = small(context=100), []

    def count(query, key, value, mask, bias, scale, is_causal):
        read.append(key.shape[-2])
        return attnbook.attention(query, key, value, is_causal=is_causal, scale=scale)

    pieces = model.write_stream("HAMLET:", 9, impl=count, processors=[only_letters(model)])
    assert read == []
    n = len(model.ids("HAMLET:")) + 1
    for i in range(3):
        next(pieces)
        assert max(read) == n + i  # the prompt, then one token after each piece


def only_letters(model):
    """Return a processor that lets nothing through but the bytes a, b and c."""

    def process(log_p, prefixes):
        keep = np.isin(np.arange(len(model.tokenizer)), [97, 98, 99])
        return np.where(keep, log_p, -np.inf)

    return process


def test_writing_obeys_processors():
    model = small(context=11)
    for draft in (None, small(11)):
        text = model.write("HAM", 30, draft=draft, processors=[only_letters(model)])
        assert len(text) == 30
        assert set(text) <= set("abc")


@pytest.mark.parametrize("text", ["Là-bas, hé! 鸟 🦉 — naïve", "€€"])
def test_a_piece_never_splits_a_character(text):
    """A model that copies the bytes of a text: each is a token of its own."""
    model, data = small(context=100), text.encode()

    def process(log_p, prefixes):
        wanted = data[len(prefixes[0].made)]
        return np.where(np.arange(260)[None] == wanted, 0.0, -np.inf)

    pieces = list(model.write_stream("", len(data), processors=[process]))
    assert pieces == list(text)
    cut = list(model.write_stream("", len(data) - 1, processors=[process]))
    assert "".join(cut) == data[:-1].decode(errors="replace")


def test_a_text_ends_at_the_end_of_the_text():
    model = small(context=100)

    def process(log_p, prefixes):
        wanted = [*b"end", model.tokenizer.stop][len(prefixes[0].made)]
        return np.where(np.arange(260)[None] == wanted, 0.0, -np.inf)

    for draft in (None, model):
        assert model.write("", 50, processors=[process], draft=draft) == "end"


def test_a_draft_writes_the_likeliest_too():
    model, draft = small(context=11), small(11)
    expected = model.write("HAMLET:", 40, top_k=1)
    for lookahead in (1, 4):
        asked = {"draft": draft, "temperature": 0, "lookahead": lookahead}
        assert model.write("HAMLET:", 40, **asked) == expected
    arrays = draft.weights.arrays().items()
    noise = np.random.default_rng(0)
    other = {name: x + noise.normal(0, 0.3, x.shape) for name, x in arrays}
    draft = dataclasses.replace(draft, weights=draft.weights.with_arrays(other))
    assert model.write("HAMLET:", 40, draft=draft, temperature=0) == expected


def test_a_draft_that_does_not_fit_is_refused():
    model = small()
    with pytest.raises(TypeError, match="draft must be LanguageModel, got TransformerWeights"):
        model.write("", 3, draft=model.weights)
    tokenizer = BytePairs.learn("ab cd ef ab cd ef " * 9, 260)
    other = dataclasses.replace(model, tokenizer=tokenizer)
    with pytest.raises(ValueError, match="draft must have the tokenizer of the model, got another"):
        model.write_stream("", 3, draft=other)  # at the call, before the first piece
    with pytest.raises(TypeError, match="unexpected keyword argument 'top_n'"):
        model.write_stream("", 3, top_n=4)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"context": 1}, ValueError, "context must be at least 2, got 1"),
        ({"tokenizer": "abc"}, TypeError, "tokenizer must be BytePairs, got str"),
        ({"weights": None}, TypeError, "weights must be TransformerWeights, got NoneType"),
        (
            {"tokenizer": BytePairs.learn(TEXT, 259)},
            ValueError,
            "tokenizer must have 260 tokens to match weights, got 259",
        ),
    ],
)
def test_a_model_of_parts_that_do_not_fit_is_refused(change, error, message):
    with pytest.raises(error, match=message):
        dataclasses.replace(small(), **change)


def test_a_model_with_an_encoder_is_refused():
    weights = TransformerWeights.init(0, 260, d_model=8, n_heads=2, d_ff=8, n_layers=1)
    with pytest.raises(ValueError, match="weights must be a decoder alone, with an embedding"):
        LanguageModel(weights, small().tokenizer, 11)


def test_a_layer_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="layer must be at most 2, got 3"):
        small().heads(TEXT, 3)
    with pytest.raises(ValueError, match="layer must be at most 3, got 4"):
        small().stream(TEXT, 4)
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        small().write(TEXT, 0)
    with pytest.raises(ValueError, match="rng must be at least 0 if it is a seed, got -1"):
        small().write(TEXT, rng=-1)


def test_what_is_no_text_is_refused():
    model = small()
    for method in (model.ids, model.logits, model.surprisal, model.bits_per_byte, model.write):
        name = "prompt" if method == model.write else "text"
        with pytest.raises(TypeError, match=f"{name} must be a str, got bytes"):
            method(TEXT.encode())


def test_the_writer_is_as_small_as_its_card_says(shipped):
    arrays = shipped.weights.arrays()
    assert 1_500_000 <= sum(x.size for x in arrays.values()) <= 3_000_000
    assert {x.dtype.name for x in arrays.values()} == {"float32"}
    assert (shipped.context, len(shipped.tokenizer)) == (256, 2048)
    layer = shipped.weights.decoder.layers[0]
    assert type(layer.self_attention_norm).__name__ == "RMSNormWeights"
    assert type(layer.feed_forward).__name__ == "GatedFeedForwardWeights"
    assert layer.self_attention.n_kv_heads < layer.self_attention.n_heads


def test_the_writer_beats_every_n_gram_on_a_play_that_it_has_not_read(shipped):
    """The best of them, of any order, tuned on that play, needs 1.96 bits; the record has all."""
    act = plays().texts["Julius Caesar"][:5_000]
    assert shipped.to("torch").bits_per_byte(act) < 1.9


def recorded(name):
    return json.loads((ROOT / f"book/data/{name}.cpu.json").read_text("utf8"))


def test_the_card_says_what_was_recorded():
    card = (ROOT / "attnbook/models/writer.md").read_text("utf8")
    record, rivals = recorded("writer")["writer"][0], recorded("rivals")["ngrams"]
    assert f"| **the writer** | {record['validation']:.3f} | {record['test']:.3f} |" in card
    assert f"{record['parameters']:,} parameters" in card
    counted = [row for row in rivals if row["cache"] is None]
    assert all(record["validation"] < row["validation"] for row in rivals)
    assert all(record["test"] < row["test"] for row in counted)
    best = min(counted, key=lambda row: row["validation"])
    assert f"order {best['order']}) | {best['validation']:.3f} | {best['test']:.3f} |" in card


def test_the_draft_is_small_and_has_the_tokens_of_the_writer(shipped):
    draft = draft_writer()
    path = ROOT / "attnbook/models/draft_writer.npz"
    assert path.stat().st_size < 1_000_000
    assert draft.tokenizer is shipped.tokenizer
    assert draft.tokenizer.to_dict() == writer().tokenizer.to_dict()
    assert draft.context == shipped.context
    with np.load(path, allow_pickle=False) as stored:
        assert set(json.loads(str(stored["content"]))) == {"sizes", "context"}
    arrays = draft.weights.arrays()
    assert {x.dtype.name for x in arrays.values()} == {"float32"}
    assert 4 * sum(x.size for x in arrays.values()) < sum(
        x.size for x in shipped.weights.arrays().values()
    )


def test_the_draft_has_learned_from_the_plays():
    """It needs fewer bits than a Kneser-Ney model of pairs of tokens, and far fewer than bz2."""
    found = recorded("draft_writer_training")["bits_per_byte"]["validation"]
    rows = recorded("rivals")["ngrams"]
    (pairs,) = [row for row in rows if (row["unit"], row["order"]) == ("byte pair", 2)]
    assert found < pairs["validation"]
    act = plays().texts["Julius Caesar"][:5_000]
    assert draft_writer().to("torch").bits_per_byte(act) < 2.1


def test_the_card_says_what_was_recorded_of_the_draft():
    record = recorded("draft_writer_training")
    stored = (ROOT / "attnbook/models/draft_writer.npz").read_bytes()
    assert record["sha256"] == hashlib.sha256(stored).hexdigest()
    card = (ROOT / "attnbook/models/writer.md").read_text("utf8")
    bits = record["bits_per_byte"]
    assert f"| **the draft** | {bits['validation']:.3f} | {bits['test']:.3f} |" in card
    size = sum(x.size for x in draft_writer().weights.arrays().values())
    assert f"{size:,} parameters" in card
    assert f"{record['recipe']['steps']:,} updates" in card


PIECES = ("sinusoidal", "interleaved", "learned", "rotary", "none", Rotary(base=500.0))


@pytest.mark.parametrize("positions", PIECES, ids=str)
def test_stream_and_heads_are_those_of_the_way_to_the_logits(positions):
    model = small(positions=positions, n_positions=64 if positions == "learned" else None)
    weights, text = model.weights, TEXT[:20]
    last = rms_norm(model.stream(text, 3), weights.decoder.final_norm.gain)
    np.testing.assert_allclose(last @ weights.target_embedding.T, model.logits(text), atol=1e-12)
    if positions == "learned":
        with pytest.raises(ValueError, match=r"^text must have at most 64 tokens, as many as"):
            model.stream("ab" * 200, 1)
    for layer, block in enumerate(weights.decoder.layers):
        query, key, value = model.heads(text, layer)
        assert query.shape == key.shape == (6, query.shape[1], 2)
        A = attention_weights(query, key, is_causal=True)
        np.testing.assert_allclose(A, model.attention(text)[layer], atol=1e-12)
        x = model.stream(text, layer)
        x = x + merge_heads(A @ value) @ block.self_attention.W_O
        y = rms_norm(x, block.feed_forward_norm.gain)
        x = x + feed_forward(y, block.feed_forward)
        np.testing.assert_allclose(x, model.stream(text, layer + 1), atol=1e-12)


def test_stream_and_heads_are_those_of_the_way_to_the_logits_with_sinks_and_windows():
    model, text = small(), TEXT[:20]
    stack = model.weights.decoder
    layers = tuple(
        dataclasses.replace(
            layer,
            self_attention=dataclasses.replace(
                layer.self_attention,
                sinks=np.linspace(-1, 1, 6) if i != 1 else None,
                window=(2, 3, None)[i],
                cap=(None, 0.5, 2.0)[i],
            ),
        )
        for i, layer in enumerate(stack.layers)
    )
    weights = dataclasses.replace(model.weights, decoder=dataclasses.replace(stack, layers=layers))
    model = LanguageModel(weights, model.tokenizer, model.context)
    A = model.attention(text)
    n = A.shape[-1]
    assert A.shape == (3, 6, n, n)
    for i, block in enumerate(layers):
        own = block.self_attention
        query, key, value = model.heads(text, i)
        assert query.shape == key.shape == (6, n, 2)
        scores = query @ np.swapaxes(key, -1, -2) / 2**0.5
        scores = scores if own.cap is None else own.cap * np.tanh(scores / own.cap)
        mask = sliding_window(n, left=n if own.window is None else own.window - 1)
        powers = np.where(mask, np.exp(scores), 0)
        sinks = 0 if own.sinks is None else np.exp(own.sinks)[:, None, None]
        want = powers / (powers.sum(-1, keepdims=True) + sinks)
        np.testing.assert_allclose(A[i], want, atol=1e-12)
        x = model.stream(text, i)
        x = x + merge_heads(want @ value) @ own.W_O
        x = x + feed_forward(rms_norm(x, block.feed_forward_norm.gain), block.feed_forward)
        np.testing.assert_allclose(x, model.stream(text, i + 1), atol=1e-12)


def test_attention_of_a_model_in_bfloat16_is_in_numpy():
    A = small().to("torch", dtype="bfloat16").attention(TEXT[:9])
    assert (type(A), A.dtype) == (np.ndarray, np.float32)
    np.testing.assert_allclose(A.sum(axis=-1), 1, atol=0.02)


def test_without_a_layer_there_is_no_attention():
    with pytest.raises(ValueError, match=r"^weights must have at least 1 layer to attend, got 0$"):
        small(n_layers=0).attention(TEXT[:9])
