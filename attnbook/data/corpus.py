"""A text for a language model: a part that is set aside, and windows to learn from."""

from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_int, check_number
from attnbook.data.ids import ids_of


def split_paragraphs(text: str, held_out: float = 0.1) -> tuple[str, str]:
    """Split `text` between two paragraphs: the first part for training, the rest for testing.

    Parameters
    ----------
    text : str
        Its paragraphs are separated by an empty line.
    held_out : float
        The share of the characters in the second part, between 0 and 1. The split is made at the
        nearest boundary between paragraphs and, if two are equally near, at the earlier one.

    Returns
    -------
    pair of str
        Both parts, which together are `text`. The first one ends with the empty line.

    Raises
    ------
    TypeError
        If `text` is not a str or `held_out` is not a number.
    ValueError
        If `held_out` is not between 0 and 1, or `text` does not have two paragraphs.

    Notes
    -----
    Whole paragraphs at the end are held out, not scattered lines, so no window of the first part
    contains anything of the second. However, passages that several paragraphs share word for word
    may be in both.
    Cost: O(n) time and memory.

    Examples
    --------
    >>> split_paragraphs("one two three.\\n\\nfour five.\\n\\nsix.", held_out=0.2)
    ('one two three.\\n\\nfour five.\\n\\n', 'six.')
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be a str, got {type(text).__name__}")
    share = check_number("held_out", held_out)
    if not 0 < share < 1:
        raise ValueError(f"held_out must be between 0 and 1, got {share}")
    *before, _ = text.split("\n\n")
    cuts = np.cumsum([len(paragraph) + 2 for paragraph in before])
    cuts = cuts[cuts < len(text)]  # an empty line at the very end parts nothing
    if cuts.size == 0:
        raise ValueError("text must have two paragraphs, parted by an empty line, got fewer")
    cut = cuts[np.argmin(np.abs(cuts - (1 - share) * len(text)))]
    return text[:cut], text[cut:]


def windows(
    ids: Annotated[Any, "n"], length: int, *, stride: int = 1
) -> Annotated[np.ndarray, "n_windows length_plus_1"]:
    """Return all windows of length + 1 ids: `length` inputs and as many targets one token later.

    Parameters
    ----------
    ids : ints of at least 0, shape (n,)
        The whole text.
    length : int
        The number of tokens that the model reads at once, at least 1.
    stride : int
        The distance between the starts of two windows; with 1, a window starts at every token. With
        stride = length, each token except the first is a target exactly once, apart from a
        remainder at the end that does not fill a window.

    Returns
    -------
    int64 array, shape ((n - length - 1) // stride + 1, length + 1)
        Row i holds ids[i·stride] to ids[i·stride + length]. Pass it to `Batches` as targets; then
        ``[:, :-1]`` are the inputs and ``[:, 1:]`` the labels.

    Raises
    ------
    TypeError
        If `ids` or a number is not an int.
    ValueError
        If there are fewer than length + 1 ids, one of them is negative, or a number is below 1.

    Notes
    -----
    Cost: O(1), because the result is a read-only view of `ids`, however much the windows overlap.

    Examples
    --------
    >>> windows([4, 5, 6, 7, 8, 9], 2, stride=2)
    array([[4, 5, 6],
           [6, 7, 8]])
    """
    numbers = ids_of("ids", ids)
    length, stride = check_int("length", length, 1), check_int("stride", stride, 1)
    if len(numbers) <= length:
        raise ValueError(f"ids must be at least length + 1 = {length + 1}, got {len(numbers)}")
    return np.lib.stride_tricks.sliding_window_view(numbers, length + 1)[::stride]
