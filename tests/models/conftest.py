"""The published sentence encoder, for the tests that need its weights."""

import os

import pytest

from attnbook.models import read_safetensors, sentence_encoder, store


@pytest.fixture(scope="session")
def published():
    """The encoder, and its judge: `transformers` with the same file."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    judges = pytest.importorskip("transformers", reason="transformers is not installed")
    try:
        files = store.files("sentence-encoder")
    except (FileNotFoundError, ValueError) as error:
        if os.environ.get("ATTNBOOK_REQUIRE_MODELS"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    encoder = sentence_encoder()
    config = judges.BertConfig(
        hidden_size=384, num_hidden_layers=6, intermediate_size=1536, attn_implementation="eager"
    )
    judge = judges.BertModel(config).eval()
    arrays = read_safetensors(files["model.safetensors"])
    judge.load_state_dict(
        {k: torch.tensor(x) for k, x in arrays.items() if k != "embeddings.position_ids"}
    )
    return encoder, judge, judges.BertTokenizerFast(vocab=str(files["vocab.txt"]))
