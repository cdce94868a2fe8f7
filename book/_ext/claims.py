"""Write each verdict once: `claims.toml` holds the ledger, this shows it anywhere in the book.

``{verdict}`6` `` is the badge of claim 6. It leads to the theorem labelled ``claim-06``, and within
that theorem to the claim's row of the ledger. The directive ``claims-table`` is the whole ledger by
note, each row linked to its theorem.
"""

import re
import tomllib
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective, SphinxRole
from sphinx.util.nodes import make_refnode

TONES = {
    "holds": "success",
    "holds if": "warning",
    "too strict": "warning",
    "incomplete": "warning",
    "false": "danger",
    "definition": "info",
}
FIELDS = {"number", "sources", "title", "written", "verdict", "proved", "chapter"}
OPTIONAL_FIELDS = {"condition"}


def read_ledger(path: Path) -> dict:
    """Return the ledger with its claims by number, or raise ValueError naming what is wrong."""
    ledger = tomllib.loads(path.read_text(encoding="utf8"))
    for claim in ledger["claim"]:
        name = f"claim {claim.get('number')} in {path.name}"
        if missing := FIELDS - claim.keys():
            raise ValueError(f"{name} must have {sorted(FIELDS)}, lacks {sorted(missing)}")
        if unknown := claim.keys() - FIELDS - OPTIONAL_FIELDS:
            raise ValueError(f"{name} has unknown fields {sorted(unknown)}")
        if claim["verdict"] not in TONES:
            raise ValueError(f"{name} must have a verdict of {list(TONES)}: {claim['verdict']!r}")
    numbers = [claim["number"] for claim in ledger["claim"]]
    if numbers != list(range(1, len(numbers) + 1)):
        raise ValueError(f"claims in {path.name} must be numbered 1, 2, 3, …, got {numbers}")
    return {**ledger, "claim": {claim["number"]: claim for claim in ledger["claim"]}}


def theorem_label(number: int) -> str:
    """Return the label of the theorem of a claim."""
    return f"claim-{number:02d}"


def row_label(number: int) -> str:
    """Return the anchor of a claim's row in the ledger."""
    return f"ledger-{number:02d}"


def badge(claim: dict) -> nodes.inline:
    text = claim["verdict"] + (" …" if claim["verdict"] == "holds if" else "")
    tone = TONES[claim["verdict"]]
    classes = ["sd-sphinx-override", "sd-badge", f"sd-bg-{tone}", f"sd-bg-text-{tone}", "verdict"]
    return nodes.inline(text, text, classes=classes)


class VerdictLink(nodes.General, nodes.Inline, nodes.Element):
    """Stands for the link of a badge until all pages are read."""


class LinkToTheorem(nodes.General, nodes.Inline, nodes.Element):
    """Stands for a link to the theorem of a claim until all pages are read."""


def ledger_of(env) -> dict:
    path = Path(env.srcdir, env.config.claims_file)
    env.note_dependency(str(path))
    return read_ledger(path)


class Verdict(SphinxRole):
    """``{verdict}`6` ``: the badge of claim 6, linked to its theorem or its row."""

    def run(self):
        claims = ledger_of(self.env)["claim"]
        if not self.text.strip().isdecimal() or int(self.text) not in claims:
            message = f"verdict must name a claim from 1 to {len(claims)}, got {self.text!r}"
            return [], [self.inliner.reporter.error(message, line=self.lineno)]
        claim = claims[int(self.text)]
        return [VerdictLink("", badge(claim), number=claim["number"])], []


