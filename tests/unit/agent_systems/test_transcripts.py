"""Tests the reading of recorded transcripts.

tests/transcripts/<format>/<case>.* are as the agent system wrote them, but with neutral paths, shortened prompts and no
lists of features. Cases: `work` plays tests/transcripts/work.yaml, or plain.yaml for rd-agent, with a scripted LLM;
`resumed` was killed in its third turn and resumed, as was `cut`; `refused` had a wrong key.
"""

import copy
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from a2rl.agent_systems.transcripts import (
    Account,
    Agent,
    FinalMetrics,
    Reading,
    Trajectory,
    ending,
    formats,
    read_transcript,
    trajectory,
)
from a2rl.agent_systems.transcripts.atif import Step
from a2rl.agent_systems.transcripts.ending import UNRECORDED, Ending, FailedRequest
from a2rl.agent_systems.transcripts.reading import parse_arguments
from a2rl.core.errors import UsageError

RECORDED = Path(__file__).parents[2] / "transcripts"
FORMATS = sorted(path.name for path in RECORDED.iterdir() if path.is_dir())
NAMELESS = {"opencode"}
VERSIONLESS = {"opencode", "gemini-cli"}
"""These do not say which LLM they work with, or their own version."""
WITH_TOOLS = [each for each in FORMATS if each != "rd-agent"]
AGENT = Agent(name="an agent", version="1")
HOSTILE = [
    "", "\n", "garbage", "\x00\xff", "[1, 2]", '"text"', "null", "[" * 100_000, '{"a":' * 5_000, '{"type": NaN}',
    '{"type": 1e999}', '{"type": "assistant", "message": 7}', '{"type": ' + "9" * 6_000 + "}",
    '{"payload": {"type": "function_call"}, "type": "response_item"}', '{"type": "result", "total_cost_usd": -1}',
    '{"messages": 3, "info": []}', '{"messages": [{"role": "tool"}, 4, {"role": "assistant", "tool_calls": [{}]}]}',
    '{"type": "\\ud800"}', "{" + '"x": [],' * 3_000_000,
]  # fmt: skip
WRONG: list[Any] = [None, True, -1, 1e308, 2**70, "x", "\ud800", [], {}, [[[]]], {"type": "text"}, "9" * 300_000]


def files(transcript_format: str, case: str) -> list[Path]:
    """Returns the files of a transcript; the output comes last."""
    found = RECORDED.joinpath(transcript_format).glob(f"{case}.*")
    return sorted(found, key=lambda path: (len(path.name), path.name))


def recorded(transcript_format: str, case: str) -> Reading:
    return read_transcript(transcript_format, *files(transcript_format, case))


def acts(reading: Reading) -> list[Step]:
    return [step for step in reading.steps if step.source == "agent"]


def outputs(step: Step) -> dict[str, str | None]:
    return {each.source_call_id or "": each.content for each in step.observation.results} if step.observation else {}


@pytest.mark.parametrize("transcript_format", WITH_TOOLS)
def test_what_was_said_and_run_is_read(transcript_format: str) -> None:
    reading = recorded(transcript_format, "work")
    steps = acts(reading)
    assert reading.unreadable == 0
    assert [step.message for step in steps] == [
        "First I look around.",
        "",
        "That file is missing. I wait a little.",
        "All done.",
    ]
    calls = [step.tool_calls or () for step in steps[:3]]
    assert [len(each) for each in calls] == [1, 1, 1]
    assert "cat code/note.txt" in json.dumps(calls[1][0].arguments)
    assert [list(outputs(step)) for step in steps[:3]] == [[each[0].tool_call_id] for each in calls]
    printed = [next(iter(outputs(step).values())) or "" for step in steps[:3]]
    assert "slept" in printed[2]
    assert "héllo ✓" in printed[1] or "h\\u00e9llo \\u2713" in printed[1]
    assert all(step.timestamp for step in steps)
    assert [step.timestamp for step in steps] == sorted(step.timestamp or "" for step in steps)
    assert reading.model or transcript_format in NAMELESS
    assert reading.agent_version or transcript_format in VERSIONLESS
    assert reading.failure is None


def test_a_loop_of_rd_agent_is_read() -> None:
    reading = recorded("rd-agent", "work")
    steps = acts(reading)
    assert [step.extra and step.extra["stage"] for step in steps] == [
        "Loop_0.direct_exp_gen",
        "Loop_0.coding",
        "Loop_0.feedback",
    ]
    assert [list(outputs(step).values()) for step in steps] == [[], ["héllo ✓\n"], []]
    assert steps[1].observation is not None
    assert (steps[1].observation.results[0].extra or {})["exit_code"] == 3
    assert (reading.session_id, reading.unreadable, reading.failure) == ("1", 0, None)


