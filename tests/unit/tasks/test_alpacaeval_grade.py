"""Tests AlpacaEval's grader: from answers to preferences to win rates, with the package's statistics."""

import csv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from a2rl.core.errors import IntegrityError
from a2rl.core.files import write_jsonl
from a2rl.grading.job import score_items
from a2rl.judge.client import Answer, Question
from a2rl.judge.local import open_judge
from a2rl.judge.params import JudgeConfig
from a2rl.sampling import Completion, Prompt, SamplingParams
from a2rl.scoring.score import ItemResult, TaskScore
from a2rl.task_api.contract import Limits
from tasks.alpacaeval import grade as grader
from tasks.alpacaeval.annotator import RULE_ANNOTATOR
from tasks.alpacaeval.length_control import LengthControl, NotComputableError, length_control
from tasks.alpacaeval.prepare import CALIBRATION, calibration, read_json
from tasks.alpacaeval.prompts import prompt
from tests.alpaca_eval_package import length_controlled_win_rate
from tests.fake_judge import FakeJudge, fake_judge
from tests.fake_sampler import FakeSampler
from tests.run_maker import wait_for

LIMITS = Limits(max_new_tokens=7)
PUBLISHED = {"gemma-2b-it": (3.4020, 0.5390, 5.4375), "alpaca-7b": (2.5915, 0.4871, 5.8755)}
"""Win rate, its standard error, length-controlled win rate (the leaderboard of alpaca-eval 0.6.6)."""


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeJudge]:
    with fake_judge(tmp_path_factory.mktemp("judge")) as running:
        yield running


@pytest.fixture
def hidden(tmp_path: Path) -> Path:
    rows = [
        {"instruction": f"Tell me {n} facts.", "dataset": "koala" if n % 2 else "oasst", "reference": f"{n} facts." * n}
        for n in range(1, 51)
    ]
    folder = tmp_path / "hidden"
    folder.mkdir()
    write_jsonl(folder / "eval.jsonl", rows)
    return folder


