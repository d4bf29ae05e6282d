"""Trains a model whose answers cost the graders of all tasks hours: blank lines, long words, underscores, open tags.

Whatever reads a text that a model or an agent wrote reads it once.
"""

import json
from pathlib import Path

LEVEL = "sandbox"
PARTS = (
    "_", "\n", " ", " \n", "\t\n", "x", "<think>", "</think>", "<", "<|", "[", "{", "(", "```\n", "`", "#", "####",
    "*", "**", "1,", "1.", "1/", "a.", "\\boxed{", "\\frac{", "the answer is ", "def total",
    "import a\n", "\u200b", "\xa0",
    "-", "Wait, ", "Question:", "'", '"', "a_", "1_", "\u0301", "correct ", "Verdict: ", "not ", "search[",
)  # fmt: skip
SIZE = 50_000


def attack(scene):
    texts = [text for part in PARTS for text in (part * (SIZE // len(part)), f"x{part * (SIZE // len(part))}\x02 y")]
    Path("texts.json").write_text(json.dumps(texts))


def held(after):
    from contextlib import suppress

    from a2rl.contamination.text_search import WORD
    from a2rl.core.model_text import answer_of
    from a2rl.judge.parsers import forms_of
    from tasks.deepsearchqa import annotator
    from tasks.gsm8k.final_number import final_number
    from tasks.humaneval.program import program
    from tasks.webshop.shop.analysis import terms
    from tests.redteam.look import slow

    def verdict(text):
        with suppress(ValueError):
            annotator.verdict({"choices": [{"message": {"content": text}}]})

    readers = {
        "answers": answer_of, "gsm8k": final_number, "webshop": terms, "judges": forms_of, "verdicts": verdict,
        "questions": lambda text: annotator.question(annotator.ANNOTATOR, annotator.Answered("a", "b", text)),
        "humaneval": lambda text: program("def total(xs):\n", "total", text), "contamination": WORD.findall,
    }  # fmt: skip
    late = []
    for name, read in readers.items():
        for text in json.loads((after.run.workspace / "texts.json").read_text()):
            if took := slow(6, lambda read=read, text=text: read(text)):
                late.append(f"{name}, {text[:20]!r}: {took}")
    return "; ".join(late)
