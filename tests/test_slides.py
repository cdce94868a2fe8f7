"""The decks: made of their chapters alone, without solutions, and legible from the last row."""

import html
import json
import re

import nbformat
import pytest
from cases import every_day
from test_book import BOOK, NOTEBOOKS
from test_chapters import FIRST_TEXTS
from visits import SITE, TWO_FRAMES, Visit

pytestmark = pytest.mark.site
deck = pytest.mark.parametrize("name", FIRST_TEXTS)
WIDE, HIGH = 1280, 720
FEWEST, MOST = 15, 30
MARK = re.compile(r"^<!-- (slide|show)\b.*-->$", re.M)
TAG = re.compile(r"<[^>]+>")

AT = "[...document.querySelectorAll('.slides > section')].findIndex(e => e.matches('.present'))"
# What of a slide reaches beyond it, or beyond the room that its column has.
OUTSIDE = """() => {
    const slide = document.querySelector('section.present');
    const box = slide.getBoundingClientRect();
    const shown = slide.querySelector('.shown');
    const found = [...slide.querySelectorAll('h2, .shown *')].filter(e => {
        const own = e.getBoundingClientRect();
        return own.width && e.checkVisibility() &&
            !e.closest('.katex-mathml, .katex svg, .lab-box svg') &&
            (own.left < box.left - 1 || own.right > box.right + 1 ||
             own.top < box.top - 1 || own.bottom > box.bottom + 1);
    }).map(e => e.outerHTML.slice(0, 120));
    for (const e of [shown, ...shown.querySelectorAll('pre, figure, .lab-box')]) {
        const [wide, high] = [e.scrollWidth - e.clientWidth, e.scrollHeight - e.clientHeight];
        if (high > 2 || wide > 2)
            found.push(`${wide} x ${high} too much: ${e.outerHTML.slice(0, 80)}`);
    }
    return found.slice(0, 4);
}"""
# Text smaller than 28 pixels; code, tables and small print have limits of their own. A formula
# has the size of its surroundings, since indices are smaller than what they belong to.
SMALL = """() => {
    const slide = document.querySelector('section.present');
    const least = e => e.closest('svg') ? 12 : e.closest('.lab-box, .live-tools') ? 20 :
        e.closest('pre, code') ? 20 : e.closest('table, .sd-badge, .deck-keys') ? 24 : 28;
    const found = new Set();
    const walk = document.createTreeWalker(slide, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const e = walk.currentNode.parentElement;
        const text = walk.currentNode.data.trim().slice(0, 60);
        if (!text || !e.checkVisibility() || e.closest('.notes, .katex-mathml')) continue;
        const turned = e.closest('.lab-picture svg') ? e.getScreenCTM() : { a: 1, b: 0 };
        const sized = parseFloat(getComputedStyle(e.closest('.katex') ?? e).fontSize);
        const size = sized * Math.hypot(turned.a, turned.b);
        if (size < least(e) - 0.1) found.add(`${size.toFixed(1)}: ${text}`);
    }
    return [...found].slice(0, 4);
}"""
# A picture of Matplotlib has letters of 16 pixels where it is drawn in its own size.
SMALL_PICTURES = """() => [...document.querySelectorAll('section.present img')]
    .map(e => [Math.min(e.width / e.naturalWidth, e.height / e.naturalHeight), e.alt])
    .filter(([scale]) => scale < 0.7).map(([scale, alt]) => `${scale}: ${alt.slice(0, 60)}`)"""
ALL_SHOWN = """() => {
    for (const slide of document.querySelectorAll('.slides > section')) {
        slide.hidden = false;
        slide.removeAttribute('aria-hidden');
        slide.style.cssText = 'position: static; display: flex !important; visibility: visible';
    }
}"""


def text_of(name):
    """Return what the slides of a deck show and say, without markup."""
    page = (SITE / "slides" / f"{name}.html").read_text("utf8")
    page = re.sub(r'<div class="cell live" id="[\w-]+" hidden>.*?</pre>', "", page, flags=re.S)
    page = page.partition('<div class="slides')[2]
    return html.unescape(TAG.sub("", page))


@deck
def test_a_deck_is_marked_in_its_chapter(name):
    kinds = MARK.findall(NOTEBOOKS[name].read_text("utf8"))
    assert FEWEST <= kinds.count("slide") + 1 <= MOST  # and the title


