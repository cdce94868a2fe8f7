"""The checks of the attention family: wrong answers are named, alone or two; right ones pass."""

import math
import re

import attention_answers as answers
import numpy as np
import pytest
from attention_answers import WRONG

import attnbook
from attnbook import check
from attnbook.check import engine
from attnbook.check.gradients import ATTENTION_VJP, key_gradients_cancel, value_gradients_add_up
from attnbook.check.heads import MULTI_HEAD_ATTENTION, order_of_heads_is_free
from attnbook.check.masked import MASKED_ATTENTION
from attnbook.check.masks import CAUSAL_MASK, last_query_sees_all, later_queries_see_more
from attnbook.check.merging import MERGE_ATTENTION
from attnbook.check.normalization import (
    SOFTMAX,
    rows_sum_to_one,
    shift_changes_nothing,
    weights_are_positive,
)
from attnbook.check.outputs import (
    ATTENTION,
    empty_rows_are_zero,
    hidden_keys_change_nothing,
    order_of_keys_is_free,
    outputs_between_values,
)
from attnbook.check.projections import SINGLE_HEAD
from attnbook.check.splitting import SPLIT_HEADS, numbers_are_kept
from attnbook.check.steps import Case, agree
from attnbook.check.weights import WEIGHTS

CHECKS = {
    c.name: c
    for c in (
        SOFTMAX,
        WEIGHTS,
        ATTENTION,
        SINGLE_HEAD,
        ATTENTION_VJP,
        SPLIT_HEADS,
        MULTI_HEAD_ATTENTION,
        CAUSAL_MASK,
        MASKED_ATTENTION,
        MERGE_ATTENTION,
    )
}
MESSAGES = {name: {m.name: m.message for m in c.mistakes} for name, c in CHECKS.items()}
PAIRS = [(name, wrong) for name, wrongs in WRONG.items() for wrong in wrongs]
ON_A_BATCH = {
    "all axes reversed",
    "np.dot on a batch",
    "axis 1 of a batch",
    "softmax over axis 1 of a batch",
    "width from shape[1]",
    "axes counted from the front",
    "batch in the sequence",
    "softmax over axis 2 of a batch",
}
"""Mistakes that matrices do not show: a function that makes them passes with a remark."""


def need_torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def run(name, function, **options):
    return getattr(check, name)(function, **options)


def mistake_of(wrong):
    """Drop the number that tells several answers with one mistake apart."""
    return wrong if wrong == "base 2" else re.sub(r" \d$", "", wrong)


# Wrong answers.


def rejected_with_its_sentence(report, name, wrong):
    mistake = mistake_of(wrong)
    if mistake in ON_A_BATCH or wrong == "sequence before batch 2":
        assert report.passed
        assert any(note.endswith(MESSAGES[name][mistake]) for note in report.remarks)
        return
    assert not report
    assert (report.mistake, report.message) == (mistake, MESSAGES[name][mistake])
    assert (report.mistakes, report.libraries) == ((mistake,), ())


@pytest.mark.parametrize(("name", "wrong"), PAIRS)
def test_a_wrong_answer_is_rejected_with_its_own_sentence(name, wrong, monkeypatch):
    monkeypatch.setattr(engine, "present", lambda: ["numpy"])
    report = run(name, WRONG[name][wrong], time_limit=60)
    rejected_with_its_sentence(report, name, wrong)
    given = r"n_q = \d(, n_k = \d)?" if name == "causal_mask" else r".* of float(64|32).*"
    shape = rf"(It was given|With) {given}(\.|: .* (is|must have) .*)"
    assert report.passed or re.fullmatch(shape, report.detail)


@pytest.mark.parametrize(("name", "wrong"), PAIRS[::5])
def test_a_wrong_answer_in_float32_is_recognised(name, wrong):
    rejected_with_its_sentence(run(name, answers.in_float32(WRONG[name][wrong])), name, wrong)


@pytest.mark.parametrize(("name", "wrong"), PAIRS[1::5])
def test_a_wrong_answer_written_for_pytorch_alone_is_recognised(name, wrong):
    need_torch()
    rejected_with_its_sentence(run(name, answers.only_torch(WRONG[name][wrong])), name, wrong)


@pytest.mark.parametrize("name", CHECKS)
def test_the_steps_are_right_and_every_mistake_changes_them(name):
    checked = CHECKS[name]
    cases = [case for stage in checked.stages for case in stage.cases]
    right = checked.model({})
    for case in cases:
        assert agree(checked.expected(case), right(case), case), case
    assert len({m.message for m in checked.mistakes}) == len(checked.mistakes) >= 15
    for mistake in checked.mistakes:
        for way in mistake.ways:
            assert shows(checked, way, cases), mistake.name


def shows(checked, way, cases):
    """Tell whether a way gives another result somewhere, or none."""
    model = checked.model(way)
    for case in cases:
        try:
            if not agree(model(case), checked.expected(case), case):
                return True
        except Exception:
            return True
    return False


DOUBLES = {
    "attention": {
        "no scale; no softmax": lambda q, k, v: q @ k.mT @ v,
        "no scale; softmax over the query axis": lambda q, k, v: answers.sm(q @ k.mT, 0) @ v,
        "scale by d_k; softmax twice": lambda q, k, v: (
            answers.sm(answers.sm(q @ k.mT / q.shape[-1])) @ v
        ),
        "scale by √n_k; key used as value": lambda q, k, v: (
            answers.sm(q @ k.mT / len(k) ** 0.5) @ k
        ),
    },
    "softmax": {
        "wrong axis; base 2": lambda x: 2**x / answers.total(2**x, 0),
        "sign of the scores; logarithm returned": lambda x: answers.array_namespace(x).log(
            answers.sm(-x)
        ),
    },
    "multi_head_attention": {
        "scale by √d_model; W_O forgotten": lambda x, y, z, A, B, C, W, h: answers.right_join(
            answers.sm(
                answers.right_split(x @ A, h)
                @ answers.right_split(y @ B, h).mT
                / x.shape[-1] ** 0.5
            )
            @ answers.right_split(z @ C, h)
        ),
        "bare reshape in the join; no scale": answers.heads_answer(
            WRONG["attention_weights"]["no scale"], join=answers.reshaped_join
        ),
    },
    "single_head": {
        "no scale; values not projected": lambda x, y, z, A, B, C: (
            answers.sm((x @ A) @ (y @ B).mT) @ z
        )
    },
    "attention_vjp": {
        "scale in grad_value; second term of the softmax Jacobian": answers.jacobian_and_value
    },
    "causal_mask": {"next place visible; inverted": lambda n: ~np.tri(n, n, 1, dtype=bool)},
    "merge_attention": {
        "total not rescaled; maximum not updated": answers.merge_answer(
            total="z1 + z2", result="(m1, z, u)"
        )
    },
}


