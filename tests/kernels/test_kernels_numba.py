"""The compiled rungs on the CPU: tiles of every shape, chunks of keys, few queries, odd strides.

What every rung must do is in test_kernels.py; here is what only these can get wrong.
"""

import math

import numpy as np
import pytest
import torch

from attnbook import kernels

numba = pytest.importorskip("numba")
from attnbook.compilers import register_tiles  # noqa: E402
from attnbook.compilers.register_tiles import TILES, Tile  # noqa: E402
from attnbook.kernels import numba as plain  # noqa: E402
from attnbook.kernels import packed  # noqa: E402
from attnbook.kernels.numba_loops import forward as panels  # noqa: E402
from attnbook.kernels.numba_loops.arrays import arrange  # noqa: E402
from attnbook.kernels.numba_loops.panels import exp  # noqa: E402

HERE = register_tiles.lanes()
WAYS = {"numba": plain.forward, "few": None}
WAYS |= {f"packed{lanes}": None for lanes in TILES}


def run(way, *arguments, **options):
    """Return output and log_total: by the plain loops, by tiles for so many lanes, or by none."""
    if way == "numba":
        return plain.forward(*arguments, **options)
    if way == "few":
        return panels.forward(None, arguments, few=True, **options)
    return packed.forward(*arguments, tile=TILES[int(way.removeprefix("packed"))], **options)


def exact(query, key, value, mask=None, bias=None, scale=1.0, is_causal=False):
    """Return output and log Σ exp(score) by PyTorch's functions in float64."""
    q, k, v = (torch.as_tensor(x).double() for x in (query, key, value))
    scores = scale * q @ k.mT
    n_q, n_k = scores.shape[-2:]
    if bias is not None:
        scores = scores + torch.as_tensor(bias).double()
    seen = torch.ones(n_q, n_k, dtype=torch.bool).tril(n_k - n_q if is_causal else n_k)
    if mask is not None:
        seen = seen & torch.as_tensor(mask)
    scores = torch.where(seen, scores, -math.inf)
    weights = torch.softmax(scores, dim=-1)
    output = torch.where(seen.any(dim=-1, keepdim=True), weights, 0) @ v
    return output.numpy(), torch.logsumexp(scores, dim=-1, keepdim=True).numpy()


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
LONG = {"numba": (67, 149), "few": (2, 2311)} | {f"packed{n}": (19, 283) for n in TILES}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_causal", [False, True], ids=["all", "causal"])
def test_tiles_of_every_shape(way, is_causal):
    n_q, n_k = LONG[way]
    bias = numbers(3, n_q, n_k, seed=5)
    for inputs in (some(n_q, n_k), some(n_q, n_k, d_k=8, d_v=24, key_heads=(2, 3))):
        check(way, *inputs, None, None, 0.3, is_causal)
        check(way, *inputs, None, bias, 0.3, is_causal)
        check(way, *inputs, hidden(n_q, n_k)[0], bias[0, :1], 0.3, is_causal)
        check(way, *inputs, hidden(n_q, n_k)[1], bias[:, :, :1], 0.3, is_causal)


@pytest.mark.parametrize("way", WAYS)
def test_masks_of_every_shape(way):
    n_q, n_k = LONG[way]
    for mask in hidden(n_q, n_k):
        check(way, *some(n_q, n_k), mask, None, 0.3, False)


@pytest.mark.parametrize("way", WAYS)
def test_keys_in_many_chunks(way):
    inputs = some(3, 4099, heads=(2,), key_heads=())
    mask = np.ones((3, 4099), dtype=bool)
    mask[0, :2000] = mask[1, 1500:] = mask[2] = False
    check(way, *inputs, None, None, 0.3, True)
    check(way, *inputs, mask, None, 0.3, False)


@pytest.mark.parametrize("way", WAYS)
def test_more_queries_than_keys(way):
    check(way, *some(7, 2), None, None, 1.0, True)
    check(way, *some(1, 1, d_k=1, d_v=1), None, None, 1.0, False)


@pytest.mark.parametrize("way", WAYS)
def test_extreme_scores(way):
    n_q, n_k = LONG[way]
    query, key, value = some(n_q, n_k, heads=(1,), key_heads=(1,))
    query, key = np.sign(query), np.sign(key)  # so that float32 has the scores exactly
    for scale in (0.0, 2.0**10, 2.0**100):
        output = run(way, query, key, value, None, None, scale, False)[0]
        wanted = exact(query, key, value, scale=scale)[0]
        np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
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


@pytest.mark.parametrize("way", WAYS)
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


