"""Data sets that need no network, and functions that turn them into batches.

`digits` and `plays` are in the package, and `text` is in Python itself; `reversal`, `dates` and
`markov` are drawn from a seed. `Vocabulary` turns characters into ids, and `BytePairs`,
`WordPieces` and, from a published file, `HubTokenizer` turn subwords into ids. `windows` splits a
long text, `Batches` groups sequences, and `PackedBatches` lets several of them share a row.
`record_path` finds the measurements that the chapters show, and `measured_on` says where and with
which settings they were made.
"""

from attnbook.data.batch import Batch, pad
from attnbook.data.batches import Batches
from attnbook.data.byte_pairs import BytePairs
from attnbook.data.corpus import split_paragraphs, windows
from attnbook.data.date_pairs import Dates, dates, written
from attnbook.data.handwriting import Digits, digits
from attnbook.data.hub_tokenizer import HubTokenizer
from attnbook.data.markov_source import Markov, markov
from attnbook.data.packing import PackedBatches
from attnbook.data.prose import text
from attnbook.data.records import measured_on, record_path
from attnbook.data.reversal_task import reversal, reversal_attention
from attnbook.data.shakespeare import Plays, plays
from attnbook.data.vocabulary import Vocabulary
from attnbook.data.word_pieces import WordPieces

__all__ = [
    "Batch",
    "Batches",
    "BytePairs",
    "Dates",
    "Digits",
    "HubTokenizer",
    "Markov",
    "PackedBatches",
    "Plays",
    "Vocabulary",
    "WordPieces",
    "dates",
    "digits",
    "markov",
    "measured_on",
    "pad",
    "plays",
    "record_path",
    "reversal",
    "reversal_attention",
    "split_paragraphs",
    "text",
    "windows",
    "written",
]