def test_every_chapter_has_a_deck_and_a_link_to_it():
    listed = (SITE / "book" / "instructors.html").read_text("utf8")
    for name in FIRST_TEXTS:
        assert (SITE / "slides" / f"{name}.html").exists()
        assert f'href="../slides/{name}.html"' in (SITE / "book" / f"{name}.html").read_text("utf8")
        assert f'href="../slides/{name}.html"' in listed


@deck
def test_no_page_and_no_notebook_shows_a_mark(name):
    for path in ("book/{}.html", "notebooks/{}.ipynb", "slides/{}.html"):
        assert not re.search(r"<!--\s*(slide|show)", (SITE / path.format(name)).read_text("utf8"))


@deck
def test_slides_show_no_solution(name):
    """No line that occurs in a solution or in a folded answer alone."""
    record = nbformat.read(BOOK / f"{name}.ipynb", 4)
    folded = [c for c in record.cells if "hide-cell" in c.metadata.get("tags", [])]
    others = "\n".join(c.source for c in record.cells if c not in folded)
    others = others.partition("\n## Exercises")[0]
    secret = [cell.source for cell in folded]
    exercises = json.loads((SITE.parent / "exercises" / f"{name}.json").read_text("utf8"))
    secret += [exercise["answer"] for exercise in exercises["exercises"]]
    lines = {
        line.strip() for text in secret for line in text.splitlines() if len(line.strip()) > 25
    }
    lines = {line for line in lines if line not in others}
    assert len(lines) > 10
    shown = text_of(name)
    assert [line for line in lines if line in shown] == []


@deck
def test_no_slide_ends_in_a_colon(name):
    """What a sentence introduces is on the slide, or the sentence ends there."""
    page = (SITE / "slides" / f"{name}.html").read_text("utf8")
    ends = r'.{0,50}:(?:\s*</(?!pre)\w+>)+\s*<aside class="notes">'  # a text may print a colon
    assert re.findall(ends, page) == []
    assert page.count('<aside class="notes">') >= FEWEST


def test_a_last_sentence_has_its_output_or_a_full_stop():
    assert re.search(r"linear maps does:\s*the best linear map says", text_of("transformer"))
    assert re.search(r"real outputs fixed:\s*keys +hidden", text_of("masking"))
    assert "a key that is nearer to its home." in text_of("hashing")
    assert "def estimate(" in text_of("estimators")  # marked, and so shown as the mark says


def deck_of(name, browser, server, shown=".reveal.ready"):
    """Return a visit of a deck whose slides are there."""
    visit = Visit(browser, server, WIDE)
    visit.tab.set_viewport_size({"width": WIDE, "height": HIGH})
    visit.tab.goto(f"{server}/slides/{name}.html", wait_until="load")
    assert visit.until(f"!!document.querySelector('{shown}')")
    return visit


@pytest.mark.parametrize("name", every_day(["masking"], FIRST_TEXTS))
def test_the_slides_in_the_browser(name, browser, server):
    visit = deck_of(name, browser, server)
    tab = visit.tab
    n = tab.evaluate("document.querySelectorAll('.slides > section').length")
    found = {}
    for i in range(n):
        if i:
            tab.keyboard.press("PageDown")
            assert visit.until(f"({AT}) === {i}")
        tab.evaluate(TWO_FRAMES)
        found |= {
            (i + 1, what): items
            for what, items in (
                ("outside", tab.evaluate(OUTSIDE)),
                ("small", tab.evaluate(SMALL)),
                ("small picture", tab.evaluate(SMALL_PICTURES)),
            )
            if items
        }
        if not tab.evaluate("document.querySelector('section.present .shown').children.length"):
            found[i + 1, "empty"] = True
    tab.evaluate(ALL_SHOWN)
    found["violations, light"] = visit.violations()
    tab.emulate_media(color_scheme="dark")
    assert visit.until("document.documentElement.dataset.theme === 'dark'")
    found["violations, dark"] = visit.violations(["color-contrast"])
    found["loads and scripts"] = visit.problems
    tab.close()
    assert {what: items for what, items in found.items() if items} == {}


