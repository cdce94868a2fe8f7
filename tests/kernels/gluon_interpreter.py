"""An interpreter of the part of Gluon that the rung *gluon* uses: its source runs, unchanged, here.

`load()` runs the file of the kernel with stand-ins for `triton.experimental.gluon`. Each partition
of a program, a producer or a consumer, is then a thread of Python. One of them runs at a time, and
at each barrier, copy and product a `Machine` chooses who goes on: another partition, or the copy
engine, or the matrix units. So many orders of events are tried, and the worst ones by `LAZY`, where
whatever runs beside the partitions comes as late as it may, and `EAGER`, where it comes at once.

What the hardware would answer with wrong numbers, or never, is an error here:

- reading a buffer that a copy is being written to, or that nobody has written;
- letting a copy write to a buffer that a product or a copy still reads;
- using the result of a product before it was waited for;
- letting the copy engine read what was stored before `fence_async_shared`;
- arriving at a barrier more often than its count, and waiting for what cannot come.

A warpgroup counts as one: that its warps stay together is Triton's task. Layouts mean nothing here,
and are checked where the kernel is compiled.
"""

import contextlib
import random
import sys
import threading
import types
from pathlib import Path
from unittest import mock

import numpy as np
import torch

import attnbook

SOURCE = Path(attnbook.__file__).parent / "kernels/gluon_kernels"
FILES = ("blocks", "stages", "forward", "launch")
LAZY, EAGER = "lazy", "eager"
"""Orders of events beside those that a seed draws."""


class WrongError(Exception):
    """What a GPU would answer with wrong numbers, or not at all."""


class Type:
    """A dtype: its name, bytes, and how it rounds."""

    def __init__(self, name, size, round_to):
        self.name, self.size, self.round_to = name, size, round_to
        self.primitive_bitwidth = 8 * size


def to_bfloat16(x):
    return torch.from_numpy(np.ascontiguousarray(x)).bfloat16().float().numpy()


float32 = Type("float32", 4, lambda x: x.astype(np.float32))
float16 = Type("float16", 2, lambda x: x.astype(np.float16).astype(np.float32))
bfloat16 = Type("bfloat16", 2, to_bfloat16)
int32 = Type("int32", 4, lambda x: x.astype(np.int32))
int64 = Type("int64", 8, lambda x: x.astype(np.int64))
TYPES = {torch.float16: float16, torch.bfloat16: bfloat16}


class Tensor:
    """Numbers in registers."""

    type = types.SimpleNamespace(layout=None)

    def __init__(self, array, dtype=None):
        self.array, self.dtype = np.asarray(array), dtype

    shape = property(lambda self: self.array.shape)

    def __getitem__(self, key):
        return Tensor(self.array[key])

    def reshape(self, shape):
        return Tensor(self.array.reshape(shape))

    def to(self, dtype):
        return Tensor(dtype.round_to(self.array), dtype)


def _operator(name):
    def apply(self, *other):
        (other,) = map(numbers, other)
        return Tensor(getattr(self.array, name)(other))

    return apply


_NAMES = "add radd sub rsub mul rmul truediv rtruediv mod le lt eq"
for _name in _NAMES.split():
    setattr(Tensor, f"__{_name}__", _operator(f"__{_name}__"))


def numbers(x):
    """Return what NumPy computes with; the result of a product must have been waited for."""
    if isinstance(x, Product):
        raise WrongError("the result of a product is used before it was waited for")
    return x.array if isinstance(x, Tensor) else x


class Product:
    """A product of the matrix units that may still run: as a token, then as its numbers."""

    type = Tensor.type

    def __init__(self, a, b, sums, reads):
        self.a, self.b, self.sums, self.reads, self.result = a, b, sums, reads, None

    def finish(self):
        a, b = (x.numbers() if isinstance(x, View) else x.array for x in (self.a, self.b))
        sums = self.sums.result if isinstance(self.sums, Product) else self.sums.array
        self.result = (np.matmul(a, b) + sums).astype(np.float32)
        for block in self.reads:
            block.readers -= 1


for _name in ("add", "sub", "mul", "truediv"):
    setattr(Product, f"__{_name}__", lambda self, other: numbers(self))