@pytest.mark.parametrize(("name", "both"), [(n, both) for n, d in DOUBLES.items() for both in d])
def test_two_mistakes_at_once_are_named(name, both):
    report = run(name, DOUBLES[name][both])
    assert {*report.mistakes} == {*both.split("; ")}
    assert report.message.startswith("Two mistakes at once. ")
    assert all(MESSAGES[name][mistake] in report.message for mistake in report.mistakes)


# Right answers.


def loop_softmax_of_any_row(x):
    return answers.loop_softmax(x) if x.ndim == 2 else answers.loop_softmax(x[None])[0]


def shifted_by_log_sum(x, axis=-1):
    shifted = x - x.max(axis=axis, keepdims=True)
    return np.exp(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))


def einsum_weights(Q, K, *, mask=None, **unused):
    scores = np.einsum("...qd,...kd->...qk", Q, K) / np.sqrt(Q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    highest = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isinf(highest), 0, highest))
    return e / np.maximum(e.sum(-1, keepdims=True), 1e-300)


def einsum_attention(Q, K, V, *, mask=None, **unused):
    return np.einsum("...qk,...kd->...qd", einsum_weights(Q, K, mask=mask), V)


def row_by_row(query, key, value):
    output = np.empty((query.shape[0], value.shape[1]), dtype=query.dtype)
    for i in range(query.shape[0]):
        scores = key @ query[i] / math.sqrt(query.shape[1])
        weights = np.exp(scores - scores.max())
        output[i] = weights @ value / weights.sum()
    return output


def torch_attention(query, key, value, mask=None):
    import torch

    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def torch_weights(query, key):
    import torch

    return torch.softmax(query @ key.transpose(-2, -1) / query.size(-1) ** 0.5, dim=-1)


def torch_softmax(x, axis=-1):
    import torch

    return torch.softmax(x, dim=axis)


def torch_head(query, key, value, W_Q, W_K, W_V):
    return torch_attention(query @ W_Q, key @ W_K, value @ W_V)


def torch_vjp(query, key, value, grad_output):
    import torch

    inputs = [x.clone().requires_grad_() for x in (query, key, value)]
    return torch.autograd.grad(torch_attention(*inputs), inputs, grad_output)


def head_with_output(query, key, value, W_Q, W_K, W_V, W_O):
    return answers.right_attention(query @ W_Q, key @ W_K, value @ W_V) @ W_O


def head_with_optional_output(query, key, value, W_Q, W_K, W_V, W_O=None, *, mask=None):
    output = answers.right_attention(query @ W_Q, key @ W_K, value @ W_V, mask)
    return output if W_O is None else output @ W_O


def head_with_output_and_mask(query, key, value, W_Q, W_K, W_V, W_O, mask=None):
    return answers.right_attention(query @ W_Q, key @ W_K, value @ W_V, mask) @ W_O


def head_with_weights(query, key, value, weights):
    return attnbook.single_head_attention(query, key, value, weights)


def head_with_parameters(query, key, value, parameters, mask=None):
    return attnbook.single_head_attention(query, key, value, parameters, mask)


def head_with_four(query, key, value, parameters):
    return attnbook.single_head_attention(query, key, value, parameters)


def head_with_defaults(query, key, value, W_Q, W_K=None, W_V=None):
    return answers.right_attention(query @ W_Q, key @ W_K, value @ W_V)


def head_with_many_options(query, key, value, weights, mask=None, dropout=0, training=False):
    return attnbook.single_head_attention(query, key, value, weights, mask)


def einsum_head(query, key, value, W_Q, W_K, W_V):
    scores = np.einsum("...qa,ad,bd,...kb->...qk", query, W_Q, W_K, key)
    return np.einsum(
        "...qk,...kc,cv->...qv", answers.sm(scores / np.sqrt(W_Q.shape[1])), value, W_V
    )


def full_jacobian_vjp(query, key, value, grad_output):
    """Build every Jacobian of the softmax, row by row."""
    weights = answers.right_weights(query, key)
    grad_scores = np.stack(
        [
            (np.diag(a) - np.outer(a, a)) @ (value @ g)
            for a, g in zip(weights, grad_output, strict=True)
        ]
    ) / np.sqrt(query.shape[1])
    return [grad_scores @ key, grad_scores.T @ query, weights.T @ grad_output]


def einsum_vjp(query, key, value, grad_output):
    a = einsum_weights(query, key)
    da = np.einsum("...qv,...kv->...qk", grad_output, value)
    ds = a * (da - np.einsum("...qk,...qk->...q", a, da)[..., None]) / query.shape[-1] ** 0.5
    return (
        np.einsum("...qk,...kd->...qd", ds, key),
        np.einsum("...qk,...qd->...kd", ds, query),
        np.einsum("...qk,...qv->...kv", a, grad_output),
    )


def split_with_numpy(x, n_heads):
    return np.stack(np.split(np.asarray(x), n_heads, axis=-1), axis=-3)


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


def heads_in_a_loop(query, key, value, W_Q, W_K, W_V, W_O, n_heads):
    heads = []
    for i in range(n_heads):
        q, k, v = (
            answers.columns(x @ W, n_heads, i) for x, W in ((query, W_Q), (key, W_K), (value, W_V))
        )
        heads.append(answers.right_attention(q, k, v))
    return np.concatenate(heads, axis=-1) @ np.asarray(W_O)


