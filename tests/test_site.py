"""The built site, as files and in a browser: links, pictures, formulas, contrast, search."""

import functools
import re
from html.parser import HTMLParser
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from cases import every_day
from visits import COLOURS, PHONE, SITE, TOO_WIDE, WIDE, Visit

import attnbook

pytestmark = pytest.mark.site

PAGES = sorted(
    page.relative_to(SITE).as_posix()
    for page in SITE.glob("**/*.html")
    if "_static" not in page.parts
)
READ = [page for page in PAGES if page.startswith("book/") or page == "search.html"]
SEEN = [f"book/{name}.html" for name in ("index", "distributed", "api/check")]
MOST_BYTES = 1_500_000  # a page with all that it loads, before any compression


# Files


class Page(HTMLParser):
    """What a page links to, loads, and can be linked to."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loads, self.images = [], [], [], []
        self.feed(path.read_text(encoding="utf8"))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if "id" in attrs:
            self.ids.append(attrs["id"])
        if tag == "a" and attrs.get("href"):
            self.links.append(attrs["href"])
        if tag in ("script", "img", "iframe", "video", "audio", "source") and attrs.get("src"):
            self.loads.append(attrs["src"])
        if tag == "link" and attrs.get("href") and attrs.get("rel") not in ("next", "prev"):
            self.loads.append(attrs["href"])
        if tag == "img":
            self.images.append(attrs)


@functools.cache
def parsed(path):
    return Page(path)


def target_of(page, url):
    """Return the file and the anchor that a relative `url` on `page` points to."""
    parts = urlsplit(urljoin("/" + page, url))
    return SITE / unquote(parts.path).lstrip("/"), unquote(parts.fragment)


def broken_links(page):
    for url in parsed(SITE / page).links:
        if urlsplit(url).scheme:
            continue
        path, anchor = target_of(page, url)
        if not path.is_file():
            yield f"{url}: no such file"
        elif anchor and path.suffix == ".html" and anchor not in parsed(path).ids:
            yield f"{url}: no such anchor"


def test_there_are_pages():
    for name in ("index", "how_to_use", "notation", "claims", "api", "bibliography"):
        assert f"book/{name}.html" in PAGES


def test_the_reference_has_every_public_name():
    pages = [parsed(SITE / page) for page in PAGES if page.startswith("book/api/")]
    ids = {i for page in pages for i in page.ids}
    named = [name for name in attnbook.__all__ if callable(getattr(attnbook, name))]
    assert [name for name in named if f"attnbook.{name}" not in ids] == []


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_links_to_and_loads_is_there(page):
    assert list(broken_links(page)) == []
    assert [u for u in parsed(SITE / page).loads if not target_of(page, u)[0].is_file()] == []
    assert [image for image in parsed(SITE / page).images if not image.get("alt")] == []


@pytest.mark.parametrize("page", [page for page in READ if page != "search.html"])
def test_ids_occur_once(page):  # the theme itself writes two search fields on search.html
    ids = parsed(SITE / page).ids
    assert sorted(i for i in set(ids) if ids.count(i) > 1) == []


# Browser


@pytest.fixture(scope="module")
def visit(browser, server):
    visit = Visit(browser, server, WIDE)
    yield visit
    visit.tab.close()


RAW_FORMULAS = r"""() => [...document.querySelectorAll('.bd-article :is(.math, .katex)')]
    .filter(e => !e.querySelector('.katex-base'))
    .map(e => e.textContent)"""

FOLD = """open => document.querySelectorAll('.bd-article details')
    .forEach(fold => { fold.open = open; })"""

# Formulas that reach beyond the box of their text, and marks that begin a line after a formula.
CUT = """() => [...document.querySelectorAll('.bd-article .katex')].filter(formula => {
    let box = formula.parentElement;
    while (getComputedStyle(box).display === 'inline') box = box.parentElement;
    const bases = [...formula.querySelectorAll('.katex-base')];
    return !formula.closest('.math, .pst-scrollable-table-container') && bases.some(base =>
        base.getBoundingClientRect().right > box.getBoundingClientRect().right + 2);
}).map(formula => formula.textContent)"""
PARTED = """() => [...document.querySelectorAll('.bd-article .katex')].filter(formula => {
    const next = formula.nextSibling ?? formula.parentElement.nextSibling;
    if (next?.nodeType !== Node.TEXT_NODE || !/^[,.;:!?)]/.test(next.data)) return false;
    const range = document.createRange();
    range.setStart(next, 0), range.setEnd(next, 1);
    return range.getBoundingClientRect().left < formula.getBoundingClientRect().right - 2;
}).map(formula => formula.textContent)"""


# axe takes a second for every thousand elements. What has the same tag and classes in the same
# surroundings has the same colours and roles: two of each are enough, for rows that take turns.
# Formulas have the colours of their text, and figures that can be moved have tests of their own.
THIN_OUT = """() => {
    for (const figure of document.querySelectorAll('[data-lab]')) figure.remove();
    const formulas = [...document.querySelectorAll('.katex')].slice(2);
    for (const formula of formulas) formula.replaceChildren('x');
    const named = new Set();
    for (const relation of ['for', 'aria-controls', 'aria-labelledby', 'aria-describedby'])
        for (const element of document.querySelectorAll(`[${relation}]`))
            element.getAttribute(relation).split(' ').forEach(id => named.add(id));
    const seen = new Map();
    const keeps = (element, surroundings) => {
        const given = ['class', 'style', 'role'].map(name => element.getAttribute(name) ?? '');
        const kind = [surroundings, element.tagName, ...given].join(' ');
        seen.set(kind, (seen.get(kind) ?? 0) + 1);
        let keep = seen.get(kind) <= 2 || named.has(element.id);
        if (element.matches('a, button, label, svg')) return keep;
        const superfluous = [];
        for (const child of [...element.children])
            if (keeps(child, kind)) keep = true; else superfluous.push(child);
        for (const child of keep ? superfluous : [])
            if (child.matches('.highlight span')) child.replaceWith(child.textContent);
            else if (!child.matches('td, th, dt, dd')) child.remove();
        return keep;
    };
    keeps(document.body, '');
}"""
UNSIZED = """[...document.querySelectorAll('.bd-article img')]
    .filter(e => !e.width || !e.height || e.loading !== 'lazy').map(e => e.src)"""
SEARCHES = [("softmax", "attention"), ("flash attention", "Fast attention"), ("sqrt", "ttention")]
LATEX = re.compile(r"\\[a-z]{2,}|\\[()]|[_^]\{")


@pytest.mark.parametrize("page", every_day(SEEN, READ))
def test_page_in_the_browser(page, visit):
    visit.problems.clear()
    visit.bytes = 0
    visit.tab.emulate_media(color_scheme="light")
    visit.resize(WIDE)
    visit.open(page)
    found = {
        "formulas that were not set": visit.tab.evaluate(RAW_FORMULAS),
        "pixels too wide": visit.tab.evaluate(TOO_WIDE),
        "pictures without a size": visit.tab.evaluate(UNSIZED),
        "bytes too many": max(visit.bytes - MOST_BYTES, 0),
    }
    visit.resize(PHONE)
    visit.tab.evaluate(FOLD, True)
    found["formulas cut on a phone"] = visit.tab.evaluate(CUT)
    found["formulas parted from their stops on a phone"] = visit.tab.evaluate(PARTED)
    visit.tab.evaluate(FOLD, False)
    found["pixels too wide for a phone"] = visit.tab.evaluate(TOO_WIDE)
    visit.tab.evaluate(THIN_OUT)
    found["violations on a phone"] = visit.violations(without=COLOURS)
    visit.resize(WIDE)
    found["violations, light"] = visit.violations()
    visit.go_dark()
    found["violations, dark"] = visit.violations(COLOURS)
    found["loads and scripts"] = visit.problems
    assert {what: items for what, items in found.items() if items} == {}


def test_sections_far_from_the_screen_are_laid_out_in_the_end(browser, server):
    visit = Visit(browser, server, WIDE)
    visit.tab.goto(f"{server}/book/distributed.html", wait_until="load")
    assert visit.until("""[...document.querySelectorAll('.bd-article section > section')]
        .every(e => getComputedStyle(e).contentVisibility === 'visible')""")
    assert visit.problems == []
    visit.tab.close()


@pytest.mark.parametrize(("words", "title"), every_day(SEARCHES[2:], SEARCHES))
def test_search(words, title, browser, server):
    visit = Visit(browser, server, WIDE)
    visit.open("book/index.html")
    visit.tab.locator(".search-button-field:visible, .search-button:visible").first.click()
    visit.tab.locator("input[type=search]:visible").first.fill(words)
    visit.tab.keyboard.press("Enter")
    visit.tab.wait_for_selector("#search-results ul.search li p.context")
    results = visit.tab.locator("#search-results ul.search li")
    assert title in " ".join(results.locator("> a").all_inner_texts()[:10])
    assert [text for text in results.all_inner_texts() if LATEX.search(text)] == []
    assert visit.problems == []
    visit.tab.close()


def results_of(visit, words):
    """Return the texts and the links of a search, once the excerpts that are seen have come."""
    visit.bytes = 0
    visit.open(f"search.html?q={words}")
    visit.tab.wait_for_selector("#search-results ul.search li p.context")
    visit.tab.wait_for_selector(".search-summary:has-text('Search finished')")
    visit.tab.wait_for_load_state("networkidle")
    links = visit.tab.locator("#search-results ul.search li > a")
    return links.all_inner_texts(), links.evaluate_all("links => links.map(a => a.hash)")


@pytest.mark.parametrize(
    ("words", "page"),
    [("LSH", "Hashing"), ("KV cache", "Decoding"), ("padding", "Masking"), ("mask", "Masking")],
)
def test_a_result_leads_to_a_section_of_the_page_that_is_about_it(words, page, visit):
    titles, hashes = results_of(visit, words)
    assert page in titles[0]
    for title, anchor in zip(titles, hashes, strict=True):
        place, _, section = title.partition(" > ")
        assert anchor or place.endswith(section)  # the page itself, whose number is not in the name
    assert any(hashes[:3])
    assert visit.bytes < 6_000_000  # and not all the pages that have the word


def test_what_is_typed_stands_beside_the_magnifier(visit):
    visit.open("search.html")
    overlaps = """form => parseFloat(getComputedStyle(form.querySelector('input')).paddingLeft)
        + form.querySelector('input').getBoundingClientRect().left
        < form.querySelector('i').getBoundingClientRect().right"""
    shown = visit.tab.locator("form.bd-search:visible")
    assert shown.count()
    assert not any(form.evaluate(overlaps) for form in shown.all())


def test_a_reader_goes_from_the_first_page_to_the_chapters_and_comes_to_the_course_last():
    after, page = [], "book/index.html"
    while page:
        link = re.search(r'class="right-next"\s+href="([^"]+)"', (SITE / page).read_text("utf8"))
        page = target_of(page, link[1])[0].relative_to(SITE).as_posix() if link else None
        after += [page] if page else []
    names = [page.removeprefix("book/").removesuffix(".html") for page in after]
    assert names.index("single_head") < 4
    course = [name for name in names if name == "instructors" or name.startswith("course/")]
    assert names[-len(course) :] == course


FIGURES = """[...document.querySelectorAll('.figure-frame img')].filter(image => image.width)
    .map(image => [image.width, image.closest('.figure-frame').clientWidth])"""


@pytest.mark.parametrize("page", every_day(["single_head"], ["single_head", "hashing"]))
def test_a_figure_fits_a_phone_and_grows_by_a_tap_or_a_key(page, browser, server):
    visit = Visit(browser, server, PHONE)
    visit.open(f"book/{page}.html")
    widths = visit.tab.evaluate(FIGURES)
    assert len(widths) > 3
    assert [pair for pair in widths if pair[0] > pair[1] + 1] == []
    frame = visit.tab.locator(".figure-frame.small").first
    image = frame.locator("img")
    small = image.evaluate("image => image.width")
    for act in (frame.click, lambda: frame.press("Enter")):
        act()
        assert frame.get_attribute("aria-expanded") == "true"
        assert image.evaluate("image => image.width") == int(image.get_attribute("width"))
        act()
        assert frame.get_attribute("aria-expanded") == "false"
        assert image.evaluate("image => image.width") == small
    visit.tab.close()


def test_the_contents_close_when_a_link_is_taken_on_a_phone(browser, server):
    visit = Visit(browser, server, PHONE)
    visit.open("book/hashing.html")
    visit.tab.locator(".secondary-toggle").first.click()
    box = visit.tab.locator("#pst-secondary-sidebar-checkbox")
    assert box.is_checked()
    visit.tab.locator(".bd-toc a.nav-link").nth(2).click()
    assert not box.is_checked()
    visit.tab.close()


def test_recorded_tables_fit_the_page(browser, server):
    visit = Visit(browser, server, 1400)
    visit.open("book/benchmarks.html")
    wide = visit.tab.evaluate("""[...document.querySelectorAll('.pst-scrollable-table-container')]
        .map(box => box.scrollWidth / box.clientWidth)""")
    assert len(wide) > 40
    assert max(wide) < 1.25  # thirteen columns of figures scroll a little
    visit.tab.close()


def test_what_is_folded_is_printed(browser, server):
    visit = Visit(browser, server, WIDE)
    visit.open("book/distributed.html")
    shut = "document.querySelectorAll('.bd-article details:not([open])').length"
    before = visit.tab.evaluate(shut)
    visit.tab.evaluate(f"addEventListener('beforeprint', () => window.shut = {shut})")
    visit.tab.pdf()
    assert (visit.tab.evaluate("window.shut"), visit.tab.evaluate(shut)) == (0, before)
    visit.tab.close()


def test_the_site_works_as_plain_files(browser):
    visit = Visit(browser, SITE.resolve().as_uri(), WIDE)
    visit.open("book/notation.html")
    assert visit.tab.evaluate(RAW_FORMULAS) == []
    visit.open("search.html?q=softmax")
    visit.tab.wait_for_selector("#search-results ul.search li a")
    # Chromium loads no fonts and reads no excerpts from file://, and says so; search still finds.
    assert [problem for problem in visit.problems if problem.startswith("outside")] == []
    visit.tab.close()