class Block:
    """A buffer on the chip, and who uses it."""

    def __init__(self, dtype, shape):
        self.array, self.dtype = np.full(shape, np.nan, dtype=np.float32), dtype
        self.readers, self.writing, self.written, self.unfenced = 0, False, False, False

    def begin_read(self, by_whom):
        if self.writing:
            raise WrongError(f"{by_whom} reads a buffer that a copy is being written to")
        if not self.written:
            raise WrongError(f"{by_whom} reads a buffer that nobody has written")
        if self.unfenced:
            raise WrongError(f"{by_whom} reads what was stored without a fence")
        self.readers += 1

    def begin_write(self, by_whom):
        if self.writing or self.readers:
            raise WrongError(f"{by_whom} writes to a buffer that is still in use")


class View:
    """A buffer seen in another shape or order."""

    def __init__(self, block, change=lambda x: x):
        self.block, self.change = block, change
        self.dtype = block.dtype

    def numbers(self):
        return self.change(self.block.array)

    def reshape(self, shape):
        return View(self.block, lambda x: self.change(x).reshape(shape))

    def permute(self, order):
        return View(self.block, lambda x: self.change(x).transpose(order))

    def store(self, value):
        self.block.begin_write("a store")
        self.numbers()[:] = numbers(value)
        self.block.written = self.block.unfenced = True


class Buffers:
    """Several buffers of one shape."""

    def __init__(self, dtype, shape):
        self.dtype, self.blocks = dtype, [Block(dtype, shape[1:]) for _ in range(shape[0])]
        _now().blocks += self.blocks

    def index(self, i):
        return View(self.blocks[i])


class Barrier:
    """Phases, each of which is over after `count` arrivals and all bytes that were announced."""

    def __init__(self):
        self.count, self.arrived, self.bytes, self.phase = 0, 0, 0, 0

    def arrive(self, number=1):
        if self.count == 0:
            raise WrongError("a barrier is used that was not initialized")
        self.arrived += number
        if self.arrived > self.count:
            raise WrongError(f"{self.arrived} arrivals at a barrier of {self.count}")
        self.advance()

    def advance(self):
        if self.arrived == self.count and self.bytes == 0:
            self.phase, self.arrived = self.phase ^ 1, 0


class Partition:
    """A thread of a program that runs when the machine lets it."""

    def __init__(self, name, function, arguments):
        self.name, self.turn, self.ready, self.error = name, threading.Semaphore(0), None, None
        self.why, self.done, self.products, self.stores = "", False, [], 0
        self.call = lambda: function(*arguments)
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        self.turn.acquire()
        try:
            self.call()
        except BaseException as error:
            self.error = error
        self.done = True
        _now().back.release()

    def can_run(self):
        return not self.done and (self.ready is None or self.ready())


class Machine:
    """A program: partitions, copies that run beside them, and the order in which all go on."""

    def __init__(self, place, programs, order):
        self.place, self.programs, self.order = place, programs, order
        self.random = random.Random(f"{order} {place}")
        self.back, self.blocks, self.copies = threading.Semaphore(0), [], []
        self.partitions, self.current = [], None

    def wait(self, ready=None, why=""):
        """Let others go on; return when `ready` and chosen."""
        partition = self.current
        partition.ready, partition.why = ready, why
        self.back.release()
        partition.turn.acquire()

    def beside(self):
        """Return what may happen beside the partitions: copies in any order, products in theirs."""
        return self.copies + [p.products[0] for p in self.partitions if p.products]

    def finish(self, event):
        if event in self.copies:
            self.copies.remove(event)
            event()
            return
        event.finish()
        for partition in self.partitions:
            if event in partition.products:
                partition.products.remove(event)

    def run(self, functions):
        self.partitions = [Partition(*each) for each in functions]
        for partition in self.partitions:
            partition.thread.start()
        while not all(p.done for p in self.partitions):
            ready = [p for p in self.partitions if p.can_run()]
            events = self.beside()
            if not ready and not events:
                stuck = "; ".join(f"{p.name} {p.why}" for p in self.partitions if not p.done)
                raise WrongError(f"nobody can go on: {stuck}")
            late = self.order == LAZY and ready
            early = self.order == EAGER and events
            choice = self.random.choice(ready if late else events if early else ready + events)
            if not isinstance(choice, Partition):
                self.finish(choice)
                continue
            self.current = choice
            choice.turn.release()
            self.back.acquire()
            if choice.error is not None:
                raise choice.error
        while events := self.beside():  # copies to memory that nobody has waited for
            self.finish(events[0])


MACHINES: list[Machine] = []
ASKED: list[str] = []
"""Who asked for each product, in the order in which they came."""


def _now():
    return MACHINES[-1]


# What the source finds in the place of Gluon.


