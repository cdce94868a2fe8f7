"""Every wrong answer is rejected with its own sentence; right answers in any style pass."""

import importlib
import inspect
import json
import math
import pathlib
import re
import subprocess
import sys

import check_answers as answers
import numpy as np
import pytest
from check_answers import WRONG

import attnbook
from attnbook import check
from attnbook.check import _engine as engine
from attnbook.check._attention import (
    ATTENTION,
    hidden_keys_change_nothing,
    order_of_keys_is_free,
    outputs_between_values,
)
from attnbook.check._causal_mask import CAUSAL_MASK
from attnbook.check._masked_attention import MASKED_ATTENTION
from attnbook.check._model import Case, Check, draw
from attnbook.check._multi_head import MULTI_HEAD_ATTENTION
from attnbook.check._single_head import SINGLE_HEAD
from attnbook.check._softmax import (
    SOFTMAX,
    rows_sum_to_one,
    shift_changes_nothing,
    weights_are_positive,
)
from attnbook.check._split_heads import SPLIT_HEADS
from attnbook.check._vjp import ATTENTION_VJP, key_gradients_cancel, value_gradients_add_up
from attnbook.check._weights import WEIGHTS

TABLES = (
    "_softmax",
    "_weight_mistakes",
    "_weights",
    "_attention",
    "_single_head",
    "_vjp",
    "_split_heads",
    "_multi_head_mistakes",
    "_multi_head",
    "_causal_mask",
    "_masked_attention",
)
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
    )
}
MESSAGES = json.loads(
    (pathlib.Path(__file__).parent / "check_messages.json").read_text(encoding="utf-8")
)
CASES = json.loads((pathlib.Path(__file__).parent / "check_cases.json").read_text(encoding="utf-8"))
PAIRS = [(name, wrong) for name, wrongs in WRONG.items() for wrong in wrongs]


def need_torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def run(name, function, **options):
    return getattr(check, name)(function, **options)


def mistake_of(wrong):
    """Drop the number that tells several answers with one mistake apart."""
    return wrong if wrong == "base 2" else re.sub(r" \d$", "", wrong)


@pytest.fixture
def built_afresh(monkeypatch):
    """The checks, built again: what their tables compute when they are built is tested too."""
    for table in TABLES:
        monkeypatch.delitem(sys.modules, f"attnbook.check.{table}")
    modules = [importlib.import_module(f"attnbook.check.{table}") for table in TABLES]
    built = [x for module in modules for x in vars(module).values() if isinstance(x, Check)]
    return {checked.name: checked for checked in built}


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

TOLD_BY_TYPE = {"list of heads", "additive mask", "numbers for booleans"}
"""Mistakes that show before any number is compared."""


def rejected_with_its_sentence(report, name, wrong):
    mistake = mistake_of(wrong)
    if mistake in ON_A_BATCH or wrong == "sequence before batch 2":
        assert report.passed
        assert any(note.endswith(MESSAGES[name][mistake]) for note in report.notes)
        return
    assert not report
    assert (report.mistake, report.message) == (mistake, MESSAGES[name][mistake])
    assert report.libraries == ()


@pytest.mark.parametrize(("name", "wrong"), PAIRS)
def test_a_wrong_answer_is_rejected_with_its_own_sentence(name, wrong, built_afresh):
    report = engine.run(built_afresh[name], WRONG[name][wrong], 60)
    rejected_with_its_sentence(report, name, wrong)
    given = r"n_q = \d(, n_k = \d)?" if name == "causal_mask" else ".* of float(64|32)"
    if mistake_of(wrong) in TOLD_BY_TYPE:
        assert re.fullmatch(rf"It was given {given}\.", report.detail)
    else:
        assert report.passed or re.search(rf"With {given}: .* (is|must have)", report.detail)


@pytest.mark.parametrize(("name", "wrong"), PAIRS[::3])
def test_a_wrong_answer_in_float32_is_recognised(name, wrong):
    rejected_with_its_sentence(run(name, answers.in_float32(WRONG[name][wrong])), name, wrong)


@pytest.mark.parametrize(("name", "wrong"), PAIRS[1::3])
def test_a_wrong_answer_written_for_pytorch_alone_is_recognised(name, wrong):
    need_torch()
    rejected_with_its_sentence(run(name, answers.only_torch(WRONG[name][wrong])), name, wrong)


