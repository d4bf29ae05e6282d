"""Tests a run's report: what the agent did, what changed in its code, and hostile text in all of it."""

import base64
import hashlib
import html
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from a2rl.agent_systems.transcripts.atif import Agent, Observation, ObservationResult, Step, ToolCall, Trajectory
from a2rl.core.files import write_model
from a2rl.core.settings import Settings
from a2rl.recording.code_history import snapshot_code
from a2rl.results.report import work
from a2rl.results.report.data import RunReport
from a2rl.results.report.page import write_report
from a2rl.results.report.work import MAX_LINES, MAX_STEPS, read_steps
from a2rl.results.table import Cell, Table, plain, table_lines
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentStarted
from a2rl.run.records import ExecuteRecord
from a2rl.task_api.catalog import load_task
from tests.run_maker import checkout
from tests.simulated_runs import simulate_run

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'\x1b[2J\u202e"
HOSTS = ('src="http', "src='http", 'href="http', "@import", "url(http", "//fonts")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return checkout(tmp_path)


def run_with_code(settings: Settings, states: list[dict[str, str]]) -> RunDir:
    """Simulates a run with a submission after each state of the code."""
    folder, repository = settings.root / "agent-code", settings.runs / "gsm8k-sim-00001" / "code"
    folder.mkdir()
    revisions = []
    for state in states:
        for old in folder.iterdir():
            old.unlink()
        for name, text in state.items():
            (folder / name).write_text(text)
        revision = snapshot_code(folder, repository, "state")
        assert revision is not None
        revisions.append(revision)
    return simulate_run(settings, 1, submissions=len(states), revisions=revisions, protocol="paper")


def steps_at(run: RunDir, *steps: Step) -> None:
    """Writes a trajectory."""
    whole = Trajectory(agent=Agent(name="a", version="1"), steps=steps)
    run.trajectory.write_text(whole.to_json())


def step(number: int, said: str = "", after_s: float | None = None, **more: object) -> Step:
    began = 1_800_000_002.0  # tests/written_ledger.py: the agent's start is the second entry
    at = None if after_s is None else datetime.fromtimestamp(began + after_s, UTC).isoformat()
    return Step.model_validate({"step_id": number, "source": "agent", "message": said, "timestamp": at, **more})


def call(number: int, name: str, output: str, **arguments: str) -> Step:
    return step(
        number,
        after_s=10.0 * number,
        tool_calls=(ToolCall(tool_call_id="c", function_name=name, arguments=arguments),),
        observation=Observation(results=(ObservationResult(source_call_id="c", content=output),)),
    )


def page_of(run: RunDir, settings: Settings) -> str:
    write_report(run, settings)
    return run.report.read_text()


def test_the_page_shows_code_changes_before_each_submission(settings: Settings) -> None:
    first = {"train.py": "lr = 1\nsteps = 10\n"}
    run = run_with_code(settings, [first, first, {"train.py": "lr = 2\nsteps = 10\n", "more.py": "x = 1\n"}])
    page = page_of(run, settings)
    assert page.count("before submission") == 2, "the second submission has the same code as the first"
    assert '<span class="added">+lr = 2</span>' in page
    assert '<span class="removed">-lr = 1</span>' in page
    assert '2 files, <span class="plus">+2</span> <span class="minus">-1</span> lines' in page


def test_a_page_can_be_drawn_without_the_start_script(settings: Settings) -> None:
    run = run_with_code(settings, [{"train.py": "x = 1"}])
    write_model(run.root / "spec.json", run.spec.model_copy(update={"agent": "/moved/start.sh"}))
    assert "train.py" in page_of(RunDir(run.root), settings)


def test_only_mini_data_that_stands_for_more_says_nothing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with_code(settings, [{"a.py": "x = 1\n"}])
    assert "the pipeline works" in page_of(run, settings)
    whole = load_task(run.spec.task, settings.root).model_copy(update={"full": None})
    monkeypatch.setattr("a2rl.results.report.page.load_task", lambda *_: whole)
    assert "the pipeline works" not in page_of(run, settings)


def test_a_line_that_looks_like_a_header_is_still_a_line(settings: Settings) -> None:
    run = run_with_code(settings, [{"a.sql": "x\n"}, {"a.sql": "-- gone\nx\n++ b/a.sql\n"}])
    page = page_of(run, settings)
    assert '<span class="added">+-- gone</span>' in page
    assert '<span class="added">+++ b/a.sql</span>' in page


