"""Programs and transcripts that are meant to break whatever reads them: deep, wide, large, or in odd encodings."""

import json
import resource
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from a2rl.core.settings import Settings
from a2rl.recording.code_history import snapshot_code
from a2rl.run.directory import RunDir
from a2rl.validity.record import decide
from stages.report import report
from tests.simulated_runs import simulate_run

MAX_SECONDS, MAX_BYTES = 60.0, 1 << 30
SIZES = (30, 100, 400, 900, 3_000, 8_000, 20_000)
TRAIN = "import trl\ntrl.SFTTrainer('models/base').train()\n"


class Hostile(NamedTuple):
    """What one agent left behind."""

    name: str
    files: dict[str, bytes]
    """Its code."""
    trajectory: bytes = b""
    log: bytes = b""
    trace: bytes = b""
    """What it wrote as the notes of its training."""


def lines(count: int, line: str, first: str = "", last: str = "") -> str:
    return first + "".join(line.format(n=n, m=n + 1) for n in range(count)) + last


def indented(count: int, line: str) -> str:
    return "".join(" " * n + line.format(n=n) + "\n" for n in range(min(count, 95))) + " " * min(count, 95) + "pass\n"


PROGRAMS: dict[str, Callable[[int], str]] = {
    "elif": lambda n: lines(n, "elif x == {n}:\n    y = {n}\n", "if x == -1:\n    y = 0\n"),
    "sum": lambda n: "x = " + " + ".join(["a"] * n) + "\n",
    "dictionaries": lambda n: "x = " + "{'a': " * n + "1" + "}" * n + "\n",
    "dictionaries one by one": lambda n: lines(n, "x = {{'a': x, 'b': x, 'c': x}}\nz = x['a']\n", "x = {}\n"),
    "doubling": lambda n: "x = [1]\n" + "x = x + x\n" * n,
    "doubling by stars": lambda n: "x = [1]\n" + "x = [*x, *x]\n" * n,
    "pairs": lambda n: "x = 1\n" + "x = (x, x)\n" * n + "y = [x, x, x]\n",
    "dictionaries of dictionaries": lambda n: "d = {'a': 1}\n" + "d = {**d, 'b': d, 'c': d}\n" * n,
    "integers": lambda n: f"x = 10 ** {n * 1000}\ny = f'{{x}}'\nw = 0x{'f' * n * 4}\nv = f'{{w}}'\n",
    "calls of calls": lambda n: lines(
        n, "def f{n}(x):\n    a = f{m}(x)\n    b = f{m}(x)\n    return [a, b]\n", last=f"def f{n}(x): return x\nf0(1)\n"
    ),
    "recursion": lambda n: f"def f(x):\n    return f(f(x + {n})) + f(x)\nf(1)\n" + "f(2)\n" * n,
    "classes": lambda n: lines(n, "class A{m}(A{n}):\n    x = A{n}.x\n", "class A0:\n    x = A0.x\n") + "A0.x\n" * n,
    "attributes": lambda n: "x" + ".a" * n + "\n" + "x = x" + "()" * n + "\n",
    "parentheses": lambda n: "x = " + "(" * n + ")" * n + "\n",
    "lambdas": lambda n: "f = " + "lambda x: " * n + "x\n" + "f" + "(1)" * n + "\n",
    "comprehensions": lambda n: "x = " + "[" * n + "y" + " for y in z]" * n + "\n",
    "strings": lambda n: "x = 'ab'\n" + "x = x + x\n" * n + "y = f'{x}{x}'\n" * n + f"z = 'a' * {n * 10**6}\n",
    "blocks": lambda n: indented(n, "while x{n}:"),
    "marks": lambda n: lines(n, "m{n} = AutoModel.from_pretrained('m{n}')\ns = [s, m{n}]\n", "s = []\n"),
    "branches": lambda n: lines(n, "if u{n}:\n    x = [x, {n}]\nelse:\n    x = [x, x]\n", "x = 1\n"),
    "one line": lambda n: "x = 1;" * n + "\n",
}  # fmt: skip
"""Each makes the text of a program of a size."""
BYTES: dict[str, bytes] = {
    "zero": b"x = 1\0\n", "utf-16": TRAIN.encode("utf-16"), "latin": b"# -*- coding: latin-1 -*-\nx = '\xe9'",
    "mark": b"\xef\xbb\xbf" + TRAIN.encode(), "cookie": b"# coding: rot13\nvzcbeg gey",
    "surrogates": b"x = '\xed\xa0\x80'",
    "broken": b"x = '\xff\xfe\xfa'\n" * 999, "controls": bytes(range(1, 32)) * 999, "empty": b"",
    "returns": b"x\r" * 9999,
    "continued": b"x = 1 + \\\n" * 9999, "tabs": b"if x:\n" + b"\t" * 9999 + b"y", "quotes": b"'''" * 9999 + b'"',
    "braces": b"{" * 99999, "large": b"x = 1\n" * 60_000, "wide": b"#" * 390_000, "names": ("é" * 90_000).encode(),
    "direction": "x = '\u202e\u2066evil'\n".encode() * 99, "escapes": b"x = '" + b"\\N{BULLET}" * 9999 + b"'",
    "page": b"x = '</script><script>alert(1)</script><img src=x onerror=alert(1)>'\n" * 99,
}  # fmt: skip
"""Programs in bytes."""


