"""Sketch attention: hash tables that find the keys a query attends to, and say what they miss.

`SketchAttention` is a set of keys that grows. `sketch_attention` does the same in one call. A hash,
`SimHash` or `StableHash`, puts vectors into buckets, and `plan` chooses one that keeps a promise.
"""

from attnbook.hashing.buckets import Buckets, sort_buckets
from attnbook.hashing.cross_polytope import CrossPolytopeHash
from attnbook.hashing.given_hash import GivenHash
from attnbook.hashing.learned_cells import LearnedCells
from attnbook.hashing.lifting import LiftedHash, lift_keys, lift_queries
from attnbook.hashing.planner import plan
from attnbook.hashing.robin_hood import RobinHoodTable
from attnbook.hashing.simhash import SimHash
from attnbook.hashing.stable_hash import StableHash
from attnbook.hashing.table_plan import Cost, Costs, Plan
from attnbook.sketch.attention import SketchAttention
from attnbook.sketch.bucket_index import BucketIndex
from attnbook.sketch.estimators import (
    Candidates,
    duplicates,
    importance,
    per_table_mean,
    per_table_sum,
    union,
)
from attnbook.sketch.evidence import Evidence
from attnbook.sketch.functional import sketch_attention
from attnbook.sketch.moments import Moments
from attnbook.sketch.sorted_index import SortedIndex
from attnbook.sketch.tails import UniformTail, uniform_tail

__all__ = [
    "BucketIndex",
    "Buckets",
    "Candidates",
    "Cost",
    "Costs",
    "CrossPolytopeHash",
    "Evidence",
    "GivenHash",
    "LearnedCells",
    "LiftedHash",
    "Moments",
    "Plan",
    "RobinHoodTable",
    "SimHash",
    "SketchAttention",
    "SortedIndex",
    "StableHash",
    "UniformTail",
    "duplicates",
    "importance",
    "lift_keys",
    "lift_queries",
    "per_table_mean",
    "per_table_sum",
    "plan",
    "sketch_attention",
    "sort_buckets",
    "uniform_tail",
    "union",
]
