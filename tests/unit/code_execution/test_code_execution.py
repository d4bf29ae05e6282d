"""Tests the sandbox for code answers: hostile answers neither pass nor do harm, and correct answers pass."""

import contextlib
import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from a2rl.code_execution import cell as plain
from a2rl.code_execution import pool as pool_module
from a2rl.code_execution.cell import CellLimits
from a2rl.code_execution.pool import CodeCase, CodePool, Outcome
from a2rl.core.errors import InfrastructureError
from a2rl.linux import landlock, seccomp

LIMITS = CellLimits(cpu_s=1, wall_s=2.5, memory=512 << 20)
TEST = """
def check(candidate):
    assert candidate(1, 2) == 3, "1 + 2"
    assert candidate(20, 22) == 42
    assert candidate([1], [2.5]) == [1, 2.5]
"""
RIGHT = "def add(a, b):\n    return a + b\n"
RESULT = "def add(a, b):\n    return {}\n"

EQUAL = "class E({}):\n    __eq__ = lambda s, o: True\n    __hash__ = None\n"

HOSTILE = {
    # ending early
    "exit": "exit(0)",
    "sys.exit": "import sys\nsys.exit(0)",
    "os._exit": "import os\nos._exit(0)",
    "exit in the function": "import os\ndef add(a, b):\n    os._exit(0)",
    "SystemExit": "def add(a, b):\n    raise SystemExit(0)",
    "KeyboardInterrupt": "def add(a, b):\n    raise KeyboardInterrupt",
    "BaseException": "def add(a, b):\n    raise BaseException('passed')",
    "GeneratorExit at once": "raise GeneratorExit",
    "crash": "import ctypes\ndef add(a, b):\n    ctypes.string_at(0)",
    "exit hook": "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b):\n    return 0",
    "exception hook": "import sys, os\nsys.excepthook = lambda *_: os._exit(0)\nraise ValueError",
    "exit from a thread": "import os, threading\nthreading.Timer(0, os._exit, (0,)).start()\n"
    "def add(a, b):\n    while True: pass",
    "exit after a word": "import os\ndef add(a, b):\n    os.write(1, b'passed\\n')\n    os._exit(0)",
    "kill itself": "import os\ndef add(a, b):\n    os.kill(os.getpid(), 9)",
    "end its group": "import os\ndef add(a, b):\n    os.killpg(0, 15)",
    # answers that claim to equal everything
    "object equal to all": EQUAL.format("object") + RESULT.format("E()"),
    "int equal to all": EQUAL.format("int") + RESULT.format("E(0)"),
    "list equal to all": EQUAL.format("list") + RESULT.format("E()"),
    "text equal to all": EQUAL.format("str") + RESULT.format("E('x')"),
    "class equal to all": EQUAL.format("type") + RESULT.format("E('C', (), {})"),
    "not a number": RESULT.format("float('nan')"),
    "infinity": RESULT.format("float('inf')"),
    # tampering with Python
    "patched builtins": "import builtins as b\nb.AssertionError = None\nb.all = b.any = b.bool = lambda *_: True\n"
    + RESULT.format("0"),
    "patched modules": "import json, pickle, marshal, sys\njson.dumps = json.loads = lambda *_: True\n"
    "pickle.loads = marshal.loads = lambda *_: True\nsys.modules['a2rl.code_execution.tester'] = sys\n"
    + RESULT.format("0"),
    "patched protocol": "import a2rl.code_execution.cell as p\np.encode = lambda v: b'[\"value\", true]\\n'\n"
    + RESULT.format("0"),
    "patched stack": "import sys\nf = sys._getframe()\nwhile f:\n    f.f_globals['judge'] = f.f_globals['check'] = "
    "lambda *_: True\n    f = f.f_back\n" + RESULT.format("0"),
    "trace hook": "import sys\nsys.settrace(lambda *_: None)\nsys.setprofile(lambda *_: None)\n" + RESULT.format("0"),
    # searching for the expected value
    "test on the stack": "import sys\nf = sys._getframe()\nwhile 'candidate' not in f.f_locals: f = f.f_back",
    "test in memory": "import gc\nassert [o for o in gc.get_objects() if 'candidate(' + str(20) in str(o)]\n" + RIGHT,
    "project": f"open({__file__!r}).read()\n" + RIGHT,
    "project folder": f"import os\nos.listdir({str(Path(__file__).parent)!r})\n" + RIGHT,
    "hidden data": "open('/tmp/a2rl-sandbox-test-hidden').read()\n" + RIGHT,
    "accounts": "open('/etc/passwd').read()\n" + RIGHT,
    "other processes": "import os\nopen(f'/proc/{os.getppid()}/environ').read()\n" + RIGHT,
    "own memory file": "open('/proc/self/mem', 'rb')\n" + RIGHT,
    "environment": "import os\nassert os.environ['PATH']\n" + RIGHT,
    "installed packages": "import numpy\n" + RIGHT,
    # forged replies
    "forged replies": "import os\nfor fd in range(64):\n    try: os.write(fd, b'[\"value\", true]\\n' * 99)\n"
    "    except OSError: pass\n" + RESULT.format("0"),
    "nonsense on the socket": "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'\\x00\\xff{[\\n' * 9)\n"
    "    except OSError: pass\n" + RIGHT,
    "closed files": "import os\nos.closerange(0, 64)\n" + RIGHT,
    # exceeding the limits
    "endless loop": "def add(a, b):\n    while True: pass",
    "endless loop at once": "while True: pass",
    "endless power": RESULT.format("3 ** 10 ** 12"),
    "endless sleep": "import time\ndef add(a, b):\n    time.sleep(1e6)",
    "endless output": "def add(a, b):\n    while True: print('x' * 10000)",
    "endless recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef add(a, b):\n    return add(a, b)",
    "ten gigabytes": "def add(a, b):\n    x = bytearray(10 << 30)\n    return a + b",
    "ten gigabytes bit by bit": "def add(a, b):\n    x = []\n    while True: x.append(bytearray(1 << 20))",
    "huge result": RESULT.format("'x' * (50 << 20)"),
    "huge number": RESULT.format("1 << (1 << 24)"),
    "deep result": "def add(a, b):\n    x = []\n    for _ in range(10**6): x = [x]\n    return x",
    "result in itself": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    "ignored alarms": "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
    "    except (OSError, ValueError): pass\ndef add(a, b):\n    while True: pass",
    # processes, signals, network, files
    "fork bomb": "import os\nwhile True: os.fork()",
    "fork": "import os\nos.fork()\n" + RIGHT,
    "daemon": "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        while 1: pass\n" + RIGHT,
    "threads": "import threading\nwhile True: threading.Thread(target=lambda: 0).start()",
    "program": "import os\nos.execv('/bin/sh', ['sh', '-c', 'true'])",
    "shell": "import subprocess\nsubprocess.run('true', shell=True)\n" + RIGHT,
    "kill the parent": "import os\nos.kill(os.getppid(), 9)\n" + RIGHT,
    "kill everybody": "import os\nos.kill(-1, 9)\n" + RIGHT,
    "starve the parent": "import os, resource\nresource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))\n" + RIGHT,
    "TCP": "import socket\nsocket.create_connection(('127.0.0.1', 80), 1)\n" + RIGHT,
    "UDP": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 53))\n" + RIGHT,
    "unix socket": "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0abstract')\n" + RIGHT,
    "write a file": "open('/tmp/a2rl-sandbox-test-file', 'w').write('x')\n" + RIGHT,
    "fill the disk": "for n in range(10**6): open(f'/tmp/a2rl-sandbox-test-{n}', 'w').write('x' * (1 << 20))\n" + RIGHT,
    "fill memory files": "import os\nos.write(os.memfd_create('x'), b'x')\n" + RIGHT,
    "delete files": "import os\nos.remove('/tmp/a2rl-sandbox-test-hidden')\n" + RIGHT,
    "change rights": "import os\nos.chmod('/tmp/a2rl-sandbox-test-hidden', 0)\n" + RIGHT,
    "lower the filter": "import ctypes\nassert ctypes.CDLL(None).prctl(22, 0, 0, 0, 0) == 0\n" + RIGHT,
    # unusual results and programs
    "generator": "def add(a, b):\n    yield a + b",
    "function": RESULT.format("add"),
    "bytes for text": RESULT.format("b'3'"),
    "no function": "x = 1",
    "something else than a function": "add = 3",
    "syntax error": "def add(a, b:\n    return a + b",
    "null byte": "def add(a, b):\n    return a + b\n\0",
    "half a character": "def add(a, b):\n    return a + b  # \ud800\nprint('\ud800')",
    "nothing": "",
}  # fmt: skip


