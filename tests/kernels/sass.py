"""The machine code of Triton kernels, compiled for a GPU and read without one.

PTX does not tell what a GPU will do: only the last step, by `ptxas`, gives out registers, keeps in
memory what does not fit ("spills"), and decides whether a product on the Tensor Cores (HGMMA) runs
beside other work or is waited for at once (WARPGROUP.DEPBAR behind each). So these are read from
the binary, by the programs that the wheel of Triton has beside its compiler.
"""

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

REGISTERS, THREADS, SHARED = 65_536, 2048, 228 * 1024
"""What a multiprocessor of compute capability 9.0 has; a block takes 1 KiB more than it asks."""
SHARED_OF_A_BLOCK = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""KiB of shared memory that a block may have, by compute capability."""
LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*);")
"""A line of machine code: address, operation, operands."""


PRODUCTS = ("HGMMA", "HMMA", "UTCHMMA", "UTCQMMA")
"""Products on the Tensor Cores, by generation; those of sm_100 are of one thread for all."""


@dataclass(frozen=True)
class Instruction:
    address: int
    name: str  # with its suffixes: HGMMA.64x64x16.F32.BF16
    operands: str

    def is_a(self, name):
        return self.name == name or self.name.startswith(name + ".")

    @property
    def target(self):
        """Where a branch leads, or None."""
        found = re.search(r"0x([0-9a-f]+)", self.operands) if self.is_a("BRA") else None
        return int(found[1], 16) if found else None


@dataclass(frozen=True)
class MachineCode:
    """One compiled kernel."""

    kernel: object = field(repr=False)  # as Triton returns it, with `asm` and `metadata`
    sass: str = field(repr=False)
    registers: int  # of a thread
    stack: int  # bytes of a thread in memory

    @cached_property
    def instructions(self):
        lines = LINE.finditer(self.sass)
        return [Instruction(int(line[1], 16), line[2], line[3]) for line in lines]

    def count(self, *names):
        """Return how many instructions have one of these names, with any suffix."""
        return sum(x.is_a(name) for x in self.instructions for name in names)

    @property
    def spills(self):
        """How many instructions move registers to memory and back."""
        return self.count("STL", "LDL")

    @property
    def products(self):
        """How many products the Tensor Cores of Hopper do."""
        return self.count("HGMMA")

    @property
    def waits(self):
        """How many instructions wait for them: as many as `products` where none runs beside."""
        return self.count("WARPGROUP.DEPBAR")

    @property
    def shared(self):
        """Bytes of shared memory of a block."""
        return self.kernel.metadata.shared

    @property
    def threads(self):
        return self.kernel.metadata.num_warps * 32

    @property
    def blocks(self):
        """How many blocks run beside each other on a multiprocessor."""
        registers = -(-self.registers // 8) * 8 * self.threads
        return min(REGISTERS // registers, SHARED // (self.shared + 1024), THREADS // self.threads)

    @property
    def loops(self):
        """The innermost loops, each a list of instructions, that hold products of matrices."""
        places = {x.address: i for i, x in enumerate(self.instructions)}
        spans = []
        for end, x in enumerate(self.instructions):
            start = places.get(x.target, end)
            if start < end:
                spans.append((start, end))
        loops = []
        for start, end in spans:
            inside = [s for s in spans if s != (start, end) and start <= s[0] and s[1] <= end]
            body = self.instructions[start : end + 1]
            if not inside and any(x.name.split(".")[0] in PRODUCTS for x in body):
                loops.append(body)
        return loops

    def of_a_score(self, block_q, block_k):
        """Return how many instructions a thread runs for each of its scores, a number a loop."""
        return [len(body) * self.threads / (block_q * block_k) for body in self.loops]


def read(kernel):
    """Return the `MachineCode` of what Triton compiled."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(kernel.asm["cubin"])
        usage = _run("cuobjdump", "-res-usage", path)
        sass = _run("cuobjdump", "-sass", path)
    registers, stack = (int(re.search(rf"{x}:(\d+)", usage)[1]) for x in ("REG", "STACK"))
    return MachineCode(kernel, sass, registers, stack)


def tool(name):
    """Return where NVIDIA's program lies, or None."""
    import triton

    path = Path(triton.__file__).parent / "backends/nvidia/bin" / name
    return path if path.exists() else shutil.which(name)


def _run(name, *arguments):
    command = [tool(name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Device:
    """Stands in for the driver of a GPU that is not there, so that a call may be compiled.

    Set it with ``monkeypatch.setattr(triton.runtime.driver, "_active", Device(90))``, then
    ``read(kernel.warmup(*arguments, grid=(1,), **options))``.
    """

    def __init__(self, capability):
        self.capability = capability

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self):
        return f"compute capability {self.capability}"

    def get_current_stream(self, device=None):
        return 0


def Hopper():  # noqa: N802
    """Return the stand-in for a GPU of compute capability 9.0."""
    return Device(90)
