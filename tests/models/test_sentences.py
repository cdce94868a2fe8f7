"""Sentences as vectors, against `transformers`: a tiny encoder, and the published one."""

from dataclasses import replace

import numpy as np
import pytest
import tiny_models
import torch
from cases import DTYPES, EPSILON, need
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st

from attnbook import EncoderWeights, attention
from attnbook.data import WordPieces
from attnbook.models import (
    SentenceEncoder,
    bert,
    from_transformers,
    mean_vectors,
    sentence_encoder,
)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "to", "be", "or", "not", "##ing", ",", ".", "?"]
WORDS += [f"word{i}" for i in range(tiny_models.V - len(WORDS))]
TEXTS = ["To be", "", "or not to be, to be, or be", "be", "Being? Unknown.", "not to " * 9]


def mean_of(hidden):
    """Return the mean over the tokens at unit length, as PyTorch computes it."""
    return torch.nn.functional.normalize(hidden.mean(dim=-2), dim=-1)


def judged(model, rows):
    """Return the vectors that `model` and PyTorch make of each row of ids, one at a time."""
    with torch.no_grad():
        hidden = [model(torch.tensor(row)[None]).last_hidden_state for row in rows]
    return torch.cat([mean_of(x) for x in hidden]).double().numpy()


@pytest.fixture(scope="module", autouse=True)
def tiny_encoder():
    """A tiny encoder and its judge: `transformers` takes seconds, so they are made when needed."""
    global JUDGE, STATE, ENCODER, EXACT
    JUDGE = tiny_models.bert(attn_implementation="eager")
    STATE = {name: x.numpy() for name, x in JUDGE.state_dict().items()}
    ENCODER = SentenceEncoder(from_transformers(STATE, JUDGE.config), WordPieces(WORDS), 11)
    EXACT = judged(JUDGE, [ENCODER.tokenizer.encode(text, 11) for text in TEXTS])


# The mean of the rows, at unit length


@pytest.mark.parametrize("dtype", DTYPES)
@given(st.sampled_from(((), (3,), (2, 3), (0,))), st.sampled_from((1, 2, 5, 7)), st.integers(0, 99))
def test_agrees_with_the_loop(library, dtype, batch, n, seed):
    need(library, dtype)
    rng = np.random.default_rng(seed)
    x = library.array(rng.standard_normal((*batch, n, 5)), dtype)
    lengths = rng.integers(0, n + 1, batch)
    rounded, exact = library.numpy(x), np.zeros((*batch, 5))
    for place in np.ndindex(*batch):
        if total := lengths[place]:
            mean = sum(rounded[(*place, i)] for i in range(total)) / total
            exact[place] = mean / np.sqrt(sum(number**2 for number in mean))
    got = mean_vectors(x, lengths)
    assert library.same_kind(got, x)
    np.testing.assert_allclose(library.numpy(got), exact, atol=64 * EPSILON[dtype])
    whole = library.numpy(mean_vectors(x))
    theirs = mean_of(torch.tensor(rounded)).numpy()
    np.testing.assert_allclose(whole, theirs, atol=64 * EPSILON[dtype])


def test_rows_of_padding_are_not_read():
    x = np.ones((2, 3, 5))
    x[0, 2], x[1, 1:] = np.nan, np.inf
    np.testing.assert_allclose(mean_vectors(x, [2, 1]), np.full((2, 5), 5**-0.5))


@pytest.mark.parametrize("size", [1e-25, 1.0, 1e25])
def test_vectors_of_any_size_have_unit_length(size):
    x = np.full((1, 2), size, dtype=np.float32)
    np.testing.assert_allclose(mean_vectors(x), [0.5**0.5] * 2, rtol=1e-6)


def test_gradients_are_finite_without_any_row():
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    mean_vectors(x, [0, 2]).sum().backward()
    assert torch.isfinite(x.grad).all()
    assert torch.autograd.gradcheck(lambda x: mean_vectors(x, [1, 3]), (x,))


# A tiny encoder


