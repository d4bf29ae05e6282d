r"""GSM8K's prompts: what the grader asks, and what it takes for a solution. The agent gets this file as it is.

The prompt is the reference's (opencompass gsm8k_gen_1d7fe4): `Question: ...\nLet's think step by step\nAnswer:`, with
four worked examples in the full variant. A model with a chat template gets examples and question as turns of a chat.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
"""A problem, with its `question` and `answer`."""
Chat = list[dict[str, str]]
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
"""Those of the reference's examples, in the order of SHOTS in prepare.py, by Fu et al. (arXiv 2210.00720)."""


def prompt(question: str, shots: Sequence[Row], chat: bool) -> str | Chat:
    """Returns the model's prompt: a text, or a chat for a model with a chat template."""
    if chat:
        turns: Chat = []
        for shot in shots:
            turns += [_message("user", _asked(shot["question"])), _message("assistant", solution(shot))]
        return [*turns, _message("user", _asked(question))]
    worked = "".join(f"{_asked(shot['question'])} {solution(shot)}\n\n" for shot in shots)
    return worked + _asked(question)


def solution(row: Row) -> str:
    """Returns the worked solution of a problem, without the data's calculator annotations."""
    return re.sub(r"<<[^<>]*>>", "", row["answer"])


def worked_examples(shots: Sequence[Row], faithful: bool) -> Sequence[Row]:
    """Returns the examples, with the reference's solutions in the grader's option `prompts: faithful`."""
    if not faithful or not shots:
        return shots
    pairs = zip(shots, REFERENCE_SOLUTIONS, strict=True)
    return [{"question": shot["question"], "answer": solution} for shot, solution in pairs]


def shots_that_fit(
    shots: Sequence[Row], questions: Sequence[str], chat: bool, room_after: Callable[[Any], int], max_new_tokens: int
) -> Sequence[Row]:
    """Returns the first shots that leave room for the longest question and its answer.

    A truncated prompt would begin in the middle of an example. The models of the reference have room for all four.

    Args:
        shots: All of them.
        questions: What will be asked.
        chat: Whether the model has a chat template.
        room_after: Returns how many tokens of the model's context a prompt leaves free.
    """
    longest = max(questions, key=len, default="")
    for count in range(len(shots), 0, -1):
        if room_after(prompt(longest, shots[:count], chat)) >= max_new_tokens:
            return shots[:count]
    return ()


def _asked(question: str) -> str:
    return f"Question: {question}\nLet's think step by step\nAnswer:"


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
