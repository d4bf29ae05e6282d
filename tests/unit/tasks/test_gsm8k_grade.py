"""Tests GSM8K's grader: the final number of a solution, and how it is graded."""

from pathlib import Path

import pytest

from a2rl.core.files import read_jsonl, write_jsonl
from a2rl.sampling import Completion, SamplingParams
from a2rl.scoring.score import summarise
from a2rl.task_api.contract import Limits
from tasks.gsm8k import grade as grader
from tasks.gsm8k import prepare
from tasks.gsm8k.final_number import final_number, is_right_by_reference
from tasks.gsm8k.prompts import REFERENCE_SOLUTIONS
from tests.fake_sampler import FakeSampler

LIMITS = Limits(max_new_tokens=7)
NUMBERS = [
    # after the mark
    ("#### 18", 18),
    ("16 - 3 = 13\n#### 13", 13),
    ("####18", 18),
    ("#### 18.", 18),
    ("#### 18.0", 18),
    ("#### 18.50", 18.5),
    ("#### .5", 0.5),
    ("It costs RS. 5", 5),
    ("It costs rs.5", 5),
    ("#### $.5", 0.5),
    ("#### 0.75", 0.75),
    ("#### 1,000", 1000),
    ("#### 1,000,000", 1_000_000),
    ("#### $1,234.56", 1234.56),
    ("#### $ 18", 18),
    ("#### -5", -5),
    ("#### $-5", -5),
    ("#### -$5", -5),
    ("#### -.5", -0.5),
    ("#### 18 dollars", 18),
    ("#### 18%", 18),
    ("#### 18 apples and 3 pears", 18),
    ("#### The answer is 18", 18),
    ("#### A: 18", 18),
    ("#### **18**", 18),
    ("#### \\boxed{18}", 18),
    ("####\n18", 18),
    ("#### 18\nThat was easy, 100 points!", 18),
    ("#### 18\n\nQuestion: What is 4 + 4?\nAnswer: 4 + 4 = 8\n#### 8", 18),
    ("#### 18\n#### 20", 18),
    ("#### 007", 7),
    ("#### 3/4", 0.75),
    ("#### 1,00", 1),
    ("#### eighteen", None),
    ("It is 18.\n#### ", 18),
    ("####", None),
    # without a mark: the last number
    ("A: 18", 18),
    ("The answer is 18.", 18),
    ("The answer is 18. 3 + 4 = 7", 18),
    ("16 - 3 - 4 = 9, and 9 * 2 = 18", 18),
    ("so 10-3", 3),
    ("x=-3", -3),
    ("She makes $1,000 a day", 1000),
    ("between 3-5", 5),
    ("in 1990s terms", 1990),
    ("the variable x1", None),
    ("no number at all", None),
    ("", None),
    ("   \n ", None),
    ("Question: What is 4 + 4?\nAnswer: 8", None),
    ("18 Question: 20", 18),
]


@pytest.mark.parametrize(("text", "number"), NUMBERS, ids=[repr(text)[:40] for text, _ in NUMBERS])
def test_the_final_number_of_a_solution(text: str, number: float | None) -> None:
    assert final_number(text) == (None if number is None else pytest.approx(number))


