"""Links into a chapter, and a page that is loaded once more, in the browser."""

import re
import time
from urllib.parse import unquote

import pytest
from cases import every_day
from visits import PHONE, SITE, WIDE, Visit

pytestmark = pytest.mark.site

NEAR = 100  # pixels
TOUCH = {"has_touch": True, "is_mobile": True}
STILL = {"reduced_motion": "reduce"}
READERS = {"wide": (WIDE, {}), "phone": (PHONE, TOUCH), "still": (WIDE, STILL)}
CHAPTERS = ["single_head", "decoding", "multi_head"]
WHERE = """id => {
    const end = scrollY + innerHeight >= document.documentElement.scrollHeight - 2;
    const element = document.getElementById(id);
    const wanted = parseFloat(getComputedStyle(element).scrollMarginTop);
    return end ? 0 : element.getBoundingClientRect().top - wanted;
}"""
AT_REST = """async () => {
    const state = () => `${scrollY} ${document.documentElement.scrollHeight}`;
    let before, since = performance.now();
    while (performance.now() - since < 700) {
        if (state() !== before) [before, since] = [state(), performance.now()];
        await new Promise(r => setTimeout(r, 50));
    }
}"""
AT_TOP = "document.elementFromPoint(innerWidth / 2, 90).closest('section > *')"


def anchors(chapter):
    """Return places deep in a chapter: its theorems, its last sections, and where claims link."""
    html = (SITE / "book" / f"{chapter}.html").read_text("utf8")
    links = (SITE / "book" / "claims.html").read_text("utf8")
    linked = re.findall(rf'href="{chapter}\.html#([^"]+)"', links)
    sections = re.findall(r'<section id="([^"]+)"', html)
    exercises = re.findall(r'id="(exercise-[^"]+)"', html)
    deep = [*linked[-1:], sections[len(sections) // 2], *exercises[:1], sections[-2]]
    return [unquote(name) for name in dict.fromkeys(deep)]


@pytest.fixture(params=every_day(["phone"], READERS))
def reader(request, browser, server):
    width, options = READERS[request.param]
    visit = Visit(browser, server, width, **options)
    visit.name = request.param
    yield visit
    visit.tab.close()


def missed(visit, name):
    visit.tab.evaluate(AT_REST)
    return abs(visit.tab.evaluate(WHERE, name))


@pytest.mark.parametrize("chapter", every_day(CHAPTERS[:1], CHAPTERS))
def test_a_link_from_another_page_lands_where_it_leads_and_so_does_a_reload(chapter, reader):
    wrong = {}
    for name in anchors(chapter):
        reader.tab.goto("about:blank")
        reader.tab.goto(f"{reader.base}/book/{chapter}.html#{name}", wait_until="load")
        first = missed(reader, name)
        reader.tab.reload(wait_until="load")
        again = missed(reader, name)
        if max(first, again) > NEAR:
            wrong[name] = (first, again)
    assert wrong == {}


@pytest.mark.parametrize("chapter", every_day(CHAPTERS[:1], CHAPTERS))
def test_a_link_within_a_page_lands_where_it_leads(chapter, reader):
    reader.tab.goto(f"{reader.base}/book/{chapter}.html", wait_until="commit")
    assert reader.until("document.readyState !== 'loading'")
    wrong = {}
    for name in reversed(anchors(chapter)):
        reader.tab.evaluate("name => { location.hash = name; }", name)
        if (far := missed(reader, name)) > NEAR:
            wrong[name] = far
    assert wrong == {}


def test_a_reader_who_loads_a_page_once_more_is_where_he_was(reader):
    reader.tab.goto(f"{reader.base}/book/single_head.html", wait_until="load")
    reader.tab.evaluate(AT_REST)
    reader.tab.mouse.move(200, 300)
    for share in (0.35, 0.8):
        reader.tab.evaluate("x => scrollTo(0, x * document.documentElement.scrollHeight)", share)
        reader.tab.evaluate(AT_REST)
        text = f"{AT_TOP}.textContent.slice(0, 300)"
        top = f"{AT_TOP}.getBoundingClientRect().top"
        before, place = reader.tab.evaluate(text), reader.tab.evaluate(top)
        reader.tab.reload(wait_until="load")
        reader.tab.evaluate(AT_REST)
        assert reader.tab.evaluate(text) == before
        assert abs(reader.tab.evaluate(top) - place) < NEAR


def test_what_moves_the_page_ends_when_the_reader_moves(browser, server):
    """Who turns the wheel while the page still loads is not taken back."""
    visit = Visit(browser, server, WIDE)
    visit.tab.goto(f"{visit.base}/book/single_head.html#exercises", wait_until="load")
    visit.tab.mouse.move(600, 400)
    visit.tab.mouse.wheel(0, 3000)
    time.sleep(0.5)
    there = visit.tab.evaluate("scrollY")
    visit.tab.evaluate("document.querySelector('.bd-article').append('one more line')")
    visit.tab.evaluate(AT_REST)
    assert abs(visit.tab.evaluate("scrollY") - there) < NEAR
    visit.tab.close()