def case(program: str, test: str = TEST, setup: str = "") -> CodeCase:
    return CodeCase(program, "add", setup, test)


@pytest.fixture(scope="module")
def pool() -> Iterator[CodePool]:
    with CodePool(LIMITS, most=2) as pool:
        yield pool


@pytest.fixture(scope="module")
def bystander() -> Iterator[Path]:
    """A file that answers must not read or change."""
    path = Path("/tmp/a2rl-sandbox-test-hidden")
    path.write_text("expected: 42")
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def judged(pool: CodePool, bystander: Path) -> dict[str, Outcome]:
    outcomes = pool.test([case(program) for program in HOSTILE.values()])
    return dict(zip(HOSTILE, outcomes, strict=True))


@pytest.mark.parametrize("name", HOSTILE)
def test_no_hostile_answer_passes(judged: dict[str, Outcome], name: str) -> None:
    assert not judged[name].passed
    assert judged[name].why


def test_hostile_answers_change_no_file_and_leave_no_process(judged: dict[str, Outcome], bystander: Path) -> None:
    assert bystander.read_text() == "expected: 42"
    assert bystander.stat().st_mode & 0o600
    assert not [path for path in Path("/tmp").glob("a2rl-sandbox-test-*") if path != bystander]
    mine = psutil.Process().children(recursive=True)
    alive = [each for each in mine if each.status() != psutil.STATUS_ZOMBIE]
    assert (
        len([each for each in alive if "a2rl.code_execution" in " ".join(each.cmdline())]) == 2 * 2
    )  # tester and forker


