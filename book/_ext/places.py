"""Let a search result lead to a section: where on each page its words stand, and how often."""

import json
from collections import Counter
from collections.abc import Iterator
from html import escape
from pathlib import Path

from docutils import nodes

SCRIPT = Path(__file__).with_name("search.js")


def texts_of(node: nodes.Node, sections: list, here: int = 0) -> Iterator[tuple[int, str]]:
    """Yield the texts of a page, each with the number of its section, and note the sections."""
    if isinstance(node, nodes.Text):
        yield here, node.astext()
    elif isinstance(node, (nodes.raw, nodes.comment)):
        return
    if isinstance(node, nodes.section) and node["ids"] and node.children:
        here = len(sections)
        sections.append((node["ids"][0], escape(node[0].astext())))
    for child in node.children:
        yield from texts_of(child, sections, here)


def places(doctree: nodes.document, lang) -> dict:
    """Return the sections of a page and, for each stem, how often it is there and where most."""
    sections: list[tuple[str, str]] = []
    counts: dict[str, Counter[int]] = {}
    for section, text in texts_of(doctree, sections):
        for word in map(str.lower, lang.split(text)):
            if lang.word_filter(word):
                counts.setdefault(lang.stem(word), Counter())[section] += 1
    words = {
        stem: (own.total(), min(own, key=lambda i: (-own[i], i))) for stem, own in counts.items()
    }
    return {"sections": sections or [("", "")], "words": words}


def note_places(app, doctree, docname):
    if indexer := getattr(app.builder, "indexer", None):
        app.places[docname] = places(doctree, indexer.lang)


def write_places(app, exception):
    index = Path(app.outdir, "searchindex.js")
    if exception or app.builder.format != "html" or not index.is_file():
        return
    known = json.dumps(app.places, separators=(",", ":"), ensure_ascii=False)
    parts = f"const PLACES = {known};\n", SCRIPT.read_text("utf8"), index.read_text("utf8")
    index.write_text("".join(parts), "utf8")


def setup(app):
    app.places = {}
    app.connect("doctree-resolved", note_places)
    app.connect("build-finished", write_places)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": False}
