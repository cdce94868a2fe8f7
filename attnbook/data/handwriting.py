"""The handwritten digits that ship with the package."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from attnbook.data.records import packed


@dataclass(frozen=True, eq=False)
class Digits:
    """Handwritten digits: images and their labels.

    Attributes
    ----------
    images : float64 array, shape (1797, 8, 8)
        Ink per pixel, from 0 (paper) to 1 (full ink) in steps of 1/16. Axis 1 runs down the
        image, axis 2 to the right.
    labels : int64 array, shape (1797,)
        The digit that each image shows, 0 to 9.
    """

    images: Annotated[np.ndarray, "1797 8 8"]
    labels: Annotated[np.ndarray, "1797"]


def digits() -> Digits:
    """Return the 1,797 handwritten digits that this package contains.

    They are the test set of the UCI "Optical Recognition of Handwritten Digits", in the order of
    scikit-learn's `load_digits`. They come from 13 writers, and each digit occurs 174 to 183 times.
    A pixel counts the inked dots of a 4×4 block of the scan, 0 to 16; here it is divided by 16.

    Returns
    -------
    Digits
        NumPy arrays, new ones on each call, so you can change them. `attnbook.move` moves them to
        another library or device.

    Notes
    -----
    Licence: CC BY 4.0, see `attnbook/data/LICENSE-digits`.
    Cost: one read of a file of about 50 kB and 0.9 MB of memory.

    References
    ----------
    Alpaydin and Kaynak (1998), "Optical Recognition of Handwritten Digits", UCI Machine Learning
    Repository, https://doi.org/10.24432/C50P49.

    Examples
    --------
    >>> data = digits()
    >>> data.images.shape, data.labels[:5].tolist()
    ((1797, 8, 8), [0, 1, 2, 3, 4])
    >>> (data.images[1] * 16).astype(int)
    array([[ 0,  0,  0, 12, 13,  5,  0,  0],
           [ 0,  0,  0, 11, 16,  9,  0,  0],
           [ 0,  0,  3, 15, 16,  6,  0,  0],
           [ 0,  7, 15, 16, 16,  2,  0,  0],
           [ 0,  0,  1, 16, 16,  3,  0,  0],
           [ 0,  0,  1, 16, 16,  6,  0,  0],
           [ 0,  0,  1, 16, 16,  6,  0,  0],
           [ 0,  0,  0, 11, 16, 10,  0,  0]])
    """
    with packed("attnbook.data", "digits.npz") as arrays:
        return Digits(arrays["images"] / 16.0, arrays["labels"].astype(np.int64))