WRITTEN_BY_CHATS = [
    # headings, and what stands below them
    ("#### Step 1: find the price\nIt is 9 * 2 = 18.\n#### Answer\nThe total is **18**.", 18),
    ("#### Step 1: find the price\nIt is 9 * 2 = 18.\n#### Step 2: done", 18),
    ("#### Step 4: Final answer: 18", 18),
    ("#### Step 4: Answer\n18 eggs", 18),
    ("#### Final Answer\n\n18", 18),
    ("### Answer\n\n**$18**", 18),
    ("#### Conclusion\nShe makes $18 every day.", 18),
    ("#### 1. Add\n3 + 4 = 7\n#### 2. Double\n7 * 2 = 14", 14),
    ("#### Cost of 3 apples\n3 * 6 = 18", 18),
    ("#### Answer: 18\n#### Check: 2 * 9", 18),
    ("#### 9 * 2 = 18", 18),
    ("#### The total cost is $18 for 9 eggs.", 18),
    ("#### 18\n\nProblem 2: Tom has 3.\n#### 3", 18),
    ("**Final Answer:**\n\n$$18$$\n", 18),
    ("Answer:\n\\[ 18 \\]", 18),
    ("The answer is:\n\n- 18 dollars", 18),
    # boxes and other markup
    ("The final answer is $\\boxed{18}$.", 18),
    ("\\[\n\\boxed{\\$18}\n\\]", 18),
    ("\\boxed{18 \\text{ dollars}} from 9 eggs", 18),
    ("\\boxed{\\frac{36}{2}}", 18),
    ("The total is \\(\\boxed{400 - 0.40 \\times 400} = 400 - 160 = 240\\).", 240),
    ("\\boxed{18} = 9 + 9", 18),
    ("So $y = 3$ and\n$$\\boxed{x = 18}$$", 18),
    ("The answer is $18$.", 18),
    ("The answer is <b>18</b>.", 18),
    ("The answer is *18*, not 3.", 18),
    ("The answer is _18_.", 18),
    ("The answer is `18`.", 18),
    ('The answer is "18".', 18),
    ("Janet makes **$18** per day from 9 eggs.", 18),
    # separators, signs, units
    ("The answer is $9{,}500.", 9500),
    ("The answer is 9\\,500", 9500),
    ("The answer is 9\u202f500", 9500),
    ("The answer is 9\xa0500", 9500),
    ("#### 9 500", 9500),
    ("#### 9_500", 9500),
    ("The answer is 9'500", 9500),
    ("The answer is 9\u2019500", 9500),
    ("The answer is 9.500,00 \u20ac", 9500),
    ("The answer is 1.234.567", 1_234_567),
    ("The answer is 1,00,000", 100_000),
    ("The answer is 18,50", 18.5),
    ("The answer is \u22125", -5),
    ("The answer is \u20135", -5),
    ("The answer is negative 5", -5),
    ("The answer is -$1,234.50", -1234.5),
    ("The answer is Rs18", 18),
    ("The answer is Rs. 18.", 18),
    ("The answer is US$18", 18),
    ("The answer is \u20ac18 or \u20ac18.00", 18),
    ("The answer is 18\u20ac", 18),
    ("The answer is 18km.", 18),
    ("The answer is \uff11\uff18", 18),
    # stated, with more after it
    ("The answer is 18.\n\nI hope this helps! Let me know if you have 2 more questions.", 18),
    ("She makes $18. Let me know if you need 2 more!", 18),
    ("**Answer: 18**\n\nExplanation: 16 - 3 - 4 = 9. Two days.", 18),
    ("The answer is 18, since 16 - 7 = 9.", 18),
    ("Answer: 18 eggs \u00d7 $2 = $36", 36),
    ("Answer: 18 (9 * 2 = 18)", 18),
    ("Final Answer: The final answer is $18$. I hope it is correct.", 18),
    ("The final answer is 18\n\n### Verification\n18 / 2 = 9", 18),
    ("The answer to part 1 is 12.\nThe final answer is 18.", 18),
    ("She answers 20 questions. Each correct answer is worth 5 points, so 20 * 5 = 100", 100),
    ("18. That is the answer", 18),
    # a calculation, and what only looks like one
    ("Answer: 11-3=8 trees", 8),
    ("#### 11-3=8", 8),
    ("\\boxed{11-3=8}", 8),
    ("The answer is 36-3=33.", 33),
    ("The answer is $60 \\div 7 = 8.57$", 8.57),
    ("The answer is 20% of 90 = 18", 18),
    ("The answer is 20 gallons at 2.50 a gallon = 50", 50),
    ("The answer is 18 since 20-3=17", 18),
    ("The answer is 18 but 20-18=2 are left", 18),
    ("The answer is 18. 20-1=19", 18),
    ("The answer is 18 eggs = 36 dollars", 18),
    ("#### 18 = 19 = 20", 18),
    ("The answer is 17 or 18 = 18", None),
    # thoughts, turns, and what is taken back
    ("<think>#### 3 maybe</think>\n#### 18", 18),
    ("<think>so it is 18", None),
    (" 18<|im_end|>\n<|im_start|>user\n20", 18),
    ("#### 12\nWait, that is wrong. 9 * 2 = 18\n#### 18", 18),
    ("The answer is 12. No, it is 18.", 18),
    ("The answer is 18. Wait, that's wrong.", None),
    ("The answer is 18. Hmm, that is wrong.", None),
    ("The answer is 18. If we count the eggs, that is wrong.", None),
    ("The answer is 18. I should have seen that this is wrong.", None),
    ("#### 18\nPlease let me know if this is incorrect.", 18),
    ("The answer is 18.\n\nIf this answer is incorrect, please let me know.", 18),
    ("The answer is 18. Tell me whether you think that it is wrong, or in case I made a mistake.", 18),
    ("The answer is 17. If you think it is wrong, you are right: that is wrong. #### 18", 18),
    ("The answer is 18. Wait, no.", None),
    ("The answer is 18. Wait. I forgot the eggs.", None),
    ("The answer is 18. Actually, it isn't.", None),
    ("The answer is 18. No, wait.", None),
    ("The answer is 18. Oops, wait.", None),
    ("#### 18\n\nWait, I should double-check this.", 18),
    ("The answer is 18. Wait, let me double-check. Yes.", 18),
    ("The answer is 17. Wait, it is 18. Wait, let me double-check.", 18),
    ("The answer is 18. Wait, let me see: 3 * 7 = 21", 21),
    ("The answer is 18. That was a mistake.", None),
    ("The answer is ~~17~~ 18", 18),
    ("The answer is not 17 but 18.", 18),
    ("The answer is not 18.", None),
    # guesses
    ("The answer is 17 or 18.", None),
    ("It is either 17 or 18", None),
    ("**17** or **18**", None),
    ("The answer is 18 dollars, or maybe 20.", None),
    ("#### 18 or 20", None),
    ("#### 17, 18, 19", None),
    ("I guess 16, 17, or 18", None),
    ("The answer is one of 17, 18 and 19.", None),
    ("The answer is between 17 and 19.", None),
    ("#### 17/18/19", None),
    ("\\boxed{17} or \\boxed{18}", None),
    ("\\boxed{17}\n\\boxed{18}", None),
    ("The answer is 17. The answer is 18.", None),
    ("The answer is 17. The answer is 18. The answer is 19. Or 20.", None),
    ("The answer is 9 * 2.", None),
    ("#### 17\n#### 18", 17),
    ("It could be 17. It could be 18.", None),
    ("Maybe 17, maybe 18", None),
    ("The answer might be 17. Or maybe it is 18.", None),
    ("Answer: 17 | 18 | 19", 17),  # without a comma or a word between them, only the first can be right
    ("#### 17 18 19", 17),
    ("#### 1-100", 1),
    ("#### 16 - 7 = 9\n#### 9 * 2 = 18\n", 18),
    ("#### 3 apples are bought each day\n3 * 6 = 18", 18),
    ("The answer is 2^4 = 16", 16),
    ("<answer>18</answer>\nI used 2 steps.", 18),
]


