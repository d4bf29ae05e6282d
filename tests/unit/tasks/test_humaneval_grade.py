"""Tests HumanEval's grader: which part of an answer is run, and how it is graded."""

import gzip
import json
from pathlib import Path

import pytest

from a2rl.cli.scoring import score_file
from a2rl.code_execution.pool import _Tester
from a2rl.core.errors import IntegrityError, UsageError
from a2rl.core.files import read_jsonl, write_jsonl
from a2rl.core.settings import Settings
from a2rl.sampling import Completion, SamplingParams
from a2rl.scoring.score import summarise
from a2rl.task_api.catalog import load_grader
from a2rl.task_api.contract import Limits, PublishedGrader
from tasks.humaneval import grade as grader
from tasks.humaneval.grade import Item
from tasks.humaneval.prepare import prepare
from tasks.humaneval.program import STOPS, faithful_program
from tasks.humaneval.task import TASK
from tests.fake_sampler import FakeSampler

PROMPT = 'from typing import List\n\n\ndef total(xs: List[int]) -> int:\n    """The sum."""\n'
TEST = "def check(candidate):\n    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0\n"
ITEM = Item("x/0", PROMPT, "total", "    return sum(xs)\n", TEST)
BODY = "    return sum(xs)\n"
WHOLE = PROMPT + BODY
READY = {"landlock": 1}
LIMITS = Limits(max_new_tokens=7)