def test_hostile_answers_do_not_disturb_later_ones(pool: CodePool, judged: dict[str, Outcome]) -> None:
    """A right one passes after them, and a wrong one fails."""
    right, wrong = pool.test([case(RIGHT), case(RESULT.format("a - b"))])
    assert right == Outcome(True, "")
    assert wrong == Outcome(False, "AssertionError: 1 + 2")


@pytest.mark.parametrize(
    "program",
    [
        RIGHT,
        "import collections, shlex, typing\n" + RIGHT,
        "calls = 0\ndef add(a, b):\n    global calls\n    calls += 1\n    return a + b",
        "print('hello')\ndef add(a, b):\n    print(a, b)\n    return a + b",
        "class L(list): pass\ndef add(a, b):\n    return L(a + b) if isinstance(a, list) else a + b",
        "def add(a, b):\n    c = a + b\n    if isinstance(a, list): a.append(3)\n    return c",
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n    x: 'int'\n"
        + RIGHT,
        "if __name__ == '__main__':\n    raise SystemExit\n" + RIGHT,
        "import signal\nsignal.signal(signal.SIGALRM, lambda *_: 0)\nsignal.alarm(0)\n" + RIGHT,
    ],
)
def test_right_answers_pass_whatever_else_they_do(pool: CodePool, program: str) -> None:
    assert pool.test([case(program)]) == [Outcome(True, "")]


def test_a_test_may_use_helpers_and_the_function_by_its_name(pool: CodePool) -> None:
    test = "def check(candidate):\n    assert twice(candidate(1, 2)) == 6 == twice(add(a=1, b=2))\n"
    setup = "def twice(n):\n    return 2 * n\ndef add(a, b):\n    '''Not written yet.'''\n"
    assert pool.test([case(RIGHT, test, setup)])[0].passed
    assert not pool.test([case("def twice(n):\n    return 6\n" + RESULT.format("0"), test, setup)])[0].passed


