"""Read the exercises of a chapter once, for whoever makes something of them.

Each is written into `_build/exercises/CHAPTER.json`: what it asks, in plain Markdown as in the
notebooks to take home; what is handed in, by name; the statements of the chapter that an answer
needs, and those that its check needs; the answer; and the passages that variants and hidden cases
change, which `book/course/variants` lists. The course is made from these files.
"""

import ast
import json
import re
import tomllib
from pathlib import Path

import live_cells
from docutils import nodes
from mistakes import CLASS
from slices import Statement, joined, needed, statements_of, used_of
from sphinx.errors import ExtensionError

FOLDER = "exercises"
PASSAGES = "book/course/variants"
CHANGED = {"variant": ("text", "check", "block", "answer"), "sizes": ("check", "block")}
"""Which parts of an exercise the passages of each kind stand in."""

PREFIX = re.compile(r"^((\*[\w-]+\*|\*?\d+ minutes\*?)( ·)?\s*)+")
"""Level and minutes, before the text of an exercise."""


def write_exercises(app, docname: str, doctree, record, cells) -> None:
    """Write the exercises of a chapter beside the site."""
    chapter = {"chapter": Path(docname).name, "title": doctree.next_node(nodes.title).astext()}
    chapter["exercises"] = described(*read(doctree, record, cells))
    path = Path(app.srcdir, PASSAGES, f"{chapter['chapter']}.toml")
    if path.exists():
        add_passages(chapter["exercises"], tomllib.loads(path.read_text("utf8")), path.name)
    folder = Path(app.outdir).parent / FOLDER
    folder.mkdir(exist_ok=True)
    text = json.dumps(chapter, indent=1, ensure_ascii=False)
    (folder / f"{chapter['chapter']}.json").write_text(text + "\n", encoding="utf8")


def add_passages(exercises: list[dict], tables: dict, file: str) -> None:
    """Give exercises the passages that variants and hidden cases change, from a file of tables.

    Raises
    ------
    ExtensionError
        If the file names an exercise that the chapter does not have, or a passage that the
        exercise does not say.
    """
    by_label = {exercise["label"]: exercise for exercise in exercises}
    for label, kinds in tables.items():
        if label not in by_label:
            raise ExtensionError(f"{PASSAGES}/{file}: the chapter has no exercise {label!r}")
        for kind, passages in kinds.items():
            said = [by_label[label][part] for part in CHANGED[kind]]
            for old in passages:
                if not any(old in part for part in said):
                    raise ExtensionError(
                        f"{PASSAGES}/{file}: exercise {label!r} does not say {old!r} any more, "
                        f"which stands under [{label}.{kind}]"
                    )
        by_label[label] |= kinds


def read(doctree, record, cells) -> tuple[list[dict], list[list[str]]]:
    """Return the exercises of a page, and for each the chapter's cells that stand before it.

    What stands in a solution belongs to it alone. `cells` is the `Cells` of the page.
    """
    found, before, chapter, current = [], [], [], None
    for node in doctree.findall():
        kind = type(node).__name__
        if kind == "exercise_enumerable_node":
            current = _asked(node, cells)
            found.append(current)
            before.append(list(chapter))
        elif kind == "solution_node" and current:
            current["explanation"] = _words(node.children[1:], cells)
            current["solution"] = [_source(cell, record) for cell in node.findall(_is_cell)]
            current = None
        elif kind == "dropdown_main" and current and CLASS not in node["classes"]:
            current["hints"].append("\n\n".join(filter(None, map(cells.block, node.children[1:]))))
        elif _is_cell(node) and not _in_solution(node):
            (current["checks"] if current else chapter).append(_source(node, record))
            if current:
                chapter.append(_source(node, record))  # a later exercise may need it
    return found, before


def _asked(node, cells) -> dict:
    title, *rest = node.children
    text = "\n\n".join(filter(None, map(cells.block, rest)))
    badges = [part.astext() for part in node.findall() if type(part).__name__ == "sd_badge"]
    minutes = re.search(r"(\d+) minutes", text)
    return {
        "label": node["label"].removeprefix("exercise-"),
        "number": cells.number(node),
        "title": cells.inline(title).strip().removeprefix("(").removesuffix(")"),
        "level": badges[0].strip(),
        "minutes": int(minutes[1]) if minutes else 0,
        "text": PREFIX.sub("", text),
        "words": [word.astext() for word in node.findall(nodes.literal)],
        "blocks": [block.astext() for block in node.findall(nodes.literal_block)],
        "hints": [],
        "checks": [],
        "solution": [],
        "explanation": "",
    }


def _words(parts, cells) -> str:
    """Return what stands beside the cells of a solution."""
    found = []
    for part in parts:
        if isinstance(part, nodes.section):
            found.append(_words(part.children, cells))
        elif not _is_cell(part):
            found.append(cells.block(part))
    return "\n\n".join(filter(None, found))


def _is_cell(node) -> bool:
    return isinstance(node, nodes.container) and node.get("nb_element") == "cell_code"


