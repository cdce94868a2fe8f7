"""Mend the markup that other extensions write."""

from docutils import nodes

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


def setup(app):
    app.connect("doctree-read", mend_boxes, priority=400)  # before sections are numbered
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
