"""The figures that can be moved, in Chromium: they open, answer, and break no rule."""

import functools
import mimetypes

import pytest
from cases import every_day
from figures import NAMES, ROOT
from visits import COLOURS, PHONE, TOO_WIDE, Visit

pytestmark = pytest.mark.site

WIDE = 1400

# What the page was built with, and how much higher the figure has become since.
AS_BUILT = """async box => {
    const source = await (await fetch(location.href)).text();
    const page = new DOMParser().parseFromString(source, 'text/html');
    const built = page.querySelector(`[data-lab=${box.dataset.lab}]`);
    const parts = '.lab-picture, .lab-says, .lab-value';
    const texts = figure => [...figure.querySelectorAll(parts)].map(part => part.innerHTML).join();
    const same = texts(box) === texts(built);
    for (const input of built.querySelectorAll('input')) input.removeAttribute('name');
    box.before(built);
    const grown = box.offsetHeight - built.offsetHeight;
    built.remove();
    return { same, grown };
}"""
SHOWN = """box => [...box.querySelectorAll('.lab-picture svg')]
    .filter(e => e.getClientRects().length).map(e => e.outerHTML).join()"""
PARTS = """(box, kind) => [...box.querySelectorAll('.lab-picture ' + kind)]
    .filter(e => e.getClientRects().length).map(e => e.dataset.part)"""
TABBED, DRAWN = '[tabindex="0"]', "[data-part]"
SMALL_TARGETS = """box => [...box.querySelectorAll('button, input, .lab-picture [tabindex]')]
    .filter(e => e.checkVisibility({ visibilityProperty: true })).filter(e => {
        const target = (e.closest('.lab-choice label') ?? e).getBoundingClientRect();
        return target.width < 23.9 || target.height < 23.9;
    }).map(e => e.outerHTML.slice(0, 200))"""
SMALL_TEXT = """box => [...box.querySelectorAll('text')].filter(e => e.getClientRects().length)
    .filter(e => {
        const { a, b } = e.getScreenCTM();
        return parseFloat(getComputedStyle(e).fontSize) * Math.hypot(a, b) < 11.9;
    }).map(e => e.textContent)"""
CUT = """box => [...box.querySelectorAll('text')].filter(e => {
    const [a, b] = [e.getBoundingClientRect(), e.closest('svg').getBoundingClientRect()];
    return a.left < b.left - 2 || a.right > b.right + 2 ||
        a.top < b.top - 2 || a.bottom > b.bottom + 2;
}).map(e => e.textContent)"""
GLIDE = """box => [...box.querySelectorAll('svg :is(rect, line, circle)')]
    .map(e => getComputedStyle(e).transitionDuration)"""

# Python answers at once, in the place of the page's, which tests/live/test_live_figures.py asks.
PYTHON = """() => {
    const text = { bits: 2.5, text: "Ay", error: null };
    const judged = { one_pass: 2, one_by_one: 3, text: "Ay" };
    const answers = {
        "answer(": { found: text, right: text },
        "begin(": { steps: 120 },
        "train(": { masked: Array(10).fill(3), unmasked: Array(10).fill(1) },
        "end(": { masked: judged, unmasked: judged },
    };
    const of = source => Object.keys(answers).find(call => source.includes(call));
    if (globalThis.attnbookPython)
        globalThis.attnbookPython.run = async guest => {
            guest.printed = JSON.stringify(answers[of(guest.text)]);
            return { ok: true };
        };
}"""


def fulfill(body, kind, route):
    route.fulfill(body=body, content_type=kind)