def _in_solution(node) -> bool:
    while node is not None:
        if type(node).__name__ == "solution_node":
            return True
        node = node.parent
    return False


def _source(cell, record) -> str:
    return record.cells[cell["cell_index"]].source


def described(exercises: list[dict], before: list[list[str]]) -> list[dict]:
    """Return the exercises with their code sorted: given, answer, and check."""
    return [_sorted(exercise, cells) for exercise, cells in zip(exercises, before, strict=True)]


def _sorted(asked: dict, cells: list[str]) -> dict:
    chapter = statements_of(cells)
    own, blocks = statements_of(asked["checks"]), statements_of(asked["blocks"])
    solution = statements_of(asked["solution"])
    calls, names, solution = _calls(asked, [*chapter, *own], solution, blocks)
    answer, _ = needed(solution, names)
    everything, missing = needed([*chapter, *own, *answer], names)
    inside = {id(s) for s in answer}
    given = [s for s in everything if id(s) not in inside]
    call_names = {n for call in calls for n in _read(call)}
    wanted = (call_names | {n for s in blocks for n in s.reads | s.later}) - set(names)
    wanted -= {n for s in blocks for n in s.binds}
    extra = [s for s in solution if not s.binds & set(names)]
    check, lacks = needed([*chapter, *own, *extra], wanted)
    heads = live_cells.heads(joined(answer))
    stub = "\n\n\n".join(heads[name] for name in names if name in heads)
    plain = "\n".join(f"{name} = ..." for name in names if name not in heads)
    kept = ("label", "number", "title", "level", "minutes", "text", "hints", "explanation")
    return {
        **{key: asked[key] for key in kept},
        "names": names,
        "calls": calls,
        "given": joined(given),
        "stub": "\n\n\n".join(filter(None, [stub, plain])),
        "answer": joined(answer),
        "check": joined(check),
        "block": "\n".join(s.source for s in blocks) if not calls else "",
        "uses": sorted(used_of([*given, *answer], "attnbook")),
        "missing": sorted(missing | lacks) if names else [],
    }


def _read(expression: str) -> set[str]:
    (statement,) = statements_of([expression])
    return set(statement.reads | statement.later)


def _calls(
    asked: dict, known: list[Statement], solution: list[Statement], blocks: list[Statement]
) -> tuple[list[str], list[str], list[Statement]]:
    """Return the calls that check an answer, the names handed in, and the code of the answer.

    The check of an exercise is what its solution calls: a check of the package or one of the
    chapter, the first time each, and else the assertions of its text. What is passed is what is
    handed in; numbers that the solution writes into the call get the names of the parameters.
    """
    checks = {s.node.name: s.node for s in known if isinstance(s.node, ast.FunctionDef)}
    calls, names, rest, seen = [], [], [], set()
    bound = set().union(*(s.binds for s in solution), ())
    in_block = {ast.dump(s.node) for s in blocks}
    for statement in solution:
        found = [c for c in ast.walk(statement.node) if isinstance(c, ast.Call)]
        found = [c for c in found if _checked_by(c, checks) and c.args]
        if not found or not isinstance(statement.node, (ast.Expr, ast.Assign)):
            if ast.dump(statement.node) not in in_block:
                rest.append(statement)
            continue
        for call in found:
            function = ast.unparse(call.func)
            if function in seen or any(isinstance(a, ast.Lambda) for a in call.args):
                continue
            seen.add(function)
            own = checks.get(function)
            handed, assigned = _handed_in(call, own, bound)
            names += [name for name in handed if name not in names]
            rest += statements_of(assigned)
            own_names = assigned or own is not None
            arguments = [ast.Name(name) for name in handed] if own_names else call.args
            calls.append(ast.unparse(ast.Call(call.func, arguments, call.keywords)))
    if not calls and blocks:
        text = " ".join([*asked["words"], *asked["blocks"]])
        names = sorted(
            {name for s in solution for name in s.binds if re.search(rf"\b{name}\(", text)}
            & {name for s in blocks for name in s.reads | s.later}
            - {name for s in blocks for name in s.binds}
        )
    return calls, names, rest


def _checked_by(call: ast.Call, checks: dict) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id.startswith("check_") and function.id in checks
    return isinstance(function, ast.Attribute) and ast.unparse(function.value) == "check"


def _handed_in(call: ast.Call, own: ast.FunctionDef | None, bound: set[str]):
    """Return the names of what is passed, and assignments for what the call holds itself."""
    if own is None:  # a check of the package takes the answer first
        (first, *_) = call.args
        return ([first.id] if isinstance(first, ast.Name) and first.id in bound else []), []
    parameters = [a.arg for a in (*own.args.posonlyargs, *own.args.args)]
    if own.args.vararg:
        parameters += [f"answer_{i + 1}" for i in range(len(parameters), len(call.args))]
    handed, assigned = [], []
    for argument, parameter in zip(call.args, parameters, strict=False):
        if isinstance(argument, ast.Name) and argument.id in bound:
            handed.append(argument.id)
        else:
            handed.append(parameter)
            assigned.append(f"{parameter} = {ast.unparse(argument)}")
    return handed, assigned