class ClaimsTable(SphinxDirective):
    """``claims-table``: the ledger, one table a note."""

    def run(self):
        groups: dict[str, list] = {}
        for claim in ledger_of(self.env)["claim"].values():
            groups.setdefault(note_of(claim), []).append(claim)
        result = []
        for letter, claims in sorted(groups.items(), key=lambda group: group[0] or "Z"):
            title = f"Note {letter}" if letter else "This book"
            section = nodes.section(ids=[nodes.make_id(f"claims-{title}")])
            section += nodes.title(title, title)
            section += parsed(self, f"{{doc}}`{page_of(letter)}`") if letter else []
            section += self.table(claims)
            result.append(section)
        return result

    def table(self, claims):
        table = nodes.table(classes=["claims", "align-default"])
        group = nodes.tgroup(cols=3)
        group += [nodes.colspec(colwidth=width) for width in (12, 40, 48)]
        head = nodes.row()
        for title in ("No.", "As written", "What the book proves and runs"):
            head += nodes.entry("", nodes.paragraph(title, title))
        group += nodes.thead("", head)
        body = nodes.tbody()
        for claim in claims:
            body += self.row(claim)
        group += body
        table += group
        return table

    def row(self, claim):
        number = claim["number"]
        first = nodes.paragraph(classes=["claim-number"])
        first += nodes.strong("", str(number))
        second = nodes.paragraph(classes=["claim-title"])
        second += nodes.strong("", claim["title"])
        origin = parsed(self, sources(claim))[0]
        origin["classes"].append("claim-source")
        verdict = nodes.paragraph(classes=["claim-verdict"])
        verdict += badge(claim)
        if "condition" in claim:
            verdict += [nodes.Text(" "), *parsed(self, claim["condition"])[0].children]
        link = nodes.paragraph(classes=["claim-link"])
        link += LinkToTheorem("", number=number)
        link += parsed(self, f"; it matters in {{doc}}`{claim['chapter']}`")[0].children
        cells = (
            [first],
            [second, *parsed(self, claim["written"]), origin],
            [verdict, *parsed(self, claim["proved"]), link],
        )
        row = nodes.row(ids=[row_label(number)])
        row += [nodes.entry("", *cell) for cell in cells]
        return row


def note_of(claim: dict) -> str:
    """Return the letter of the note that has the claim on its page, or nothing."""
    return claim["sources"][0][0] if claim["sources"] else ""


def page_of(letter: str) -> str:
    return f"note_{letter.lower()}"


def sources(claim: dict) -> str:
    """Return where a claim comes from, as Markdown with a link to each note."""
    letters = claim["sources"]
    if not letters:
        return "this book"
    links = [f"{{doc}}`{letter} <{page_of(letter[0])}>`" for letter in letters]
    return ("note " if len(letters) == 1 else "notes ") + ", ".join(links)


def parsed(directive: SphinxDirective, text: str) -> list:
    container = nodes.Element()
    lines = StringList(text.strip().splitlines(), source="claims.toml")
    directive.state.nested_parse(lines, directive.content_offset, container)
    return container.children


def link_rows_and_theorems(app, doctree, docname):
    """Turn the placeholders into links, now that every page has been read."""
    page, theorems = app.config.claims_page, getattr(app.env, "proof_list", {})

    def link(node, children):
        theorem = theorems[theorem_label(node["number"])]
        return make_refnode(app.builder, docname, theorem["docname"], theorem["label"], children)

    for node in list(doctree.findall(LinkToTheorem)):
        node.replace_self(link(node, nodes.Text("Statement, proof and cell")))
    for node in list(doctree.findall(VerdictLink)):
        if is_inside(node, theorem_label(node["number"])):
            row = row_label(node["number"])
            to = make_refnode(app.builder, docname, page, row, node.children)
        else:
            to = link(node, node.children)
        to["classes"].append("verdict-link")
        node.replace_self(to)


def is_inside(node, name: str) -> bool:
    while node := node.parent:
        if name in node.get("ids", ()):
            return True
    return False


def write_ledger_again(app, env):
    """A page may have gained a theorem: the ledger's links depend on all pages."""
    return [app.config.claims_page] if app.config.claims_page in env.found_docs else []


def number_by_note(app, env):
    """Number what stands on the page of a note as in an appendix: Theorem A.1."""
    for docname, kinds in env.toc_fignumbers.items():
        if found := re.search(r"/note_(\w)$", docname):
            for numbers in kinds.values():
                for n, name in enumerate(sorted(numbers, key=numbers.get), 1):
                    numbers[name] = (found[1].upper(), n)
    return []


def setup(app):
    app.add_config_value("claims_file", "claims.toml", "env")
    app.add_config_value("claims_page", "claims", "env")
    app.add_node(VerdictLink)
    app.add_node(LinkToTheorem)
    app.add_role("verdict", Verdict())
    app.add_directive("claims-table", ClaimsTable)
    app.connect("doctree-resolved", link_rows_and_theorems)
    app.connect("env-updated", write_ledger_again)
    app.connect("env-get-updated", number_by_note, priority=600)  # after Sphinx has counted
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