def test_a_huge_change_is_cut_and_says_so(settings: Settings) -> None:
    run = run_with_code(settings, [{"big.py": "".join(f"line_{n} = {n}\n" for n in range(5_000))}])
    page = page_of(run, settings)
    assert page.count('class="added"') <= MAX_LINES
    assert "more lines are in code/" in page
    assert len(page) < 200_000


def test_after_very_long_changes_no_more_are_compared(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MAX_READ_LINES", 9)
    run = run_with_code(settings, [{"a.py": f"{n}\n" * 9} for n in range(3)])
    page = page_of(run, settings)
    assert page.count("before submission") == 3
    assert page.count(work.NOT_COMPARED) == 2


def test_steps_of_very_many_characters_lose_their_calls(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MAX_ALL_CHARS", 3_000)
    run = simulate_run(settings, 1)
    steps_at(run, *(call(n, "Bash", "&" * 1_000, command="cat") for n in (1, 2, 3, 4)))
    steps = read_steps(run, run.ledger.entries())
    assert steps is not None
    assert [len(each.calls) for each in steps.shown] == [1, 1, 0, 0]
    assert "trajectory.json" in steps.shown[2].message


def test_steps_are_shown_in_order_with_times_and_submissions(settings: Settings) -> None:
    run = simulate_run(settings, 1, submissions=1, budget_s=100.0)  # the submission arrives after 50 s
    steps_at(run, step(1, "I look around.", 5), call(2, "Bash", "3 files", command="ls -l data"), step(3, "Done.", 70))
    page = page_of(run, settings)
    places = [page.index(text) for text in ("I look around.", "Bash: ls -l data", "submission 1 arrived", "Done.")]
    assert places == sorted(places)
    assert "2 · agent · 20s" in page
    assert page.count('href="#step-') == 3
    assert '<details class="call"><summary>' in page, "tool calls are folded"


def test_a_record_of_an_earlier_version_has_tokens_too(settings: Settings) -> None:
    """They do not count: the agent's own transcript reported them."""
    run = simulate_run(settings, 1)
    record = json.loads(run.record_path("execute").read_text())
    record["usage"] |= {"prompt_tokens": 123, "completion_tokens": 4, "cached_tokens": None, "cost_usd": 56.78}
    run.record_path("execute").write_text(json.dumps({**record, "seen": None}))
    executed = run.need("execute", ExecuteRecord)
    assert executed.usage is not None
    assert (executed.usage.steps, executed.cost_usd) == (9, None)
    page = page_of(run, settings)
    assert "tool calls" in page
    assert "56.78" not in page


def test_steps_that_break_the_formats_rules_are_shown(settings: Settings) -> None:
    """The run may be a stranger's."""
    run = simulate_run(settings, 1)
    odd = call(7, "Bash", "printed", command="ls").model_copy(update={"source": "user"})
    orphan = Observation(results=(ObservationResult(source_call_id="other", content="unasked"),))
    steps_at(run, odd, odd, step(1, "first?", observation=orphan))
    page = page_of(run, settings)
    assert page.count("Bash: ls") == 2
    assert "unasked" in page


def test_steps_without_times_are_shown_without_a_place(settings: Settings) -> None:
    run = simulate_run(settings, 1)
    steps_at(run, step(1, "timeless"))
    page = page_of(run, settings)
    assert "timeless" in page
    assert 'href="#step-' not in page


def test_of_very_many_steps_the_middle_is_left_out(settings: Settings) -> None:
    run = simulate_run(settings, 1)
    steps_at(run, *(step(number, "word " * 2_000, number) for number in range(1, MAX_STEPS + 101)))
    page = page_of(run, settings)
    assert "100 steps are left out here" in page
    assert page.count('<li id="step-') == MAX_STEPS
    assert len(page) < 4_000_000


def test_what_happened_in_steps_left_out_is_still_shown(settings: Settings) -> None:
    run = simulate_run(settings, 1, submissions=3, budget_s=200.0)  # they arrive after 50, 100 and 150 s
    first, last = ([step(each, after_s=at) for each in range(1, MAX_STEPS // 2 + 1)] for at in (10, 120))
    steps_at(run, *first, call(6, "Bash", "", command="ls"), step(7, after_s=80), step(8), step(9, after_s=90), *last)
    steps = read_steps(run, run.ledger.entries())
    assert steps is not None
    assert (steps.left_out, steps.unseen, steps.coding) == (4, (2,), ((60.0, 80.0),))
    assert [each.submissions for each in steps.shown if each.submissions] == [(1,), (3,)]
    page = page_of(run, settings)
    notes = [page.index(f"submission {number} arrived") for number in (1, 2, 3)]
    assert notes == sorted(notes)
    assert page.index("4 steps are left out here") < notes[1] < page.index("</li>", notes[1])


def test_the_charts_line_is_whole_with_many_submissions(settings: Settings) -> None:
    page = page_of(simulate_run(settings, 1, submissions=600), settings)
    [line] = re.findall('<polyline points="(.*?)"', page)
    assert len(re.findall(r"\S+", line)) == 2 * 600 + 2
    assert re.fullmatch(r"[\d., ]+", line)


def test_a_claim_that_is_cut_says_so(settings: Settings) -> None:
    run = simulate_run(settings, 1)
    (run.root / "claims").mkdir()
    (run.root / "claims" / "summary.md").write_text("x" * 200_000)
    assert "[and 190000 more characters]" in page_of(run, settings)


def test_a_long_output_keeps_its_beginning_and_its_end(settings: Settings) -> None:
    run = simulate_run(settings, 1)
    steps_at(run, call(1, "Bash", "START" + "x" * 100_000 + "END", command="cat big"))
    page = page_of(run, settings)
    assert "START" in page
    assert "END" in page
    assert len(page) < 60_000


def test_nothing_from_an_agent_becomes_markup_or_asks_a_host(settings: Settings) -> None:
    run = run_with_code(settings, [{"<b>.py": EVIL.replace("\x1b", "") + "\n"}])
    steps_at(
        run, step(1, EVIL, 1), call(2, EVIL, EVIL, command=EVIL, other=EVIL), step(3, "see", reasoning_content=EVIL)
    )
    page = page_of(run, settings)
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert not [host for host in HOSTS if host in page]


def test_a_broken_transcript_does_not_prevent_the_report(settings: Settings) -> None:
    run = simulate_run(settings, 1)
    run.trajectory.write_text('{"steps": [')
    assert "The transcript cannot be read" in page_of(run, settings)


def test_the_data_of_the_report_agrees_with_the_page(settings: Settings) -> None:
    run = simulate_run(settings, 1, submissions=3, skill=0.9)
    page = page_of(run, settings)
    report = RunReport.model_validate_json((run.report.parent / "report.json").read_text())
    assert [each.number for each in report.submissions] == [1, 2, 3]
    assert [each.is_result for each in report.submissions].count(True) == 1
    assert report.final is not None
    assert f"<b>{report.final.score:.1f}</b>" in page
    assert report.ledger_head == run.ledger.entries()[-1].hash
    assert run.ledger.events(AgentStarted)


def test_a_table_in_markdown_has_no_markup_of_an_agent() -> None:
    evil = "[x](http://evil) | <b> @all `code`\n# title"
    table = Table("runs", ("run", "gain"), ((Cell(evil), Cell("+1.0")),), right=("gain",))
    *_, row = lines = list(table_lines(table))
    assert len(lines) == 3
    assert row.count(" | ") == 1
    assert r"\[x\]\(http\:" in row
    assert "\n" not in row
    assert plain("a_b") == r"a\_b"


def test_a_page_runs_only_its_own_script_and_loads_nothing(settings: Settings) -> None:
    run = run_with_code(settings, [{"train.py": "x = 1\n"}])
    steps_at(run, call(1, "bash", EVIL, command=EVIL))
    page = page_of(run, settings)
    [policy] = re.findall(r'<meta http-equiv="Content-Security-Policy" content="(.*?)">', page)
    [script] = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert html.unescape(policy).split("; ") == [
        "default-src 'none'", "style-src 'unsafe-inline'", f"script-src 'sha256-{digest}'"
    ]  # fmt: skip
    assert not re.search(r"<[^>]* on[a-z]+=", page)
