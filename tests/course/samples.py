"""Small exercises as the site writes them down, and submissions that try what they must not."""

from pathlib import Path

import pytest

from course.exercises import Exercise

WRITTEN = Path(__file__).parents[2] / "_build/exercises"


def sample(label, **parts):
    """Return an exercise; what is not said is empty."""
    usual = {"title": "Sample", "level": "core", "minutes": 20, "text": "Write it."}
    return Exercise("sample", label, **{**usual, "hints": ["Think."], **parts})


WEIGHTS = sample(
    "weights",
    names=["my_weights"],
    calls=["check.attention_weights(my_weights)"],
    check="from attnbook import check",
    given="import math\nimport numpy as np",
    stub="def my_weights(query, key, mask=None):\n    ...",
    answer="""\
def my_weights(query, key, mask=None):
    scores = query @ np.matrix_transpose(key) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(top == -np.inf, 0, top))
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total == 0, 1, total)""",
)

SQUARES = sample(
    "squares",
    minutes=10,
    names=["squares"],
    calls=["check_squares(squares)"],
    check="""\
import numpy as np


def check_squares(squares):
    random = np.random.default_rng(3)
    x = random.normal(size=5)
    y = squares(np.arange(3.0))
    return [np.allclose(squares(x), x * x), y.shape == (3,), len(squares(x[:0])) == 0]""",
    given="import numpy as np",
    stub="def squares(x):\n    ...",
    answer="def squares(x):\n    return x * x",
)

PENCIL = sample(
    "pencil",
    minutes=5,
    names=["half", "pair"],
    calls=["check_pencil(half, pair)"],
    check="def check_pencil(half, pair):\n    return [half == 1 / 2, list(pair) == [1, 2]]",
    stub="half = ...\npair = ...",
    answer="half = 0.5\npair = (1, 2)",
)

SHARES = sample(
    "shares",
    names=["shares"],
    block="""\
s = np.random.default_rng(9).normal(size=20)
assert np.isclose(shares(s).sum(), 1)
assert shares(s).argmax() == s.argmax()""",
    check="import numpy as np",
    given="import numpy as np\nimport attnbook as ab",
    stub="def shares(s):\n    ...",
    answer="def shares(s):\n    return ab.softmax(2 * s)",
    uses=["softmax"],
)

NEAR = sample(
    "near",
    names=["means", "rows"],
    calls=["check_near(means)", "check_rows(rows)"],
    check="""\
import numpy as np


def check_near(means):
    x = np.random.default_rng(3).normal(size=(4, 3))
    return [not np.any(abs(means(x) - x.mean(axis=1)) > 1e-9)]


def check_rows(rows):
    x = np.random.default_rng(3).normal(size=(4, 3))
    return [np.allclose(rows(x), x[:2])]""",
    given="import numpy as np",
    answer="def means(x):\n    return x.mean(axis=1)\ndef rows(x):\n    return x[:2]",
)

BLANKS = ("np.nan", "np.full(4, np.nan)", "np.zeros((0, 1, 1))", "[]")
"""Results that the comparisons of `NEAR` let pass."""

OF_NOTEBOOKS = (
    *("None", "__import__('torch').full((4,), float('nan'))", "__import__('torch').zeros((0, 1))"),
    *("np.ma.masked_all(4)", "np.full(4, np.nan).astype(object)"),
)
"""More of them, which only a notebook can hand to its check."""

ESSAY = sample("essay", names=[], answer="", text="Say why.", explanation="Because.")

EXERCISES = [WEIGHTS, SQUARES, PENCIL, SHARES, ESSAY]
of_a_program = pytest.mark.parametrize(
    "exercise", EXERCISES[:4], ids=lambda exercise: exercise.label
)

NOTHING = "def my_weights(query, key, mask=None):\n    return query"


def with_lines(deed):
    """Return a program that does something with each line that its process may have."""
    tried = f"    try:\n        {deed}\n    except OSError:\n        pass\n"
    return f"import os\nfor line in range(3, 12):\n{tried}"


