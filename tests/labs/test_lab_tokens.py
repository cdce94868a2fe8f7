"""Tokens in a picture: a part of a character names its character, as in the package."""

import re

import numpy as np
import pytest
from figures import caller, fits, lab_data, lab_named

from attnbook.data.byte_pairs import BytePairs
from attnbook.data.shown_tokens import shown_tokens
from attnbook.models import writer

SIGNS = [
    *"ab \n\t[1/2]",
    "é",
    "ß",
    "\u0301",
    "\u20dd",
    "中",
    "あ",
    "한",
    "\u3000",
    "\xa0",
    "½",
    "🙂",
]
SIGNS += ["👩\u200d👧", "❤\ufe0f", "𝔘", "e\u0301", "\x07"]
OWN = """
    const own = new modules["writer.js"].Writer(buffer).tokenizer;
    const tokens = modules["tokens.js"];
"""


@pytest.fixture(scope="module")
def call():
    files = ("arrays.js", "tokens.js", "writer.js")
    return caller(files, lab_data.made("writer.bin"), OWN)


@pytest.fixture(scope="module")
def tokenizer():
    return writer().tokenizer


@pytest.fixture(scope="module")
def texts(tokenizer):
    """Return ids of whole texts, of texts that lost some, and of bytes at random."""
    random = np.random.default_rng(0)
    whole = [tokenizer.encode("".join(random.choice(SIGNS, size=8))).tolist() for _ in range(200)]
    cut = [[i for i in ids if random.random() > 0.2] for ids in whole]
    return [*whole, *cut, *(random.integers(0, 256, size=9).tolist() for _ in range(100))]


def test_labels_are_those_of_the_package(call, texts, tokenizer):
    labels = call("texts => texts.map(ids => tokens.labels(own.pieces(ids)))", texts)
    assert labels == [tokenizer.show(ids) for ids in texts]
    after = """texts => texts.map((ids) => {
        const pieces = own.pieces(ids);
        return tokens.labelAfter(pieces.slice(0, -1), pieces.at(-1));
    })"""
    some = [ids for ids in texts if ids]
    assert call(after, some) == [tokenizer.show(ids)[-1] for ids in some]


def test_no_label_is_a_replacement_character(call, texts, tokenizer):
    for ids in texts:
        tokens = tokenizer.show(ids)
        assert all(tokens)
        assert not re.search("[\ufffd\ud800-\udfff]", "".join(tokens))
    shown = call("texts => texts.map(ids => tokens.textOf(own.pieces(ids)))", texts)
    assert not re.search("[\ufffd\ud800-\udfff]", "".join(shown))


@pytest.mark.parametrize("sign", ["é", "\u0301", "中", "🙂", "\u200d", "\ufe0f", "\xa0", "𝔘"])
def test_the_parts_of_a_character_count_its_bytes(sign):
    size = len(sign.encode())
    labels = shown_tokens(bytes([byte]) for byte in sign.encode())
    (name,) = {label.partition("[")[0] for label in labels}
    assert [label.removeprefix(name) for label in labels] == [
        f"[{i + 1}/{size}]" for i in range(size)
    ]
    assert sign in name or name == f"U+{ord(sign):04X}"


@pytest.mark.parametrize(
    ("tokens", "labels"),
    [
        ([], []),
        ([b"to", b" be"], ["to", " be"]),
        (["é".encode()], ["é"]),
        ([b" \xc3", b"\xa9t"], [" é[1/2]", "é[2/2]t"]),
        ([b"\xf0", b"\x9f\x99\x82!"], ["🙂[1/4]", "🙂[2–4/4]!"]),
        ([b"a\xe4\xb8", b"\xad\xe4", b"\xb8\xad"], ["a中[1–2/3]", "中[3/3]中[1/3]", "中[2–3/3]"]),
        ([b"\xc3"], ["<0xC3>"]),
        ([b"\xa9", b"a", b"\xf0\x9f", b"\x99"], ["<0xA9>", "a", "<0xF0><0x9F>", "<0x99>"]),
    ],
)
def test_tokens_of_several_bytes(tokens, labels, call):
    assert shown_tokens(tokens) == labels
    escaped = [token.decode(errors="surrogateescape") for token in tokens]
    halves = [[ord(sign) for sign in token] for token in escaped]
    own = "codes => tokens.labels(codes.map(own => String.fromCodePoint(...own)))"
    assert call(own, halves) == labels


def test_tokens_of_merges_across_characters():
    pairs = BytePairs([(0x20, 0xC3), (0xC3, 0xA9)])
    assert pairs.pieces("é éa") == ["é", " é[1/2]", "é[2/2]", "a"]
    assert pairs.show([0xC3, pairs.stop]) == ["<0xC3>", "<|endoftext|>"]


@pytest.mark.parametrize(
    ("label", "seen", "beside"),
    [
        ("é[1/2]", "é[1/2]", "é[1/2]"),
        ("é[2/2]", "é[2/2]", "[2/2]"),
        ("🙂[3/4]", "🙂[3/4]", "[3/4]"),
        ("◌\u0301[2/2]", "◌\u0301[2/2]", "[2/2]"),
        ("U+200D[2–3/3]", "U+200D[2–3/3]", "[2–3/3]"),
        (" be", "be", "be"),
        ("", "■", "■"),
        ("\n\n", "↵↵", "↵↵"),
        ("  ", "␣", "␣"),
        ("\x07", "U+0007", "U+0007"),
        ("##\u093e", "##◌\u093e", "##◌\u093e"),
        ("##ing", "##ing", "##ing"),
    ],
)
def test_what_is_seen_of_a_label(label, seen, beside, call):
    assert call("label => [tokens.seen(label), tokens.besides(label)]", label) == [seen, beside]


def test_a_long_word_is_cut_between_characters(call):
    cut = call("() => [3, 4, 5, 6].map(n => tokens.shortened('🙂中é🙂', n * tokens.LETTER))")
    assert cut == ["🙂…", "🙂…", "🙂中…", "🙂中é…"]
    places = call("labels => tokens.flow(labels, 300)", ["a", "é[1/2]", "é[2/2]", " b"])
    ends = [place["left"] + place["wide"] for place in places]
    gaps = [place["left"] - end for place, end in zip(places[1:], ends, strict=False)]
    np.testing.assert_allclose(gaps, [2, 0, 6])


@pytest.mark.parametrize("width", [340, 680])
def test_a_sentence_of_the_reader_shows_each_character_once_in_its_strip(width, call, tokenizer):
    lab = lab_named("heads")
    text = "Á é 中 🙂 e\u0301 x"
    ids = tokenizer.encode(text)
    tokens = tokenizer.pieces(text)
    A = [[[[1000 // (i + 1)] * (i + 1) for i in range(len(ids))]] * 6] * 6
    place = {"of": "", "model": "writer", "tokens": tokens, "A": A}
    state = fits(lab, sentence=None, place=place, token=2)
    markup = lab.call("(state, width) => lab.draw(state, lab.numbers(state), width)", state, width)
    strip = re.findall(r'data-part="token-.*?<text[^>]*>([^<]*)</text>', markup)
    assert len(strip) == len(tokens)
    assert re.sub(r"\[[^]]*]", "", "".join(strip)).replace("␣", "") == "Áé中🙂e◌\u0301x"
    assert "\ufffd" not in markup
