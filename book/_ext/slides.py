"""Slides: a deck a chapter, cut from the chapter itself by marks in its source.

A comment marks the block below it: `<!-- slide -->` begins a slide with it, `<!-- show -->` puts it
on the slide that has begun. Words may follow:

- `slide 1 3` shows these sentences of a paragraph, or of the caption of a cell's figure, which
  has its first one otherwise; a paragraph without numbers is spoken;
- `slide first` shows the first sentence of each item of a list;
- `slide code`, `slide output` show one part of a cell. Without a word a folded cell shows its
  output, another one both;
- `slide softmax` shows those statements of a cell that bind this name;
- `slide: Words` is the title. Without it the heading of the section is.

No slide ends in a colon. Where its last sentence does, it also shows the formula or the output that
follows, and otherwise the sentence ends in a full stop.

Paragraphs, lists, tables and formulas between this mark and the next one or the next heading are
the speaker's notes. The decks lie in the folder `slides` of the site, and `book/slides` holds what
they load: reveal.js, and what a deck does beyond it.
"""

import itertools
import re
import shutil
from pathlib import Path

import labs
import live
import slices
from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.osutil import relative_uri
from tidy import mended

FOLDER = "slides"
LOADED = ("reveal/reveal.js", "reveal/reveal.css", "slides.js", "slides.css")
MARK = re.compile(r"<!--\s*(slide|show)\b([^:]*?)(?::\s*(.*?))?\s*-->")
SPOKEN = (nodes.paragraph, nodes.bullet_list, nodes.enumerated_list, nodes.definition_list)
SPOKEN += (nodes.table, nodes.math_block)
SENTENCE_END = re.compile(r"(?:(?<=[.?!…])|(?<=[.?!…][”’)]))\s+(?=[^a-z\s])")
STAND_IN = 0xE000  # characters that stand for what is no text
ADDRESS = re.compile(r'(?<= href=")(?!\w+:|\.\./)([^"]*)')
FIRST = """<p class="deck-keys">S opens the speaker's window, O shows all slides, D changes to
dark or light, F fills the screen, ? lists all keys.</p>"""
LISTS = (nodes.bullet_list, nodes.enumerated_list)
logger = logging.getLogger(__name__)


def read_marks(app, doctree):
    """Turn each mark into an attribute of the block that follows, so that pages have none."""
    for comment in list(doctree.findall(nodes.raw)):
        found = MARK.fullmatch(comment.astext().strip())
        if not found:
            continue
        after = comment.next_node(descend=False, siblings=True)
        while isinstance(after, nodes.target):
            after = after.next_node(descend=False, siblings=True)
        comment.parent.remove(comment)
        if after is None or isinstance(after, nodes.section):
            logger.warning("no block follows %s", found[0], location=app.env.docname)
        else:
            after["mark"] = {"kind": found[1], "words": found[2].split(), "title": found[3] or ""}
            app.env.metadata[app.env.docname]["deck"] = True


