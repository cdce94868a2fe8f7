"""Leave out of the built site what no page uses: rules of style sheets, and files of the theme.

A rule stays if each class and id that its selector names occurs as a word on a page or in a script.
"""

import re
import shutil
from pathlib import Path

import tinycss2
from sphinx.errors import ExtensionError

UNUSED = ("vendor/fontawesome", "locales")
# The theme measures each block of code and writes to it in turn, which lays out the page each time;
# attnbook.js measures once, and only what is near.
MEASURES = ',"complete"===document.readyState?T():window.addEventListener("load",T)'
NAME = re.compile(r"[.#]((?:[\w-]|\\.)+)")


def lighten(app, exception):
    if exception or app.builder.format != "html":
        return
    site, static = Path(app.outdir), Path(app.outdir, "_static")
    for folder in UNUSED:
        shutil.rmtree(static / folder, ignore_errors=True)
    for source_map in static.rglob("*.map"):
        source_map.unlink()
    theme = static / "scripts" / "pydata-sphinx-theme.js"
    script = theme.read_text("utf8")
    if MEASURES not in script:
        raise ExtensionError(f"{theme} has changed: it lacks {MEASURES}")
    theme.write_text(script.replace(MEASURES, ""), "utf8")
    words = set()
    for path in (*site.rglob("*.html"), *site.rglob("*.js")):
        words.update(re.findall(r"[\w-]+", path.read_text("utf8")))
    for path in static.rglob("*.css"):
        rules = tinycss2.parse_stylesheet(path.read_text("utf8"), True, True)
        path.write_text(used(rules, words), "utf8")


def used(rules, words):
    """Return those rules that can apply, as one text without comments and without long spaces."""
    kept = []
    for rule in rules:
        if rule.type == "qualified-rule":
            if selectors := used_selectors(rule.prelude, words):
                kept.append(f"{selectors}{{{short(rule.content)}}}")
        elif rule.type == "at-rule" and rule.lower_at_keyword in ("media", "supports"):
            inner = used(tinycss2.parse_rule_list(rule.content, True, True), words)
            if inner:
                kept.append(f"@{rule.at_keyword}{short(rule.prelude)}{{{inner}}}")
        else:
            kept.append(re.sub(r"\s+", " ", rule.serialize()))
    return "\n".join(kept)


def used_selectors(prelude, words):
    """Return the selectors of a list, parted by commas, whose names all occur among `words`."""
    selectors, start = [], 0
    ends = [i for i, token in enumerate(prelude) if token == ","]
    for end in (*ends, len(prelude)):
        selector = short(prelude[start:end]).strip()
        start = end + 1
        outside = re.sub(
            r":(not|is|where|has)\(.*\)", "", selector
        )  # `:is(.a, .b)` needs one alone
        if all(name.replace("\\", "") in words for name in NAME.findall(outside)):
            selectors.append(selector)
    return ",".join(selectors)


def short(tokens):
    tokens = (token for token in tokens if token.type != "comment")
    return re.sub(r"\s+", " ", tinycss2.serialize(tokens))


def setup(app):
    app.connect("build-finished", lighten)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
