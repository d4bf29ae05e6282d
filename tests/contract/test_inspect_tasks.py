"""Tests evaluations for inspect_ai with the packages themselves, which `make setup-tasks` installs.

The data sets have the shape that they have on the hub, with a few rows of our own.
"""

import hashlib
import json
import subprocess
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import tasks
from a2rl.core.errors import A2rlError, TaskDefinitionError, UsageError
from a2rl.core.files import read_jsonl
from a2rl.core.settings import Settings
from a2rl.scoring.score import summarise
from a2rl.task_api.catalog import find_task, load_grader, load_task
from a2rl.task_api.check import TaskCheck
from a2rl.task_api.contract import Limits
from a2rl.task_api.data import ensure_data, prepare_data, require_source
from a2rl.task_api.inspect_tasks import Evaluation
from a2rl.task_api.rows import RowsGrader
from tests.contract.test_reasoning_gym import HOSTILE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Settings.load().tasks_python.is_file(), reason="make setup-tasks"),
]
LIMITS = Limits(max_new_tokens=7)
TIMES = range(2, 14)
LETTERS = "ABCD"
AGIEVAL = "https://raw.githubusercontent.com/ruixiangcui/AGIEval/84ab72d94318290aad2e4ec820d535a95a1f7552/data/v1_1/"

OWN = """
import hashlib
import random
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, accuracy, match, model_graded_qa, scorer
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import think
from inspect_evals.gpqa import gpqa

def made(**more):
    samples = [Sample(input=f"What is {n} + 1?", target=str(n + 1)) for n in range(12)]
    return Task(**{"dataset": samples, "solver": generate(), "scorer": match(), **more})

@task
def gpqa_diamond():  # the package's own, with the digest of our rows
    gpqa.GPQA_DIAMOND_DATASET_SHA256 = hashlib.sha256(gpqa.GPQA_DIAMOND_CACHE_PATH.read_bytes()).hexdigest()
    return gpqa.gpqa_diamond()

@task
def unseeded():
    task = made()
    samples = [*task.dataset]
    random.shuffle(samples)
    return made(dataset=samples)

@task
def two_turns():
    return made(solver=[generate(), generate()])

@task
def tools():
    return made(solver=[use_tools(think()), generate()])

@task
def container():
    return made(sandbox="docker")

@task
def hidden_judge():
    return made(scorer=globals()["model_" + "graded_qa"]())

@task
def generous():
    return made(scorer=anything())

@scorer(metrics=[accuracy()])
def anything():
    async def score(state, target):
        return Score(value="C")
    return score

@task
def hostile():
    return made(scorer=obedient())

@scorer(metrics=[accuracy()])
def obedient():
    async def score(state, target):
        answer = state.output.completion
        evaluate = __builtins__["ev" + "al"]
        return Score(value=float(answer == "right" or bool(evaluate(answer))))
    return score
"""


def rows_of(name: str) -> Iterable[dict[str, Any]]:
    """Rows in the shape of a data set."""
    for n in TIMES:
        wrong = [str(n * 3 + extra) for extra in (1, 2, 5)]
        place, choices = n % 4, [*wrong[: n % 4], str(n * 3), *wrong[n % 4 :]]
        question = f"A box has {n} eggs. How many have 3 boxes?"
        shapes: dict[str, dict[str, Any]] = {
            "gsm8k": {"question": question, "answer": f"3 times {n}.\n#### {n * 3}"},
            "aime": {"id": str(n), "problem": question, "answer": str(n * 3)},
            "arc": {
                "id": f"Q{n}", "question": question, "choices": {"text": choices, "label": [*LETTERS]},
                "answerKey": LETTERS[place],
            },
            "mmlu": {"question": question, "subject": "astronomy", "choices": choices, "answer": place},
            "squad": {
                "id": f"s{n}", "title": "Eggs", "context": f"Box {n} has {n * 3} brown eggs.", "question": question,
                "answers": {"text": [str(n * 3), f"{n * 3} brown eggs"], "answer_start": [0, 0]},
            },
            "agieval": {
                "passage": None, "question": question, "options": [f"({LETTERS[i]}){c}" for i, c in enumerate(choices)],
                "label": LETTERS[place], "answer": None, "other": None,
            },
            "gpqa": {
                "Question": question, "Correct Answer": f"{n * 3} eggs", "Record ID": f"rec{n}",
                **{f"Incorrect Answer {i}": f"{each} eggs" for i, each in enumerate(wrong, 1)},
                "High-level domain": "Physics", "Subdomain": "Physics (general)",
            },
        }  # fmt: skip
        yield shapes[name]


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        rows = list(rows)
        lines = [rows[0], *(row.values() for row in rows)]
        path.write_text("".join(",".join(json.dumps(each) for each in line) + "\n" for line in lines))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with local copies, as `--source` takes it."""
    folder = tmp_path_factory.mktemp("copies")
    write(folder / "openai/gsm8k/main/test.jsonl", [*rows_of("gsm8k")][6:])
    write(folder / "openai/gsm8k/main/train.jsonl", [*rows_of("gsm8k")][:6])
    write(folder / "math-ai/aime25/test.jsonl", rows_of("aime"))
    write(folder / "allenai/ai2_arc/ARC-Challenge/test.jsonl", rows_of("arc"))
    write(folder / "cais/mmlu/all/test.jsonl", rows_of("mmlu"))
    for name, config, split in (("allenai/ai2_arc", "ARC-Challenge", "test"), ("cais/mmlu", "all", "test")):
        data = f"configs:\n- config_name: {config}\n  data_files:\n  - split: {split}\n    path: {config}/{split}.jsonl"
        (folder / name / "README.md").write_text(f"---\n{data}\n---\n")
    write(folder / "rajpurkar/squad_v2/validation.jsonl", rows_of("squad"))
    digest = hashlib.sha256(f"{AGIEVAL}sat-math.jsonl".encode()).hexdigest()[:32]
    write(folder / f"agieval/sat-math_{digest}.jsonl", rows_of("agieval"))
    write(folder / "gpqa/gpqa_diamond.csv", rows_of("gpqa"))
    return folder


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of the packages, with one more package."""
    site = tmp_path_factory.mktemp("site") / "site-packages"
    (site / "own_evals").mkdir(parents=True)
    (site / "own_evals/__init__.py").write_text(OWN)
    about = [f"  - {{name: {name}, dataset_samples: 12}}" for name in ("gpqa_diamond", *REFUSED)]
    assets = ["external_assets:", "  - {type: huggingface, source: gpqa}"]
    (site / "own_evals/eval.yaml").write_text("\n".join(["title: Own", "tasks:", *about, *assets]))
    (site / "own_evals-1.0.dist-info").mkdir()
    (site / "own_evals-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.4\nName: own_evals\nVersion: 1.0\n")
    (site / "own_evals-1.0.dist-info/entry_points.txt").write_text("[inspect_ai]\nown_evals = own_evals\n")
    python = site / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {Settings.load().tasks_python} "$@"\n')
    python.chmod(0o755)
    return python


