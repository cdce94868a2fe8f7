"""Print the built site as one PDF, with contents, bookmarks, page numbers and links.

    python tools/print_book.py _build/html _build/attnbook.pdf [PAGE …]

The pages of `_toc.yml` (or those named) become one document, in which the link from page to page is
a link within, and Chromium prints it. It is printed until the page numbers of the contents are
those of what they name: once without them, once with them, as a rule.
"""

import argparse
import datetime
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import chain
from pathlib import Path
from tempfile import NamedTemporaryFile
from urllib.parse import unquote, urljoin, urlsplit

import yaml
from bs4 import BeautifulSoup
from playwright.sync_api import sync_playwright
from pypdf import PdfReader

ROOT = Path(__file__).parents[1]
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LISTED = "h1, h2"  # the headings that stand in the contents
ON_SCREEN = ".headerlink, .take-along, .cell.answer, button, script, noscript"
DRAWS = "details.above-input"  # the code of a figure, which is folded on the page
MOST_ROUNDS = 4
TEXT_PIXELS = round((210 - 2 * 20) / 25.4 * 96)  # between the margins of A4
WIDE_PIXELS = round((297 - 2 * 20) / 25.4 * 96)  # the same of the page whose tables are wide
# What is too wide is made smaller; else Chromium makes the whole book smaller.
FIT = """() => {
  const wide = document.querySelectorAll(".bd-article :is(table, .katex-display, pre, img, svg)");
  for (const one of wide) {
    const room = one.parentElement.clientWidth, width = Math.max(one.scrollWidth, one.offsetWidth);
    if (room && width > room + 1) one.style.zoom = room / width;
  }
}"""
SUBTITLE = "Attention from a dot product to a sketch of a million vectors"
SMALL = "font: 8.5pt system-ui, sans-serif; color: #555"
STYLE = f"""
@page {{ size: A4; margin: 20mm 20mm 18mm; @bottom-center {{ content: counter(page); {SMALL} }} }}
@page benchmarks {{ size: A4 landscape; }}
@page printed-title {{ @bottom-center {{ content: none }} }}
body {{ background: #fff; }}
.printed-title {{ page: printed-title; padding-top: 30%; text-align: center; }}
.printed-title h1 {{ font-size: 44pt; margin: 0 0 1rem; }}
.printed-contents {{ break-before: page; page: printed-contents; }}
.printed-part {{ margin: 1.2em 0 0.3em; font-weight: 600; break-after: avoid; }}
.printed-line {{ display: flex; gap: 0.8em; color: inherit; text-decoration: none; }}
.printed-line span:nth-child(1) {{ min-width: 2.6em; }}
.printed-line span:nth-child(2) {{ flex: 1; }}
.printed-2 {{ padding-left: 1.4em; font-size: 0.92em; }}
.printed-1 {{ margin-top: 0.35em; break-after: avoid; }}
article.bd-article {{ break-before: page; padding: 0; max-width: none; }}
article#benchmarks {{ width: {WIDE_PIXELS}px; }}
html[data-theme] {{ --text: 10pt; }}
.bd-article * {{ content-visibility: visible !important; }}
.bd-article :is(pre, .cell, .cell_output, details, div[class*="highlight"], .solution) {{
  break-inside: auto !important; display: block; overflow: visible; orphans: 4; widows: 4; }}
.bd-article pre {{ font-size: 8pt; line-height: 1.45; }}
.bd-article table {{ font-size: 8.5pt; line-height: 1.3; }}
.bd-article :is(td, th) {{ padding: 2.5pt 5pt !important; }}
.bd-article .cell details > summary {{ display: none; }}
.bd-article details.sd-dropdown {{ break-inside: avoid !important; }}
.bd-article tbody tr:is(:first-child, :nth-last-child(2)) {{ break-after: avoid; }}
.bd-article .lab-picture[data-width="340"] {{ display: none; }}
.bd-article .lab-picture[data-width="680"] {{ display: block; }}
.bd-article .lab-picture svg {{ max-width: none; }}
.bd-article .figure-frame img {{ max-height: 190mm; width: auto; }}
"""


