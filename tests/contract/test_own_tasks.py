"""Tests tasks of the user's own: folders that are named by their paths."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import tasks
from a2rl.cli import catalogs
from a2rl.cli.catalogs import new
from a2rl.config.plan import cells_of
from a2rl.config.suite import Suite
from a2rl.core.errors import InfrastructureError, TaskDefinitionError, UsageError
from a2rl.core.files import read_jsonl
from a2rl.core.settings import Settings
from a2rl.grading.dependencies import code_of
from a2rl.handout.rows import stops
from a2rl.sampling import Prompt
from a2rl.scoring.score import summarise
from a2rl.task_api.catalog import SKELETONS, find_task, load_grader, load_task, own_task_ids, task_folder, tasks_here
from a2rl.task_api.check import CHECKS, TaskCheck
from tests.fake_sampler import FakeSampler


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty checkout."""
    monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(tmp_path / "root/data/tasks")])
    return tmp_path / "root"


def own_task(folder: Path, kind: str = "static") -> Path:
    """Makes what `a2rl tasks new` makes."""
    shutil.copytree(SKELETONS / kind, folder, ignore=shutil.ignore_patterns("__*"))
    (folder / "task.py").write_text((folder / "task.py").read_text().replace("NAME", folder.name))
    return folder


def changed_task(folder: Path, file: str, old: str, new: str, kind: str = "static") -> Path:
    """Makes such a task with a mistake in it."""
    text = (own_task(folder, kind) / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    return folder


@pytest.mark.parametrize("kind", ["static", "interactive"])
def test_a_new_task_is_short_and_keeps_its_contract(root: Path, tmp_path: Path, kind: str) -> None:
    folder = own_task(tmp_path / "sums", kind)
    assert sum(len(path.read_text().splitlines()) for path in folder.iterdir()) <= 80
    task_id = find_task(str(folder), root)
    check = TaskCheck(task_id, root, "mini", None, tmp_path / "checked")
    assert [each for each in check.run() if each.problem] == []
    assert "ms an answer" in check.costs()


def test_a_task_that_cannot_be_written_is_said() -> None:
    with pytest.raises(InfrastructureError, match="cannot write /proc/sums"):
        new(Path("/proc/sums"))


def test_an_edited_task_is_another_task(root: Path, tmp_path: Path) -> None:
    folder = own_task(tmp_path / "sums")
    first = find_task(str(folder), root)
    assert find_task(str(folder), root) == first
    (folder / "description.md").write_text("Something else.")
    second = find_task(str(folder), root)
    assert own_task_ids(root) == sorted([first, second])
    assert "Something else." not in (task_folder(first, root) / "description.md").read_text()
    assert load_task(first, root).id == first
    assert list(tasks_here(root)) == [first, second]
    (folder / "description.md").write_text((task_folder(first, root) / "description.md").read_text())
    assert find_task(str(folder), root) == first
    assert list(tasks_here(root)) == [second, first]


def test_an_own_task_that_an_update_broke_is_not_listed(root: Path, tmp_path: Path) -> None:
    first, second = (find_task(str(own_task(tmp_path / name)), root) for name in ("sums", "products"))
    (task_folder(first, root) / "task.py").write_text("1 / 0")
    sys.modules.pop(f"tasks.{first}.task")
    assert list(tasks_here(root)) == [second]


def test_a_grade_depends_on_the_code_of_an_own_task(root: Path, tmp_path: Path) -> None:
    task_id = find_task(str(own_task(tmp_path / "sums")), root)
    files = code_of(task_id).files
    assert {f"tasks/{task_id}/grade.py", f"tasks/{task_id}/items.py", "a2rl/task_api/rows.py"} <= files.keys()


def test_only_the_owner_can_read_the_copies(root: Path, tmp_path: Path) -> None:
    folder = task_folder(find_task(str(own_task(tmp_path / "sums")), root), root)
    assert folder.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["gsm8k", "My-Task", "1st"])
def test_names_that_a_task_cannot_have_are_said(root: Path, tmp_path: Path, name: str) -> None:
    (root / "tasks/gsm8k").mkdir(parents=True)
    (root / "tasks/gsm8k/task.py").touch()
    with pytest.raises(UsageError, match="cannot be called"):
        find_task(str(own_task(tmp_path / "own" / name)), root)


