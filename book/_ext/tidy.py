"""Mend the markup that other extensions write, and the HTML that is made of it."""

import functools
import re
from html import escape
from pathlib import Path

import imagesize
from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

BODIES = {"proof-content", "exercise-content", "solution-content"}


def mend_boxes(app, doctree):
    """Unnest theorems and exercises: each body is a section, all of them with one and the same id.

    A section would be numbered like a heading, and an id may occur once on a page.
    """
    for section in list(doctree.findall(nodes.section)):
        if section["ids"] and section["ids"][0] in BODIES:
            classes = section["classes"]
            section["ids"] = []
            section.replace_self(nodes.container("", *section.children, classes=classes))
    for proof in doctree.findall(nodes.admonition):
        if proof["ids"] == ["proof"]:
            proof["ids"] = []
            if "dropdown" in proof["classes"]:
                give_title(proof)


def give_title(proof):
    """Turn the words `Proof.` before the text into a title, which is what a reader unfolds."""
    text = next(proof.findall(nodes.Text))
    text.parent.replace(text, nodes.Text(text.removeprefix("Proof. ")))
    proof.insert(0, nodes.title("", "Proof"))


EMPTY_HEADER = re.compile(r"<th[^>]*>\s*(<p>\s*</p>)?\s*</th>")
PROMISE = "attention you can run, for people who know NumPy"
ROLES = re.compile(r' role="(doc-biblioentry|list)"')  # of a bibliography: the first is withdrawn
IMAGE = re.compile(r'<img(?=[^>]* src="[^"]*_images/([^"]+)")([^>]*?)\s*/?>')
PLAIN_CODE = re.compile(r'<span class="(?:n|nn|p|w)">([^<]*)</span>')  # which no style colours
SAME_NAME = '<summary aria-label="Toggle hidden content">'  # of all folds: what it shows is a name
COMPOUND = re.compile(r"\b(?:[A-Z][a-z]{2,}){2,}\b")  # not CuPy, which nobody looks up as "cu py"


def mend_page(app, pagename, templatename, context, doctree):
    """Mend the HTML of a page, and say in its head what it is about."""
    tree = context["generate_toctree_html"]
    context["generate_toctree_html"] = lambda *args, **kwargs: str(tree(*args, **kwargs)).replace(
        "<summary>", '<summary aria-label="The pages below">'
    )
    if doctree is None:
        return
    if pagename == app.config.root_doc:  # whose title is that of the site
        context |= {"title": f"{app.config.html_title}: {PROMISE}", "docstitle": ""}
    context["body"] = mended(app, context["body"])
    about = next((p.astext() for p in doctree.findall(nodes.paragraph)), "")
    if len(about) > 160:
        about = about[:160].rpartition(" ")[0] + " …"
    about = escape(about.replace("\n", " "))
    context["metatags"] += f'\n<meta name="description" content="{about}" />'


def mended(app, html):
    """Return HTML without what a reader must not meet, and with a frame around each picture."""
    html = EMPTY_HEADER.sub("<td></td>", html)
    if 'class="citation"' in html:
        html = ROLES.sub("", html)
    paths = {name: path for path, name in app.builder.images.items()}
    html = PLAIN_CODE.sub(r"\1", html)
    html = html.replace(SAME_NAME, "<summary>")
    return IMAGE.sub(lambda image: framed(app, paths, image), html)


def framed(app, paths, image):
    """Give a picture its size and a frame that can scroll, and let it load when it is near."""
    name, attributes = image.groups()
    width, height = imagesize.get(Path(app.srcdir, paths[name]))
    return (
        f'<span class="figure-frame" style="--width: {width}px">'
        f'<img{attributes} width="{width}" height="{height}" loading="lazy" decoding="async" />'
        "</span>"
    )


def read_once(app, env):
    """Let numbered references look their targets up in trees that are read once.

    Sphinx reads the whole page of the target again for each reference. It changes only those trees
    that it writes, and these it must read anew.
    """
    domain = env.domains["std"]
    resolve, read = domain._resolve_numref_xref, functools.cache(env.get_doctree)

    def resolve_with_cache(env, *args):
        fresh, env.get_doctree = env.get_doctree, read
        try:
            return resolve(env, *args)
        finally:
            env.get_doctree = fresh

    domain._resolve_numref_xref = resolve_with_cache


def note_titles(app, doctree):
    """Note the titles of a page's exercises for the pages that refer to them."""
    app.env.metadata[app.env.docname]["exercises"] = {
        node["label"]: node[0].astext().removeprefix("Exercise").strip(" ()")
        for node in doctree.findall()
        if type(node).__name__ == "exercise_enumerable_node"
    }


class NameExercises(SphinxPostTransform):
    """Name an exercise by its title, too, where the pages of the course refer to it."""

    default_priority = 15  # its number stands there

    def run(self, **options):
        if not self.env.docname.startswith("book/course/"):
            return
        titles = {}
        for page in self.env.metadata.values():
            titles |= page.get("exercises", {})
        for link in self.document.findall(nodes.reference):
            label = link.get("refuri", "").partition("#")[2]
            if label in titles:
                link += [nodes.Text(" "), nodes.emphasis("", titles[label])]


def name_parts(app, doctree, docname):
    """Let the search find FlashAttention by `flash attention`."""
    names = sorted(set(COMPOUND.findall(doctree.astext())))
    parts = " ".join(re.sub(r"(?<!^)(?=[A-Z])", " ", name) for name in names)
    doctree += nodes.meta(name="keywords", content=parts)


def setup(app):
    app.connect("doctree-read", note_titles)
    app.add_post_transform(NameExercises)
    app.connect("doctree-read", mend_boxes, priority=400)  # before sections are numbered
    app.connect("env-check-consistency", read_once)
    app.connect("doctree-resolved", name_parts)
    app.connect("html-page-context", mend_page, priority=900)  # after the theme
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