def test_answers_do_not_see_each_other(pool: CodePool) -> None:
    leave = case("import math, sys\nmath.left = sys.modules['left'] = math\n" + RIGHT)
    look = case("import math, sys\nassert not hasattr(math, 'left') and 'left' not in sys.modules\n" + RIGHT)
    assert all(outcome.passed for outcome in pool.test([leave, look] * 4))


def lose_testers(monkeypatch: pytest.MonkeyPatch, deaths: int) -> None:
    """Kills the next testers that work on an answer, as the kernel does when the machine's memory is full."""
    left, line = [deaths], pool_module._Tester._line

    def lost(self: Any, *arguments: float) -> Any:
        if self._is_ready and left[0]:
            left[0] -= 1
            self._process.kill_tree()
        return line(self, *arguments)

    monkeypatch.setattr(pool_module._Tester, "_line", lost)


SLOW = "import time\ndef add(a, b):\n    time.sleep(1)\n    return a + b\n"
ONE_CALL = "def check(candidate):\n    assert candidate(1, 2) == 3\n"


def test_a_right_answer_passes_although_two_testers_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    with CodePool(LIMITS, most=1) as pool:
        lose_testers(monkeypatch, 2)
        assert pool.test([case(SLOW, ONE_CALL), case(RIGHT)]) == [Outcome(True, "")] * 2


def test_where_every_tester_is_killed_no_answer_is_called_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with CodePool(LIMITS, most=1) as pool:
        lose_testers(monkeypatch, 10**6)
        [outcome] = pool.test([case(SLOW, ONE_CALL)])
    assert (outcome.passed, outcome.is_sure) == (False, False)
    assert "this machine could not test it" in outcome.why


def test_where_no_tester_can_start_answers_are_not_called_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with CodePool(LIMITS, most=1) as pool:
        lose_testers(monkeypatch, 1)
        monkeypatch.setattr(pool_module, "START", "raise SystemExit")
        outcomes = pool.test([case(SLOW, ONE_CALL), case(RIGHT)])
    assert [(outcome.passed, outcome.is_sure) for outcome in outcomes] == [(False, False)] * 2


@pytest.mark.parametrize("victim", [1, 2], ids=["the process that forks cells", "the cell"])
def test_a_right_answer_passes_if_a_sandbox_process_is_killed(victim: int) -> None:
    with CodePool(LIMITS, most=1) as pool, ThreadPoolExecutor(1) as threads:
        testing = threads.submit(pool.test, [case(SLOW, ONE_CALL)])
        until(all_below_me)[victim].kill()
        assert testing.result() == [Outcome(True, "")]


def all_below_me() -> list[psutil.Process]:
    """Returns the tester of this test, the process that forks cells, and a cell, once all three exist. Pids start again
    from low numbers after the highest, so the newest tester need not have the highest one.
    """
    testers = [each for each in psutil.Process().children() if is_tester(each)]
    newest = max(testers, key=psutil.Process.create_time, default=None)
    found = [newest, *newest.children(recursive=True)] if newest else []
    return found if len(found) == 3 else []


def is_tester(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):  # a child of another test may just end
        return "a2rl.code_execution" in " ".join(process.cmdline())
    return False


def test_a_sleeping_answer_is_wrong_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """If each were tested again alone, a model that sleeps would keep the grader busy for an hour."""
    monkeypatch.setattr(CodePool, "_test_alone", lambda *_: pytest.fail("it was not sure"))
    test, computes = "def check(candidate):\n    assert 3 ** candidate(1, 2) == 27\n", RESULT.format("10 ** 12")
    with CodePool(CellLimits(cpu_s=1, wall_s=2.0), most=1) as pool:
        sleeps, computing = pool.test([case(HOSTILE["endless sleep"]), case(computes, test)])
    assert sleeps == Outcome(False, "AnswerFailedError: took too long")
    assert computing == Outcome(False, "the test did not come to an end")