# Put there what live.js does when a cell has run, and say what of it is not on the slide.
RESULT = """kind => {
    const cell = document.querySelector('section.present .cell.live:not([hidden])');
    const text = Array.from({ length: 60 }, (_, i) => `line ${i} of a long result`).join('\\n');
    const output = document.createElement('div');
    output.className = 'cell_output docutils container live-output';
    output.style.minHeight = '400px';
    cell.querySelector('.cell_output:not(.live-output)')?.remove();
    cell.querySelector('.live-output')?.remove();
    const foot = document.querySelector('.live-foot');
    foot.hidden = false;
    foot.querySelector('p').textContent = 'Cell 4 stopped with an error, 0.1 s.';
    cell.querySelector('.live-tools').after(output);
    output.innerHTML = `<div class="output ${kind}"><pre>${text}</pre></div>
        <p class="live-hint">Cells above have not run.</p>`;
    return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => {
        const box = e => e.getBoundingClientRect();
        const [seen, tools] = [box(output), box(cell.querySelector('.live-tools'))];
        const hint = box(output.querySelector('.live-hint'));
        done(Object.entries({
            'the result reaches below': seen.bottom > box(foot).top + 1,
            'the result begins above': seen.top < tools.bottom - 1 || tools.top < 0,
            'the result is low': seen.height < 150,
            'the reason is hidden': kind === 'traceback' && hint.bottom > seen.bottom + 1,
            'the beginning is hidden': kind === 'stream' && output.scrollTop > 0,
        }).filter(([, wrong]) => wrong).map(([what]) => what));
    })));
}"""


@pytest.mark.parametrize("name", every_day(["single_head"], FIRST_TEXTS))
def test_a_result_stays_on_its_slide(name, browser, server):
    is_live = 'class="cell live' in (SITE / "slides" / f"{name}.html").read_text("utf8")
    visit = deck_of(name, browser, server, ".reveal.ready" + " .live-tools" * is_live)
    tab = visit.tab
    slides = "[...document.querySelectorAll('.slides > section')]"
    cells = tab.evaluate(f"{slides}.map(e => !!e.querySelector('.cell.live:not([hidden])'))")
    found = {}
    for i, has_cell in enumerate(cells):
        if i:
            tab.keyboard.press("PageDown")
            assert visit.until(f"({AT}) === {i}")
        for kind in ("stream", "traceback") if has_cell else ():
            if wrong := tab.evaluate(RESULT, kind):
                found[i + 1, kind] = wrong
    tab.close()
    assert sum(cells) > 2 or name != "single_head"
    assert found == {}


def test_the_speakers_window_moves_with_the_slides(browser, server):
    visit = Visit(browser, server, WIDE)
    visit.tab.goto(f"{server}/slides/masking.html")
    assert visit.until("!!document.querySelector('.reveal.ready')")
    with visit.tab.expect_popup() as opened:
        visit.tab.keyboard.press("s")
    notes = opened.value
    notes.wait_for_selector(".speaker-said p")
    before = notes.inner_text(".speaker-said")
    visit.tab.keyboard.press("ArrowRight")
    assert visit.until("location.hash === '#/slide-2' || location.hash === '#/1'")
    for _ in range(600):  # its policy forbids a wait by eval
        if (said := notes.inner_text(".speaker-said")) != before:
            break
        notes.wait_for_timeout(50)
    assert said != before
    notes.keyboard.press("ArrowRight")
    assert visit.until("location.hash === '#/slide-3' || location.hash === '#/2'")
    assert visit.problems == []
    visit.tab.close()


def test_a_deck_is_printed_with_its_notes(browser, server, tmp_path):
    pypdf = pytest.importorskip("pypdf")
    visit = Visit(browser, server, WIDE)
    sheets = {}
    for asked in ("print-pdf", "print-pdf&notes"):
        visit.tab.goto(f"{server}/slides/masking.html?{asked}")
        assert visit.until("!!document.querySelector('.pdf-page')")
        visit.tab.pdf(path=tmp_path / "deck.pdf", prefer_css_page_size=True)
        sheets[asked] = len(pypdf.PdfReader(tmp_path / "deck.pdf").pages)
    n = visit.tab.evaluate("document.querySelectorAll('.pdf-page > section').length")
    spoken = visit.tab.evaluate("document.querySelectorAll('aside.notes:not(:empty)').length")
    assert sheets["print-pdf"] == n
    assert n + spoken <= sheets["print-pdf&notes"] <= n + 2 * spoken  # long notes take two pages
    visit.tab.close()
