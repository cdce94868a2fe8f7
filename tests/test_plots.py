"""The figures' style and the heat map."""

import numpy as np
import pytest
from error_table import error_test

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
matplotlib.use("agg")

from matplotlib import pyplot  # noqa: E402

from attnbook import plots  # noqa: E402


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    pyplot.close("all")


def luminance(color):
    channels = np.array(matplotlib.colors.to_rgb(color))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_colours_can_be_told_apart():
    assert contrast(plots.INK, plots.PAPER) > 7
    assert contrast(plots.GREY, plots.PAPER) > 4.5
    lightness = sorted(116 * luminance(color) ** (1 / 3) - 16 for color in plots.COLORS)
    assert len(lightness) == 5
    assert min(np.diff(lightness)) > 5  # of 100; 2 is just noticeable
    values = [luminance(plots.WEIGHTS(x)) for x in np.linspace(0, 1, 50)]
    assert (np.diff(values) < 0).all()  # weights darken from nothing to all


def test_style_is_undone_and_use_style_stays():
    with matplotlib.rc_context():
        before = matplotlib.rcParams["figure.facecolor"]
        with plots.style():
            assert matplotlib.rcParams["figure.facecolor"] == plots.PAPER
        assert matplotlib.rcParams["figure.facecolor"] == before
        plots.use_style()
        assert matplotlib.rcParams["figure.facecolor"] == plots.PAPER


def test_heatmap_shows_the_matrix_with_its_labels():
    matrix = np.array([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]])
    queries, keys = ["I", "like", "tea"], ["a", "b"]
    labels = {"query_labels": queries, "key_labels": keys}
    ax = plots.heatmap(matrix, title="T", number_format=".2f", **labels)
    assert np.array_equal(ax.images[0].get_array(), matrix)
    assert [label.get_text() for label in ax.get_yticklabels()] == queries
    assert [label.get_text() for label in ax.get_xticklabels()] == keys
    assert ax.get_title(loc="left") + ax.get_title() == "T"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")
    numbers = {text.get_position(): text for text in ax.texts}
    assert numbers[1, 0].get_text() == "0.75"  # x is the key, y the query
    assert numbers[0, 1].get_color() == plots.PAPER  # light on the darkest cell
    assert numbers[1, 1].get_color() == plots.INK


@pytest.mark.parametrize(
    ("signed", "limit", "expected"),
    [(False, None, (0, 4)), (True, None, (-4, 4)), (True, 2.0, (-2, 2)), (False, 2.0, (0, 2))],
)
def test_heatmap_limits(signed, limit, expected):
    matrix = np.array([[-4.0, 1.0, -np.inf]])
    ax = plots.heatmap(matrix, signed=signed, limit=limit)
    assert ax.images[0].get_clim() == expected
    assert np.isnan(ax.images[0].get_array().filled(np.nan)[0, 2])
    for nothing in (np.zeros((2, 2)), np.full((1, 2), np.nan)):
        assert plots.heatmap(nothing).images[0].get_clim() == (0, 1)


def test_heatmap_draws_where_it_is_told_and_takes_tensors():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    _, ax = pyplot.subplots()
    assert plots.heatmap(torch.ones(2, 3, requires_grad=True), ax=ax) is ax
    assert ax.images[0].get_array().shape == (2, 3)


ERRORS = """
plots.heatmap(np.zeros(3))
    ValueError: values must have shape (n_q, n_k), got (3,)
plots.heatmap(np.zeros((2, 3)), key_labels=["a"])
    ValueError: key_labels must have 3 entries, got 1
plots.heatmap(np.zeros((2, 3)), query_labels="abc")
    ValueError: query_labels must have 2 entries, got 3
"""

test_heatmap_errors = error_test(ERRORS, globals())