@pytest.mark.parametrize("name", CHECKS)
def test_every_mistake_has_a_wrong_answer_and_one_sentence(name, built_afresh):
    mistakes = {mistake.name: mistake.message for mistake in built_afresh[name].mistakes}
    assert len(mistakes) == len(CHECKS[name].mistakes) >= 6
    assert mistakes == MESSAGES[name]
    assert {mistake_of(wrong) for wrong in WRONG[name]} == set(mistakes)
    assert len(set(mistakes.values())) == len(mistakes)


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


RIGHT = {
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
RIGHT_PAIRS = [(name, i) for name, functions in RIGHT.items() for i in range(len(functions))]


@pytest.mark.parametrize(("name", "i"), RIGHT_PAIRS)
def test_a_right_answer_in_any_style_passes(name, i):
    report = run(name, RIGHT[name][i])
    assert report, report
    assert (report.mistake, report.message, report.detail) == (
        None,
        "agrees with the reference",
        "",
    )
    assert "numpy" in report.libraries
    assert report.cases > (3 if (name, i) == ("causal_mask", len(RIGHT[name]) - 1) else 8)
    assert report.require() is report


@pytest.mark.parametrize("name", ONLY_TORCH)
def test_a_right_answer_for_pytorch_alone_passes_with_a_note(name):
    need_torch()
    report = run(name, ONLY_TORCH[name])
    assert report, report
    assert report.libraries == ("torch",)
    if name == "causal_mask":  # no array goes in, so it is called once
        assert (report.cases, report.notes) == (10, ())
    else:
        assert re.match(r"right on PyTorch; on NumPy it raises \w+", report.library_remarks[0])
    assert not any("NumPy" in remark for remark in report.remarks)


def test_a_right_answer_for_numpy_alone_passes_with_a_note():
    need_torch()

    def numpy_softmax(x):
        if not isinstance(x, np.ndarray):
            raise TypeError("an array of NumPy please")
        return answers.sm(x)

    report = check.softmax(numpy_softmax)
    assert report
    assert report.libraries == ("numpy",)
    assert report.library_remarks == (
        "right on NumPy; on PyTorch it raises TypeError: an array of NumPy please, at line "
        f"{numpy_softmax.__code__.co_firstlineno + 2} of numpy_softmax: "
        '`raise TypeError("an array of NumPy please")`.',
    )
    assert report.remarks == (
        "`axis` was not checked: your function takes no argument of that name.",
    )
    assert report.notes == report.remarks + report.library_remarks


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
    report = check.softmax(lambda x: answers.sm(-x))
    assert report.mistake == "sign of the scores"


def test_transpose_of_two_axes_is_right_on_tensors():
    need_torch()

    def attend(q, k, v):  # ndarray.transpose(-2, -1) changes nothing
        return attnbook.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])) @ v

    assert check.attention(attend).libraries == ("torch",)


def test_numpy_functions_that_return_rubbish_for_tensors_pass():
    need_torch()

    def weights(query, key, mask=None):
        scores = query @ np.matrix_transpose(key) / np.sqrt(query.shape[-1])
        scores = scores if mask is None else np.where(mask, scores, -np.inf)
        top = scores.max(axis=-1, keepdims=True)  # a pair of tensors in PyTorch
        e = np.exp(scores - np.where(top == -np.inf, 0, top))
        total = e.sum(axis=-1, keepdims=True)
        return e / np.where(total == 0, 1, total)

    report = check.attention_weights(weights)
    assert report.passed
    assert report.libraries == ("numpy",)
    assert "right on NumPy; on PyTorch its result differs." in report.notes


def test_the_package_is_right_in_every_library_that_is_present():
    libraries = ("numpy", "torch") if "PyTorch, CPU" in ready() else ("numpy",)
    for name in CHECKS:
        report = run(name, RIGHT[name][0])
        wanted = libraries[:1] if name == "causal_mask" else libraries
        assert report.libraries[: len(wanted)] == wanted
        assert report.notes == ()


def ready():
    return {backend.name for backend in attnbook.backends() if backend.available}