def test_sessions_and_models_are_read() -> None:
    assert recorded("claude-code", "work").model == "claude-opus-4-6"
    assert recorded("claude-code", "work").session_id is not None
    assert recorded("codex", "work").session_id is not None


@pytest.mark.parametrize("transcript_format", ["claude-code", "codex", "gemini-cli", "openhands"])
def test_a_resumed_session_is_one_session(transcript_format: str) -> None:
    reading = recorded(transcript_format, "resumed")
    assert [step.message for step in acts(reading)][-2:] == ["That file is missing. I wait a little.", "All done."]
    assert reading.unreadable == 0
    assert ending("finished", 0, reading.account()) == Ending("finished")


def test_a_file_that_was_cut_off_does_not_mean_nothing_was_done(tmp_path: Path) -> None:
    (cut_off := tmp_path / "trajectory.json").write_bytes(files("mini-swe-agent", "work")[0].read_bytes()[:-40])
    account = read_transcript("mini-swe-agent", cut_off).account()
    assert account.has_acted
    assert ending("finished", 0, account, failed=[]).reason == "finished"
    assert not read_transcript("mini-swe-agent", tmp_path / "none").account().has_acted


def test_opencode_does_not_print_a_cut_off_tool_call() -> None:
    reading = recorded("opencode", "cut")
    assert reading.unreadable == 0
    assert [bool(step.tool_calls) for step in acts(reading)] == [True, True, False, False]


@pytest.mark.parametrize("transcript_format", FORMATS)
def test_a_refused_key_is_said_in_plain_words(transcript_format: str) -> None:
    for exit_code in (0, 1):
        end = ending("crashed", exit_code, recorded(transcript_format, "refused").account())
        assert (end.reason, end.responsible) == ("crashed", "api")
        assert end.why.startswith("the API refused the key (401)")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("API Error: Request rejected (429) · too many requests", "the API's rate limit"),
        ("exceeded retry limit, last status: 429 Too Many Requests", "the API's rate limit"),
        ("RateLimitError: litellm.RateLimitError: OpenAIException - too many requests.", "the API's rate limit"),
        ("Reached maximum number of turns (2)", "it reached its turn limit"),
        ("LimitsExceeded", "it reached its turn limit"),
        ("Not logged in · Please run /login", "it has no API key"),
        ("Missing environment variable: `OPENAI_API_KEY`.", "it has no API key"),
        ("API Error: Connection refused — a firewall or proxy may be blocking it", "it could not reach the API"),
        ("Reconnecting... waiting for network (Connection failed: error sending request)", "it could not reach"),
        ("litellm.InternalServerError: OpenAIException - Connection error..", "it could not reach the API"),
        ("API Error: 500 internal error. This is a server-side issue", "the API failed"),
        ("We’re currently experiencing high demand, which may cause temporary errors.", "the API failed"),  # noqa: RUF001
        ("stream disconnected before completion: stream closed before", "the API's answer made no sense"),
        ("API Error: JSON Parse error: Unterminated string", "the API's answer made no sense"),
        ("something unheard of", "it ended with exit status 1: something unheard of"),
    ],
)
def test_failures_are_said_in_plain_words(words: str, reason: str) -> None:
    assert ending("crashed", 1, Account(failure=words)).why.startswith(reason)


def test_an_end_that_is_no_failure_has_no_reason() -> None:
    assert ending("finished", 0, Account()) == ending("finished", 0) == Ending("finished")
    assert ending("deadline", -15, Account(failure="terminated")) == Ending("deadline")
    assert ending("crashed", 2).why == "it ended with exit status 2"
    assert ending("crashed", 3, exits={3: "it gave up"}, log=["bye"]).why == "it gave up: bye"


def test_the_relay_says_why_an_agent_waited_until_its_deadline() -> None:
    once, often = [FailedRequest(429)], [FailedRequest(429)] * 40
    assert ending("deadline", -15, failed=once) == Ending("deadline")
    assert ending("deadline", -15, failed=often).responsible == "api"
    assert "40 times in a row" in ending("deadline", -15, failed=often).why


