"""The Gluon rung: its source in an interpreter, its machine code for sm_90a, and on a GPU.

The interpreter, gluon_interpreter.py, runs the cases of the Triton rung that have no mask and no
bias, in several orders of events, and must find what is wrong with each of `MUTANTS`. What it
cannot show is that the compiler takes the source and makes good code of it: that is read from the
binary. `pytest -m gpu` runs what both cannot show.
"""

import itertools
import re
from types import SimpleNamespace

import formula
import gluon_interpreter
import pytest
import torch
import triton_cases
import triton_sass
from cases import every_day
from gluon_interpreter import EAGER, LAZY, WrongError, in_order
from test_kernels import drawn

import attnbook

pytest.importorskip("triton.experimental.gluon", reason="triton with Gluon is not installed")

from attnbook.kernels import gluon
from attnbook.kernels.triton_kernels.operands import operands

ORDERS = (LAZY, EAGER, 1)


def plain(call):
    """Say whether the rung takes a case: nothing but the causal order hides a key."""
    case = call.case
    empty = 0 in (*case.query.shape[:-1], case.key.shape[-2])
    return case.mask is None and case.bias is None and not empty and not call.change


CASES = {name: call for name, call in triton_cases.CASES.items() if plain(call)}
KERNEL = gluon_interpreter.load()


def tile(kernel, consumers=2, stages=3):
    """Return small tiles: many of them in small arrays."""
    return kernel.Tile(consumers, 16, stages, 0, 16)


def widened(arrays):
    """Return arrays whose rows all have one width, filled with zeros."""
    width = -(-max(1, *(x.shape[-1] for x in arrays)) // 8) * 8
    return [torch.nn.functional.pad(x, (0, width - x.shape[-1])) for x in arrays]


def check(arrays, scale, is_causal, run):
    """Raise unless `run` is as near to float64 as PyTorch in the same dtype nearly is."""
    output, log_total = run(*arrays, None, None, scale, is_causal)
    wide = [x.double() for x in arrays]
    exact, logs = formula.attention(*wide, None, None, scale, is_causal)
    low, _ = formula.attention(*arrays, None, None, scale, is_causal)
    top = float((wide[0] @ wide[1].mT * scale).abs().max())
    among = max([1.0, *(float(x.abs().max()) for x in arrays)]) * (1 + top if top > 100 else 1)
    triton_cases.compare("output", output, low, exact, arrays[0].dtype, among)
    assert log_total.dtype == torch.float32
    torch.testing.assert_close(
        log_total.double(), logs.expand(log_total.shape), rtol=1e-6, atol=2e-5
    )
    none = ~torch.isfinite(logs)
    assert not output[none.expand(output.shape)].any(), "a row that sees no key is not 0"


def interpreted(kernel, form=None, programs=2):
    """Return a function like that of the rung that runs `kernel` in the interpreter."""

    def run(*arguments):
        x = operands(*arguments)
        return kernel.forward(x, form or tile(kernel), programs)

    return run


@pytest.mark.parametrize("name", CASES)
def test_cases_of_the_triton_rung(name):
    call = CASES[name]
    dtype = "float16" if len(name) % 2 else "bfloat16"
    query, key, value, _, _, scale = call.arrays("cpu", dtype)
    arrays = widened((query, key, value))
    if scale > 0:
        with in_order(len(name)):
            check(arrays, scale, call.is_causal, interpreted(KERNEL))


def large(n_q, n_k, d, dtype=torch.bfloat16, group=1):
    """Return arrays of two heads of keys and values, and as many of queries for each as `group`."""
    shapes = ((2, group, n_q, d), (2, 1, n_k, d), (2, 1, n_k, d))
    case = drawn(*shapes)
    return [torch.tensor(x).to(dtype) for x in (case.query, case.key, case.value)]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("d", "n_q", "n_k", "dtype"),
    [(64, 211, 700, torch.bfloat16), (64, 401, 130, torch.float16), (128, 150, 513, torch.float16)],
)
def test_tiles_of_the_size_that_a_gpu_uses(d, n_q, n_k, dtype, is_causal):
    arrays = large(n_q, n_k, d, dtype)
    check(arrays, d**-0.5, is_causal, interpreted(KERNEL, KERNEL.TILES[d]))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("consumers", [2, 3])
