"""What the Triton kernels are tested on, run by test_kernels_triton.py.

Triton decides when it is first imported whether its kernels are compiled or interpreted, so the
interpreter needs a process of its own: ``TRITON_INTERPRET=1 python tests/triton_cases.py`` runs
every case on the CPU and prints what each found wrong. Nothing here imports Triton at the top.
"""

import json
import sys
import traceback
from dataclasses import dataclass, field

import numpy as np
import oracle
import torch

DTYPES = ("float32", "bfloat16", "float16")
BOTH = DTYPES[:2]
SMALL = {"block_q": 16, "block_k": 16, "warps": 4, "stages": 1}
"""Tiles for the interpreter: many of them in small arrays."""


@dataclass(frozen=True)
class Case:
    """Shapes of query, key and value, and what else a call takes."""

    query: tuple
    key: tuple
    value: tuple
    options: dict = field(default_factory=dict)  # name: function of a generator, or a number
    is_causal: bool = False
    dtypes: tuple = ("float32",)
    splits: int = 0  # of the keys, by the decoding path
    grads: bool = True
    change: str = ""  # how the arrays lie in memory

    def arrays(self, device, dtype):
        """Return query, key, value, mask, bias and scale."""
        rng = np.random.default_rng(7)
        drawn = [rng.standard_normal(s) for s in (self.query, self.key, self.value)]
        given = {k: f(rng) if callable(f) else f for k, f in self.options.items()}
        drawn = [given.get(k, x) for k, x in zip(("query", "key", "value"), drawn, strict=True)]
        arrays = [self.laid_out(torch.tensor(x, device=device).to(dtype)) for x in drawn]
        mask, bias = given.get("mask"), given.get("bias")
        mask = None if mask is None else torch.tensor(mask, device=device)
        bias = None if bias is None else torch.tensor(bias, device=device).to(dtype)
        return *arrays, mask, bias, given.get("scale", max(self.query[-1], 1) ** -0.5)

    def laid_out(self, x):
        if self.change == "heads after rows":
            return x.transpose(-2, -3).contiguous().transpose(-2, -3)
        if self.change == "columns first":
            return x.mT.contiguous().mT
        if self.change == "odd start":
            return torch.cat([x[..., :1], x], -1)[..., 1:]
        return x


def random(*shape):
    return lambda rng: rng.random(shape) < 0.6


def numbers(*shape):
    return lambda rng: rng.standard_normal(shape)


def empty_rows(rng):
    mask = rng.random((2, 23, 37)) < 0.6
    mask[0, 3] = mask[1, :17] = False
    return mask


def blocks(rng):
    """A mask with tiles of 16 x 16 that are hidden, visible as a whole, and mixed."""
    mask = np.zeros((37, 64), dtype=bool)
    mask[:16, 16:48] = mask[16:32, :16] = mask[32:, 48:] = True
    mask[20, 40] = True
    return mask


def far(rng):
    """Queries that meet one key at 10,000, another at 9,900 and most at −10,000."""
    x = np.full((7, 2), 100.0)
    x[3] = -100.0
    return x


def far_keys(rng):
    x = np.full((37, 2), -50.0)
    x[5], x[11], x[20] = (50.0, 50.0), (50.0, 49.0), (-60.0, 60.0)
    return x


