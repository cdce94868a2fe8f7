"""What the Triton kernels are tested on, run by test_kernels_triton.py.

Triton decides when it is first imported whether its kernels are compiled or interpreted, so the
interpreter needs a process of its own: ``TRITON_INTERPRET=1 python triton_cases.py`` runs every
case on the CPU and prints what each found wrong. Nothing here imports Triton at the top. The cases
are those of every rung, from test_kernels.py, and what only these kernels can get wrong.
"""

import json
import math
import sys
import traceback
from dataclasses import dataclass
from functools import partial

import formula
import numpy as np
import oracle
import paged_cases
import test_kernels
import torch
import triton_pointers
import triton_precision
import triton_rules
from cases import ArrayLibrary, Case
from test_kernels import drawn, numbers, some

DTYPES = ("float32", "bfloat16", "float16")
BOTH = DTYPES[:2]
SMALL = {"block_q": 16, "block_k": 16, "warps": 4, "stages": 1}
"""Tiles for the interpreter: many of them in small arrays."""


@dataclass(frozen=True)
class Call:
    """A case, and how it is run."""

    case: Case
    is_causal: bool = False
    dtypes: tuple = ("float32",)
    splits: int = 0  # of the keys, by the decoding path
    grads: bool = True
    change: str = ""  # how the arrays lie in memory

    def arrays(self, device, dtype):
        """Return query, key, value, mask, bias and scale."""
        arrays, options = self.case.arrays(ArrayLibrary("torch", device), dtype)
        scale = self.case.query.shape[-1] ** -0.5 if options["scale"] is None else options["scale"]
        return *map(self.laid_out, arrays), options["mask"], options["bias"], scale

    def laid_out(self, x):
        if self.change == "heads after rows":
            return x.transpose(-2, -3).contiguous().transpose(-2, -3)
        if self.change == "columns first":
            return x.mT.contiguous().mT
        if self.change == "odd start":
            return torch.cat([x[..., :1], x], -1)[..., 1:]
        return x


def blocks():
    """A mask with tiles of 16 x 16 that are hidden, visible as a whole, and mixed."""
    mask = np.zeros((37, 64), dtype=bool)
    mask[:16, 16:48] = mask[16:32, :16] = mask[32:, 48:] = True
    mask[20, 40] = True
    return mask


def same(*widths, n_q=17, n_k=33, **options):
    """Return a case of one head, with rows of d_k and d_v numbers."""
    d_k, d_v = widths
    return drawn((n_q, d_k), (n_k, d_k), (n_k, d_v), **options)