def test_what_the_relay_itself_answers_is_no_answer_of_the_api() -> None:
    said = Account(failure="API Error: 502 {type: a2rl}")
    unreached = ending("crashed", 1, said, failed=[FailedRequest(502, "the provider cannot be reached: ConnectError")])
    assert unreached.why.startswith("it could not reach the API")
    quota = ending("crashed", 1, said, failed=[FailedRequest(429, "the quota of 1,000 tokens is used up")])
    assert quota.why.startswith("a2rl did not forward its request: the quota of 1,000 tokens is used up")
    assert quota.responsible == "agent"
    full = ending("crashed", 1, said, failed=[FailedRequest(UNRECORDED, "the record cannot be written")])
    assert full.responsible == "machine"


@pytest.mark.parametrize("words", ["(500 of 1000)", "exit code 500", "HTTP/1.1 200 OK; 502 Rows"])
def test_a_number_that_an_agent_prints_is_no_status_of_the_api(words: str) -> None:
    assert ending("crashed", 1, Account(failure=words)).responsible == "unknown"


def test_a_cause_on_this_machine_is_not_blamed_on_a_request() -> None:
    """The request failed before."""
    end = ending("crashed", 1, log=["ModuleNotFoundError: No module named 'peft'"], failed=[FailedRequest(500)])
    assert end.why.startswith("a module or library is missing")


def test_what_an_agent_prints_after_its_answers_blames_nobody() -> None:
    printed = ["bash: line 1: foo: command not found"]
    assert ending("crashed", 1, Account(), printed, failed=[]).responsible == "unknown"
    assert ending("crashed", 1, Account(has_acted=False), printed, failed=[]).responsible == "machine"


ENDINGS = yaml.safe_load((Path(__file__).parent / "endings.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", ENDINGS, ids=[f"{row['agent']}: {row['what']}" for row in ENDINGS])
def test_each_ending_of_an_agent_system_is_told(row: dict[str, Any], tmp_path: Path) -> None:
    account = None
    if row["agent"] in formats():
        (tmp_path / "printed").write_text("".join(f"{json.dumps(line)}\n" for line in row["printed"]), encoding="utf-8")
        work = files(row["agent"], "work") if row.get("work") else []
        account = read_transcript(row["agent"], *work, tmp_path / "printed").account()
    failed = [FailedRequest(status) for status in row["relay"]] if "relay" in row else None
    saw = "finished" if row["exit"] == 0 else "crashed"
    end = ending(saw, row["exit"], account, row.get("log", []), failed)
    assert (end.reason, end.responsible) == (row["ended"], row["responsible"]), end
    assert end.why.startswith(row["why"]) if row["why"] else end.why == "", end


def test_the_table_of_endings_has_all_agent_systems() -> None:
    counts = Counter(row["agent"] for row in ENDINGS)
    assert set(FORMATS) < set(counts)
    assert len(ENDINGS) >= 40
    assert all("seen" in row for row in ENDINGS if row["agent"] != "script")


@pytest.mark.parametrize("transcript_format", formats())
def test_hostile_lines_are_counted_and_never_raise(transcript_format: str, tmp_path: Path) -> None:
    transcript = tmp_path / "transcript"
    for line in HOSTILE:
        transcript.write_bytes(line.encode("utf-8", "replace") + b"\n")
        assert_sound(read_transcript(transcript_format, transcript))
    transcript.write_bytes(b"\n".join(line.encode("utf-8", "replace") for line in HOSTILE))
    assert read_transcript(transcript_format, transcript).unreadable > 0


@pytest.mark.parametrize("transcript_format", FORMATS)
def test_wrong_values_anywhere_never_raise(transcript_format: str, tmp_path: Path) -> None:
    chance, transcript = random.Random(0), tmp_path / "transcript"
    for path in files(transcript_format, "work"):
        values = values_of(path)
        for _ in range(150):
            changed = copy.deepcopy(values)
            spoil(chance.choice(changed), chance)
            transcript.write_text("\n".join(json.dumps(value) for value in changed), encoding="utf-8")
            assert_sound(read_transcript(transcript_format, transcript))


@pytest.mark.parametrize("text", ["no JSON", "[1]", '{"a": NaN}', '{"a": "\\ud800"}', '{"a": 1e999}', '{"a":' * 500])
def test_arguments_that_cannot_be_written_again_stay_text(text: str) -> None:
    found = parse_arguments(text)
    assert "NaN" not in json.dumps(found.get("a"))
    json.dumps(found, ensure_ascii=False, allow_nan=False).encode("utf-8")


@pytest.mark.parametrize("transcript_format", FORMATS)
def test_numbers_at_their_limits_never_raise(transcript_format: str, tmp_path: Path) -> None:
    def raised(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: each if key in ("time", "timestamp") else raised(each) for key, each in value.items()}
        if isinstance(value, list):
            return [raised(each) for each in value]
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        return 1e9 if isinstance(value, float) else 2**53

    transcript = tmp_path / "transcript"
    for path in files(transcript_format, "work"):
        transcript.write_text("\n".join(json.dumps(raised(value)) for value in values_of(path)), encoding="utf-8")
        assert_sound(read_transcript(transcript_format, transcript))


def values_of(path: Path) -> list[Any]:
    text = path.read_text(encoding="utf-8")
    return [json.loads(text)] if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]