@pytest.mark.parametrize(("text", "number"), WRITTEN_BY_CHATS, ids=[repr(text)[:40] for text, _ in WRITTEN_BY_CHATS])
def test_chats_are_read_as_a_careful_person_reads_them(text: str, number: float | None) -> None:
    assert final_number(text) == (None if number is None else pytest.approx(number))


@pytest.fixture
def hidden(tmp_path: Path) -> Path:
    write_jsonl(
        tmp_path / "eval.jsonl",
        [{"question": f"What is {n} * 500?", "answer": f"{n}*500\n#### {n * 500:,}"} for n in (1, 2, 3)],
    )
    write_jsonl(tmp_path / "shots.jsonl", [{"question": "What is 1?", "answer": "It is <<1=1>>1.\n#### 1"}])
    return tmp_path


def said(text: str, finish: str = "stop") -> Completion:
    return Completion(text, finish, 10, 5)  # type: ignore[arg-type]


def saying(*answers: Completion, chat: bool = False) -> FakeSampler:
    """Returns a sampler that gives these answers one after the other."""
    waiting = iter(answers)
    return FakeSampler(lambda prompt: next(waiting), chat)


def test_verdicts_are_correct_wrong_or_truncated(hidden: Path) -> None:
    sampler = saying(said("#### 500"), said("#### 999"), said("let me think", "length"))
    items = grader.grade(sampler, hidden, ["0", "1", "2"], LIMITS, {})
    assert [item.verdict for item in items] == ["correct", "wrong", "truncated"]
    assert [item.value for item in items] == [1, 0, 0]
    assert [item.tokens for item in items] == [5, 5, 5]


