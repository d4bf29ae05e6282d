"""Tests API keys in a whole attempt: an agent's key is recorded nowhere, and few processes get one."""

import base64
import json
import os
import subprocess
import sys
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from a2rl.cli.flow_runner import embedded_server
from a2rl.config.params import load_params
from a2rl.config.plan import choose_suite, plan_runs
from a2rl.core.errors import UsageError
from a2rl.core.event_log import MAX_BYTES
from a2rl.core.secrets import mark_of
from a2rl.core.settings import Settings
from a2rl.core.urls import refuse_credentials
from a2rl.grading.pool import GraderPool
from a2rl.grading.service_process import ServiceProcess
from a2rl.llm.keys import keys_too_short_to_hide
from a2rl.results.report.page import write_report
from a2rl.run.directory import RunDir
from stages.execute import execute
from tests.contract.test_llm_agents import FakeServiceProcess
from tests.mock_llm_process import driver_process
from tests.run_maker import wait_for, worker_pids

KEY = "mk-Ab3dEf6hIj9lMn2pQr5tUv8xYz1B"
JUDGE_KEY = "jk-Zy9xWv6uTs3rQp0oNm7lKj4iHg1F"
LEAKY = """
title: leaky
start: ["python", "{agent_dir}/agent.py"]
forward_env: [LEAKY_KEY]
transcript: {format: claude-code, from: [".leaky/*.jsonl", stdout]}
"""
LEAK = """
import base64, json, os, pathlib, sys, time, urllib.parse
key = os.environ["LEAKY_KEY"]
forms = [key, key.encode().hex(), key[::-1], urllib.parse.quote(key, safe=""), key.encode().hex("%"),
         *(base64.b64encode(b"x" * n + key.encode()).decode() for n in range(3)), json.dumps({"key": key})]
pathlib.Path("code").mkdir(exist_ok=True)
for number, form in enumerate(forms):
    pathlib.Path("code", f"leak{number}.py").write_text(f"KEY = {form!r}")
    print(form, flush=True)
    print("in words", form, file=sys.stderr, flush=True)
    print(json.dumps({"type": "assistant", "message": {"id": f"m{number}", "role": "assistant",
          "content": [{"type": "text", "text": form}]}}), flush=True)
pathlib.Path("code", f"{key}.py").write_text("")
pathlib.Path("output", f"{key}.txt").write_text("")
home = pathlib.Path(os.environ["HOME"], ".leaky")
home.mkdir(parents=True, exist_ok=True)
(home / "a.jsonl").write_text("".join(json.dumps({"type": "assistant", "session_id": key, "message": {"id": f"h{n}",
    "role": "assistant", "content": [{"type": "text", "text": form}]}}) + "\\n" for n, form in enumerate(forms)))
for char in key:                                    # over the boundaries of what is read
    sys.stdout.write(char)
    sys.stdout.flush()
    time.sleep(0.01)
print()
sys.exit(f"I give up: {key}")
"""


def traces(root: Path, key: str) -> list[str]:
    """Returns files of a run, except the agent's own, that contain the key in any plain encoding."""
    raw = key.encode()
    forms = [raw, raw[::-1], raw.hex().encode(), base64.b64encode(raw)[:-4], base64.b64encode(b"x" + raw)[2:-4]]
    forms += [base64.b64encode(b"xx" + raw)[3:-4], urllib.parse.quote(key, safe="").encode(), raw.hex("%").encode()]
    found = []
    for path in root.rglob("*"):
        if path.relative_to(root).parts[0] in {"workspace", "given"} or not path.is_file():
            continue
        held = path.read_bytes().lower() + str(path).lower().encode()
        found += [str(path.relative_to(root)) for form in forms if form.lower() in held]
    return found


def history(run: RunDir) -> bytes:
    """Returns everything that git keeps of the code."""
    patches = ["git", "log", "--patch", "--all", "--text", "--stat"]
    return subprocess.run(patches, cwd=run.code, capture_output=True, check=True).stdout.lower()


