"""Cells that run in the page, in Chromium and without a network."""

import functools
import hashlib
import html
import http.server
import json
import os
import re
import shutil
import threading
from pathlib import Path

import nbformat
import pytest
from cases import load
from visits import COLOURS, PHONE, SITE, WIDE, Visit, skip_unless

pytestmark = pytest.mark.site

ROOT = Path(__file__).parents[2]
SHORTEST = "distributed"
ANSWER = "answer-exercise-distributed-tree"
CHAPTERS = sorted(
    path.stem for path in (ROOT / "book").glob("*.md") if "## Put it back" in path.read_text("utf8")
)
SECONDS = 600  # for one cell on a busy machine: a limit of what hangs, no measure
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "attnbook")


def live_module():
    """Return the extension that puts live cells into the site."""
    return load(ROOT / "book" / "_ext" / "live.py")


gather = load(ROOT / "book" / "live" / "gather.py")
PLACE = gather.PINNED["place"]


@pytest.fixture(scope="session")
def pyodide():
    """Return the folder of Pyodide's files, gathered once for all checkouts."""
    folder = CACHE / f"pyodide-{gather.PINNED['version']}"
    if gather.missing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            gather.from_packages(folder)
        except Exception as error:
            skip_unless(["ATTNBOOK_REQUIRE_SITE"], f"Pyodide's files cannot be had: {error!r}")
    return folder


class Reader(Visit):
    """A reader of one chapter. What comes from Pyodide's place is answered from `folder`."""

    def __init__(self, browser, base, folder, chapter, place="book"):
        self.loaded, self.folder = [], folder
        super().__init__(browser, base, WIDE, height=400)  # so that little is painted
        self.tab.set_default_timeout(SECONDS * 1000)
        self.tab.route(f"{PLACE}**", self._answer)
        self.tab.goto(f"{base}/{place}/{chapter}.html", wait_until="load")
        self.unfold()

    def _answer(self, route):
        path = self.folder / route.request.url.removeprefix(PLACE)
        kinds = {".wasm": "application/wasm", ".mjs": "text/javascript"}
        kind = kinds.get(path.suffix, "application/octet-stream")
        route.fulfill(path=path, content_type=kind, headers={"access-control-allow-origin": "*"})

    def _request(self, request):
        if request.url.startswith(PLACE):
            self.loaded.append(request.url)
        else:
            super()._request(request)

    def cell(self, name):
        return self.tab.locator(f"#{name}")

    def cells(self, kind=":not(.answer)"):
        return self.tab.evaluate(
            "kind => [...document.querySelectorAll(`.cell.live${kind}`)].map(cell => cell.id)", kind
        )

    def unfold(self):
        self.tab.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")

    def press(self, name, button="Run"):
        tool = self.cell(name).locator(f".live-tools button:text-is('{button}')")
        tool.evaluate("button => button.click()")

    def wait(self, name):
        busy = f"!document.getElementById('{name}').classList.contains('live-busy')"
        assert self.until(busy, SECONDS)

    def run(self, name):
        self.press(name)
        self.wait(name)
        return self.output(name)

    def output(self, name):
        shown = self.cell(name).locator(".live-output")
        if not shown.count():
            return ""
        shown.scroll_into_view_if_needed()  # what is far away has no layout, and so no text
        return shown.inner_text() or shown.text_content()

    def write(self, name, text):
        """Write into the editor of a cell as a reader does: select all, paste."""
        cell = self.cell(name)
        if not cell.locator(".cm-content").count():
            self.press(name, "Edit")
        cell.locator(".cm-content").focus()
        self.tab.keyboard.press("Control+a")
        self.tab.keyboard.insert_text(text)

    def written(self, name):
        """Return what stands in the editor of a cell, line by line, laid out or not."""
        return "\n".join(self.cell(name).locator(".cm-line").all_text_contents())

    def title(self, name):
        """Return the title of the exercise that an answer belongs to."""
        title = self.tab.locator(f"#{name.removeprefix('answer-')} .admonition-title")
        return title.first.text_content()

    def said(self):
        return self.tab.locator(".live-foot p").text_content()

    def close(self):
        self.tab.close()