def test_a_folder_that_is_no_task_is_said(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no task\.py; `a2rl tasks new"):
        find_task(str(tmp_path), root)
    with pytest.raises(UsageError, match=f"there is no folder {tmp_path}/sums; `a2rl tasks new"):
        find_task(f"{tmp_path}/sums", root)


@pytest.mark.parametrize("text", ["1 / 0", "TASK = 3", "import nowhere", "TASK = (", "exit(3)"])
def test_a_task_that_cannot_be_loaded_is_said_and_not_listed(root: Path, tmp_path: Path, text: str) -> None:
    folder = own_task(tmp_path / "sums")
    (folder / "task.py").write_text(text)
    with pytest.raises(TaskDefinitionError, match=r"task\.py"):
        find_task(str(folder), root)
    assert own_task_ids(root) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("task.py", 'metric="share of right answers"', "partial=True", "metric: Field required; partial: no such"),
        ("items.py", "def prompt(row):", "def prompt(row)", r"items\.py, line 6: SyntaxError: expected ':'"),
        ("prepare.py", "write_rows(items", "write_rows(item", r"prepare\.py, line 24: NameError: name 'item'"),
        ("prepare.py", "write_rows(items", "exit(3); (items", r"prepare\.py, line 24: SystemExit: 3"),
        ("prepare.py", "write_rows(items", "open('my.csv'); (items", r"prepare\.py, line 24: FileNotFoundError"),
        ("prepare.py", 'rows(1, "eval", 200)', 'rows(0, "train", 2000)', "keep each in one of them; there are 2000"),
        ("prepare.py", 'rows(1, "eval", 200)', '[["a", "b"]]', r"a row must be a dict, and not \['a', 'b'\]"),
        ("prepare.py", 'rows(0, "train", 2000)', '["a"]', "a row must be a dict, and not 'a'"),
        ("prepare.py", '{"question"', '{"id": a, "question"', r"rows of the eval set have the `id` \d\d: give each"),
        ("items.py", "def reward", "def rewards", "no function `reward`: it needs .* or the class `Environment`"),
    ],
)
def test_code_of_a_task_that_fails_is_said_with_its_line(
    root: Path, tmp_path: Path, file: str, old: str, new: str, said: str
) -> None:
    folder = changed_task(tmp_path / "sums", file, old, new)
    with pytest.raises(TaskDefinitionError, match=said):
        TaskCheck(find_task(str(folder), root), root, "mini", None, tmp_path / "checked")


def test_rows_may_be_made_one_by_one(root: Path, tmp_path: Path) -> None:
    one_by_one = "yield from found.values()\n            return"
    folder = changed_task(tmp_path / "sums", "prepare.py", "return list(found.values())", one_by_one)
    check = TaskCheck(find_task(str(folder), root), root, "mini", None, tmp_path / "checked")
    assert len(read_jsonl(check.visible / "train.jsonl")) == 2000
    assert [each for each in check.run() if each.problem] == []