PLAIN = ((2, 23, 40), (2, 37, 40), (2, 37, 24))
WIDE, TALL = ((19, 8), (37, 8), (37, 8)), ((37, 8), (19, 8), (19, 8))
GROUPED = ((2, 3, 19, 8), (2, 1, 37, 8), (2, 1, 37, 5))
ONE = ((2, 1, 40), (2, 137, 40), (2, 137, 24))
CASES = {
    "plain": Case(*PLAIN, dtypes=DTYPES),
    "causal, fewer queries": Case(*WIDE, is_causal=True, dtypes=DTYPES),
    "causal, more queries": Case(*TALL, is_causal=True, dtypes=BOTH),
    "mask": Case(*PLAIN, {"mask": random(2, 23, 37)}),
    "mask of tiles": Case((37, 8), (64, 8), (64, 8), {"mask": blocks}),
    "mask of tiles, causal": Case((37, 8), (64, 8), (64, 8), {"mask": blocks}, True, BOTH),
    "mask of keys": Case(*WIDE, {"mask": random(37)}),
    "mask of queries": Case(*WIDE, {"mask": random(19, 1)}),
    "mask of nothing": Case(*WIDE, {"mask": lambda rng: np.array(False)}),
    "empty rows": Case(*PLAIN, {"mask": empty_rows}),
    "bias": Case(*WIDE, {"bias": numbers(19, 37)}),
    "bias of keys": Case(*WIDE, {"bias": numbers(37)}),
    "everything": Case(
        *WIDE, {"mask": random(19, 37), "bias": numbers(19, 37), "scale": 0.3}, True
    ),
    "everything, more queries": Case(*TALL, {"mask": random(37, 19), "bias": numbers(19)}, True),
    "scale 0": Case(*WIDE, {"scale": 0.0}),
    "grouped heads": Case(*GROUPED, is_causal=True),
    "grouped heads, masks": Case(
        *GROUPED, {"mask": random(2, 1, 1, 37), "bias": numbers(3, 19, 37)}, True, BOTH
    ),
    "keys without a batch": Case((2, 2, 19, 8), (2, 17, 8), (2, 17, 8)),
    "values of more heads": Case((2, 1, 19, 8), (2, 1, 17, 8), (2, 3, 17, 8)),
    "three axes": Case(
        *((2, 3, 2, 5, 8), (2, 3, 2, 7, 8), (2, 3, 2, 7, 8)), {"mask": random(2, 1, 2, 1, 7)}
    ),
    "three axes, shared keys": Case((2, 3, 2, 5, 8), (1, 3, 1, 7, 8), (1, 3, 1, 7, 8)),
    "decode, three axes": Case(
        (2, 3, 2, 1, 8), (1, 3, 1, 37, 8), (1, 3, 1, 37, 8), splits=2, grads=False
    ),
    "axes that do not merge": Case(
        (2, 1, 2, 1, 7, 8),
        (1, 2, 1, 3, 5, 8),
        (1, 2, 1, 3, 5, 8),
        {"mask": random(2, 1, 1, 3, 1, 5)},
    ),
    "heads after rows": Case(*PLAIN, change="heads after rows"),
    "columns first": Case(*PLAIN, change="columns first"),
    "odd start": Case(*PLAIN, change="odd start", dtypes=BOTH),
    "width 1": Case((19, 1), (37, 1), (37, 1), dtypes=BOTH),
    "width 0": Case((19, 0), (37, 0), (37, 3), {"scale": 1.0}),
    "values of width 0": Case((19, 8), (37, 8), (37, 0)),
    "width 64": Case((17, 64), (33, 64), (33, 64), dtypes=("bfloat16",)),
    "width 80": Case((17, 80), (33, 80), (33, 80), is_causal=True, dtypes=("float16",)),
    "width 128": Case((17, 128), (33, 128), (33, 128), is_causal=True, dtypes=("bfloat16",)),
    "width 256": Case((17, 256), (17, 256), (17, 256), dtypes=("bfloat16",)),
    "one token": Case((1, 8), (1, 8), (1, 8)),
    "no queries": Case((2, 0, 8), (2, 5, 8), (2, 5, 8)),
    "no keys": Case((2, 5, 8), (2, 0, 8), (2, 0, 8), is_causal=True),
    "no heads": Case((0, 5, 8), (0, 7, 8), (0, 7, 8)),
    "logits of 10,000": Case(
        (7, 2), (37, 2), (37, 5), {"query": far, "key": far_keys, "scale": 1.0}, dtypes=("float32",)
    ),
    "decode": Case(*ONE, splits=3, grads=False, dtypes=DTYPES),
    "decode, one range": Case(*ONE, splits=1, grads=False),
    "decode, more ranges than tiles": Case(*ONE, splits=20, grads=False),
    "decode, grouped": Case(
        (2, 3, 2, 8), (2, 1, 53, 8), (2, 1, 53, 8), {}, True, splits=2, grads=False
    ),
    "decode, masks": Case(
        *((2, 3, 2, 8), (2, 1, 53, 8), (2, 1, 53, 8)),
        {"mask": random(2, 1, 1, 53), "bias": numbers(3, 2, 53)},
        *(True, BOTH, 4, False),
    ),
    "decode, more queries than keys": Case(*TALL, {}, True, splits=2, grads=False),
    "decode, mask of nothing": Case(
        *ONE, {"mask": lambda rng: np.array(False)}, splits=3, grads=False
    ),
}


def reference(query, key, value, mask, bias, scale, is_causal):
    """Return the formula as PyTorch computes it in the dtype of its arrays."""
    scores = query @ key.mT * scale
    scores = scores if bias is None else scores + bias
    n_q, n_k = scores.shape[-2:]
    seen = torch.ones(n_q, n_k, dtype=torch.bool, device=query.device)
    seen = seen.tril(n_k - n_q) if is_causal else seen
    seen = seen if mask is None else seen & mask
    scores = scores.masked_fill(~seen, -torch.inf)
    weights = scores.softmax(-1).masked_fill(~seen, 0) if n_k else scores
    return weights @ value