@pytest.fixture
def settings(tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A project without tasks of its own, with that interpreter."""
    monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(tmp_path / "root/data/tasks")])
    monkeypatch.setenv("A2RL_TASKS_PYTHON", str(python))
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    return Settings(tmp_path / "root", Settings.load().environ)


SAME = (
    "inspect_evals/gsm8k?fewshot=2", "inspect_evals/aime2025", "own_evals/gpqa_diamond", "inspect_evals/arc_challenge",
    "inspect_evals/mmlu_0_shot", "inspect_evals/squad", "inspect_evals/agie_sat_math",
)  # fmt: skip
ANSWERS: tuple[Callable[[str, str], str], ...] = (
    lambda gold, other: gold,
    lambda gold, other: "",
    lambda gold, other: other,
    lambda gold, other: f"Let me think.\n\n{gold}",
    lambda gold, other: "I do not know.",
    lambda gold, other: f"{gold}.\nNo, {other}",
)
"""What a model may answer, from the right answer and that to another item."""

BY_INSPECT = """
    import json, os, sys
    from pathlib import Path
    os.environ["HF_HUB_OFFLINE"], os.environ["INSPECT_EVALS_CACHE_DIR"] = "1", sys.argv[1]
    import datasets
    load = datasets.load_dataset
    def local(path, *more, revision, trust_remote_code, **rest):
        return load(str(Path(sys.argv[1], path)), *more, **rest)
    datasets.load_dataset = local
    import inspect_ai
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import value_to_float
    told, scores = json.loads(sys.stdin.read()), {}
    for name, answers in told.items():
        task, _, parameters = name.partition("?")
        arguments = dict(part.split("=") for part in parameters.split("&") if part)
        def answer(messages, *_):
            output = ModelOutput.from_content("mockllm/model", answers[messages[-1].text])
            output.usage = ModelUsage()  # otherwise it loads a tokenizer from the network
            return output
        [log] = inspect_ai.eval(
            task, model=get_model("mockllm/model", custom_outputs=answer, memoize=False), epochs=1, display="none",
            log_dir=sys.argv[2], task_args={key: int(value) for key, value in arguments.items()},
        )
        assert log.status == "success", log.error.message
        number = value_to_float()
        scores[name] = {str(each.id): [number(score.value) for score in each.scores.values()] for each in log.samples}
    Path(sys.argv[2], "scores.json").write_text(json.dumps(scores))
"""


def test_items_get_the_scores_that_inspect_itself_gives(copies: Path, settings: Settings, tmp_path: Path) -> None:
    told, ours = dict[str, dict[str, str]](), dict[str, dict[str, list[float]]]()
    for name in SAME:
        task_id = find_task(f"inspect:{name}", settings.root)
        hidden = prepare_data(task_id, "full", copies, settings) / "hidden"
        grader, rows, answers = load_grader(task_id), read_jsonl(hidden / "eval.jsonl"), dict[str, str]()
        for place, (row, other) in enumerate(zip(rows, [*rows[1:], rows[0]], strict=True)):
            answers[row["id"]] = ANSWERS[place % len(ANSWERS)](row["answer"], other["answer"])
        assert len({row["messages"][-1]["content"] for row in rows}) == len(rows)
        told[name] = {row["messages"][-1]["content"]: answers[row["id"]] for row in rows}
        results = grader.score_outputs(answers, hidden, grader.item_ids(hidden), LIMITS)
        ours[name] = {each.id: [*each.measures.values()] or [each.value] for each in results}
        assert {each.verdict for each in results} == {"correct", "wrong"}, name
    subprocess.run(
        [settings.tasks_python, "-c", textwrap.dedent(BY_INSPECT), str(copies), str(tmp_path)],
        input=json.dumps(told),
        text=True,
        check=True,
        env={"HOME": str(tmp_path)},
    )
    assert ours == json.loads((tmp_path / "scores.json").read_text())


def test_an_evaluation_keeps_the_contract_of_a_task(copies: Path, settings: Settings, tmp_path: Path) -> None:
    task_id = find_task("inspect:inspect_evals/gsm8k?fewshot=2", settings.root)
    check = TaskCheck(task_id, settings.root, "full", copies, tmp_path / "checked")
    problems = [each.problem for each in check.run() if each.problem]
    assert problems == ["the eval set has 6 items, and task.py says 1319"]  # the real one has
    training = read_jsonl(check.visible / "train.jsonl")
    assert [row["answer"] for row in training] == [f"ANSWER: {n * 3}" for n in [*TIMES][:6]]
    assert "{question}" in (check.visible / "prompt.json").read_text()
    assert json.loads((check.hidden / "about.json").read_text())["eval items"] == "are public"


def test_data_that_is_needed_is_said_before_a_run(copies: Path, settings: Settings) -> None:
    task_id = find_task("inspect:inspect_evals/aime2025", settings.root)
    with pytest.raises(UsageError, match=r"--source FOLDER .*hf download math-ai/aime25 .*--revision 563bb84"):
        require_source(task_id, "full", None, settings)
    with pytest.raises(UsageError, match="math-ai/aime25"):
        ensure_data(task_id, "full", None, settings)
    ensure_data(task_id, "full", copies, settings)
    require_source(task_id, "full", None, settings)
    assert load_task(task_id, settings.root).full is not None


REFUSED = {
    "two_turns": "asks the model 2 times",
    "tools": "gives the model tools",
    "container": "runs code in containers",
    "hidden_judge": "asks another model",
    "generous": "an empty answer earns 1.00",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_graded_here_is_refused_with_the_reason(name: str, settings: Settings) -> None:
    with pytest.raises(A2rlError, match=REFUSED[name]):
        prepare_data(find_task(f"inspect:own_evals/{name}", settings.root), "full", None, settings)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("humaneval", r"containers \(Docker\)"),
        ("healthbench", "another model, such as a judge"),
        ("bfcl", "an agent with tools"),
        ("ifeval", "the Python package instruction_following_eval"),
        ("gsm9k", "close names: gsm8k"),
        ("gsm8k?colour=1", "colour"),
        ("../x", "names no evaluation"),
    ],
)
def test_what_an_evaluation_needs_is_said_at_once(name: str, why: str, settings: Settings) -> None:
    with pytest.raises(UsageError, match=why):
        find_task(f"inspect:inspect_evals/{name}", settings.root)


def test_an_evaluation_without_a_seed_has_one_order(settings: Settings) -> None:
    one, other = (Evaluation("own_evals/unseeded", {}).ask([{"make": True}]) for _ in range(2))
    assert one == other


def test_hostile_scorers_of_inspect_fail_alone(settings: Settings) -> None:
    entry = {"input": "?", "target": "right"}
    answers = ["right", *(each for attack in HOSTILE.values() for each in (attack, "right"))]
    rewards = Evaluation("own_evals/hostile", {}).rewards([({"entry": entry}, each) for each in answers])
    assert rewards[::2] == [1.0] * (len(HOSTILE) + 1)
    for what, reward in zip(HOSTILE, rewards[1::2], strict=True):
        assert isinstance(reward, TaskDefinitionError), what
    assert not Path("/tmp/a2rl-was-here").exists()


def test_an_item_that_fails_is_errored_and_counted(settings: Settings, tmp_path: Path) -> None:
    """Three of four are right: inspect says 0.75 or, of those that it could score, 1."""
    hidden = tmp_path / "hidden"
    write(hidden / "eval.jsonl", [{"id": str(n), "entry": {"input": "?", "target": "x"}} for n in range(4)])
    grader = RowsGrader(tasks, lambda pairs: Evaluation("own_evals/hostile", {}).scored(pairs, hidden))
    outputs = {"0": "right", "1": "right", "2": "1 / 0", "3": "right"}
    score = summarise(grader.score_outputs(outputs, hidden, grader.item_ids(hidden), LIMITS))
    assert (score.total, score.correct, score.errored) == (4, 3, 1)