@pytest.mark.parametrize(
    ("kind", "file", "old", "new", "said"),
    [
        ("static", "prepare.py", '"answer": str', '"value": str', "items have no right answer, such as item 0"),
        ("static", "items.py", "answer.strip() ==", "'?' ==", "such as that of item 0: '109' earns 0"),
        ("static", "prepare.py", "str(a + b)", "f'{a + b}\\nby {a}'", r"'109\nby 27' earns 0: it contains STOP"),
        ("static", "items.py", "answer.strip() ==", "answer ==", "' 109' earns 0: after this prompt, models begin"),
        ("static", "items.py", "float(", "float(answer) * (", "items.py, line 11: ValueError: could not convert"),
        ("static", "items.py", "    return float", "    '27 + 82' in row['question'] and row['id']\n    return float",
         "1 of 200 are errored, such as item 0: the task's own code failed: items.py, line 11: KeyError: 'id'"),
        ("static", "items.py", "float(", "exit(3) or (", "items.py, line 11: SystemExit: 3"),
        ("static", "items.py", "row['question']", "row['?']", "items.py, line 7: KeyError: '?'"),
        ("static", "items.py", "STOP", "from a2rl.core.files import read_jsonl\nSTOP", "items.py imports files, which"),
        ("static", "items.py", "STOP", "HINT = open(__file__.replace('items.py', 'task.py')).read()\nSTOP",
         "agents get no other file, and importing items.py fails: FileNotFoundError: "),
        ("static", "items.py", "STOP", "from .task import TASK\nSTOP", "items.py imports .task, which agents do not"),
        ("static", "items.py", "return float(", "float(", "reward(row, answer) must return a number from 0 to 1"),
        ("static", "items.py", "return f", "f", "prompt(row) must return a text or a chat, and not None"),
        ("static", "items.py", "answer.strip() ==", "'' <", "wrong answers count as right, or answers are judged by"),
        ("interactive", "items.py", "self.prompt =", "self.prompt = 3, ", "`prompt` of Environment must be a text"),
        ("interactive", "items.py", 'return "Right."', "return", "write(turn) must return a text, and not None"),
        ("static", "items.py", "return f", "return {}, f", "prompt(row) must return a text or a chat, and not ({}"),
        ("static", "items.py", "return f", "return list(row) or f", "prompt(row) must return a text or a chat"),
        ("interactive", "items.py", "self.prompt", "self.done = print; self.prompt", "`done` of Environment must be"),
        ("interactive", "items.py", "True, 1.0", "True, None", "`reward` of Environment must be a number from 0 to 1,"),
        ("static", "items.py", "float(", "0.2 or (", "they score 20.0; the most that is allowed is 0"),
        ("interactive", "items.py", ', self.invalid = row["number"], False, 0.0, 0', ' = row["number"], False, 0.0',
         "'Environment' object has no attribute 'invalid'"),
        ("interactive", "task.py", "max_steps=6", "max_steps=4", "needs 5, and `max_steps` is 4"),
        ("static", "prepare.py", 'rows(1, "eval", 200)', '[row | {"id": "1"} for row in rows(0, "train", 1)]',
         "1 of 1 are in the training data, such as"),
    ],
)  # fmt: skip
def test_a_failed_check_says_what_is_wrong_with_which_item(
    root: Path, tmp_path: Path, kind: str, file: str, old: str, new: str, said: str
) -> None:
    folder = changed_task(tmp_path / "sums", file, old, new, kind)
    check = TaskCheck(find_task(str(folder), root), root, "mini", None, tmp_path / "checked")
    assert said in "\n".join(each.problem for each in check.run())


def test_notes_say_what_the_first_item_asks_and_what_is_odd(root: Path, tmp_path: Path) -> None:
    folder = changed_task(tmp_path / "sums", "prepare.py", 'rows(0, "train", 2000)', "[]")
    text = (folder / "prepare.py").read_text()
    (folder / "prepare.py").write_text(text.replace('rows(1, "eval", 200)', 'rows(1, "eval", 100) * 2'))
    check = TaskCheck(find_task(str(folder), root), root, "mini", None, tmp_path / "checked")
    assert check.example() == [r"item 0 asks: 'Question: What is 27 + 82?\nAnswer:'", "its right answer: '109'"]
    notes = "\n".join(check.missing())
    assert "without rows in train.jsonl" in notes
    assert "without its copies of items, the eval set has 100 and not 200" in notes


@pytest.mark.heavy
def test_a_task_that_takes_long_is_said_with_its_line(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Settings, "load", lambda: settings)
    monkeypatch.setattr(catalogs, "SLOW_S", 0.1)
    monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(settings.root / "data/tasks")])
    folder = changed_task(tmp_path / "sums", "items.py", "    return float", "    sum(range(9**5))\n    return float")
    catalogs.check(str(folder))
    assert "still at work in items.py, line 11; Ctrl-C ends it" in capsys.readouterr().err


def test_a_stop_may_be_one_text() -> None:
    assert stops(SimpleNamespace(STOP="END")) == ("END",)


def test_somebody_elses_task_is_not_found_by_its_id(root: Path) -> None:
    with pytest.raises(UsageError, match="whose digest must begin with 3f2a91c4"):
        load_task("capitals-3f2a91c4", root)


def test_a_suite_names_a_task_by_its_folder(root: Path, tmp_path: Path) -> None:
    folder = own_task(tmp_path / "sums")
    suite = Suite(tasks=[str(folder)], agents=["noop"])
    [cell] = cells_of(suite, Settings(root, {}))
    assert cell.task == find_task(str(folder), root)


