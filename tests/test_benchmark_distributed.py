"""The model of a ring on many machines, and the pairs that each process computes."""

import pytest

from benchmarks import distributed, distributed_model
from benchmarks.distributed_model import Link

AT_ONCE = Link("a link without latency", 50e9, 0.0, "made up")


@pytest.mark.parametrize("p", [2, 64, 1024])
def test_sending_is_hidden_from_the_bound_on(p):
    layer = {"heads": 32, "kv_heads": 8, "width": 128, "bytes_a_number": 2}
    bound = 2 * (8 / 32) * (4e14 / 50e9)
    assert distributed_model.hidden_from(p, 4e14, AT_ONCE, **layer) == pytest.approx(p * bound)
    computing, sending = distributed_model.step(bound, 4e14, AT_ONCE, **layer)
    assert computing == pytest.approx(sending)
    wider = {**layer, "width": 64}
    assert distributed_model.hidden_from(p, 4e14, AT_ONCE, **wider) == pytest.approx(p * bound)


def test_the_ring_is_p_times_as_fast_where_sending_is_hidden():
    for p in (2, 16):
        least = distributed_model.hidden_from(p, 1e14, AT_ONCE)
        assert distributed_model.speed(2 * least, p, 1e14, AT_ONCE) == pytest.approx(p)
        assert distributed_model.speed(least / 2, p, 1e14, AT_ONCE) < p


def test_a_link_is_found_again_from_its_messages():
    rows = [
        {"bytes": n, "seconds": {"median": 2e-4 + n / 3e9}} for n in (2**10, 2**16, 2**20, 2**25)
    ]
    link = distributed_model.fitted(rows, "found")
    assert (link.latency, link.bandwidth) == pytest.approx((2e-4, 3e9))


@pytest.mark.parametrize("layout", ["contiguous", "striped", "zigzag"])
@pytest.mark.parametrize("p", [1, 2, 5])
def test_all_pairs_are_computed_once(layout, p):
    m = 6
    pairs = distributed.pairs_of(layout, p, m)
    assert sum(map(sum, pairs)) == p * m * (p * m + 1) // 2
    steps = list(zip(*pairs, strict=True))
    if layout == "zigzag":
        assert [set(step) for step in steps] == [{m * (m + 1) // 2}] + [{m * m // 2}] * (p - 1)
