"""Every public part of hashes and sketches gives on CuPy arrays what it gives on NumPy's.

The stand-in of a GPU refuses an array of NumPy's wherever one meets one of the GPU. What the
kernels alone can get wrong is in test_sketch_cuda.py.
"""

import itertools
from dataclasses import astuple

import numpy as np
import pytest
from cases import every_day

import attnbook
from attnbook import hashing, sketch
from attnbook.hashing import SimHash, StableHash
from attnbook.sketch import SketchAttention, estimators, sketch_attention

RNG = np.random.default_rng(0)
CENTRES = RNG.standard_normal((11, 5))
KEY = CENTRES[RNG.integers(11, size=61)] + 0.3 * RNG.standard_normal((61, 5))
VALUE = RNG.standard_normal((61, 3))
QUERY = KEY[:7] + 0.1
SIGNATURES = RNG.integers(4, size=(61, 3))
FOUND = RNG.random((61, 3, 2)) < 0.7
LONGEST = float(np.linalg.norm(KEY, axis=1).max())


class To:
    """What moves an array to a library."""

    def __init__(self, library):
        self.library = library

    def __call__(self, x):
        return attnbook.move(x, self.library)


def hashed(hash):
    """Return what a hash gives, but for its directions."""

    def call(to):
        own = hash.to(to.library)
        given = [own.signatures(to(KEY)), own.retrieval_probability(to(QUERY), to(KEY[:7]))]
        return [*given, own.probes(to(QUERY), 3)]

    return call


def candidates(to):
    """Return scores and rows of three tables, some of them equal, some absent."""
    rows, scores = (np.repeat(x[:, :, None], 2, axis=-1) for x in (SIGNATURES, VALUE))
    return to(scores), estimators.Candidates.of(to(rows), to(FOUND))


def buckets(to):
    """Return sorted buckets, and where some signatures are in them."""
    sorted_ = hashing.sort_buckets(to(SIGNATURES[:, 0]))
    found = sorted_.find(to(np.array([2, 9, 0])))
    return [sorted_.signatures, sorted_.starts, sorted_.order, *found]


def index(to):
    """Return what an index holds after all that can be done to it."""
    index = sketch.SortedIndex(3)
    index.add(to(SIGNATURES[:40]))
    index.remove(to(np.array([3, 5])))
    index.remove([0])
    index.add(to(SIGNATURES[40:]))
    asked = to(SIGNATURES[:7])
    found = [index.counts(asked), *index.lookup(asked), index.bucket_sizes(1)]
    return [index.live(), index.signatures(), *found]


def cells(to):
    """Return the centres that are learned, and the cells of vectors."""
    hash = hashing.LearnedCells.fit(0, to(KEY), 5, 2)
    return [hash.centres, hash.signatures(to(KEY)), hash.probes(to(QUERY), 3)]


def moments(to):
    """Return the tail of a mixture after keys came and went."""
    fitted = sketch.Moments.fit(to(KEY[:40]), to(VALUE[:40]), n_cells=3)
    cells = fitted.assign(to(KEY[40:]))
    fitted = fitted.add(to(KEY[40:]), to(VALUE[40:]))
    fitted = fitted.remove(to(KEY[40:50]), to(VALUE[40:50]), cells[:10])
    limit = fitted.limit(to(QUERY), 0.5)
    counts = to(np.ones((7, 3)))
    tails = fitted.tail(to(QUERY), 0.5, below=limit), fitted.tail(to(QUERY), 0.5, counts=counts)
    return [cells, limit, *tails[0], *tails[1]]


def planned(to):
    """Return what a plan tells of vectors and distances."""
    found = []
    for n_probes in (1, 2):
        plan = hashing.plan(100, n_projections=2, n_probes=n_probes, sample=to(KEY))
        found += [plan.retrieval_probability(to(np.array([0.0, 0.5, 3.0])))]
        found += [plan.expected_candidates(to(KEY), to(QUERY))]
    return found


def tail(to):
    """Return the tail of a sample."""
    made = sketch.uniform_tail(to(QUERY), to(VALUE[:5]), 61, unseen=to(QUERY > 0))
    return [made.log_mass, made.output, made.mass_error, made.output_error]


CALLS = {
    "Buckets": buckets,
    "Candidates": lambda to: [candidates(to)[1].distinct],
    "CrossPolytopeHash": hashed(hashing.CrossPolytopeHash.init(0, 5, 3, 2)),
    "GivenHash": lambda to: [
        hashing.GivenHash(lambda x: x[:, 0] > 0, lambda x: x[:, 1] < 1).signatures(to(KEY))
    ],
    "LearnedCells": cells,
    "LiftedHash": hashed(hashing.LiftedHash(StableHash.init(0, 6, 0.5, 3, 2), LONGEST)),
    "Moments": moments,
    "Plan": planned,
    "SimHash": hashed(SimHash.init(0, 5, 3, 4)),
    "SortedIndex": index,
    "StableHash": hashed(StableHash.init(0, 5, 2.0, 3, 2)),
    "UniformTail": tail,
    "lift_keys": lambda to: [hashing.lift_keys(to(KEY), LONGEST), hashing.lift_keys(to(KEY))],
    "lift_queries": lambda to: [hashing.lift_queries(to(QUERY))],
    "importance": lambda to: [estimators.importance(*candidates(to), to(np.full((61, 3, 2), 0.5)))],
    **{
        name: lambda to, name=name: [getattr(estimators, name)(*candidates(to))]
        for name in ("union", "duplicates", "per_table_mean", "per_table_sum")
    },
}
ELSEWHERE = {"SketchAttention", "sketch_attention", "Evidence"}  # in tests of their own
ELSEWHERE |= {"sort_buckets", "plan", "uniform_tail"}  # with what they return
WITHOUT = {"BucketIndex", "RobinHoodTable", "Cost", "Costs"}
"""What takes NumPy arrays alone, or none."""