PLAIN = drawn((2, 23, 40), (2, 37, 40), (2, 37, 24))
ONE = ((2, 1, 40), (2, 137, 40), (2, 137, 24))
GROUP = ((2, 3, 2, 8), (2, 1, 53, 8), (2, 1, 53, 8))
TILES = drawn((37, 8), (64, 8), (64, 8), mask=blocks())
CASES = {name: Call(*case) for name, case in test_kernels.CASES.items()}
CASES |= {
    "every dtype": Call(PLAIN, dtypes=DTYPES[1:]),
    "every dtype, causal": Call(same(8, 8, n_q=19, n_k=37), True, DTYPES[1:]),
    "bfloat16, masks": Call(*test_kernels.CASES["everything, more queries"], ("bfloat16",)),
    "bfloat16, grouped": Call(
        drawn(
            *((2, 3, 7, 5), (2, 1, 11, 5), (2, 1, 11, 3)),
            mask=some(2, 1, 1, 11),
            bias=numbers(3, 7, 11),
        ),
        *(True, ("bfloat16",)),
    ),
    "four axes that no three hold, and a mask": Call(
        drawn((2, 1, 3, 1, 5, 8), (1, 2, 1, 3, 7, 8), (1, 2, 1, 3, 7, 8), mask=some(3, 5, 1)),
        True,
    ),
    "no keys, and a mask": Call(same(16, 16, n_k=0, mask=some(17, 0))),
    "no keys, and a bias": Call(same(5, 3, n_k=0, bias=numbers(0))),
    "no queries, and a bias": Call(same(16, 16, n_q=0, n_k=64, bias=numbers(0, 64))),
    "mask of tiles": Call(TILES, dtypes=BOTH),
    "mask of tiles, causal": Call(TILES, True, BOTH),
    "keys without a batch": Call(drawn((3, 2, 5, 8), (2, 7, 8), (2, 7, 8))),
    "values of more heads": Call(drawn((2, 1, 5, 8), (2, 1, 7, 8), (2, 3, 7, 8))),
    "three axes, shared keys": Call(drawn((2, 3, 2, 5, 8), (1, 3, 1, 7, 8), (1, 3, 1, 7, 8))),
    "heads after rows": Call(PLAIN, change="heads after rows"),
    "columns first": Call(PLAIN, change="columns first"),
    "odd start": Call(PLAIN, change="odd start", dtypes=BOTH),
    "width 1": Call(same(1, 1), dtypes=("bfloat16",)),
    "width 64": Call(same(64, 64), dtypes=("bfloat16",)),
    "width 72": Call(same(72, 72, mask=some(17, 33)), dtypes=BOTH),
    "width 80": Call(same(80, 80), True, ("float16",)),
    "width 128": Call(same(128, 128), True, ("bfloat16",)),
    "width 256": Call(same(256, 256, n_k=17), dtypes=("bfloat16",)),
    "width 160, grouped": Call(drawn((2, 3, 5, 160), (2, 1, 7, 160), (2, 1, 7, 160)), dtypes=BOTH),
    "decode": Call(drawn(*ONE), dtypes=DTYPES, splits=3, grads=False),
    "decode, one range": Call(drawn(*ONE), splits=1, grads=False),
    "decode, more ranges than tiles": Call(drawn(*ONE), splits=20, grads=False),
    "decode, grouped": Call(drawn(*GROUP), True, splits=2, grads=False),
    "decode, grouped, heads after rows": Call(
        drawn(*GROUP), True, BOTH, 2, False, "heads after rows"
    ),
    "decode, grouped, odd start": Call(drawn(*GROUP), True, BOTH, 2, False, "odd start"),
    "decode, queries without a batch": Call(
        drawn((1, 3, 2, 8), (2, 1, 53, 8), (2, 1, 53, 8)), splits=2, grads=False
    ),
    "decode, masks": Call(
        drawn(*GROUP, mask=some(2, 1, 1, 53), bias=numbers(3, 2, 53)),
        *(True, BOTH, 4, False),
    ),
    "decode, three axes": Call(
        drawn((2, 3, 2, 1, 8), (1, 3, 1, 37, 8), (1, 3, 1, 37, 8)), splits=2, grads=False
    ),
    "decode, more queries than keys": Call(same(8, 8, n_q=37, n_k=19), True, splits=2, grads=False),
    "decode, mask of nothing": Call(drawn(*ONE, mask=np.array(False)), splits=3, grads=False),
}


def gradients(arrays, rest, grad_output, dtype):
    leaves = [x.detach().to(dtype).requires_grad_() for x in arrays]
    mask, bias, *rest = rest
    output, _ = formula.attention(*leaves, mask, None if bias is None else bias.to(dtype), *rest)
    return torch.autograd.grad(output, leaves, grad_output.to(dtype))


def error(got, exact):
    return float((got.double() - exact).abs().max()) if exact.numel() else 0.0


def compare(name, got, low, exact, dtype, among):
    """Raise unless `got` is at most twice as far from `exact` as PyTorch in the same dtype.

    Plus a rounding of the largest number and, in float32, a few of numbers of the size `among`, the
    largest that enter the sums: PyTorch may be exact by luck. Four times as far for bfloat16 on the
    CPU: Triton's interpreter cuts what a GPU rounds.
    """
    times = 4 if dtype == torch.bfloat16 and got.device.type == "cpu" else 2
    assert got.shape == exact.shape, f"{name}: shape {tuple(got.shape)}, not {tuple(exact.shape)}"
    assert got.dtype == dtype, f"{name}: {got.dtype}"
    largest = float(exact.abs().max()) if exact.numel() else 0.0
    allowed = times * error(low, exact) + torch.finfo(dtype).eps * largest
    allowed += 4 * torch.finfo(torch.float32).eps * among
    off = error(got, exact)
    assert off <= allowed, f"{name}: {off:.2e} from the exact numbers, {allowed:.2e} allowed"