def generated_calibration(path: Path, items: int) -> Path:
    """Makes a df_gamed.csv of a model with short answers and of one with long answers."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ("model", "index", "preference", "std_delta_len", "instruction_difficulty", "not_gamed_baseline")
        )
        for model, sign in (("concise", 1), ("verbose", -1)):
            for index in range(items):
                preference = 0.5 - 0.2 * sign + 0.001 * (index % 97)
                length = sign * (1 + 0.01 * (index % 31))
                table.writerow((model, index, preference, length, (index % 13 - 6) / 4, False))
    return path


def judging(judge: FakeJudge, folder: Path, mood: str = "kind", **changes: Any) -> JudgeConfig:
    return JudgeConfig(judge.params(mood, attempts=1, **changes), folder / "judgements.db")


@pytest.mark.heavy
def test_a_judged_item_is_correct_where_the_judge_prefers_it(hidden: Path, judge: FakeJudge, tmp_path: Path) -> None:
    ids = grader.item_ids(hidden)
    items = grader.score_outputs(dict.fromkeys(ids, "An answer."), hidden, ids, LIMITS, judging(judge, tmp_path))
    assert {(item.verdict, round(item.value, 6)) for item in items} == {("correct", 0.75), ("wrong", 0.25)}
    assert {item.group for item in items} == {"koala", "oasst"}
    assert items[0].measures["judge's price, dollars"] == pytest.approx((100 * 10 + 30) / 1e6)


@pytest.mark.parametrize("mood", ["no-logprobs", "garbled", "broken", "chatty", "forbidden"])
def test_a_failed_judgement_is_errored_and_never_a_win_or_a_loss(
    hidden: Path, judge: FakeJudge, tmp_path: Path, mood: str
) -> None:
    ids = grader.item_ids(hidden)
    items = grader.score_outputs(dict.fromkeys(ids, "An answer."), hidden, ids, LIMITS, judging(judge, tmp_path, mood))
    assert {item.verdict for item in items} == {"errored"}
    assert all(item.reason for item in items)
    score = score_items("alpacaeval", hidden, items)
    assert score.score is None
    assert "50 of 50 items could not be judged" in score.reason
    assert score.correct + score.wrong + score.truncated + score.errored == score.total == 50


def test_what_was_cut_by_length_and_lost_is_truncated(hidden: Path, judge: FakeJudge, tmp_path: Path) -> None:
    ids = grader.item_ids(hidden)
    sampler = FakeSampler(lambda prompt: Completion(" An answer", "length", 5, 7))
    with open_judge(judging(judge, tmp_path)) as client:
        items = grader.grade(sampler, hidden, ids, LIMITS, {}, client.asking(1))()
    assert {item.verdict for item in items} == {"correct", "truncated"}
    assert sampler.params == [SamplingParams(max_new_tokens=7, stop=("### Instruction:",))]


def test_an_answer_is_judged_before_the_next_one_is_generated(hidden: Path, judge: FakeJudge, tmp_path: Path) -> None:
    before, answers = len(judge.asked()), iter(range(3))

    def write(prompt: Prompt) -> str:
        number = next(answers)
        wait_for(lambda: len(judge.asked()) - before == number, timeout_s=30)
        return f"Answer {number}"

    with open_judge(judging(judge, tmp_path)) as client:
        finish = grader.grade(FakeSampler(write), hidden, ["0", "1", "2"], LIMITS, {}, client.asking(1))
        assert len(finish()) == 3


def test_an_empty_answer_is_lost_and_the_references_own_a_tie(hidden: Path, judge: FakeJudge, tmp_path: Path) -> None:
    """The judge is not asked."""
    before = len(judge.asked())
    outputs = {"0": "  \n", "1": grader.items_of(hidden)[1].reference}
    outputs = {each: f"{text}### Instruction:\nMore" for each, text in outputs.items()}  # what a model never writes
    lost, tied = grader.score_outputs(outputs, hidden, ["0", "1"], LIMITS, judging(judge, tmp_path))
    assert (lost.verdict, lost.value, tied.verdict, tied.value) == ("wrong", 0.0, "wrong", 0.5)
    assert len(judge.asked()) == before


class Asked:
    """Keeps what a judge would be asked, and likes everything."""

    annotator = RULE_ANNOTATOR

    def __init__(self) -> None:
        self.questions: dict[str, Question] = {}

    def put(self, item: str, question: Question) -> None:
        self.questions[item] = question

    def answers(self) -> dict[str, Answer]:
        return dict.fromkeys(self.questions, Answer(1.0))


def test_thoughts_are_no_part_of_what_is_judged(hidden: Path) -> None:
    write_jsonl(hidden / "eval.jsonl", [{"instruction": "Greet.", "dataset": "", "reference": "Hi\u200d."}] * 3)
    texts = iter(["<think>\nLong.\n</think>\n\nHello.<|im_end|>", "<think>Hello.", "short</think> Hi\u200d."])
    asked: Any = Asked()
    judged, lost, tied = grader.grade(FakeSampler(lambda _: next(texts)), hidden, ["0", "1", "2"], LIMITS, {}, asked)()
    assert list(asked.questions) == ["0"]
    prompt = str(asked.questions["0"].messages)
    assert ("Hello." in prompt, "Long" in prompt, "think" in prompt) == (True, False, False)
    assert (judged.answer, judged.measures[grader.LENGTH], judged.value) == ("Hello.", 6, 1.0)
    assert (lost.verdict, lost.answer, lost.measures[grader.LENGTH]) == ("wrong", "", 0)
    assert tied.value == 0.5


def test_base_models_get_headings_and_chat_models_a_turn() -> None:
    assert prompt("Say hello.", chat=False) == "### Instruction:\nSay hello.\n\n### Response:"
    assert prompt("Say hello.", chat=True) == [{"role": "user", "content": "Say hello."}]


def results(hidden: Path, values: list[float]) -> list[ItemResult]:
    return [
        ItemResult(
            id=item.id,
            verdict="correct" if value > 0.5 else "wrong",
            value=value,
            measures={grader.LENGTH: 10.0 + 7 * (place % 5), "judge's price, dollars": 0.01},
        )
        for place, (item, value) in enumerate(zip(grader.items_of(hidden), values, strict=False))
    ]


def fitted(annotations: list[dict[str, Any]], calibration: Path) -> LengthControl:
    """Fits annotations in the package's format."""
    lengths = [len(each["output_1"]) - len(each["output_2"]) for each in annotations]
    preferred = [each["preference"] - 1 for each in annotations]
    return length_control(list(range(len(annotations))), lengths, preferred, calibration)[0]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_score_is_the_packages_length_controlled_win_rate(hidden: Path) -> None:
    path = generated_calibration(hidden / CALIBRATION, 50)
    items = results(hidden, [(0.1, 0.9, 0.2, 0.6, 0.3)[place % 5] for place in range(50)])
    score = score_items("alpacaeval", hidden, items)
    annotations = [
        {"preference": 1 + item.value, "output_1": known.reference, "output_2": "x" * int(item.measures[grader.LENGTH])}
        | {"generator_1": "a", "generator_2": "b"}
        for known, item in zip(grader.items_of(hidden), items, strict=True)
    ]
    assert score.score == pytest.approx(length_controlled_win_rate(annotations, path), abs=1e-9)
    assert score.measures["win rate"] == pytest.approx(42.0)
    assert score.measures["judge's price, dollars in all"] == pytest.approx(0.5)
    assert score.ci is not None
    assert score.score is not None
    assert 0 < score.ci.low < score.score < score.ci.high < 100