HOSTILE = {
    "is no Python": ("raises", "def ("),
    "loops": ("hangs", "def my_weights(query, key, mask=None):\n    while True:\n        pass"),
    "loops while it is read": ("hangs", "while True:\n    pass"),
    "sleeps": ("raises", "import time\ndef my_weights(q, k, mask=None):\n    time.sleep(1000)"),
    "takes memory": ("raises", "x = [bytearray(2**28) for _ in range(99)]"),
    "exits": ("exits", "import os\nos._exit(0)"),
    "raises SystemExit": ("raises", "raise SystemExit"),
    "crashes": ("crashes", "import ctypes\nctypes.string_at(0)"),
    "hands in the reference": (
        "not available",
        "import attnbook\nmy_weights = attnbook.attention_weights",
    ),
    "imports the reference": (
        "not available",
        "from attnbook.single_head.attention import attention_weights as my_weights",
    ),
    "imports it by another way": (
        "not available",
        "import importlib\n"
        "my_weights = importlib.import_module('attnbook.single_head').attention_weights",
    ),
    "calls it inside": (
        "raises",
        "def my_weights(query, key, mask=None):\n"
        "    import attnbook.single_head.attention as a\n"
        "    return a.attention_weights(query, key, mask)",
    ),
    "reads the package": (
        "raises",
        "text = open({package!r} + '/single_head/attention.py').read()\n"
        "space = {{}}\nexec(text, space)\nmy_weights = space['attention_weights']",
    ),
    "puts the package on the path": (
        "not available",
        "import sys\nsys.meta_path[:0] = sys.meta_path[1:]\n"
        "sys.path.insert(0, {package!r}.rpartition('/')[0])\n"
        "import builtins\nbuiltins.__import__ = builtins.__import__._import\n"
        "from attnbook import attention_weights as my_weights",
    ),
    "patches the check": (
        "wrong",
        f"from attnbook import check\ncheck.attention_weights = lambda f: True\n{NOTHING}",
    ),
    "patches NumPy": (
        "wrong",
        "np.allclose = np.isclose = np.array_equal = lambda *given, **options: True\n"
        "np.ndarray.__eq__ = None\n"
        "def my_weights(query, key, mask=None):\n    return query @ key.T",
    ),
    "returns what is equal to all": (
        "wrong",
        "class All:\n    def __eq__(self, other):\n        return True\n"
        "    shape = (3, 3)\n    dtype = 'float64'\n"
        "def my_weights(query, key, mask=None):\n    return All()",
    ),
    "writes a file": ("raises", "open({home!r} + '/written', 'w').write('x')"),
    "deletes a file": ("raises", "import os\nos.remove({home!r} + '/kept')"),
    "changes the rights of a file": ("raises", "import os\nos.chmod({home!r} + '/kept', 0)"),
    "reads a file": ("raises", "open({home!r} + '/kept').read()"),
    "opens a socket": ("raises", "import socket\nsocket.socket()"),
    "starts a process": ("raises", "import subprocess\nsubprocess.run(['true'])"),
    "forks for ever": ("raises", "import os\nwhile True:\n    os.fork()"),
    "ends its parent": ("raises", "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)"),
    "sends what is no message": (
        "no answer",
        with_lines("os.write(line, b'\\xff' * 64)") + NOTHING,
    ),
    "says that much will come": (
        "no answer",
        "import struct\n" + with_lines("os.write(line, struct.pack('<QQ', 2**40, 0))") + NOTHING,
    ),
    "closes its line and waits": (
        "exits",
        with_lines("os.close(line)")
        + "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
    ),
    "says that it is a passed report": (
        "wrong",
        "class Report:\n    passed, mistakes, began_right = True, (), True\n"
        "def my_weights(query, key, mask=None):\n    return Report()",
    ),
    "makes weights of what it likes": (
        "no answer",
        "import struct, json\n"
        "text = json.dumps({{'reference': [-1, {{'dict': [['class', 'Popen'], "
        "['fields', {{'dict': []}}]]}}]}}).encode()\n"
        + with_lines("os.write(line, struct.pack('<QQ', len(text), 0) + text)")
        + NOTHING,
    ),
    "looks for the answer in the frames": (
        "raises",
        "import sys\n"
        "def my_weights(query, key, mask=None):\n"
        "    frame, names = sys._getframe(), set()\n"
        "    while frame:\n        names |= set(frame.f_locals) | set(frame.f_globals)\n"
        "        frame = frame.f_back\n"
        "    assert not names & {{'expected', 'secret', 'seed', 'exercise', 'outcome'}}\n"
        "    raise KeyError('nothing')",
    ),
}
"""What a hostile answer does, the name of the mistake that it must have ("wrong" is any), and its
code, in which `package` and `home` are paths."""

NEEDS_LOCK = {
    *("sleeps", "reads the package", "puts the package on the path", "deletes a file"),
    *("changes the rights of a file", "reads a file", "opens a socket", "starts a process"),
    *("forks for ever", "ends its parent", "writes a file"),
}
"""What only the locks of Linux prevent."""