@pytest.fixture
def make(settings: Settings, new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes a run of an agent that has a key, with its definition and its program."""

    def made(definition: str, program: str, **changes: Any) -> tuple[RunDir, Settings]:
        monkeypatch.setattr("stages.execute.ServiceProcess", FakeServiceProcess)
        (settings.root / "agents").unlink()
        folder = settings.root / "agents" / "leaky"
        folder.mkdir(parents=True)
        (folder / "agent.yaml").write_text(definition)
        (folder / "agent.py").write_text(program)
        rich = Settings(settings.root, {**settings.environ, "LEAKY_KEY": KEY, "OPENAI_API_KEY": JUDGE_KEY})
        run = new_run(**{"agent": "leaky", "started": False, **changes})
        (run.workspace / ".home").mkdir()
        return run, rich

    return made


def test_a_key_that_an_agent_prints_writes_or_says_is_not_kept(make: Callable[..., Any]) -> None:
    run, settings = make(LEAKY, LEAK)
    record = execute(run, settings)
    assert record.ended == "crashed"
    write_report(run, settings)
    assert (run.workspace / "code" / f"{KEY}.py").exists()
    assert run.agent_log.read_bytes().count(mark_of("LEAKY_KEY")) >= 8
    assert mark_of("LEAKY_KEY") in (run.logs / "transcript-1.jsonl").read_bytes()
    assert mark_of("LEAKY_KEY") in run.trajectory.read_bytes()
    assert traces(run.root, KEY) == []
    assert KEY.lower().encode() not in history(run)
    assert KEY.encode().hex().encode() not in history(run)


TALKER = """
title: a talker
start: ["python", "{agent_dir}/agent.py"]
driver: the-driver
base_url: http://127.0.0.1:9
env: {WHERE: "{base_url}"}
forward_env: [LEAKY_KEY]
needs_one_of: [LEAKY_KEY]
hosts: [api.example]
"""
TALK = """
import json, os, pathlib, sys, time, urllib.request
def ask(model, **more):
    messages = [{"role": "user", "content": "hi"}]
    body = json.dumps({"model": model, "max_tokens": 9, "messages": messages, **more}).encode()
    headers = {"x-api-key": os.environ["LEAKY_KEY"], "content-type": "application/json"}
    request = urllib.request.Request(os.environ["WHERE"] + "/v1/messages", body, headers)
    return json.load(urllib.request.urlopen(request, timeout=60))
pathlib.Path("output/key").write_text(os.environ["LEAKY_KEY"])
"""
SCENARIO = """
api_key: KEY
turns:
  - {say: "", run: "true", usage: {input_tokens: 400, output_tokens: 100}}
  - {say: Done.}
asides:
  - {asked: hi, say: hello}
""".replace("KEY", KEY)


@pytest.fixture
def provider(tmp_path: Path) -> Any:
    """A scripted LLM that requires the real key."""
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    with driver_process(str(tmp_path / "scenario.yaml"), tmp_path / "served.jsonl") as url:
        yield url


def test_an_agent_never_has_the_key_of_its_llm_and_is_seen(make: Callable[..., Any], provider: str) -> None:
    """It is led to its LLM by the relay."""
    more = """
ask("the-driver")
ask("another")
try:
    ask("another", tools=[{"type": "web_search_20250305", "name": "web_search"}])
except OSError as error:
    print(error)
"""
    run, settings = make(TALKER, TALK + more, base_url=provider, driver="the-driver")
    record = execute(run, settings)
    assert (record.ended, record.why) == ("finished", "")
    given = (run.workspace / "output" / "key").read_text()
    assert given.startswith("a2rl-")
    assert record.seen is not None
    assert (record.seen.requests, record.seen.failed, record.seen.refused) == (3, 0, 1)
    assert set(record.seen.other_models("the-driver")) == {"another"}
    write_report(run, settings)
    page = run.report.read_text()
    assert "It also used models other than its driver the-driver: another." in page
    assert "web_search_20250305 (1 requests)" in page
    assert traces(run.root, KEY) == []


LOOP = """
while True:
    try:
        ask("gpt-5.2", system="x" * 4000)
    except OSError:
        time.sleep(0.1)
"""


def test_a_limit_on_tokens_ends_an_agent_that_reports_nothing(make: Callable[..., Any], provider: str) -> None:
    run, settings = make(TALKER, TALK + LOOP, base_url=provider, driver="gpt-5.2", max_tokens=5000)
    record = execute(run, settings)
    assert (record.ended, record.why) == ("quota", "the limit of 5,000 tokens (--max-tokens) is used up")
    assert record.seen is not None
    assert 5000 <= record.seen.tokens < 8000
    assert record.elapsed_s < 60


def test_a_limit_on_the_cost_ends_an_agent_that_reports_nothing(make: Callable[..., Any], provider: str) -> None:
    run, settings = make(TALKER, TALK + LOOP, base_url=provider, driver="gpt-5.2", max_cost_usd=0.01)
    record = execute(run, settings)
    assert (record.ended, record.why) == ("quota", "the limit of $0.01 (--max-cost-usd) is used up")
    assert record.seen is not None
    cost = (record.seen.prompt_tokens * 1.75 + record.seen.completion_tokens * 14) / 1e6
    assert record.cost_usd == pytest.approx(cost)
    assert 0.01 <= cost < 0.01 + 2 * cost / record.seen.requests
    write_report(run, settings)
    assert f"${cost:.4f}" in run.report.read_text()


def test_an_agent_whose_requests_fill_the_record_is_ended(make: Callable[..., Any], provider: str) -> None:
    run, settings = make(TALKER, TALK + LOOP, base_url=provider, driver="gpt-5.2", max_tokens=5_000_000)
    with (run.logs / "llm.jsonl").open("wb") as log:
        log.truncate(MAX_BYTES - 10)
    record = execute(run, settings)
    assert record.ended == "quota"
    assert "logs/llm.jsonl" in record.why
    assert record.seen is not None
    assert record.seen.tokens == 0


def test_an_llm_reached_through_a_tunnel_is_said_to_be_unseen(make: Callable[..., Any]) -> None:
    run, settings = make(TALKER.replace("{base_url}", "nowhere"), "", driver="the-driver")
    record = execute(run, settings)
    assert (record.ended, record.seen) == ("finished", None)
    write_report(run, settings)
    assert "could not be measured" in run.report.read_text()


def environments(pid: int) -> bytes:
    """Returns the environments of a process and all of its descendants."""
    process = psutil.Process(pid)
    below = [process, *process.children(recursive=True)]
    return b"".join(Path(f"/proc/{each.pid}/environ").read_bytes() for each in below)


def test_the_service_and_its_workers_have_no_key(run: RunDir, settings: Settings) -> None:
    rich = Settings(settings.root, {**settings.environ, "OPENAI_API_KEY": JUDGE_KEY})
    with ServiceProcess(run, rich) as server:
        server.wait_until_ready()
        pid = server._process.pid
        wait_for(lambda: psutil.Process(pid).children(recursive=True), 60)
        assert JUDGE_KEY.encode() not in environments(pid)
    with GraderPool(rich, ["cpu"]) as pool:
        [worker] = worker_pids(pool)
        assert JUDGE_KEY.encode() not in environments(worker)


def test_a_worker_knows_the_key_all_the_same(settings: Settings) -> None:
    told = {"use": {"OPENAI_API_KEY": JUDGE_KEY}, "hide": {"LEAKY_KEY": KEY}}
    script = (
        "import sys; from a2rl.llm.keys import receive_keys\n"
        "from a2rl.core.settings import Settings; from a2rl.core.secrets import scrub\n"
        "receive_keys(sys.stdin); keys = Settings.load().environ; print(keys['OPENAI_API_KEY'], scrub(sys.argv[1]))\n"
        "print('OPENAI_API_KEY' in __import__('os').environ)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, f"it is {KEY}"], input=json.dumps(told) + "\n", capture_output=True, text=True,
        env={"A2RL_ROOT": str(settings.root), "PATH": os.environ["PATH"]}, cwd=settings.root, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [f"{JUDGE_KEY} it is {mark_of('LEAKY_KEY').decode()}", "False"]


def test_the_prefect_server_gets_no_key(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    class StopError(Exception):
        pass

    def spy(*_: Any, env: dict[str, str], **__: Any) -> None:
        started.append(env)
        raise StopError

    started: list[dict[str, str]] = []
    monkeypatch.setattr("a2rl.core.processes.subprocess.Popen", spy)
    rich = Settings(settings.root, {**settings.environ, "OPENAI_API_KEY": JUDGE_KEY, "SERPAPI_API_KEY": KEY})
    with pytest.raises(StopError), embedded_server(rich):
        pass
    assert not {JUDGE_KEY, KEY} & set(started[0].values())
    assert JUDGE_KEY not in repr(rich)


@pytest.mark.parametrize("url", ["http://user:pass@127.0.0.1:8080", "https://token@host/v1", "http://h/v1?key=abc"])
def test_an_address_with_a_key_is_refused_before_any_writing(url: str, settings: Settings) -> None:
    params = load_params(settings.root)
    grid = choose_suite(params, "smoke", base_url=url)
    with pytest.raises(UsageError, match="environment variable"):
        plan_runs(grid, "smoke", params, settings)
    refuse_credentials("http://127.0.0.1:8080/v1", "--base-url")


def test_a_key_that_is_too_short_to_be_left_out_is_named(make: Callable[..., Any]) -> None:
    from a2rl.agent_systems.definition import find_agent

    _, settings = make(LEAKY, LEAK)
    agent = find_agent("leaky", settings.root)
    assert keys_too_short_to_hide(agent, settings) == []
    assert keys_too_short_to_hide(agent, Settings(settings.root, {"LEAKY_KEY": "short"})) == ["LEAKY_KEY"]
