"""A model of ring attention on many machines: seconds of a step, from rates and links.

Nothing here is measured. In a step of the ring, each of p processes lets m = n/p queries meet m
keys (half of the pairs under a causal mask, in the zigzag order), while it sends its keys and
values of 2 bytes a number:

    seconds of a step = max(work / rate, latency + bytes / bandwidth).
"""

from typing import Any, NamedTuple

import numpy as np


class Link(NamedTuple):
    """A connection from a process to its neighbour."""

    name: str
    bandwidth: float  # bytes a second in one direction
    latency: float  # seconds a message
    source: str


NVLINK = Link(
    "NVLink 4",
    450e9,
    5e-6,
    "published: 900 GB/s a GPU in both directions together (NVIDIA H100 data sheet); the latency "
    "is assumed",
)
INFINIBAND = Link(
    "InfiniBand NDR",
    50e9,
    10e-6,
    "published: 400 Gb/s a port and direction; one port a GPU and the latency are assumed",
)
RATE = 4e14
RATE_SOURCE = (
    "assumed: 400 TFLOP/s of attention in bfloat16 a GPU; FlashAttention-3 reports up to 740 in "
    "float16 on an H100"
)
HEADS, KV_HEADS, WIDTH = 32, 8, 128
MODEL = {"heads": HEADS, "kv_heads": KV_HEADS, "width": WIDTH, "bytes_a_number": 2}
"""A layer of Llama 3 8B."""

PROCESSES = tuple(2**i for i in range(1, 11))


def step(m: float, rate: float, link: Link, **layer: int) -> tuple[float, float]:
    """Return the seconds of computing and of sending in one step of a causal zigzag ring."""
    layer = {**MODEL, **layer}
    pairs = m * m / 2
    work = 4 * pairs * layer["heads"] * layer["width"]
    n_bytes = 2 * m * layer["kv_heads"] * layer["width"] * layer["bytes_a_number"]
    return work / rate, link.latency + n_bytes / link.bandwidth


def speed(n: float, p: int, rate: float, link: Link, **layer: int) -> float:
    """Return how many times as fast p processes are as one, at n tokens."""
    computing, sending = step(n / p, rate, link, **layer)
    one = p * p * computing
    return one / ((p - 1) * max(computing, sending) + computing)


def hidden_from(p: int, rate: float, link: Link, **layer: int) -> float:
    """Return the least number of tokens n at which a step computes as long as it sends."""
    low, high = 1.0, 1e12
    for _ in range(100):
        middle = (low * high) ** 0.5
        computing, sending = step(middle, rate, link, **layer)
        low, high = (low, middle) if computing >= sending else (middle, high)
    return high * p


def fitted(rows: list[dict[str, Any]], name: str) -> Link:
    """Return the link whose latency and bandwidth fit measured messages best, relatively."""
    sizes = np.array([row["bytes"] for row in rows], float)
    seconds = np.array([row["seconds"]["median"] for row in rows])
    design = np.stack([np.ones_like(sizes), sizes], axis=1) / seconds[:, None]
    latency, per_byte = np.linalg.lstsq(design, np.ones_like(seconds), rcond=None)[0]
    bandwidth = 1 / max(float(per_byte), 1e-15)  # a trial of two messages tells nothing
    return Link(name, bandwidth, max(float(latency), 0.0), "measured: the table `links`")


def rows(links: list[tuple[Link, float, dict[str, int]]]) -> list[dict[str, Any]]:
    """Return for each link and p from how many tokens on the ring hides what it sends."""
    found = []
    for link, rate, layer in links:
        for p in PROCESSES:
            at = {str(n): speed(n, p, rate, link, **layer) for n in (2**14, 2**17, 2**20)}
            least = hidden_from(p, rate, link, **layer)
            found.append({"link": link.name, "p": p, "hidden_from": least, "speed": at})
    return found
