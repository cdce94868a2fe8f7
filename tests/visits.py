"""The built site in a browser: what serves it, and a page that is visited.

pytest loads this file as a plugin.
"""

import functools
import http.server
import os
import shutil
import threading
from pathlib import Path

import pytest

SITE = Path(__file__).parents[1] / "_build" / "html"
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
TOO_WIDE = "Math.max(document.documentElement.scrollWidth - innerWidth, 0)"
COLOURS = ["color-contrast", "link-in-text-block"]  # which no width changes


def skip_unless(variables, reason):
    """Skip on a desk, fail where one of the environment `variables` says that all must run."""
    if any(map(os.environ.get, variables)):
        pytest.fail(reason)
    pytest.skip(reason)


def require_site():
    """Skip where the site is not built."""
    if not (SITE / "book" / "index.html").exists():
        skip_unless(["CI", "ATTNBOOK_REQUIRE_SITE"], "the site is not built: make book")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs the site where it is not built."""
    if item.get_closest_marker("site"):
        require_site()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def server():
    handler = functools.partial(QuietHandler, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
        httpd.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser():
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

    def __init__(self, browser, base, width, height=900, **options):
        self.base, self.problems, self.bytes, self.height = base, [], 0, height
        view = {"width": width, "height": height}
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
        self.tab.set_viewport_size({"width": width, "height": self.height})
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
KEEP = """selector => {
    const kept = document.querySelectorAll(selector);
    const near = new Set([...kept].flatMap(e => [...e.querySelectorAll('*'), e]));
    for (const e of kept) for (let up = e; up; up = up.parentElement) near.add(up);
    for (const e of [...document.querySelectorAll('body *')])
        if (!near.has(e) && near.has(e.parentElement)) e.remove();
}"""
