"""Mend the markup that other extensions write."""

from docutils import nodes


def mend_theorems(app, doctree):
    """Unnest theorems: sphinx-proof writes each body as a section, all with one and the same id.

    A section would be numbered like a heading, and an id may occur once on a page.
    """
    for section in list(doctree.findall(nodes.section)):
        if section["ids"] == ["proof-content"]:
            section["ids"] = []
            section.replace_self(nodes.container("", *section.children))
    for proof in doctree.findall(nodes.admonition):
        if proof["ids"] == ["proof"]:
            proof["ids"] = []


def setup(app):
    app.connect("doctree-read", mend_theorems, priority=400)  # before sections are numbered
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