def test_an_answer_on_which_the_rule_fails_harms_no_other(hidden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(text: str, gold: str) -> bool:
        return bool(1 / len(text))

    monkeypatch.setattr(grader, "_grader", grader._grader_by(fails))
    items = grader.grade(saying(said("#### 500"), said("")), hidden, ["0", "1"], LIMITS, {})
    assert [item.verdict for item in items] == ["correct", "errored"]


def test_a_right_answer_counts_although_the_limit_cut_the_rest(hidden: Path) -> None:
    sampler = saying(said("#### 500\n and so", "length"))
    assert grader.grade(sampler, hidden, ["0"], LIMITS, {})[0].verdict == "correct"


def test_all_items_are_asked_in_one_greedy_call_within_the_limit(hidden: Path) -> None:
    sampler = saying(*[said("")] * 3)
    grader.grade(sampler, hidden, ["0", "1", "2"], LIMITS, {})
    assert sampler.calls == [3]
    assert sampler.params == [SamplingParams(max_new_tokens=7, stop=("Question:",), temperature=0.0)]


def test_the_prompt_is_the_references_with_the_examples_before(hidden: Path) -> None:
    sampler = saying(said(""))
    grader.grade(sampler, hidden, ["1"], LIMITS, {})
    assert sampler.asked[0] == (
        "Question: What is 1?\nLet's think step by step\nAnswer: It is 1.\n#### 1\n\n"
        "Question: What is 2 * 500?\nLet's think step by step\nAnswer:"
    )


def test_examples_that_do_not_fit_are_left_out_for_all_questions(hidden: Path) -> None:
    """They are left out whole."""
    write_jsonl(hidden / "shots.jsonl", [{"question": f"What is {n}?", "answer": f"#### {n}"} for n in range(4)])
    examples = []
    for context in (1000, 250, 100):
        sampler = FakeSampler(lambda prompt: "", context=context)
        grader.grade(sampler, hidden, ["0", "1", "2"], LIMITS, {})
        [count] = {str(prompt).count("Question:") - 1 for prompt in sampler.asked}
        assert all(str(prompt).startswith("Question:") and len(str(prompt)) <= context - 7 for prompt in sampler.asked)
        examples.append(count)
    assert examples[0] == 4 > examples[1] > examples[2] == 0


def test_a_chat_model_gets_the_examples_as_turns(hidden: Path) -> None:
    sampler = saying(said(""), chat=True)
    grader.grade(sampler, hidden, ["1"], LIMITS, {})
    chat = sampler.asked[0]
    assert [message.role for message in chat if not isinstance(message, str)] == ["user", "assistant", "user"]


def test_the_gold_answer_is_never_in_its_own_prompt(hidden: Path) -> None:
    sampler = saying(*[said("")] * 3)
    grader.grade(sampler, hidden, ["0", "1", "2"], LIMITS, {})
    for prompt, number in zip(sampler.asked, ("500", "1,000", "1,500"), strict=True):
        assert f"#### {number}" not in str(prompt)


def test_a_missing_completion_is_errored_and_an_empty_one_wrong(hidden: Path) -> None:
    items = grader.score_outputs({"0": "", "1": "#### 1000"}, hidden, ["0", "1", "2"], LIMITS)
    assert [item.verdict for item in items] == ["wrong", "correct", "errored"]
    assert items[2].reason


def test_every_real_gold_answer_is_right_and_has_one_value(shared_data: Path) -> None:
    for split, rows in (("train", 7473), ("test", 1319)):
        answers = [row["answer"] for row in read_jsonl(shared_data / "gsm8k" / f"{split}.jsonl")]
        assert len(answers) == rows
        for answer in answers:
            number = answer.rpartition("####")[2].strip().replace(",", "")
            assert final_number(answer) == float(number)


def test_the_real_data_prepares_and_its_gold_answers_score_100(shared_data: Path, tmp_path: Path) -> None:
    from tasks.gsm8k.prepare import prepare
    from tasks.gsm8k.task import TASK

    visible, hidden = tmp_path / "visible", tmp_path / "hidden"
    visible.mkdir()
    hidden.mkdir()
    prepare("full", shared_data / "gsm8k", visible, hidden)
    ids = grader.item_ids(hidden)
    assert len(ids) == TASK.variant("full").eval_items
    assert summarise(grader.score_outputs(grader.gold_outputs(hidden), hidden, ids, LIMITS)).score == 100
    questions = {row["question"] for row in read_jsonl(hidden / "eval.jsonl")}
    assert not questions & {row["question"] for row in read_jsonl(visible / "train.jsonl")}
    assert len(read_jsonl(hidden / "shots.jsonl")) == 4


FAITHFUL = {"prompts": "faithful"}


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("The answer is 1500", True),
        ("The answer is 1500.0", True),
        ("It is 1500. Question: What is 7?", True),
        ("The answer is 1,500", False),  # read as 500: a fault of the reference that is kept
        ("#### 1500\nSo 20 are left", False),
        ("The answer is $1500.", True),
        ("no number", False),
        ("", False),
    ],
)
def test_a_faithful_answer_is_the_last_number(text: str, is_right: bool) -> None:
    assert is_right_by_reference(text, "3*500\n#### 1,500") is is_right


