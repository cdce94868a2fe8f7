"""One look for every figure of the book: quiet, colour-blind safe, readable on any page.

Figures have their own light paper, so the page around them may be light or dark. Colours differ in
lightness as well as in hue, so they can be told apart in grey.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

try:
    import matplotlib
    from cycler import cycler
    from matplotlib import pyplot
except ImportError as error:
    raise ImportError("attnbook.plots needs matplotlib: pip install matplotlib") from error

from attnbook.arrays.arguments import check_array, check_bool, check_positive
from attnbook.arrays.move import move

PAPER = "#fbfaf7"
INK = "#22262b"
GREY = "#6b7078"
GRID = "#dcd9d0"
BLUE = "#0b4a85"
ORANGE = "#d5640a"
GREEN = "#0a7a60"
PINK = "#cf82b4"
YELLOW = "#ecb52e"
COLORS = (BLUE, ORANGE, GREEN, PINK, YELLOW)
"""The colours of lines, in order (after Okabe and Ito)."""

WEIGHTS = matplotlib.colors.LinearSegmentedColormap.from_list(
    "attnbook.weights", [PAPER, "#c4d6e8", "#6d9cc9", BLUE, "#052c52"]
)
"""Colour map for quantities of at least 0, such as attention weights."""

SIGNED = matplotlib.colors.LinearSegmentedColormap.from_list(
    "attnbook.signed", ["#8a3b02", ORANGE, "#f3c49c", PAPER, "#a9c6e1", BLUE, "#052c52"]
)
"""Colour map for quantities of both signs, such as scores (orange below 0, blue above)."""

RC: Any = {
    "figure.facecolor": PAPER,
    "figure.dpi": 120,
    "figure.figsize": (7.2, 3.4),
    "figure.constrained_layout.use": True,
    "savefig.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=COLORS),
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "lines.linewidth": 2.0,
    "lines.markersize": 5,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "font.size": 10,
    "font.family": "DejaVu Sans",  # matplotlib carries it, so figures are equal everywhere
    "image.interpolation": "nearest",
}


def use_style() -> None:
    """Draw all further figures of this process in the style of the book."""
    matplotlib.rcParams.update(RC)


def style() -> AbstractContextManager[None]:
    """Return a context in which figures are drawn in the style of the book.

    Examples
    --------
    >>> with style():
    ...     figure, axes = pyplot.subplots()
    >>> pyplot.close(figure)
    """
    return matplotlib.rc_context(RC)


def heatmap(
    values: Any,
    *,
    ax: "pyplot.Axes | None" = None,
    query_labels: Sequence[str] | None = None,
    key_labels: Sequence[str] | None = None,
    title: str = "",
    number_format: str | None = None,
    signed: bool = False,
    limit: float | None = None,
) -> "pyplot.Axes":
    """Draw a matrix with one row per query and one column per key.

    Parameters
    ----------
    values : array, shape (n_q, n_k), of any library
        Attention weights, scores, or another matrix.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.
    query_labels, key_labels : sequences of n_q and of n_k str, optional
        Names of rows and columns, such as tokens; their indices by default.
    title : str
    number_format : str, optional
        If given, each number is printed in its cell in this format, such as ``".2f"``.
    signed : bool
        Whether to use the colour map for both signs, centred on 0, instead of the one for values
        of at least 0.
    limit : float, optional
        The value with the darkest colour; by default the largest finite absolute value.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError
        If `values` is not an array, `ax` is not an Axes, `signed` is not a bool, or labels are not
        a sequence.
    ValueError
        If `values` does not have 2 axes, or a list of labels has the wrong length.

    Notes
    -----
    Cells with NaN or an infinity are left blank.

    Examples
    --------
    >>> ax = heatmap(np.eye(2), key_labels=["tea", "cup"], number_format=".1f")
    >>> [label.get_text() for label in ax.get_xticklabels()]
    ['tea', 'cup']
    >>> pyplot.close(ax.figure)
    """
    check_array("values", values)
    check_bool("signed", signed)
    matrix = np.asarray(move(values, "numpy"), dtype=float)
    if matrix.ndim != 2:
        raise ValueError(f"values must have shape (n_q, n_k), got {matrix.shape}")
    for name, labels, n in (
        ("query_labels", query_labels, matrix.shape[0]),
        ("key_labels", key_labels, matrix.shape[1]),
    ):
        if labels is not None and not isinstance(labels, Sequence):
            raise TypeError(f"{name} must be a sequence of str, got {type(labels).__name__}")
        if labels is not None and len(labels) != n:
            raise ValueError(f"{name} must have {n} entries, got {len(labels)}")
    if ax is None:
        _, ax = pyplot.subplots()
    if not isinstance(ax, pyplot.Axes):
        raise TypeError(f"ax must be matplotlib Axes, got {type(ax).__name__}")
    finite = np.isfinite(matrix)
    if limit is not None:
        limit = check_positive("limit", limit)
    else:
        limit = float(np.abs(matrix[finite]).max(initial=0)) or 1.0
    ax.imshow(
        np.where(finite, matrix, np.nan),
        cmap=SIGNED if signed else WEIGHTS,
        vmin=-limit if signed else 0,
        vmax=limit,
    )
    ax.set_xticks(range(matrix.shape[1]), key_labels)
    ax.set_yticks(range(matrix.shape[0]), query_labels)
    ax.tick_params(length=0)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    ax.set(xlabel="key", ylabel="query")
    ax.set_title(title)
    if number_format is not None:
        for (i, j), number in np.ndenumerate(matrix):
            dark = np.isfinite(number) and abs(number) > 0.55 * limit
            ax.text(
                *(j, i),
                format(number, number_format),
                ha="center",
                va="center",
                color=PAPER if dark else INK,
            )
    return ax
