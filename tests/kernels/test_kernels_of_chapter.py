"""The Triton kernels that a chapter prints and runs in the interpreter: a GPU takes them, too."""

import re

import pytest
import torch
from sass import Hopper
from test_book import BOOK

triton = pytest.importorskip("triton", reason="triton is not installed")

CELL = re.compile(r"^```\{code-cell\} ipython3\n(@triton\.jit\n.*?)^```$", re.M | re.S)
CODE = "\n\n".join(CELL.findall((BOOK / "fast_attention.md").read_text("utf8")))
BEGINS = """\
import math

import torch
import triton
import triton.language as tl


"""


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    """The definitions of the chapter's kernels, as a module of a file that Triton can read."""
    definitions = re.sub(r"^print\(.*\)$", "", CODE, flags=re.M)
    path = tmp_path_factory.mktemp("chapter") / "kernels.py"
    path.write_text(BEGINS + definitions, encoding="utf8")
    space = {"__name__": "kernels"}
    exec(compile(path.read_text("utf8"), str(path), "exec"), space)
    return space


@pytest.mark.parametrize(("dtype", "t"), [(torch.float32, 16), (torch.bfloat16, 64)])
@pytest.mark.parametrize("name", ["causal_kernel", "skipping_kernel", "grouped_kernel"])
def test_it_compiles_for_a_gpu(chapter, name, dtype, t, monkeypatch):
    """In half precision to the Tensor Cores of Hopper, and heads may lie beyond 2³¹ numbers."""
    monkeypatch.setattr(triton.runtime.driver, "_active", Hopper())
    arrays = [torch.empty((4, 75, 32), dtype=dtype) for _ in range(4)]
    numbers = (75, 0.25, 2) if name == "grouped_kernel" else (75, 0.25)
    kernel = chapter[name].warmup(*arrays, *numbers, D=32, T=t, grid=(5, 4))
    assert len(kernel.asm["cubin"]) > 1000
    assert ("wgmma" in kernel.asm["ptx"]) == (dtype == torch.bfloat16)
    (head,) = re.findall(r"(%\w+) = tt.get_program_id y", kernel.asm["ttir"])
    uses = re.findall(rf"= .*{head}\b.*", kernel.asm["ttir"])
    assert len(uses) == 1
    assert f"arith.extsi {head} : i32 to i64" in uses[0]


def test_every_kernel_of_the_chapter_is_here(chapter):
    found = {name for name, x in chapter.items() if isinstance(x, triton.JITFunction)}
    assert found == {"causal_kernel", "read_keys", "skipping_kernel", "grouped_kernel"}
