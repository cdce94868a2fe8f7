"""What the checks of attention and of the transformer say of single answers."""

import attention_answers as answers
import greedy_answers as decode
import hash_answers as hashes
import layer_answers as layers  # noqa: F401
import masking_answers as masking  # noqa: F401
import numpy as np
import pair_answers as pairs
import pytest
import sketch_answers as sketches
import transformer_answers as transformer
from all_answers import RIGHT, need_torch
from attention_answers import right_attention, sm
from cases import every_day
from decoding_answers import RULE  # noqa: F401
from masking_answers import by_the_package
from multi_head_answers import right_heads, right_join, right_split
from report_table import assert_report, report_rows

import attnbook as ab
from attnbook import check
from attnbook.check.engine import diagnosis
from attnbook.check.engine.steps import Case
from attnbook.check.shared.toy_models import LONGEST, TooLong, Toy, ToyStep


@pytest.mark.parametrize(
    ("checked", "most"), [(check.greedy_decode, 40), (check.positional_encoding, 12)]
)
def test_what_raises_in_one_convention_is_not_run_in_the_others(checked, most):
    calls = []

    def counted(*given):
        calls.append(given)
        raise ValueError

    assert checked(counted).mistake == "raises"
    assert len(calls) < most


def reshape_of_batches(x, n_heads):
    batch, n, width = x.shape
    return x.reshape(batch, n_heads, n, width // n_heads)


def joined_by_reshape(query, key, value, W_Q, W_K, W_V, W_O, n_heads):
    batch, n, d_model = query.shape
    q, k, v = (
        (x @ W).reshape(batch, -1, n_heads, d_model // n_heads).swapaxes(1, 2)
        for x, W in ((query, W_Q), (key, W_K), (value, W_V))
    )
    return right_attention(q, k, v).reshape(batch, n, d_model) @ W_O


def tokens_for_a_batch(x, n_heads):  # of a matrix it makes (n, h, 1, d)
    return x.reshape(x.shape[0], -1, n_heads, x.shape[-1] // n_heads).swapaxes(1, 2)


def of_matrices_in_torch(x, n_heads):
    if not isinstance(x, np.ndarray):
        _n, _width = x.shape
    else:
        _batch, _n, _width = x.shape
    return right_split(x, n_heads)


class Block:
    def __init__(self, weights):
        self.weights = weights

    def __call__(self, x):
        mask = ab.masking.causal(x.shape[-2], like=x)
        return ab.decoder_layer(x, None, self.weights, mask, rotate=True)


def width_of_the_model(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    d_head = query.shape[-1] // n_heads
    q, k, v = (
        x.reshape(*x.shape[:-1], n_heads, d_head).swapaxes(-2, -3)
        for x in (query @ W_Q, key @ W_K, value @ W_V)
    )
    return right_join(right_attention(q, k, v, mask)) @ W_O


def mask_in_loops(query, key, value, mask):
    seen = [[bool(mask[i, j]) for j in range(len(key))] for i in range(len(query))]
    return right_attention(*map(np.asarray, (query, key, value)), np.array(seen))


def one_mask(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    if mask is not None:
        _n_q, _n_k = mask.shape
    return right_heads(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask)


def mask_dropped(query, key, mask=None):
    return answers.right_weights(query, key, mask if mask is None or mask.any() else None)


def nested(n_q, n_k):
    return np.array([[j <= i + n_k - n_q for j in range(n_k)] for i in range(n_q)])


def added_mask(q, k, v, mask=True):
    return sm(answers.right_scores(q, k) + (0 if mask is True else mask * -1e9)) @ v


def sampled(model, ids, rng=np.random.default_rng(0)):  # noqa: B008
    logits = np.asarray(model(ids))[-1]
    return int(rng.choice(len(logits), p=ab.softmax(logits)))


def without_limit(model, start, stop, max_length):
    return decode.greedy()(model, start, stop, 10**6)


def without_both(model, start, stop, max_length):
    return decode.greedy(until=False)(model, start, stop, 10**6)


def looks_late(model, start, stop, max_length):
    ids = [start]
    while True:
        ids.append(int(model(ids)[-1].argmax()))
        if ids[-1] == stop or len(ids) > max_length:
            return ids


def scales_weights(x, weights):
    output = ab.encoder_layer(x, weights)
    weights.feed_forward.W_2[...] *= 2
    return output


def normed_in_place(x, gain, bias):
    x -= transformer.mean(x)
    return x / transformer.root(transformer.mean(x * x) + 1e-5) * gain + bias


def merged_in_place(ids, pair, new):
    ids[:] = pairs.right_merge(ids, pair, new)
    return ids


def first_merge_deleted(word, merges):
    ids = pairs.right_encode(word, merges)
    del merges[:1]
    return ids


def merged_by_math(first, second):
    (m1, z1, u1), (m2, z2, u2) = first, second
    f1, f2 = (np.array([[answers.math.exp(x)] for x in m[:, 0]]) for m in (m1, m2))
    m = np.maximum(m1, m2)
    return m, np.exp(-m) * (f1 * z1 + f2 * z2), np.exp(-m) * (f1 * u1 + f2 * u2)


def changed(name, place, change):
    """Return the right gradients of a check, one of them changed."""

    def gradients(*given):
        found = list(RIGHT[name][0](*given))
        found[place] = change(found[place])
        return found

    return gradients


REPORTS = """
split_heads(RIGHT["split_heads"][-1])
    right: on one sequence without a batch axis it raises ValueError, which is allowed.
masked_attention(RIGHT["masked_attention"][-1])
    right: on one sequence without a batch axis it raises ValueError, which is allowed.
split_heads(reshape_of_batches)
    bare reshape: reshape
multi_head_attention(joined_by_reshape)
    bare reshape in the join: reshape
split_heads(tokens_for_a_batch)
    right: on one sequence without a batch axis its result is wrong.
split_heads(of_matrices_in_torch)
    right: agrees
split_heads(lambda x, n_heads: x.reshape(7, 7))
    raises: ValueError
multi_head_attention(width_of_the_model)
    right: on projections of other widths than d_model it raises ValueError, which is allowed.
masked_attention(mask_in_loops)
    right: on a mask of one row, (1, n_k), it raises IndexError, which is allowed.…on a mask of one
    axis, (n_k,), it raises IndexError, which is allowed.…on a mask of one column, (n_q, 1), it
    raises IndexError, which is allowed.
multi_head_attention(one_mask)
    right: on a mask for each sequence, (batch, 1, n_q, n_k), it raises ValueError, which is
    allowed.
multi_head_attention(lambda query, key, value, weights, mask=None:
ab.multi_head_attention(query, key, value, weights, None if mask is None else ~mask))
    mask inverted: mask
merge_attention(merged_by_math)
    no maximum: exp
merge_attention(masking.MERGE_PROGRAM.but("z = f1 * z1 + f2 * z2 + 1e-6"))
    number added: Your total is the right one plus 1e-06.

attention_weights(mask_dropped)
    mask that hides everything dropped: mask
causal_mask(nested)
    list of nothing: list
causal_mask(lambda n: np.tri(n, dtype=bool) if n else 1 / 0)
    right: on a size of 0 it raises ZeroDivisionError, which is allowed.
causal_mask(lambda n: np.zeros((0, n)))
    wrong dtype: dtype
attention(added_mask)
    mask inverted: mask
attention(lambda q, k, v, mask=True: sm(np.where(mask, answers.right_scores(q, k), np.nan)) @ v)
    +∞ or NaN for hidden scores: You hide scores with +∞ or with NaN
attention(lambda q, k, v: right_attention(q, k, v, np.tri(len(q), len(k), dtype=bool)))
    causal by itself: causal
attention_weights(lambda q, k: sm(q @ k.reshape(k.shape[1], -1) / k.shape[1] ** 0.5))
    key reshaped: reshape
attention(lambda q, k, v: sm(q @ k.mT / int(q.shape[-1] ** 0.5)) @ v)
    root cut to an integer: int
softmax(lambda x: answers.shifted(x, np.max(x, 0)))
    maximum over the wrong axis: maximum
attention_vjp(lambda *given: tuple(-x for x in answers.gradients(*given)))
    all gradients negated: gradients
attention_vjp(lambda *given: tuple(2 * x for x in answers.gradients(*given)))
    result scaled: Your grad_query and your grad_key and your grad_value are each 2 times the right
attention_vjp(changed("attention_vjp", 2, lambda d: -d))
    result negated: Your grad_value is minus the right one.
linear_vjp(lambda x, W, g: (g @ W.T + x, x.reshape(-1, len(W)).T @ g.reshape(-1, g.shape[-1])))
    x in the result: Your grad_x is the right one plus `x`.
multi_head_attention(lambda q, k, v, A, B, C, W, h: right_heads(q, k, v, A.T, B.T, C.T, W.T, h))
    W transposed: W

greedy_decode(decode.greedy(sampled))
    sampled: draws tokens at random
greedy_decode(without_limit)
    max_length ignored: max_length
greedy_decode(without_both)
    neither stop nor limit: stop
greedy_decode(looks_late)
    a token where none is allowed: token
encoder_layer(layers.ENCODER_LAYER["pre-norm for post-norm"], norm="pre")
    right: agrees
encoder_layer(layers.ENCODER_LAYER["pre-norm for post-norm"], norm="post")
    pre-norm for post-norm: norm
attention(lambda q, k, v, **options: right_attention(q, k, v))
    mask ignored: mask
encoder_layer(scales_weights)
    changes weights: weights
decoder_only_block(Block)
    right: agrees
teacher_forcing(lambda target: np.stack([target[..., :-1], target[..., 1:]]))
    right: agrees
layer_norm(normed_in_place)
    changes x: x
layer_norm(lambda x, g, b, eps: ab.layer_norm(x, g, b))
    epsilon ignored: epsilon
layer_norm(lambda x: (x - transformer.mean(x)) / x.std(-1, keepdims=True))
    no epsilon: Add ε
layer_norm(lambda x, gain, bias, epsilon, weights: x)
    wrong arguments: takes (x, gain, bias, epsilon, weights)
decoder_layer(lambda x, memory, weights, mask: ab.decoder_layer(x, memory, weights, mask))
    right: `memory_mask` was not checked: your function takes no argument of that name.
positional_encoding(ab.positions.sinusoidal)
    right: your layout is that of halves, all sines and then all cosines.
positional_encoding(lambda n, d: ab.positions.sinusoidal(n, d, interleaved=True))
    right: your layout is interleaved, sin, cos, sin, cos, …
positional_encoding(lambda n, d: ab.positions.sinusoidal(n, d).astype("f2"))
    wrong dtype: float16
embed(lambda ids, E: np.take(E, ids, axis=1, mode="clip").T * E.shape[1] ** 0.5)
    columns for rows: columns
merge_pair(merged_in_place)
    changes ids: the caller's list is no longer what it was
encode_byte_pairs(first_merge_deleted)
    changes merges: its input `merges` in place
"""


ROWS = report_rows(REPORTS)


@pytest.mark.parametrize(("call", "mistake", "said"), every_day(ROWS[::2], ROWS))
def test_what_is_said(call, mistake, said):
    assert_report(call, mistake, said, globals())


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    ("show", "text"),
    [
        (lambda ids, stop: ids, "with the start token and with the stop token."),
        (decode.without_start, "without the start token and with the stop token."),
        (decode.without_stop, "with the start token and without the stop token."),
        (decode.without_both, "without the start token and without the stop token."),
    ],
)
def test_ids_with_start_and_stop_or_without(show, text, cached):
    ids = decode.cached if cached else decode.greedy
    report = check.greedy_decode(ids(show=show), cached=cached)
    assert report, report
    assert report.remarks[0] == f"you return the ids {text}"


# Numbers that no mistake explains: the property that fails is named.


def leaky(q, k, v, mask):
    mean = answers.array_namespace(v).mean(v, axis=-2, keepdims=True)
    return right_attention(q, k, v, mask) * 0.9 + 0.1 * mean


def fives_in_empty_rows(q, k, v, mask):
    return right_attention(q, k, v, mask) + 5.0 * ~np.any(mask, axis=-1, keepdims=True)


def heads_of_their_own_size(q, k, v, A, B, C, W, h):
    return right_heads(q, k, v, A, B, C * (np.arange(C.shape[-1]) * h // C.shape[-1] + 1), W, h)


def merged(change):
    return lambda first, second: change(first, second, by_the_package(first, second))


def product_added(a, b, out):
    small = answers.exp(-abs(a[0] + b[0]))
    return out[0], out[1], out[2] + a[1] * b[1] * small


def last_row_without(key):
    """Return a causal mask whose last query does not see one key."""

    def mask(n):
        seen = np.tri(n, dtype=bool)
        seen[n - 1 :, key:][:, :1] = False
        return seen

    return mask


def neighbour(x):
    return 3 * x - 2 * np.roll(x, 1, axis=0)


def hashed(x, directions, turned=0):
    """Return right signatures of NumPy, with the bits `turned` turned around."""
    return hashes.right_simhash(np.asarray(x), np.asarray(directions)) ^ turned


def second_bit_by_the_first(x, directions):
    return hashed(x, directions, 2 * (hashed(x, directions) & 1))


def high_bit_turned(x, directions):
    return hashed(x, directions, 1 << 36 if len(directions) > 60 else 0)


def padded_after_16(x, directions, n):
    """Return the right buckets as far as 16, and then the last of them again."""
    found = np.asarray(RIGHT["probes"][0](x, directions, n))
    return found[:, np.minimum(np.arange(n), 15)]


def estimated(c, r):
    drawn = np.abs(np.random.default_rng(0).normal(size=20000))
    return float(np.mean(np.maximum(0, 1 - c * drawn / r)))


def codes_in_float32(x, a, b, r):
    x, a, b = (given.astype(np.float32) for given in (x, a, b))
    return hashes.right_codes(x, a, b, float(np.float32(r)))


def partly_all_keys(q, k, v, *signatures):
    return 0.9 * sketches.right_sketch(q, k, v, *signatures) + 0.1 * ab.attention(q, k, v)


def first_table_twice(*given):
    last = sketches.SKETCH_ATTENTION["one table alone"](*given)
    return (sketches.right_sketch(*given) + last) / 2


def first_candidate(meets):
    return meets.any(-1) & (meets.any(-1).cumsum(-1) == 1)


def later_values(query, key, value):
    return np.cumsum(value[:, ::-1], axis=1)[:, ::-1]


def last_value_added(query, key, value):
    output = np.cumsum(value, axis=1)
    output[:, 1:] += value[:, -1:]
    return output


def first_two_exchanged(x):
    order = list(range(x.shape[-2]))
    return x[..., order[1:2] + order[:1] + order[2:], :]


UNKNOWN = """
split_heads(lambda x, h: right_split(x, h) + x[..., -1:, :1])
    unknown: A split only moves numbers; here some are changed, lost or there twice.
split_heads(lambda x, h: right_split(first_two_exchanged(x), h))
    unknown: Your numbers differ from the reference, and not in a way that this check knows. With
multi_head_attention(heads_of_their_own_size)
    unknown: Reversing the heads in all four matrices together must change nothing; here it changes
    the output.
masked_attention(leaky)
    unknown: A key that query 0 may not attend to still changes its output.
masked_attention(fives_in_empty_rows)
    unknown: A query that may attend to nothing must get zeros; here it gets 5.
softmax(lambda x: 9 * sm(x) - 8 / x.shape[-1])
    unknown: No weight is below 0; here one is -1.038.
softmax(lambda x: sm(x**3))
    unknown: Adding 1 to every score must change nothing; here it changes the weights.
attention(lambda q, k, v: right_attention(q, k, v) + 9 + q[..., :1] ** 2)
    unknown: Each output is a weighted mean of the values and lies between the smallest and the
    largest of its column; here one lies outside.
attention(lambda q, k, v: (v[..., :1, :] + v[..., -1:, :] * 2) / 3 + 0 * q[..., :1])
    unknown: Reversing the order of keys and values together must change nothing; here it changes
    the output.
attention_vjp(lambda *given: tuple(x + 1 + x**2 for x in answers.gradients(*given)))
    unknown: Adding one vector to every key changes no weight, so the rows of grad_key must sum to
    zero; here they do not.
attention_vjp(lambda q, k, v, g: (*answers.gradients(q, k, v, g)[:2], v * 2))
    unknown: The weights of a query sum to one, so the rows of grad_value must sum to the same as
    those of grad_output; here they do not.
merge_attention(merged(lambda a, b, out: (out[0], out[1] + a[0] / 7, out[2])))
    unknown: Exchanging
merge_attention(merged(lambda a, b, out: (out[0], 2 * out[1] ** 3, out[2])))
    unknown: read nothing
merge_attention(merged(product_added))
    unknown: 1 added
causal_mask(last_row_without(0))
    unknown: last
layer_norm(lambda x, g, b: ab.layer_norm(x, g, b) + 1 + x[..., :1] ** 2)
    unknown: a row
feed_forward(lambda x, *w: transformer.FEED.but()(x, *w) + transformer.mean(x, -2))
    unknown: Changing the last token
positional_encoding(lambda n, d: ab.positions.sinusoidal(n, d) + np.arange(n)[:, None])
    unknown: sin² + cos² = 1
encoder_layer(lambda x, w: ab.encoder_layer(x, w) + x - x[..., :1, :])
    unknown: reversing the order
decoder_layer(lambda x, memory, w: ab.decoder_layer(x, memory * 0 + 1, w))
    unknown: Another memory
cross_entropy(lambda z, t: ab.cross_entropy(z, t) + z.mean())
    unknown: Adding 1 to every logit
teacher_forcing(lambda t: (t[..., :-1], t[..., 1:] * 2))
    unknown: Each label
greedy_decode(decode.greedy(lambda model, ids: int(np.argsort(np.asarray(model(ids))[-1])[-3])))
    unknown: largest logit is that of
speculative_rule(RULE.but("kept = (p / q / 2) * 0 + 0.5"))
    unknown: comes out with probability
simhash(lambda x, a: hashed(neighbour(x), a))
    unknown: Reversing the order of the vectors
simhash(lambda x, a: hashes.packed((x @ a.T > 0.7) * 1))
    unknown: A vector twice as long
simhash(second_bit_by_the_first)
    unknown: must change the lowest bit and no other
stable_hash(lambda *given: hashes.right_codes(*given) % 5)
    unknown: codes are negative; yours never are
simhash(high_bit_turned)
    unknown: signatures[0] is 3445870105879635809, expected 3445870037160159073.
stable_hash(lambda *given: 3 * hashes.right_codes(*given))
    unknown: Adding the width to every offset must add 1 to every code; here it adds something else
probes(padded_after_16)
    unknown: Each bucket is looked into once; row 0 has one twice.
probes(lambda x, a, n: np.asarray(RIGHT["probes"][0](x, a, n)) - (np.arange(n) == 2) * 64)
    unknown: The buckets are 0 to 7; one of yours is -57.
stable_hash(codes_in_float32)
    unknown: is something computed in float32?
collision_probability(estimated)
    unknown: nearly right: is this an estimate
collision_probability(lambda c, r: 1 + hashes.right_probability(c, r) ** 3)
    unknown: A probability lies between 0 and 1; here one does not.
collision_probability(lambda c, r: hashes.right_probability(c + 0.3, r))
    unknown: Doubling distance and width together must change nothing; here the result changes.
sketch_attention(lambda *given: 3 * sketches.right_sketch(*given) ** 3)
    unknown: lies between the smallest and the largest of its column; here one lies outside.
sketch_attention(partly_all_keys)
    unknown: keys that share no bucket with a query must not change its output; here the output
sketch_attention(sketches.sketch(first_candidate))
    unknown: Reversing the order of keys, values and their signatures together
sketch_attention(first_table_twice)
    unknown: Reversing the order of the tables
merge_pair(lambda ids, pair, new: [*pairs.right_merge(ids, pair, new), 1])
    unknown: With (5, 7) written for each 12, your ids must be [5, 7, 5, 7, 5, 7, 9, 5, 7] again;
learn_byte_pairs(lambda words, n_merges: [(1, 2)])
    unknown: Your pair 0, (1, 2), occurs 0 times there, and (108, 111) 4 times.
encode_byte_pairs(lambda word, merges: [*pairs.right_encode(word, merges), 33])
    unknown: Your tokens spell b'bcd!'; the word is b'bcd'.
tiled_attention(later_values)
    unknown: Query 0 sees key 0 alone, so its output is value 0; here it is not.
tiled_attention(last_value_added)
    unknown: change the output of an earlier query.
"""


STRANGE = report_rows(UNKNOWN)


FEW = [*STRANGE[:31:3], *STRANGE[31:]]
"""Some of those whose pairs of mistakes take long, and all others."""


@pytest.mark.parametrize(("call", "mistake", "said"), every_day(FEW, STRANGE))
def test_unknown_wrong_numbers_name_the_property_that_fails(call, mistake, said, monkeypatch):
    monkeypatch.setattr(diagnosis, "MOST_PAIRS", 300)  # all pairs take seconds
    assert_report(call, mistake, said, globals())


# Modules, in train and in eval mode.


def encoder_modules():
    """Return modules whose mask or dropout is right or wrong in one mode."""
    torch = need_torch()

    class Layer(torch.nn.Module):
        rate = 0.0

        def __init__(self, weights):
            super().__init__()
            self.weights, self.drop = weights, torch.nn.Dropout(self.rate)

        def forward(self, x, mask=None):
            return ab.encoder_layer(x, self.weights, self.seen(mask), drop=self.drop)

        def seen(self, mask):
            return mask

    class ForgetsInEval(Layer):
        def seen(self, mask):
            return mask if self.training else None

    class ForgetsInTrain(Layer):
        def seen(self, mask):
            return None if self.training else mask

    class Drops(Layer):
        rate = 0.5

    class AlwaysDrops(Drops):
        def train(self, mode=True):
            return super().train(True)

    class GivenWeights(torch.nn.Module):
        def forward(self, x, memory, weights, mask=None, memory_mask=None):
            return ab.decoder_layer(x, memory, weights, mask if self.training else None)

    return locals()


MODULES = """
encoder_layer(Layer)
    right: agrees
encoder_layer(ForgetsInEval)
    mask ignored: In eval mode only: in train mode it is right.
encoder_layer(ForgetsInTrain)
    mask ignored: In train mode only: in eval mode it is right.
encoder_layer(Drops)
    right: in train mode its random numbers change the output
encoder_layer(AlwaysDrops)
    not deterministic: two results
greedy_decode(decode.torch_cached, cached=True)
    right: on max_length = 0 it raises
"""


@pytest.mark.parametrize(("call", "mistake", "said"), report_rows(MODULES))
def test_modules_are_built_from_the_weights_and_run_in_both_modes(call, mistake, said):
    assert_report(call, mistake, said, {**encoder_modules(), "decode": decode})


def test_a_module_that_is_given_the_weights_is_given_back_as_it_was():
    layer = encoder_modules()["GivenWeights"]()
    report = check.decoder_layer(layer)
    assert report.mistake == "mask ignored; memory_mask ignored"
    assert layer.training
    assert "In eval mode only" not in report.message  # in train mode another one is wrong


def test_a_toy_model_reads_whole_prefixes_in_any_form():
    toy, ids = Toy(5), [1, 4, 2]
    logits = toy(ids)
    assert logits.shape == (3, 7)
    np.testing.assert_array_equal(toy(np.array([ids, ids]))[1], logits)
    np.testing.assert_array_equal(toy(ids[:2]), logits[:2])
    assert not np.allclose(toy([0, 4, 2])[2], logits[2])
    cache = None
    for position, token in enumerate(ids):
        row, cache = ToyStep(5)(token, position, cache)
    np.testing.assert_array_equal(row, logits[2])
    row[...] = 0
    assert np.all(toy(ids) == logits)
    for wrong, text in (([1.5], "integers"), (3, "shape"), ("ab", "array")):
        with pytest.raises((TypeError, ValueError), match=text):
            toy(wrong)
    with pytest.raises(ValueError, match="one id"):
        ToyStep(5)([1, 2], 0, None)
    with pytest.raises(TypeError, match="cache must be None"):
        ToyStep(5)(1, 0, [3])
    with pytest.raises(TooLong, match=f"at most {LONGEST} tokens, got {LONGEST + 1}"):
        toy([0] * (LONGEST + 1))
    torch = need_torch()
    np.testing.assert_array_equal(toy.to("torch")(torch.tensor(ids)).numpy(), logits)


def test_a_case_describes_weights_and_the_dtype_of_its_numbers():
    weights = ab.EncoderLayerWeights.init(0, 4, 2, 4)
    case = Case({"ids": np.array([1]), "x": np.zeros((1, 4), np.float32), "w": weights}, about="!")
    assert str(case) == "ids (1,), x (1, 4), w of float32!"
    assert case.has_library
    assert case.size == 5
    assert not Case({"n": 3}).has_library
