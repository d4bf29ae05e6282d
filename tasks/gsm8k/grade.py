r"""GSM8K's grader: greedy answers, right if the final number is.

prompts.py says what the model is asked, and final_number.py which number is the answer.

With the option `prompts: faithful`, examples, end of an answer and its number are those of the reference, opencompass
(gsm8k_gen_1d7fe4 and datasets/gsm8k.py, Apache-2.0). It takes the last match of `-?\d+\.\d+|-?\d+`, which splits
`1,000` at the comma and counts the right answer as wrong. The solutions of its four examples are those of Fu et al.
(arXiv 2210.00720). Their problems are rows of the training data; see SHOTS in prepare.py, which has the same order.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from a2rl.core.files import read_jsonl
from a2rl.sampling import Sampler, SamplingParams, as_prompt
from a2rl.scoring.score import ItemResult
from a2rl.task_api.contract import Limits, Options
from a2rl.task_api.rows import RowsGrader, one_by_one
from tasks.gsm8k import prompts
from tasks.gsm8k.final_number import QUESTION, final_number
from tasks.gsm8k.prompts import prompt, shots_that_fit

ANSWER_SHOWN = 200
TOLERANCE = 1e-6
_NUMBER = re.compile(r"-?\d+\.\d+|-?\d+")
REFERENCE_SOLUTIONS = (
    (
        "Angelo and Melanie think they should dedicate 3 hours to each of the 2 chapters, 3 hours x 2 chapters = 6 "
        "hours total.\n"
        "For the worksheets they plan to dedicate 1.5 hours for each worksheet, 1.5 hours x 4 worksheets = 6 hours "
        "total.\n"
        "Angelo and Melanie need to start with planning 12 hours to study, at 4 hours a day, 12 / 4 = 3 days.\n"
        "However, they need to include time for breaks and lunch. Every hour they want to include a 10-minute "
        "break, so 12 total hours x 10 minutes = 120 extra minutes for breaks.\n"
        "They also want to include 3 10-minute snack breaks, 3 x 10 minutes = 30 minutes.\n"
        "And they want to include 30 minutes for lunch each day, so 120 minutes for breaks + 30 minutes for snack "
        "breaks + 30 minutes for lunch = 180 minutes, or 180 / 60 minutes per hour = 3 extra hours.\n"
        "So Angelo and Melanie want to plan 12 hours to study + 3 hours of breaks = 15 hours total.\n"
        "They want to study no more than 4 hours each day, 15 hours / 4 hours each day = 3.75\n"
        "They will need to plan to study 4 days to allow for all the time they need.\n"
        "The answer is 4\n"
    ),
    (
        "Mark's team scores 25 2 pointers, meaning they scored 25*2= 50 points in 2 pointers.\n"
        "His team also scores 6 3 pointers, meaning they scored 8*3= 24 points in 3 pointers\n"
        "They scored 10 free throws, and free throws count as one point so they scored 10*1=10 points in free "
        "throws.\n"
        "All together his team scored 50+24+10= 84 points\n"
        "Mark's opponents scored double his team's number of 2 pointers, meaning they scored 50*2=100 points in 2 "
        "pointers.\n"
        "His opponents scored half his team's number of 3 pointers, meaning they scored 24/2= 12 points in 3 "
        "pointers.\n"
        "They also scored half Mark's team's points in free throws, meaning they scored 10/2=5 points in free "
        "throws.\n"
        "All together Mark's opponents scored 100+12+5=117 points\n"
        "The total score for the game is both team's scores added together, so it is 84+117=201 points\n"
        "The answer is 201\n"
    ),
    (
        "When Bella buys 2/5 times more marbles, she'll have increased the number of marbles by 2/5*60 = 24\n"
        "The total number of marbles she'll have is 60+24 = 84\n"
        "If Bella currently has 60 marbles, and she has two times as many marbles as frisbees, she has 60/2 = 30 "
        "frisbees.\n"
        "If Bella buys 2/5 times more frisbees, she'll have 2/5*30 = 12 more frisbees.\n"
        "The total number of frisbees she'll have will increase to 30+12 = 42\n"
        "Bella also has 20 more frisbees than deck cards, meaning she has 30-20 = 10 deck cards\n"
        "If she buys 2/5 times more deck cards, she'll have 2/5*10 = 4 more deck cards.\n"
        "The total number of deck cards she'll have is 10+4 = 14\n"
        "Together, Bella will have a total of 14+42+84 = 140 items\n"
        "The answer is 140\n"
    ),
    (
        "For the first three baskets, the number of apples and oranges in one basket is 9+15=24\n"
        "In total, together with bananas, the number of fruits in one basket is 24+14=38 for the first three "
        "baskets.\n"
        "Since there are three baskets each having 38 fruits, there are 3*38=114 fruits in the first three "
        "baskets.\n"
        "The number of apples in the fourth basket is 9-2=7\n"
        "There are also 15-2=13 oranges in the fourth basket\n"
        "The combined number of oranges and apples in the fourth basket is 13+7=20\n"
        "The fourth basket also contains 14-2=12 bananas.\n"
        "In total, the fourth basket has 20+12=32 fruits.\n"
        "The four baskets together have 32+114=146 fruits.\n"
        "The answer is 146\n"
    ),
)


def is_right(text: str, gold: str) -> bool:
    """Says whether the final number of an answer is that of the data's solution."""
    got, right = final_number(text), final_number(gold)
    assert right is not None
    return got is not None and abs(got - right) < TOLERANCE