class Figure:
    """A figure on its page."""

    def __init__(self, browser, base, name, width, answers=(), **options):
        pages = (ROOT / "book").glob("*.md")
        page = next(p.stem for p in pages if f"{{lab}} {name}\n" in p.read_text("utf8"))
        self.visit = Visit(browser, base, width, **options)
        self.tab = self.visit.tab
        for file, body in dict(answers).items():  # in place of those of the site
            kind = mimetypes.guess_type(file)[0]
            self.tab.route(f"**/{file}", functools.partial(fulfill, body, kind))
        self.visit.open(f"book/{page}.html")
        self.tab.evaluate(PYTHON)
        self.selector = f"[data-lab={name}]"
        self.box = self.tab.locator(self.selector)
        # What stands above may get its height only while it is passed.
        scroll = f"document.querySelector('{self.selector}').scrollIntoView()"
        assert self.visit.until(f"({scroll}, !!document.querySelector('{self.selector}.lab-open'))")
        self.visit.settle()
        self.said = {self.says()}

    def ask(self, function, *values):
        return self.box.evaluate(function, *values)

    def says(self):
        return self.box.locator(".lab-says").text_content()

    def changed_by(self, deed, *values):
        """Do something, and tell whether the picture is another."""
        before = self.ask(SHOWN)
        deed(*values)
        assert self.visit.until(f"!document.querySelector('{self.selector}[aria-busy]')", 60)
        self.said.add(self.says())
        return self.ask(SHOWN) != before

    def controls(self):
        """Return the controls, each as its inputs."""
        found = self.box.locator("[data-control]").all()
        kinds = {}
        for one in found:
            kinds.setdefault(one.get_attribute("data-control"), []).append(one)
        return list(kinds.values())

    def part(self, name):
        return self.box.locator(f'.lab-picture [data-part="{name}"]:visible').first

    def with_keys(self, inputs):
        """Use a control by the keyboard."""
        kind = inputs[0].get_attribute("type")
        if kind == "radio":
            chosen = next((one for one in inputs if one.is_checked()), inputs[0])
            chosen.press("ArrowRight")
        elif kind == "range":
            value = inputs[0].input_value()
            inputs[0].press("ArrowRight")
            if inputs[0].input_value() == value:
                inputs[0].press("ArrowLeft")
        elif kind == "text":
            inputs[0].press("End")
            inputs[0].press_sequentially("s")
        elif inputs[0].is_enabled():
            inputs[0].press("Enter")

    def with_mouse(self, inputs):
        """Use a control by the mouse."""
        kind = inputs[0].get_attribute("type")
        if kind == "range":
            where = inputs[0].evaluate("e => (e.value - e.min) / (e.max - e.min)")
            wide = inputs[0].bounding_box()["width"]
            inputs[0].click(position={"x": wide * (0.8 if where < 0.5 else 0.2), "y": 14})
        elif kind == "radio":
            next(one for one in inputs if not one.is_checked()).click(force=True)
        elif kind == "button" and inputs[0].is_enabled():
            inputs[0].click()

    def reset(self):
        button = self.box.locator(".lab-reset")
        if button.is_enabled():
            button.click()

    def middle(self, part):
        place = self.part(part).bounding_box()
        return place["x"] + place["width"] / 2, place["y"] + place["height"] / 2

    def drag(self, part, dx, dy):
        """Click on a part, or drag it, by the mouse."""
        if self.part(part).get_attribute("data-drag") is None:
            dx = dy = 0
        x, y = self.middle(part)
        self.tab.mouse.move(x, y)
        self.tab.mouse.down()
        self.tab.mouse.move(x + dx, y + dy, steps=3)
        self.tab.mouse.up()

    def touch(self, part, dx, dy):
        """Put a finger on a part and move it."""
        if self.part(part).get_attribute("data-drag") is None:
            dx = dy = 0
        x, y = self.middle(part)
        devices = self.tab.context.new_cdp_session(self.tab)
        for kind, places in (
            ("touchStart", [{"x": x, "y": y}]),
            ("touchMove", [{"x": x + dx / 2, "y": y + dy / 2}]),
            ("touchMove", [{"x": x + dx, "y": y + dy}]),
            ("touchEnd", []),
        ):
            devices.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})

    def faults(self):
        """Return what breaks a rule at this width."""
        found = {
            "too wide": self.tab.evaluate(TOO_WIDE),
            "small targets": self.ask(SMALL_TARGETS),
            "small text": self.ask(SMALL_TEXT),
            "cut text": self.ask(CUT),
        }
        self.visit.keep(self.selector)
        found["violations, light"] = self.visit.violations(within=self.selector)
        self.visit.go_dark()
        found["violations, dark"] = self.visit.violations(COLOURS, within=self.selector)
        found["loads and scripts"] = self.visit.problems
        return {what: items for what, items in found.items() if items}


@pytest.mark.parametrize("name", every_day(["attention"], NAMES))
def test_a_figure_answers_to_mouse_and_keyboard(name, browser, server):
    figure = Figure(browser, server, name, WIDE)
    assert figure.ask(AS_BUILT) == {"same": True, "grown": 0}
    first, controls = figure.ask(SHOWN), figure.controls()
    for use in (figure.with_keys, figure.with_mouse):
        dead = set(range(len(controls)))
        for _ in range(2):  # what shows the present state answers when another has been chosen
            for i, inputs in enumerate(controls):
                if not inputs[0].is_visible():
                    continue
                if figure.changed_by(use, inputs) or inputs[0].get_attribute("type") == "text":
                    dead -= {i}
        assert dead == set()
        figure.reset()
        assert figure.ask(SHOWN) == first
    parts, drawn = figure.ask(PARTS, TABBED), figure.ask(PARTS, DRAWN)
    if parts:
        keys = ("ArrowLeft", "ArrowDown", "ArrowRight", "ArrowRight", "Enter")
        part = figure.part(parts[0])
        assert any(figure.changed_by(part.press, key) for key in keys if part.count())
        figure.reset()
        assert any(figure.changed_by(figure.drag, part, -21, 13) for part in drawn[:6])
    assert len(figure.said) > 1
    assert figure.faults() == {}
    figure.tab.close()


@pytest.mark.parametrize("name", every_day(["mask"], NAMES))
def test_a_figure_on_a_phone(name, browser, server):
    figure = Figure(browser, server, name, PHONE, has_touch=True, reduced_motion="reduce")
    assert figure.ask(AS_BUILT) == {"same": True, "grown": 0}
    assert set(figure.ask(GLIDE)) == {"0s"}
    parts = figure.ask(PARTS, DRAWN)
    if parts:
        figure.part(parts[0]).scroll_into_view_if_needed()
        where = figure.tab.evaluate("scrollY")
        assert any(figure.changed_by(figure.touch, part, -12, 8) for part in parts[:6])
        assert figure.tab.evaluate("scrollY") == where
    else:
        control = figure.controls()[-1][-1]
        assert figure.changed_by(control.tap)
    assert figure.faults() == {}
    figure.tab.close()


def test_without_a_script_the_picture_stands_there_alone(browser, server):
    visit = Visit(browser, server, WIDE, java_script_enabled=False)
    visit.tab.goto(f"{server}/book/single_head.html", wait_until="load")
    box = visit.tab.locator("[data-lab=attention]")
    box.scroll_into_view_if_needed()
    assert box.locator("svg:visible").count() == 1
    assert "weight 0.67" in box.locator(".lab-says").inner_text()
    assert box.locator("button:visible").count() == 0
    visit.tab.close()
