"""Data sets that need no network, and what turns them into batches.

`digits` are in the package and `text` in Python itself; `reversal`, `dates` and `markov` are drawn
from a seed. `Vocabulary` turns characters into ids, `windows` cuts a long text, `Batches` groups
sequences.
"""

from attnbook.data.batch import Batch, pad
from attnbook.data.batches import Batches
from attnbook.data.dates import Dates, dates, written
from attnbook.data.digits import Digits, digits
from attnbook.data.markov import Markov, markov
from attnbook.data.reversal import reversal, reversal_attention
from attnbook.data.text import text
from attnbook.data.vocabulary import Vocabulary
from attnbook.data.windows import split_paragraphs, windows

__all__ = [
    "Batch",
    "Batches",
    "Dates",
    "Digits",
    "Markov",
    "Vocabulary",
    "dates",
    "digits",
    "markov",
    "pad",
    "reversal",
    "reversal_attention",
    "split_paragraphs",
    "text",
    "windows",
    "written",
]
