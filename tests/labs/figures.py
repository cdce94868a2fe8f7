"""What the tests of the figures that can be moved share: the rules of every picture."""

from pathlib import Path
from xml.etree import ElementTree

from cases import load
from py_mini_racer import MiniRacer

ROOT = Path(__file__).parents[2]
labs = load(ROOT / "book/_ext/labs.py")
lab_data, lab_named = labs.lab_data, labs.lab_named
NAMES = sorted(
    path.stem for path in labs.FOLDER.glob("*.js") if "export const lab " in path.read_text("utf8")
)
SEEDS = range(20)
"""So many settings of each figure are compared with the package."""


def caller(names, content, more):
    """Return what calls JavaScript that knows `modules`, a file as `buffer`, and `more`."""
    engine = MiniRacer()
    engine.eval("\n".join(["const modules = {};", *map(labs.as_script, names)]))
    buffer = engine.eval(f"const buffer = new ArrayBuffer({len(content)}); buffer")
    buffer[:] = content
    engine.eval(more)
    return lambda function, *values: engine.call(f"({function})", *values)


def fits(lab, **changes):
    """Draw a state at each width, and find fault with nothing: the rules of every picture."""
    state = lab.start | changes
    for width in lab.call("() => kit.WIDTHS"):
        draw = "(state, width) => lab.draw(state, lab.numbers(state), width)"
        markup = lab.call(draw, state, width)
        assert markup == lab.call(draw, state, width)
        for wrong in ("NaN", "undefined", "Infinity", "[object"):
            assert wrong not in markup
        picture = ElementTree.fromstring(markup)
        assert picture.tag == "svg"
        assert picture.get("viewBox").split()[2] == str(width)
        for element in picture.iter():
            left, right = extent(element)
            assert left >= -1, (markup, ElementTree.tostring(element))
            assert right <= width + 1, (width, right, ElementTree.tostring(element))
    words = lab.call("state => lab.says(state, lab.numbers(state))", state)
    assert words.endswith((".", "?", "!"))
    assert "undefined" not in words
    assert "NaN" not in words
    return state


def extent(element):
    """Return the left and the right end of what is drawn, of words about."""

    def number(name):
        return float(element.get(name) or 0)

    if element.get("transform") or element.get("class") == "reach":
        return 0, 0
    if element.tag == "rect":
        return number("x"), number("x") + number("width")
    if element.tag == "circle":
        return number("cx") - number("r"), number("cx") + number("r")
    if element.tag == "line":
        return min(number("x1"), number("x2")), max(number("x1"), number("x2"))
    if element.tag in ("polyline", "polygon"):
        xs = [float(point.split(",")[0]) for point in element.get("points").split()]
        return min(xs, default=0), max(xs, default=0)
    if element.tag == "text":
        size = 12 if "minor" in element.get("class", "") else 13
        wide = len("".join(element.itertext())) * size * 0.52
        start = {"middle": 0.5, "end": 1}.get(element.get("text-anchor"), 0)
        return number("x") - start * wide, number("x") + (1 - start) * wide
    return 0, 0