def specialize(functions, warps, registers):
    """Run the partitions, number 0 first among equals."""
    names = [f"consumer {i}" for i in range(len(warps))] + ["producer"]
    _now().run([(name, *each) for name, each in zip(names, functions, strict=True)])


def wait_barrier(barrier, parity):
    if barrier.count == 0:
        raise WrongError("a barrier is used that was not initialized")
    _now().wait(lambda: barrier.phase != parity, f"waits for a phase {parity}")


def arrive(barrier, count=1):
    _now().wait()
    barrier.arrive(count)


def expect(barrier, size):
    barrier.bytes += size
    barrier.arrive()


class Barriers:
    """Several barriers."""

    def __init__(self, number):
        self.barriers = [Barrier() for _ in range(number)]

    def index(self, i):
        return self.barriers[i]


def allocate(dtype, shape, layout):
    return Barriers(shape[0]) if dtype is int64 else Buffers(dtype, shape)


def load_tile(descriptor, place, barrier, view):
    machine, block = _now(), view.block
    block.begin_write("a copy")
    block.writing, block.written = True, True
    block.array[:] = np.nan

    def finish():
        block.array[:], block.writing = descriptor.read(place), False
        barrier.bytes -= descriptor.block_type.nbytes
        barrier.advance()

    machine.copies.append(finish)
    machine.wait()


def store_tile(descriptor, place, view):
    machine, partition = _now(), _now().current
    view.block.begin_read("a copy")
    partition.stores += 1

    def finish():
        descriptor.write(place, view.numbers())
        view.block.readers -= 1
        partition.stores -= 1

    machine.copies.append(finish)
    machine.wait()


def wait_stores(pending):
    partition = _now().current
    _now().wait(lambda: partition.stores <= pending, "waits for its output")


def fence():
    for block in _now().blocks:
        block.unfenced = False


def multiply(a, b, sums, use_acc=True, is_async=False):
    machine = _now()
    reads = [x.block for x in (a, b) if isinstance(x, View)]
    for block in reads:
        block.begin_read("a product")
    if not use_acc:
        sums = Tensor(np.float32(0))
    assert is_async
    product = Product(a, b, sums, reads)
    ASKED.append(machine.current.name)
    machine.current.products.append(product)
    machine.wait()
    return product


def wait_products(pending, products):
    partition = _now().current
    _now().wait(lambda: len(partition.products) <= pending, "waits for a product")
    waited = [Tensor(p.result) if getattr(p, "result", None) is not None else p for p in products]
    return waited[0] if len(waited) == 1 else tuple(waited)


def where(condition, x, y):
    if isinstance(condition, bool):
        return x if condition else y
    x, y = (np.float32(v) if isinstance(v, float) else numbers(v) for v in (x, y))
    return Tensor(np.where(numbers(condition), x, y))


def larger(x, y):
    return max(x, y) if isinstance(x, int) else Tensor(np.maximum(numbers(x), numbers(y)))


def log2(x):
    with np.errstate(divide="ignore"):
        return Tensor(np.log2(numbers(x)))


def save(pointer, value, mask):
    array, places = pointer
    array.reshape(-1)[torch.from_numpy(places[mask.array])] = torch.from_numpy(
        value.array[mask.array]
    )


class Pointer:
    """Where an array of PyTorch begins, plus places in it."""

    def __init__(self, array, places=0):
        self.array, self.places = array, places

    def __add__(self, other):
        return Pointer(self.array, self.places + numbers(other))

    def __iter__(self):
        return iter((self.array, self.places))


class TensorDescriptor:
    """Tiles of an array of PyTorch; the copy engine wants 16 bytes and no stride of 0."""

    def __init__(self, base, shape, strides, block_shape, layout):
        assert strides[-1] == 1
        assert base.data_ptr() % 16 == 0
        assert all(s > 0 and s * base.element_size() % 16 == 0 for s in strides[:-1])
        assert all(size > 0 for size in shape)
        self.array, self.block = torch.as_strided(base, shape, strides), block_shape
        self.shape = shape
        self.dtype, self.layout = TYPES[base.dtype], layout
        size = int(np.prod(block_shape)) * base.element_size()
        self.block_type = types.SimpleNamespace(shape=list(block_shape), nbytes=size)

    def inside(self, place):
        """Return the part of a tile that the array has, as an index of the array."""
        assert all(i >= 0 for i in place), place
        ends = zip(place, self.block, self.array.shape, strict=True)
        return tuple(slice(min(i, end), min(i + size, end)) for i, size, end in ends)

    def read(self, place):
        tile = np.zeros(self.block, np.float32)
        part = self.array[self.inside(place)].float().numpy()
        tile[tuple(slice(size) for size in part.shape)] = part
        return tile

    def write(self, place, tile):
        part = self.array[self.inside(place)]
        tile = tile[tuple(slice(size) for size in part.shape)]
        part.copy_(torch.from_numpy(np.ascontiguousarray(tile)))