def step(number: int, **more: object) -> dict[str, object]:
    return {"step_id": number, "source": "agent", "message": "", **more}


def trajectory(*steps: dict[str, object]) -> bytes:
    whole = {"schema_version": "ATIF-v1.8", "agent": {"name": "a", "version": "1"}, "steps": steps}
    return json.dumps(whole).encode()


def calls(count: int, size: int = 10) -> dict[str, object]:
    made = [{"tool_call_id": str(n), "function_name": "f", "arguments": {"command": "x" * size}} for n in range(count)]
    return step(1, tool_calls=made)


def transcripts() -> Iterator[Hostile]:
    """Yields transcripts and logs."""
    deep = "[" * 100_000 + "]" * 100_000
    texts = {
        "deep": deep.encode(), "deep arguments": trajectory(calls(1)).replace(b'"xxxxxxxxxx"', b"[" * 900 + b"]" * 900),
        "many steps": trajectory(*(step(n, message="x" * 100) for n in range(1, 60_000))),
        "many calls": trajectory(calls(60_000)), "long calls": trajectory(calls(20, 2_000_000)),
        "long message": trajectory(step(1, message="y" * 30_000_000)), "half": trajectory(step(1))[:-9],
        "no text": bytes(range(256)) * 999, "utf-16": trajectory(step(1)).decode().encode("utf-16"),
        "empty lists": b'{"steps": [' + b"[]," * 9_000_000 + b"[]]}", 
        "numbers": trajectory(step(1)).replace(b": 1", b": 1e999"),
        "large number": trajectory(step(1)).replace(b": 1", b": " + b"9" * 100_000),
        "controls": trajectory(step(1, message="\x1b[2J\u202e\ud800" * 9_999)),
        "page": trajectory(step(1, message="</pre><script>alert(1)</script>" * 99)), "too large": b"[" * (65 << 20),
    }  # fmt: skip
    yield from (Hostile(f"transcript, {name}", {"train.py": TRAIN.encode()}, text) for name, text in texts.items())
    logs = {
        "long line": b"loss " * 2_000_000, "many errors": b"a.b.Error: x\n" * 400_000,
        "no text": bytes(range(256)) * 9_999,
        "rewards": b"reward: 0\n" * 400_000, "dots": b"a." * 999_999 + b"Error",
        "numbers": b"reward: " + b"9" * 9_999 + b"\n",
    }  # fmt: skip
    yield from (Hostile(f"log, {name}", {"train.py": TRAIN.encode()}, log=text) for name, text in logs.items())


def noted(**fields: object) -> bytes:
    line = {
        "event": "work",
        "t": 1e9,
        "process": "1",
        "steps": [{"file": "/w/code/train.py", "line": 2, "count": 1}],
        **fields,
    }
    return json.dumps(line).encode() + b"\n"