ANSWERS = [
    # continuations
    (BODY, True),
    ("\n" + BODY, True),
    ("    n = 0\n    for x in xs:\n        n += x\n\n    return n\n", True),
    (BODY + "\n\ndef other():\n    return (\n", True),
    (BODY + "\nprint(total([1,", True),
    (BODY + "\n# Now something else (", True),
    (BODY + "\nif __name__ == '__main__':\n    exit(", True),
    (BODY + "\nclass A(\n", True),
    (BODY + "```\nThat was easy!", True),
    ("    return sum(xs) + 1\n", False),
    ("    return sum(xs", False),
    # whole functions
    (WHOLE, True),
    ("def total(xs):\n    return sum(xs)\n", True),
    ("def total(xs: List[int]) -> int:\n    return sum(xs)\n", True),
    ("import math\n\ndef total(xs):\n    return int(math.fsum(xs))\n", True),
    ("def first(xs):\n    return xs[0]\n\ndef total(xs):\n    return first(xs) + total(xs[1:]) if xs else 0\n", True),
    # chats
    (f"```python\n{WHOLE}```", True),
    (f"```\n{WHOLE}```", True),
    (f"```py\n{WHOLE}\n```\nThis adds them up.", True),
    (f"Here it is:\n\n```python\n{WHOLE}```\n\nUse it so:\n```python\nprint(total([1]))\n```\n", True),
    (f"First install it:\n```sh\npip install x\n```\nThen:\n```python\n{WHOLE}```", True),
    (f"```python\n{WHOLE}", True),
    (f"```python\n{BODY}```", True),
    ("```python\nreturn sum(xs)\n```", True),
    ("return sum(xs)", True),
    ("```python\nn = 0\nfor x in xs:\n    n += x\nreturn n\n```", True),
    ("```python\ndef total(xs):\n    return sum(xs) + 1\n```", False),
    ("The answer is to use sum.", False),
    # prose, spaces and fences
    (f" Here is the function:\n\n```python\n{WHOLE}```", True),
    (f"   ```python\n{WHOLE}```", True),
    (f" \n\n```python\n{WHOLE}```", True),
    (f"Sure! Here it is:\n\n{WHOLE}", True),
    (f"Sure! Here it is:\n{WHOLE}\nThis function adds all of its numbers up.", True),
    (f"{WHOLE}\n\nIt returns the sum, and 0 for an empty list.", True),
    (f"{WHOLE}\nExample:\n>>> total([1])\n1", True),
    (f"{BODY}\n\nThis returns the sum of all numbers.", True),
    (f"Here is the rest of the function:\n\n{BODY}", True),
    (f"I import what I need from typing.\n\n{WHOLE}", True),
    ("Here it is:\n\n    def total(xs):\n        return sum(xs)\n\nIt works.", True),
    (f"```python\n{WHOLE.rstrip()}```", True),
    ("```python\ndef total(xs): return sum(xs)```", True),
    (f"~~~python\n{WHOLE}~~~", True),
    (f"````python\n{WHOLE}````", True),
    (f"Here is the code: ```python\n{WHOLE}```", True),
    ("1. Do it so:\n   ```python\n   def total(xs):\n       return sum(xs)\n   ```\n2. Done.", True),
    (f"Use ```sum``` for it:\n```python\n{WHOLE}```", True),
    (f"{WHOLE}```", True),
    (f"{WHOLE}\n```python\nprint(total([1]))\n```", True),
    ("```python\ndef first(xs):\n    return xs[0]\n```\nand\n```python\n"
     "def total(xs):\n    return first(xs) + total(xs[1:]) if xs else 0\n```", True),
    ("```python\nimport math\n```\n```python\ndef total(xs):\n    return int(math.fsum(xs))\n```", True),
    ("```python\nfrom os import sep, fspath\n```\n```python\ndef total(xs):\n    return fspath and sum(xs)\n```", True),
    ("```python\nimport math, functools\n```\n```python\nfrom operator import *\n```\n```python\n"
     "def total(xs):\n    return functools.reduce(add, xs, 0)\n```", True),
    ("```python\nimport os.path\n```\n```python\ndef total(xs):\n    return os.path and sum(xs)\n```", True),
    ("```python\nimport math\n```\n```python\ndef helper(xs):\n    return math.fsum(xs)\n```\n```python\n"
     "def total(xs):\n    return int(helper(xs))\n```", True),
    ("```python\ndef helper(xs):\n    return math.fsum(xs)\n```\n```python\nimport math\n```\n```python\n"
     "def total(xs):\n    return int(helper(xs))\n```", True),
    ("```python\nBASE = 1\nFIRST: int = BASE - 1\n```\n```\ndef total(xs):\n    return sum(xs, FIRST)\n```", True),
    (f"```\ndef total(xs):\n    return 0\n```\n```\nxs = [1]\nn = total(xs)\n```\n```\n{WHOLE}```", True),
    ("```python\nxs = [1]\nn = nothing(xs)\n```\n```python\ndef total(xs):\n    n = sum(xs)\n    return n\n```", True),
    # what stands before or after the answer
    (f"from __future__ import annotations\n{WHOLE}", True),
    ("```python\nfrom __future__ import annotations\n\ndef total(xs: list[int]):\n    return sum(xs)\n```", True),
    (f"{WHOLE}<|im_end|>", True),
    (f"{BODY}<|endoftext|>def other(", True),
    (f"```python\n{WHOLE}```<|im_end|>\n<|im_start|>user\nThanks", True),
    (f"<think>\n```python\ndef total(xs):\n    return 0\n```\nNo.</think>\n```python\n{WHOLE}```", True),
    (f"<think>Use sum.</think>\n{BODY}", True),
    (f"I add them up.</think>\n\n```python\n{WHOLE}```", True),
    (f"<think>\n```python\n{WHOLE}```", False),
    (WHOLE.replace("\n", "\r\n"), True),
    ("\ufeff" + WHOLE, True),
    (WHOLE.replace("    return", "\xa0\xa0\xa0\xa0return"), True),
    # indentation that was lost
    ("  return sum(xs)\n", True),
    ("n = 0\n    for x in xs:\n        n += x\n    return n\n", True),
    (" n = 0\n    for x in xs:\n        n += x\n    return n\n", True),
    ("\treturn sum(xs)\n", True),
    # of several, the last, unless it is only an alternative to the one before
    (f"First:\n```python\ndef total(xs):\n    return 0\n```\nBetter:\n```python\n{WHOLE}```", True),
    (f"```python\n{WHOLE}```\nNo, better:\n```python\ndef total(xs):\n    return 0\n```", False),
    (f"```python\n{WHOLE}```\nOr:\n```python\ndef total(xs):\n    return 0\n```", True),
    (f"```python\ndef total(xs):\n    return 0\n```\nOr:\n```python\n{WHOLE}```", False),
    (f"```python\n{WHOLE}```\nAlternatively, you can use a loop:\n```python\ndef total(xs):\n    return 0\n```", True),
    (f"```python\ndef total(xs):\n    return 0\n```\nAnother way is to use `sum`:\n```python\n{WHOLE}```", False),
    (f"```python\n{WHOLE}```\nOr:\n```python\ndef total(xs):\n    return (", True),
    ("```python\ndef totals(xs):\n    return sum(xs)\n```", False),
    # no code
    ("", False),
    ("\n\n", False),
    ("    ", False),
    ("    pass\n", False),
]  # fmt: skip