def test_without_mini_data_a_run_uses_the_full_data(root: Path, tmp_path: Path) -> None:
    folder = own_task(tmp_path / "sums")
    (folder / "task.py").write_text((folder / "task.py").read_text().replace("mini=", "full="))
    [cell] = cells_of(Suite(tasks=[str(folder)], agents=["noop"]), Settings(root, {}))
    assert cell.variant == "full"
    with pytest.raises(UsageError, match="has no mini variant: use `--variant full`"):
        load_task(cell.task, root).variant("mini")


ROUTE = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
from routes import Setting, load_route

meta = {"seed": 0, "max_new_tokens": 12, "max_steps": 6}
route = load_route("sums-3f2a91c4", Setting(Path(sys.argv[1]), SimpleNamespace(chat_template=None), 4096, meta, True))
prompts = []
for name in route.names[:50]:
    example, environment = route.example(name), route.environment(name)
    prompts.append(environment.prompt)
    assert example.prompt == environment.prompt
    for part in example.parts:
        if part.learn:
            environment.write(part.text.strip())
    assert environment.reward == 1
print(json.dumps(prompts))
"""


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("static", "row['question']", "row.pop('question')"),
        ("interactive", 'row["number"], False', 'row.pop("number"), False'),
    ],
)
def test_the_scripted_agent_learns_what_the_grader_asks(
    root: Path, tmp_path: Path, repository: Path, kind: str, old: str, new: str
) -> None:
    task_id = find_task(str(changed_task(tmp_path / "sums", "items.py", old, new, kind)), root)
    check = TaskCheck(task_id, root, "mini", None, tmp_path / "checked")
    agent = repository / "agents" / "scripted"
    command = [sys.executable, "-c", ROUTE, str(check.visible)]
    done = subprocess.run(
        command, cwd=agent, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(agent)}
    )
    assert done.returncode == 0, done.stderr
    shutil.copy(check.visible / "train.jsonl", check.hidden / "eval.jsonl")
    sampler = FakeSampler(lambda _: "")
    ids = check.grader.item_ids(check.hidden)
    check.grader.grade(sampler, check.hidden, ids, check.task.variant("mini").limits, {})
    assert set(json.loads(done.stdout)) <= set(sampler.asked)


@pytest.mark.parametrize("kind", ["static", "interactive"])
def test_a_model_that_knows_all_answers_scores_100(root: Path, tmp_path: Path, kind: str) -> None:
    task_id = find_task(str(own_task(tmp_path / "sums", kind)), root)
    check = TaskCheck(task_id, root, "mini", None, tmp_path / "checked")

    def answer(prompt: Prompt) -> str:
        text = str(prompt)
        if kind == "static":
            a, b = (int(word) for word in text.replace("?", "").split() if word.isdecimal())
            return f" {a + b}\n"
        low, high = (int(word.strip(".")) for word in text.splitlines()[0].split()[-3::2])
        for said, answered in zip(text.splitlines()[1::2], text.splitlines()[2::2], strict=False):
            guess = int(said.strip("> "))
            low, high = (guess + 1, high) if "higher" in answered else (low, guess - 1)
        return f" {(low + high) // 2}"

    limits = check.task.variant("mini").limits
    results = load_grader(task_id).grade(FakeSampler(answer), check.hidden, check.ids, limits, {})
    assert summarise(results).score == 100


def test_a_file_is_read_up_to_where_a_model_stops(root: Path, tmp_path: Path) -> None:
    task_id = find_task(str(own_task(tmp_path / "sums")), root)
    check = TaskCheck(task_id, root, "mini", None, tmp_path / "checked")
    right, wrong = ({each: text.format(check.gold[each]) for each in check.ids} for text in ("{}\n1", "1\n{}"))
    assert [summarise(check.results(outputs)).score for outputs in (right, wrong)] == [100, 0]


def test_a_file_takes_no_more_turns_than_a_model(root: Path, tmp_path: Path) -> None:
    task_id = find_task(str(own_task(tmp_path / "guess", "interactive")), root)
    check = TaskCheck(task_id, root, "mini", None, tmp_path / "checked")
    lowest = {each: row["low"] for each, row in zip(check.ids, read_jsonl(check.hidden / "eval.jsonl"), strict=True)}
    all_guesses = {each: "\n".join(map(str, range(low, low + 31))) for each, low in lowest.items()}
    results = check.results(all_guesses)
    assert {len(each.answer.splitlines()) for each in results if each.verdict == "wrong"} == {6}
    assert all(len(each.answer.splitlines()) <= 6 for each in results)


def test_code_of_a_task_that_fails_gives_no_number(root: Path, tmp_path: Path) -> None:
    folder = own_task(tmp_path / "sums")
    with (folder / "items.py").open("a") as items:
        items.write("\n\ndef reward(row, answer):\n    return 7 if answer else 1 / 0\n")
    check = TaskCheck(find_task(str(folder), root), root, "mini", None, tmp_path / "checked")
    for answer in ("", "x"):
        assert {each.verdict for each in check.results(dict.fromkeys(check.ids, answer))} == {"errored"}
    assert [each.claim for each in check.run() if each.problem]


@pytest.mark.parametrize(
    ("file", "old", "new", "claim"),
    [
        ("prepare.py", "random.Random(seed)", "random.Random()", "preparing twice gives the same files"),
        ("items.py", "answer.strip() ==", "'' ==", "the right answers score 100"),
        ("items.py", "float(", "1.0 or (", "empty answers score 0"),
        ("items.py", "STOP =", "import a2rl\nSTOP =", "what agents get works without a2rl"),
        ("items.py", "float(", "float(eval(answer) == ", "no answer is executed"),
        ("task.py", "eval_items=200", "eval_items=300", "the eval set has the size that task.py says"),
        ("prepare.py", 'random.Random(f"{a}+{b}").choice(POOLS)', 'POOLS[hash(f"{a}+{b}") % 4]', "preparing twice"),
        (
            "prepare.py",
            'rows(seed, "drawn", 200)',
            'sorted(rows(seed, "drawn", 200), key=lambda row: hash(str(row)))',
            "draws are secret, new, and can be repeated",
        ),
        ("prepare.py", 'rows(seed, "drawn"', 'rows(1, "eval"', "draws are secret, new, and can be repeated"),
    ],
)
def test_what_breaks_the_contract_is_found(
    root: Path, tmp_path: Path, file: str, old: str, new: str, claim: str
) -> None:
    folder = changed_task(tmp_path / "sums", file, old, new)
    check = TaskCheck(find_task(str(folder), root), root, "mini", None, tmp_path / "checked")
    assert any(each.claim.startswith(claim) for each in check.run() if each.problem)


SHOTS = """