@pytest.mark.parametrize("batch_size", [1, 2, 4, 100])
def test_each_text_has_the_vector_that_it_has_alone(library, batch_size):
    encoder = replace(ENCODER, weights=library.place(ENCODER.weights, "float64"))
    got = encoder.encode(TEXTS, batch_size)
    assert library.same_kind(got, encoder.weights.token_embedding)
    np.testing.assert_allclose(library.numpy(got), EXACT, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_in_other_precisions(library, dtype):
    need(library, dtype)
    encoder = replace(ENCODER, weights=library.place(ENCODER.weights, dtype))
    drift = np.abs(library.numpy(encoder.encode(TEXTS)) - EXACT)
    assert drift.max() < 16 * EPSILON[dtype]


def test_it_moves_as_its_weights_do():
    moved = ENCODER.to("torch", dtype="float32")
    assert moved.encode(TEXTS).dtype == torch.float32
    np.testing.assert_allclose(moved.encode(TEXTS).numpy(), EXACT, atol=1e-5)
    assert moved.tokenizer is ENCODER.tokenizer


def test_batches_hold_texts_of_like_length():
    seen = []

    class Watching(WordPieces):
        def encode(self, text, max_length=None):
            seen.append(text)
            return super().encode(text, max_length)

    encoder = replace(ENCODER, tokenizer=Watching(WORDS))
    np.testing.assert_array_equal(encoder.encode(TEXTS), ENCODER.encode(TEXTS))
    assert seen == TEXTS  # each is cut into tokens once


def test_every_implementation_and_no_text():
    for impl in ("naive", "tiled"):
        np.testing.assert_allclose(ENCODER.encode(TEXTS, impl=impl), EXACT, atol=1e-12)
    assert ENCODER.encode([]).shape == (0, 14)


def test_a_function_of_the_reader_attends_in_every_layer():
    shapes = []

    def mine(query, key, value, mask, bias, scale, is_causal):
        shapes.append(query.shape)
        return attention(query, key, value, mask)

    np.testing.assert_allclose(ENCODER.encode(TEXTS, 6, impl=mine), EXACT, atol=1e-12)
    assert shapes == [(6, 2, 11, 7)] * 3


def test_tokens_and_attention_are_those_of_the_text(library):
    encoder = replace(ENCODER, weights=library.place(ENCODER.weights, "float64"))
    assert encoder.tokens("To being.") == ["[CLS]", "to", "be", "##ing", ".", "[SEP]"]
    assert encoder.tokens("not to " * 9) == ["[CLS]", *["not", "to"] * 4, "not", "[SEP]"]
    A = encoder.attention("To being.")
    ids = torch.tensor(encoder.tokenizer.encode("To being."))[None]
    with torch.no_grad():
        expected = torch.cat(JUDGE(ids, output_attentions=True).attentions).numpy()
    assert type(A) is np.ndarray
    np.testing.assert_allclose(A, expected, atol=1e-12)


FEW = WordPieces(WORDS[:-1])
ERRORS = """
ENCODER.encode("To be")
    TypeError: texts must be a sequence of str, got the str 'To be'
ENCODER.encode(3)
    TypeError: texts must be a sequence of str, got int
ENCODER.encode(["To", 3])
    TypeError: texts[1] must be a str, got int
ENCODER.encode(TEXTS, 0)
    ValueError: batch_size must be at least 1, got 0
SentenceEncoder(STATE, FEW)
    TypeError: weights must be BertWeights, got dict
SentenceEncoder(ENCODER.weights, WORDS)
    TypeError: tokenizer must be WordPieces, got list
SentenceEncoder(ENCODER.weights, FEW, 11)
    ValueError: tokenizer must have as many tokens as the weights, 29, got 28
SentenceEncoder(ENCODER.weights, ENCODER.tokenizer)
    ValueError: longest must be at most 13, got 256
SentenceEncoder(ENCODER.weights, ENCODER.tokenizer, 1)
    ValueError: longest must be at least 2, got 1
mean_vectors(np.ones(3))
    ValueError: x must have shape (..., n, d), got (3,)
mean_vectors(np.ones((2, 3), int))
    TypeError: x must have a real floating dtype, got int64
mean_vectors(np.ones((2, 3, 5)), [1, 4])
    ValueError: lengths must be at most the number of keys, 3, got 4
mean_vectors(np.ones((2, 3, 5)), [1, 2, 3])
    ValueError: lengths must have shape (2,), got (3,)
mean_vectors(np.ones((3, 5)), [1, 2])
    ValueError: lengths must have shape (), got (2,)
"""

test_error = error_test(ERRORS, globals())


def test_without_its_files_the_encoder_says_how_to_get_them(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTNBOOK_CACHE", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"python -m attnbook models get sentence-encoder$"):
        sentence_encoder()
    assert list(tmp_path.iterdir()) == []


# The published encoder

SENTENCES = [
    "To be, or not to be, that is the question.",
    "Sleep!",
    "A man cannot decide whether to live or to die, and he thinks about it for a long time.",
    "Macbeth does murder sleep",
    "naïve CAFÉ, 2,500 jackdaws & an antidisestablishmentarianism",
]


@pytest.mark.parametrize("library_name", ["numpy", "torch"])
def test_the_published_encoder_is_that_of_transformers_layer_by_layer(published, library_name):
    encoder, judge, tokenizer = published
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        got = judge(**batch, output_hidden_states=True)
    real = batch["attention_mask"].bool()
    ids, mask = batch["input_ids"], real[:, None, None, :]
    weights = encoder.weights.to(library_name)
    if library_name == "numpy":
        ids, mask = ids.numpy(), mask.numpy()
    for n, expected in enumerate(got.hidden_states):
        part = replace(weights, encoder=EncoderWeights(weights.encoder.layers[:n]))
        ours = torch.as_tensor(bert(ids, part, mask))
        torch.testing.assert_close(ours[real], expected[real], rtol=0, atol=1e-5)
    vectors = np.asarray(encoder.to(library_name).encode(SENTENCES))
    expected = judged(judge, [tokenizer(x)["input_ids"] for x in SENTENCES])
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)
    assert vectors.shape == (5, 384)
    assert vectors.dtype == np.float32


def test_the_published_encoder_in_half_precision(published):
    encoder, few = published[0], SENTENCES[1:4:2]  # NumPy multiplies float16 slowly
    exact = encoder.encode(few).astype(np.float64)
    for library_name, dtype, bound in (("numpy", "float16", 5e-3), ("torch", "bfloat16", 4e-2)):
        half = encoder.to(library_name, dtype=dtype).encode(few)
        got = np.asarray(half.double() if library_name == "torch" else half, np.float64)
        assert np.linalg.norm(got - exact, axis=1).max() < bound


def test_near_in_meaning_is_near_in_angle(published):
    encoder = published[0]
    pairs = [
        ("Macbeth does murder sleep", "I cannot sleep any more"),
        ("A horse! a horse! my kingdom for a horse!", "He would give all he has for an animal."),
        ("Shall I compare thee to a summer's day?", "You are as lovely as warm weather."),
    ]
    lines, plain = (encoder.encode(texts) for texts in zip(*pairs, strict=True))
    assert (lines @ plain.T).argmax(axis=1).tolist() == [0, 1, 2]