def gradients(arrays, rest, grad_output, dtype):
    leaves = [x.detach().to(dtype).requires_grad_() for x in arrays]
    mask, bias, *rest = rest
    output = reference(*leaves, mask, None if bias is None else bias.to(dtype), *rest)
    return torch.autograd.grad(output, leaves, grad_output.to(dtype))


def error(got, exact):
    return float((got.double() - exact).abs().max()) if exact.numel() else 0.0


def compare(name, got, low, exact, dtype, among):
    """Raise unless `got` is at most twice as far from `exact` as PyTorch in the same dtype.

    Plus a few roundings of numbers of the size `among`, the largest that enter the sums. Four
    times as far for bfloat16 on the CPU: Triton's interpreter cuts what a GPU rounds.
    """
    times = 4 if dtype == torch.bfloat16 and got.device.type == "cpu" else 2
    assert got.shape == exact.shape, f"{name}: shape {tuple(got.shape)}, not {tuple(exact.shape)}"
    assert got.dtype == dtype, f"{name}: {got.dtype}"
    allowed = times * error(low, exact) + 4 * torch.finfo(torch.float32).eps * among
    off = error(got, exact)
    assert off <= allowed, f"{name}: {off:.2e} from the exact numbers, {allowed:.2e} allowed"


def check(name, device="cpu"):
    """Run a case on a device; raises AssertionError with what is wrong."""
    case = CASES[name]
    for dtype in case.dtypes:
        check_one(case, device, getattr(torch, dtype))


def check_one(case, device, dtype):
    from attnbook.arrays.arguments import sum_to_shape
    from attnbook.kernels import triton
    from attnbook.kernels.triton_kernels import backward, decode, forward
    from attnbook.kernels.triton_kernels.operands import operands
    from attnbook.kernels.triton_kernels.tiles import Tile

    *arrays, mask, bias, scale = case.arrays(device, dtype)
    rest = (mask, bias, scale, case.is_causal)
    x = operands(*arrays, *rest)
    small = Tile(**SMALL) if device == "cpu" else None
    if x.is_empty:
        output, log_total = triton.forward(*arrays, *rest)
    elif case.splits:
        output, log_total = decode.forward(x, small, case.splits)
    else:
        output, log_total = forward.forward(x, small)

    host = [x if x is None else x.double().cpu().numpy() for x in arrays]
    seen = np.ones((case.query[-2], case.key[-2]), dtype=bool)
    seen = np.tril(seen, case.key[-2] - case.query[-2]) if case.is_causal else seen
    seen = seen if mask is None else seen & mask.cpu().numpy()
    wide = None if bias is None else bias.double().cpu().numpy()
    scores = oracle.scores(*host[:2], seen, wide, scale)
    exact = torch.tensor(oracle.weighted_sum(oracle.softmax(scores), host[2]), device=device)
    low = reference(*arrays, *rest)
    among = max([1.0, *(float(x.abs().max()) for x in arrays if x.numel())])
    among *= case.query[-2] if among > 50 else 1  # a sum of so many such numbers, which cancel
    compare("output", output, low, exact, dtype, among)
    logs = torch.logsumexp(torch.tensor(scores, device=device), -1, keepdim=True)
    logs = logs.expand(log_total.shape)
    assert log_total.dtype == torch.float32
    torch.testing.assert_close(log_total.double(), logs, rtol=1e-6, atol=4e-6)
    none = ~torch.isfinite(logs)
    assert not output[none.expand(output.shape)].any(), "a row that sees no key is not 0"
    if not case.grads:
        return
    grad = torch.tensor(np.random.default_rng(8).standard_normal(exact.shape), device=device)
    grad = grad.to(dtype)
    if x.is_empty:
        got = triton.backward(*arrays, *rest, output, log_total, grad)
    else:
        other = None if small is None else Tile(16, 32, 4, 1)
        got = backward.backward(x, output, log_total, grad, other, small)
    lows = gradients(arrays, rest, grad, dtype)
    exacts = gradients(arrays, rest, grad, torch.float64)
    names = ("grad_query", "grad_key", "grad_value")
    for what, own, *others in zip(names, got, lows, exacts, strict=True):
        compare(what, sum_to_shape(own, tuple(others[0].shape)), *others, dtype, among)


# What is no comparison of numbers.


def check_repeats(device="cpu"):
    """The same call gives the same bits, forward, backward and decoding."""
    from attnbook.kernels import triton

    n = 37 if device == "cpu" else 1111
    for n_q in (n + 64, 3):
        shapes = ((2, 3, n_q, 64), (2, 1, n + 64, 64), (2, 1, n + 64, 64))
        arguments = (*Case(*shapes).arrays(device, torch.bfloat16), True)
        runs = []
        for _ in range(2):
            after = triton.forward(*arguments)
            runs.append((*after, *triton.backward(*arguments, *after, after[0])))
        assert all(torch.equal(x, y) for x, y in zip(*runs, strict=True))


