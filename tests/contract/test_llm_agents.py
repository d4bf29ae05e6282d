"""Tests how the pipeline prompts, records, resumes and limits an agent that an LLM drives, and explains its failures.

The agent system is a fake: a shell script that prints a recorded transcript and records how it was called.
"""

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from a2rl.core import processes as process
from a2rl.core.errors import InterruptedByUserError
from a2rl.core.settings import Settings
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentEnded, AgentStarted
from a2rl.run.records import ExecuteRecord
from stages.execute import execute
from tests.run_maker import REPOSITORY, wait_for

TRANSCRIPTS = REPOSITORY / "tests" / "transcripts" / "claude-code"
DEFINITION = """
title: a fake
start: ["bash", "{agent_dir}/start.sh", "started", "{prompt}"]
resume: ["bash", "{agent_dir}/start.sh", "resumed {session}", "{prompt}"]
driver: a-model
base_url: http://127.0.0.1:9
env: {WHERE: "{base_url}", TURNS: "{max_turns}"}
forward_env: [FAKE_KEY]
needs_one_of: [FAKE_KEY]
files: {".fake/settings.json": '{{"model": "{driver}"}}'}
transcript: {format: claude-code, from: stdout}
exits: {3: it had enough}
"""
NOTE = 'n=$(ls output | wc -l); printf "%s\\n%s" "$1" "$2" > output/told-$n.txt\n'


@pytest.fixture
def checkout(settings: Settings) -> Settings:
    """A checkout with its own folder of agents, and a key for the fake agent."""
    (settings.root / "agents").unlink()
    return Settings(settings.root, {**settings.environ, "FAKE_KEY": "sk-fake"})


class FakeServiceProcess:
    """Replaces the grading service, which takes seconds to load its libraries. It grades nothing."""

    url, port = "http://127.0.0.1:9", 9

    def __init__(self, run: RunDir, settings: Settings) -> None:
        return

    def __enter__(self) -> "FakeServiceProcess":
        return self

    def __exit__(self, *_: object) -> None:
        return

    def wait_until_ready(self) -> None:
        return

    def keep_alive(self) -> None:
        return

    def drain(self) -> None:
        return


@pytest.fixture
def real_grading() -> None:
    """For tests that need the real grading service."""


@pytest.fixture(autouse=True)
def no_grading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real_grading" not in request.fixturenames:
        monkeypatch.setattr("stages.execute.ServiceProcess", FakeServiceProcess)


@pytest.fixture
def work(checkout: Settings, new_run: Callable[..., RunDir]) -> Callable[..., RunDir]:
    """Runs an agent that executes these lines of shell."""

    def make(script: str, more: str = "", **changes: object) -> RunDir:
        folder = checkout.root / "agents" / "fake"
        folder.mkdir(parents=True)
        (folder / "agent.yaml").write_text(DEFINITION + more)
        (folder / "start.sh").write_text(NOTE + script)
        for name in ("work", "refused"):
            (folder / f"{name}.jsonl").write_bytes((TRANSCRIPTS / f"{name}.jsonl").read_bytes())
        run = new_run(**{"agent": "fake", "driver": "a-model", "started": False, **changes})
        (run.workspace / ".home").mkdir()
        return run

    return make


def play(name: str) -> str:
    return f'cat "$(dirname "$0")/{name}.jsonl"\n'


def told(run: RunDir) -> list[list[str]]:
    """Returns the command line and the prompt of each start of the fake agent."""
    return [path.read_text().split("\n", 1) for path in sorted((run.workspace / "output").glob("told-*"))]


def test_it_is_told_its_task_its_mode_and_its_real_deadline(work: Callable[..., RunDir], checkout: Settings) -> None:
    run = work(play("work"), mode="sft-only", budget_s=90.0, max_turns=7)
    record = execute(run, checkout)
    [[how, prompt]] = told(run)
    assert (record.ended, how) == ("finished", "started")
    for part in (
        str(run.workspace),
        "instructions.md",
        "sft-only",
        "1m30s from now",
        "at most 7 turns",
        "of grading time",
    ):
        assert part in prompt
    assert json.loads((run.workspace / ".home/.fake/settings.json").read_text()) == {"model": "a-model"}