def test_every_option_that_is_taken_is_checked():
    def count(name, function):
        report = run(name, function)
        assert report, report
        return report.cases / len(report.libraries)

    assert count("softmax", lambda x: attnbook.softmax(x)) == 14
    assert count("softmax", attnbook.softmax) == 19
    assert count("attention_weights", lambda q, k: attnbook.attention_weights(q, k)) == 16
    assert count("attention_weights", attnbook.attention_weights) == 24
    assert (
        count("attention", lambda q, k, v, *, scale=None: attnbook.attention(q, k, v, scale=scale))
        == 17
    )
    assert (
        count("attention", lambda q, k, v, bias=None: attnbook.attention(q, k, v, bias=bias)) == 17
    )
    assert count("attention", lambda q, k, v, **o: attnbook.attention(q, k, v, **o)) == 22
    assert count("single_head", answers.head(answers.right_attention)) == 15
    assert count("single_head", head_with_output) == 13
    assert count("single_head", head_with_weights) == 13
    assert count("single_head", attnbook.single_head_attention) == 17
    assert count("attention_vjp", attnbook.attention_vjp) == 20
    assert count("split_heads", attnbook.split_heads) == 13
    assert count("multi_head_attention", answers.right_heads) == 22
    assert count("multi_head_attention", heads_in_a_loop) == 14
    assert count("multi_head_attention", attnbook.multi_head_attention) == 22
    assert count("causal_mask", answers.right_causal) == 10
    assert count("causal_mask", lambda n: np.tri(n, dtype=bool)) == 4
    assert count("masked_attention", attnbook.attention) == 26


def test_a_batch_that_raises_is_remarked_upon_by_name_of_the_error():
    def one_sequence(query, key, value):
        _n_q, d_k = query.shape
        return answers.sm(query @ key.T / d_k**0.5) @ value

    report = check.attention(one_sequence)
    assert report
    assert report.remarks == (
        "`mask` was not checked: your function takes no argument of that name.",
        "on a batch (leading axes) it raises ValueError.",
    )


def test_what_goes_wrong_on_a_batch_is_a_remark():
    report = check.attention(WRONG["attention"]["softmax over axis 1 of a batch"])
    sentence = MESSAGES["attention"]["softmax over axis 1 of a batch"]
    assert f"on a batch (leading axes) its result is wrong. {sentence}" in report.remarks
    report = check.attention(WRONG["attention"]["all axes reversed"])
    sentence = MESSAGES["attention"]["all axes reversed"]
    assert f"on a batch (leading axes) it raises ValueError. {sentence}" in report.remarks
    report = check.softmax(lambda x: np.stack([answers.sm(row) for row in np.atleast_2d(x)]))
    assert report.passed
    assert "on a single row (one axis) its result is wrong." in report.remarks


def test_another_dtype_or_library_is_remarked_upon():
    report = check.softmax(answers.loop_softmax)
    assert "it returns float64 for float32." in report.remarks
    if "PyTorch, CPU" in ready():
        assert "it returns an array of NumPy for one of PyTorch." in report.library_remarks
        assert "it returns an array of NumPy for one of PyTorch." not in report.remarks
    report = check.softmax(answers.in_float32(answers.right_softmax))
    assert report
    assert "it returns float32 for float64." in report.remarks
    report = check.softmax(lambda x: answers.right_softmax(x).astype(np.float16))
    assert "it returns float16 for float64." in report.remarks
    assert report


def test_small_errors_are_errors_and_rounding_is_not():
    assert check.softmax(lambda x: answers.sm(x) * (1 + 5e-6))
    report = check.softmax(lambda x: answers.sm(x) * (1 + 2**-13))
    assert not report
    assert report.detail == (
        "With x (2, 1) of float64: weights[0, 0] is 1.0001220703125, expected 1."
    )
    narrow = answers.in_float32(answers.right_softmax)
    assert check.softmax(lambda x: narrow(x) * np.float32(1 + 5e-5))
    assert not check.softmax(lambda x: narrow(x) * np.float32(1 + 2e-4))


# How a report reads.


def test_a_report_of_success_in_a_notebook():
    assert repr(check.attention(attnbook.attention)) == "✓ attention: agrees with the reference"
    assert repr(check.attention(row_by_row)) == (
        "✓ attention: agrees with the reference\n"
        "  Note: `mask` was not checked: your function takes no argument of that name.\n"
        "  Note: on a batch (leading axes) it raises ValueError."
    )