class Deck:
    """The slides of a chapter.

    Attributes
    ----------
    app : Sphinx
    doctree : document
    slides : list of dict
        Each with its ``title``, and what is ``shown`` and ``spoken``, as nodes.
    waiting : list of container
        Live cells that are on no slide yet; a cell that is shown needs their names.
    """

    def __init__(self, app, doctree):
        self.app, self.doctree, self.slides, self.waiting = app, doctree, [], []
        (section,) = [child for child in doctree.children if isinstance(child, nodes.section)]
        self._begin(section[0].children)
        self._read(section)

    def _begin(self, title):
        self.slides.append({"title": title, "shown": [], "spoken": []})

    def _read(self, section, open_=True):
        """Read a section; what stands before its first mark is on no slide, but for the title's."""
        heading = section[0].children
        blocks = [node for node in section.children if not isinstance(node, nodes.target)]
        for before, node in itertools.pairwise(blocks):
            if isinstance(node, nodes.section):
                self._read(node, False)
                open_ = False
                continue
            mark = node.get("mark") if isinstance(node, nodes.Element) else None
            if mark and mark["kind"] == "slide":
                self._begin([nodes.Text(mark["title"])] if mark["title"] else heading)
                open_ = True
            elif not mark and "mark" in before and is_short(node):
                mark = {"words": ["output"]} if leads_on(self.slides[-1]["shown"]) else None
            if mark:
                self.slides[-1]["shown"] += self._shown(node, mark["words"])
            elif live.is_cell(node) and "live" in node["classes"]:
                self.waiting.append(node)
            whole = mark and not (_is_paragraph(node) or "first" in mark["words"])
            if open_ and isinstance(node, SPOKEN) and not whole:
                self.slides[-1]["spoken"].append(without_ids(node))

    def _shown(self, node, words):
        if _is_paragraph(node):
            return [sentence_of(node, int(word)) for word in words]
        if "first" in words:
            copy = without_ids(node)
            for item in copy.children:
                item.children = [sentence_of(item[0], 1)]
            return [copy]
        if live.is_cell(node):
            return list(self._parts_of(node, words))
        if "lab" in node.get("classes", ()):
            copy = node.deepcopy()
            copy.children = [child for child in copy.children if isinstance(child, nodes.raw)]
            return [copy]
        return [node.deepcopy()]

    def _parts_of(self, cell, words):
        """Yield what a slide shows of a code cell."""
        folded = any(name.startswith("tag_hide") for name in cell["classes"])
        numbers = [int(word) for word in words if word.isdecimal()]
        names = {word for word in words if not word.isdecimal()} - {"code", "output"}
        code = "code" in words or not (names or "output" in words or folded)
        if folded and (code or names):
            logger.warning("a slide shows the output alone of a folded cell", location=cell)
        output = "output" in words or not (names or "code" in words)
        if names:
            statements = slices.statements_of([source_of(cell)])
            text = slices.joined([s for s in statements if s.binds & names])
            if not text:
                logger.warning("no statement binds %s", names, location=cell)
            yield nodes.literal_block(text, text, language="python")
        copy = cell.deepcopy()
        kinds = {"cell_code_source": code, "cell_code_output": output}
        copy.children = [part for kind in kinds if kinds[kind] for part in parts_of(copy, kind)]
        if not code and "live" in cell["classes"]:
            self.waiting.append(cell)
        if code and "live" in cell["classes"]:
            yield from map(hidden, self.waiting)
            self.waiting = []
        else:
            copy["classes"] = [name for name in copy["classes"] if name != "live"]
            copy["ids"] = []
        for figure in copy.findall(nodes.caption):
            sentences = [sentence_of(figure, number).children for number in numbers or [1]]
            figure.children = [part for one in sentences for part in (*one, nodes.Text(" "))]
        if code or output:
            yield copy

    def html(self) -> str:
        """Return the slides as HTML."""
        doctree = self.doctree
        deck = nodes.document(doctree.settings, doctree.reporter, source=doctree["source"])
        for number, slide in enumerate(self.slides):
            deck += nodes.raw("", f'<section id="slide-{number + 1}"><h2>', format="html")
            deck += [child.deepcopy() for child in slide["title"]]
            deck += nodes.raw("", '</h2><div class="shown">', format="html")
            for text in leads_on(slide["shown"]):
                text.parent.replace(text, nodes.Text(f"{text.rstrip().removesuffix(':')}."))
            deck += slide["shown"]
            deck += nodes.raw("", FIRST, format="html") if number == 0 else []
            deck += nodes.raw("", '</div><aside class="notes">', format="html")
            deck += slide["spoken"]
            deck += nodes.raw("", "</aside></section>\n", format="html")
        translator = self.app.builder.create_translator(deck, self.app.builder)
        deck.walkabout(translator)
        return "".join(translator.body)


def leads_on(shown) -> list[nodes.Text]:
    """Return the last text of what is shown if that is a sentence which ends in a colon."""
    is_words = shown and isinstance(shown[-1], (nodes.paragraph, *LISTS))
    last = list(shown[-1].findall(nodes.Text))[-1:] if is_words else []
    return [text for text in last if text.rstrip().endswith(":")]


def is_short(node) -> bool:
    """Return whether a slide has room for what its last sentence introduces."""
    return isinstance(node, nodes.math_block) or bool(parts_of(node, "cell_code_output"))


def _is_paragraph(node) -> bool:
    return isinstance(node, nodes.paragraph)


def parts_of(cell, kind: str) -> list:
    """Return the code of a cell or its output, also where it is folded, or nothing."""
    return [part for part in cell.findall(nodes.container) if part.get("nb_element") == kind]


def source_of(cell) -> str:
    return "".join(part.astext() for part in parts_of(cell, "cell_code_source"))


