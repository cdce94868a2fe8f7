"""Whole models with learned weights, which run on the functions of this package.

The names are imported when they are first used. No module here has the name of its function,
because the function would hide it.
"""

import importlib
from typing import Any

_HOMES = {
    "BertWeights": "bert_encoder",
    "LanguageModel": "language_model",
    "RecordedSentences": "recorded",
    "SentenceEncoder": "sentences",
    "bert": "bert_encoder",
    "draft_writer": "language_model",
    "from_folder": "downloaded",
    "from_transformers": "hugging_face",
    "mean_vectors": "sentences",
    "read_safetensors": "safetensors_file",
    "recorded_sentences": "recorded",
    "sentence_encoder": "sentences",
    "writer": "language_model",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