def test_any_order_of_events(consumers, order):
    form = tile(KERNEL, consumers, consumers + 1)
    with in_order(order):
        check(large(70, 101, 8, group=3), 0.4, True, interpreted(KERNEL, form))


@pytest.mark.parametrize("programs", [1, 3, 100])
@pytest.mark.parametrize("is_causal", [False, True])
def test_any_number_of_programs(monkeypatch, programs, is_causal):
    monkeypatch.setattr(KERNEL, "CACHE", 2 * 45 * 8 * 2)  # keys and values of one head
    check(large(75, 45, 8, group=2), 0.4, is_causal, interpreted(KERNEL, None, programs))


@pytest.mark.parametrize("order", ORDERS)
def test_the_same_bits_in_any_order(order):
    arguments = (*large(50, 70, 8), None, None, 0.4, True)
    first = interpreted(KERNEL)(*arguments)
    with in_order(order):
        again = interpreted(KERNEL, None, 5)(*arguments)
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


@pytest.mark.parametrize("consumers", [2, 3])
def test_consumers_take_turns(consumers):
    asked = gluon_interpreter.ASKED
    asked.clear()
    interpreted(KERNEL, tile(KERNEL, consumers), 1)(*large(90, 70, 8), None, None, 0.4, False)
    turns = [name for i, name in enumerate(asked) if i == 0 or asked[i - 1] != name]
    names = [f"consumer {i}" for i in range(consumers)]
    assert turns == names * (len(turns) // consumers)
    assert len(turns) > 5 * consumers


# What is wrong is found.

FREED = "leave(ring, after)\n        "
WAITED = "sums = warpgroup_mma_wait(0, [summed])\n        "
FADES = "sums = sums * gl.convert_layout(fade"
MUTANTS = {
    "keys are not waited for": ("mbarrier.wait(ring.full.index(after.slot), after.phase)", "pass"),
    "queries are not waited for": ("mbarrier.wait(own.full.index(W), turn & 1)", "pass"),
    "queries come too early": ("mbarrier.wait(own.empty.index(w), (turn & 1) ^ 1)", "pass"),
    "stages are filled too early": (
        "mbarrier.wait(ring.empty.index(after.slot), at.phase ^ 1)",
        "pass",
    ),
    "another parity for stages": (
        "ring.empty.index(after.slot), at.phase ^ 1",
        "ring.empty.index(after.slot), at.phase",
    ),
    "another parity for queries": ("(turn & 1) ^ 1", "turn & 1"),
    "the phase does not change": ("gl.where(wraps, at.phase ^ 1, at.phase)", "at.phase"),
    "a stage is freed before its values were read": (
        WAITED + FREED + FADES,
        FREED + WAITED + FADES,
    ),
    "a stage is never freed": ("leave(ring, at)\n        top = gl.full", "top = gl.full"),
    "the place of another stage": (
        "ring.empty.index(after.slot), at",
        "ring.empty.index(at.slot), at",
    ),
    "scores are not waited for": ("warpgroup_mma_wait(1, [asked, summed])", "(asked, summed)"),
    "one product too many is left": (
        "warpgroup_mma_wait(1, [asked",
        "warpgroup_mma_wait(2, [asked",
    ),
    "sums are not waited for": (WAITED + FREED + FADES, "sums = summed\n        " + FREED + FADES),
    "the turn is not passed on": ("(W + 1) % KIND.CONSUMERS", "W"),
    "the last product out of turn": (
        "        take_turn(turns, at, W)\n        summed",
        "        summed",
    ),
    "the output without a fence": ("fence_async_shared()\n        tile =", "tile ="),
    "queries over an output that is still copied": ("tma.store_wait(0)\n", "pass\n"),
    "one row of the mask more": ("eights <= (rows + last)", "eights < (rows + last)"),
    "keys past the end": ("last = x.n_k - 1", "last = x.n_k"),
    "columns of eight": ("(last - within)", "(last - within * 0)"),
    "the causal order from the first key": ("last = row + (x.n_k - x.n_q)", "last = row"),
    "a tile too many without a mask": ("if start > whole", "if start > whole + KIND.BLOCK_K"),
    "a tile of keys too few": ("own + KIND.CONSUMERS * KIND.ROWS, 0)", "own, 0)"),
    "values of another tile": ("(tile + 1) * KIND.BLOCK_K", "tile * KIND.BLOCK_K"),
    "sums do not fade": (
        "sums = sums * gl.convert_layout(fade",
        "sums = sums * gl.convert_layout(fade / fade",
    ),
    "an empty row divides by 0": ("gl.where(total == 0.0, 1.0, total)", "total"),
    "another head": ("head // x.G % x.B", "head % x.B"),
    "an axis that the keys lack": ("gl.minimum(head[2], rows.shape[2] - 1)", "head[2]"),
    "a block is left out": ("rounds + 1, rounds", "rounds, rounds"),
    "bytes that nobody brings": ("keys.block_type.nbytes * HAS_K", "keys.block_type.nbytes"),
    "a barrier that waits for one consumer": (
        "mbarrier.init(ring.empty.index(s), count=CONSUMERS)",
        "mbarrier.init(ring.empty.index(s), count=1)",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name):
    kernel = gluon_interpreter.load(MUTANTS[name])
    calls = [(large(70, 40, 8, group=3), True), (large(40, 75, 8, group=2), True)]
    calls.append((large(70, 75, 8), False))

    def check_all():
        for order in ORDERS:
            for arrays, is_causal in calls:
                with in_order(order):
                    check(arrays, 0.4, is_causal, interpreted(kernel, None, 4))

    with pytest.raises((WrongError, AssertionError, RuntimeWarning)):
        check_all()


# On the host.


@pytest.fixture
def on_the_cpu(monkeypatch):
    """The rung as on a Hopper GPU, in the interpreter."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(gluon.walk, "forward", lambda x: KERNEL.forward(x, tile(KERNEL), 2))


@pytest.mark.parametrize("scale", [-0.4, 0.0, 0.4])
def test_scales_of_any_sign(on_the_cpu, scale):
    check(large(37, 50, 64), scale, True, gluon.forward)


@pytest.mark.parametrize(("n_q", "n_k"), [(0, 5), (5, 0)])
def test_no_queries_or_no_keys(on_the_cpu, n_q, n_k):
    arrays = [torch.ones(2, n, 64, dtype=torch.float16) for n in (n_q, n_k, n_k)]
    output, log_total = gluon.forward(*arrays, None, None, 1.0, True)
    assert output.shape == (2, n_q, 64)
    assert not output.any()
    assert (log_total == -torch.inf).all()
    grads = gluon.backward(*arrays, None, None, 1.0, True, output, log_total, output)
    assert [x.shape for x in grads] == [x.shape for x in arrays]
    assert not any(x.any() for x in grads)


def test_heads_that_lie_anywhere(on_the_cpu):
    query, key, value = large(40, 50, 64, group=3)
    query = query.transpose(-2, -3).contiguous().transpose(-2, -3)
    value = value.mT.contiguous().mT
    check((query, key[:1], value), 0.1, True, gluon.forward)
    many = [x.expand(3, *x.shape).transpose(0, 1) for x in (query, key, value)]
    check(many, 0.1, False, gluon.forward)


def test_gradients_are_those_of_the_triton_rung(on_the_cpu, monkeypatch):
    """The whole way of a call, with autograd, up to the backward pass of `triton`."""
    asked = []

    def backward(x, output, log_total, grad_output):
        asked.append((x.is_causal, output, log_total, grad_output))
        return tuple(torch.full_like(array, i) for i, array in enumerate(arrays))

    monkeypatch.setattr(gluon.triton.gradients, "backward", backward)
    monkeypatch.setattr(gluon, "DEVICES", ("cpu",), raising=False)
    arrays = [x.requires_grad_() for x in large(20, 30, 64)]
    output = attnbook.attention(*arrays, is_causal=True, impl="gluon")
    output.sum().backward()
    ((is_causal, seen, log_total, grad),) = asked
    assert is_causal
    assert torch.equal(seen, output)
    assert log_total.shape == (2, 1, 20, 1)
    assert (grad == 1).all()
    assert [float(x.grad.float().mean()) for x in arrays] == [0, 1, 2]


ERRORS = {
    "mask must be None for impl='gluon', got an array": {"mask": torch.ones(3, 5) == 1},
    "bias must be None for impl='gluon', got an array": {"bias": torch.ones(3, 5)},
    "query must have d_k of 64 or 128 for impl='gluon', got 80": {"d_k": 80},
    "value must have d_v = d_k = 64 for impl='gluon', got 128": {"d_v": 128},
    r"query must be on a GPU of compute capability 9.0 \(H100, H200\) for impl='gluon', got 8.6": {
        "capability": (8, 6)
    },
}


@pytest.mark.parametrize("message", ERRORS)
def test_what_it_does_not_take_is_refused(monkeypatch, message):
    options = {"d_k": 64, "d_v": 64, "mask": None, "bias": None, "capability": (9, 0)}
    options |= ERRORS[message]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: options["capability"])
    shapes = ((3, options["d_k"]), (5, options["d_k"]), (5, options["d_v"]))
    arrays = [torch.zeros(shape, dtype=torch.bfloat16) for shape in shapes]
    rest = (options["mask"], options["bias"], 1.0, False)
    with pytest.raises(ValueError, match=f"^{message}$"):
        gluon.attention(*arrays, *rest)
    with pytest.raises(ValueError, match=f"^{message}$"):
        gluon.backward(*arrays, *rest, None, None, None)


def test_arrays_are_those_of_a_gpu_in_half_precision():
    x = torch.zeros(3, 64)
    with pytest.raises(ValueError, match="query must be on device 'cuda' for impl='gluon'"):
        attnbook.attention(x, x, x, impl="gluon")
    with pytest.raises(TypeError, match="query must be an array of torch for impl='gluon'"):
        attnbook.attention(x.numpy(), x.numpy(), x.numpy(), impl="gluon")


@pytest.mark.parametrize(
    ("n_k", "is_causal", "expected"), [(100, False, 1), (100, True, 12), (2**17, True, 3)]
)
def test_heads_whose_keys_stay_in_the_cache(n_k, is_causal, expected):
    key = torch.empty(1, dtype=torch.bfloat16)
    x = SimpleNamespace(n_k=n_k, d_k=64, heads=12, n_shared=3, is_causal=is_causal, key=key)
    assert gluon.walk.section_of(x) == expected


# Machine code for sm_90a: see triton_sass.py.

FORMS = tuple(itertools.product((64, 128), (True, False), (torch.bfloat16, torch.float16)))
OFTEN = tuple((d, causal, dtype) for d, causal, dtype in FORMS if causal == (dtype == FORMS[0][2]))


def form_id(form):
    return f"{form[0]} {'causal' if form[1] else 'plain'} {str(form[2]).removeprefix('torch.')}"


@pytest.fixture(scope="module", params=every_day(OFTEN, FORMS), ids=form_id)
def code(request):
    """What the compiler makes of a call with rows of d numbers."""
    d, is_causal, dtype = request.param
    arguments = triton_sass.call(d, is_causal, dtype=dtype)
    ((machine, kind),) = triton_sass.kernels_of(arguments, False, "gluon").values()
    return SimpleNamespace(form=request.param, d=d, is_causal=is_causal, machine=machine, kind=kind)


def main_loops(code):
    """Return the loops over tiles of keys, one for each consumer."""
    products = code.d // 16 + 8
    return [
        body
        for body in code.machine.loops
        if sum(x.is_a("HGMMA") for x in body) == products
        and sum(x.is_a("MUFU") for x in body) >= 64
    ]


def test_it_compiles_for_sm_90a(code):
    machine, consumers, ptx = code.machine, code.kind.CONSUMERS, code.machine.kernel.asm["ptx"]
    assert "sm_90a" in ptx
    assert machine.stack == machine.spills == 0
    assert machine.shared <= 227 * 1024
    assert machine.count("UTMALDG") > 0 < machine.count("UTMASTG")
    registers = [int(n) for n in re.findall(r"setmaxnreg\.\w+\.sync\.aligned\.u32\s+(\d+)", ptx)]
    assert {24, gluon.walk.TILES[code.d].registers} <= set(registers)
    assert machine.registers * 128 * (consumers + 1) <= 65536
    assert len(main_loops(code)) == len(machine.loops) == consumers


def test_one_compiled_kernel_serves_all_sizes(code):
    """Triton would compile a size of 1, or one that 16 divides, as a constant of its own."""
    d, is_causal, dtype = code.form
    made = {code.machine.kernel.hash}

    def compile_only(kernel, programs, device, *arguments, **options):
        made.add(kernel.warmup(*arguments, grid=(programs,), **options).hash)

    with triton_sass.launching(compile_only):
        for sizes in ({"n_q": 1}, {"n_q": 640}, {"n_k": 1}, {"n_k": 512}, {"n_q": 1, "group": 3}):
            gluon.forward(*triton_sass.call(d, is_causal, dtype=dtype, **sizes))
    assert len(made) == 1


def test_products_run_beside_the_softmax(code):
    for body in main_loops(code):
        waits = [i for i, x in enumerate(body) if x.is_a("WARPGROUP.DEPBAR")]
        powers = [i for i, x in enumerate(body) if x.is_a("MUFU.EX2")]
        assert len(waits) == 2  # for one product of matrices, then for the other
        assert waits[0] < min(powers)
        assert max(powers) < waits[1]


def test_instructions_of_a_score(code):
    """At most 7 in a tile that is not masked."""
    for body in main_loops(code):  # a comparison and a choice for each of 64 scores
        assert (len(triton_sass.masking_of(body)) >= 128) == code.is_causal
    assert max(triton_sass.scores_of(code.machine, code.kind)) <= {64: 6.6, 128: 7.0}[code.d]


# On a GPU.


def check_gradients(arrays, is_causal):
    """Raise unless `attention_vjp` is as near to float64 as PyTorch in the same dtype nearly is."""
    dtype, rest = arrays[0].dtype, (None, None, arrays[0].shape[-1] ** -0.5, is_causal)
    grad = torch.randn(arrays[0].shape, generator=torch.Generator().manual_seed(8)).to(arrays[0])
    got = attnbook.attention_vjp(*arrays, grad, is_causal=is_causal, impl="gluon")
    lows, exacts = (
        triton_cases.gradients(arrays, rest, grad, wanted) for wanted in (dtype, torch.float64)
    )
    among = max(1.0, *(float(x.abs().max()) for x in (*arrays, grad)))
    for what, own, low, exact in zip(("query", "key", "value"), got, lows, exacts, strict=True):
        triton_cases.compare(f"the gradient of {what}", own, low, exact, dtype, among)


@pytest.mark.parametrize("wrong", [None, 0, 1, 2])
def test_gradients_are_compared(on_the_cpu, monkeypatch, wrong):
    """As on a GPU, but for a backward pass in PyTorch; with one gradient of the three wrong."""
    arrays = large(70, 150, 64, group=3)

    def backward(x, output, log_total, grad):
        rest = (None, None, x.scale, x.is_causal)
        grads = triton_cases.gradients(arrays, rest, grad, torch.float64)
        return [(g * (1.1 if i == wrong else 1)).to(grad.dtype) for i, g in enumerate(grads)]

    monkeypatch.setattr(gluon.triton.gradients, "backward", backward)
    monkeypatch.setattr(gluon, "DEVICES", ("cpu",), raising=False)
    if wrong is None:
        check_gradients(arrays, True)
        return
    name = ("query", "key", "value")[wrong]
    with pytest.raises(AssertionError, match=f"the gradient of {name}"):
        check_gradients(arrays, True)


SIZES = ((1, 1), (37, 1031), (1031, 37), (2111, 1543))


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def on_a_gpu(request):
    """What draws arrays on a GPU that the rung is written for."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != gluon.CAPABILITY:
        pytest.skip("torch sees no GPU of compute capability 9.0")
    return lambda *sizes, **rest: [x.cuda() for x in large(*sizes, request.param, **rest)]


@pytest.mark.gpu
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize(("n_q", "n_k"), SIZES)
def test_on_a_gpu(on_a_gpu, n_q, n_k, d, is_causal):
    check(on_a_gpu(n_q, n_k, d, group=3), d**-0.5, is_causal, gluon.forward)


@pytest.mark.gpu
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize(("n_q", "n_k"), SIZES[1:])
def test_gradients_on_a_gpu(on_a_gpu, n_q, n_k, d, is_causal):
    check_gradients(on_a_gpu(n_q, n_k, d, group=3), is_causal)


@pytest.mark.gpu
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("d", [64, 128])
def test_the_same_bits_on_a_gpu(on_a_gpu, d, is_causal):
    """With more than two blocks of queries for each multiprocessor, and rings that go round."""
    arguments = (*on_a_gpu(2111, 1543, d, group=13), None, None, d**-0.5, is_causal)
    first = gluon.forward(*arguments)
    for _ in range(5):
        again = gluon.forward(*arguments)
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