def check_same(gpu, ours, theirs):
    """Assert that results are equal, and arrays of the GPU where the others are NumPy's."""
    assert len(ours) == len(theirs)
    for got, wanted in zip(ours, theirs, strict=True):
        if isinstance(wanted, np.ndarray):
            assert isinstance(got, gpu.cupy.ndarray)
            assert got.dtype == wanted.dtype
            got = gpu.host(got)
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)


def test_every_public_part_is_tested():
    public = {*hashing.__all__, *sketch.__all__}
    assert public == CALLS.keys() | ELSEWHERE | WITHOUT


@pytest.mark.parametrize("name", CALLS)
def test_as_on_numpy(gpu, name):
    check_same(gpu, CALLS[name](To("cupy")), CALLS[name](To("numpy")))


HASHES = {
    "sim": SimHash.init(0, 5, 5, 3),
    "stable": StableHash.init(0, 5, 4.0, 5, 2),
    "lifted": hashing.LiftedHash(SimHash.init(0, 6, 5, 3), LONGEST),
    "polytope": hashing.CrossPolytopeHash.init(0, 5, 5, 1),
}
COMPILED = ("sim", "stable")
"""Those that the kernels know, which a sketch on a GPU takes from any library."""

IMPLS = ("reference", "cupy")


def hash_for(to, impl, name):
    """Return the hash in the library that a sketch may have it in."""
    is_moved = to.library == "numpy" or (impl == "cupy" and name in COMPILED)
    return HASHES[name] if is_moved else HASHES[name].to(to.library)


OPTIONS = {
    "plain": {},
    "importance": {"estimator": "importance"},
    "duplicates": {"estimator": "duplicates"},
}


FEW = [(impl, *pair) for impl in IMPLS for pair in zip(itertools.cycle(HASHES), OPTIONS)]
FEW += [("cupy", *pair) for pair in zip(itertools.cycle(COMPILED), OPTIONS)]


@pytest.mark.parametrize(
    ("impl", "name", "chosen"),
    every_day(dict.fromkeys(FEW), itertools.product(IMPLS, HASHES, OPTIONS)),
)
def test_sketch_attention(gpu, impl, name, chosen, tmp_path):
    """Every day the kernels meet all options with a hash of their own, and some with another."""
    found = []
    for to, kind in ((To("cupy"), impl), (To("numpy"), "reference")):
        made = SketchAttention(hash_for(to, kind, name), impl=kind, **OPTIONS[chosen])
        for part in (slice(40), slice(40, None)):
            made.update(to(KEY[part]), to(VALUE[part]))
        made.remove(to(np.array([3, 50])))
        output, evidence = made.attention_output(to(QUERY), return_evidence=True)
        results = [output, *astuple(evidence), made.attention_output(to(QUERY))]
        ids, there = made.query(to(QUERY))
        results += [ids, there, *sorted_rows(to, made.attention_weights(to(QUERY)))]
        made.save(tmp_path / "sketch")
        home = SketchAttention.load(tmp_path / "sketch", "numpy", impl="reference")
        np.testing.assert_array_equal(home.query(QUERY)[0], attnbook.move(ids, "numpy"))
        again = SketchAttention.load(tmp_path / "sketch", to.library, impl=kind)
        again.update(to(KEY[:5]), to(VALUE[:5]))
        found.append([*results, again.attention_output(to(QUERY)), again.query(to(QUERY))[0]])
    check_same(gpu, *found)


def sorted_rows(to, pair):
    """Return rows and weights in the order of the rows."""
    rows, weights = (attnbook.move(x, "numpy") for x in pair)
    order = np.argsort(rows, axis=-1, kind="stable")
    return (to(np.take_along_axis(x, order, axis=-1)) for x in (rows, weights))


CAUSAL = {"is_causal": True}
FUNCTION = {
    "plain": {},
    "importance": {"estimator": "importance"},
    "causal": CAUSAL,
    "window": {**CAUSAL, "window": 3},
    "masked": {"mask": RNG.random((2, 1, 61)) < 0.8},
    "masked causal": {**CAUSAL, "mask": RNG.random(61) < 0.8, "window": 3},
    "nothing": {"mask": np.zeros(61, bool)},
}


@pytest.mark.parametrize("case", [*FUNCTION, "masks"])
@pytest.mark.parametrize("impl", IMPLS)
def test_sketch_attention_function(gpu, impl, case):
    if (impl, case) == ("cupy", "masks"):
        pytest.skip("a kernel takes one mask for all queries")
    options = FUNCTION.get(case, {"mask": RNG.random((7, 61)) < 0.5})
    found = []
    for to, kind in ((To("cupy"), impl), (To("numpy"), "reference")):
        given = {k: to(x) if isinstance(x, np.ndarray) else x for k, x in options.items()}
        output, evidence = sketch_attention(
            *(to(x) for x in (np.stack([QUERY, -QUERY]), KEY, VALUE)),
            **{**given, "hash": hash_for(to, kind, "stable"), "impl": kind},
            return_evidence=True,
        )
        found.append([output, *astuple(evidence)])
    check_same(gpu, *found)
