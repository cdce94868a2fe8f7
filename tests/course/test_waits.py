"""No answer keeps the grader waiting: each is ended by a limit, and the next one is marked."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cases import every_day

SENDS = """
import json, os, stat, struct, sys, threading, time

def message(value):
    text = json.dumps(value).encode()
    return struct.pack("<QQ", len(text), 0) + text

CALL = message({"dict": [["call", 0], ["given", {"list": [{"list": [1.0] * 500}]}],
                         ["options", {"dict": []}]]})

def write(data):
    for line in range(3, 12):
        try:
            if stat.S_ISFIFO(os.fstat(line).st_mode):
                while data:
                    data = data[os.write(line, data):]
                return
        except OSError:
            continue

def read():
    for line in range(3, 12):
        try:
            if stat.S_ISFIFO(os.fstat(line).st_mode):
                os.read(line, 2**16)
        except OSError:
            continue

def nap(seconds):
    threading.Event().wait(seconds)
"""

ENDLESS = {
    "floods and never reads": "while True:\n    write(CALL)",
    "floods and never reads, without a reply": "while True:\n    write(message({'dict': []}))",
    "floods and reads": "threading.Thread(target=lambda: [read() for _ in iter(int, 1)]).start()\n"
    "while True:\n    write(CALL)",
    "reads nothing": "write(CALL)\nnap(1e6)",
    "a byte now and then": "write(struct.pack('<QQ', 10**6, 0))\n"
    "while True:\n    write(b' ')\n    nap(0.02)",
    "a byte now and then, computing": "write(struct.pack('<QQ', 10**6, 0))\n"
    "while True:\n    write(b' ')\n    nap(0.1)\n    sum(range(10**5))",
    "half a message": "write(CALL[:30])\nnap(1e6)",
    "half a head": "write(CALL[:3])\nnap(1e6)",
    "a huge line": "write(struct.pack('<QQ', 2**62, 0))\nwhile True:\n    write(b' ' * 2**16)",
    "many large lines": "line = b'[' + b'1,' * (2**22 - 3) + b'1]'\n"
    'line = b\'{"dict": [["call", {"list": \' + line[:2**23 - 64] + b\'1]}]]}\'\n'
    "while True:\n    write(struct.pack('<QQ', len(line), 0) + line)",
    "many arrays": 'line = b\'{"array": ["|u1", [100000000], false]}\'\n'
    "while True:\n    write(struct.pack('<QQ', len(line), 10**8) + line + bytes(10**8))",
    "deep": "line = b'{\"list\": [' * 10**5\n"
    "write(struct.pack('<QQ', len(line), 0) + line)\nnap(1e6)",
    "calls without end": "import attnbook as ab\nwhile True:\n    ab.softmax(np.ones(3))",
    "waits between its calls": "import attnbook as ab\n"
    "while True:\n    nap(0.05)\n    ab.softmax(np.ones(3))",
}

OFTEN = ("floods and reads", "a byte now and then", "half a message", "many arrays")
"""One that sends, one that trickles, one that stops, and one that is large."""

SCRIPT = """
import json, resource, sys, time
sys.path[:0] = sys.argv[1:]
from samples import SHARES
from course import judge, session
from course.parents import parents
session.IDLE_SECONDS = 1.0
with parents() as start:
    for source in [SHARES.answer, *json.load(sys.stdin)]:
        before = resource.getrusage(resource.RUSAGE_SELF)
        mark = judge.mark(SHARES, source, "s", start, session.Limits(2, 1024))
        after = resource.getrusage(resource.RUSAGE_SELF)
        again = judge.mark(SHARES, SHARES.answer, "s", start, session.Limits(2, 1024))
        used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        grown = (after.ru_maxrss - before.ru_maxrss) / 1024
        print(json.dumps([mark.share, mark.mistakes, again.share, used, grown]), flush=True)
"""


TRIED = every_day(OFTEN, ENDLESS)


@pytest.fixture(scope="module")
def told():
    """Return what became of each answer and of the next one; of those that came before a hang."""
    tests = Path(__file__).parent
    command = [sys.executable, "-c", SCRIPT, str(tests), str(tests.parent)]
    sources = json.dumps([SENDS + ENDLESS[name] for name in TRIED])
    try:
        done = subprocess.run(command, input=sources, capture_output=True, text=True, timeout=300)
        assert not done.returncode, done.stderr
        text = done.stdout
    except subprocess.TimeoutExpired as late:
        text = (late.stdout or b"").decode()
    return dict(zip(["right", *TRIED], map(json.loads, text.splitlines()), strict=False))


def test_the_right_answer_is_right(told):
    assert told["right"][:3] == [1, [], 1]


@pytest.mark.parametrize("name", TRIED)
def test_an_answer_that_never_ends_is_ended_and_the_next_one_marked(name, told):
    assert name in told, "the grader waits"
    share, mistakes, again, used, grown = told[name]
    assert share == 0
    assert mistakes[0] in ("waits", "hangs", "no answer", "not handed in")
    assert again == 1
    assert used < 8  # seconds of the grader's own computing, where an answer has two
    assert grown < 600  # megabytes
