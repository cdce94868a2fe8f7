"""The tokenizers of published models, which the library `tokenizers` runs."""

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_bool, check_path
from attnbook.arrays.move import how_to_install
from attnbook.arrays.weights import check_part
from attnbook.data.byte_pairs import N_BYTES, PRE_TOKEN, BytePairs
from attnbook.data.ids import check_text, ids_before
from attnbook.data.shown_tokens import shown_tokens

BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""How SentencePiece writes a byte that is no token of its vocabulary."""


@dataclass(frozen=True, eq=False)
class HubTokenizer:
    """The tokenizer of a file ``tokenizer.json``, in which published models keep theirs.

    The Hugging Face library `tokenizers` reads the file and encodes texts, so that all splitting
    patterns and normalisations are the published ones. What this class adds is the bytes of every
    token, which `LanguageModel` needs to write a text token by token.

    Attributes
    ----------
    tokenizer : tokenizers.Tokenizer
        The tokenizer itself.
    stop_token : str
        The name of the token that ends a text.
    tokens : tuple of bytes
        What each token adds to a text, by its id; nothing for a special token.
    stop : int
        The id of `stop_token`.

    Raises
    ------
    ValueError
        If `stop_token` is not a token of the tokenizer.

    Notes
    -----
    The names of special tokens in a text are plain text unless ``encode(…, specials=True)`` asks
    for the tokens. A text comes back from the tokens byte for byte if the tokenizer does not
    normalise it; tokenizers of the SentencePiece kind, such as Llama 2's and Gemma's, may add a
    space before the first word.

    References
    ----------
    https://huggingface.co/docs/tokenizers
    """

    tokenizer: Any
    stop_token: str
    tokens: tuple[bytes, ...] = field(init=False, repr=False)
    stop: int = field(init=False)

    def __post_init__(self) -> None:
        check_text("stop_token", self.stop_token)
        stop = self.tokenizer.token_to_id(self.stop_token)
        if stop is None:
            raise ValueError(
                f"stop_token must be a token of the tokenizer, got {self.stop_token!r}"
            )
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "tokens", _bytes_of(self.tokenizer))

    @classmethod
    def from_file(cls, path: "str | os.PathLike", stop_token: str | None = None) -> "HubTokenizer":
        """Return the tokenizer of a file ``tokenizer.json``.

        Parameters
        ----------
        path : str or path
        stop_token : str, optional
            The name of the token that ends a text. By default, it is the ``eos_token`` of the file
            ``tokenizer_config.json`` in the same folder.

        Raises
        ------
        ImportError
            If the library `tokenizers` is missing; the message says how to install it.
        FileNotFoundError
            If there is no such file, or no `stop_token` and no ``tokenizer_config.json``.
        ValueError
            If the file is not that of a tokenizer, or the token that ends a text is not in it.
        """
        path = check_path("path", path)
        if not path.is_file():
            raise FileNotFoundError(f"path must be a file tokenizer.json, got {path}")
        try:
            tokenizer = _tokenizers().Tokenizer.from_str(path.read_text("utf-8"))
        except ImportError:
            raise
        except Exception as error:  # the library raises a bare Exception
            raise ValueError(f"{path} must be a file tokenizer.json, got {error}") from error
        return cls(tokenizer, _eos(path) if stop_token is None else stop_token)

    @classmethod
    def from_byte_pairs(cls, pairs: BytePairs) -> "HubTokenizer":
        """Return a tokenizer with the ids of `pairs`, for example to save it for `transformers`.

        ``tokenizer.save("tokenizer.json")`` writes it.
        """
        check_part("pairs", pairs, BytePairs)
        library = _tokenizers()
        letters = _letters()
        names = ["".join(letters[byte] for byte in x) for x in pairs.tokens[: pairs.stop]]
        merges = [(names[x], names[y]) for x, y in pairs.merges]
        model = library.models.BPE({name: i for i, name in enumerate(names)}, merges)
        tokenizer = library.Tokenizer(model)
        tokenizer.pre_tokenizer = library.pre_tokenizers.Sequence(
            [
                library.pre_tokenizers.Split(library.Regex(PRE_TOKEN.pattern), "isolated"),
                library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokenizer.decoder = library.decoders.ByteLevel()
        tokenizer.add_special_tokens(list(pairs.specials))
        return cls(tokenizer, pairs.specials[0])

    def __len__(self) -> int:
        """Return the number of ids, those of the special tokens included."""
        return len(self.tokens)

    def encode(self, text: str, *, specials: bool = False) -> Annotated[np.ndarray, "n"]:
        """Return the token ids of `text` as an int64 array; nothing is added at its ends.

        With `specials`, the name of a special token in `text` becomes this token, as a chat
        template needs it.
        """
        check_text("text", text)
        self.tokenizer.encode_special_tokens = not check_bool("specials", specials)
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return np.array(ids, dtype=np.int64)

    def decode(self, ids: Annotated[Any, "n"]) -> str:
        """Return the text of `ids` up to the first stop; other special tokens are ignored.

        Bytes that are not valid UTF-8 become the replacement character U+FFFD. An unknown id raises
        a ValueError.
        """
        numbers = ids_before(self.stop, ids, len(self), "the number of tokens")
        return b"".join(self.tokens[i] for i in numbers.tolist()).decode(errors="replace")

    def bytes_of(self, token: int) -> bytes:
        """Return what a token adds to a text: nothing for a special token or an unused id."""
        return self.tokens[token] if token < len(self.tokens) else b""

    def pieces(self, text: str) -> list[str]:
        """Return each token of `text` as a readable str, as `BytePairs.pieces` does."""
        return self.show(self.encode(text))

    def show(self, ids: Annotated[Any, "n"]) -> list[str]:
        """Return each token of `ids` as a readable str; a special token becomes its name."""
        numbers = ids_before(-1, ids, len(self), "the number of tokens").tolist()
        names = [self.tokens[i] or (self.tokenizer.id_to_token(i) or "").encode() for i in numbers]
        return shown_tokens(names)


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            f"HubTokenizer needs tokenizers: {how_to_install('tokenizers')}"
        ) from error
    return tokenizers


def _eos(path: Path) -> str:
    """Return the name of the token that ends a text, from the file beside `path`."""
    beside = path.with_name("tokenizer_config.json")
    if not beside.is_file():
        raise FileNotFoundError(
            f"stop_token must be given where there is no {beside.name} beside {path}"
        )
    token = json.loads(beside.read_text("utf-8")).get("eos_token")
    token = token.get("content") if isinstance(token, dict) else token
    if not isinstance(token, str):
        raise ValueError(f"stop_token must be given where {beside} has no eos_token, got {token!r}")
    return token


def _letters() -> list[str]:
    """Return the letter that stands for each byte in a vocabulary of bytes, as GPT-2 chose them."""
    kept = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in kept else next(others)) for byte in range(N_BYTES)]


def _bytes_of(tokenizer: Any) -> tuple[bytes, ...]:
    """Return what each token adds to a text."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    added = tokenizer.get_added_tokens_decoder()
    is_of_bytes = '"ByteLevel"' in json.dumps(json.loads(tokenizer.to_str())["decoder"])
    byte_of = {letter: bytes([byte]) for byte, letter in enumerate(_letters())}
    tokens = [b""] * (1 + max(vocabulary.values(), default=-1))
    for name, i in vocabulary.items():
        if i in added:
            tokens[i] = b"" if added[i].special else name.encode()
        elif is_of_bytes:
            tokens[i] = b"".join(byte_of.get(letter, letter.encode()) for letter in name)
        elif byte := BYTE.fullmatch(name):
            tokens[i] = bytes([int(byte[1], 16)])
        else:
            tokens[i] = name.replace("\u2581", " ").encode()  # how SentencePiece writes a space
    return tuple(tokens)
