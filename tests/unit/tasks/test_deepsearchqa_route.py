"""Tests how the scripted agent learns to search: what it imitates, and what it leaves out."""

import subprocess
import sys
from pathlib import Path

import pytest

from a2rl.core.files import write_jsonl
from tasks.deepsearchqa import mini
from tasks.deepsearchqa.mini import World
from tasks.deepsearchqa.prepare import copy_tools
from tasks.deepsearchqa.research import Index
from tasks.deepsearchqa.research.episode import INSTRUCTIONS

AGENT = Path(__file__).parents[3] / "agents" / "scripted"

SCRIPT = """
import sys
from pathlib import Path
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
from routes import Setting, load_route
data = Path(sys.argv[2])
meta = {"seed": 0, "max_steps": 6, "options": {"prompts": "repaired"}}
setting = Setting(data, SimpleNamespace(chat_template=None), 4096, meta, small=True)
route = load_route("deepsearchqa", setting)
from research import Episode, read_questions

examples = [example for name in route.names if (example := route.example(name))]
texts = {example.prompt + "".join(part.text for part in example.parts) for example in examples}
assert len(texts) == len(examples) >= 20
spoilt = [part for example in examples for part in example.parts if "search[" in part.text and not part.learn]
assert spoilt, "some searches are mistakes, and are not learned"
for example in examples:
    learned = "".join(part.text for part in example.parts if part.learn)
    assert "| The" not in learned, "what a search showed is not learned"
    assert learned.endswith("]") and "Action: answer[ " in learned
    assert example.prompt.startswith("Question: ") and example.prompt.endswith("Thought:")
    for before, part in zip(example.parts, example.parts[1:]):
        if part.text == "\\nObservation:":
            assert part.learn and "Action: search[" in before.text
    shown, _, answer = (example.prompt + "".join(part.text for part in example.parts)).rpartition("Action: answer[ ")
    assert answer.removesuffix("]") in shown, "other names are the same ones throughout"
assert len({example.prompt for example in examples} & {Episode(each).text for each in route.questions.values()}) < 5
assert set(route.questions.values()) == set(read_questions(data / "train.jsonl"))
assert route.environment(route.names[0]).prompt == Episode(route.questions[route.names[0]]).text

(data / "pages" / "pages.jsonl").unlink()
(data / "prompt.txt").write_text(sys.argv[3])
closed = load_route("deepsearchqa", setting)
for name in closed.names:
    example, question = closed.example(name), closed.questions[name]
    assert example.prompt == Episode(question, sys.argv[3]).text
    [answered] = example.parts
    assert answered.text.endswith(f"Action: answer[{question.answer}]") and answered.learn
print("all is well")
"""


@pytest.mark.heavy
def test_the_route_imitates_the_expert_without_its_mistakes(tmp_path: Path) -> None:
    """It does without pages."""
    data, world = tmp_path / "data", World("train", 3)
    data.mkdir()
    copy_tools(data)
    write_jsonl(data / "pages" / "pages.jsonl", (page._asdict() for page in world.pages()))
    rows = [
        {
            "problem": each.problem,
            "problem_category": each.category,
            "answer": each.answer,
            "answer_type": each.answer_type,
        }
        for each in mini.generate(40, world, Index(world.pages()), 3)
    ]
    write_jsonl(data / "train.jsonl", rows)
    (data / "prompt.txt").write_text("")
    command = [sys.executable, "-c", SCRIPT, str(AGENT), str(data), INSTRUCTIONS]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ended.stdout.strip() == "all is well", ended.stderr
