"""The figures that can be moved, outside a browser: the rules of all, and the kit they share."""

import re
import shutil

import numpy as np
import pytest
from figures import NAMES, ROOT, fits, lab_data, lab_named, labs

import attnbook as ab


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_stands_on_one_page(name):
    pages = [p.name for p in (ROOT / "book").glob("*.md") if f"{{lab}} {name}\n" in p.read_text()]
    assert len(pages) == 1


@pytest.mark.parametrize("name", NAMES)
def test_the_first_picture(name):
    lab = lab_named(name)
    assert lab.call("() => lab.name") == name
    fits(lab)


@pytest.mark.parametrize("name", NAMES)
def test_controls_show_what_the_state_has(name):
    lab = lab_named(name)
    for control in lab.call("() => lab.controls ?? []"):
        assert control["label"]
        if control["kind"] == "slider":
            assert control["min"] <= lab.start[control["key"]] <= control["max"]
        elif control["kind"] == "choice":
            assert lab.start[control["key"]] in [option for option, _ in control["options"]]
        else:
            assert control["kind"] in ("button", "text")


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_leaves_its_state_as_it_was(name):
    frozen = """() => {
        "use strict";
        const freeze = x => {
            if (typeof x === "object" && x) Object.values(x).forEach(freeze);
            return Object.freeze(x);
        };
        const state = freeze(JSON.parse(JSON.stringify(lab.start)));
        const numbers = freeze(lab.numbers(state));
        kit.WIDTHS.forEach(width => lab.draw(state, numbers, width));
        return JSON.stringify(state) === JSON.stringify(lab.start);
    }"""
    assert lab_named(name).call(frozen)


def test_text_is_large_enough():
    style = (labs.FOLDER / "labs.css").read_text("utf8")
    sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", style)]
    assert min(sizes) >= 12
    for path in labs.FOLDER.glob("*.js"):
        assert "font-size" not in path.read_text("utf8"), path


def test_nothing_is_asked_of_the_outside():
    for path in labs.FOLDER.glob("*.*s"):
        assert not re.search(r"https?:|\beval\b|new Function", path.read_text("utf8")), path


@pytest.fixture
def kit():
    return lambda function, *values: lab_named(NAMES[0]).call(function, *values)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("() => kit.tag('b', {}, 'x')", "<b>x</b>"),
        ("() => kit.tag('b', { x: 1 / 3, y: -0.001 })", '<b x="0.33" y="0"></b>'),
        ("() => kit.tag('b', { 'data-z': 'a\"<' })", '<b data-z="a&quot;&lt;"></b>'),
        ("() => kit.tag('b', { x: undefined, y: null, z: false, t: true })", '<b t=""></b>'),
        ("() => kit.text(1, 2, 'a < b')", '<text x="1" y="2">a &lt; b</text>'),
        ("() => kit.number(-1.234)", "−1.23"),
        ("() => kit.number(-0.001)", "0.00"),
        ("() => kit.number(2.5, 1)", "2.5"),
        ("() => kit.listed(['a', 'b', 'c'])", "a, b and c"),
        ("() => kit.listed(['a'])", "a"),
        ("() => kit.group({}, false, [0, null], undefined, 'x')", "<g>0x</g>"),
        ("() => kit.scale([1, 3], [10, 30])(2)", 20),
        ("() => kit.scale([1, 3], [30, 10]).back(25)", 1.5),
        ("() => kit.range(3)", [0, 1, 2]),
        ("() => kit.stepOf({ key: 'ArrowLeft' }, 0.5)", [-0.5, 0]),
        ("() => kit.stepOf({ key: 'ArrowUp', shift: true }, 1, 4)", [0, 4]),
        ("() => kit.stepOf({ key: 'Home' }) === undefined", True),
        ("() => kit.rect(1, 2, -3, 4)", '<rect x="1" y="2" width="0" height="4"></rect>'),
        ("() => kit.arrow(0, 0, 0, 1, { back: 7, class: 'c' })", '<g class="c"></g>'),
    ],
)  # fmt: skip
def test_kit(call, expected, kit):
    assert kit(call) == expected


def test_softmax_of_the_kit(kit):
    for scores in ([1, 0, 2], [1000.0, 999.0], [-1000.0, 3.0, 3.0]):
        ours = kit("scores => kit.softmax(scores)", scores)
        np.testing.assert_allclose(ours, ab.softmax(np.array(scores, dtype=float)), rtol=1e-14)


def test_modules_become_one_script(tmp_path, monkeypatch):
    monkeypatch.setattr(labs, "FOLDER", tmp_path)
    (tmp_path / "kit.js").write_text("export const WIDTHS = [1];\nexport function f() {}\n")
    (tmp_path / "more.js").write_text(
        'import { WIDTHS as all } from "./kit.js";\nexport class More { static at = all[0]; }\n'
    )
    (tmp_path / "own.js").write_text(
        'import { f } from "./kit.js";\nimport { More } from "./more.js";\n'
        'export const lab = { name: "own", start: { x: More.at }, here: import.meta.url };\n'
    )
    assert labs.modules_of("own.js") == ["kit.js", "more.js", "own.js"]
    assert labs.Lab("own").start == {"x": 1}


def test_a_changed_module_has_another_address(tmp_path, monkeypatch):
    monkeypatch.setattr(lab_data, "FILES", {})
    monkeypatch.setattr(labs, "FOLDER", shutil.copytree(labs.FOLDER, tmp_path / "labs"))
    before = labs.address.__wrapped__()
    with (tmp_path / "labs" / "kit.js").open("a") as module:
        module.write(" ")
    assert labs.address.__wrapped__() != before
