"""The writer in JavaScript reads, computes and attends as the package's own does."""

import numpy as np
import pytest
from figures import caller, lab_data

import attnbook as ab
from attnbook.models import writer

PROMPTS = (
    "ROMEO:\nBut soft, what light",
    "HAMLET:\nGood my",
    "\n\nKING",
    "A sentence of today, with 2,048 tokens & “quotes”.",
    "To be, or not to be: that is the question:\nWhether 'tis nobler in the mind to suffer\n" * 2,
)
AWKWARD = (
    "",
    " ",
    "\n\n\n  \n x  ",
    "let's I'd I'll we've they're O'er ' I'me I'very I'red",
    "two  spaces   three\tand a tab \t\n",
    "fiancée naïve Ærøskøbing ﬁre é",
    "½ ² Ⅳ ① 12 ١٢٣ 12th",
    "中文 かな 한글 🙂👩‍👩‍👧 𝔘",
    "under_score __init__ a_1",
    "\x1c\x1d\x1e\x1f\x85\xa0\u2003\u2028\u3000end\ufeff\u200b",
    "\x00\x07\x7f",
    "<|endoftext|>",
    "KING RICHARD III:\nA horse! a horse! my kingdom for a horse!",
)


@pytest.fixture(scope="module")
def model():
    return writer()


@pytest.fixture(scope="module")
def call():
    own = """
        const own = new modules["writer.js"].Writer(buffer);
        function read(ids) {
            const unread = own.unread(ids);
            for (const id of unread) own.read(id);
            return [unread.length, Array.from(own.logits())];
        }
    """
    return caller(("arrays.js", "writer.js"), lab_data.made("writer.bin"), own)


def test_tokens_of_awkward_texts(call, model):
    random = np.random.default_rng(0)
    signs = [*"ab é'_\n\t 1½中🙂\x1c\xa0.!", "'ll", "  "]
    drawn = ["".join(random.choice(signs, size=12)) for _ in range(300)]
    for text in [*AWKWARD, *drawn]:
        ids = call("text => own.tokenizer.encode(text)", text)
        assert ids == model.tokenizer.encode(text).tolist(), repr(text)
        assert call("ids => own.tokenizer.decode(ids)", ids) == text


def test_half_a_character_becomes_a_sign(call, model):
    random = np.random.default_rng(1)
    texts = []
    for _ in range(300):
        high = random.integers(0xBE, 0x100, size=2)
        texts.append(random.permutation([*high, *random.integers(0x78, 0xC4, size=3)]).tolist())
    decoded = "texts => texts.map(ids => own.tokenizer.decode(ids))"
    assert call(decoded, texts) == [bytes(ids).decode(errors="replace") for ids in texts]
    tokens = [[token] for token in range(len(model.tokenizer))]
    assert call(decoded, tokens) == list(map(model.tokenizer.decode, tokens))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits(prompt, call, model):
    ids = [model.tokenizer.stop, *model.tokenizer.encode(prompt).tolist()]
    _, logits = call("ids => read(ids)", ids)
    expected = ab.transformer(None, np.array(ids), model.weights)[-1]
    np.testing.assert_allclose(logits, expected, atol=1e-3)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_heads(prompt, call, model):
    ids = model.tokenizer.encode(prompt).tolist()
    rows = call(
        "ids => { read(ids); return own.rows.map(row => row.map(h => h.map(a => [...a]))); }", ids
    )
    expected = model.attention(prompt)  # (layers, h, n, n)
    for i, layers in enumerate(rows):
        np.testing.assert_allclose(layers, expected[:, :, i, : i + 1], atol=1e-4)


def test_the_cache_keeps_what_two_texts_share(call):
    first, second = [2047, 58, 10, 453, 360], [2047, 58, 10, 500]
    call("ids => read(ids)", [9])
    alone = [call("ids => { own.unread([]); return read(ids); }", ids) for ids in (first, second)]
    assert [count for count, _ in alone] == [5, 4]
    for ids, count, expected in (
        (first, 2, alone[0]),
        (second, 1, alone[1]),
        (second, 1, alone[1]),
        (first[:3], 1, None),
        (first, 2, alone[0]),
    ):
        read, logits = call("ids => read(ids)", ids)
        assert read == count
        if expected:
            np.testing.assert_allclose(logits, expected[1], atol=1e-5)


def test_a_text_beyond_the_context_is_refused(call, model):
    with pytest.raises(Exception, match="256 tokens"):
        call("ids => read(ids)", [5] * (model.context + 1))


def test_the_file_of_the_site_is_no_larger_than_its_numbers(model):
    numbers = sum(array.size for array in model.weights.arrays().values())
    assert len(lab_data.made("writer.bin")) < 2 * numbers + 30_000
