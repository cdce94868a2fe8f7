"""Write a chapter as plain Markdown and code cells, from the tree that Sphinx has resolved.

What is numbered, cited or referred to has its words there already, so no directive and no role is
left: a theorem becomes a quotation with its title, a fold `<details>`, a reference its words.
"""

import re
from dataclasses import dataclass, field

from docutils import nodes

SKIPPED = {"comment", "target", "raw", "index", "substitution_definition", "colspec", "svg"}


@dataclass(frozen=True)
class Answer:
    """An empty cell for the answer to the exercise with this label, or to a task without one."""

    label: str


@dataclass
class Cells:
    """The cells of a notebook, as text or as the place of a code cell in the record.

    Attributes
    ----------
    docname : str
        The page.
    numbers : dict
        What Sphinx counted on the page: by kind, such as ``"theorem"``, and then by label.
    home : str
        The address of the site, or an empty string: then other pages are named and not linked.
    chapters : set of str
        Pages that are notebooks, which lie beside this one.
    cells : list of str, int or Answer
        Markdown, the place of a code cell in the record, or an empty cell.
    cited : dict
        What is cited, in full, by the words that cite it.
    """

    docname: str
    numbers: dict
    home: str
    chapters: set
    cells: list = field(default_factory=list)
    cited: dict = field(default_factory=dict)

    def page(self, document: nodes.document) -> list:
        """Return the cells of a document."""
        self._cells_of(document)
        if self.cited:
            lines = [f"- {words}: {full}" for words, full in sorted(self.cited.items())]
            self._text("## References\n\n" + "\n".join(lines))
        return self.cells

    def _text(self, text):
        """Add Markdown to the cell under way, or begin one."""
        text = text.strip("\n")
        if not text:
            return
        if self.cells and isinstance(self.cells[-1], str):
            self.cells[-1] += "\n\n" + text
        else:
            self.cells.append(text)

    def _cells_of(self, node, depth=0):
        for child in node.children:
            if isinstance(child, nodes.section):
                self.cells.append("")  # a heading begins a cell
                self._cells_of(child, depth + 1)
            elif isinstance(child, nodes.title):
                self._text("#" * max(depth, 1) + " " + self.inline(child))
            elif child.get("nb_element") == "cell_code":
                self.cells.append(child["cell_index"])
                for figure in child.findall(nodes.figure):
                    self._text(self.block(figure))
            else:
                if _is(child, "solution_node"):
                    self._answer(child["target_label"])
                self._text(self.block(child))
                if _is_stub_of_task(child):
                    self._answer("")

    def _answer(self, label):
        self._text("*Your answer:*")
        self.cells.append(Answer(label))

    def blocks(self, node) -> str:
        """Return what stands in `node`, paragraph by paragraph."""
        return "\n\n".join(filter(None, (self.block(child) for child in node.children)))

    def block(self, node) -> str:
        """Return one block as Markdown."""
        name = type(node).__name__
        if name in SKIPPED:
            return ""
        write = getattr(self, f"_{name}", None)
        if write:
            return write(node)
        if isinstance(node, nodes.Inline | nodes.Text):
            return self.inline_one(node)
        if node.get("nb_element") == "cell_code":
            source = next(node.findall(nodes.literal_block)).astext()
            return f"```python\n{source}\n```"
        return self.blocks(node)

    def _paragraph(self, node):
        return self.inline(node)

    def _literal_block(self, node):
        language = node.get("language", "")
        return f"```{language if language in ('python', 'bash', 'c') else ''}\n{node.astext()}\n```"

    def _math_block(self, node):
        return f"$$\n{_latex(node)}\n$$"

    def _bullet_list(self, node):
        return self._list(node, ["-"] * len(node))

    def _enumerated_list(self, node):
        first = node.get("start", 1)
        return self._list(node, [f"{first + i}." for i in range(len(node))])

    def _list(self, node, marks):
        lines = []
        for mark, item in zip(marks, node.children, strict=True):
            text = self.blocks(item).replace("\n", "\n" + " " * (len(mark) + 1))
            lines.append(f"{mark} {text}")
        return "\n".join(lines)

    def _definition_list_item(self, node):
        term = self.inline(node[0])
        return f"**{term}**: " + self.blocks(node[-1])

    def _table(self, node):
        rows = [[self._entry(e) for e in row.children] for row in node.findall(nodes.row)]
        if not list(node.findall(nodes.thead)):
            rows.insert(0, [""] * len(rows[0]))
        rows.insert(1, ["---"] * len(rows[0]))
        title = "".join(f"**{self.inline(t)}**\n\n" for t in node.children if _is(t, "title"))
        return title + "\n".join("| " + " | ".join(row) + " |" for row in rows)

    def _entry(self, node):
        text = " ".join(self.blocks(node).split("\n"))
        within = re.compile(r"(\$[^$]*\$)")  # a bar in a formula is spelled, another escaped
        parts = within.split(text)
        return "".join(
            p.replace("|", r"\vert ") if p.startswith("$") else p.replace("|", r"\|") for p in parts
        )

    def _figure(self, node):
        number = self.number(node)
        caption = " ".join(self.inline(c) for c in node.findall(nodes.caption))
        text = f"**Fig. {number}.** {caption}" if number else caption
        if "lab" not in node["classes"]:
            return text
        where = f"{self.home.rstrip('/')}/{self.docname}.html#{node['ids'][0]}"
        site = f"[On the site]({where})" if self.home else "On the site"
        questions = [self.blocks(part) for part in node.findall(nodes.legend)]
        return "\n\n".join([f"*{site} this figure can be moved.* {text}", *questions])

    def number(self, node) -> str:
        """Return the number that a reader sees, or an empty string."""
        for counted in self.numbers.values():
            for label in node.get("ids", ()):
                if label in counted:
                    return ".".join(map(str, counted[label]))
        return ""

    def _admonition(self, node):
        if "dropdown" in node["classes"]:
            title, *rest = node.children
            return self._fold(self.inline(title), "\n\n".join(map(self.block, rest)))
        title = self.inline(node[0]) if isinstance(node[0], nodes.title) else ""
        rest = node.children[1:] if title else node.children
        return _quoted(f"**{title}**", "\n\n".join(filter(None, map(self.block, rest))))

    def _note(self, node):
        return _quoted(f"**{type(node).__name__.capitalize()}**", self.blocks(node))

    _warning = _tip = _important = _seealso = _note

    def _proof_box(self, node):
        """Return a theorem, or what else is numbered like one."""
        kind = node["realtype"].capitalize()
        title = f"**{kind} {self.number(node)}{node.get('title', '')}.**"
        rest = [child for child in node.children if not isinstance(child, nodes.title)]
        return _quoted(title, "\n\n".join(filter(None, map(self.block, rest))))

    _definition_node = _theorem_node = _conjecture_node = _lemma_node = _proof_box
    _corollary_node = _remark_node = _example_node = _algorithm_node = _proof_box

    def _exercise_enumerable_node(self, node):
        title, *rest = node.children
        words = self.inline(title).strip()
        text = "\n\n".join(filter(None, map(self.block, rest)))
        return f"**Exercise {self.number(node)} {words}.** {text}"

    def _solution_node(self, node):
        title, *rest = node.children
        text = "\n\n".join(filter(None, map(self.block, rest)))
        return self._fold(re.sub(r"\s+", " ", title.astext()), text)

    def _dropdown_main(self, node):
        title, *rest = node.children
        words = next(x for x in title.findall(nodes.inline)).astext()
        return self._fold(words, "\n\n".join(filter(None, map(self.block, rest))))

    def _fold(self, title, text):
        return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"

    def inline(self, node) -> str:
        """Return the words of a paragraph on one line."""
        text = "".join(self.inline_one(child) for child in node.children)
        return re.sub(r"\s*\n\s*", " ", text).strip()

    def inline_one(self, node) -> str:
        """Return one piece of a paragraph."""
        name = type(node).__name__
        if name == "Text":
            return re.sub(r"([*_`<])", r"\\\1", str(node))
        if name in SKIPPED:
            return ""
        if name == "math":
            return f"{node.get('before', '')}${_latex(node)}${node.get('after', '')}"
        if name == "literal":
            return f"`{node.astext()}`"
        text = "".join(self.inline_one(child) for child in node.children)
        if name == "emphasis":
            return f"*{text}*"
        if name == "strong":
            return f"**{text}**"
        if name == "sd_badge":
            return f"*{text.strip()}* ·"
        if name in ("reference", "number_reference"):
            return self._reference(node, text)
        return text

    def _reference(self, node, text):
        address = node.get("refuri", "")
        if (full := node.get("reftitle", "")) and "bibliography" in address:
            self.cited[text] = full
            return text
        if address.startswith("http"):
            return f"[{text}]({address})"
        page = address.partition("#")[0].removesuffix(".html").rpartition("/")[2]
        if page in self.chapters and not address.startswith("#"):
            return f"[{text}]({page}.ipynb)"
        if page and self.home and not address.startswith("#"):
            return f"[{text}]({self.home.rstrip('/')}/book/{address.rpartition('../')[2]})"
        return text


def _is_stub_of_task(node):
    """Return whether a node is the cell of the page in which a task is answered."""
    return "answer" in node["classes"] and node["ids"][0].startswith("answer-task")


def _latex(node):
    """Return the source of a formula, which the site shows as it is set."""
    return node.get("latex", node.astext()).strip()


def _is(node, name):
    return type(node).__name__ == name


def _quoted(title, text):
    return "\n".join(f"> {line}".rstrip() for line in f"{title}\n\n{text}".split("\n"))
