"""What is measured of sparse attention is what the methods say, and what they read is counted."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

from attnbook import log_softmax, transformer
from attnbook.decoding import HybridCache
from benchmarks import real_keys, sparse_attention
from benchmarks import sparse_attention_methods as methods
from benchmarks.sparse_attention_indexer import Indexer, examples, joined, trained
from benchmarks.sparse_attention_methods import Asked
from benchmarks.sparse_attention_reader import Reader

N, M = 97, 13


@pytest.fixture(scope="module")
def reader():
    return Reader(real_keys.model("writer").weights)


@pytest.fixture(scope="module")
def asked(reader):
    _, layers = reader.read(real_keys.window(N, "test", 3)[:-1])
    return Asked(2, layers[2], torch.arange(N - M, N), N - M)


def exact(asked):
    return asked.scores().softmax(-1) @ sparse_attention.values(asked)


def test_the_reader_is_the_model_whole_and_in_two_parts(reader):
    ids = real_keys.window(N, "test", 3)[:-1]
    expected = log_softmax(transformer(None, ids, real_keys.model("writer").weights))
    whole, layers = reader.read(ids)
    heads = real_keys.layers(N, part="test", i=3)
    np.testing.assert_allclose(torch.log_softmax(whole, -1).numpy(), expected, atol=2e-4)
    for seen, layer in zip(layers, heads, strict=True):
        for name in ("query", "key", "value"):
            np.testing.assert_allclose(getattr(seen, name), getattr(layer, name), atol=2e-4)
    _, prompt = reader.read(ids[:-M])
    rest, _ = reader.read(ids[-M:], prompt)
    torch.testing.assert_close(rest, whole[-M:], atol=2e-4, rtol=0)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("window", {"keys": N + 4}),
        ("best keys", {"keys": N}),
        ("blocks", {"block": 5, "selected": 19, "window": 1, "tail": False}),
        ("blocks", {"block": 1, "selected": 0, "window": 1, "tail": True}),
        ("HybridCache", {"tables": 8, "bits": 5, "window": N}),
        ("indexer", {"width": 4, "keys": N + 9, "window": 3}),
    ],
)
def test_a_method_that_reads_all_is_exact(asked, name, settings):
    indexers = {0: {4: [Indexer(192, 64, 4, 2)] * 6}}
    run = sparse_attention.method(name, settings, 0, indexers[0])
    answer = run(asked, asked.scores())
    torch.testing.assert_close(answer.output, exact(asked), atol=1e-4, rtol=0)
    assert answer.share >= 0.99 or settings.get("tail")


def test_what_is_read_is_counted(asked):
    scores = asked.scores()
    each = 2 * 64 * 2  # bytes of a key and a value of both KV heads
    seen = float((asked.rows + 1).float().mean())
    answer = methods.window(asked, scores, keys=20)
    assert answer.read == 20 * each
    assert answer.share == pytest.approx(20 / seen, rel=0.01)
    assert methods.best_keys(asked, scores, keys=7).read == 7 * each
    indexers = {8: [Indexer(192, 64, 8, 2)] * 6}
    answer = methods.indexed(asked, scores, width=8, keys=20, window=6, indexers=indexers)
    assert answer.read == pytest.approx(20 * each + 8 * seen)
    answer = methods.blocks(asked, scores, block=16, selected=2, window=1, tail=False)
    whole = float(((asked.rows + 1) // 16).float().mean())
    own = float(((asked.rows % 16) + 1).float().mean())  # of the block that is not whole
    assert answer.read == pytest.approx((48 + own) * each + whole * 2 * 32 * 2, rel=0.1)


def test_hashed_keys_are_those_of_the_hybrid_cache(asked):
    d, seen = 32, asked.seen
    cache = HybridCache(methods.SINKS, 8, n_tables=16, n_projections=4, seed=5)
    key, value = (x.numpy()[None] for x in (seen.key, seen.value))
    cache.append(0, key[:, :, : N - M], value[:, :, : N - M])
    found = []
    for i in range(N - M, N):
        cache.append(0, key[:, :, i : i + 1], value[:, :, i : i + 1])
        query = seen.query[None, :, i : i + 1].numpy()
        found.append(cache.attend(0, query, scale=d**-0.5)[0, :, 0])
    answer = methods.hashed(asked, asked.scores(), tables=16, bits=4, window=8, seed=5)
    np.testing.assert_allclose(answer.output.numpy().swapaxes(0, 1), found, atol=1e-4)


def test_blocks_with_a_tail_are_a_loop(asked):
    block, window = 6, 9
    answer = methods.blocks(
        asked, asked.scores(), block=block, selected=3, window=window, tail=True
    )
    seen, d = asked.seen, 32
    for h, i in ((0, 0), (4, 7), (5, 12)):
        g, own = h // 3, N - M + i
        key, value = (x[g].double().numpy() for x in (seen.key, seen.value))
        means = [key[b * block : (b + 1) * block].mean(0) for b in range((own + 1) // block)]
        total = np.zeros(len(means))
        for one in range(3 * g, 3 * g + 3):
            q = seen.query[one, own].double().numpy()
            powers = np.exp(np.array([q @ k for k in means]) * d**-0.5)
            total += powers / powers.sum()
        start = max(own - window + 1, 0) // block
        far = [b for b in range(1, len(means)) if b < start]
        chosen = {0, *sorted(far, key=lambda b: -total[b])[:3]}
        q = seen.query[h, own].double().numpy()
        parts = []
        for b in range(own // block + 1):
            rows = range(b * block, min((b + 1) * block, own + 1))
            if b in chosen or b >= start:
                parts += [(np.exp(q @ key[j] * d**-0.5), value[j]) for j in rows]
            else:
                mean = value[list(rows)].mean(0)
                parts.append((block * np.exp(q @ means[b] * d**-0.5), mean))
        expected = sum(w * v for w, v in parts) / sum(w for w, _ in parts)
        np.testing.assert_allclose(answer.output[h, i].numpy(), expected, atol=1e-4)


def test_an_indexer_learns_and_finds_better_keys(reader):
    texts = [real_keys.window(N, "train", i)[:-1] for i in range(4)]
    given = examples(reader, texts, 32, 0)
    made, curve = trained(given, 8, 0, steps=60, lr=0.01)
    assert np.mean(curve[-10:]) < 0.75 * curve[0]
    again, _ = trained(given, 8, 0, steps=60, lr=0.01)
    assert all(torch.equal(a.W_Q, b.W_Q) for a, b in zip(made, again, strict=True))
    for indexer, seen in zip(made, reader.read(texts[0])[1], strict=True):
        key = joined(seen.key)
        rounded, indexer.step = indexer.keys(key), None
        assert 0 < (rounded - indexer.keys(key)).abs().max() < 0.02 * rounded.abs().max()
