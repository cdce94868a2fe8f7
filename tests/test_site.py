"""The built site, as files and in a browser: links, pictures, formulas, contrast, search."""

import functools
import http.server
import os
import re
import shutil
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from cases import every_day

import attnbook

pytestmark = pytest.mark.site

SITE = Path(__file__).parents[1] / "_build" / "html"
PAGES = sorted(
    page.relative_to(SITE).as_posix()
    for page in SITE.glob("**/*.html")
    if "_static" not in page.parts
)
READ = [page for page in PAGES if page.startswith("book/") or page == "search.html"]
SEEN = [f"book/{name}.html" for name in ("index", "distributed", "api/check")]
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDE, PHONE = 1300, 390
MOST_BYTES = 1_500_000  # a page with all that it loads, before any compression


def skip_unless(variables, reason):
    """Skip on a desk, fail where one of the environment `variables` says that all must run."""
    if any(map(os.environ.get, variables)):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module", autouse=True)
def site():
    if not (SITE / "book" / "index.html").exists():
        skip_unless(["CI", "ATTNBOOK_REQUIRE_SITE"], "the site is not built: make book")
    return SITE


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


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def server(site):
    handler = functools.partial(QuietHandler, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
        httpd.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser(site):
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM_NAMES)), "")
    if not found:
        reason = "no Chromium found: install it, or name it in the variable CHROMIUM"
        skip_unless(["ATTNBOOK_REQUIRE_SITE"], reason)
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=found, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


class Visit:
    """A page in the browser, and what went wrong on the way."""

    def __init__(self, browser, base, width, **options):
        self.base, self.problems, self.bytes = base, [], 0
        view = {"width": width, "height": 900}
        self.tab = browser.new_page(viewport=view, color_scheme="light", **options)
        self.tab.on("request", self._request)
        self.tab.on("requestfailed", lambda r: self.problems.append(f"failed load: {r.url}"))
        self.tab.on("response", self._response)
        self.tab.on("pageerror", lambda e: self.problems.append(f"script error: {e}"))
        self.tab.on("console", self._console)

    def _request(self, request):
        if not request.url.startswith((self.base, "data:", "blob:")):
            self.problems.append(f"outside request: {request.url}")

    def _response(self, response):
        self.bytes += int(response.headers.get("content-length", 0))
        if response.status >= 400:
            self.problems.append(f"failed load: {response.status} {response.url}")

    def _console(self, message):
        if message.type == "error":
            self.problems.append(f"console: {message.text}")

    def open(self, page):
        self.tab.goto(f"{self.base}/{page}", wait_until="load")
        self.tab.add_style_tag(content=ALL_LAID_OUT)
        self.settle()

    def until(self, expression, seconds=30):
        """Wait in the page until an expression is true; a policy that forbids eval allows this."""
        return self.tab.evaluate(UNTIL % expression, seconds)

    def go_dark(self):
        self.tab.emulate_media(color_scheme="dark")
        assert self.until("document.documentElement.dataset.theme === 'dark'")
        self.settle()

    def resize(self, width):
        self.tab.set_viewport_size({"width": width, "height": 900})
        self.settle()

    def settle(self):
        """End what moves or fades, and wait until the keyboard reaches what scrolls."""
        self.tab.evaluate(TWO_FRAMES)  # a change shows in the next
        self.tab.evaluate(FINISH)
        assert self.until(f"!({UNSETTLED})().length"), self.tab.evaluate(UNSETTLED)

    def keep(self, selector):
        """Take away what is neither in such an element nor around one: axe looks at all there is.

        What is kept has the colours and the roles that it had.
        """
        self.tab.evaluate(KEEP, selector)

    def violations(self, rules=None, without=(), within=None):
        """Return what axe finds on the page, or in those of its elements that match a selector."""
        axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
        options = {"resultTypes": ["violations"], "preload": False}  # preload fetches css itself
        options["rules"] = {rule: {"enabled": False} for rule in without}
        if rules:
            options["runOnly"] = rules
        found = axe.run(self.tab, context=within, options=options).response["violations"]
        return [
            f"{rule['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for rule in found
            for node in rule["nodes"]
        ]


@pytest.fixture(scope="module")
def visit(browser, server):
    visit = Visit(browser, server, WIDE)
    yield visit
    visit.tab.close()


ALL_LAID_OUT = "section { content-visibility: visible !important }"  # and not what is near alone
TWO_FRAMES = "() => new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))"
UNTIL = """async seconds => {
    const last = performance.now() + 1000 * seconds;
    while (!(%s)) {
        if (performance.now() > last) return false;
        await new Promise(r => setTimeout(r, 20));
    }
    return true;
}"""
MOVING = """document.getAnimations().filter(animation =>
    animation.timeline === document.timeline && animation.playState === 'running' &&
    animation.effect.getComputedTiming().endTime !== Infinity)"""
FINISH = f"() => {MOVING}.forEach(animation => animation.finish())"
UNSETTLED = f"""() => [
    ...{MOVING}.map(animation => animation.effect.target),
    ...[...document.querySelectorAll('.bd-article *')].filter(e =>
        e.checkVisibility() && e.scrollWidth > e.clientWidth + 1 && e.tabIndex < 0 &&
        !e.querySelector('[tabindex="0"]') &&
        ['auto', 'scroll'].includes(getComputedStyle(e).overflowX)),
].map(e => e?.outerHTML.slice(0, 200))"""

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
KEEP = """selector => {
    const kept = document.querySelectorAll(selector);
    const near = new Set([...kept].flatMap(e => [...e.querySelectorAll('*'), e]));
    for (const e of kept) for (let up = e; up; up = up.parentElement) near.add(up);
    for (const e of [...document.querySelectorAll('body *')])
        if (!near.has(e) && near.has(e.parentElement)) e.remove();
}"""
UNSIZED = """[...document.querySelectorAll('.bd-article img')]
    .filter(e => !e.width || !e.height || e.loading !== 'lazy').map(e => e.src)"""
TOO_WIDE = "Math.max(document.documentElement.scrollWidth - innerWidth, 0)"
SEARCHES = [("softmax", "attention"), ("flash attention", "Fast attention"), ("sqrt", "ttention")]
LATEX = re.compile(r"\\[a-z]{2,}|\\[()]|[_^]\{")
COLOURS = ["color-contrast", "link-in-text-block"]  # which no width changes


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


def test_what_is_folded_is_printed(browser, server):
    visit = Visit(browser, server, WIDE)
    visit.open("book/distributed.html")
    shut = "document.querySelectorAll('.bd-article details:not([open])').length"
    before = visit.tab.evaluate(shut)
    visit.tab.evaluate(f"addEventListener('beforeprint', () => window.shut = {shut})")
    visit.tab.pdf()
    assert (visit.tab.evaluate("window.shut"), visit.tab.evaluate(shut)) == (0, before)
    visit.tab.close()


def test_the_site_works_as_plain_files(browser, site):
    visit = Visit(browser, site.resolve().as_uri(), WIDE)
    visit.open("book/notation.html")
    assert visit.tab.evaluate(RAW_FORMULAS) == []
    visit.open("search.html?q=softmax")
    visit.tab.wait_for_selector("#search-results ul.search li a")
    # Chromium loads no fonts and reads no excerpts from file://, and says so; search still finds.
    assert [problem for problem in visit.problems if problem.startswith("outside")] == []
    visit.tab.close()
