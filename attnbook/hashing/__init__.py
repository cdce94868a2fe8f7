"""Hashing: functions that put similar vectors into the same bucket, and the tables that hold them.

`SimHash` and `CrossPolytopeHash` see angles, `StableHash` distances and `LiftedHash` inner
products; `LearnedCells` follow the keys. `plan` chooses tables that keep a promise.
`RobinHoodTable` maps integers to integers, `sort_buckets` sorts rows by them.
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

__all__ = [
    "Buckets",
    "Cost",
    "Costs",
    "CrossPolytopeHash",
    "GivenHash",
    "LearnedCells",
    "LiftedHash",
    "Plan",
    "RobinHoodTable",
    "SimHash",
    "StableHash",
    "lift_keys",
    "lift_queries",
    "plan",
    "sort_buckets",
]