def test_an_answer_that_was_stopped_is_tested_again() -> None:
    """Its machine may have been suspended."""
    with CodePool(CellLimits(wall_s=2.0), most=1) as pool, ThreadPoolExecutor(1) as threads:
        testing = threads.submit(pool.test, [case(SLOW, ONE_CALL)])
        until(all_below_me)[2].suspend()
        assert testing.result() == [Outcome(True, "")]


@pytest.mark.heavy
def test_answers_that_end_their_testers_are_wrong() -> None:
    """They make no other answer fail. The test's computation with a small, plain value never ends, inside one step of
    Python.
    """
    test, started = "def check(candidate):\n    assert 3 ** candidate(1, 2) == 27\n", time.monotonic()
    starving = case(RESULT.format("10 ** 12"), test)
    with CodePool(CellLimits(cpu_s=1, wall_s=2.0, memory=256 << 20), most=1) as pool:
        outcomes = pool.test([case(RIGHT), starving, case(RIGHT), case(RIGHT, test)])
    assert outcomes == [Outcome(True, ""), Outcome(False, "the test did not come to an end"), *[Outcome(True, "")] * 2]
    assert time.monotonic() - started < 120


def test_where_memory_runs_out_the_kernel_takes_answers_first() -> None:
    with CodePool(LIMITS, most=1) as pool, ThreadPoolExecutor(1) as threads:
        testing = threads.submit(pool.test, [case(SLOW, ONE_CALL)])
        processes = until(all_below_me)
        assert [Path(f"/proc/{each.pid}/oom_score_adj").read_text() for each in processes] == ["1000\n"] * 3
        testing.result()


def test_without_landlock_answers_can_open_no_file() -> None:
    """They can still be right."""
    with CodePool(LIMITS, most=1, use_landlock=False) as pool:
        assert pool.layers.landlock == 0
        assert "no files" in str(pool.layers)
        outcomes = pool.test(
            [
                case("import math, re, collections, itertools, heapq, functools, typing, hashlib\n" + RIGHT),
                case("import shlex\n" + RIGHT),
                case(f"open({os.__file__!r})\n" + RIGHT),
                case("open('/dev/null')\n" + RIGHT),
            ]
        )
    assert [outcome.passed for outcome in outcomes] == [True, False, False, False]


