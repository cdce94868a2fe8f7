"""The places that a search result leads to: the sections of a page and where its words stand."""

from pathlib import Path

from cases import load
from docutils.core import publish_doctree
from sphinx.search.en import SearchEnglish

BOOK = Path(__file__).parents[1] / "book"
places = load(BOOK / "_ext/places.py")

PAGE = """
Title & more
============

One key before all sections.

First
-----

Keys, keys and a mask.

Second
------

A key, masks, masking, ``mask``.
"""


def test_a_word_leads_to_the_section_that_has_it_most():
    lang = SearchEnglish({})
    page = publish_doctree(PAGE, settings_overrides={"doctitle_xform": 0})
    found = places.places(page, lang)
    names = [name for _, name in found["sections"]]
    assert names == ["Title &amp; more", "First", "Second"]
    assert found["words"][lang.stem("key")] == (4, 1)
    assert found["words"][lang.stem("mask")] == (4, 2)
    assert found["words"][lang.stem("more")] == (1, 0)
    assert "a" not in found["words"]