@dataclass
class Part:
    """Pages under one title of the table of contents."""

    title: str
    pages: list[str]


def parts_of(toc: Path) -> list[Part]:
    """Return parts and pages, without the functions' reference: it is no reading matter."""
    known = yaml.safe_load(toc.read_text("utf8"))
    parts = []
    for part in known["parts"]:
        entries = [entry for entry in part["chapters"] if entry["file"] != "book/api"]
        files = [page["file"] for entry in entries for page in (entry, *entry.get("sections", []))]
        parts.append(Part(part["caption"], [Path(f).with_suffix("").as_posix() for f in files]))
    return parts


class Book:
    """The pages of a site as one document."""

    def __init__(self, site: Path, parts: list[Part]) -> None:
        self.site, self.parts = site, parts
        self.pages = [page for part in parts for page in part.pages]
        self.sheets: dict[str, None] = {}  # style sheets of all pages, each once, in their order
        self.articles = {page: self.article(page) for page in self.pages}

    def article(self, page: str) -> BeautifulSoup:
        """Return what is to be read on a page, its links and names being those of the book."""
        soup = soup_of(self.site, page)
        for link in soup.select('link[rel="stylesheet"]'):
            self.sheets[urljoin(page, str(link["href"]))] = None
        article = soup.select_one("article.bd-article")
        assert article is not None, page
        for screen in article.select(f"{ON_SCREEN}, {DRAWS}"):
            screen.decompose()
        for fold in article.select("details"):
            fold["open"] = ""
        for tag in article.find_all(True):
            if tag.get("id"):
                tag["id"] = name(page, tag["id"])
            for there in ("for", "aria-labelledby", "aria-describedby", "aria-controls"):
                del tag[there]
        for image in article.select("img"):
            image["src"] = urljoin(f"{page}.html", image["src"])
            image["loading"] = "eager"
        for link in article.select("a[href]"):
            self.turn(page, link)
        article["id"] = name(page, "")
        article["style"] = f"page: {name(page, '')}"
        return article

    def turn(self, page: str, link: BeautifulSoup) -> None:
        """Let a link to a page of the book lead to its place; one to another page leads nowhere."""
        parts = urlsplit(link["href"])
        if parts.scheme:
            return
        there = unquote(urljoin(f"{page}.html", parts.path)) if parts.path else f"{page}.html"
        if there.removesuffix(".html") in self.pages:
            link["href"] = "#" + name(there.removesuffix(".html"), unquote(parts.fragment))
        else:
            link.name = "span"
            del link["href"]

    def headings(self, page: str) -> Iterator[tuple[int, str, str, str]]:
        """Yield level, number, text and place of each heading for the contents."""
        for heading in self.articles[page].select(LISTED):
            number = heading.select_one(".section-number")
            counted = number.get_text() if number else ""
            text = heading.get_text().removeprefix(counted).strip()
            yield int(heading.name[1]), counted.strip(), text, heading.find_parent(id=True)["id"]

    def contents(self, numbers: dict[str, int]) -> str:
        """Return the table of contents, with the page numbers that are known."""
        lines = []
        for part in self.parts:
            lines.append(f'<p class="printed-part">{escape(part.title)}</p>')
            for level, number, text, place in chain(*map(self.headings, part.pages)):
                lines.append(
                    f'<a class="printed-line printed-{level}" href="#{place}">'
                    f"<span>{escape(number)}</span><span>{escape(text)}</span>"
                    f"<span>{numbers.get(place, '')}</span></a>"
                )
        return "\n".join(lines)

    def html(self, numbers: dict[str, int]) -> str:
        """Return the whole document."""
        styles = "".join(f'<link rel="stylesheet" href="{sheet}" />' for sheet in self.sheets)
        heads = "".join(self.running_head(page) for page in self.pages)
        articles = "".join(map(str, self.articles.values()))
        return (
            '<!DOCTYPE html><html lang="en" data-theme="light" data-mode="light"><head>'
            f'<meta charset="utf-8" /><title>attnbook</title>{styles}'
            f"<style>{STYLE}{heads}</style></head><body>"
            f'<section class="printed-title"><h1>attnbook</h1>{imprint()}</section>'
            f'<section class="printed-contents"><h1>Contents</h1>{self.contents(numbers)}</section>'
            f"{articles}</body></html>"
        )

    def running_head(self, page: str) -> str:
        """Return the rule that writes the title of a page above each of its sheets."""
        heading = next(self.headings(page), (1, "", "", ""))
        title = f"{heading[1]} {heading[2]}".strip().replace('"', '\\"')
        return f'@page {name(page, "")} {{ @top-left {{ content: "{title}"; {SMALL} }} }}'