def spoil(value: Any, chance: random.Random) -> None:
    """Replaces a random value by a wrong one."""
    places = list(places_of(value))
    container, key = chance.choice(places)
    container[key] = chance.choice(WRONG)


def places_of(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in keys:
        yield value, key
        yield from places_of(value[key])


def assert_sound(reading: Reading) -> None:
    """Checks that the result follows the rules of the format, and can be written and read again."""
    text = trajectory([reading, reading], AGENT, FinalMetrics()).to_json()
    steps = Trajectory.model_validate_json(text.encode("utf-8")).steps
    assert [step.step_id for step in steps] == list(range(1, len(steps) + 1))
    for step in steps:
        assert step.source == "agent" or not (step.model_name or step.reasoning_content or step.tool_calls)
        assert outputs(step).keys() <= {call.tool_call_id for call in step.tool_calls or ()}
    ending("crashed", 1, reading.account())


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    transcript = tmp_path / "transcript"
    with transcript.open("wb") as file:
        file.truncate(64 << 20)
    assert read_transcript("codex", transcript).unreadable == 8


def test_what_is_no_plain_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(RECORDED / "codex" / "work.jsonl")
    for path in (tmp_path / "link", tmp_path / "missing", tmp_path, Path("/dev/zero")):
        assert read_transcript("codex", path) == Reading()


def test_unknown_formats_are_refused_with_the_known_ones() -> None:
    assert {"claude-code", "codex", "mini-swe-agent"} <= set(formats())
    with pytest.raises(UsageError, match="Did you mean 'codex'"):
        read_transcript("codec", Path("transcript"))


def test_attempts_are_joined_with_steps_numbered_throughout() -> None:
    first, second = recorded("claude-code", "work"), recorded("codex", "work")
    total = FinalMetrics(total_prompt_tokens=2**60, total_cost_usd=1.5)
    joined = trajectory([first, second], AGENT, total)
    assert [step.step_id for step in joined.steps] == list(range(1, len(first.steps) + len(second.steps) + 1))
    assert [step.extra and step.extra["attempt"] for step in joined.steps] == [1] * len(first.steps) + [2] * len(
        second.steps
    )
    assert joined.final_metrics == total.model_copy(update={"total_steps": len(joined.steps)})
    assert joined.session_id == first.session_id
    assert joined.agent.model_name == first.model


def test_the_rules_of_the_format_hold() -> None:
    for wrong in ({"timestamp": "yesterday"}, {"source": "robot"}, {"step_id": 0}, {"step_id": 10**99}):
        with pytest.raises(ValidationError):
            Step.model_validate({"step_id": 1, "source": "agent", "message": "", **wrong})
    with pytest.raises(ValidationError):
        Trajectory(agent=AGENT, steps=())


def test_a_trajectory_of_an_earlier_version_is_read() -> None:
    """It has the tokens of each step, and says what belongs to no step."""
    whole = json.loads(trajectory([recorded("codex", "work")], AGENT, FinalMetrics(total_prompt_tokens=5)).to_json())
    expected = Trajectory.model_validate(whole)
    whole["notes"], whole["final_metrics"]["extra"] = "The totals hold more.", {"outside_steps": {"prompt_tokens": 1}}
    for step in whole["steps"]:
        step["metrics"] = {"prompt_tokens": 4, "cost_usd": 0.1}
    assert Trajectory.model_validate(whole) == expected


@pytest.mark.parametrize("transcript_format", FORMATS)
def test_harbor_reads_our_trajectories(transcript_format: str) -> None:
    harbor = pytest.importorskip("harbor.models.trajectories", reason="the package harbor, which needs Python 3.12")
    ours = trajectory([recorded(transcript_format, "work")], AGENT, FinalMetrics()).to_json()
    theirs = harbor.Trajectory.model_validate_json(ours)
    assert json.loads(ours) == theirs.to_json_dict()
