"""Word pieces against Hugging Face `tokenizers`."""

import unicodedata

import numpy as np
import pytest
from cases import WEEKLY
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer

import attnbook
from attnbook import models
from attnbook.data import WordPieces, word_pieces

VOCABULARY = """
[PAD] [UNK] [CLS] [SEP] [MASK] a b e i o ß σ ? - ' ” 中 ; the then cafe naif ab
##a ##b ##e ##i ##n ##ab ##aba ##the ##σ ##中
"""
TOKENS = VOCABULARY.split()
PIECES = WordPieces(TOKENS)


def is_settled(character):
    """Tell whether Unicode 3.2 said the same of a character as Python does today.

    The judge's tables are older than Python's, and both may change. U+2B820 to U+2B91F are Chinese,
    which the judge does not know.
    """
    kind = unicodedata.ucd_3_2_0.category(character)
    return kind == unicodedata.category(character) != "Cn"


any_text = st.text(st.characters(exclude_categories=["Cs"]).filter(is_settled))
near_text = st.text(
    st.sampled_from("abethnABEσΣςßİéÉ\u0301ǆ ?-'”中;\u037e\t\n\x0b\x85\u2028\u3000\ufffd\xad_$"),
    max_size=23,
)


@pytest.fixture(scope="module")
def judge():
    return BertWordPieceTokenizer({token: i for i, token in enumerate(TOKENS)})


@given(near_text | any_text)
@example("a" * 100)
@example("a" * 101)
@example("ab" * 60 + " b")
@example("the[SEP")
@example(" \t\n")
@example("THEN thea thez a\xadb a中b ΣΣ cafe\u0301")
@example("Then, CAFÉ: naïf—the ‘abaabthe’?\r\n\x00中a中")
def test_encodes_as_the_judge(judge, text):
    judged = judge.encode(text)
    ids = PIECES.encode(text)
    assert ids.dtype == np.int64
    assert ids.tolist() == judged.ids
    assert PIECES.pieces(text) == judged.tokens[1:-1]


def test_keeps_drops_and_parts_each_character_as_the_judge(judge):
    """Weekly each; else those of the first signs and alphabets, and a share of all others."""
    codes = range(0x110000) if WEEKLY else [*range(0x3100), *range(0x3100, 0x110000, 37)]
    characters = [x for x in map(chr, codes) if not "\ud800" <= x <= "\udfff"]
    text = " ".join(f"a{x}b" for x in characters if is_settled(x))
    assert PIECES.encode(text).tolist() == judge.encode(text).ids


@given(near_text, st.integers(2, 11))
@example("the then the", 2)
@example("the then the", 5)
def test_cuts_the_end_off_as_the_judge(text, max_length):
    judge = BertWordPieceTokenizer({token: i for i, token in enumerate(TOKENS)})
    judge.enable_truncation(max_length)
    assert PIECES.encode(text, max_length).tolist() == judge.encode(text).ids


@given(st.lists(near_text, min_size=1, max_size=5), st.integers(2, 11))
def test_fills_up_as_the_judge(texts, max_length):
    judge = BertWordPieceTokenizer({token: i for i, token in enumerate(TOKENS)})
    judge.enable_truncation(max_length)
    judge.enable_padding()
    judged = judge.encode_batch(texts)
    ids, mask = PIECES.encode_batch(texts, max_length=max_length)
    assert (ids.dtype, mask.dtype) == (np.int64, np.bool)
    assert ids.tolist() == [row.ids for row in judged]
    assert mask[:, 0, 0].astype(int).tolist() == [row.attention_mask for row in judged]


@pytest.mark.parametrize("n_texts", [1, 2, 4, 5])
def test_the_mask_hides_what_fills_up_whatever_the_sizes(n_texts):
    """Also where there are as many texts as tokens in the longest, and as many heads."""
    texts = ["the the", "the", "", "the", "the the"][:n_texts]  # at most 4 ids with both specials
    ids, mask = PIECES.encode_batch(texts)
    sizes = {"d_model": 8, "n_heads": 4, "d_ff": 3}
    rng = np.random.default_rng(0)
    weights = models.BertWeights(
        *(rng.normal(size=(n, 8)) for n in (len(TOKENS), 9, 2)),
        attnbook.LayerNormWeights.init(8),
        attnbook.EncoderWeights.init(0, 2, **sizes, norm="post"),
    )
    together = models.bert(ids, weights, mask)
    for row, text in zip(together, texts, strict=True):
        own = PIECES.encode(text)
        np.testing.assert_allclose(row[: len(own)], models.bert(own, weights), atol=1e-12)


def test_no_texts_make_an_empty_batch():
    ids, mask = PIECES.encode_batch([])
    assert (ids.shape, mask.shape) == ((0, 0), (0, 1, 1, 0))


def test_what_the_judge_has_otherwise():
    """A special token in a text, and Chinese characters that it does not know."""
    assert PIECES.pieces("[SEP]") == ["[UNK]", "[UNK]", "[UNK]"]
    assert PIECES.pieces("a\U0002b820b") == ["a", "[UNK]", "b"]


def test_special_tokens_are_found_by_name():
    pieces = WordPieces(["[SEP]", "x", "[CLS]", "[UNK]", "[PAD]"])
    assert (pieces.pad, pieces.unknown, pieces.start, pieces.stop) == (4, 3, 2, 0)
    assert len(pieces) == 5
    ids, mask = pieces.encode_batch(["x", "x y x"])
    assert ids.tolist() == [[2, 1, 0, 4, 4], [2, 1, 3, 1, 0]]
    assert mask.sum() == 8


@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize("line", ["\n", "\r\n"])
def test_read_takes_a_token_from_each_line(tmp_path, line, end):
    path = tmp_path / "vocab.txt"
    path.write_bytes((line.join([*TOKENS, "\u2028", "##\x85"]) + end).encode())
    assert WordPieces.read(path) == WordPieces([*TOKENS, "\u2028", "##\x85"])
    assert WordPieces.read(str(path)).tokens[-1] == "##\x85"


def test_a_full_cache_changes_nothing(monkeypatch):
    monkeypatch.setattr(word_pieces, "LARGEST_CACHE", 1)
    text = "the then the then"
    assert WordPieces(TOKENS).pieces(text) == PIECES.pieces(text)


def test_is_frozen():
    with pytest.raises(AttributeError):
        PIECES.tokens = ()