def test_cells_close_what_is_open_not_all_that_may_be() -> None:
    """The limit of open files may be a thousand million."""
    program = """
import os, socket, sys
os.closerange = None
from a2rl.code_execution.cell import CellLimits, Cells
left = os.open("/", os.O_RDONLY)
cells = Cells(CellLimits(), use_landlock=False)
cells.check()
with cells.start() as cell:
    folder = f"/proc/{cells.pid}/fd"
    print(cell.recv(16), [os.readlink(f"{folder}/{each}")[:7] for each in os.listdir(folder)])
cells.end()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "b'ready\\n' ['/dev/nu', '/dev/nu', '/dev/nu', 'socket:']\n"


def test_with_landlock_the_layers_say_so(pool: CodePool) -> None:
    assert pool.layers.landlock == landlock.abi()
    assert "seccomp" in str(pool.layers)


def test_a_machine_without_seccomp_runs_nothing_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    # A tester on another architecture, whose system calls are unknown to us.
    start = "import platform; platform.machine = lambda: 'riscv64'; "
    monkeypatch.setattr(pool_module, "START", start + pool_module.START)
    with pytest.raises(InfrastructureError, match="seccomp"):
        CodePool(LIMITS, most=1)


def test_when_the_grader_dies_its_judges_and_cells_die_too() -> None:
    script = (
        "from a2rl.code_execution.pool import *\n"
        "pool = CodePool(CellLimits(cpu_s=60, wall_s=60), most=1)\n"
        "print('ready', flush=True)\n"
        "pool.test([CodeCase('import time\\ntime.sleep(60)', 'f', '', '')])\n"
    )
    grader = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
    assert grader.stdout is not None
    grader.stdout.readline()
    below = until(lambda: three_below(grader.pid))
    grader.kill()
    grader.wait()
    assert psutil.wait_procs(below, timeout=10)[1] == []


def three_below(pid: int) -> list[psutil.Process]:
    """Returns a tester, the process that forks cells, and a cell, once all three exist."""
    found = psutil.Process(pid).children(recursive=True)
    return found if len(found) == 3 else []


def until(look: Any, timeout_s: float = 10.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return found


PLAIN: list[object] = [
    None, True, 0, -7, 10**50, 1.5, float("inf"), -0.0, 1 + 2j, "", "é\ud800\0", b"\x00\xff", [], [1, [2.0, "x"]], (),
    (1,), ((), [()]), {}, {"a": 1, 2: (3,), (4, 5): None}, {1, 2}, frozenset({3}), {"t": 1}, [True, 1, 1.0],
    {frozenset(): {}},
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    back = plain.decode(plain.encode(value))
    assert back == value
    assert repr(back) == repr(value)


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b'{"t": 1}', b'{"x": []}', b'{"t": [], "s": []}', b"{}", b'{"s": [[]]}', b'{"d": [[{"d": []}, 1]]}',
     b'{"d": 3}', b'{"b": "zz"}', b'{"c": [1]}', b"9" * 5000, b"[" * 100_000, b"\xff\xfe", b'{"c": ["1", []]}'],
)  # fmt: skip
def test_lines_that_hold_no_plain_value_are_refused(line: bytes) -> None:
    with pytest.raises(plain.NotPlainError):
        plain.decode(line)


@pytest.mark.parametrize("value", [object(), iter([]), len, int, range(3), [{"a": print}]])
def test_values_that_are_not_plain_are_not_sent(value: Any) -> None:
    with pytest.raises(plain.NotPlainError):
        plain.encode(value)


def confined(work: str) -> str:
    """Runs code in a confined process; returns its output."""
    done = subprocess.run([sys.executable, "-c", work], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(landlock.abi() < 1, reason="this kernel has no Landlock")
def test_a_restricted_process_reaches_only_what_it_was_left(tmp_path: Path) -> None:
    for name in ("read", "write", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    script = f"""
from pathlib import Path
from a2rl.linux.landlock import AccessRights, restrict
folder = Path({str(tmp_path)!r})
restrict(AccessRights(read=(folder / "read", folder / "nowhere"), write=(folder / "write", Path("/dev/null"))))
def attempt(work):
    try:
        return work() is not None
    except OSError:
        return False
print([attempt((folder / name / "file").read_text) for name in ("read", "write", "other")],
      [attempt(lambda: (folder / name / "new").write_text("x")) for name in ("read", "write", "other")],
      attempt(lambda: Path("/dev/null").write_text("x")), attempt((folder / "write" / "file").unlink) or
      (folder / "write" / "file").exists())
"""
    assert confined(script) == "[True, True, False] [False, True, False] True False"


@pytest.mark.skipif(landlock.abi() < 4, reason="this kernel's Landlock knows no ports")
def test_a_restricted_process_connects_to_nothing() -> None:
    script = """
import socket
from pathlib import Path
from a2rl.linux.landlock import AccessRights, restrict
server = socket.create_server(("127.0.0.1", 0))
restrict(AccessRights(read=(Path("/"),)))
try:
    socket.create_connection(server.getsockname(), 1)
except PermissionError:
    print("refused")
"""
    assert confined(script) == "refused"


def test_seccomp_is_found_here_and_leaves_computing_alone() -> None:
    assert seccomp.is_available()
    script = """
from a2rl.linux.seccomp import allow_computation_only
import os
allow_computation_only(files=False)
total = sum(range(10 ** 6)) + len([bytearray(10 ** 5) for _ in range(100)])
for name in ("fork", "pipe", "getcwd", "nice"):
    try:
        getattr(os, name)(*([1] if name == "nice" else []))
        print(name)
    except OSError as error:
        assert error.errno == 38
print(total)
"""
    assert confined(script) == "499999500100"
    assert ctypes.sizeof(ctypes.c_void_p) == 8