def imprint() -> str:
    """Return what stands below the title: subtitle, authors, version, day and licences."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf8"))
    names = ", ".join(author["name"] for author in cited["authors"])
    printed = f"Version {cited['version']}, printed on {datetime.date.today():%-d %B %Y}"
    lines = (SUBTITLE, names, printed, "Text and figures: CC BY 4.0. Code: MIT License.")
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def soup_of(site: Path, page: str) -> BeautifulSoup:
    """Return a page of the site as a tree."""
    return BeautifulSoup((site / f"{page}.html").read_text("utf8"), "html.parser")


def name(page: str, inner: str) -> str:
    """Return the name in the book of a place on a page; it is an identifier of CSS, too."""
    return re.sub(r"[^\w-]", "-", page.removeprefix("book/")) + (f"--{inner}" if inner else "")


def page_numbers(pdf: Path) -> dict[str, int]:
    """Return the number of the sheet of each place that something links to."""
    reader = PdfReader(pdf)
    sheets = {sheet.indirect_reference.idnum: i + 1 for i, sheet in enumerate(reader.pages)}
    return {
        place.lstrip("/"): sheets[there.page.idnum]
        for place, there in reader.named_destinations.items()
    }


def print_book(site: Path, pdf: Path, parts: list[Part]) -> int:
    """Print `site` to `pdf` and return how often it had to be printed."""
    book = Book(site, parts)
    pdf.parent.mkdir(parents=True, exist_ok=True)
    numbers: dict[str, int] = {}
    browser_path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if browser_path is None:
        raise SystemExit(f"printing needs one of {', '.join(CHROMIUM)}, and none is installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for rounds in range(1, MOST_ROUNDS + 1):
            # in the site, so that style sheets find their fonts; two may print at a time
            with NamedTemporaryFile("w", dir=site, suffix=".html", encoding="utf8") as document:
                document.write(book.html(numbers))
                document.flush()
                tab = browser.new_page()
                tab.goto(Path(document.name).resolve().as_uri(), timeout=300_000)
                tab.emulate_media(media="print")
                tab.set_viewport_size({"width": TEXT_PIXELS, "height": 1000})
                tab.evaluate("document.fonts.ready")
                tab.evaluate(FIT)
                tab.pdf(path=pdf, prefer_css_page_size=True, outline=True, tagged=True)
                tab.close()
            before, numbers = numbers, page_numbers(pdf)
            if numbers == before:
                return rounds
    raise RuntimeError(f"page numbers still change after {MOST_ROUNDS} rounds")


def main() -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("pdf", type=Path)
    parser.add_argument("pages", nargs="*", help="pages such as book/masking; default: all")
    given = parser.parse_args()
    parts = [Part("Pages", given.pages)] if given.pages else parts_of(ROOT / "_toc.yml")
    rounds = print_book(given.site, given.pdf, parts)
    sheets = len(PdfReader(given.pdf).pages)
    print(f"{given.pdf}: {sheets} pages, {given.pdf.stat().st_size / 1e6:.1f} MB, {rounds} rounds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
