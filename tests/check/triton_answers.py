"""The answers of the chapter in Triton, run in its interpreter by test_kernel_checks.py.

Triton decides at its first import whether it interprets, so this is a program of its own. It
prints what the two checks say of kernels that differ in a line.
"""

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl

from attnbook import check

T = 16


@triton.jit
def kernel(
    q_at, k_at, v_at, o_at, n, group, own, D: tl.constexpr, T: tl.constexpr, BUG: tl.constexpr
):
    tile, head = tl.program_id(0), tl.program_id(1)
    of_keys = head % own if BUG == "heads in turn" else head // group
    columns = tl.arange(0, D)[None, :]
    rows = tile * T + tl.arange(0, T)[:, None]
    q_at += head * n * D + rows * D + columns
    q = tl.load(q_at, mask=rows < n, other=0.0)
    m, z = tl.full((T, 1), float("-inf"), tl.float32), tl.zeros((T, 1), tl.float32)
    u = tl.zeros((T, D), q.dtype if BUG == "sums in half precision" else tl.float32)
    end = n if BUG == "hidden tiles read" else tile * T + 1
    if BUG == "diagonal tile left out":
        end = tile * T
    for left in range(0, end, T):
        keys = left + tl.arange(0, T)[:, None]
        there = of_keys * n * D + keys * D + columns
        k = tl.load(k_at + there, mask=keys < n, other=0.0)
        v = tl.load(v_at + there, mask=keys < n, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") / 4
        s = tl.where(tl.trans(keys) <= rows, s, float("-inf"))
        before, m = m, tl.maximum(m, tl.max(s, 1, keep_dims=True))
        p, fade = tl.exp(s - m), tl.exp(before - m)
        z = fade * z + tl.sum(p, 1, keep_dims=True)
        if BUG == "weighted not rescaled":
            fade = 1.0
        u = (fade * u + tl.dot(p.to(v.dtype), v, input_precision="ieee")).to(u.dtype)
    o_at += head * n * D + rows * D + columns
    tl.store(o_at, (u / z).to(q.dtype), mask=rows < n)


def answer(bug=""):
    def attend(query, key, value):
        heads, n, d = query.shape
        output = torch.empty_like(query)
        grid = triton.cdiv(n, T), heads
        given = query, key, value, output, n, heads // len(key), len(key)
        kernel[grid](*given, D=d, T=T, BUG=bug)
        return output

    return attend


BUGS = {
    "tiled_attention": (
        *("hidden tiles read", "diagonal tile left out", "weighted not rescaled"),
        *("sums in half precision", ""),
    ),
    "grouped_attention": ("heads in turn", ""),
}


def main():
    torch.set_num_threads(1)
    found = {}
    for name, bugs in BUGS.items():
        for bug in bugs:
            report = getattr(check, name)(answer(bug), time_limit=100)
            found[f"{name}: {bug}"] = [report.passed, report.mistake, report.libraries]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
