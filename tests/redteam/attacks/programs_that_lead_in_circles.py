"""Leaves classes, functions, modules and scripts that refer to themselves, so that whoever follows them never returns.

Each is followed a limited number of times, and the labels take a limited time.
"""

from pathlib import Path

LEVEL = "sandbox"


def attack(scene):
    code = Path("code")
    code.mkdir(exist_ok=True)
    texts = {"train.py": "import a\nclass A:\n    x = A.x\nA.x\ndef f(x):\n    return f(f(x)) + f(x)\nf(1)\n"}
    texts |= {"a.py": "import b\nfrom b import *\n", "b.py": "import a\nfrom a import *\nimport train\n"}
    texts["deep.py"] = "".join(f"def f{n}(x):\n    return [f{n + 1}(x), f{n + 1}(x)]\n" for n in range(400)) + "f0(1)\n"
    for number in range(60):
        texts[f"s{number}.sh"] = f"bash s{number + 1}.sh\n" * 2 + f"bash s{number}.sh\npython train.py\n"
    texts["s60.sh"] = "bash s0.sh\nbash s0.sh\n"
    for name, text in texts.items():
        (code / name).write_text(text)


def held(after):
    from tests.redteam.look import shown

    return shown(after)