def with_shots(variant, source, visible, hidden, prepare=prepare):
    from a2rl.core.files import read_jsonl, write_jsonl
    prepare(variant, source, visible, hidden)
    shot = read_jsonl(hidden / "eval.jsonl")[0] if {leaks} else {{"question": "What is seven plus five, in words?"}}
    for folder in (visible, hidden):
        write_jsonl(folder / "shots.jsonl", [shot])


prepare = with_shots
"""


@pytest.mark.parametrize("leaks", [False, True])
def test_only_items_are_looked_for_in_what_agents_get(root: Path, tmp_path: Path, leaks: bool) -> None:
    """What all rows say, and worked examples that both sides have, are none; unless one of these is."""
    row = '{"instruction": "Write the sum of the two numbers.", "question"'
    folder = changed_task(tmp_path / "sums", "prepare.py", '{"question"', row)
    with (folder / "prepare.py").open("a") as prepare:
        prepare.write(SHOTS.format(leaks=leaks))
    check = TaskCheck(find_task(str(folder), root), root, "mini", None, tmp_path / "checked")
    found = [each.claim for each in check.run() if each.problem]
    assert found == (
        ["the training data has no item of the eval set", "the agent gets no hidden file"] if leaks else []
    )


def test_only_code_that_answers_reach_must_not_execute_text(root: Path, tmp_path: Path) -> None:
    folder = changed_task(tmp_path / "sums", "prepare.py", "str(a + b)", 'str(eval(f"{a} + {b}"))')
    (folder / "reading.py").write_text(
        "import re\n\ndigits = re.compile('[0-9]')\n\ndef read(text): return eval(text)\n"
    )
    problems = []
    for name in ("apart", "used"):
        if name == "used":
            with (folder / "grade.py").open("a") as grade:
                grade.write("from .reading import read\n")
        check = TaskCheck(find_task(str(folder), root), root, "mini", None, tmp_path / name)
        problems += [f"{name}: {each.problem}" for each in check.run() if each.problem]
    assert [each.partition("()")[0] for each in problems] == ["used: reading.py calls eval"]


def test_every_claim_is_a_sentence_that_a_reader_understands() -> None:
    assert all(len(claim) < 80 for claim in CHECKS)
