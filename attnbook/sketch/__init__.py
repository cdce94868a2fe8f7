"""Sketch attention: hash tables that find the keys a query attends to, and say what they miss."""

from attnbook.sketch.estimators import (
    duplicates,
    importance,
    per_table_mean,
    per_table_sum,
    union,
)
from attnbook.sketch.evidence import Evidence
from attnbook.sketch.functional import sketch_attention
from attnbook.sketch.given_hash import GivenHash
from attnbook.sketch.lifting import LiftedHash, lift_keys, lift_queries
from attnbook.sketch.moments import Moments
from attnbook.sketch.planner import Plan, plan
from attnbook.sketch.robin_hood import RobinHoodTable
from attnbook.sketch.simhash import SimHash
from attnbook.sketch.sketch_attention import SketchAttention
from attnbook.sketch.stable_hash import StableHash
from attnbook.sketch.tails import UniformTail, uniform_tail