def test_what_answers_are_right() -> None:
    completions = [Completion(text, "stop", 0, 0) for text, _ in ANSWERS]
    items = grader.judged([ITEM] * len(ANSWERS), completions)
    got = [(text, item.verdict == "correct") for (text, _), item in zip(ANSWERS, items, strict=True)]
    assert got == ANSWERS


@pytest.fixture
def hidden(tmp_path: Path) -> Path:
    rows = [
        {
            "task_id": f"x/{n}",
            "prompt": f'def f(a):\n    """a plus {n}."""\n',
            "entry_point": "f",
            "canonical_solution": f"    return a + {n}\n",
            "test": f"def check(candidate):\n    assert candidate(3) == {3 + n}\n",
        }
        for n in range(4)
    ]
    write_jsonl(tmp_path / "training.jsonl", rows[:1])
    write_jsonl(tmp_path / "eval.jsonl", rows[1:])
    return tmp_path


def test_verdicts_are_correct_wrong_or_truncated(hidden: Path) -> None:
    answers = iter([("    return a + 1\n", "stop"), ("    return a\n", "stop"), ("    return (a +", "length")])

    def answer(prompt: object) -> Completion:
        text, finish = next(answers)
        return Completion(text, finish, 10, 5)  # type: ignore[arg-type]

    sampler = FakeSampler(answer)
    items = grader.grade(sampler, hidden, ["x/1", "x/2", "x/3"], LIMITS, {})
    assert [item.verdict for item in items] == ["correct", "wrong", "truncated"]
    assert [item.tokens for item in items] == [5, 5, 5]
    assert sampler.params == [SamplingParams(max_new_tokens=7, stop=STOPS, temperature=0.0)]
    assert sampler.asked[0] == 'def f(a):\n    """a plus 1."""\n'


def test_an_answer_that_cannot_be_tested_here_is_errored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Tester, "_line", lambda self, *_: self._process.kill_tree() if self._is_ready else READY)
    [result] = grader.judged([ITEM], [Completion(BODY, "stop", 0, 5)])
    assert (result.verdict, result.value) == ("errored", 0.0)
    assert "this machine could not test it" in result.reason


def test_a_chat_model_is_asked_in_words_and_not_stopped(hidden: Path) -> None:
    sampler = FakeSampler(lambda prompt: "```python\ndef f(a):\n    return a + 2\n```", chat=True)
    items = grader.grade(sampler, hidden, ["x/1", "x/2"], LIMITS, {})
    assert [item.verdict for item in items] == ["wrong", "correct"]
    assert sampler.params[0].stop == ()
    [chat, *_] = sampler.asked
    assert isinstance(chat, tuple)
    [message] = chat
    assert message.content.endswith('function.\ndef f(a):\n    """a plus 1."""\n')


FAITHFUL = {"prompts": "faithful"}


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("```python\n    return 1\n```\n```\nreturn 2\n```", "return 1\n"),
        ("    return 1", "return 1"),  # and so cannot be parsed: a fault of the reference that is kept
        ("def f(a):\n    return 1", "def f(a):\n    return 1"),
        ("```python\nnever closed", "```python\nnever closed"),
    ],
)
def test_a_faithful_program_is_the_references(hidden: Path, answer: str, program: str) -> None:
    item = grader.items_of(hidden)[0]
    assert faithful_program(item.prompt, item.entry_point, answer) == item.prompt + program


@pytest.mark.parametrize("chat", [True, False])
def test_a_faithful_answer_is_asked_for_in_words_and_not_stopped(hidden: Path, chat: bool) -> None:
    sampler = FakeSampler(lambda prompt: "```python\ndef f(a):\n    return a + 2\n```", chat=chat)
    items = grader.grade(sampler, hidden, ["x/1", "x/2"], LIMITS, FAITHFUL)
    assert [item.verdict for item in items] == ["wrong", "correct"]
    assert sampler.params[0].stop == ()
    assert "Read the following function signature" in str(sampler.asked[0])


def test_a_missing_completion_is_errored_and_an_empty_one_wrong(hidden: Path) -> None:
    items = grader.score_outputs({"x/1": "", "x/3": "    return a + 3"}, hidden, ["x/1", "x/2", "x/3"], LIMITS)
    assert [item.verdict for item in items] == ["wrong", "errored", "correct"]
    assert items[1].reason


