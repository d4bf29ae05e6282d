"""Prints how often the readers of answers, and those of the reference, agree with a person."""

import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from a2rl.sampling import Completion
from tasks.gsm8k.final_number import final_number, is_right_by_reference
from tasks.humaneval import grade
from tasks.humaneval.prepare import prepare
from tasks.humaneval.program import faithful_program, program
from tests.answers import Labelled, labelled

Verdicts = list[bool]


def numbers(answers: Sequence[Labelled], *, faithful: bool = False) -> Verdicts:
    """Returns the verdicts on answers to GSM8K, with `faithful` those of the reference."""
    if faithful:
        return [is_right_by_reference(each.text, f"#### {each.gold:g}") for each in answers]
    return [final_number(each.text) == each.gold for each in answers]


def programs(answers: Sequence[Labelled], mirror: Path, *, faithful: bool = False) -> Verdicts:
    """Returns the verdicts on answers to HumanEval; `mirror` has the published problems with their tests."""
    with tempfile.TemporaryDirectory() as folder:
        prepare("full", mirror, Path(folder, "visible"), Path(folder, "hidden"))
        problems = {item.id: item for item in grade.published_items(Path(folder, "hidden"))}
    completions = [Completion(each.text, "stop", 0, 0) for each in answers]
    made = faithful_program if faithful else program
    results = grade.judged([problems[each.id] for each in answers], completions, made)
    return [result.verdict == "correct" for result in results]


def agreement(task: str, judge: Callable[[Sequence[Labelled]], Verdicts]) -> dict[str, tuple[int, int]]:
    """Returns for each model how many verdicts agree with the person's, and of how many."""
    answers = labelled(task)
    agree = [verdict == each.right for verdict, each in zip(judge(answers), answers, strict=True)]
    models = sorted({each.model for each in answers})
    of = {model: [same for same, each in zip(agree, answers, strict=True) if each.model == model] for model in models}
    return {model: (sum(same), len(same)) for model, same in of.items()}


def main(mirror: Path) -> None:
    """Prints the agreement for both tasks, models and readers."""
    for reader, faithful in (("default", False), ("reference", True)):
        judges = {
            "gsm8k": partial(numbers, faithful=faithful),
            "humaneval": partial(programs, mirror=mirror, faithful=faithful),
        }
        for task, judge in judges.items():
            for model, (same, total) in agreement(task, judge).items():
                print(f"{task:10} {reader:10} {model:28} {same} of {total}")  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