def is_right_by_reference(text: str, gold: str) -> bool:
    """Says whether the last number before another question is that of the data's solution, after `####`."""
    numbers = _NUMBER.findall(text.split(QUESTION, maxsplit=1)[0])
    expected = int(gold.split("#### ")[1].replace(",", ""))
    return bool(numbers) and abs(float(numbers[-1]) - expected) < TOLERANCE


def _grader_by(rule: Callable[[str, str], bool]) -> RowsGrader:
    return RowsGrader(prompts, one_by_one(lambda row, text: rule(text, row["answer"])), ANSWER_SHOWN)


_grader, _reference_grader = _grader_by(is_right), _grader_by(is_right_by_reference)
item_ids, score_outputs, gold_outputs = _grader.item_ids, _grader.score_outputs, _grader.gold_outputs


def grade(sampler: Sampler, hidden: Path, ids: Sequence[str], limits: Limits, options: Options) -> list[ItemResult]:
    """See `a2rl.task_api.contract.Grader`."""
    # Of all items: so a model sees an item with the same shots, whether it is graded in a sample, a half or the whole.
    rows, faithful, chat = _grader.rows(hidden), options.get("prompts") == "faithful", sampler.has_chat_template
    shots = shots_that_fit(
        _shots(hidden, faithful),
        [row["question"] for row in rows.values()],
        chat,
        lambda asked: sampler.room_after(as_prompt(asked)),
        limits.max_new_tokens,
    )
    asked = [as_prompt(prompt(rows[each]["question"], shots, chat)) for each in ids]
    params = SamplingParams(max_new_tokens=limits.max_new_tokens, stop=() if faithful else (QUESTION,))
    grader = _reference_grader if faithful else _grader
    return grader.judged(ids, [rows[each] for each in ids], sampler.generate(asked, params))


def _shots(hidden: Path, faithful: bool) -> Sequence[Mapping[str, Any]]:
    shots = read_jsonl(hidden / "shots.jsonl")
    if not faithful or not shots:
        return shots
    pairs = zip(shots, REFERENCE_SOLUTIONS, strict=True)
    return [{"question": shot["question"], "answer": solution} for shot, solution in pairs]


def item_kinds(hidden: Path) -> dict[str, str]:
    """See `a2rl.task_api.contract.KindsGrader`: the number of lines of the solution, about its number of steps."""
    return {each: f"{len(row['answer'].strip().splitlines()) - 1} steps" for each, row in _grader.rows(hidden).items()}
