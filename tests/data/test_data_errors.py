"""What the data sets refuse, and what they say."""

import datetime

import numpy as np
import pytest
from error_table import error_test

from attnbook import data

DAY = datetime.date(2026, 11, 21)
PIECES = data.WordPieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"])
NAMES = vars(data) | {"np": np, "datetime": datetime, "DAY": DAY, "ONE": [[3, 4]], "PIECES": PIECES}

ERRORS = r"""
# batches
Batches([], [], 1)
    ValueError: targets must hold at least 1 sequence, got none
Batches(ONE * 2, ONE, 1)
    ValueError: sources must be as many as targets, 1, got 2
Batches(ONE, ONE, 2)
    ValueError: batch_size must be at most the data, 1, got 2
Batches(ONE, ONE, 1.0)
    TypeError: batch_size must be an int, got float
Batches(ONE, ONE, 1, seed=0.5)
    TypeError: seed must be an int, got float
Batches(ONE, ONE, 1, pool=0)
    ValueError: pool must be at least 1, got 0
Batches(ONE, ONE, 1, pad=-1)
    ValueError: pad must be at least 0, got -1
Batches(ONE, ONE, 1, stop="2")
    TypeError: stop must be an int, got str
Batches([[3], []], ONE * 2, 1)
    ValueError: sources must hold at least 1 id each, got none in sources[1]
Batches(None, [[3, 4], [3]], 1, start=None, stop=None)
    ValueError: targets must hold at least 2 ids each, so that there is one to predict, got 1 in
    targets[1]
Batches(None, [[3], []], 1, start=None)
    ValueError: targets must hold at least 1 ids each, so that there is one to predict, got 0 in
    targets[1]
Batches(ONE, [[3, -4]], 1)
    ValueError: targets[0] must be at least 0, got -4
Batches([[0.5]], ONE, 1)
    TypeError: sources[0] must be ints, got float64
Batches([3], ONE, 1)
    ValueError: sources[0] must have 1 axis, got shape ()
Batches(np.ones((1, 2, 3), int), ONE, 1)
    ValueError: sources must have 2 axes, got shape (1, 2, 3)
Batches(None, [[3], [4, 2]], 1)
    ValueError: targets must not hold the id of stop, 2, got it in targets[1]
Batches(None, [[1, 3]], 1)
    ValueError: targets must not hold the id of start, 1, got it in targets[0]
Batches(ONE, ONE, 1)(-1)
    ValueError: step must be at least 0, got -1
Batches(ONE, ONE, 1)(0).shard(1, 1)
    ValueError: rank must be below world = 1, got 1
Batches(ONE, ONE, 1)(0).shard(0, 0)
    ValueError: world must be at least 1, got 0
Batches(ONE, ONE, 1)(0).shard(0, 2)
    ValueError: world must be at most the rows of the batch, 1, got 2
Batch(None, [[3.5]], None, [1])
    TypeError: target must be ints, got float64
Batch(None, [3], None, [1])
    ValueError: target must have 2 axes, got shape (1,)
Batch(None, [[3]], None, [0])
    ValueError: target_lengths must be at least 1, got 0
Batch(None, [[3]], None, [1, 1])
    ValueError: target and target_lengths must have 1 rows as target has, got 1 and 2
Batch(None, [[3]], None, [2])
    ValueError: target_lengths must be at most the width of target, 1, got 2
Batch([[3], [4]], [[3]], [1, 1], [1])
    ValueError: source and source_lengths must have 1 rows as target has, got 2 and 2
Batch(None, [[3]], [1], [1])
    TypeError: source must be ints, got object
pad([[3, -1]])
    ValueError: sequences[0] must be at least 0, got -1
# byte pairs
BytePairs(3)
    TypeError: merges must be a sequence of pairs of ints, got int
BytePairs([97])
    TypeError: merges[0] must be a sequence of two ints, got int
BytePairs([(97, 98), (97, 98, 99)])
    ValueError: merges[1] must be a pair of ids, got 3
BytePairs([("a", 98)])
    TypeError: merges[0][0] must be an int, got str
BytePairs([(97, 98), (97, 257)])
    ValueError: merges[1][1] must be at most 256, got 257
BytePairs([(97, -1)])
    ValueError: merges[0][1] must be at least 0, got -1
BytePairs([(97, 98), (98, 97), (97, 98)])
    ValueError: merges must differ from each other, got (97, 98) in merges[0] and merges[2]
BytePairs([], "<stop>")
    TypeError: specials must be a sequence of str, got the str '<stop>'
BytePairs([], [3])
    TypeError: specials[0] must be a str, got int
BytePairs([], None)
    TypeError: specials must be a sequence of str, got NoneType
BytePairs([], [])
    ValueError: specials must be one or more, each once, got []
BytePairs([], ["a", "a"])
    ValueError: specials must be one or more, each once, got ['a', 'a']
BytePairs.learn(3, 300)
    TypeError: texts must be a sequence of str, got int
BytePairs.learn(["a", b"b"], 300)
    TypeError: texts[1] must be a str, got bytes
BytePairs.learn("a\ud800", 300)
    ValueError: texts[0] must be of characters that UTF-8 can hold, got the surrogate '\ud800' at 1
BytePairs.learn("a", 256)
    ValueError: size must be at least 257, got 256
BytePairs.learn("a", 300.0)
    TypeError: size must be an int, got float
BytePairs([]).encode(["a"])
    TypeError: text must be a str, got list
BytePairs([]).encode("é\udfffa")
    ValueError: text must be of characters that UTF-8 can hold, got the surrogate '\udfff' at 1
BytePairs([]).decode([3, 257])
    ValueError: ids must be below the number of tokens, 257, got 257
BytePairs([]).decode([-1])
    ValueError: ids must be at least 0, got -1
BytePairs.from_dict({"merges": []})
    ValueError: stored must be a mapping with the keys 'merges' and 'specials' alone, got ['merges']
BytePairs.from_dict([])
    ValueError: stored must be a mapping with the keys 'merges' and 'specials' alone, got list
# dates
dates(0, -1, 0)
    ValueError: n_train must be at least 0, got -1
dates(0, 0, -1)
    ValueError: n_test must be at least 0, got -1
dates(-1, 0, 0)
    ValueError: rng must be at least 0 if it is a seed, got -1
dates(0, 1, 1, languages=["en", "xx"])
    ValueError: languages must be among ['de', 'en', 'es', 'fr', 'it'], got ['xx']
dates(0, 1, 1, languages=[])
    ValueError: languages must be one or more, each once, got []
dates(0, 1, 1, languages=["en", "en"])
    ValueError: languages must be one or more, each once, got ['en', 'en']
dates(0, 1, 1, languages="en")
    TypeError: languages must be a sequence of str, got the str 'en'
written("2026-11-21")
    TypeError: day must be a datetime.date, got str
written(datetime.datetime(2026, 11, 21))
    TypeError: day must be a datetime.date, got datetime
written(datetime.date(1968, 12, 31))
    ValueError: day must be from 1969-01-01 to 2068-12-31, got 1968-12-31
# markov
Markov([[1.0]])
    TypeError: transitions must be an array of NumPy, CuPy, PyTorch or another Array API library,
    got list
Markov(np.eye(2, dtype=int))
    TypeError: transitions must be a NumPy array of floats, got int64
Markov(np.ones((2, 3)) / 3)
    ValueError: transitions must have 2 axes or more of one length of at least 1, got (2, 3)
Markov(np.ones((2, 2)))
    ValueError: transitions must have rows that are at least 0 and sum to 1
Markov(np.array([[2.0, -1.0]] * 2))
    ValueError: transitions must have rows that are at least 0 and sum to 1
Markov(np.full((2, 2), 0.500003))
    ValueError: transitions must have rows that are at least 0 and sum to 1
Markov(np.eye(2))
    ValueError: transitions must have one stationary distribution, got several: some symbols never
    come back to others
markov(0, 0)
    ValueError: n_symbols must be at least 1, got 0
markov(0, 2, order=0)
    ValueError: order must be at least 1, got 0
markov(0, 2, concentration=0)
    ValueError: concentration must be above 0, got 0.0
markov(None, 2)
    TypeError: rng must be a numpy.random.Generator or an int, got NoneType
markov(0, 2).sample(0, -1, 2)
    ValueError: n_sequences must be at least 0, got -1
markov(0, 2).conditional([0, 2])
    ValueError: ids must be below the number of symbols, 2, got 2
markov(0, 2).conditional([0.5])
    TypeError: ids must be ints, got float64
markov(0, 2).conditional(1)
    ValueError: ids must have shape (..., n), got ()
# reversal
reversal(0, -1)
    ValueError: n_pairs must be at least 0, got -1
reversal(0.5, 1)
    TypeError: rng must be a numpy.random.Generator or an int, got float
reversal(0, 1, n_symbols=0)
    ValueError: n_symbols must be at least 1, got 0
reversal(0, 1, length=(0, 3))
    ValueError: length[0] must be at least 1, got 0
reversal(0, 1, length=(3, "4"))
    TypeError: length[1] must be an int, got str
reversal(0, 1, length=(4, 3))
    ValueError: length must be (least, greatest), got (4, 3)
reversal(0, 1, length=(1, 2, 3))
    ValueError: length must be an int or a pair of ints, got (1, 2, 3)
reversal_attention(-1)
    ValueError: n must be at least 0, got -1
# vocabulary
Vocabulary(["a"])
    TypeError: characters must be a str, got list
Vocabulary("abca b ")
    ValueError: characters must differ from each other, got [' ', 'a', 'b'] more than once
Vocabulary("ab").encode(["a"])
    TypeError: text must be a str, got list
Vocabulary("ab").encode("abyax")
    ValueError: text must consist of characters of the vocabulary, 'ab', got 'xy' in 'abyax'
Vocabulary("ab").encode("b" * 60 + "c")
    ValueError: text must consist of characters of the vocabulary, 'ab', got 'c' in
    'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb…'
Vocabulary("ab").decode([3, 5, 1])
    ValueError: ids must be below the size of the vocabulary, 5, got 5
Vocabulary("ab").decode([3, -1])
    ValueError: ids must be at least 0, got -1
Vocabulary("ab").decode([3.0])
    TypeError: ids must be ints, got float64
Vocabulary("ab").decode(3)
    ValueError: ids must have 1 axis, got shape ()
Vocabulary("a").decode([[3], [3, 3]])
    ValueError: ids must be ints in rows of one length, got others
Vocabulary.from_dict({"characters": "a", "size": 4})
    ValueError: stored must be a mapping with the key 'characters' alone, got ['characters', 'size']
Vocabulary.from_dict("ab")
    ValueError: stored must be a mapping with the key 'characters' alone, got str
Vocabulary.from_dict({"characters": 3})
    TypeError: characters must be a str, got int
# word pieces
WordPieces(3)
    TypeError: tokens must be a sequence of str, got int
WordPieces(["a", 3])
    TypeError: tokens[1] must be a str, got int
WordPieces(["a", "[PAD]", "a"])
    ValueError: tokens must differ from each other, got 'a' in tokens[0] and tokens[2]
WordPieces(["[UNK]", "a", "[CLS]"])
    ValueError: tokens must have [PAD], [UNK], [CLS], [SEP] among them, got no [PAD], [SEP]
WordPieces.read(3)
    TypeError: path must be a path or a str, got int
PIECES.encode(3)
    TypeError: text must be a str, got int
PIECES.encode("a\ud800")
    ValueError: text must be of characters that UTF-8 can hold, got the surrogate '\ud800' at 1
PIECES.encode("a", 1)
    ValueError: max_length must be at least 2, got 1
PIECES.encode("a", max_length=3.0)
    TypeError: max_length must be an int, got float
PIECES.encode_batch("a")
    TypeError: texts must be a sequence of str, got the str 'a'
PIECES.encode_batch(["a", None])
    TypeError: texts[1] must be a str, got NoneType
PIECES.encode_batch(None)
    TypeError: texts must be a sequence of str, got NoneType
PIECES.encode_batch(["a"], 0)
    ValueError: max_length must be at least 2, got 0
PIECES.pieces(b"a")
    TypeError: text must be a str, got bytes
# windows
split_paragraphs(3)
    TypeError: text must be a str, got int
split_paragraphs("a\n\nb", 0)
    ValueError: held_out must be between 0 and 1, got 0.0
split_paragraphs("a\n\nb", "0.1")
    TypeError: held_out must be a real number, got str
split_paragraphs("a\nb")
    ValueError: text must have two paragraphs, parted by an empty line, got fewer
split_paragraphs("a b\n\n")
    ValueError: text must have two paragraphs, parted by an empty line, got fewer
windows([1, 2, 3], 3)
    ValueError: ids must be at least length + 1 = 4, got 3
windows([1, 2, 3], 0)
    ValueError: length must be at least 1, got 0
windows(["a", "b"], 1)
    TypeError: ids must be ints, got <U1
windows([1, 2], 1, stride=0)
    ValueError: stride must be at least 1, got 0
# several of something
pad(3)
    TypeError: sequences must be a sequence of sequences of ints, got int
pad([[3]], pad=2**63)
    ValueError: pad must be at most 9223372036854775807, got 9223372036854775808
pad([np.array([2**64 - 1], np.uint64)])
    ValueError: sequences[0] must be at most 2**63 - 1, got 18446744073709551615
pad(np.array(["a"]))
    TypeError: sequences must be ints, got <U1
Batches(ONE, ONE, 1, start=2**63)
    ValueError: start must be at most 9223372036854775807, got 9223372036854775808
Vocabulary.of(2)
    TypeError: texts must be a sequence of str, got int
Vocabulary.of(["a", 2])
    TypeError: texts[1] must be a str, got int
written(DAY, languages=7)
    TypeError: languages must be a sequence of str, got int
written(DAY, languages=["en", []])
    ValueError: languages must be among ['de', 'en', 'es', 'fr', 'it'], got [[]]
"""

test_data_refuses = error_test(ERRORS, NAMES)


def test_transitions_of_another_library_are_refused():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with pytest.raises(TypeError, match="transitions must be a NumPy array of floats, got T"):
        data.Markov(torch.eye(2))