@pytest.fixture
def open_chapter(browser, server, pyodide):
    readers = []

    def open_chapter(chapter, **options):
        readers.append(Reader(browser, server, pyodide, chapter, **options))
        return readers[-1]

    yield open_chapter
    for reader in readers:
        reader.close()


def words(text):
    """Return a text as words, without what the page or the browser adds."""
    return " ".join(text.replace("Copy to clipboard", "").split())


def recorded(chapter):
    """Return the tags of the code cells of a record by their source."""
    notebook = nbformat.read(ROOT / "book" / f"{chapter}.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return {cell.source.strip(): cell.metadata.get("tags", []) for cell in cells}


def solutions(chapter):
    """Return the solutions of a chapter that are code: the name of the answer's cell, the code."""
    text = (ROOT / "book" / f"{chapter}.md").read_text("utf8")
    pattern = r"```\{solution-start\} (\S+)\n.*?\{code-cell\} ipython3\n(.*?)```"
    for label, code in re.findall(pattern, text, re.S):
        yield f"answer-{label}", re.sub(r"\A---\n.*?---\n|\A(:.*\n)+", "", code, flags=re.S)


def in_place_of(stub, code):
    """Return a solution with the checks of the stub, which follow its empty functions."""
    return f"{code.rstrip()}\n\n\n{stub.rpartition(chr(10) * 3)[2]}"


def run_cells(reader, chapter, most=None):
    """Each live cell, or so many of them, gives what its record has."""
    records, wrong, names = recorded(chapter), {}, reader.cells()
    for name in names[:most]:
        cell = reader.cell(name)
        tags = records[cell.locator(".cell_input pre").first.text_content().strip()]
        stored = cell.locator(".cell_output")
        old = words(stored.first.text_content()) if stored.count() else ""
        pictures = stored.locator("img").count()
        reader.run(name)
        shown = cell.locator(".live-output")
        new, drawn = words(shown.text_content()), shown.locator("img").count()
        if "nbval-ignore-output" not in tags and (new, drawn) != (old, pictures):
            wrong[name] = f"{new[-1500:]!r}, {drawn} pictures; recorded {old[:1500]!r}, {pictures}"
        if "Traceback" in new and "raises-exception" not in tags:
            break  # what follows needs it
    assert wrong == {}
    assert len(names) >= 10


def solve_an_exercise(reader, chapter):
    """An exercise, wrong and right; what `is_kept` needs after the page is loaded once more."""
    stubs = {name: reader.cell(name).locator("pre").first for name in reader.cells(".answer")}
    stubs = {name: stub.text_content() for name, stub in stubs.items()}
    found = [(name, code) for name, code in solutions(chapter) if "check." in stubs.get(name, "")]
    if not found:
        return None
    name, code = found[0]
    code = in_place_of(stubs[name].strip(), code)
    stub = reader.run(name)
    assert {"✗", "Traceback"} & set(stub.split()), stub
    assert "done" not in reader.title(name)
    reader.write(name, code)
    right = reader.run(name)
    assert "✓ done" in reader.title(name), right
    assert "Note: no thread" not in right
    return name, code


def is_kept(reader, name, code):
    """The browser keeps the answer and that it is right."""
    reader.tab.reload(wait_until="load")
    assert "✓ done" in reader.title(name)
    kept = reader.cell(name).locator(".cell_input pre").first.text_content()
    assert kept.strip() == code.strip()


@pytest.mark.weekly
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_as_a_reader_goes_through_it(chapter, open_chapter):
    reader = open_chapter(chapter)
    run_cells(reader, chapter)
    solved = solve_an_exercise(reader, chapter)
    if solved:
        is_kept(reader, *solved)
    assert reader.problems == []


def test_a_reader_goes_through_a_chapter(open_chapter, tmp_path):
    """All that a reader does, one thing after the other: to load Python takes many seconds."""
    reader = open_chapter(SHORTEST)
    nothing_is_loaded_before_run_and_then_the_named_files_alone(reader)
    a_cell_that_needs_others_says_so_and_runs_them(reader)
    run_cells(reader, SHORTEST, 7)
    a_figure_runs_code_between_cells(reader)
    names_stay_errors_show_and_reset_brings_the_record_back(reader)
    the_keyboard_alone_edits_and_runs(reader)
    for kind in ("py", "ipynb"):
        answers_go_out_and_come_in(reader, kind)
    solved = solve_an_exercise(reader, SHORTEST)
    reader.write("cell-4", "print('x' * 300)  # " + "wide, " * 40 + "\n1 / 0")
    assert "ZeroDivisionError" in reader.run("cell-4")
    assert reader.problems == []
    stop_ends_an_endless_loop(reader)
    # Python asks for an address that the page has withdrawn, and so learns that it is to stop
    reader.problems[:] = [x for x in reader.problems if not x.startswith("failed load: blob:")]
    reader.tab.get_by_role("button", name="Restart").click()
    assert "Restarted" in reader.said()
    live_cells_break_no_rule_and_no_width(reader, ["cell-1", "cell-4", ANSWER])
    is_kept(reader, *solved)
    assert reader.problems == []
    numpy = next(name for name in gather.PINNED["files"] if name.startswith("numpy"))
    a_file_with_other_bytes_is_refused(reader, numpy, tmp_path)


def a_figure_runs_code_between_cells(reader):
    run = """async text => {
        const guest = { text, label: "A figure", told: "", mark() {}, begin() {}, end() {} };
        guest.show = message => guest.told += message.text;
        const end = await window.attnbookPython.run(guest);
        return [end.ok, guest.told];
    }"""
    assert reader.tab.evaluate(run, "import cheating, own_attention\nprint([1])") == [True, "[1]\n"]
    ok, told = reader.tab.evaluate(run, "1 / 0")
    assert not ok
    assert "ZeroDivisionError" in told


def nothing_is_loaded_before_run_and_then_the_named_files_alone(reader):
    assert reader.loaded == []
    reader.run("cell-1")
    names = {url.removeprefix(PLACE) for url in reader.loaded}
    assert names == set(gather.PINNED["files"])
    assert reader.problems == []


def a_cell_that_needs_others_says_so_and_runs_them(reader):
    reader.write("cell-2", "print('instead')")
    reader.write("cell-3", "several = 3")
    reader.write("cell-4", "several + 1")
    assert "Cells above have not run" in reader.run("cell-4")
    reader.press("cell-4", "Run all above")
    assert reader.until("!document.querySelector('.live-busy')", SECONDS)
    assert reader.output("cell-2").strip() == "instead"
    assert reader.run("cell-4").strip() == "4"
    for name in ("cell-2", "cell-3", "cell-4"):
        reader.press(name, "Reset")


def names_stay_errors_show_and_reset_brings_the_record_back(reader):
    reader.write("cell-4", "number = 6 * 7\nnumber")
    assert reader.run("cell-4").strip() == "42"
    reader.write("cell-3", "print('before')\n1 / 0")
    output = reader.run("cell-3")
    assert output.startswith("before")
    assert "ZeroDivisionError: division by zero" in output
    assert "line 2" in output
    assert "kernel.py" not in output
    reader.write("cell-3", "number")
    assert reader.run("cell-3").strip() == "42"
    reader.press("cell-3", "Reset")
    assert "RunningSoftmax" in reader.written("cell-3")
    assert "[[27.0]]" in reader.cell("cell-3").locator(".cell_output").text_content()


def the_keyboard_alone_edits_and_runs(reader):
    runner = reader.cell("cell-7").locator(".live-run")
    keys = reader.tab.keyboard
    runner.focus()
    keys.press("ArrowRight")
    keys.press("ArrowRight")
    assert reader.tab.evaluate("document.activeElement.textContent") == "Edit"
    keys.press("Enter")
    assert reader.until("document.activeElement.classList.contains('cm-content')")
    keys.press("Control+a")
    keys.type("def f(x):\nreturn x + 1")  # the editor indents
    assert reader.written("cell-7") == "def f(x):\n    return x + 1"
    keys.press("Control+z")
    assert reader.written("cell-7") != "def f(x):\n    return x + 1"
    keys.press("Control+a")
    keys.insert_text("20 + 3")
    keys.press("Shift+Enter")
    reader.wait("cell-7")
    assert reader.output("cell-7").strip() == "23"
    keys.press("Escape")
    keys.press("Tab")
    assert reader.tab.evaluate("document.activeElement.closest('.cm-editor')") is None


def answers_go_out_and_come_in(reader, kind):
    reader.write(ANSWER, "def tree(parts):\n    return 'mine'  # ∑")
    with reader.tab.expect_download() as download:
        reader.tab.get_by_role("button", name=f"Export .{kind}").click()
    path = download.value.path()
    file = {"name": f"answers.{kind}", "mimeType": "text/plain", "buffer": Path(path).read_bytes()}
    if kind == "ipynb":
        nbformat.validate(nbformat.reads(file["buffer"].decode(), as_version=4))
    else:
        compile(file["buffer"].decode(), "answers.py", "exec")
    reader.press(ANSWER, "Reset")
    assert "mine" not in reader.written(ANSWER)
    reader.tab.locator("input[type=file]").set_input_files([file])
    reader.cell(ANSWER).locator(".cm-content").get_by_text("mine").wait_for()


def stop_ends_an_endless_loop(reader):
    reader.write("cell-5", "print('begins')\nwhile True:\n    pass")
    reader.press("cell-5")
    reader.cell("cell-5").locator(".live-output").get_by_text("begins").wait_for()
    reader.press("cell-5", "Stop")  # the page answers
    reader.wait("cell-5")
    assert "All names are still there" in reader.output("cell-5")


def a_file_with_other_bytes_is_refused(reader, name, folder):
    """Where no Python is there, so that it is loaded; the file would do but for its digest.

    The browser tells of this file, and later of all that are no longer wanted, as problems.
    """
    whole = reader.folder
    for path in whole.iterdir():
        (folder / path.name).symlink_to(path)
    (folder / name).unlink()
    (folder / name).write_bytes((whole / name).read_bytes() + b"\n")
    reader.folder = folder
    reader.run("cell-5")
    reader.folder = whole
    assert "could not be loaded" in reader.said()
    assert reader.cell("cell-5").locator(".live-output").count() == 0


def live_cells_break_no_rule_and_no_width(reader, cells):
    """Cells that ran; one shows an error, and more than the page is wide in editor and output."""
    too_wide = "Math.max(document.documentElement.scrollWidth - innerWidth, 0)"
    assert reader.tab.evaluate(too_wide) == 0
    reader.keep(", ".join(["h1", ".live-foot", *(f"#{cell}" for cell in cells)]))
    reader.resize(PHONE)
    assert reader.tab.evaluate(too_wide) == 0
    found = reader.violations()
    reader.go_dark()
    found += reader.violations(COLOURS)
    assert found == []


@pytest.mark.weekly
def test_after_stop_refusal_and_restart_the_page_goes_on(open_chapter, tmp_path):
    reader = open_chapter(SHORTEST)
    stop_ends_an_endless_loop(reader)
    # Python asks for an address that the page has withdrawn, and so learns that it is to stop
    reader.problems[:] = [x for x in reader.problems if not x.startswith("failed load: blob:")]
    reader.press("cell-5", "Reset")
    reader.tab.get_by_role("button", name="Restart").click()
    a_file_with_other_bytes_is_refused(reader, "pyodide.mjs", tmp_path)
    reader.write("cell-4", "kept = 'again'\nkept")
    assert reader.run("cell-4").strip() == "'again'"
    reader.tab.get_by_role("button", name="Restart").click()
    assert "Restarted" in reader.said()
    reader.write("cell-4", "kept")
    assert "NameError" in reader.run("cell-4")


@pytest.mark.weekly
def test_the_cell_of_the_first_page_needs_no_matplotlib_until_it_draws(open_chapter):
    reader = open_chapter("index")
    recorded = reader.cell("cell-1").locator(".cell_output").text_content()
    assert words(reader.run("cell-1")) == words(recorded)
    assert not [url for url in reader.loaded if "matplotlib" in url]
    reader.write("cell-1", "from matplotlib import pyplot\npyplot.plot([1, 2])")
    reader.run("cell-1")
    assert reader.cell("cell-1").locator(".live-output img").count() == 1
    assert reader.problems == []


def test_a_slow_cell_says_so_and_is_not_run_unasked(open_chapter):
    reader = open_chapter("backpropagation")
    slow = reader.tab.locator(".cell.live[class*=page-seconds]").first.get_attribute("id")
    number = int(slow.removeprefix("cell-"))
    told = reader.cell(slow).locator(".live-state").text_content()
    assert re.fullmatch(r"about \d+ s in a browser", told)
    reader.press(f"cell-{number + 3}", "Run all above")
    assert f"Cell {number} takes {told}. Press once more" in reader.said()
    assert reader.loaded == []
    assert reader.problems == []


@pytest.mark.weekly
def test_a_folder_of_the_site_needs_no_outside_request(open_chapter, pyodide, tmp_path, browser):
    """As `make book LIVE=folder` builds it: another place in the settings, none in the policy."""
    chapter = "single_head"
    page = (SITE / "book" / f"{chapter}.html").read_text("utf8")
    shutil.copytree(SITE / "_static", tmp_path / "_static")
    shutil.copytree(SITE / "_images", tmp_path / "_images")
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / f"{chapter}.html").write_text(page.replace(PLACE, ""), encoding="utf8")
    live = tmp_path / "_static" / "live"
    settings = json.loads((live / "settings.json").read_text("utf8"))
    live_module().copy_checked(settings["files"], pyodide, live / "pyodide")
    settings["place"] = "pyodide/"
    (live / "settings.json").write_text(json.dumps(settings), encoding="utf8")
    handler = functools.partial(Isolated, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{httpd.server_address[1]}"
        reader = Reader(browser, base, pyodide, chapter)
        reader.run("cell-1")
        assert "0.665" in reader.run("cell-4")
        assert reader.loaded == []
        reader.write("cell-4", "kept = 5\nprint('begins')\nwhile True:\n    pass")
        reader.press("cell-4")
        reader.cell("cell-4").locator(".live-output").get_by_text("begins").wait_for()
        reader.press("cell-4", "Stop")
        reader.wait("cell-4")
        assert "All names are still there" in reader.output("cell-4")
        # The same cell again, while the page still looks whether the first run has ended.
        reader.write("cell-4", "import time\ntime.sleep(2.5)\nkept")
        assert reader.run("cell-4").strip() == "5"
        assert reader.problems == []
        reader.close()
        httpd.shutdown()


class Isolated(http.server.SimpleHTTPRequestHandler):
    """A server whose pages may share memory with their workers, so a cell can be interrupted."""

    def end_headers(self):
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def log_message(self, *args):
        pass


def test_a_page_weighs_little_more():
    live = SITE / "_static" / "live"
    at_once = sum((live / name).stat().st_size for name in ("live.js", "live.css"))
    assert at_once <= 30_000
    digest = hashlib.sha256((ROOT / "book/live/live.js").read_bytes()).digest()
    assert hashlib.sha256((live / "live.js").read_bytes()).digest() == digest


def test_what_a_page_loads_has_its_digest_in_the_address():
    """So no browser takes an older file, which it has kept, for a new page."""
    live, page = SITE / "_static" / "live", (SITE / "book" / f"{SHORTEST}.html").read_text("utf8")
    wheels = json.loads((live / "settings.json").read_text("utf8"))["wheels"]
    data = json.loads(html.unescape(re.search(r'data-files="(.*?)"', page)[1]))
    for path, version in (file["url"].split("?v=") for file in [*wheels, *data]):
        assert version == hashlib.sha256((live / path).read_bytes()).hexdigest()[:8], path
    own = b"".join((live / name).read_bytes() for name in live_module().FETCHED)
    assert f'data-version="{hashlib.sha256(own).hexdigest()[:8]}"' in page


@pytest.mark.weekly
def test_a_cell_runs_on_a_slide(open_chapter):
    """After the cells that its slide does not show, whose names it needs."""
    reader = open_chapter("single_head", place="slides")
    assert reader.until("!!document.querySelector('.reveal.ready')")
    name = reader.tab.locator(".slides .cell.live:not([hidden])").last.get_attribute("id")
    place = (
        "[...document.querySelectorAll('.slides > section')].findIndex(s => s.querySelector('#%s'))"
    )
    slide = reader.tab.evaluate(place % name) + 1
    reader.tab.evaluate(f"location.hash = '/slide-{slide}'")
    assert reader.until(f"!!document.querySelector('section.present #{name}')")
    reader.press(name, "Run all above")
    reader.wait(name)
    assert "ROMEO" in reader.run(name)
    assert reader.problems == []
