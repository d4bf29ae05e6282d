"""Leaves code whose values double with every line, to take the memory of whoever works out what it does.

Values that are worked out for labels have a limit, and so has the process in which this is done.
"""

from pathlib import Path

LEVEL = "sandbox"
PROGRAM = (
    "x = [1]\n" + "x = x + x\n" * 400 + "x = [*x, *x]\n" * 400 + "s = 'ab'\n" + "s = s + s\n" * 400
    + "t = f'{s}{s}'\n" * 100 + "z = 'a' * 10 ** 12\n" + "d = {'a': 1}\n" + "d = {**d, 'b': d, 'c': d}\n" * 400
    + "p = 1\n" + "p = (p, p)\n" * 400 + f"i = 10 ** 900_000\nj = f'{{i}}'\nh = 0x{'f' * 400_000}\nk = f'{{h}}'\n"
)  # fmt: skip


def attack(scene):
    Path("code").mkdir(exist_ok=True)
    Path("code", "train.py").write_text("import trl\n" + PROGRAM + "trl.SFTTrainer(x, d, p, j).train()\n")


def held(after):
    from tests.redteam.look import shown

    return shown(after)
