"""BERT: an encoder, post-norm, over three embeddings that are added and normalised."""

from attnbook.models.architecture import Architecture, Config, sizes_of
from attnbook.models.bert_encoder import BertWeights

NAMES = {
    "token_embedding": "embeddings.word_embeddings.weight",
    "position_embedding": "embeddings.position_embeddings.weight",
    "token_type_embedding": "embeddings.token_type_embeddings.weight",
    "embedding_norm.gain": "embeddings.LayerNorm.weight",
    "embedding_norm.bias": "embeddings.LayerNorm.bias",
    "encoder.layers.*.self_attention.W_Q": "encoder.layer.*.attention.self.query.weight.T",
    "encoder.layers.*.self_attention.W_K": "encoder.layer.*.attention.self.key.weight.T",
    "encoder.layers.*.self_attention.W_V": "encoder.layer.*.attention.self.value.weight.T",
    "encoder.layers.*.self_attention.W_O": "encoder.layer.*.attention.output.dense.weight.T",
    "encoder.layers.*.self_attention.b_Q": "encoder.layer.*.attention.self.query.bias",
    "encoder.layers.*.self_attention.b_K": "encoder.layer.*.attention.self.key.bias",
    "encoder.layers.*.self_attention.b_V": "encoder.layer.*.attention.self.value.bias",
    "encoder.layers.*.self_attention.b_O": "encoder.layer.*.attention.output.dense.bias",
    "encoder.layers.*.self_attention_norm.gain": (
        "encoder.layer.*.attention.output.LayerNorm.weight"
    ),
    "encoder.layers.*.self_attention_norm.bias": "encoder.layer.*.attention.output.LayerNorm.bias",
    "encoder.layers.*.feed_forward.W_1": "encoder.layer.*.intermediate.dense.weight.T",
    "encoder.layers.*.feed_forward.b_1": "encoder.layer.*.intermediate.dense.bias",
    "encoder.layers.*.feed_forward.W_2": "encoder.layer.*.output.dense.weight.T",
    "encoder.layers.*.feed_forward.b_2": "encoder.layer.*.output.dense.bias",
    "encoder.layers.*.feed_forward_norm.gain": "encoder.layer.*.output.LayerNorm.weight",
    "encoder.layers.*.feed_forward_norm.bias": "encoder.layer.*.output.LayerNorm.bias",
}
"""Names here: there. All matrices lie as (out, in); the embeddings have a row a token, as here."""

OLD_ENDS = {".gamma": ".weight", ".beta": ".bias"}
"""What gains and biases of normalisations are called in the first files."""

HARMLESS = (
    r"embeddings\.position_ids",  # 0, 1, 2, …
    r"pooler\.dense\.(weight|bias)",  # what stands after the last layer, as the heads do
    r"cls\.(predictions|seq_relationship)\..+",
)
"""A counter, the pooler, and the heads of pre-training, which are no part of the encoder."""


def bert(config: Config) -> Architecture:
    """Return the architecture, or raise where `config` asks for what this package lacks."""
    config.only(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    d_model, n_heads = config.size("hidden_size"), config.size("num_attention_heads")
    tables = {
        "V": config.size("vocab_size"),
        "N": config.size("max_position_embeddings"),
        "n_types": config.size("type_vocab_size"),
    }
    return Architecture(
        BertWeights,
        names=NAMES,
        sizes={**sizes_of(d_model, config.size("intermediate_size"), n_heads), **tables},
        plain={
            "n_heads": n_heads,
            "activation": config.activation("hidden_act", "gelu"),
            "epsilon": config.number("layer_norm_eps", 1e-12),
            "norm": "post",
        },
        layers={"encoder.layers": config.size("num_hidden_layers", at_least=0)},
        prefix="bert.",
        ends=OLD_ENDS,
        harmless=HARMLESS,
    )
