"""Tests the scripted LLM: the formats of each protocol, the choice of turns, tool calls, faults and the log."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from fastapi.testclient import TestClient
from httpx2 import Response

from a2rl.core.errors import A2rlError, UsageError
from a2rl.mock_llm.app import Served, create_app, serve
from a2rl.mock_llm.dialogue import LlmRequest, Message, Tool
from a2rl.mock_llm.play import Player, example, find_shell, run_command
from a2rl.mock_llm.scenario import SHIPPED, Scenario, load_scenario
from tests.mock_llm_process import read_log

COMMAND = "echo 'one'\ncat <<EOF\ntwo \"2\" $HOME\nEOF"
LONG = "A text that is longer than what is streamed in one piece, so that it comes in several."
TURNS: list[dict[str, Any]] = [{"say": LONG, "run": COMMAND}, {"run": "ls"}, {"say": "Done."}]
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}


class Client(NamedTuple):
    """The scripted LLM in this process, and its log."""

    http: TestClient
    log: Path

    def served(self) -> list[Served]:
        return read_log(self.log)


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., Client]:
    def start(turns: list[dict[str, Any]] = TURNS, **settings: Any) -> Client:
        scenario = Scenario.model_validate({"turns": turns, **settings})
        return Client(TestClient(create_app(scenario, tmp_path / "served.jsonl")), tmp_path / "served.jsonl")

    return start


class Spoken(NamedTuple):
    """An answer of any protocol: its text, its command and its tokens."""

    text: str
    command: str | None
    input_tokens: int
    output_tokens: int
    cached_tokens: int


def events_of(response: Response) -> list[dict[str, Any]]:
    """Returns the events of a stream; checks that their names are their types."""
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in response.text.removesuffix("\n\n").split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        if lines["data"] != "[DONE]":
            found.append(json.loads(lines["data"]))
            assert lines.get("event") in {None, found[-1].get("type")}
    return found


class Anthropic:
    name = "anthropic"

    def ask(self, client: Client, done: int, stream: bool, tools: bool = True, **more: Any) -> Response:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "improve the model"}]
        for number in range(done):
            call = {"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": {"command": "ls"}}
            result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "x"}
            messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        body = {"model": "m", "max_tokens": 9, "messages": messages, "stream": stream}
        body |= {"tools": [{"name": "Bash", "input_schema": SCHEMA}]} if tools else {}
        return client.http.post("/v1/messages?beta=true", json=body, **more)

    def whole(self, body: dict[str, Any]) -> Spoken:
        text = "".join(block["text"] for block in body["content"] if block["type"] == "text")
        calls = [block["input"]["command"] for block in body["content"] if block["type"] == "tool_use"]
        assert body["stop_reason"] == ("tool_use" if calls else "end_turn")
        return Spoken(text, calls[0] if calls else None, *self.tokens(body["usage"]))

    def streamed(self, events: list[dict[str, Any]]) -> Spoken:
        kinds = [event["type"] for event in events]
        assert kinds[0] == "message_start"
        assert kinds[-2:] == ["message_delta", "message_stop"]
        blocks: list[dict[str, Any]] = []
        for event in events:
            if event["type"] == "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append({**event["content_block"], "written": ""})
            elif event["type"] == "content_block_delta":
                delta = event["delta"]
                blocks[event["index"]]["written"] += delta.get("text", "") + delta.get("partial_json", "")
        assert kinds.count("content_block_stop") == len(blocks)
        content = [
            {"type": "text", "text": each["written"]}
            if each["type"] == "text"
            else {**each, "input": json.loads(each["written"])}
            for each in blocks
        ]
        [ending] = [event for event in events if event["type"] == "message_delta"]
        return self.whole({"content": content, "stop_reason": ending["delta"]["stop_reason"], "usage": ending["usage"]})

    def tokens(self, usage: dict[str, int]) -> tuple[int, int, int]:
        cached = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + cached, usage["output_tokens"], cached

    def refused(self, body: dict[str, Any]) -> str:
        assert body["type"] == "error"
        return str(body["error"]["type"])


class Chat:
    name = "openai-chat"

    def ask(self, client: Client, done: int, stream: bool, tools: bool = True, **more: Any) -> Response:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": "you are an agent"},
            {"role": "user", "content": "improve the model"},
        ]
        for number in range(done):
            function = {"name": "bash", "arguments": '{"command": "ls"}'}
            call = {"id": f"t{number}", "type": "function", "function": function}
            messages += [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"t{number}", "content": "x"},
            ]
        body: dict[str, Any] = {"model": "m", "messages": messages, "stream": stream}
        body |= {"stream_options": {"include_usage": True}} if stream else {}
        body |= {"tools": [{"type": "function", "function": {"name": "bash", "parameters": SCHEMA}}]} if tools else {}
        return client.http.post("/v1/chat/completions", json=body, **more)

    def whole(self, body: dict[str, Any]) -> Spoken:
        [choice] = body["choices"]
        calls = [json.loads(call["function"]["arguments"]) for call in choice["message"].get("tool_calls", [])]
        assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
        return Spoken(
            choice["message"]["content"] or "", calls[0]["command"] if calls else None, *self.tokens(body["usage"])
        )

    def streamed(self, events: list[dict[str, Any]]) -> Spoken:
        *chunks, last = events
        assert last["choices"] == []
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert deltas[0]["role"] == "assistant"
        function = [call["function"] for delta in deltas for call in delta.get("tool_calls", [])]
        message: dict[str, Any] = {"content": "".join(delta.get("content", "") for delta in deltas)}
        if function:
            assert function[0]["name"] == "bash"
            message["tool_calls"] = [{"function": {"arguments": "".join(each["arguments"] for each in function)}}]
        reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
        assert set(reasons[:-1]) == {None}
        choice = {"message": message, "finish_reason": reasons[-1]}
        return self.whole({"choices": [choice], "usage": last["usage"]})

    def tokens(self, usage: dict[str, Any]) -> tuple[int, int, int]:
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        return usage["prompt_tokens"], usage["completion_tokens"], usage["prompt_tokens_details"]["cached_tokens"]

    def refused(self, body: dict[str, Any]) -> str:
        return str(body["error"]["type"])


class Responses:
    name = "openai-responses"

    def ask(self, client: Client, done: int, stream: bool, tools: bool = True, **more: Any) -> Response:
        items: list[dict[str, Any]] = [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "improve the model"}]}
        ]
        for number in range(done):
            call = {"type": "function_call", "call_id": f"t{number}", "name": "bash", "arguments": "{}"}
            items += [call, {"type": "function_call_output", "call_id": f"t{number}", "output": "x"}]
        body: dict[str, Any] = {"model": "m", "instructions": "you are an agent", "input": items, "stream": stream}
        body |= {"tools": [{"type": "function", "name": "bash", "parameters": SCHEMA}]} if tools else {}
        return client.http.post("/v1/responses", json=body, **more)

    def whole(self, body: dict[str, Any]) -> Spoken:
        assert body["status"] == "completed"
        text = "".join(item["content"][0]["text"] for item in body["output"] if item["type"] == "message")
        calls = [json.loads(item["arguments"]) for item in body["output"] if item["type"] == "function_call"]
        return Spoken(text, calls[0]["command"] if calls else None, *self.tokens(body["usage"]))

    def streamed(self, events: list[dict[str, Any]]) -> Spoken:
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        kinds = [event["type"].removeprefix("response.") for event in events]
        assert kinds[:2] == ["created", "in_progress"]
        assert kinds.count("output_item.added") == kinds.count("output_item.done")
        final: dict[str, Any] = events[-1]["response"]
        assert [event["item"] for event in events if event["type"].endswith("output_item.done")] == final["output"]
        said = "".join(event["delta"] for event in events if event["type"].endswith("output_text.delta"))
        written = "".join(event["delta"] for event in events if event["type"].endswith("arguments.delta"))
        spoken = self.whole(final)
        assert (said, json.loads(written)["command"] if written else None) == spoken[:2]
        return spoken

    def tokens(self, usage: dict[str, Any]) -> tuple[int, int, int]:
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        return usage["input_tokens"], usage["output_tokens"], usage["input_tokens_details"]["cached_tokens"]

    def refused(self, body: dict[str, Any]) -> str:
        return str(body["error"]["type"])


class Gemini:
    name = "gemini"

    def ask(self, client: Client, done: int, stream: bool, tools: bool = True, **more: Any) -> Response:
        contents: list[dict[str, Any]] = [{"role": "user", "parts": [{"text": "improve the model"}]}]
        for _ in range(done):
            call = {"functionCall": {"name": "run_shell_command", "args": {"command": "ls"}}}
            result = {"functionResponse": {"name": "run_shell_command", "response": {"output": "x"}}}
            contents += [{"role": "model", "parts": [call]}, {"role": "user", "parts": [result]}]
        body: dict[str, Any] = {"contents": contents, "systemInstruction": {"parts": [{"text": "you are an agent"}]}}
        declared = {"name": "run_shell_command", "parametersJsonSchema": SCHEMA}
        body |= {"tools": [{"functionDeclarations": [declared]}]} if tools else {}
        method = "streamGenerateContent?alt=sse" if stream else "generateContent"
        return client.http.post(f"/v1beta/models/m:{method}", json=body, **more)

    def whole(self, body: dict[str, Any]) -> Spoken:
        [candidate] = body["candidates"]
        assert candidate["finishReason"] == "STOP"
        return self.spoken(candidate["content"]["parts"], body["usageMetadata"])

    def streamed(self, events: list[dict[str, Any]]) -> Spoken:
        assert [event["candidates"][0].get("finishReason") for event in events] == [None] * (len(events) - 1) + ["STOP"]
        parts = [part for event in events for part in event["candidates"][0]["content"]["parts"]]
        return self.spoken(parts, events[-1]["usageMetadata"])

    def spoken(self, parts: list[dict[str, Any]], usage: dict[str, int]) -> Spoken:
        calls = [part["functionCall"]["args"]["command"] for part in parts if "functionCall" in part]
        text = "".join(part.get("text", "") for part in parts)
        tokens = (usage["promptTokenCount"], usage["candidatesTokenCount"], usage["cachedContentTokenCount"])
        assert usage["totalTokenCount"] == tokens[0] + tokens[1]
        return Spoken(text, calls[0] if calls else None, *tokens)

    def refused(self, body: dict[str, Any]) -> str:
        return str(body["error"]["status"])


ALL = [Anthropic(), Chat(), Responses(), Gemini()]
Protocol = Anthropic | Chat | Responses | Gemini
each_protocol = pytest.mark.parametrize("protocol", ALL, ids=lambda each: each.name)
streaming_or_not = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


def spoken(protocol: Protocol, response: Response, stream: bool) -> Spoken:
    assert response.status_code == 200, response.text
    return protocol.streamed(events_of(response)) if stream else protocol.whole(response.json())


@each_protocol
@streaming_or_not
def test_a_scenario_is_played_from_first_command_to_last_word(
    play: Callable[..., Client], protocol: Protocol, stream: bool
) -> None:
    client = play()
    answers = [spoken(protocol, protocol.ask(client, done, stream), stream) for done in range(4)]
    assert [answer[:2] for answer in answers] == [(LONG, COMMAND), ("", "ls"), ("Done.", None), ("Done.", None)]


@each_protocol
@streaming_or_not
def test_the_tokens_in_the_answers_are_those_in_the_log(
    play: Callable[..., Client], protocol: Protocol, stream: bool
) -> None:
    client = play([*TURNS[:2], {"say": "x", "usage": {"input_tokens": 70, "output_tokens": 7, "cached_tokens": 60}}])
    answers = [spoken(protocol, protocol.ask(client, done, stream), stream) for done in range(3)]
    lines = client.served()
    assert [each[2:] for each in answers] == [(i.input_tokens, i.output_tokens, i.cached_tokens) for i in lines]
    assert answers[2][2:] == (70, 7, 60)
    assert answers[0].cached_tokens == 0 < answers[1].cached_tokens < answers[1].input_tokens
    assert [(i.protocol, i.stream, i.kind, i.turn, i.status) for i in lines] == [
        (protocol.name, stream, "main", turn, 200) for turn in range(3)
    ]


@each_protocol
@streaming_or_not
def test_without_a_shell_a_request_gets_a_text_and_moves_nothing(
    play: Callable[..., Client], protocol: Protocol, stream: bool
) -> None:
    client = play()
    answer = spoken(protocol, protocol.ask(client, 0, stream, tools=False), stream)
    assert answer.text
    assert answer.command is None
    assert [(line.kind, line.turn) for line in client.served()] == [("side", None)]


@each_protocol
def test_without_a_shell_a_request_gets_the_first_fitting_aside(
    play: Callable[..., Client], protocol: Protocol
) -> None:
    client = play(asides=[{"asked": "no such words", "say": "wrong"}, {"asked": ".", "say": "right"}])
    assert spoken(protocol, protocol.ask(client, 0, False, tools=False), False).text == "right"
    assert spoken(protocol, protocol.ask(client, 0, False), False).command is not None


@each_protocol
@pytest.mark.parametrize("status", [401, 429, 500, 529])
def test_a_fault_is_met_as_often_as_set_and_then_its_turn_comes(
    play: Callable[..., Client], protocol: Protocol, status: int
) -> None:
    client = play([{"run": "ls", "fault": {"status": status, "times": 2}}, *TURNS[1:]])
    replies = [protocol.ask(client, 0, True) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [status, status, 200]
    assert protocol.refused(replies[0].json())
    assert [(line.turn, line.status, line.output_tokens > 0) for line in client.served()] == [
        (0, status, False), (0, status, False), (0, 200, True),
    ]  # fmt: skip


@each_protocol
def test_a_demanded_key_is_checked_in_the_form_of_the_protocol(play: Callable[..., Client], protocol: Protocol) -> None:
    client = play(api_key="sesame")
    refused = protocol.ask(client, 0, False, headers={"x-api-key": "guess", "x-goog-api-key": "guess"})
    assert refused.status_code == 401
    assert protocol.refused(refused.json())
    for headers in ({"x-api-key": "sesame"}, {"authorization": "Bearer sesame"}, {"x-goog-api-key": "sesame"}):
        assert protocol.ask(client, 0, False, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "path", ["/v1/messages", "/v1/chat/completions", "/v1/responses", "/v1beta/models/m:generateContent"]
)
@pytest.mark.parametrize("body", ["", "{", "[]", "{}", '{"model": 1, "messages": 5, "input": 5, "contents": [5]}'])
def test_a_malformed_request_is_refused(play: Callable[..., Client], path: str, body: str) -> None:
    assert play().http.post(path, content=body).status_code == 400


def test_tokens_are_counted_before_they_are_spent(play: Callable[..., Client]) -> None:
    client = play()
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 400}]}
    assert client.http.post("/v1/messages/count_tokens", json=body).json() == {"input_tokens": 100}
    contents = {"contents": [{"role": "user", "parts": [{"text": "x" * 400}]}]}
    assert client.http.post("/v1beta/models/m:countTokens", json=contents).json()["totalTokens"] > 100
    assert [(line.kind, line.input_tokens) for line in client.served()] == [("count", 0), ("count", 0)]


def test_models_and_health_are_answered(play: Callable[..., Client]) -> None:
    client = play(models=["one", "two"])
    assert [model["id"] for model in client.http.get("/v1/models").json()["data"]] == ["one", "two"]
    assert client.http.get("/health").json() == {"status": "ok"}


def test_where_json_is_asked_for_json_is_answered(play: Callable[..., Client]) -> None:
    schema = {
        "type": "object",
        "properties": {"title": {"type": "string"}, "next": {"enum": ["user", "model"]}, "sure": {"type": "boolean"}},
        "required": ["title", "next"],
    }
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "title?"}],
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
    }
    [block] = play().http.post("/v1/messages", json=body).json()["content"]
    assert json.loads(block["text"]) == {"title": "post-training run", "next": "user"}


# The tools of the CLIs.


def shell(name: str, required: list[str], **properties: dict[str, Any]) -> Tool:
    return Tool(name, {"type": "object", "properties": properties, "required": required})


TEXT, NUMBER = {"type": "string"}, {"type": "number"}
MILLISECONDS = {"type": "number", "description": "Optional timeout in milliseconds"}
TOOLS = [
    (shell("Bash", ["command"], command=TEXT, timeout=MILLISECONDS, run_in_background={"type": "boolean"}),
     {"command": "ls -l", "timeout": 90_000}),
    (shell("shell", ["command"], command={"type": "array", "items": TEXT}, workdir=TEXT, timeout_ms=NUMBER),
     {"command": ["bash", "-c", "ls -l"], "timeout_ms": 90_000}),
    (shell("exec_command", ["cmd"], cmd=TEXT, yield_time_ms=NUMBER, workdir=TEXT),
     {"cmd": "ls -l", "yield_time_ms": 90_000}),
    (shell("run_shell_command", ["command"], command=TEXT, description=TEXT, is_background={"type": "boolean"}),
     {"command": "ls -l"}),
    (shell("bash", ["command", "description"], command=TEXT, description=TEXT,
           timeout=MILLISECONDS | {"maximum": 60_000}),
     {"command": "ls -l", "timeout": 60_000, "description": "ls -l"}),
    (shell("terminal", ["command", "security_risk"], command=TEXT, timeout=NUMBER,
           security_risk={"type": "string", "enum": ["UNKNOWN", "LOW", "HIGH"]}),
     {"command": "ls -l", "timeout": 90, "security_risk": "LOW"}),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "arguments"), TOOLS, ids=lambda each: each.name if isinstance(each, Tool) else "")
def test_a_command_becomes_a_call_of_the_tool_that_is_offered(tool: Tool, arguments: dict[str, Any]) -> None:
    assert find_shell([Tool("read", {}), tool]) == tool
    assert run_command(tool, "ls -l", 90) == (tool.name, arguments)


def test_codex_built_in_shell_is_called_in_its_own_form(play: Callable[..., Client]) -> None:
    client = play([{"run": "ls"}, {"say": "Done."}])
    body = {"model": "m", "input": "improve the model", "tools": [{"type": "local_shell"}]}
    [item] = client.http.post("/v1/responses", json=body).json()["output"]
    assert (item["type"], item["action"]["command"]) == ("local_shell_call", ["bash", "-c", "ls"])
    output = {"type": "local_shell_call_output", "call_id": item["call_id"], "output": "x"}
    again = client.http.post("/v1/responses", json={**body, "input": [item, output]}).json()["output"]
    assert again[0]["content"][0]["text"] == "Done."


def asked(*messages: Message, tools: tuple[str, ...], preamble: str = "") -> LlmRequest:
    return LlmRequest("m", False, messages, tuple(Tool(name, SCHEMA) for name in tools), preamble)


def test_a_running_command_is_awaited_without_a_turn_of_its_own() -> None:
    player = Player(Scenario.model_validate({"turns": TURNS}))
    called = Message("assistant", "", ("exec_command",))
    running = Message("user", "Process running with session ID 17\nOutput:")
    waited = (Message("assistant", "", ("write_stdin",)), Message("user", "Process exited with code 0"))
    tools = ("exec_command", "write_stdin")
    waiting = player.step(asked(called, running, tools=tools)).reply.call
    assert waiting is not None
    assert (waiting.name, waiting.arguments["session_id"]) == ("write_stdin", 17)
    assert player.step(asked(called, running, *waited, tools=tools)).turn == 1


def test_an_agent_that_ends_by_a_command_is_given_it() -> None:
    word = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    player = Player(Scenario.model_validate({"turns": [{"say": "Done."}]}))
    call = player.step(asked(tools=("bash",), preamble=f"to finish, run `echo {word}`")).reply.call
    assert call is not None
    assert call.arguments == {"command": f"echo {word}"}
    assert player.step(asked(tools=("bash",))).reply.call is None


def test_faults_are_counted_for_each_conversation_and_turn() -> None:
    faulty = {"run": "ls", "fault": {"status": 500}}
    player = Player(Scenario.model_validate({"turns": [faulty, faulty, {"say": "Done."}]}))

    def meets(start: str, done: int) -> bool:
        calls = [Message("assistant", "", ("bash",))] * done
        request = asked(Message("user", start), *calls, tools=("bash",))
        return player.fault(request, player.step(request)) is not None

    assert [meets("a", 0), meets("a", 0), meets("b", 0), meets("a", 1), meets("a", 1)] == [
        True,
        False,
        True,
        True,
        False,
    ]


def test_an_example_is_what_the_schema_allows() -> None:
    assert example({"type": "ARRAY"}) == []
    assert example({"type": ["integer", "null"]}) == 0
    assert example({"anyOf": [{"const": 3}, {"type": "null"}]}) == 3
    assert example({"type": "object", "properties": {"a": {"type": "boolean"}}}) == {"a": False}


# Scenarios.


@pytest.mark.parametrize("name", [path.stem for path in SHIPPED.glob("*.yaml")])
def test_the_scenarios_that_come_with_a2rl_are_valid(name: str) -> None:
    assert len(load_scenario(name).turns) > 1


def test_a_scenario_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "dated.yaml").write_text("turns: 2024-13-45\n")
    (tmp_path / "bytes.yaml").write_bytes(b"turns: \xff\n")
    for name, says in (("dated", "month must be in"), ("bytes", "not in UTF-8")):
        with pytest.raises(A2rlError, match=rf"{name}\.yaml.*{says}"):
            load_scenario(str(tmp_path / f"{name}.yaml"))


@pytest.mark.parametrize(
    ("turns", "why"),
    [
        ([{"say": "x", "runs": "ls"}], "no such setting"),
        ([{"run": "ls"}], "every turn but the last"),
        ([{"say": "x"}, {"say": "y"}], "every turn but the last"),
        ([{"say": "x", "fault": {"status": 404}}], "401, 429, 500 or 529"),
        ([{"say": "x", "usage": {"input_tokens": 1, "output_tokens": 1, "cached_tokens": 2}}], "cannot be larger"),
        ([], "at least 1"),
    ],
)
def test_what_is_wrong_with_a_scenario_is_said(tmp_path: Path, turns: list[dict[str, Any]], why: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"turns": turns}))
    with pytest.raises(UsageError, match=why):
        load_scenario(str(path))


def test_an_unknown_scenario_is_named_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="gsm8k"):
        load_scenario("gsm9k")


def test_a_log_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        serve(load_scenario("gsm8k"), 0, tmp_path / "missing" / "served.jsonl", lambda url: None)