def test_a_report_of_failure_in_a_notebook():
    text = repr(check.attention(WRONG["attention"]["no scale"]))
    assert text == (
        "✗ attention: Your weights are those of attention without the 1/√d_k: dot\n"
        "  products of d_k terms grow like √d_k, and the softmax saturates. Divide the\n"
        "  scores by √d_k before the softmax.\n"
        "  With query (3, 3), key (3, 3), value (3, 3) of float64: output[0, 0] is\n"
        "  0.4974, expected 0.3222."
    )


def test_reports_are_the_same_whatever_is_installed(monkeypatch):
    functions = {
        "softmax": WRONG["softmax"]["no maximum"],
        "attention": row_by_row,
        "single_head": answers.loop_head,
    }
    with_all = {name: repr(run(name, f)) for name, f in functions.items()}
    only_numpy = [b for b in attnbook.backends() if b.name == "NumPy, CPU"]
    monkeypatch.setattr("attnbook.check._engine.backends", lambda: only_numpy)
    assert {name: repr(run(name, f)) for name, f in functions.items()} == with_all
    assert check.attention(row_by_row).libraries == ("numpy",)


def test_require_raises_the_text_of_the_report():
    report = check.softmax(WRONG["softmax"]["no maximum"])
    with pytest.raises(check.CheckFailed) as caught:
        report.require()
    assert str(caught.value) == repr(report)
    assert isinstance(caught.value, AssertionError)
    assert bool(report) is False


def test_a_report_is_78_columns_wide_and_breaks_no_word_at_a_hyphen():
    def shown(message):
        return repr(check.Report("c", True, None, message, "", (), (), 0, ()))

    assert shown("x" * 40 + " " + "y" * 32) == "✓ c: " + "x" * 40 + " " + "y" * 32
    assert shown("x" * 40 + " " + "y" * 33) == "✓ c: " + "x" * 40 + "\n  " + "y" * 33
    assert shown("x" * 60 + " " + "y" * 15 + "-" + "z" * 15).split("\n  ")[1] == (
        "y" * 15 + "-" + "z" * 15
    )


def test_the_time_limit_is_ten_seconds_unless_given():
    for name in CHECKS:
        assert inspect.signature(getattr(check, name)).parameters["time_limit"].default == 10.0


def test_a_report_is_frozen():
    with pytest.raises(AttributeError):
        check.softmax(attnbook.softmax).passed = False


def test_importing_the_checks_is_light():
    code = "import sys, attnbook.check; print('torch' in sys.modules, 'cupy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_the_cases_are_those_that_were_looked_at(built_afresh):
    """Sizes, masks and numbers of every case; a change must be meant."""
    draw.cache_clear()
    assert set(built_afresh) == set(CASES)
    for name, checked in built_afresh.items():
        assert described(checked) == CASES[name]


def described(checked):
    return [
        {
            "option": stage.option,
            "beyond": stage.beyond,
            "may_raise": stage.may_raise,
            "within": stage.within,
            "errors": [error.__name__ for error in stage.errors],
            "cases": [f"{case}: {checksum(case)}" for case in stage.cases],
        }
        for stage in checked.stages
    ]


def checksum(case):
    given = [*case.arguments.values(), *case.options.values()]
    return " ".join(f"{float(np.sum(np.cos(x + 1.0))):.4g}" for x in given)


def write_records():
    """Write both records anew from the checks as they are; run this file to do so."""
    messages = {name: {m.name: m.message for m in c.mistakes} for name, c in CHECKS.items()}
    cases = {name: described(c) for name, c in CHECKS.items()}
    folder = pathlib.Path(__file__).parent
    for name, record, indent in (("check_messages", messages, 2), ("check_cases", cases, 1)):
        text = json.dumps(record, indent=indent, ensure_ascii=False)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8", newline="\n")


def test_the_sizes_of_a_case_are_all_different_somewhere():
    different = {
        "softmax": 2,
        "attention_weights": 3,
        "single_head": 7,
        "split_heads": 2,
        "multi_head_attention": 5,
        "causal_mask": 0,
    }
    for name, checked in CHECKS.items():
        sizes = [
            [size for x in case.arrays.values() for size in x.shape]
            for case in checked.stages[0].cases
        ]
        assert any(len(set(case)) == 1 for case in sizes) or name == "causal_mask"
        assert max(len(set(case)) for case in sizes) == different.get(name, 4)


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


# Numbers that no model explains.


@pytest.mark.parametrize(
    ("name", "function", "sentence"),
    [
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


if __name__ == "__main__":
    write_records()