def without_ids(node):
    copy = node.deepcopy()
    for part in copy.findall(nodes.Element):
        part["ids"] = []
    return copy


def hidden(cell) -> nodes.raw:
    """Return a live cell that only runs."""
    text = source_of(cell)
    for sign, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(sign, name)
    return nodes.raw(
        "",
        f'<div class="cell live" id="{cell["ids"][0]}" hidden><div class="cell_input">'
        f"<pre>{text}</pre></div></div>",
        format="html",
    )


def sentence_of(paragraph, number: int) -> nodes.paragraph:
    """Return one sentence of a paragraph, the first by 1."""
    parts = without_ids(paragraph).children
    line = "".join(
        str(part) if isinstance(part, nodes.Text) else chr(STAND_IN + i) + part.get("after", "")
        for i, part in enumerate(parts)
    )
    sentences = SENTENCE_END.split(line.strip())
    if number > len(sentences):
        words = paragraph.astext()[:60]
        logger.warning("a mark wants sentence %d of %r", number, words, location=paragraph)
        number = 1
    sentence, after = nodes.paragraph(), ""
    for text in re.split(f"([{chr(STAND_IN)}-{chr(STAND_IN + 999)}])", sentences[number - 1]):
        if len(text) == 1 and 0 <= (i := ord(text) - STAND_IN) < len(parts):
            sentence += parts[i]
            after = parts[i].get("after", "")
        else:
            sentence += nodes.Text(text.removeprefix(after))
            after = ""
    return sentence


class Decks(nodes.General, nodes.Element):
    """Stands for the list of decks until all pages are read."""


class DecksDirective(SphinxDirective):
    """``decks``: a link to each deck, in the order of the chapters."""

    def run(self):
        return [Decks()]


def ordered(env):
    """Return the pages in the order of the contents."""
    return [name for names in env.toctree_includes.values() for name in names]


def list_decks(app, doctree, docname):
    names = [name for name in ordered(app.env) if app.env.metadata[name].get("deck")]
    for node in list(doctree.findall(Decks)):
        decks = nodes.bullet_list()
        for name in names:
            title = app.env.titles[name].astext()
            address = relative_uri(
                app.builder.get_target_uri(docname), f"{FOLDER}/{Path(name).name}.html"
            )
            link = nodes.reference("", title, refuri=address, internal=True)
            decks += nodes.list_item("", nodes.paragraph("", "", link))
        node.replace_self(decks)


def cut(app, pagename, templatename, context, doctree):
    """Cut a chapter into slides while its page is written, and load what a deck needs."""
    folder, _, name = pagename.partition("/")
    if folder == FOLDER:
        labs.load_on_page(app, f"book/{name}", templatename, context, None)
        live.load_on_page(app, f"book/{name}", templatename, context, None)
        for file in LOADED:
            add = app.add_js_file if file.endswith(".js") else app.add_css_file
            add(f"slides/{Path(file).name}", priority=900)  # after the book's own style
    elif doctree is not None and any("mark" in n for n in doctree.findall(nodes.Element)):
        html = mended(app, Deck(app, doctree).html())
        name = Path(pagename).name
        html = ADDRESS.sub(lambda a: f"../{address(pagename, a[1])}", html)
        title = doctree.next_node(nodes.title).astext()
        app.builder.decks[f"{FOLDER}/{name}"] = {
            "slides": html,
            "title": title,
            "chapter": pagename,
        }


def address(pagename: str, to: str) -> str:
    """Return the address, from the root of the site, of what a page links to in its folder."""
    return f"{pagename}.html{to}" if to.startswith("#") else f"{Path(pagename).parent}/{to}"


def pages(app):
    for name, context in app.builder.decks.items():
        yield name, context, "slides.html"


def copy_files(app):
    app.builder.decks = {}
    if app.builder.format == "html":
        to = Path(app.outdir, "_static/slides")
        to.mkdir(parents=True, exist_ok=True)
        for name in LOADED:
            shutil.copyfile(Path(app.srcdir, "book/slides", name), to / Path(name).name)


def setup(app):
    app.add_node(Decks)
    app.add_directive("decks", DecksDirective)
    app.connect("doctree-resolved", list_decks)
    app.connect("doctree-read", read_marks, priority=100)
    app.connect("builder-inited", copy_files)
    app.connect("html-page-context", cut)
    app.connect("html-collect-pages", pages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": False}