def traces() -> Iterator[Hostile]:
    """Yields notes of training."""
    saved = b"".join(
        noted(event=event, process=str(n), path=f"/w/output/{n + place}")
        for n in range(20_000)
        for place, event in enumerate(("saved", "loaded"))
    )
    texts = {
        "empty lines": b"\n" * 9_000_000, "objects": b"{}\n" * 3_000_000, "no text": bytes(range(256)) * 9_999,
        "deep": b"[" * 4_000_000, "deep steps": noted(steps=0).replace(b"0}", b"[" * 7_000 + b"]" * 7_000 + b"}"),
        "long line": noted(file="x" * 8_000_000), "large": noted() * 200_000,
        "processes": b"".join(noted(process=str(n)) for n in range(60_000)), "saved": saved,
        "places": b"".join(noted(steps=[{"file": str(n), "count": 1}]) for n in range(60_000)),
        "numbers": noted(t=-1) + noted(t=1e308) + noted(since=-1) + noted(turns=-5) + noted(t=0).replace(b"0", b"NaN"),
        "types": noted(process=1) + noted(steps="x") + noted(steps={"a": 1}) + noted(classes=[[1]]) + noted(path=None),
        "classes": noted(event="train", classes=["trl.SFTTrainer" * 70] * 32, settings=["tools"] * 32) * 9_999,
        "controls": noted(event="merged", how="\x1b[2J\u202e") + noted(event="train", classes=["\u202eTrainer"]),
    }  # fmt: skip
    yield from (Hostile(f"trace, {name}", {"train.py": TRAIN.encode()}, trace=text) for name, text in texts.items())


def several() -> Iterator[Hostile]:
    """Yields programs of many files."""
    for count in SIZES[:4]:
        chain = {f"m{n}.py": f"import m{n + 1}\nfrom m{n + 1} import *\n".encode() for n in range(count)}
        yield Hostile(f"imports, {count}", {**chain, f"m{count}.py": b"import m0\n", "train.py": b"import m0\n"})
    packages = {f"{'p/' * n}__init__.py": b"from . import p\nfrom .. import *\n" for n in range(1, 30)}
    yield Hostile("packages", {**packages, "train.py": b"import p.p.p\n"})
    scripts = {f"s{n}.sh": f"bash s{(n + 1) % 60}.sh\n" * 2 + f"bash s{n}.sh\npython train.py\n" for n in range(60)}
    yield Hostile("scripts", {"train.py": TRAIN.encode(), **{name: text.encode() for name, text in scripts.items()}})


def hostile() -> Iterator[Hostile]:
    """Yields all, always the same ones."""
    for name, made in PROGRAMS.items():
        yield from (Hostile(f"{name}, {size}", {"train.py": made(size).encode()}) for size in SIZES)
    yield from (Hostile(f"bytes, {name}", {"train.py": text}) for name, text in BYTES.items())
    yield from transcripts()
    yield from traces()
    yield from several()
    yield Hostile("itself", {"train.py": b"class A:\n    x = A.x\nA.x"})


class Shown(NamedTuple):
    """What became of a run."""

    seconds: float
    is_same: bool
    """Whether its result is what it was."""
    has_page: bool


def left_by(each: Hostile, settings: Settings, number: int) -> RunDir:
    """Returns a run with a result, whose agent has left this."""
    folder, run_id = settings.root / f"code-{number}", f"gsm8k-sim-{number:05}"
    folder.mkdir()
    for name, text in each.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text)
    revision = snapshot_code(folder, settings.runs / run_id / "code", "state")  # none of a file that is too large
    run = simulate_run(settings, number, skill=0.9, submissions=1, revisions=[revision] if revision else [])
    (run.logs / "agent.log").write_bytes(each.log)
    run.training_log.write_bytes(each.trace or noted())
    if each.trajectory:
        run.trajectory.write_bytes(each.trajectory)
    return run


def show(each: Hostile, settings: Settings, number: int) -> Shown:
    """Runs the stage `report` on what an agent has left."""
    from a2rl.labels.records import labels_of

    run = left_by(each, settings, number)
    decide(run, [], 0.0)
    before, began = run.record_path("grade").read_bytes(), time.monotonic()
    report(run, settings)
    seconds = time.monotonic() - began
    assert labels_of(run)
    return Shown(seconds, run.record_path("grade").read_bytes() == before, run.report.is_file())


def memory_bytes() -> int:
    """Returns the most memory that this process or one of its children has used so far."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(kind).ru_maxrss for kind in kinds) * 1024
