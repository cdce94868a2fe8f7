"""Byte pairs against Hugging Face `tokenizers`."""

import itertools
import json
import pickle

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from attnbook.data import BytePairs, text
from attnbook.data.byte_pairs import PRE_TOKEN

PAIRS = BytePairs.learn(
    "The then-there: thirty thieves thought, they'd thrilled the throne…\n", 270
)

letters = st.text(st.sampled_from("ab "), max_size=47)
signs = st.text(st.sampled_from("abTthe' s12.,:-_\n\té²½\x1c\u0301\u3000中😀…"), max_size=23)
any_text = st.text(st.characters(exclude_categories=["Cs"]))
some_pairs = st.lists(signs, max_size=5).map(lambda texts: BytePairs.learn(texts, 280))


def lettered(data):
    """Return `data` with one letter for each byte, in the order of the bytes, as the judge sees it.

    The judge orders its alphabet by code points. GPT-2's letters would order the bytes otherwise.
    """
    return "".join(chr(0x100 + byte) for byte in data)


def judge_learns(texts, size):
    """Return the merges that Hugging Face learns from the pre-tokens of `texts`."""
    judge = Tokenizer(models.BPE())
    judge.pre_tokenizer = pre_tokenizers.Split("\n", "removed")
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=list(lettered(range(256))),
    )
    pre_tokens = [lettered(word.encode()) for text in texts for word in PRE_TOKEN.findall(text)]
    judge.train_from_iterator(["\n".join(pre_tokens)], trainer)
    return [tuple(pair) for pair in json.loads(judge.to_str())["model"]["merges"]]


def judge_of(pairs):
    """Return the byte-pair encoding of Hugging Face with the merges of `pairs`."""
    names = [lettered(token) for token in pairs.tokens[: pairs.stop]]
    merges = [(names[x], names[y]) for x, y in pairs.merges]
    return Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, merges))


def assert_learns_as_judge(texts, size):
    pairs = BytePairs.learn(texts, size)
    merges = [(lettered(pairs.tokens[x]), lettered(pairs.tokens[y])) for x, y in pairs.merges]
    assert merges == judge_learns(texts, size - 1)


@given(letters, st.integers(257, 290))
@example("aaaa aaa aaaaa", 270)
def test_learns_the_merges_of_the_judge(text, size):
    assert_learns_as_judge([text], size)


@given(st.lists(signs, max_size=5), st.integers(257, 290))
def test_learns_the_merges_of_the_judge_on_any_signs(texts, size):
    assert_learns_as_judge(texts, size)


def test_learns_the_merges_of_the_judge_on_prose():
    assert_learns_as_judge([text()[:100_000]], 800)


@given(some_pairs, signs | any_text)
@example(BytePairs([(97, 97)]), "aaa aaaaa")
@example(BytePairs([(98, 99), (97, 98)]), "abc")
def test_encodes_as_the_judge(pairs, text):
    ids = pairs.encode(text)
    assert ids.dtype == np.int64
    words = [lettered(word.encode()) for word in PRE_TOKEN.findall(text)]
    assert ids.tolist() == judge_of(pairs).encode(words, is_pretokenized=True).ids


@given(st.text(st.sampled_from("abTthe' sdlrvm12.,:-_\té\u0301\u3000中😀…"), max_size=23))
def test_pattern_is_that_of_the_judge_between_line_breaks(text):
    judge = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    assert PRE_TOKEN.findall(text) == [text[i:j] for _, (i, j) in judge]


@given(st.text(st.sampled_from("abTthe' sdlrvm12.,:-_\n\té中😀…"), max_size=23))
def test_pattern_means_the_same_to_the_judge(text):
    judge = pre_tokenizers.Split(Regex(PRE_TOKEN.pattern), "isolated").pre_tokenize_str(text)
    assert PRE_TOKEN.findall(text) == [part for part, _ in judge]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("HAMLET:\nTo be", ["HAMLET", ":", "\n", "To", " be"]),
        ("end.\n\nKING LEAR:", ["end", ".", "\n\n", "KING", " LEAR", ":"]),
        ("o'er  call'd", ["o", "'", "er", " ", " call", "'d"]),
        ("a \n b ", ["a", " ", "\n", " b", " "]),
        ("x²½ ٣_", ["x²½", " ٣", "_"]),
        ("a\x1cb", ["a", "\x1c", "b"]),
        ("", []),
    ],
)
def test_pattern_cuts(text, parts):
    assert PRE_TOKEN.findall(text) == parts