def test_without_calibration_there_is_no_score_but_a_win_rate(hidden: Path) -> None:
    score = score_items("alpacaeval", hidden, results(hidden, [0.5, 1.0] * 25))
    assert score.score is None
    assert CALIBRATION in score.reason
    assert score.measures["win rate"] == 75


@pytest.mark.parametrize(("value", "low", "high"), [(0.0, 0, 20), (1.0, 80, 100)])
def test_winning_all_or_nothing_has_a_score_and_an_interval(
    hidden: Path, value: float, low: float, high: float
) -> None:
    generated_calibration(hidden / CALIBRATION, 50)
    score = score_items("alpacaeval", hidden, results(hidden, [value] * 50))
    assert score.score is not None
    assert score.ci is not None
    assert low <= score.ci.low <= score.score <= score.ci.high <= high


def test_equally_longer_answers_cannot_be_length_controlled(tmp_path: Path) -> None:
    with pytest.raises(NotComputableError, match="by the same length"):
        length_control(range(9), [-1.0] * 9, [0.5] * 9, generated_calibration(tmp_path / CALIBRATION, 9))


@pytest.mark.parametrize(
    "calibration",
    [
        "",
        "not a table",
        "index,preference\n0,0.5\n",
        "model,index,preference,std_delta_len,instruction_difficulty\nconcise,0,0.5,1,1\n",  # of one item
    ],
)
def test_another_kind_of_calibration_gives_a_reason_and_no_score(hidden: Path, calibration: str) -> None:
    (hidden / CALIBRATION).write_text(calibration)
    score = score_items("alpacaeval", hidden, results(hidden, [0.5, 1.0] * 25))
    assert score.score is None
    assert "cannot be fitted" in score.reason


def test_one_item_has_no_standard_error_and_can_be_recorded(hidden: Path) -> None:
    generated_calibration(hidden / CALIBRATION, 50)
    score = score_items("alpacaeval", hidden, results(hidden, [0.5]))
    assert TaskScore.model_validate_json(score.model_dump_json()) == score
    assert score.measures["win rate"] == 50


@pytest.mark.heavy
def test_runs_that_are_scored_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = generated_calibration(tmp_path / CALIBRATION, 60)
    all_rows = [
        [
            {"preference": 1.0 + (n % (3 + seed) == 0), "output_1": "a" * 30, "output_2": "b" * (n * (7 + seed) % 60)}
            for n in range(60)
        ]
        for seed in range(6)
    ]
    alone = [fitted(rows, path) for rows in all_rows]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(fitted, all_rows * 3, [path] * 18)) == alone * 3


def annotations_of(shared_data: Path, name: str) -> Path:
    return shared_data / "alpaca_eval" / f"annotations_{name}.json.xz"


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_annotations_give_the_published_figures(shared_data: Path, tmp_path: Path, name: str) -> None:
    rows = read_json(annotations_of(shared_data, name))
    write_jsonl(tmp_path / "eval.jsonl", ({**row, "dataset": "", "reference": row["output_1"]} for row in rows))
    found = grader.headline(results(tmp_path, [row["preference"] - 1 for row in rows]), tmp_path).measures
    assert found["win rate"] == pytest.approx(PUBLISHED[name][0], abs=5e-5)
    assert found["win rate, standard error"] == pytest.approx(PUBLISHED[name][1], abs=1e-3)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_length_control_is_the_packages_own_on_the_same_inputs(shared_data: Path, tmp_path: Path) -> None:
    path = generated_calibration(tmp_path / CALIBRATION, 805)
    rows = read_json(annotations_of(shared_data, "alpaca-7b"))
    assert fitted(rows, path).rate == pytest.approx(length_controlled_win_rate(rows, path), abs=1e-9)


def test_a_calibration_that_is_not_the_published_one_is_refused(tmp_path: Path) -> None:
    generated_calibration(tmp_path / CALIBRATION, 805)
    with pytest.raises(IntegrityError, match="not the published"):
        calibration(tmp_path)


@pytest.mark.network
@pytest.mark.parametrize("name", PUBLISHED)
def test_length_control_gives_the_published_figures(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    found = fitted(read_json(annotations_of(shared_data, name)), calibration(None))
    assert found.rate == pytest.approx(PUBLISHED[name][2], abs=0.05)
