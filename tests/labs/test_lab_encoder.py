"""The sentence encoder in JavaScript attends as the package's own does."""

import numpy as np
import pytest
from cases import recorded
from figures import caller, lab_data

from attnbook.data.word_pieces import WordPieces
from attnbook.models import BertWeights, SentenceEncoder, sentence_encoder
from attnbook.models.bert_encoder import bert
from attnbook.normalization.layer_norm import LayerNormWeights
from attnbook.transformers.stack import EncoderWeights

LETTERS = "abcdefghijklmnopqrstuvwxyzσéß中文"
PIECES = WordPieces(
    [
        *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "to", "be", "##ing", "the", "ion", "##ion"),
        *LETTERS,
        *(f"##{letter}" for letter in LETTERS),
        *"0123456789.,:;!?'\"-–()[]$+~_`|",
    ]
)
AWKWARD = (
    "",
    "To BE, or not to-be: that is the question!",
    "ÉTOILE Straße naïve İstanbul ΟΔΥΣΣΕΥΣ",
    "中文 in the 中中x",
    "being  being\tto\u2003be\x0bto\x1cbe\u200bto\ufeff",
    "[SEP] $5 + ~x_y` “quoted” – dash",
    "🙂 to 🙂be",
    "ab" * 60,
)


OWN = """
const own = new modules["encoder.js"].Encoder(buffer);
function attention(ids) {
    const steps = own.read(ids);
    for (;;) {
        const { done, value } = steps.next();
        if (done) return value.map(layer => layer.map(head => head.map(row => [...row])));
    }
}
"""


def caller_of(content):
    """Return what calls functions that know an encoder, `own`, from a file for the page."""
    return caller(("arrays.js", "encoder.js"), content, OWN)


def random_weights(seed):
    random = np.random.default_rng(seed)
    layers = EncoderWeights.init(random, 3, 14, 2, 19, norm="post", activation="gelu")
    tables = (random.normal(size=(n, 14)) for n in (len(PIECES), 13, 2))
    weights = BertWeights(*tables, LayerNormWeights.init(14), layers)
    shaken = {name: x + random.normal(size=x.shape) / 5 for name, x in weights.arrays().items()}
    return weights.with_arrays({name: x.astype(np.float32) for name, x in shaken.items()})


def as_stored(weights):
    """Return the weights with the numbers that the file has: a byte each, or half precision."""

    def stored(name, x):
        if x.ndim == 1:
            return x.astype(np.float16)
        parts = lab_data.in_bytes("x", x, axis=1 if "embedding" in name else 0)
        return parts["x"] * parts["x.scale"].astype(np.float32)

    arrays = weights.arrays()
    types = arrays["token_type_embedding"]
    arrays["position_embedding"] = arrays["position_embedding"] + types[0]
    found = {name: stored(name, x).astype(np.float32) for name, x in arrays.items()}
    return weights.with_arrays(found | {"token_type_embedding": np.zeros_like(types)})


@pytest.mark.parametrize("seed", range(5))
def test_heads_of_random_weights(seed):
    weights = random_weights(seed)
    call = caller_of(lab_data.encoder_file(weights, PIECES.tokens))
    ids = np.random.default_rng(seed).integers(len(PIECES), size=2 + 2 * seed)
    _, expected = recorded(bert, ids, as_stored(weights))
    found = call("ids => attention(ids)", ids.tolist())
    np.testing.assert_allclose(found, np.stack(expected), atol=2e-5)
    _, exact = recorded(bert, ids, weights)
    assert np.abs(found - np.stack(exact)).max() < 0.06


def test_tokens_of_awkward_texts():
    call = caller_of(lab_data.encoder_file(random_weights(0), PIECES.tokens))
    random = np.random.default_rng(0)
    signs = [*"abtToeéß. '-\n中Σ1", "being", "ion", " "]
    drawn = ["".join(random.choice(signs, size=10)) for _ in range(300)]
    for text in [*AWKWARD, *drawn]:
        expected = PIECES.encode(text).tolist()
        assert call("text => own.tokenizer.encode(text)", text) == expected, repr(text)
    cut = call("text => own.tokenizer.encode(text, 6)", AWKWARD[1])
    assert cut == PIECES.encode(AWKWARD[1], 6).tolist()


def test_heads_of_the_published_weights():
    try:
        encoder = sentence_encoder()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert isinstance(encoder, SentenceEncoder)
    call = caller_of(lab_data.encoder_of_the_site())
    for text in ("To be, or not to be: that is the question:", "The cat sat on the mat."):
        ids = call("text => own.tokenizer.encode(text)", text)
        assert ids == encoder.tokenizer.encode(text).tolist()
        found = np.array(call("ids => attention(ids)", ids))
        exact = encoder.attention(text)
        print(np.abs(found - exact).max(), np.abs(found - exact).mean())
        assert np.abs(found - exact).max() < 0.1
        assert np.abs(found - exact).mean() < 0.005
