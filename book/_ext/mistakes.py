"""Show which mistakes the check of an exercise knows.

Nothing here is written by hand: the names and the sentences are those of the tables in
`attnbook.check`. A learner finds a few of them folded after the hints, each without its remedy;
the directive ``mistakes-table`` has all of them, as the checks say them, for each exercise.
"""

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective
from sphinx_design.shared import create_component

from attnbook import check
from attnbook.check.engine.steps import WHOLE, Check, Mistake
from attnbook.check.engine.text import Text

MOST = 5
TITLE = "Common mistakes"
CLASS = "common-mistakes"
FIRST = re.compile(r"(.*?)[.:?](?=\s|$)")
"""What was done; what stands behind says why it is wrong, or what to do."""
PLACE = re.compile(r"\{(\w+)[^}]*\}")


def tables() -> dict[str, tuple[Mistake, ...]]:
    """Return the mistakes that each check knows, by the name of the check."""
    found: dict[str, tuple[Mistake, ...]] = {}
    for module in pkgutil.walk_packages(check.__path__, "attnbook.check."):
        for value in vars(importlib.import_module(module.name)).values():
            for one in value.values() if isinstance(value, dict) else [value]:
                if isinstance(one, Check):
                    found.setdefault(one.name.partition(",")[0], one.mistakes)
    for name in set(check.__all__) - set(found):
        module = importlib.import_module(getattr(check, name).__module__)
        texts = [value for value in vars(module).values() if isinstance(value, Text)]
        found[name] = tuple(m for text in texts for table in text.tables.values() for m in table)
    return {name: table for name, table in found.items() if table}


def called(solution: str) -> str:
    """Return the check to which a solution first passes what it has made, or an empty string."""
    tree = ast.parse(solution)
    made = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Name):
            function = call.func
            is_check = (
                isinstance(function, ast.Attribute) and ast.unparse(function.value) == "check"
            )
            if is_check and call.args[0].id in made:
                return function.attr
    return ""


def said(mistake: Mistake) -> str:
    """Return the teacher's sentences, with the names of the numbers that a run would fill in."""
    return PLACE.sub(r"\1", mistake.message)


def noted(table: tuple[Mistake, ...], solution: str, before: Sequence[str] = ()) -> list[Mistake]:
    """Return a few mistakes for a learner to read about.

    They stand in the order of the table. Chosen first are those that the tables `before` on the
    page do not have, and of each step of the computation one before any step has its second. What
    quotes the solution is left out.
    """
    seen: list[object] = []
    ranked = []
    parts = formulas(solution)
    for place, mistake in enumerate(table):
        steps = frozenset(mistake.ways[0]) if mistake.ways else frozenset({place})
        again = 0 if WHOLE in steps else seen.count(steps)
        seen.append(steps)
        if not quotes(done(mistake), parts):
            ranked.append((before.count(mistake.name), again, place))
    return [table[place] for _, _, place in sorted(sorted(ranked)[:MOST], key=itemgetter(2))]


def done(mistake: Mistake) -> str:
    """Return what somebody did who made this mistake, without what they should do."""
    return f"{FIRST.match(said(mistake))[1]}."


def formulas(solution: str) -> list[str]:
    """Return the lines of a solution, and the terms in them, without spaces."""
    parts = set(solution.splitlines())
    for node in ast.walk(ast.parse(solution)):
        if isinstance(node, (ast.BinOp, ast.Call, ast.Compare)):
            parts.add(ast.unparse(node))
    squeezed = (re.sub(r"\s", "", part) for part in parts)
    return [part for part in squeezed if len(part) > 5]


def quotes(sentence: str, parts: Iterable[str]) -> bool:
    """Tell whether one of some formulas stands in a sentence."""
    squeezed = re.sub(r"\s", "", sentence)
    return any(part in squeezed for part in parts)


def add_notes(app, doctree):
    """Put a fold before each solution whose check has a table."""
    known, shown = tables(), {}
    titles = app.env.metadata[app.env.docname]["exercises"]
    before: list[str] = []
    for solution in list(doctree.findall(lambda n: type(n).__name__ == "solution_node")):
        code = "\n\n".join(
            cell.children[0].astext()
            for cell in solution.findall(nodes.container)
            if cell.get("nb_element") == "cell_code"
        )
        name = called(code)
        if name in known:
            note = noted(known[name], code, before)
            before += [mistake.name for mistake in (*known[name], *note)]
            place = solution.parent.index(solution)
            solution.parent.insert(place, fold([done(mistake) for mistake in note], TITLE))
            label = solution["target_label"]
            shown[label] = (titles[label], name)
    if shown:
        app.env.metadata[app.env.docname]["mistakes"] = shown


def fold(sentences: list[str], title: str) -> nodes.Element:
    """Return a list of sentences, folded."""
    box = create_component(
        "dropdown",
        type="dropdown",
        opened=False,
        has_title=True,
        icon=None,
        chevron=None,
        container_classes=["sd-mb-3", CLASS],
        title_classes=[],
        body_classes=[],
    )
    box += nodes.rubric("", "", nodes.Text(title))
    items = [nodes.list_item("", nodes.paragraph("", "", *marked(text))) for text in sentences]
    box += nodes.bullet_list("", *items)
    return box


def marked(text: str) -> list[nodes.Node]:
    """Return a sentence with its code between backquotes as code."""
    parts = re.split(r"`([^`]+)`", text)
    return [nodes.literal(p, p) if i % 2 else nodes.Text(p) for i, p in enumerate(parts) if p]


class Placeholder(nodes.General, nodes.Element):
    """Where the tables will stand, when all chapters have been read."""


class MistakesTable(SphinxDirective):
    """``mistakes-table``: a fold for each exercise with all that its check can say."""

    def run(self):
        return [Placeholder()]


class Fill(SphinxPostTransform):
    """Put the tables of all exercises in the place of the directive."""

    default_priority = 100  # before folds get their markup

    def run(self, **options):
        for place in list(self.document.findall(Placeholder)):
            place.replace_self(list(sections(self.app, self.env.docname)))


def sections(app, docname):
    """Yield a section for each chapter, in which each exercise has its fold."""
    known, where = tables(), {}
    for chapter in app.env.toctree_includes[app.config.root_doc]:
        shown = app.env.metadata[chapter].get("mistakes", {})
        numbers = app.env.toc_fignumbers.get(chapter, {}).get("exercise", {})
        title = app.env.titles[chapter].astext()
        section = nodes.section(ids=[nodes.make_id(f"mistakes-{Path(chapter).name}")])
        section += nodes.title(title, title)
        for label, (words, name) in shown.items():
            number = ".".join(map(str, numbers.get(label, ())))
            address = f"{app.builder.get_relative_uri(docname, chapter)}#{label}"
            link = nodes.reference("", f"{number} {words}", internal=True, refuri=address)
            line = nodes.paragraph("", "", link, nodes.Text(", with "))
            line += nodes.literal("", f"check.{name}")
            section += line
            if name in where:
                line += nodes.Text(f": as at {where[name]}.")
            else:
                where[name] = number
                sentences = [f"{mistake.name}: {said(mistake)}" for mistake in known[name]]
                section += fold(sentences, f"The {len(sentences)} mistakes that it knows")
        if shown:
            yield section


def setup(app):
    app.add_node(Placeholder)
    app.add_directive("mistakes-table", MistakesTable)
    app.connect("doctree-read", add_notes, priority=600)  # after `tidy` has noted the titles
    app.add_post_transform(Fill)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