def heads_as_a_sum(query, key, value, W_Q, W_K, W_V, W_O, n_heads, *, mask=None):
    """Add up what each head writes through its own rows of W_O."""
    if mask is not None and mask.ndim == 4:
        mask = mask[:, 0]
    return sum(
        answers.right_attention(
            query @ answers.columns(W_Q, n_heads, i),
            key @ answers.columns(W_K, n_heads, i),
            value @ answers.columns(W_V, n_heads, i),
            mask,
        )
        @ answers.columns(W_O.mT, n_heads, i).mT
        for i in range(n_heads)
    )


def heads_in_einsum(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    A, B, C = (W.reshape(len(W), n_heads, -1) for W in (W_Q, W_K, W_V))
    scores = np.einsum("...qa,ahd,...kb,bhd->...hqk", query, A, key, B) / np.sqrt(A.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = answers.safe_softmax(scores)
    out = W_O.reshape(n_heads, -1, W_O.shape[-1])
    return np.einsum("...hqk,...kc,chd,hdo->...qo", weights, value, C, out)


def heads_of_batches_alone(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    batch, n_q, d_model = query.shape
    q, k, v = (
        (x @ W).reshape(batch, -1, n_heads, d_model // n_heads).swapaxes(1, 2)
        for x, W in ((query, W_Q), (key, W_K), (value, W_V))
    )
    heads = answers.right_attention(q, k, v, mask)
    return heads.swapaxes(1, 2).reshape(batch, n_q, d_model) @ W_O


def heads_with_weights(query, key, value, weights):
    return attnbook.multi_head_attention(query, key, value, weights)


def heads_with_four(query, key, value, parameters, mask=None):
    return attnbook.multi_head_attention(query, key, value, parameters, mask)


def heads_with_number_by_name(query, key, value, W_Q, W_K, W_V, W_O, mask=None, *, n_heads):
    return answers.right_heads(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask)


def heads_with_number_later(query, key, value, W_Q, W_K, W_V, W_O, mask=None, n_heads=8):
    return answers.right_heads(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask)


def heads_of_a_list(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    def parts(W):
        return [np.asarray(answers.columns(W, n_heads, i)) for i in range(n_heads)]

    rows = [W.mT for W in parts(W_O.mT)]
    heads = [
        attnbook.SingleHeadWeights(*matrices)
        for matrices in zip(parts(W_Q), parts(W_K), parts(W_V), rows, strict=True)
    ]
    x, y, z = map(np.asarray, (query, key, value))
    mask = None if mask is None else np.asarray(mask)
    if mask is not None and mask.ndim == 4:
        mask = mask.squeeze(1)
    return np.sum([attnbook.single_head_attention(x, y, z, head, mask) for head in heads], axis=0)


def heads_grouped(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    """Give every group of one head its own key head, by an axis of length 1."""
    q, k, v = (
        attnbook.split_heads(x @ W, n_heads)[..., None, :, :]
        for x, W in ((query, W_Q), (key, W_K), (value, W_V))
    )
    mask = mask if mask is None or mask.ndim == 2 else mask[:, :, None]
    heads = attnbook.attention(q, k, v, mask)
    return attnbook.merge_heads(heads[..., 0, :, :]) @ W_O


def causal_in_loops(n_q, n_k):
    mask = np.zeros((n_q, n_k), dtype=bool)
    for i in range(n_q):
        for j in range(n_k):
            mask[i, j] = j - n_k <= i - n_q
    return mask


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


def masked_additively(query, key, value, mask):
    scores = query @ key.mT / key.shape[-1] ** 0.5
    return answers.safe_softmax(scores + np.where(mask, 0.0, -np.inf)) @ value


def masked_with_a_guard(query, key, value, mask):
    """Shift by the largest visible score, zero the hidden exponentials, divide at the end."""
    scores = np.asarray(answers.right_scores(query, key))
    mask = np.asarray(mask)
    highest = np.where(mask, scores, -np.inf).max(-1, keepdims=True)
    powers = np.where(mask, np.exp(scores - np.where(np.isinf(highest), 0, highest)), 0)
    return powers @ np.asarray(value) / np.maximum(powers.sum(-1, keepdims=True), 1e-300)


def masked_batches_alone(query, key, value, mask):
    batch, n_q, _d_k = query.shape
    xp = answers.array_namespace(query)
    seen = xp.broadcast_to(mask, (batch, n_q, key.shape[1]))
    return answers.right_attention(query, key, value, seen)


def torch_split(x, n_heads):
    import torch

    return torch.stack(x.chunk(n_heads, dim=-1), dim=-3)


def torch_heads(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    """Use the function behind torch.nn.MultiheadAttention, which wants one width d_model."""
    import torch

    if mask is not None:
        mask = ~mask
        if mask.ndim == 4:
            shape = (len(query), n_heads, query.shape[1], key.shape[1])
            mask = mask.expand(shape).flatten(0, 1)
    single = query.ndim == 2
    output, _ = torch.nn.functional.multi_head_attention_forward(
        *(x if single else x.transpose(0, 1) for x in (query, key, value)),
        embed_dim_to_check=query.shape[-1],
        num_heads=n_heads,
        in_proj_weight=None,
        in_proj_bias=None,
        bias_k=None,
        bias_v=None,
        add_zero_attn=False,
        dropout_p=0.0,
        out_proj_weight=W_O.T,
        out_proj_bias=None,
        training=False,
        need_weights=False,
        attn_mask=mask,
        use_separate_proj_weight=True,
        q_proj_weight=W_Q.T,
        k_proj_weight=W_K.T,
        v_proj_weight=W_V.T,
    )
    return output if single else output.transpose(0, 1)


def torch_masked(query, key, value, mask):
    import torch

    additive = torch.zeros(mask.shape, dtype=query.dtype).masked_fill(~mask, -math.inf)
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=additive)


def torch_causal(n_q, n_k):
    import torch

    return torch.ones(n_q, n_k, dtype=torch.bool).tril(n_k - n_q)


def by_the_package(first, second):
    parts = (attnbook.RunningSoftmax(*part, part[0].dtype) for part in (first, second))
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


def with_one_factor(first, second):
    """Only the smaller part is rescaled, and a list comes back."""
    (m1, z1, u1), (m2, z2, u2) = first, second
    gap = np.where(m1 == m2, 0, m1 - np.where(m1 == m2, 0, m2))
    f = np.exp(-np.abs(gap))
    larger = m1 >= m2
    f1, f2 = np.where(larger, 1, f), np.where(larger, f, 1)
    return [np.maximum(m1, m2), z1 * f1 + z2 * f2, u1 * f1 + u2 * f2]


def by_logarithms(first, second):
    """Through the logarithms of the two totals, and back."""
    (m1, z1, u1), (m2, z2, u2) = first, second
    with np.errstate(divide="ignore"):
        log_1, log_2 = m1 + np.log(z1), m2 + np.log(z2)
        m = np.maximum(m1, m2)
        z = np.exp(np.logaddexp(log_1, log_2) - np.where(m == -np.inf, 0, m))
    shift = np.where(m == -np.inf, 0, m)
    return m, z, np.exp(m1 - shift) * u1 + np.exp(m2 - shift) * u2


RIGHT = {
    "merge_attention": (by_the_package, in_loops, with_one_factor, by_logarithms),
    "split_heads": (
        attnbook.split_heads,
        answers.right_split,
        split_with_numpy,
        split_in_loops,
        split_batches_alone,
    ),
    "multi_head_attention": (
        attnbook.multi_head_attention,
        answers.right_heads,
        heads_in_a_loop,
        heads_as_a_sum,
        heads_in_einsum,
        heads_of_batches_alone,
        heads_with_weights,
        heads_with_four,
        heads_with_number_by_name,
        heads_with_number_later,
        heads_of_a_list,
        heads_grouped,
    ),
    "causal_mask": (
        attnbook.masking.causal,
        answers.right_causal,
        causal_in_loops,
        lambda n_q, n_k: np.arange(n_k) <= np.arange(n_q)[:, None] + n_k - n_q,
        lambda rows, columns: ~np.triu(np.ones((rows, columns), dtype=bool), columns - rows + 1),
        lambda n: np.tri(n, dtype=bool),
    ),
    "masked_attention": (
        attnbook.attention,
        answers.right_attention,
        masked_in_loops,
        masked_additively,
        masked_with_a_guard,
        masked_batches_alone,
        lambda query, key, value, mask: einsum_attention(query, key, value, mask=mask),
    ),
    "softmax": (
        attnbook.softmax,
        answers.right_softmax,
        answers.loop_softmax,
        loop_softmax_of_any_row,
        shifted_by_log_sum,
        lambda x: np.exp(x - np.logaddexp.reduce(x, axis=-1, keepdims=True)),
    ),
    "attention_weights": (
        attnbook.attention_weights,
        answers.right_weights,
        answers.loop_weights,
        einsum_weights,
        lambda query, key: (
            answers.sm(query @ key.T / query.shape[1] ** 0.5) if query.ndim == 2 else 1 / 0
        ),
    ),
    "attention": (
        attnbook.attention,
        answers.right_attention,
        answers.loop_attention,
        einsum_attention,
        row_by_row,
    ),
    "single_head": (
        attnbook.single_head_attention,
        answers.head(answers.right_attention),
        answers.loop_head,
        einsum_head,
        head_with_output,
        head_with_optional_output,
        head_with_output_and_mask,
        head_with_weights,
        head_with_parameters,
        head_with_four,
        head_with_defaults,
        head_with_many_options,
    ),
    "attention_vjp": (
        attnbook.attention_vjp,
        lambda q, k, v, g: answers.gradients(q, k, v, g),
        answers.loop_vjp,
        einsum_vjp,
        full_jacobian_vjp,
    ),
}
ONLY_TORCH = {
    "split_heads": torch_split,
    "multi_head_attention": torch_heads,
    "masked_attention": torch_masked,
    "causal_mask": torch_causal,
    "softmax": torch_softmax,
    "attention_weights": torch_weights,
    "attention": torch_attention,
    "single_head": torch_head,
    "attention_vjp": torch_vjp,
}


@pytest.mark.parametrize(("name", "i"), [(n, i) for n, fs in RIGHT.items() for i in range(len(fs))])
def test_a_right_answer_in_any_style_passes(name, i):
    report = run(name, RIGHT[name][i])
    assert report, report
    assert (report.mistake, report.mistakes, report.detail, report.case) == (None, (), "", None)
    assert report.message == "agrees with the reference"
    assert "numpy" in report.libraries
    assert report.require() is report


@pytest.mark.parametrize("name", ONLY_TORCH)
def test_a_right_answer_for_pytorch_alone_passes_with_a_note(name):
    need_torch()
    report = run(name, ONLY_TORCH[name])
    assert report, report
    assert report.libraries == ("torch",)
    if name == "causal_mask":  # no array goes in, so it is called once
        assert report.notes == ()
    else:
        assert re.match(r"right on PyTorch; on NumPy it raises \w+", report.library_remarks[0])
    assert not any("NumPy" in remark for remark in report.remarks)


def test_what_goes_wrong_on_a_batch_is_said_of_functions_for_pytorch_alone_too():
    torch = need_torch()
    report = check.softmax(lambda x: torch.softmax(x, dim=1))
    assert report.libraries == ("torch",)
    sentence = MESSAGES["softmax"]["axis 1 of a batch"]
    assert f"on a batch (leading axes) its result is wrong. {sentence}" in report.remarks
    report = check.attention(
        lambda q, k, v: torch.softmax(q @ k.T / q.shape[-1] ** 0.5, dim=-1) @ v
    )
    assert any("on a batch (leading axes)" in remark for remark in report.remarks)


def test_the_package_is_right_in_every_library_that_is_present():
    ready = {backend.name for backend in attnbook.backends() if backend.available}
    libraries = ("numpy", "torch") if "PyTorch, CPU" in ready else ("numpy",)
    for name in CHECKS:
        report = run(name, RIGHT[name][0])
        wanted = libraries[:1] if name == "causal_mask" else libraries
        assert report.libraries[: len(wanted)] == wanted
        assert report.notes == ()


def test_a_function_is_judged_by_the_library_in_which_it_is_right():
    need_torch()

    def right_on_arrays(x):
        return answers.sm(x) if isinstance(x, np.ndarray) else answers.sm(-x)

    def right_on_tensors(x):
        return answers.sm(-x) if isinstance(x, np.ndarray) else answers.sm(x)

    report = check.softmax(right_on_arrays)
    assert report.libraries == ("numpy",)
    assert "right on NumPy; on PyTorch its result differs." in report.library_remarks
    report = check.softmax(right_on_tensors)
    assert report.libraries == ("torch",)
    assert "right on PyTorch; on NumPy its result differs." in report.notes


def test_small_errors_are_errors_and_rounding_is_not():
    assert check.softmax(lambda x: answers.sm(x) * (1 + 5e-6))
    assert not check.softmax(lambda x: answers.sm(x) * (1 + 2**-13))
    narrow = answers.in_float32(answers.right_softmax)
    assert check.softmax(lambda x: narrow(x) * np.float32(1 + 5e-5))
    assert not check.softmax(lambda x: narrow(x) * np.float32(1 + 2e-4))
    assert "it returns float32 for float64." in check.softmax(narrow).remarks


def test_every_option_that_is_taken_is_checked():
    def count(name, function):
        report = run(name, function)
        assert report, report
        return report.cases / len(report.libraries)

    few, many = (count("softmax", f) for f in (lambda x: attnbook.softmax(x), attnbook.softmax))
    assert few < many
    bare = count("attention", lambda q, k, v: attnbook.attention(q, k, v))
    for option in ("mask", "scale", "bias"):
        space = {"a": attnbook.attention}
        taken = eval(f"lambda q, k, v, *, {option}=None: a(q, k, v, {option}={option})", space)
        assert count("attention", taken) > bare
    assert count("causal_mask", lambda n: np.tri(n, dtype=bool)) == 5
    assert count("causal_mask", answers.right_causal) == 13


# What was accepted though wrong, rejected though right, or told wrongly.


def masked_by(see):
    return lambda q, k, v, mask: answers.right_attention(q, k, v, see(mask))


def test_a_mask_that_hides_everything_is_no_missing_mask():
    def weights(query, key, mask=None):
        return answers.right_weights(query, key, mask if mask is None or mask.any() else None)

    name = "mask that hides everything dropped"
    assert check.attention_weights(weights).mistake == name
    report = check.masked_attention(lambda q, k, v, mask: weights(q, k, mask) @ v)
    assert report.mistake == name


def test_a_mask_of_size_0_made_of_lists():
    def nested(n_q, n_k):
        return np.array([[j <= i + n_k - n_q for j in range(n_k)] for i in range(n_q)])

    assert check.causal_mask(nested).mistake == "list of nothing"
    typed = check.causal_mask(lambda n_q, n_k: nested(n_q, n_k).astype(bool))
    assert typed.mistake == "list of nothing"
    assert check.causal_mask(lambda n: nested(n, n)).mistake == "list of nothing"
    assert check.causal_mask(lambda n_q, n_k: nested(n_q, n_k).reshape(n_q, n_k) == 1)

    def refuses(n):
        return np.tri(n, dtype=bool) if n else 1 / 0

    assert "on a size of 0 it raises ZeroDivisionError." in check.causal_mask(refuses).remarks
    assert check.causal_mask(lambda n: np.zeros((0, n))).mistake == "wrong dtype"


@pytest.mark.parametrize(
    ("name", "mistake", "function"),
    [
        (
            "attention",
            "mask inverted",
            lambda q, k, v, mask=True: (
                answers.sm(answers.right_scores(q, k) + (0 if mask is True else mask * -1e9)) @ v
            ),
        ),
        (
            "attention",
            "causal by itself",
            lambda q, k, v: answers.right_attention(q, k, v, np.tri(len(q), len(k), dtype=bool)),
        ),
        (
            "attention_weights",
            "key reshaped",
            lambda q, k: answers.sm(q @ k.reshape(k.shape[1], -1) / k.shape[1] ** 0.5),
        ),
        (
            "attention",
            "root cut to an integer",
            lambda q, k, v: answers.sm(q @ k.mT / int(math.sqrt(q.shape[-1]))) @ v,
        ),
        ("softmax", "maximum over the wrong axis", lambda x: answers.shifted(x, np.max(x, 0))),
        (
            "attention_vjp",
            "all gradients negated",
            lambda *given: tuple(-x for x in answers.gradients(*given)),
        ),
        (
            "attention_vjp",
            "all gradients scaled",
            lambda *given: tuple(2 * x for x in answers.gradients(*given)),
        ),
        (
            "multi_head_attention",
            "W transposed",
            lambda q, k, v, A, B, C, W, h: answers.right_heads(q, k, v, A.T, B.T, C.T, W.T, h),
        ),
    ],
)
def test_common_mistakes_have_a_name(name, mistake, function):
    assert run(name, function).mistake == mistake


def test_a_wrong_value_in_an_empty_row_is_spoken_of_as_such():
    def fives(q, k, v, mask):
        empty = ~np.any(mask, axis=-1, keepdims=True)
        return answers.right_attention(q, k, v, mask) + 5.0 * empty

    report = check.masked_attention(fives)
    assert report.mistake is None
    assert report.message.endswith(
        "A query that may attend to nothing must get zeros; here it gets 5."
    )


# Properties.


def no_second_call(**arrays):
    raise AssertionError


@pytest.mark.parametrize(
    ("holds", "values", "sentence"),
    [
        (rows_sum_to_one, [[0.5, 0.5], [0.25, 0.75]], None),
        (rows_sum_to_one, [[0.5, 0.500001]], None),
        (rows_sum_to_one, [[0.5, 0.6], [3.0, 4.0]], "Weights must sum to 1; here a sum is 7."),
        (rows_sum_to_one, [[0.1], [1.5]], "Weights must sum to 1; here a sum is 0.1."),
        (rows_sum_to_one, [[0.5], [2.25]], "Weights must sum to 1; here a sum is 2.25."),
        (rows_sum_to_one, [[[0.5, 0.5], [0.25, 0.75]]], None),
        (weights_are_positive, [[0.0, 1.0]], None),
        (weights_are_positive, [[-0.25, -0.5]], "No weight is below 0; here one is -0.5."),
    ],
)
def test_properties_of_weights(holds, values, sentence):
    assert holds(Case({}), (np.array(values),), no_second_call) == sentence


def test_rows_sum_to_one_along_the_axis_asked_for():
    columns = (np.array([[0.5, 1.0], [0.5, 0.0]]),)
    assert rows_sum_to_one(Case({}, {"axis": 0}), columns, no_second_call) is None


def test_outputs_lie_between_the_values_of_their_column():
    case = Case({"value": np.array([[1.0, 10.0], [2.0, 30.0]])})

    def complains(*output):
        return bool(outputs_between_values(case, (np.array([output]),), no_second_call))

    assert not complains(1.0 - 5e-7, 30.0 + 5e-7)
    assert complains(1.0 - 5e-6, 20.0)
    assert complains(1.5, 30.0 + 5e-6)
    assert complains(2.5, 20.0)
    assert complains(1.5, 5.0)


def test_outputs_lie_between_the_values_of_their_own_sequence():
    value = np.array([[[1.0], [2.0]], [[5.0], [7.0]]])
    case = Case({"value": value})
    inside = np.array([[[1.5], [2.0], [1.0]], [[5.0], [6.0], [7.0]]])
    assert outputs_between_values(case, (inside,), no_second_call) is None
    assert outputs_between_values(case, (np.flip(inside, axis=0),), no_second_call)


def test_scores_are_shifted_by_one():
    given = {}

    def again(**arrays):
        given.update(arrays)
        return (np.zeros((1, 2)),)

    case = Case({"x": np.array([[3.0, 5.0]])})
    assert shift_changes_nothing(case, (np.zeros((1, 2)),), again) is None
    assert given["x"].tolist() == [[4.0, 6.0]]


def test_a_property_that_needs_a_second_call_says_nothing_if_that_raises():
    drawn = {name: np.ones((2, 2)) for name in ("x", "key", "value")}
    mask = np.array([[True, False], [True, True]])
    values = (np.ones((2, 2)),)
    for holds in (shift_changes_nothing, order_of_keys_is_free, hidden_keys_change_nothing):
        assert holds(Case(drawn), values, lambda **arrays: ()) is None
        assert holds(Case(drawn, {"mask": mask}), values, lambda **arrays: ()) is None


def test_only_what_query_0_may_not_see_is_changed():
    case = Case(
        {"key": np.zeros((2, 3)), "value": np.zeros((2, 5))},
        {"mask": np.array([[True, False], [False, True]])},
    )
    given = {}

    def again(**arrays):
        given.update(arrays)
        return (np.array([[0.0], [9.0]]),)

    assert hidden_keys_change_nothing(case, (np.array([[0.0], [5.0]]),), again) is None
    assert given["key"].tolist() == [[0.0] * 3, [1.0] * 3]
    assert given["value"].tolist() == [[0.0] * 5, [1.0] * 5]
    assert hidden_keys_change_nothing(case, (np.ones((2, 1)),), again)


def test_the_order_of_keys_is_reversed_and_matters_to_a_mask_or_a_bias():
    drawn = {"key": np.array([[1.0], [2.0]]), "value": np.array([[3.0], [4.0]])}
    given = {}

    def again(**arrays):
        given.update(arrays)
        return (np.zeros((2, 1)),)

    assert order_of_keys_is_free(Case(drawn), (np.zeros((2, 1)),), again) is None
    assert given["key"].tolist() == [[2.0], [1.0]]
    assert given["value"].tolist() == [[4.0], [3.0]]
    assert order_of_keys_is_free(Case(drawn), (np.ones((2, 1)),), again)
    for option in ("mask", "bias"):
        case = Case(drawn, {option: np.ones((2, 2))})
        assert order_of_keys_is_free(case, (np.ones((2, 1)),), no_second_call) is None


def test_sums_of_gradients():
    case = Case({"grad_output": np.array([[1.0, 2.0], [3.0, 5.0]])})
    masked = Case(case.arrays, {"mask": np.ones((2, 2), dtype=bool)})
    zero = np.array([[1.0, -2.0], [-1.0, 2.0 + 5e-7]])
    assert key_gradients_cancel(case, (None, zero, None), no_second_call) is None
    assert key_gradients_cancel(case, (None, zero + 2e-6, None), no_second_call)
    columns = np.array([[1.0, -1.0], [1.0, -1.0]])
    assert key_gradients_cancel(case, (None, columns, None), no_second_call)
    same = np.array([[4.0, 0.0], [0.0, 7.0]])
    assert value_gradients_add_up(case, (None, None, same), no_second_call) is None
    assert value_gradients_add_up(case, (None, None, same * 1.01), no_second_call)
    assert value_gradients_add_up(masked, (None, None, same * 1.01), no_second_call) is None


def test_numbers_are_kept():
    def complains(*numbers):
        case = Case({"x": np.arange(6.0).reshape(2, 3), "n_heads": 1})
        return bool(numbers_are_kept(case, (np.array(numbers),), no_second_call))

    assert not complains([5.0, 4.0, 3.0], [2.0, 1.0, 0.0])
    assert complains([5.0, 4.0, 3.0], [2.0, 1.0, 1.0])
    assert complains([5.0, 4.0, 3.0])


def test_properties_of_a_causal_mask():
    mask = np.array([[True, False], [True, True]])
    for holds in (last_query_sees_all, later_queries_see_more):
        assert holds(Case({"n_q": 2}), (mask,), no_second_call) is None
        assert holds(Case({"n_q": 2}), (mask[::-1],), no_second_call)
    assert last_query_sees_all(Case({}), (mask[:1],), no_second_call)
    assert later_queries_see_more(Case({}), (mask[:1],), no_second_call) is None


def test_all_heads_are_reversed_in_all_matrices():
    rng = np.random.default_rng(0)
    weights = attnbook.MultiHeadWeights.init(rng, 6, 3, d_k=2, d_v=5)
    x = rng.normal(size=(4, 6))
    matrices = {name: getattr(weights, name) for name in ("W_Q", "W_K", "W_V", "W_O")}
    case = Case({"query": x, "key": x, "value": x, **matrices, "n_heads": 3})
    output = attnbook.multi_head_attention(x, x, x, weights)
    given = {}

    def again(**arrays):
        given.update(arrays)
        moved = attnbook.MultiHeadWeights(**arrays, n_heads=3)
        return (attnbook.multi_head_attention(x, x, x, moved),)

    assert order_of_heads_is_free(case, (output,), again) is None
    for name, W in matrices.items():
        heads = np.split(W, 3, axis=0 if name == "W_O" else 1)
        reverse = np.concatenate(heads[::-1], axis=0 if name == "W_O" else 1)
        np.testing.assert_array_equal(given[name], reverse)
    assert order_of_heads_is_free(case, (output + 1,), again)
    assert order_of_heads_is_free(case, (output,), lambda **arrays: ()) is None


def test_empty_rows_are_zero_and_may_lie_outside_the_values():
    mask = np.array([[True], [False]])
    case = Case({"value": np.array([[1.0]]), "mask": mask})
    right, wrong = (np.array([[1.0], [0.0]]),), (np.array([[1.0], [0.5]]),)
    assert empty_rows_are_zero(case, right, no_second_call) is None
    assert outputs_between_values(case, right, no_second_call) is None
    assert "zeros; here it gets 0.5" in empty_rows_are_zero(case, wrong, no_second_call)


# Numbers that no mistake explains.


def leaky_attention(q, k, v, mask):
    mean = answers.array_namespace(v).mean(v, axis=-2, keepdims=True)
    return answers.right_attention(q, k, v, mask) * 0.9 + 0.1 * mean


@pytest.mark.parametrize(
    ("name", "function", "sentence"),
    [
        (
            "split_heads",
            lambda x, h: answers.right_split(x, h) * 2,
            "A split only moves numbers; here some are changed, lost or there twice.",
        ),
        ("split_heads", lambda x, h: answers.right_split(x[..., ::-1, :], h), ""),
        ("multi_head_attention", lambda *given: answers.right_heads(*given) * 1.5, ""),
        (
            "multi_head_attention",
            lambda q, k, v, A, B, C, W, h: answers.right_heads(
                q, k, v, A, B, C * (np.arange(C.shape[-1]) * h // C.shape[-1] + 1), W, h
            ),
            "Reversing the heads in all four matrices together must change nothing; here it "
            "changes the output.",
        ),
        (
            "masked_attention",
            leaky_attention,
            "A key that query 0 may not attend to still changes its output.",
        ),
        ("softmax", lambda x: answers.sm(x) * 1.5, "Weights must sum to 1; here a sum is 1.5."),
        (
            "softmax",
            lambda x: 9 * answers.sm(x) - 8 / x.shape[-1],
            "No weight is below 0; here one is -1.038.",
        ),
        (
            "softmax",
            lambda x: answers.sm(x**3),
            "Adding 1 to every score must change nothing; here it changes the weights.",
        ),
        ("softmax", lambda x: answers.sm(0.3 * x), ""),
        (
            "attention_weights",
            lambda q, k: answers.right_weights(q, k) / 2,
            "Weights must sum to 1; here a sum is 0.5.",
        ),
        (
            "attention",
            lambda q, k, v: answers.right_attention(q, k, v) + 9,
            "Each output is a weighted mean of the values and lies between the smallest and the "
            "largest of its column; here one lies outside.",
        ),
        (
            "attention",
            lambda q, k, v: answers.right_attention(q, k, v) - 9,
            "Each output is a weighted mean of the values and lies between the smallest and the "
            "largest of its column; here one lies outside.",
        ),
        (
            "attention",
            lambda q, k, v: (v[..., :1, :] + v[..., -1:, :] * 2) / 3 + 0 * q[..., :1],
            "Reversing the order of keys and values together must change nothing; here it changes "
            "the output.",
        ),
        (
            "attention",
            lambda q, k, v, mask=None: (
                answers.right_attention(q, k, v) * 0.99
                if mask is not None
                else answers.right_attention(q, k, v)
            ),
            "A key that query 0 may not attend to still changes its output.",
        ),
        ("attention", lambda q, k, v: answers.right_weights(q, k * 0.3) @ v, ""),
        (
            "attention_vjp",
            lambda q, k, v, g: tuple(x + 1 for x in answers.gradients(q, k, v, g)),
            "Adding one vector to every key changes no weight, so the rows of grad_key must sum to "
            "zero; here they do not.",
        ),
        (
            "attention_vjp",
            lambda q, k, v, g: (*answers.gradients(q, k, v, g)[:2], v * 2),
            "The weights of a query sum to one, so the rows of grad_value must sum to the same as "
            "those of grad_output; here they do not.",
        ),
    ],
)
def test_unknown_wrong_numbers_name_the_property_that_fails(name, function, sentence):
    report = run(name, function)
    assert not report
    assert report.mistake is None
    expected = "Your numbers differ from the reference, and not in a way that this check knows."
    assert report.message == f"{expected} {sentence}".strip()


# Batches alone, and what a function may refuse.


def test_a_function_for_batches_alone_passes_with_a_remark():
    def split(x, n_heads):
        batch, n, width = x.shape
        return x.reshape(batch, n, n_heads, width // n_heads).swapaxes(1, 2)

    def attend(query, key, value, mask):
        _batch, _n, d = query.shape
        scores = answers.hidden(query @ key.swapaxes(1, 2) / d**0.5, mask)
        return answers.safe_softmax(scores) @ value

    for report in (check.split_heads(split), check.masked_attention(attend)):
        assert report, report
        remark = "on one sequence without a batch axis it raises ValueError."
        assert remark in report.remarks
        assert not any("batch (leading axes)" in note for note in report.notes)


def test_a_wrong_function_for_batches_alone_hears_its_mistake():
    def split(x, n_heads):
        batch, n, width = x.shape
        return x.reshape(batch, n_heads, n, width // n_heads)

    assert check.split_heads(split).mistake == "bare reshape"

    def heads(query, key, value, W_Q, W_K, W_V, W_O, n_heads):
        batch, n, d_model = query.shape
        q, k, v = (
            (x @ W).reshape(batch, -1, n_heads, d_model // n_heads).swapaxes(1, 2)
            for x, W in ((query, W_Q), (key, W_K), (value, W_V))
        )
        return answers.right_attention(q, k, v).reshape(batch, n, d_model) @ W_O

    report = check.multi_head_attention(heads)
    assert report.mistake == "bare reshape in the join"


def test_a_function_that_takes_tokens_for_a_batch_is_one_for_batches_alone():
    def split(x, n_heads):  # of a matrix it makes (n, h, 1, d)
        return x.reshape(x.shape[0], -1, n_heads, x.shape[-1] // n_heads).swapaxes(1, 2)

    report = check.split_heads(split)
    assert report, report
    assert report.remarks == ("on one sequence without a batch axis its result is wrong.",)

    def bare(x, n_heads):
        return x.reshape(x.shape[0], n_heads, -1, x.shape[-1] // n_heads)

    assert check.split_heads(bare).mistake == "bare reshape"


def test_batches_alone_in_one_library_are_not_batches_alone_in_the_next():
    need_torch()

    def split(x, n_heads):
        if isinstance(x, np.ndarray):
            _batch, _n, _width = x.shape
        else:
            _n, _width = x.shape
        return answers.right_split(x, n_heads)

    assert check.split_heads(split).libraries[:2] == ("numpy", "torch")


def test_what_raises_on_everything_is_no_function_for_batches():
    report = check.split_heads(lambda x, n_heads: x.reshape(7, 7))
    assert report.mistake == "raises"
    assert report.remarks == ()


def test_other_widths_may_be_refused_but_not_be_wrong():
    def textbook(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
        d_head = query.shape[-1] // n_heads
        q, k, v = (
            x.reshape(*x.shape[:-1], n_heads, d_head).swapaxes(-2, -3)
            for x in (query @ W_Q, key @ W_K, value @ W_V)
        )
        heads = answers.right_attention(q, k, v, mask)
        return answers.right_join(heads) @ W_O

    report = check.multi_head_attention(textbook)
    assert report, report
    assert report.remarks == ("on projections of other widths than d_model it raises ValueError.",)
    wrong = answers.WRONG["multi_head_attention"]["scale from the width of the input"]
    assert not check.multi_head_attention(wrong)


def test_masks_that_broadcast_may_be_refused_but_not_be_wrong():
    def loops(query, key, value, mask):
        n_q, n_k = len(query), len(key)
        seen = np.array([[bool(mask[i, j]) for j in range(n_k)] for i in range(n_q)])
        return answers.right_attention(*map(np.asarray, (query, key, value)), seen)

    report = check.masked_attention(loops)
    assert report, report
    kinds = ("one row, (1, n_k),", "one axis, (n_k,),", "one column, (n_q, 1),")
    for kind in kinds:
        assert f"on a mask of {kind} it raises IndexError." in report.remarks


def test_masks_for_each_sequence_may_be_refused():
    def one_mask(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
        if mask is not None:
            _n_q, _n_k = mask.shape
        return answers.right_heads(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask)

    report = check.multi_head_attention(one_mask)
    assert report, report
    assert report.remarks == (
        "on a mask for each sequence, (batch, 1, n_q, n_k), it raises ValueError.",
    )


def test_options_are_handed_on_to_weights():
    def inverted(query, key, value, weights, mask=None):
        mask = mask if mask is None else ~mask
        return attnbook.multi_head_attention(query, key, value, weights, mask)

    assert check.multi_head_attention(inverted).mistake == "mask inverted"


# Merges.


def test_math_of_one_number_overflows_as_arrays_do():
    def with_math(first, second):
        (m1, z1, u1), (m2, z2, u2) = first, second
        f1 = np.array([[math.exp(x)] for x in m1[:, 0]])
        f2 = np.array([[math.exp(x)] for x in m2[:, 0]])
        m = np.maximum(m1, m2)
        return m, np.exp(-m) * (f1 * z1 + f2 * z2), np.exp(-m) * (f1 * u1 + f2 * u2)

    assert check.merge_attention(with_math).mistake == "no maximum"


def test_numbers_that_no_model_explains_name_the_property_that_fails():
    unknown = "Your numbers differ from the reference, and not in a way that this check knows. "

    def message(change):
        def my_merge(first, second):
            return change(first, second, by_the_package(first, second))

        report = check.merge_attention(my_merge)
        assert report.mistake is None
        assert report.message.startswith(unknown.strip())
        return report.message.removeprefix(unknown)

    assert "Exchanging" in message(lambda a, b, out: (out[0], out[1] + a[0] / 7, out[2]))
    assert "read nothing" in message(lambda a, b, out: (out[0], 3 * out[1], out[2]))
    assert "1 added" in message(
        lambda a, b, out: (
            out[0],
            out[1],
            out[2] + a[1] * b[1] * answers.array_namespace(a[0]).exp(-abs(a[0] + b[0])),
        )
    )
