"""Right answers in many styles: with loops, with einsum, by position, for one library alone."""

import math

import attention_answers as attention
import layer_answers as layers
import numpy as np
import pytest
import transformer_answers as transformer
from attention_answers import right_attention, right_heads, sm

import attnbook as ab


def einsum_weights(Q, K, mask=None):
    scores = np.einsum("...qd,...kd->...qk", Q, K) / np.sqrt(Q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    highest = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isinf(highest), 0, highest))
    return e / np.maximum(e.sum(-1, keepdims=True), 1e-300)


def torch_attention(query, key, value, mask=None):
    torch = pytest.importorskip("torch")
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def torch_vjp(query, key, value, grad_output):
    torch = pytest.importorskip("torch")
    inputs = [x.clone().requires_grad_() for x in (query, key, value)]
    return torch.autograd.grad(torch_attention(*inputs), inputs, grad_output)


def split_in_loops(x, n_heads):
    n, width = x.shape
    d = width // n_heads
    out = np.zeros((n_heads, n, d))
    for i in range(n_heads):
        for t in range(n):
            for c in range(d):
                out[i, t, c] = float(x[t, i * d + c])
    return out


def split_batches_alone(x, n_heads):
    batch, n, width = x.shape
    return x.reshape(batch, n, n_heads, width // n_heads).swapaxes(1, 2)


def heads_as_a_sum(query, key, value, W_Q, W_K, W_V, W_O, n_heads, *, mask=None):
    """Add up what each head writes through its own rows of W_O."""
    if mask is not None and mask.ndim == 4:
        mask = mask[:, 0]
    return sum(
        right_attention(
            query @ attention.columns(W_Q, n_heads, i),
            key @ attention.columns(W_K, n_heads, i),
            value @ attention.columns(W_V, n_heads, i),
            mask,
        )
        @ attention.columns(W_O.mT, n_heads, i).mT
        for i in range(n_heads)
    )


def heads_of_batches_alone(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    batch, n_q, d_model = query.shape
    q, k, v = (
        (x @ W).reshape(batch, -1, n_heads, d_model // n_heads).swapaxes(1, 2)
        for x, W in ((query, W_Q), (key, W_K), (value, W_V))
    )
    heads = right_attention(q, k, v, mask)
    return heads.swapaxes(1, 2).reshape(batch, n_q, d_model) @ W_O


def masked_in_loops(query, key, value, mask):
    output = np.zeros((len(query), value.shape[-1]))
    for i in range(len(query)):
        seen = [j for j in range(len(key)) if mask[i, j]]
        if not seen:
            continue
        scores = [float(key[j] @ query[i]) / math.sqrt(key.shape[-1]) for j in seen]
        powers = [math.exp(s - max(scores)) for s in scores]
        for j, power in zip(seen, powers, strict=True):
            output[i] += power / sum(powers) * np.asarray(value[j])
    return output


def masked_batches_alone(query, key, value, mask):
    batch, n_q, _d_k = query.shape
    xp = attention.array_namespace(query)
    seen = xp.broadcast_to(mask, (batch, n_q, key.shape[1]))
    return right_attention(query, key, value, seen)


def torch_heads(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    q, k, v = (
        (x @ W).unflatten(-1, (n_heads, -1)).transpose(-3, -2)
        for x, W in ((query, W_Q), (key, W_K), (value, W_V))
    )
    return torch_attention(q, k, v, mask).transpose(-3, -2).flatten(-2) @ W_O


def torch_masked(query, key, value, mask):
    torch = pytest.importorskip("torch")
    additive = torch.zeros(mask.shape, dtype=query.dtype).masked_fill(~mask, -math.inf)
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=additive)


def by_the_package(first, second):
    parts = (ab.RunningSoftmax(*part, part[0].dtype) for part in (first, second))
    merged = next(parts).merge(next(parts))
    return merged.maximum, merged.total, merged.weighted


def in_loops(first, second):
    (m1, z1, u1), (m2, z2, u2) = first, second
    m, z, u = np.empty_like(m1), np.empty_like(z1), np.empty_like(u1)
    for i in range(len(m)):
        a, b = float(m1[i, 0]), float(m2[i, 0])
        m[i] = max(a, b)
        f1 = 0.0 if a == -math.inf else math.exp(a - max(a, b))
        f2 = 0.0 if b == -math.inf else math.exp(b - max(a, b))
        z[i] = f1 * z1[i] + f2 * z2[i]
        u[i] = f1 * u1[i] + f2 * u2[i]
    return [m, z, u]


RIGHT = {
    "softmax": (
        ab.softmax,
        attention.right_softmax,
        attention.loop_softmax,
        lambda x: np.exp(x - np.logaddexp.reduce(x, axis=-1, keepdims=True)),
    ),
    "attention_weights": (
        ab.attention_weights,
        attention.right_weights,
        attention.loop_weights,
        einsum_weights,
        lambda q, k: sm(q @ k.T / q.shape[1] ** 0.5) if q.ndim == 2 else 1 / 0,
    ),
    "attention": (
        ab.attention,
        right_attention,
        attention.loop_attention,
        lambda Q, K, V, *, mask=None: np.einsum(
            "...qk,...kd->...qd", einsum_weights(Q, K, mask), V
        ),
    ),
    "single_head": (
        ab.single_head_attention,
        attention.right_head,
        attention.loop_head,
        lambda x, y, z, A, B, C, W_O: right_attention(x @ A, y @ B, z @ C) @ W_O,
        lambda x, y, z, A, B, C, W_O, mask=None: right_attention(x @ A, y @ B, z @ C, mask) @ W_O,
        lambda x, y, z, A, B, C, W_O=None, *, mask=None: (
            right_attention(x @ A, y @ B, z @ C, mask)
            @ (np.eye(C.shape[1]) if W_O is None else W_O)
        ),
        lambda x, y, z, A, B=None, C=None: right_attention(x @ A, y @ B, z @ C),
        lambda x, y, z, weights: ab.single_head_attention(x, y, z, weights),
        lambda x, y, z, parameters, mask=None: ab.single_head_attention(x, y, z, parameters, mask),
        lambda x, y, z, parameters: ab.single_head_attention(x, y, z, parameters),
        lambda x, y, z, weights, mask=None, dropout=0, training=False: ab.single_head_attention(
            x, y, z, weights, mask
        ),
    ),
    "attention_vjp": (
        ab.attention_vjp,
        lambda q, k, v, g: attention.gradients(q, k, v, g),
        attention.loop_vjp,
    ),
    "split_heads": (
        ab.split_heads,
        attention.right_split,
        lambda x, n_heads: np.stack(np.split(np.asarray(x), n_heads, axis=-1), axis=-3),
        split_in_loops,
        split_batches_alone,
    ),
    "multi_head_attention": (
        ab.multi_head_attention,
        right_heads,
        heads_as_a_sum,
        heads_of_batches_alone,
        lambda x, y, z, weights: ab.multi_head_attention(x, y, z, weights),
        lambda x, y, z, parameters, mask=None: ab.multi_head_attention(x, y, z, parameters, mask),
        lambda x, y, z, W_Q, W_K, W_V, W_O, mask=None, *, n_heads: right_heads(
            x, y, z, W_Q, W_K, W_V, W_O, n_heads, mask
        ),
        lambda x, y, z, W_Q, W_K, W_V, W_O, mask=None, n_heads=8: right_heads(
            x, y, z, W_Q, W_K, W_V, W_O, n_heads, mask
        ),
    ),
    "causal_mask": (
        ab.masking.causal,
        attention.right_causal,
        lambda n_q, n_k: np.arange(n_k) <= np.arange(n_q)[:, None] + n_k - n_q,
        lambda rows, columns: ~np.triu(np.ones((rows, columns), dtype=bool), columns - rows + 1),
        lambda n: np.tri(n, dtype=bool),
        lambda n: np.array([[j <= i for j in range(n)] for i in range(n)]).reshape(n, n) == 1,
    ),
    "masked_attention": (
        ab.attention,
        right_attention,
        masked_in_loops,
        lambda q, k, v, mask: (
            attention.safe_softmax(attention.right_scores(q, k) + np.where(mask, 0.0, -np.inf)) @ v
        ),
        masked_batches_alone,
    ),
    "merge_attention": (by_the_package, in_loops),
    "layer_norm": (
        ab.layer_norm,
        transformer.right_norm,
        transformer.loop_norm,
        transformer.norm_by_numpy,
        lambda x, gain, bias, epsilon: ab.layer_norm(x, gain, bias, epsilon=epsilon),
        lambda x, gain, bias, eps=1e-3: ab.layer_norm(x, gain, bias, epsilon=eps),
        lambda x: ab.layer_norm(x),
    ),
    "positional_encoding": (
        ab.positions.sinusoidal,
        transformer.table(transformer.right_angle),
        lambda n, d: np.hstack(
            [f(np.outer(range(n), 1e4 ** -np.arange(0, 1, 2 / d))) for f in (np.sin, np.cos)]
        ),
    ),
    "positional_encoding, interleaved": (
        lambda n, d_model: ab.positions.sinusoidal(n, d_model, interleaved=True),
        transformer.table(transformer.right_angle, interleaved=True),
        lambda n, d: np.sin(
            np.outer(np.arange(n), 1e4 ** (-2 * (np.arange(d) // 2) / d))
            + np.arange(d) % 2 * np.pi / 2
        ),
    ),
    "embed": (
        ab.embed,
        lambda ids, E: E[ids] * E.shape[-1] ** 0.5,
        transformer.embed_in_loops,
        transformer.embed_batches,
        lambda ids, E: transformer.one_hot(ids, E) @ E * E.shape[-1] ** 0.5,
    ),
    "feed_forward": (
        ab.feed_forward,
        transformer.FEED.but(),
        transformer.ff_in_loops,
        lambda x, weights: ab.feed_forward(x, weights),
        lambda x, A, a, B, b: np.einsum("...f,fd->...d", np.maximum(0, x @ A + a), B) + b,
    ),
    "encoder_layer": (
        ab.encoder_layer,
        layers.encoder_written_out,
        layers.layer()[0],
        lambda x, weights, attention_mask: ab.encoder_layer(x, weights, attention_mask),
        lambda x, weights: ab.encoder_layer(x, weights) if x.ndim == 2 else 1 / 0,
        layers.encoder_of_batches,
        layers.EncoderObject,
    ),
    "decoder_layer": (
        ab.decoder_layer,
        layers.layer()[1],
        lambda x, memory, weights, target_mask, source_mask: ab.decoder_layer(
            x, memory, weights, target_mask, source_mask
        ),
        lambda x, memory, weights: ab.decoder_layer(x, memory, weights),
        layers.DecoderObject,
        layers.DecoderWithDefaults,
    ),
    "teacher_forcing": (
        lambda target: (target[..., :-1], target[..., 1:]),
        transformer.forcing_in_loops,
        transformer.forcing_of_batches,
    ),
    "cross_entropy": (
        ab.cross_entropy,
        transformer.right_loss,
        transformer.loss_in_loops,
        lambda logits, targets, mask: ab.cross_entropy(logits, targets, mask),
    ),
    "greedy_decode": (
        layers.greedy(),
        layers.greedy(show=layers.without_start),
        layers.greedy(show=layers.without_stop),
        layers.greedy(show=layers.without_both),
        layers.greedy_of_rows,
        layers.greedy_in_an_array,
        lambda *given: np.array(layers.greedy(show=layers.without_both)(*given)),
    ),
    "greedy_decode, cached": (
        layers.cached(),
        layers.cached(show=layers.without_start),
        layers.cached(show=layers.without_both),
    ),
}
ONLY_TORCH = {
    "softmax": lambda x, axis=-1: x.softmax(axis),
    "attention_weights": lambda q, k: (q @ k.transpose(-2, -1) / q.size(-1) ** 0.5).softmax(-1),
    "attention": torch_attention,
    "single_head": lambda x, y, z, A, B, C: torch_attention(x @ A, y @ B, z @ C),
    "attention_vjp": torch_vjp,
    "split_heads": lambda x, n_heads: x.unflatten(-1, (n_heads, -1)).transpose(-3, -2),
    "multi_head_attention": torch_heads,
    "causal_mask": lambda n_q, n_k: (
        pytest.importorskip("torch").ones(n_q, n_k).tril(n_k - n_q) == 1
    ),
    "masked_attention": torch_masked,
    "layer_norm": transformer.torch_norm,
    "positional_encoding, interleaved": transformer.torch_positions,
    "embed": transformer.torch_embed,
    "feed_forward": transformer.torch_ff,
    "teacher_forcing": transformer.torch_forcing,
    "cross_entropy": transformer.torch_loss,
    "greedy_decode": layers.torch_greedy,
    "greedy_decode, cached": layers.torch_cached,
}
