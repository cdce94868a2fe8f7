"""The book as one PDF: two pages of the site are printed and read again."""

import re
import shutil
import sys
import unicodedata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # tools/ is no part of the installed package

from visits import SITE, skip_unless  # noqa: E402

pypdf = pytest.importorskip("pypdf")
print_book = pytest.importorskip("tools.print_book")

pytestmark = pytest.mark.site
PAGES = ["book/claims", "book/note_e"]
A4 = (595, 842)


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    if not any(map(shutil.which, print_book.CHROMIUM)):
        skip_unless(["CI", "ATTNBOOK_REQUIRE_SITE"], "there is no Chromium")
    pdf = tmp_path_factory.mktemp("pdf") / "book.pdf"
    print_book.print_book(SITE, pdf, [print_book.Part("Start here", PAGES)])
    return pypdf.PdfReader(pdf)


def test_all_pages_are_printed_but_those_of_the_reference():
    pages = [page for part in print_book.parts_of(ROOT / "_toc.yml") for page in part.pages]
    assert {"book/instructors", "book/course/syllabi", "book/benchmarks"} <= set(pages)
    assert not [page for page in pages if page.startswith("book/api")]


def test_a_page_brings_its_own_styles_and_no_empty_answers():
    pages = [print_book.Part("", ["book/how_to_use", "book/decoding"])]
    text = print_book.Book(SITE, pages).html({})
    assert re.search(r'<link rel="stylesheet" href="_static/labs/\w+/labs.css', text)
    assert "lab-box" in text
    assert "cell live" in text
    assert "live answer" not in text


def titles(outline):
    """Yield the titles of bookmarks, those below others too."""
    for mark in outline:
        if isinstance(mark, list):
            yield from titles(mark)
        else:
            yield mark.title


def words(sheet):
    """Return the text of a sheet, where some fonts have one letter for two, such as ﬁ."""
    return " ".join(unicodedata.normalize("NFKC", sheet.extract_text()).split())


def test_the_contents_name_the_page_on_which_each_heading_stands(printed):
    contents = words(printed.pages[1])
    for heading in ("The claims", "Note B", "Note E: "):
        listed = re.search(re.escape(heading) + r"\D*(\d+)\b", contents)
        assert listed, heading
        assert heading in words(printed.pages[int(listed[1]) - 1])


def test_a_link_between_pages_of_the_book_leads_within_it(printed):
    addresses, inner = [], 0
    for sheet in printed.pages[2:]:
        for mark in sheet.get("/Annots", []):
            mark = mark.get_object()
            action = mark.get("/A", {})
            inner += "/Dest" in mark or action.get("/S") == "/GoTo"
            addresses += [action["/URI"]] if "/URI" in action else []
    assert inner > 10
    assert [url for url in addresses if not url.startswith("https://")] == []


def test_sheets_are_a4_with_bookmarks_and_set_formulas(printed):
    assert {tuple(map(round, sheet.mediabox[2:])) for sheet in printed.pages} == {A4}
    assert {"Contents", "The claims"} <= set(titles(printed.outline))
    text = "\n".join(sheet.extract_text() for sheet in printed.pages)
    assert re.search(r"\\\(|\$\$|\\sqrt|\{doc\}", text) is None
    assert len(printed.pages) > 8