def test_what_it_did_is_read_from_its_transcript(work: Callable[..., RunDir], checkout: Settings) -> None:
    run = work("mkdir -p code; echo 'lr = 1' > code/train.py\n" + play("work"))
    record = execute(run, checkout)
    assert record.usage is not None
    assert (record.usage.steps, record.usage.tool_calls) == (4, 3)
    whole = json.loads(run.trajectory.read_text())
    assert (whole["schema_version"][:6], whole["agent"]["name"]) == ("ATIF-v", "fake")
    assert [json.loads(line) for line in (run.logs / "output.jsonl").read_text().splitlines()]
    assert (run.code / "train.py").read_text() == "lr = 1\n"


def test_a_refused_key_is_a_result_with_the_reason(work: Callable[..., RunDir], checkout: Settings) -> None:
    run = work(play("refused") + "exit 1\n")
    record = execute(run, checkout)
    assert (record.ended, record.exit_code, record.attempts) == ("crashed", 1, 1)
    assert "refused the key" in record.why


def test_garbage_and_an_exit_code_that_says_something(work: Callable[..., RunDir], checkout: Settings) -> None:
    run = work("head -c 3000 /dev/urandom; echo; echo '{\"type\": [[]]}'; exit 3\n")
    record = execute(run, checkout)
    assert record.ended == "crashed"
    assert record.why
    assert record.usage is not None
    assert record.usage.unreadable > 0


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ('install: {pip: "x==1"}\nprogram: x\n', "is not installed: `a2rl agents install fake`"),
        ("", "no API key: set FAKE_KEY"),
    ],
    ids=["a program that is not installed", "a key that is missing"],
)
def test_what_is_missing_ends_the_run_as_a_result(
    work: Callable[..., RunDir], settings: Settings, more: str, says: str
) -> None:
    """It costs no time."""
    run = work(play("work"), more)
    record = execute(run, settings)
    assert record.ended == "unavailable"
    assert says in record.why
    assert run.clock.elapsed_s() == 0
    assert told(run) == []


def test_an_llm_of_ones_own_needs_no_key(work: Callable[..., RunDir], settings: Settings) -> None:
    run = work('echo "$FAKE_KEY $WHERE" > output/key\n' + play("work"), base_url="http://127.0.0.1:7/v1")
    assert execute(run, settings).ended == "finished"
    found = re.fullmatch(r"none-needed http://127\.0\.0\.1:(\d+)/v1\n", (run.workspace / "output/key").read_text())
    assert found
    assert found[1] != "7"  # it is reached through the relay