def test_published_items_outside_the_eval_set_are_only_judged(hidden: Path) -> None:
    """They are never graded."""
    assert isinstance(load_grader("humaneval"), PublishedGrader)
    assert grader.published_ids(hidden) == ["x/0", *grader.item_ids(hidden)]
    assert grader.score_outputs({"x/0": "    return a"}, hidden, ["x/0"], LIMITS)[0].verdict == "correct"


def prepared(shared_data: Path, folder: Path) -> tuple[Path, Path]:
    visible, hidden = folder / "visible", folder / "hidden"
    visible.mkdir()
    hidden.mkdir()
    prepare("full", shared_data / "humaneval", visible, hidden)
    return visible, hidden


def test_the_real_data_is_halved_between_agent_and_grader(shared_data: Path, tmp_path: Path) -> None:
    visible, hidden = prepared(shared_data, tmp_path)
    trained = [row["task_id"] for row in read_jsonl(visible / "train.jsonl")]
    assert trained == [f"HumanEval/{n}" for n in range(82)]
    assert grader.item_ids(hidden) == [f"HumanEval/{n}" for n in range(82, 164)]
    assert TASK.variant("full").eval_items == 82
    first = read_jsonl(visible / "train.jsonl")[0]
    assert {"prompt", "canonical_solution", "test", "entry_point"} < first.keys()
    assert (first["question"], first["answer"]) == (first["prompt"], first["canonical_solution"])


@pytest.fixture
def canonical(shared_data: Path, tmp_path: Path) -> dict[str, str]:
    with gzip.open(shared_data / "humaneval" / "HumanEval.jsonl.gz", "rt") as file:
        return {row["task_id"]: row["canonical_solution"] for row in map(json.loads, file)}


def score(settings: Settings, shared_data: Path, outputs: dict[str, str], split: str = "all") -> str:
    file = settings.root / "outputs.jsonl"
    write_jsonl(file, ({"id": name, "completion": text} for name, text in outputs.items()))
    found = score_file(settings, "humaneval", file, "full", shared_data / "humaneval", split)
    return f"{found.score} of {found.total}"


def test_all_164_canonical_solutions_score_100_and_empty_ones_0(
    settings: Settings, shared_data: Path, canonical: dict[str, str]
) -> None:
    assert score(settings, shared_data, canonical) == "100.0 of 164"
    assert score(settings, shared_data, dict.fromkeys(canonical, "")) == "0.0 of 164"


def test_completions_of_the_eval_set_are_scored_on_it_alone(
    settings: Settings, shared_data: Path, canonical: dict[str, str]
) -> None:
    evaluated = {name: text for name, text in canonical.items() if int(name.partition("/")[2]) >= 82}
    assert score(settings, shared_data, evaluated) == "100.0 of 82"
    assert score(settings, shared_data, canonical, "private").startswith("100.0 of 4")
    with pytest.raises(UsageError, match="HumanEval/164"):
        score(settings, shared_data, {**canonical, "HumanEval/164": ""})


def test_functions_and_chat_answers_score_like_continuations(shared_data: Path, tmp_path: Path) -> None:
    _, hidden = prepared(shared_data, tmp_path)
    items = grader.items_of(hidden)
    for form in ("{}", "Sure!\n```python\n{}\n```\nIt works."):
        outputs = {item.id: form.format(item.prompt + item.canonical_solution) for item in items}
        assert summarise(grader.score_outputs(outputs, hidden, list(outputs), LIMITS)).score == 100


def test_a_mirror_that_is_not_the_published_data_is_refused(shared_data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"HumanEval\.jsonl\.gz"):
        prepare("full", tmp_path, tmp_path, tmp_path)
    whole = gzip.decompress((shared_data / "humaneval" / "HumanEval.jsonl.gz").read_bytes())
    for spoilt in (whole.replace(b"0.3", b"0.4", 1), whole[: len(whole) // 2], whole + b'{"task_id": "x"}\n'):
        (tmp_path / "HumanEval.jsonl.gz").write_bytes(gzip.compress(spoilt))
        with pytest.raises(IntegrityError, match="clean copy"):
            prepare("full", tmp_path, tmp_path, tmp_path)
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(b"no archive")
    with pytest.raises(IntegrityError, match="clean copy"):
        prepare("full", tmp_path, tmp_path, tmp_path)
