"""Formulas: KaTeX sets them while the site is built, as HTML to be seen and MathML to be heard.

A formula that KaTeX cannot read is a warning, so the build fails. From the MathML comes a plain
text, `√(d_k)` for `\\sqrt{d_k}`, for where markup cannot stand: titles, references and the search.
"""

import atexit
import functools
import re
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

from docutils import nodes
from py_mini_racer import JSEvalException, MiniRacer
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

KATEX = Path(__file__).parent / "katex.min.js"
OPENING, CLOSING = re.compile(r"[(\[“‘«]+$"), re.compile(r"(-\w+)?[.,;:!?)\]”’»…%]*")
SUPERFLUOUS = re.compile(
    r' xmlns="[^"]*"|</?semantics>|<annotation.*?</annotation>|<mspace></mspace>', re.S
)
BASE = '<span class="katex-base">'
LAST = '<span class="katex"><span class="katex-html" aria-hidden="true">'
logger = logging.getLogger(__name__)


@functools.cache
def engine():
    katex = MiniRacer()
    atexit.register(katex.close)  # the end of the interpreter can wait for it for ever
    katex.eval(KATEX.read_text(encoding="utf8"))
    return katex


@functools.cache
def rendered(latex, display):
    """Return the HTML of a formula and its plain text."""
    options = {"displayMode": display, "strict": "error"}
    latex = re.sub(r"(\\q?quad)\b", r"\1\\allowbreak ", latex)  # lines break there as well
    html = engine().call("katex.renderToString", latex, options)
    start, end = html.index("<math"), html.index("</math>") + len("</math>")
    math = SUPERFLUOUS.sub("", html[start:end])
    text = plain(ElementTree.fromstring(math)).strip()
    math = math.replace("<math", f"<math alttext={quoteattr(text)}", 1)  # for the search
    return html[:start] + math + html[end:], text


def plain(element):
    """Return what MathML says as plain text."""
    parts = [plain(child) for child in element]
    match element.tag:
        case "mfrac":
            return "/".join(map(in_brackets, parts))
        case "msqrt":
            return "√" + in_brackets("".join(parts))
        case "msub" | "munder":
            return "_".join((parts[0], in_brackets(parts[1])))
        case "msup":
            return parts[0] + (
                parts[1] if parts[1].strip("′") == "" else "^" + in_brackets(parts[1])
            )
        case "msubsup" | "munderover":
            return f"{parts[0]}_{in_brackets(parts[1])}^{in_brackets(parts[2])}"
        case "mover":
            return parts[0]
        case "mtr":
            return " ".join(parts) + "; "
        case "mspace":
            return " " if "width" in element.attrib else ""
    own = (element.text or "").replace("\N{FUNCTION APPLICATION}", " ").replace("\xa0", " ")
    return re.sub(r"\s+", " ", own + "".join(parts))


def in_brackets(text):
    return text if re.fullmatch(r"\w*|.", text) else f"({text})"


def read(app, doctree):
    """Set every formula of a page, and let its plain text stand in the tree."""
    for node in list(doctree.findall(is_math)):
        node["latex"] = latex = node.astext()
        try:
            _, text = rendered(latex, isinstance(node, nodes.math_block))
        except JSEvalException as error:
            message = re.search(r"KaTeX parse error: .*", str(error))
            logger.warning("%s", message[0] if message else error, location=node)
            continue
        if isinstance(node, nodes.math):
            take_marks(node)
        text = node.get("before", "") + text + node.get("after", "")
        node.children = []
        node += nodes.Text(text)


def is_math(node):
    return isinstance(node, nodes.math | nodes.math_block)


def take_marks(math):
    """Let a formula take the brackets and stops that touch it, for no line may part them."""
    line, at = math.parent, math.parent.index(math)
    before, after = line[at - 1 : at], line[at + 1 : at + 2]
    if after and isinstance(after[0], nodes.Text) and (mark := CLOSING.match(after[0])[0]):
        line[at + 1] = nodes.Text(after[0][len(mark) :])
        math["after"] = mark
    if before and isinstance(before[0], nodes.Text) and (mark := OPENING.search(before[0])):
        line[at - 1] = nodes.Text(before[0][: mark.start()])
        math["before"] = mark[0]


def visit_display(self, node):
    latex = node.get("latex", node.astext())
    if node["number"]:
        latex += rf"\tag{{{get_node_equation_number(self, node)}}}"
    self.body.append(self.starttag(node, "div", CLASS="math"))
    self.body.append(f"{html_of(self, latex, True)}</div>\n")
    raise nodes.SkipNode


def visit_inline(self, node):
    html = html_of(self, node.get("latex", node.astext()), False)
    before, after = (self.encode(node.get(side, "")) for side in ("before", "after"))
    # A line may break where two bases meet: the marks share a box with the first, or the last.
    last = html.rfind(BASE)
    if after and last > html.find(BASE):
        html, after = html[:last] + "</span></span>", LAST + html[last:] + after
        after = f'<span class="together">{after}</span>'
        if before:
            html = f'<span class="together">{before}{html}</span>'
    elif before or after:
        html, after = f'<span class="together">{before}{html}{after}</span>', ""
    self.body.append(html + after)
    raise nodes.SkipNode


def html_of(self, latex, display):
    try:
        return rendered(latex, display)[0]
    except JSEvalException:  # `read` has warned
        return self.encode(latex)


def setup(app):
    app.add_html_math_renderer("katex", (visit_inline, None), (visit_display, None))
    app.connect("doctree-read", read, priority=300)  # before titles are collected
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
