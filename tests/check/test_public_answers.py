"""What is said of answers that public code has: conventions by whose they are, and mistakes."""

import numpy as np
import public_answers as public
import pytest
from all_answers import CHECKS
from report_table import assert_report, report_rows

import attnbook as ab
from attnbook.check.engine import run as engine

REPORTS = """
warmup_cosine(public.of_transformers)
    updates counted from 0: You follow another convention, that of Transformers
warmup_cosine(public.litgpt(0))
    updates counted from 0: llama2.c
warmup_cosine(public.litgpt())
    updates counted from 0; least rate: Two other conventions at once.
warmup_cosine(public.litgpt(0.05))
    updates counted from 0; least rate: Two other conventions at once.
warmup_cosine(public.nanogpt(0))
    warm-up over one update more: nanoGPT
warmup_cosine(public.nanogpt())
    warm-up over one update more; least rate: Two other conventions at once.
warmup_cosine(public.llmc)
    cosine counted from 0: llm.c
warmup_cosine(public.uva)
    line times cosine: UvA
warmup_cosine(lambda step, *given: public.uva(step + 1, *given))
    line times cosine: UvA
warmup_cosine(public.mingpt)
    least rate: minGPT
warmup_cosine(lambda step, steps, warmup, peak: public.of_transformers(step, steps, warmup, 1.0))
    updates counted from 0; peak forgotten: A mistake and another convention at once.
top_p(public.of_meta)
    sum above the threshold: If that sum is exactly the threshold, you keep one token more
top_p(public.down_to_the_cut)
    equal ones kept: as the sum needs
top_p(public.last_of_equals)
    right: agrees
repetition_penalty(public.counted)
    frequency penalty: OpenAI
repetition_penalty(public.counted_in_a_loop)
    frequency penalty: once for each time
repetition_penalty(lambda z, ids, c: z - c * np.isin(np.arange(len(z)), ids))
    presence penalty: OpenAI
encode_byte_pairs(public.in_sweeps)
    left to right: whatever its rank
encode_byte_pairs(public.in_sweeps_again)
    left to right: whatever its rank
learn_byte_pairs(public.learned(public.spelled_last))
    ties by spelling: CS336
learn_byte_pairs(public.learned(public.spelled_first))
    ties by spelling: CS336
learn_byte_pairs(public.learned(public.smallest, lambda m, tokens: [*range(256, len(tokens))]))
    new ids alone: pair
learn_byte_pairs(public.learned(public.smallest, lambda m, _: [256 + i for i in range(len(m))]))
    new ids alone: pair
multi_head_attention(public.packed(own=True))
    columns by head: GPT-NeoX
multi_head_attention(public.packed(own=False))
    columns by head: UvA
decoder_layer(public.decoder(value="before"))
    values from the target: memory
decoder_layer(public.decoder(value="start"))
    values from the target: memory
decoder_layer(public.decoder(query="start"))
    queries from the input of the layer: self-attention
decoder_layer(public.exchanged_if_both)
    masks swapped: if both are given
encoder_layer(public.final_norm)
    norm at the end: last sublayer
encoder_layer(public.norm_at_the_end_alone)
    norm at the end: last sublayer
layer_norm(lambda x, g, b: (x - x.mean(-1, keepdims=True))
/ np.sqrt(x.std(-1, keepdims=True) + 1e-5) * g + b)
    another root of the variance: already a root
layer_norm(lambda x, g, b: (x - x.mean(-1, keepdims=True))
/ (np.sqrt(x.std(-1, keepdims=True)) + 1e-5) * g + b)
    another root of the variance: already a root
layer_norm(lambda x, g, b: ab.layer_norm(x, g, b, epsilon=1e-12))
    epsilon of another library: BERT
rms_norm(lambda x, g: ab.rms_norm(x, 1 + g))
    one added to the gain: Gemma
softmax(lambda x: np.exp(x / np.exp(x).sum(-1, keepdims=True)))
    divided before the exponential: last
softmax(lambda x: np.exp(x / np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)))
    divided before the exponential: last
attention(public.filled(1e-10))
    mask multiplies the scores: small number such as 1e-10
masked_attention(public.filled(1e-6))
    mask multiplies the scores: fill in 0
masked_attention(lambda q, k, v, mask: ab.attention(q, k, v, ~mask))
    mask inverted: that of torch.nn.MultiheadAttention
causal_mask(lambda n: np.triu(np.full((n, n), -np.inf), 1))
    additive mask: that of torch.nn.Transformer
attention_weights(lambda q, k: ab.softmax(k @ k.mT / k.shape[-1] ** 0.5))
    keys compared with themselves: the same array
tiled_attention(public.in_one_matrix(public.on_the_diagonal))
    later tiles not masked: diagonal
grouped_attention(public.in_one_matrix(lambda i, j: (j > i) & (j < i // 16 * 16 + 16)))
    later tiles not masked: diagonal
cached_attention(public.with_cache(public.over_the_first_columns))
    aligned to the first key: first columns
decoder_only_block(public.with_epsilon(1e-2))
    another epsilon: not 1e-5
decoder_only_block(public.with_epsilon(1e-4))
    another epsilon: not 1e-5
ring_attention(public.ring)
    no maximum: you subtract no maximum
linear_vjp(lambda x, W, g: (W @ g.T, x.T @ g))
    another product: another order
linear_vjp(lambda x, W, g: (g @ W.T, x.T @ g.T))
    another product: another order
attention_vjp(public.vjp(query=lambda d, k: d @ k.mT))
    another product: another order
attention_vjp(public.vjp(weights=lambda g, v: v @ g.mT))
    another product: another order
positional_encoding(public.flax)
    frequencies to the very end: Flax
positional_encoding(lambda n, d: public.flax(n, d, lambda width: max(width, 1)))
    frequencies to the very end: tensor2tensor
positional_encoding(lambda n, d: ab.positions.sinusoidal(n, d).astype("f2").astype("f8"))
    few digits: right one to 4 digits
positional_encoding(lambda n, d: ab.positions.sinusoidal(n, d, interleaved=True),
interleaved=False)
    interleaved: that of the original paper
rotary(public.rotary_of("f2"))
    few digits: float16
rotary(public.rotary_of("f8", lambda x: x.astype("f2").astype("f8")))
    angles in half precision: late position
rotary(lambda x: ab.positions.rotary(x, interleaved=True), interleaved=False)
    interleaved: GPT-J
rotary(lambda x: ab.positions.rotary(x), interleaved=True)
    halves: GPT-NeoX
softmax(lambda x: np.round(ab.softmax(x), 3))
    few digits: right one to 3 digits
attention(lambda q, k, v: ab.attention(*(x.astype("f2") for x in (q, k, v))).astype(q.dtype))
    few digits: float16
"""


@pytest.mark.parametrize(("call", "mistake", "said"), report_rows(REPORTS))
def test_what_public_code_has_is_told_by_its_name(call, mistake, said, monkeypatch):
    monkeypatch.setattr(engine, "present", lambda: ["numpy"])
    assert_report(call, mistake, said, {"ab": ab, "np": np, "public": public})


def test_a_convention_says_whose_it_is_and_calls_nothing_wrong():
    conventions = {m.message for c in CHECKS.values() for m in c.mistakes if m.convention}
    assert len(conventions) > 20
    for message in conventions:
        assert "ou follow another convention, that of " in message
        assert not any(word in message for word in ("wrong", "mistake", "error")), message
