"""Tokenizers of published files, made here: by bytes as GPT-2's, and of the SentencePiece kind."""

import json
import sys

import numpy as np
import pytest
from error_table import error_test
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import trainers as of_tokenizers
from transformers import PreTrainedTokenizerFast

from attnbook.data import BytePairs, HubTokenizer
from attnbook.models import LanguageModel, writer

LINES = [
    "The then-there: thirty thieves thought, they'd thrilled the throne…\n",
    "né 12 中 the end",
]
END, BEGIN = "<|end|>", "<|begin|>"


def of_bytes():
    """Return a tokenizer as GPT-2's and Llama 3's: letters for bytes, and special tokens."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = of_tokenizers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=[BEGIN, END], show_progress=False
    )
    made.train_from_iterator(LINES, trainer)
    made.add_tokens([AddedToken("thou", special=False)])
    return made


def of_sentencepiece():
    """Return a tokenizer as Gemma's: ▁ for a space, and bytes where a character has no token."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    names = ["<unk>", BEGIN, END, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = of_tokenizers.BpeTrainer(vocab_size=330, special_tokens=names, show_progress=False)
    made.train_from_iterator(LINES, trainer)
    stored = json.loads(made.to_str())
    for token in stored["added_tokens"]:
        token["special"] = not token["content"].startswith("<0x")
    stored["added_tokens"] = [token for token in stored["added_tokens"] if token["special"]]
    made = Tokenizer.from_str(json.dumps(stored))
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return made


KINDS = {"bytes": of_bytes(), "sentencepiece": of_sentencepiece()}
plain = st.text(st.sampled_from("abThethou' s12.,:-_\n\té中😀…"), max_size=23)


@pytest.fixture(scope="module", params=KINDS)
def judge(request):
    return KINDS[request.param]


@given(plain | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁")))
@example("the thou throne")
@example(f"the{END}end")
def test_a_text_has_the_ids_of_the_judge_and_comes_back_by_its_bytes(judge, text):
    ours = HubTokenizer(judge, END)
    ids = ours.encode(text)
    assert ids.dtype == np.int64
    judge.encode_special_tokens = True
    assert ids.tolist() == judge.encode(text, add_special_tokens=False).ids
    assert b"".join(map(ours.bytes_of, ids.tolist())) == text.encode()
    assert ours.decode(ids) == text == judge.decode(ids.tolist())
    assert len(ours.pieces(text)) == len(ids)


def test_special_tokens(judge):
    ours = HubTokenizer(judge, END)
    assert len(ours) == judge.get_vocab_size(with_added_tokens=True)
    text = f"{BEGIN}the{END}end"
    with_specials = ours.encode(text, specials=True)
    assert with_specials[0] == judge.token_to_id(BEGIN)
    assert ours.stop == judge.token_to_id(END) == with_specials[-1 - len(ours.encode("end"))]
    assert ours.decode(with_specials) == "the"  # up to the stop
    assert ours.show(with_specials)[0] == BEGIN
    assert ours.stop not in ours.encode(text)  # plain text
    assert ours.bytes_of(len(ours) + 5) == b""  # a row of an embedding that no token uses


def test_a_file_is_read_with_the_end_of_its_config(judge, tmp_path):
    path = tmp_path / "tokenizer.json"
    judge.save(str(path))
    for eos in (END, {"content": END, "special": True}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
        read = HubTokenizer.from_file(path)
        assert (read.stop, read.tokens) == (judge.token_to_id(END), HubTokenizer(judge, END).tokens)
    assert HubTokenizer.from_file(path, BEGIN).stop == judge.token_to_id(BEGIN)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(path))
    text = "The thirty 中 thieves"
    assert read.encode(text).tolist() == theirs.encode(text, add_special_tokens=False)


@given(plain)
def test_byte_pairs_become_a_tokenizer_of_the_library(text):
    pairs = BytePairs.learn(LINES, 280, ["<|endoftext|>", "<|other|>"])
    hub = HubTokenizer.from_byte_pairs(pairs)
    assert (len(hub), hub.stop) == (len(pairs), pairs.stop)
    np.testing.assert_array_equal(hub.encode(text), pairs.encode(text))
    assert hub.tokens[: pairs.stop] == pairs.tokens[: pairs.stop]


def test_a_model_writes_with_it():
    model = writer()
    hub = HubTokenizer.from_byte_pairs(model.tokenizer)
    other = LanguageModel(model.weights, hub, model.context)
    assert other.write("ROMEO:", 40, rng=5) == model.write("ROMEO:", 40, rng=5)
    assert other.tokens("To be, né") == model.tokens("To be, né")
    fewer = HubTokenizer.from_byte_pairs(BytePairs(model.tokenizer.merges[:-7]))
    padded = LanguageModel(model.weights, fewer, model.context)  # rows that no token uses
    assert isinstance(padded.write("ROMEO:", 20), str)


ERRORS = """
HubTokenizer(JUDGE, "<|none|>")
    ValueError: stop_token must be a token of the tokenizer, got '<|none|>'
HubTokenizer(JUDGE, 3)
    TypeError: stop_token must be a str, got int
HubTokenizer(JUDGE, END).encode(3)
    TypeError: text must be a str, got int
HubTokenizer(JUDGE, END).encode("the", specials=1)
    TypeError: specials must be a bool, got int
HubTokenizer(JUDGE, END).decode([9999])
    ValueError: ids must be below the number of tokens, 301, got 9999
HubTokenizer.from_file("nowhere/tokenizer.json")
    FileNotFoundError: path must be a file tokenizer.json, got nowhere/tokenizer.json
HubTokenizer.from_file(3)
    TypeError: path must be a path or a str, got int
LanguageModel(writer().weights, HubTokenizer(BIG, "x0"), 9)
    ValueError: tokenizer must have 2048 tokens to match weights, got 2049
"""

BIG = Tokenizer(models.WordLevel({f"x{i}": i for i in range(2049)}, unk_token="x0"))
NAMES = {"JUDGE": KINDS["bytes"], "END": END, "BIG": BIG}
NAMES |= {"HubTokenizer": HubTokenizer, "LanguageModel": LanguageModel, "writer": writer}
test_refused = error_test(ERRORS, NAMES)


def test_a_file_of_another_kind_and_a_missing_end(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer.json must be a file tokenizer.json, got "):
        HubTokenizer.from_file(path)
    KINDS["bytes"].save(str(path))
    message = r"^stop_token must be given where there is no tokenizer_config.json beside "
    with pytest.raises(FileNotFoundError, match=message):
        HubTokenizer.from_file(path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    message = r"^stop_token must be given where .* has no eos_token, got None$"
    with pytest.raises(ValueError, match=message):
        HubTokenizer.from_file(path)


def test_without_the_library_it_says_how_to_get_it(tmp_path, monkeypatch):
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        ImportError, match=r"^HubTokenizer needs tokenizers: pip install tokenizers$"
    ):
        HubTokenizer.from_file(tmp_path / "tokenizer.json")
