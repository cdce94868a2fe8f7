"""What the compiled rung on the CPU alone can get wrong: tiles, chunks, strides, registers.

What every rung must do is in test_kernels.py. Here each way to the output is compared with PyTorch
in float64, in sizes of several tiles.
"""

import math
import tracemalloc

import numpy as np
import pytest
import torch
from cases import every_day, examples, register_lanes
from formula import exact
from hypothesis import given, settings
from hypothesis import strategies as st

import attnbook

numba = pytest.importorskip("numba")
from attnbook.compilers import exponentials, register_tiles  # noqa: E402
from attnbook.compilers.register_tiles import TILES, Tile  # noqa: E402
from attnbook.kernels import packed  # noqa: E402
from attnbook.kernels.numba_loops import backward, products  # noqa: E402
from attnbook.kernels.numba_loops import forward as panels  # noqa: E402
from attnbook.kernels.numba_loops.arrays import arrange, restored  # noqa: E402
from attnbook.kernels.numba_loops.panels import exp  # noqa: E402

HERE = f"packed{register_tiles.lanes()}"
WAYS = tuple(f"{way}{lanes}" for way in ("few", "packed") for lanes in register_lanes())
every_way = pytest.mark.parametrize("way", WAYS)
ways_here = pytest.mark.parametrize("way", [f"few{register_tiles.lanes()}", HERE])


def run(way, *arguments):
    """Return output and log_total: by tiles for so many lanes, or by the loops for few queries."""
    few = way.startswith("few")
    tile = TILES[int(way.removeprefix("few" if few else "packed"))]
    return panels.forward(tile, arguments, few=few)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(way, *arguments, **options):
    """Assert that `way` gives what float64 gives, to a few roundings."""
    for got, wanted in zip(run(way, *arguments, **options), exact(*arguments), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=3e-6, atol=3e-6)


def some(n_q, n_k, d_k=13, d_v=11, heads=(2, 3), key_heads=(2, 1)):
    """Return query, key and value of grouped heads; no size is a multiple of a tile's."""
    query = numbers(*heads, n_q, d_k, seed=1)
    return query, numbers(*key_heads, n_k, d_k, seed=2), numbers(*key_heads, n_k, d_v, seed=3)