def interrupt(run: RunDir, checkout: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the agent until it has said something."""
    stop = threading.Event()
    monkeypatch.setattr(process, "STOP", stop)
    said = run.logs / "transcript-1.jsonl"

    def stop_when_it_has_spoken() -> None:
        wait_for(lambda: said.exists() and said.stat().st_size)
        stop.set()

    threading.Thread(target=stop_when_it_has_spoken, daemon=True).start()
    with pytest.raises(InterruptedByUserError):
        execute(run, checkout)
    stop.clear()


@pytest.mark.heavy
def test_a_run_that_was_cut_off_goes_on_in_its_session(
    work: Callable[..., RunDir], checkout: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = work(play("work") + 'case "$1" in started) sleep 100;; esac\n')
    interrupt(run, checkout, monkeypatch)
    record = execute(run, checkout)
    [_, [how, prompt]] = told(run)
    session = json.loads((TRANSCRIPTS / "work.jsonl").read_text().splitlines()[0])["session_id"]
    assert how == f"resumed {session}"
    assert "were interrupted" in prompt
    assert "All done." in prompt
    assert (record.ended, record.attempts) == ("finished", 2)


@pytest.mark.heavy
def test_where_its_session_is_gone_it_begins_another(
    work: Callable[..., RunDir], checkout: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = "touch code/gone; echo No conversation found with session ID: 1; exit 1"
    run = work(f'case "$1" in resumed*) {gone};; esac\n' + play("work") + "[ -e code/gone ] || sleep 100\n")
    interrupt(run, checkout, monkeypatch)
    record = execute(run, checkout)
    [_, _, [how, prompt]] = told(run)
    assert (how, record.ended, record.attempts) == ("started", "finished", 3)
    assert "were interrupted" in prompt
    assert "All done." in prompt


@pytest.mark.heavy
def test_mode_multi_tries_again_with_what_came_of_the_last(work: Callable[..., RunDir], checkout: Settings) -> None:
    run = work(play("work"), mode="multi", trials=3, budget_s=600.0)
    execute(run, checkout)
    assert [event.trial for event in run.ledger.events(AgentStarted)] == [1, 2, 3]
    assert [how for how, _ in told(run)] == ["started"] * 3
    assert "attempt 3 of 3" in told(run)[2][1]
    assert "3m20s from now" in told(run)[0][1]


def test_a_crash_ends_even_mode_multi(work: Callable[..., RunDir], checkout: Settings) -> None:
    run = work("exit 1\n", mode="multi", trials=3)
    assert execute(run, checkout).attempts == 1


@pytest.mark.heavy
def test_a_hanging_agent_is_ended_at_its_deadline_without_loss(work: Callable[..., RunDir], checkout: Settings) -> None:
    run = work(
        "mkdir -p code; echo x > code/a.py\n" + play("work") + "trap '' TERM; sleep 100 & wait; sleep 100\n",
        budget_s=3.0,
    )
    record = execute(run, checkout)
    assert record.ended == "deadline"
    assert record.usage is not None
    assert record.usage.steps > 0
    assert (run.code / "a.py").exists()


@pytest.mark.heavy
def test_planted_links_in_its_home_lead_no_write_outside(
    work: Callable[..., RunDir], checkout: Settings, tmp_path: Path
) -> None:
    run = work(play("work"), mode="multi", trials=2)
    outside = tmp_path / "outside"
    outside.mkdir()
    (run.workspace / ".home/.fake").symlink_to(outside)
    assert execute(run, checkout).ended == "finished"
    assert list(outside.iterdir()) == []
    assert (run.workspace / ".home/.fake/settings.json").is_file()


MESSAGES = """messages: claude-code
start: ["python", "{agent_dir}/listen.py"]
"""
LISTENER = '''
"""Takes messages as Claude Code does: answers the first one late, and ends when there are no more."""
import json, pathlib, sys, time
heard = pathlib.Path("output/heard.jsonl").open("a")
for line in sys.stdin:
    heard.write(line)
    heard.flush()
    if "10%" in line:
        print(json.dumps({"type": "user", "message": {"content": '{"type":"result"} is no result'}}), flush=True)
    if "20%" in line:
        print(json.dumps({"type": "assistant", "message": {"id": "m", "content": "Done."}}), flush=True)
        print(json.dumps({"duration_ms": 1, "type": "result"}), flush=True)
'''


def test_an_agent_that_takes_messages_is_warned_of_its_deadline(
    work: Callable[..., RunDir], checkout: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is warned twice, and told when no more will come."""
    monkeypatch.setattr("a2rl.execution.attempt.WARN_AT", (0.1, 0.2))
    run = work("", budget_s=10.0)
    folder = checkout.root / "agents" / "fake"
    definition = [line for line in DEFINITION.splitlines() if not line.startswith(("start:", "resume:"))]
    (folder / "agent.yaml").write_text("\n".join(definition) + "\n" + MESSAGES)
    (folder / "listen.py").write_text(LISTENER)
    record = execute(run, checkout)
    heard = [json.loads(line)["message"]["content"] for line in (run.workspace / "output/heard.jsonl").open()]
    assert [said[:3] for said in heard] == ["You", "10%", "20%"]
    assert record.ended == "finished"


@pytest.mark.heavy
@pytest.mark.usefixtures("real_grading")
def test_every_call_of_the_grading_api_is_written_down(work: Callable[..., RunDir], checkout: Settings) -> None:
    run = work('curl -s "$GRADING_SERVER_URL/time"; curl -s "$GRADING_SERVER_URL/nothing"\n' + play("work"))
    execute(run, checkout)
    calls = [json.loads(line) for line in (run.logs / "api.jsonl").read_text().splitlines()]
    assert {("/time", 200), ("/nothing", 404)} <= {(call["path"], call["status"]) for call in calls}


def test_the_end_of_an_attempt_is_in_the_ledger_with_its_reason(
    work: Callable[..., RunDir], checkout: Settings
) -> None:
    run = work(play("refused") + "exit 1\n")
    record: ExecuteRecord = execute(run, checkout)
    [end] = run.ledger.events(AgentEnded)
    assert (end.reason, end.why) == ("crashed", record.why)