@pytest.mark.parametrize("way", WAYS)
def test_bits_do_not_depend_on_the_threads(way):
    n_q, n_k = LONG[way]
    inputs = some(n_q, n_k)
    found = set()
    for n_threads in (1, 2, 5, 2):
        got = run(way, *inputs, None, None, 0.3, True, n_threads=n_threads)
        found.add(tuple(x.tobytes() for x in got))
    assert len(found) == 1


def strangers(x):
    """Yield the same numbers in other strides and at other places."""
    yield np.asfortranarray(x)
    yield np.repeat(x, 2, axis=-1)[..., ::2]
    yield np.repeat(x, 3, axis=-2)[..., ::3, :]
    yield x[..., ::-1, :].copy()[..., ::-1, :]
    unaligned = np.empty(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    unaligned[...] = x
    yield unaligned


@pytest.mark.parametrize("way", ["numba", "few", f"packed{HERE}"])
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
    assert arrange(query, key, key, None, None, 1.0, False).work.starts.shape == (6, 3, 10)
    value = numbers(5, 6, 4)
    assert arrange(query, key, value, None, None, 1.0, False).work.starts.shape == (6, 15, 2)
    check(f"packed{HERE}", query, key, value, None, None, 1.0, False)
    check("numba", query, key, value, None, numbers(2, 1, 1, 7, 6), 1.0, True)


@pytest.mark.parametrize("module", [plain, packed])
def test_sizes_of_zero(module):
    for shape in ((0, 3, 4), (2, 0, 4)):
        query, key = numbers(*shape), numbers(2, 3, 4)[: shape[0]]
        output, log_total = module.forward(query, key, key, None, None, 1.0, True)
        assert output.shape == shape
        assert log_total.shape == (*shape[:2], 1)
    output, log_total = module.forward(*some(3, 0), None, None, 1.0, False)
    np.testing.assert_array_equal(output, np.zeros((2, 3, 3, 11)))
    np.testing.assert_array_equal(log_total, np.full((2, 3, 3, 1), -np.inf))
    query, key, value = some(3, 5, d_k=0)
    output, log_total = module.forward(query, key, value, None, None, 1.0, False)
    wanted = np.broadcast_to(value.mean(axis=-2, keepdims=True), output.shape)
    np.testing.assert_allclose(output, wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(log_total, math.log(5))
    output, log_total = module.forward(*some(3, 5, d_v=0), None, None, 1.0, False)
    assert output.shape == (2, 3, 3, 0)
    np.testing.assert_allclose(log_total, exact(*some(3, 5))[1], rtol=1e-6)


@pytest.mark.parametrize("module", [plain, packed])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_tensors_of_any_precision(module, dtype):
    query, key, value, bias = (
        torch.tensor(x).to(dtype) for x in (*some(19, 5), numbers(19, 5, seed=5))
    )
    mask = torch.tensor(hidden(19, 5)[1])
    output, log_total = module.forward(query.requires_grad_(), key, value, mask, bias, 0.3, False)
    wide = (x.detach().float() for x in (query, key, value))
    wanted, wanted_log = exact(*wide, mask, bias.float(), 0.3)
    assert output.dtype == dtype
    atol = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 3e-6}[dtype]
    np.testing.assert_allclose(output.float(), wanted, rtol=atol, atol=atol)
    np.testing.assert_allclose(log_total, wanted_log, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("module", [plain, packed])
def test_tensors_that_are_negated_when_they_are_read(module):
    """PyTorch keeps the minus of such a tensor, as of `torch.conj(z).imag`, as a bit of it."""
    query, key, value = (torch.tensor(x) for x in some(19, 5))
    lazy = torch.conj(torch.complex(query, query)).imag
    assert lazy.is_neg()
    rest = (key, value, None, None, 0.3, False)
    found = []
    for x in (lazy, -query):
        output, log_total = module.forward(x, *rest)
        found.append((output, *module.backward(x, *rest, output, log_total, output)))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


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
    register_tiles.weigh(tile, x, 0, len(x), top, total)


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


@pytest.mark.parametrize("way", ["numba", "few", f"packed{HERE}"])
def test_early_keys_weigh_no_more_after_many_tiles(way):
    n = 200_000
    value = np.zeros((n, 1), np.float32)
    value[0] = n
    nothing = np.zeros((n, 1), np.float32)
    output, log_total = run(way, nothing[:2], nothing, value, None, None, 1.0, False)
    np.testing.assert_allclose(output, 1, rtol=1e-6)
    np.testing.assert_allclose(log_total, math.log(n), rtol=1e-7)


def test_rungs_name_what_they_agree_with():
    assert kernels.KERNELS["packed"].reference == "numba"
    assert kernels.KERNELS["packed"].load() is packed
    assert kernels.KERNELS["numba"].load() is plain