def hidden(n_q, n_k):
    """Return masks that hide whole tiles, parts of them, and whole rows."""
    random = np.random.default_rng(4).random((2, 3, n_q, n_k)) < 0.5
    random[1, 2, n_q // 2] = False
    blocks = np.ones((n_q, n_k), dtype=bool)
    blocks[: n_q // 2, n_k // 3 :] = False
    blocks[n_q // 2 :, : n_k // 2] = False
    return random, blocks, blocks[n_q // 2], blocks[:, -1:], np.array(True), np.array(False)


# Two panels and three tiles at least, of which none is whole; one chunk, and several.
LONG = {f"few{n}": (2, 2311) for n in TILES} | {f"packed{n}": (19, 283) for n in TILES}


@every_way
@pytest.mark.parametrize("is_causal", [False, True], ids=["all", "causal"])
def test_tiles_of_every_shape(way, is_causal):
    n_q, n_k = LONG[way]
    bias = numbers(3, n_q, n_k, seed=5)
    biases = (None, bias[0, :1], bias[:, :, :1], bias)
    masks = hidden(n_q, n_k)
    shapes = [some(n_q, n_k), some(n_q, n_k, d_k=8, d_v=24, key_heads=(2, 3))]
    if way.startswith("few"):  # where rows of four and of one, and whole vectors and rests, meet
        shapes.append(some(n_q, n_k, d_k=77, d_v=83))
    for inputs in shapes:
        check(way, *inputs, None, None, 0.3, is_causal)
        for i, mask in enumerate(masks):
            check(way, *inputs, mask, biases[i % 4], 0.3, is_causal)


@every_way
def test_keys_in_many_chunks(way):
    inputs = some(3, 4099, heads=(2,), key_heads=())
    mask = np.ones((3, 4099), dtype=bool)
    mask[0, :2000] = mask[1, 1500:] = mask[2] = False
    check(way, *inputs, None, None, 0.3, True)
    check(way, *inputs, mask, None, 0.3, False)


@ways_here
@pytest.mark.parametrize("n_q", [2, 19])
def test_a_head_has_the_same_bits_in_a_batch_of_any_size(way, n_q, monkeypatch):
    # so many keys that a head alone is cut in chunks
    monkeypatch.setattr(panels, "LEAST", 16)
    batch = some(n_q, 151, heads=(67,), key_heads=(67,))
    whole = run(way, *batch, None, None, 0.3, False)
    for size in (1, 13):
        part = run(way, *(x[:size] for x in batch), None, None, 0.3, False)
        for got, wanted in zip(part, whole, strict=True):
            np.testing.assert_array_equal(got, wanted[:size])


@every_way
def test_extreme_scores(way):
    n_q, n_k = LONG[way]
    query, key, value = some(n_q, n_k, heads=(1,), key_heads=(1,))
    query, key = np.sign(query), np.sign(key)  # so that float32 has the scores exactly
    for scale in (0.0, 2.0**10, 2.0**100):
        output = run(way, query, key, value, None, None, scale, False)[0]
        wanted = exact(query, key, value, scale=scale)[0]
        np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-5)


@every_way
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_score_that_is_no_number_stays_in_its_rows(way, bad):
    n_q, n_k = LONG[way]
    query, key, value = some(n_q, n_k, heads=(1,), key_heads=(1,))
    query, key = np.abs(query), np.abs(key)
    for j in (0, n_k // 2, n_k - 1):
        broken, mask = key.copy(), np.ones((n_q, n_k), dtype=bool)
        broken[0, j] = bad
        mask[0, j] = False
        output, log_total = run(way, query, broken, value, mask, None, 0.3, False)
        wanted = exact(query[:, :1], key, value, mask[:1], scale=0.3)[0]
        np.testing.assert_allclose(output[:, :1], wanted, rtol=3e-6, atol=3e-6)
        assert np.all(np.isnan(output[:, 1:]))
        assert np.all(np.isnan(log_total[:, 1:]))
        if j:  # under the causal mask the rows before see it not
            output, _ = run(way, query, broken, value, None, None, 0.3, True)
            seen_by = np.arange(n_q) + n_k - n_q >= j
            np.testing.assert_array_equal(np.isnan(output[0, :, 0]), seen_by)


@every_way
def test_minus_infinity_weighs_nothing(way):
    n_q, n_k = LONG[way]
    query, key, value = some(n_q, n_k, heads=(1,), key_heads=(1,))
    query, broken, value = np.abs(query), np.abs(key), value.copy()
    broken[0, 3:-1] = -np.inf
    value[0, 3:-1] = 3e38
    seen = np.arange(n_k) % (n_k - 1) < 3
    output = run(way, query, broken, value, None, None, 0.3, False)[0]
    wanted = exact(query, np.abs(key), np.where(seen[:, None], value, 0), seen, scale=0.3)[0]
    np.testing.assert_allclose(output, wanted, rtol=3e-6, atol=3e-6)


def strangers(x):
    """Yield the same numbers in other strides and at other places."""
    yield np.asfortranarray(x)
    yield np.repeat(x, 2, axis=-1)[..., ::2]
    yield np.repeat(x, 3, axis=-2)[..., ::3, :]
    yield x[..., ::-1, :].copy()[..., ::-1, :]
    unaligned = np.empty(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    unaligned[...] = x
    yield unaligned


@ways_here
def test_strides_change_no_bit(way):
    n_q, n_k = 2, 37
    query, key, value = some(n_q, n_k)
    mask, bias = hidden(n_q, n_k)[0], numbers(n_q, n_k, seed=5)
    arguments = [query, key, value, mask, bias]
    wanted = run(way, *arguments, 0.3, False)[0]
    for i, x in enumerate(arguments):
        for stranger in strangers(x):
            changed = [*arguments[:i], stranger, *arguments[i + 1 :]]
            np.testing.assert_array_equal(run(way, *changed, 0.3, False)[0], wanted)
    arguments[1] = np.broadcast_to(numbers(1, 1, n_k, 1), (2, 1, n_k, 13))
    arguments[0] = np.broadcast_to(numbers(3, 1, 13), (2, 3, n_q, 13))
    wanted = run(way, *map(np.ascontiguousarray, arguments), 0.3, False)[0]
    np.testing.assert_allclose(run(way, *arguments, 0.3, False)[0], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("library", [np, torch])
def test_what_is_given_back_lies_without_gaps(library, exact):
    """Also where columns are cut off, as those are that a width of 0 or of bfloat16 pairs has."""
    wide = np.arange(12.0).reshape(3, 4)
    for x in (wide, wide[:, :3], wide.T, wide[::-1]):
        found = restored(x, library.ones(1, dtype=library.float16), exact=exact)
        assert found.dtype == (library.float64 if exact else library.float16)
        assert np.asarray(found).flags.c_contiguous
        np.testing.assert_array_equal(found, x)


def test_what_repeats_is_read_once():
    shape = (4, 2**20, 2**20)
    query = np.broadcast_to(np.float32(1), (4, 2**20, 2))
    mask, bias = np.broadcast_to(True, shape), np.broadcast_to(np.float32(0), shape)
    work = arrange(query, query, query, mask, torch.zeros(1, 1).expand(shape), 1.0, False).work
    assert max(x.size for x in (work.query, work.key, work.mask, work.bias)) <= 2
    work = arrange(query, query, query, None, bias.astype(np.float32, copy=False), 1.0, False).work
    assert work.bias.size == 1


def test_groups_are_the_axes_that_share_keys():
    query, key = numbers(2, 3, 5, 7, 4), numbers(1, 3, 1, 6, 4)
    assert arrange(query, key, key, None, None, 1.0, False).work.starts.shape == (7, 3, 10)
    value = numbers(5, 6, 4)
    assert arrange(query, key, value, None, None, 1.0, False).work.starts.shape == (7, 15, 2)
    check(HERE, query, key, value, None, None, 1.0, False)
    check(HERE, query, key, value, None, numbers(2, 1, 1, 7, 6), 1.0, True)


@ways_here
def test_log_total_of_sizes_of_zero(way):
    for n_q, n_k, d_k, expected in ((0, 3, 4, 0), (3, 0, 4, -np.inf), (3, 5, 0, math.log(5))):
        _, log_total = run(way, *some(n_q, n_k, d_k), None, None, 1.0, False)
        np.testing.assert_allclose(log_total, np.full((2, 3, n_q, 1), expected))
    output, log_total = run(way, *some(3, 5, d_v=0), None, None, 1.0, False)
    assert output.shape == (2, 3, 3, 0)
    np.testing.assert_allclose(log_total, exact(*some(3, 5))[1], rtol=1e-6)


def test_tensors_that_are_negated_when_they_are_read():
    """PyTorch keeps the minus of such a tensor, as of `torch.conj(z).imag`, as a bit of it."""
    query, key, value = (torch.tensor(x) for x in some(19, 5))
    lazy = torch.conj(torch.complex(query, query)).imag
    assert lazy.is_neg()
    rest = (key, value, None, None, 0.3, False)
    found = []
    for x in (lazy, -query):
        output, log_total = packed.forward(x, *rest)
        found.append((output, *packed.backward(x, *rest, output, log_total, output)))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


@ways_here
def test_early_keys_weigh_no_more_after_many_tiles(way):
    n = 200_000
    value = np.zeros((n, 1), np.float32)
    value[0] = n
    nothing = np.zeros((n, 1), np.float32)
    output, log_total = run(way, nothing[:2], nothing, value, None, None, 1.0, False)
    np.testing.assert_allclose(output, 1, rtol=1e-6)
    np.testing.assert_allclose(log_total, math.log(n), rtol=1e-7)


# bfloat16

WORDS = Tile(8, 4, 3, pairs=True)  # where no instruction takes pairs, halves of words are


@pytest.mark.parametrize(
    "tile",
    every_day([packed.PAIRS if packed.has_pairs() else WORDS], [packed.PAIRS, WORDS]),
    ids=str,
)
def test_pairs_of_bfloat16(tile):
    """The weights are rounded to 8 bits, and nothing else but the output."""
    for n_q, n_k, options in (
        (19, 283, {}),
        (67, 149, {"is_causal": True, "scale": -0.3}),
        (67, 150, {"mask": hidden(67, 150)[0], "scale": 3.0}),
        (9, 4099, {"scale": 0.0}),
    ):
        arrays = [torch.as_tensor(x).bfloat16() for x in some(n_q, n_k, d_k=14)]
        given = {"mask": None, "bias": None, "scale": 0.25, "is_causal": False} | options
        output, log_total = panels.forward(tile, (*arrays, *given.values()), few=False)
        assert output.dtype == torch.bfloat16
        right, right_total = exact(*arrays, **given)
        size = arrays[2].float().abs().max().item()
        assert np.abs(output.double().numpy() - right).max() < 2**-8 * size
        np.testing.assert_allclose(log_total.numpy(), right_total, rtol=3e-6, atol=3e-6)
        again = panels.forward(tile, (*arrays, *given.values()), few=False, n_threads=3)
        assert torch.equal(again[0], output)
    # what no query sees does no harm, and what is seen comes through
    broken = arrays[0].abs(), arrays[1].abs(), arrays[2].clone()
    broken[1][..., -1, 0] = math.nan
    output, _ = panels.forward(tile, (*broken, None, None, 1.0, True), few=False)
    assert torch.equal(output.isnan().any(-1), output.isnan().all(-1))
    assert output.isnan().any(-1).sum() == 6  # the last query of each head


def test_who_takes_pairs(monkeypatch):
    monkeypatch.setattr(packed, "has_pairs", lambda: True)
    rest = (None, None, 1.0, False)
    for dtype, d, bias, taken in (
        (torch.bfloat16, 4, None, True),
        (torch.float32, 4, None, False),
        (torch.bfloat16, 5, None, False),
        (torch.bfloat16, 0, None, False),
        (torch.bfloat16, 4, torch.zeros(2, 3), False),
    ):
        x = torch.zeros(3, d, dtype=dtype)
        assert packed.tile_for(x, x, x, None, bias, *rest[2:]).pairs == taken


# Registers and the exponential


@pytest.mark.parametrize(
    ("features", "lanes"),
    [
        ({"avx512f": True, "avx2": True}, 16),
        ({"avx2": True, "fma": True}, 8),
        ({"avx2": True, "fma": False}, 4),
        ({"neon": True}, 4),
        ({}, 4),
    ],
    ids=["avx512", "avx2", "no fma", "neon", "none"],
)
def test_the_processor_chooses_the_registers(monkeypatch, features, lanes):
    monkeypatch.setattr(register_tiles.config, "CPU_FEATURES", None)  # whatever Numba was told
    monkeypatch.setattr("llvmlite.binding.get_host_cpu_features", lambda: features)
    assert register_tiles.lanes.__wrapped__() == lanes
    monkeypatch.setattr(packed, "lanes", register_tiles.lanes.__wrapped__)
    assert packed.vector_unit().endswith(f", {lanes} lanes")
    assert TILES[lanes].lanes == lanes
    assert TILES[lanes].width % lanes == 0


@numba.njit
def _exp_of(x):
    return np.array([exp(number) for number in x])


@numba.njit
def _weigh(tile, x, top, total):
    exponentials.weigh(tile, x, 0, len(x), top, total, np.float32(exponentials.LOG2_E))


@pytest.mark.parametrize("tile", [Tile(16, 1, 1), Tile(4, 1, 1)], ids=["16", "4"])
def test_the_exponential(tile):
    x = np.concatenate([-np.linspace(0, 87, 9999), -np.geomspace(1e-9, 87, 9999)])
    x = x.astype(np.float32)
    wanted = np.exp(x.astype(np.float64))
    # float32 has log₂e and x · log₂e to half of their last bits: a relative error of the power
    allowed = 2e-7 + 2**-23 * np.abs(x)
    assert np.all(np.abs(_exp_of(x) / wanted - 1) <= allowed)
    assert _exp_of(np.zeros(1, np.float32)) == 1  # exactly: see below
    beyond = np.array([-88, -100, -1e4, -3e38, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(_exp_of(beyond), [0, 0, 0, 0, 0, np.nan])

    top, total = numbers(tile.width), np.empty(tile.width, np.float32)
    tall = np.concatenate([x, beyond])[:, None] + np.zeros_like(top)
    below = tall.copy()
    _weigh(tile, tall, np.zeros_like(top), total)
    np.testing.assert_array_equal(tall, np.broadcast_to(_exp_of(below[:, 0])[:, None], tall.shape))
    assert np.all(np.isnan(total))
    few = below[:3] + top
    wanted = np.exp(few.astype(np.float64) - top)
    _weigh(tile, few, top, total)
    np.testing.assert_allclose(few, wanted, rtol=3e-7)
    np.testing.assert_allclose(total, wanted.sum(axis=0), rtol=3e-7)


def test_the_tiles_of_the_backward_pass():
    for lanes, tile in backward.TILES.items():
        assert tile.lanes == lanes
        assert backward.KEYS % tile.width == 0


@numba.njit
def multiplied(tile, a, a_row, a_column, b, c, rows, columns, depth, add):
    if add:
        products.product_onto(tile, a, 0, a_row, a_column, b, c, rows, columns, depth, None)
    else:
        products.product(tile, a, 0, a_row, a_column, b, c, rows, columns, depth, None)


@pytest.mark.parametrize("lanes", register_lanes())
@pytest.mark.parametrize("turned", [False, True])
def test_product(lanes, turned):
    """With rows and depths that do not fill the tile."""
    tile = backward.TILES[lanes]
    rng = np.random.default_rng(4)
    columns = 96
    for rows, depth in ((1, 1), (7, 5), (29, 8), (96, 31)):
        a = rng.standard_normal((depth, rows) if turned else (rows, depth)).astype(np.float32)
        b = rng.standard_normal((depth, columns)).astype(np.float32)
        c = rng.standard_normal((rows + 5, columns)).astype(np.float32)
        right = (a.T if turned else a).astype(np.float64) @ b
        for add, first in ((False, 0), (True, 2)):
            to = c.copy()
            steps = (1, rows) if turned else (depth, 1)
            multiplied(tile, a.ravel(), *steps, b, to[first:], rows, columns, depth, add)
            np.testing.assert_allclose(
                to[first : first + rows], right + add * c[first : first + rows], atol=1e-4
            )
            np.testing.assert_array_equal(to[:first], c[:first])
            np.testing.assert_array_equal(to[first + rows :], c[first + rows :])


# The backward pass


def exact_grads(arrays, grad, **options):
    """Return the gradients by autograd in float64, of inputs that are rounded already."""
    leaves = [torch.as_tensor(x).double().requires_grad_() for x in arrays]
    options = {
        name: torch.as_tensor(x) if isinstance(x, np.ndarray) else x for name, x in options.items()
    }
    if options.get("bias") is not None:
        options["bias"] = options["bias"].double()
    attnbook.attention(*leaves, **options).backward(torch.as_tensor(grad).double())
    return [x.grad.numpy() for x in leaves]


def draw(query, key, value, seed=3, spread=1.0):
    """Return q, k, v and a gradient of the output in float32."""
    rng = np.random.default_rng(seed)
    lead = np.broadcast_shapes(query[:-2], key[:-2], value[:-2])
    shapes = (query, key, value, (*lead, query[-2], value[-1]))
    *arrays, grad = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return [x * np.float32(spread) for x in arrays], grad


def test_nan_reaches_its_own_query_only():
    arrays, grad = draw((103, 7), (109, 7), (109, 5))
    arrays[0][5, 2] = np.nan
    grad_query, *_ = attnbook.attention_vjp(*arrays, grad, impl="packed")
    assert np.isnan(grad_query[5]).all()
    assert np.isfinite(np.delete(grad_query, 5, axis=0)).all()


def test_tensors_and_strides():
    """Tensors that need a gradient, transposed inputs and repeated masks give the same bits."""
    arrays, grad = draw((2, 101, 7), (2, 103, 7), (2, 103, 5))
    mask = np.arange(103) % 3 > 0
    right = attnbook.attention_vjp(*arrays, grad, mask, impl="packed")
    turned = [np.asfortranarray(x) for x in (*arrays, grad)]
    wide = np.broadcast_to(mask, (2, 101, 103))
    in_torch = [torch.tensor(x, requires_grad=True) for x in (*arrays, grad)]
    for got in (
        attnbook.attention_vjp(*turned, wide, impl="packed"),
        attnbook.attention_vjp(*in_torch, torch.tensor(mask).expand(2, 101, 103), impl="packed"),
    ):
        for ours, other in zip(got, right, strict=True):
            np.testing.assert_array_equal(np.asarray(ours), other)
    assert all(isinstance(x, torch.Tensor) and not x.requires_grad for x in got)


def test_work_is_shared_out(monkeypatch):
    """One head is split among threads; a small one is not worth it."""
    seen = []
    in_parts = backward.in_parts

    def spy(function, n, n_threads):
        seen.append(n_threads)
        in_parts(function, n, n_threads)

    monkeypatch.setattr(backward, "in_parts", spy)
    monkeypatch.setattr("attnbook.arrays.threads._cores", lambda: 2)
    for n in (8, 601):
        arrays, grad = draw((n, 16), (n, 16), (n, 16))
        attnbook.attention_vjp(*arrays, grad, impl="packed")
    assert seen == [1, 2]


def test_no_matrix_of_weights_is_kept():
    n = 3001
    arrays, grad = draw((n, 4), (n, 4), (n, 4))
    mask = np.broadcast_to(np.arange(n) % 7 > 0, (n, n))
    attnbook.attention_vjp(*arrays, grad, mask, is_causal=True, impl="packed")
    tracemalloc.start()
    attnbook.attention_vjp(*arrays, grad, mask, is_causal=True, impl="packed")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < n * n


def test_keys_that_strides_repeat_have_gradients_of_their_own():
    (query, *shared), grad = draw((3, 19, 7), (1, 23, 7), (1, 23, 5))
    key, value = (np.broadcast_to(x, (3, *x.shape[1:])) for x in shared)
    got = attnbook.attention_vjp(query, key, value, grad, impl="packed")
    wanted = attnbook.attention_vjp(query, key.copy(), value.copy(), grad, impl="packed")
    for ours, right in zip(got, wanted, strict=True):
        np.testing.assert_allclose(ours, right, atol=1e-6)


LEADS = (
    ((), (), ()),
    ((2,), (2,), (2,)),
    ((2, 3), (2, 1), (2, 1)),
    ((2,), (), (1,)),
    ((), (2, 1), (3,)),
    ((2, 3), (1, 3), (3,)),
)


@st.composite
def cases(draw_one):
    """Draw shapes around the size of a tile, leading axes that broadcast, and options."""
    size = st.sampled_from((1, 2, 17, 95, 96, 97, 191, 193, 211))
    n_q, n_k = draw_one(size), draw_one(size)
    d_k, d_v = (draw_one(st.sampled_from((1, 3, 16, 32, 33))) for _ in range(2))
    leads = draw_one(st.sampled_from(LEADS))
    shapes = [(*leads[0], n_q, d_k), (*leads[1], n_k, d_k), (*leads[2], n_k, d_v)]
    rng = np.random.default_rng(draw_one(st.integers(0, 2**32 - 1)))
    scores = (*np.broadcast_shapes(*leads[:2]), n_q, n_k)
    forms = (None, scores, (n_q, n_k), (n_q, 1), (n_k,))
    of_mask, of_bias = draw_one(st.sampled_from(forms)), draw_one(st.sampled_from(forms))
    options = {
        "mask": None if of_mask is None else rng.random(of_mask) < 0.5,
        "bias": None if of_bias is None else rng.standard_normal(of_bias, dtype=np.float32),
        "scale": draw_one(st.sampled_from((None, 0.0, 0.3, 2.0))),
        "is_causal": draw_one(st.booleans()),
    }
    return shapes, options


@settings(max_examples=examples(20), deadline=None)
@given(case=cases(), seed=st.integers(0, 2**32 - 1))
def test_any_shape(case, seed):
    shapes, options = case
    arrays, grad = draw(*shapes, seed=seed)
    got = attnbook.attention_vjp(*arrays, grad, **options, impl="packed")
    exact = exact_grads(arrays, grad, **options)
    for ours, right in zip(got, exact, strict=True):
        assert ours.shape == right.shape
        np.testing.assert_allclose(ours, right, rtol=1e-4, atol=2e-5 * (1 + np.abs(right).max()))