def test_faithful_examples_are_the_references_solutions(shared_data: Path, tmp_path: Path) -> None:
    """They are solutions to problems of the training data."""
    prepare.prepare("full", shared_data / "gsm8k", tmp_path, tmp_path)
    shots = read_jsonl(tmp_path / "shots.jsonl")
    for shot, solution in zip(shots, REFERENCE_SOLUTIONS, strict=True):
        assert is_right_by_reference(solution, shot["answer"])
    sampler = FakeSampler(lambda prompt: "The answer is 18", chat=True)
    [item] = grader.grade(sampler, tmp_path, ["0"], Limits(max_new_tokens=512), FAITHFUL)
    assert item.verdict == "correct"
    assert sampler.params[0].stop == ()
    [chat] = sampler.asked
    turns = [message.content for message in chat if not isinstance(message, str)]
    assert [turn.endswith(f"The answer is {n}\n") for turn, n in zip(turns[1::2], (4, 201, 140, 146), strict=True)]
    assert turns[0].startswith("Question: Angelo and Melanie want to plan")


def test_data_without_examples_has_none_in_the_faithful_way(hidden: Path) -> None:
    write_jsonl(hidden / "shots.jsonl", [])
    sampler = saying(said("500"))
    [item] = grader.grade(sampler, hidden, ["0"], LIMITS, FAITHFUL)
    assert item.verdict == "correct"
    assert sampler.asked == ["Question: What is 1 * 500?\nLet's think step by step\nAnswer:"]