def check(name, device="cpu"):
    """Run a case on a device; raises AssertionError with what is wrong."""
    call = CASES[name]
    for dtype in call.dtypes:
        check_one(call, device, dtype)


def check_one(call, device, dtype):
    from attnbook.arrays.array import sum_to_shape
    from attnbook.kernels import triton
    from attnbook.kernels.triton_kernels import backward, decode, forward
    from attnbook.kernels.triton_kernels.operands import operands
    from attnbook.kernels.triton_kernels.tiles import Tile

    *arrays, mask, bias, scale = call.arrays(device, dtype)
    dtype = arrays[0].dtype
    rest = (mask, bias, scale, call.is_causal)
    x = operands(*arrays, *rest)
    apart = dtype != torch.float32
    small = Tile(**SMALL, apart=apart) if device == "cpu" else None
    if x.is_empty:
        output, log_total = triton.forward(*arrays, *rest)
    elif call.splits:
        output, log_total = decode.forward(x, small, call.splits)
    else:
        output, log_total = forward.forward(x, small)

    host = [x if x is None else x.double().cpu().numpy() for x in arrays]
    seen = np.ones((x.n_q, x.n_k), dtype=bool)
    seen = np.tril(seen, x.n_k - x.n_q) if call.is_causal else seen
    seen = seen if mask is None else seen & mask.cpu().numpy()
    wide = None if bias is None else bias.double().cpu().numpy()
    scores = oracle.scores(*host[:2], seen, wide, scale)
    exact = torch.tensor(oracle.weighted_sum(oracle.softmax(scores), host[2]), device=device)
    low, _ = formula.attention(*arrays, *rest)
    sizes = [float(array.abs().max()) for array in arrays if array.numel()]
    top = np.max(np.abs(scores), initial=0, where=np.isfinite(scores))  # is rounded as well
    among = max([1.0, *sizes]) * (1 + top if top > 100 else 1)
    compare("output", output, low, exact, dtype, among)
    logs = torch.logsumexp(torch.tensor(scores, device=device), -1, keepdim=True)
    logs = logs.expand(log_total.shape)
    assert log_total.dtype == torch.float32
    # The matrix units of a GPU round sums of half precision in their own way.
    atol = 2e-5 if device == "cuda" and dtype != torch.float32 else 4e-6
    torch.testing.assert_close(log_total.double(), logs, rtol=1e-6, atol=atol)
    none = ~torch.isfinite(logs)
    assert not output[none.expand(output.shape)].any(), "a row that sees no key is not 0"
    if not call.grads:
        return
    grad = torch.tensor(np.random.default_rng(8).standard_normal(exact.shape), device=device)
    grad = grad.to(dtype)
    if x.is_empty:
        got = triton.backward(*arrays, *rest, output, log_total, grad)
    else:
        other = None if small is None else Tile(16, 32, 4, 1, apart=apart)
        got = backward.backward(x, output, log_total, grad, other, small)
    lows = gradients(arrays, rest, grad, dtype)
    exacts = gradients(arrays, rest, grad, torch.float64)
    names = ("grad_query", "grad_key", "grad_value")
    for what, own, *others in zip(names, got, lows, exacts, strict=True):
        own = sum_to_shape(own, tuple(others[0].shape)).to(dtype)
        compare(what, own, *others, dtype, among)


# What is no comparison of numbers.