class Kernel:
    """A function of the source: called by others, or launched on a grid."""

    order = LAZY

    def __init__(self, function):
        self.function, self.__name__ = function, function.__name__

    def __call__(self, *arguments):
        return self.function(*arguments)

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.launch(grid[0], arguments, options["KIND"])

    def launch(self, programs, arguments, kind):
        arguments = [Pointer(x) if isinstance(x, torch.Tensor) else x for x in arguments]
        for place in range(programs):
            MACHINES.append(Machine(place, programs, Kernel.order))
            try:
                self.function(*arguments, kind)
            finally:
                MACHINES.pop()


def jit(function=None, **options):
    return jit if function is None else Kernel(function)


def layout(*sizes):
    return None


gl = types.SimpleNamespace(
    constexpr=lambda x: x,
    float32=float32,
    float16=float16,
    bfloat16=bfloat16,
    int32=int32,
    int64=int64,
    static_range=range,
    NVMMADistributedLayout=layout,
    DotOperandLayout=layout,
    SliceLayout=layout,
    NVMMASharedLayout=types.SimpleNamespace(get_default_for=layout),
    program_id=lambda axis: _now().place,
    num_programs=lambda axis: _now().programs,
    cdiv=lambda x, y: -(-x // y),
    cast=lambda x, dtype: x.to(dtype) if isinstance(x, Tensor) else x,
    arange=lambda start, end, layout: Tensor(np.arange(start, end), int32),
    full=lambda shape, x, dtype, layout: Tensor(dtype.round_to(np.full(shape, x)), dtype),
    where=where,
    minimum=min,
    maximum=larger,
    max=lambda x, axis: Tensor(numbers(x).max(axis)),
    sum=lambda x, axis: Tensor(numbers(x).sum(axis)),
    exp2=lambda x: Tensor(np.exp2(numbers(x))),
    log2=log2,
    convert_layout=lambda x, layout: x,
    allocate_shared_memory=allocate,
    warp_specialize=specialize,
    store=save,
)
mbarrier = types.SimpleNamespace(
    MBarrierLayout=layout,
    init=lambda barrier, count: setattr(barrier, "count", count),
    wait=wait_barrier,
    arrive=arrive,
    expect=expect,
)
tma = types.SimpleNamespace(
    async_copy_global_to_shared=load_tile,
    async_copy_shared_to_global=store_tile,
    store_wait=wait_stores,
)
hopper = types.SimpleNamespace(
    fence_async_shared=fence,
    mbarrier=mbarrier,
    tma=tma,
    warpgroup_mma=multiply,
    warpgroup_mma_wait=wait_products,
)
GLUON = types.SimpleNamespace(jit=jit, language=gl)
STAND_INS = {
    "triton.experimental": types.SimpleNamespace(gluon=GLUON),
    "triton.experimental.gluon": GLUON,
    "triton.experimental.gluon.language": gl,
    "triton.experimental.gluon.language.nvidia.hopper": hopper,
    "triton.experimental.gluon.nvidia.hopper": types.SimpleNamespace(
        TensorDescriptor=TensorDescriptor
    ),
}


def load(*changes):
    """Return `launch`, with the kernel run by the interpreter; each change is (old, new) text."""
    texts = {name: (SOURCE / f"{name}.py").read_text(encoding="utf-8") for name in FILES}
    for old, new in changes:
        (name,) = (name for name, text in texts.items() if old in text)
        assert texts[name].count(old) == 1, old
        texts[name] = texts[name].replace(old, new)
    made = {}
    for name, text in texts.items():
        module = types.ModuleType(f"attnbook.kernels.gluon_kernels.{name}")
        made[module.__name__] = module
        with mock.patch.dict(sys.modules, STAND_INS | made):
            exec(compile(text, str(SOURCE / f"{name}.py"), "exec"), module.__dict__)
    return module


@contextlib.contextmanager
def in_order(order):
    """Let events come in an order: `LAZY`, `EAGER`, or as a seed draws it."""
    before, Kernel.order = Kernel.order, order
    try:
        yield
    finally:
        Kernel.order = before