def check_numbers_that_are_none(device="cpu"):
    """NaN or +∞ in a visible score makes its row NaN, in a hidden one it does nothing."""
    from attnbook.kernels import triton

    query, key, value = torch.ones((3, 19, 8)), torch.ones((3, 80, 8)), torch.ones((3, 80, 8))
    key[0, 70], key[1, 70], key[2, 70] = torch.nan, torch.inf, -torch.inf
    mask = torch.ones((19, 80), dtype=torch.bool)
    mask[5, 70] = False
    arrays = (x.to(device) for x in (query, key, value, mask))
    with np.errstate(invalid="ignore"):  # the interpreter's NumPy
        output = triton.attention(*arrays, None, 1.0, False).cpu()
    other = torch.arange(19) != 5
    assert torch.isnan(output[:2, other]).all()
    assert (output[:2, 5] == 1).all()
    assert (output[2] == 1).all()


def check_lists(device="cpu"):
    """Of the tiles of a mask: how many visible as a whole, how many at all, and which."""
    from attnbook.kernels.triton_kernels.operands import operands
    from attnbook.kernels.triton_kernels.tiles import Tile, tiles_to_visit

    case = CASES["mask of tiles"]
    x = operands(*case.arrays(device, torch.float32), False)
    for of_keys, expected in (
        (False, [[2, 2, 1, 2], [1, 2, 0, 2], [1, 1, 3]]),
        (True, [[1, 1, 1], [1, 1, 0], [1, 2, 0, 1], [1, 1, 2]]),
    ):
        tiles, _ = tiles_to_visit(x, Tile(**SMALL), of_keys)
        rows = [row[: 2 + row[1]] for row in tiles[0, 0, 0].tolist()]
        assert rows == expected, rows


def check_public(device="cpu"):
    """By name, through the public function, with autograd; grouped heads by a masked model."""
    import attnbook

    *arrays, mask, bias, _ = CASES["grouped heads, masks"].arrays(device, torch.float32)
    leaves = [x.requires_grad_() for x in arrays]
    options = {"mask": mask, "bias": bias, "is_causal": True}
    runs = []
    for impl in ("reference", "triton"):
        output = attnbook.attention(*leaves, **options, impl=impl)
        runs.append((output, *torch.autograd.grad((output**2).sum(), leaves)))
    for ours, theirs in zip(*runs, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


OTHER = {
    "repeats": check_repeats,
    "not numbers": check_numbers_that_are_none,
    "lists of tiles": check_lists,
    "by name": check_public,
}


LARGE = ("64", "64 causal", "128", "128 causal", "128 grouped", "64 mask", "decode")
"""Sizes that fill a GPU, by d: against PyTorch's formula in float64, which needs no loop."""


def check_large(name, device="cuda"):
    """Run many tiles of the size that a GPU uses, in bfloat16."""
    from attnbook.arrays.arguments import sum_to_shape
    from attnbook.kernels import triton

    d = 128 if "128" in name else 64
    n_q, n_k = (2, 40_001) if name == "decode" else (1031, 1543)
    group = 4 if "grouped" in name else 1
    shapes = ((2, 3, group, n_q, d), (2, 3, 1, n_k, d), (2, 3, 1, n_k, d))
    options = {"mask": random(n_q, n_k)} if "mask" in name else {}
    *arrays, mask, bias, scale = Case(*shapes, options).arrays(device, torch.bfloat16)
    if mask is not None:
        mask[:, 128:512], mask[256:512, 512:] = False, True
    rest = (mask, bias, scale, "causal" in name)
    output, log_total = triton.forward(*arrays, *rest)
    exact = reference(*(x.double() for x in arrays), *rest)
    compare("output", output, reference(*arrays, *rest), exact, torch.bfloat16, 1.0)
    grad = torch.ones_like(output) * output.sign()
    got = triton.backward(*arrays, *rest, output, log_total, grad)
    lows = gradients(arrays, rest, grad, torch.bfloat16)
    exacts = gradients(arrays, rest, grad, torch.float64)
    for own, low, exact in zip(got, lows, exacts, strict=True):
        compare("gradient", sum_to_shape(own, tuple(exact.shape)), low, exact, torch.bfloat16, 1.0)


def run(name, device="cpu"):
    """Run one case or check by name."""
    if name in OTHER:
        OTHER[name](device)
    else:
        check(name, device)


def main():
    """Print a JSON object: what each case found wrong, an empty string if nothing."""
    torch.set_num_threads(1)
    found = {}
    for name in (*CASES, *OTHER):
        try:
            run(name)
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