@given(some_pairs, signs | any_text)
@example(PAIRS, "")
@example(PAIRS, "the 👩‍👩‍👧 throne\x00")
def test_decode_undoes_encode(pairs, text):
    ids = pairs.encode(text)
    assert pairs.decode(ids) == text
    assert b"".join(pairs.tokens[i] for i in ids) == text.encode()
    np.testing.assert_array_equal(pairs.encode(text), ids)  # now from what it kept


def test_learning_ends_where_no_pair_occurs_twice():
    assert len(BytePairs.learn("abcabd", 300)) == 258
    assert len(BytePairs.learn([], 300)) == 257
    assert BytePairs.learn(["aab", "aab"], 258) == BytePairs.learn("aab aab", 258)


def test_special_tokens_follow_the_merges():
    pairs = BytePairs([(97, 98)], ["<stop>", "<pad>"])
    assert len(pairs) == 259
    assert pairs.stop == 257
    assert pairs.tokens[255:] == (b"\xff", b"ab", b"<stop>", b"<pad>")
    assert pairs.encode("<stop>").max() < 256
    assert pairs.decode([258, 256, 258, 97, 257, 98]) == "aba"
    assert pairs.decode([257]) == ""


@pytest.mark.parametrize(
    ("ids", "text"),
    [([], ""), ([0xC3], "\ufffd"), ([0xC3, 0xA9], "é"), (np.array([97], np.uint8), "a")],
)
def test_decode_replaces_what_is_no_utf8(ids, text):
    assert BytePairs([]).decode(ids) == text


def test_pieces_show_each_token():
    pairs = BytePairs([(104, 101), (32, 116)])
    assert pairs.pieces("the thé") == ["t", "he", " t", "h", "é[1/2]", "é[2/2]"]


@given(some_pairs)
def test_stored_and_read_again(pairs):
    read = BytePairs.from_dict(json.loads(json.dumps(pairs.to_dict())))
    assert read == pairs
    assert read.tokens == pairs.tokens
    assert pickle.loads(pickle.dumps(pairs)) == pairs


def test_is_frozen_and_can_be_a_key():
    with pytest.raises(AttributeError):
        PAIRS.merges = ()
    assert hash(PAIRS) == hash(BytePairs.from_dict(PAIRS.to_dict()))


def merged_one_by_one(ids, merges):
    """Return what the definition says: the earliest merge that fits, everywhere, and again."""
    joined = {pair: 256 + i for i, pair in enumerate(merges)}
    while fits := [joined[pair] for pair in itertools.pairwise(ids) if pair in joined]:
        pair, out = merges[min(fits) - 256], []
        while ids:
            n = 2 if tuple(ids[:2]) == pair else 1
            out.append(joined[pair] if n == 2 else ids[0])
            ids = ids[n:]
        ids = out
    return ids


@given(st.data(), st.text("ab", max_size=40))
def test_the_merges_of_a_word_are_those_of_the_definition(data, word):
    """Merges drawn at random, whatever learning would make of them: also aa + a and a + aa."""
    merges = []
    for i in range(data.draw(st.integers(0, 9))):
        known = st.sampled_from([97, 98, *range(256, 256 + i)])
        pair = data.draw(st.tuples(known, known))
        if pair in merges:
            break
        merges.append(pair)
    found = BytePairs(merges).encode(word).tolist()
    assert found == merged_one_by_one(list(word.encode()), merges)


def test_a_long_word_costs_little_more_than_its_length():
    """Counted, not timed: how often a pair is looked up."""

    class Counted(dict):
        n = 0

        def get(self, *key):
            self.n += 1
            return super().get(*key)

        def __contains__(self, key):
            self.n += 1
            return super().__contains__(key)

    pairs = BytePairs.learn("abab abcabc cab bca aabbcc " * 9, 290)
    word = "".join(np.random.default_rng(0).choice(list("abc"), 16_000))
    counted = Counted(pairs._joined)
    object.__setattr__(pairs, "_joined", counted)
    assert pairs.decode(pairs.encode(word)) == word
    assert counted.n < 10 * len(word)