def check_repeats(device="cpu"):
    """The same call gives the same bits, forward, backward and decoding."""
    from attnbook.kernels import triton

    n = 37 if device == "cpu" else 1111
    for n_q in (n + 64, 3):
        shapes = ((3, n_q, 64), (1, n + 64, 64), (1, n + 64, 64))
        arguments = (*Call(drawn(*shapes)).arrays(device, "bfloat16"), True)
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

    x = operands(*CASES["mask of tiles"].arrays(device, "float32"), False)
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

    *arrays, mask, bias, _ = CASES["grouped heads"].arrays(device, "float32")
    leaves = [x.requires_grad_() for x in arrays]
    options = {"mask": mask, "bias": bias, "is_causal": True}
    runs = []
    for impl in ("reference", "triton"):
        output = attnbook.attention(*leaves, **options, impl=impl)
        runs.append((output, *torch.autograd.grad((output**2).sum(), leaves)))
    for ours, theirs in zip(*runs, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def check_negative_scale(device="cpu"):
    """The largest score is that of the smallest product."""
    from attnbook.kernels import triton

    rng = np.random.default_rng(3)
    query, key = torch.full((2, 19, 8), 4.0), torch.ones((2, 137, 8))
    key[:, ::5] = -1.0
    arrays = query, key, torch.tensor(rng.standard_normal((2, 137, 8)))
    for n_q in (19, 1):
        low = [x.to(device, torch.bfloat16) for x in (arrays[0][:, :n_q], *arrays[1:])]
        output, log_total = triton.forward(*low, None, None, -3.0, False)
        exact, _ = formula.attention(*(x.double() for x in low), scale=-3.0)
        torch.testing.assert_close(output.double(), exact, rtol=0.01, atol=0.01)
        torch.testing.assert_close(log_total.cpu(), torch.full((2, n_q, 1), 96 + math.log(28)))


def check_backends(device="cpu"):
    """The rung is listed, on the CPU since the interpreter was asked for."""
    import attnbook

    (found,) = (b for b in attnbook.backends() if b.name == "Triton, CUDA")
    assert "triton" in found.impls
    interpreted = "interpreted on the CPU, since TRITON_INTERPRET is set" in found.detail
    assert interpreted == (device == "cpu")


def check_rounded_once(device="cpu"):
    """Gradients of half precision are summed over heads before they are rounded."""
    from attnbook.kernels import KERNELS

    rung = test_kernels.Rung(KERNELS["triton"], ArrayLibrary("torch", device))
    test_kernels.test_gradients_of_what_is_broadcast_are_rounded_once(rung)


def check_pointers(name, device="cpu"):
    """Run a case or a check as on a GPU on which no TMA loads the rows."""
    with triton_pointers.without_tma():
        run(name, device)


OTHER = {
    "pages": paged_cases.check_pages,
    "backends": check_backends,
    "negative scale": check_negative_scale,
    "repeats": check_repeats,
    "not numbers": check_numbers_that_are_none,
    "lists of tiles": check_lists,
    "by name": check_public,
    "rounded once": check_rounded_once,
}
OTHER |= triton_rules.CHECKS | triton_precision.CHECKS
OTHER |= {f"{x}, by pointers": partial(check_pointers, x) for x in triton_pointers.NAMES}


LARGE = ("64", "64 causal", "128", "128 causal", "128 grouped", "64 mask", "decode")
"""Sizes that fill a GPU, by d: against PyTorch's formula in float64, which needs no loop."""


def check_large(name, device="cuda"):
    """Run many tiles of the size that a GPU uses, in bfloat16."""
    from attnbook.arrays.array import sum_to_shape
    from attnbook.kernels import triton

    d = 128 if "128" in name else 64
    n_q, n_k = (2, 40_001) if name == "decode" else (1031, 1543)
    group = 4 if "grouped" in name else 1
    shapes = ((2, 3, group, n_q, d), (2, 3, 1, n_k, d), (2, 3, 1, n_k, d))
    case = drawn(*shapes, mask=some(n_q, n_k) if "mask" in name else None)
    *arrays, mask, bias, scale = Call(case).arrays(device, "bfloat16")
    if mask is not None:
        mask[:, 128:512], mask[256:512, 512:] = False, True
    rest = (mask, bias, scale, "causal" in name)
    output, log_total = triton.forward(*arrays, *rest)
    exact, _ = formula.attention(*(x.double() for x in arrays), *rest)
    low, _ = formula.attention(*arrays, *rest)
    compare("output", output, low, exact, torch.bfloat16, 1.0)
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
    """Print a JSON object: what each case, or each one named, found wrong; else an empty string."""
    torch.set_num_threads(1)
    found = {}
    for name in sys.argv[1:] or (*CASES, *OTHER):
        try:
            run(name)
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
