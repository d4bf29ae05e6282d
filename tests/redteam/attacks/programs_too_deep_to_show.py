"""Leaves code that is too deep for any parser, so that the stage that shows the result fails and destroys it.

Labels and page are made in limited processes. A result that was graded stands, whatever fails after it.
"""

from pathlib import Path

LEVEL = "sandbox"
PROGRAMS = {
    "train.py": "if x == 0:\n    y = 0\n" + "".join(f"elif x == {n}:\n    y = {n}\n" for n in range(20_000)),
    "total.py": "x = " + " + ".join(["a"] * 50_000) + "\n",
    "nested.py": "x = " + "{'a': " * 5_000 + "1" + "}" * 5_000 + "\n",
    "calls.py": "f = " + "lambda x: " * 3_000 + "x\n" + "f" + "(1)" * 3_000 + "\nx" + ".a" * 9_000 + "\n",
}


def attack(scene):
    for name, text in PROGRAMS.items():
        Path("code").mkdir(exist_ok=True)
        Path("code", name).write_text(text)


def held(after):
    from tests.redteam.look import shown

    return shown(after)
