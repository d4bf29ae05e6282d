"""Chooses the answer to a request. The turn depends only on the number of commands in the conversation so far.

So a retry gets the same answer, a resumed session continues where it stopped, and several agents can share one driver.
Only faults are counted here, because they belong to requests and not to turns.
"""

import re
from collections import Counter
from typing import Literal, NamedTuple

from a2rl.core.files import digest_of
from a2rl.mock_llm import tools
from a2rl.mock_llm.dialogue import Call, LlmRequest, Reply, compact
from a2rl.mock_llm.scenario import Fault, Scenario, Turn, Usage

CHARACTERS_PER_TOKEN = 4
SIDE_ANSWER = "Post-training run"
Kind = Literal["main", "side"]


class ScenarioStep(NamedTuple):
    """The position of a request in the scenario, and its answer."""

    kind: Kind
    turn: int | None
    """None for a side request, such as one for a title or a summary."""
    reply: Reply


class Player:
    """Plays a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._faults: Counter[tuple[int, str]] = Counter()

    def step(self, asked: LlmRequest) -> ScenarioStep:
        """Returns the position of a request in the scenario, and its answer."""
        shell = tools.find_shell(asked.tools)
        if shell is None:
            return ScenarioStep("side", None, self._side_reply(asked))
        number = min(tools.calls_of(asked, shell), len(self._scenario.turns) - 1)
        turn = self._scenario.turns[number]
        if waiting := tools.keep_waiting(asked):
            return ScenarioStep("main", number, _reply(asked, "", waiting, None))
        call = tools.run_command(shell, turn.run, turn.timeout_s) if turn.run else tools.finish(asked, shell)
        return ScenarioStep("main", number, _reply(asked, turn.say, call, turn.usage))

    def fault(self, asked: LlmRequest, step: ScenarioStep) -> Fault | None:
        """Returns the fault for this request, if there is one, and counts it."""
        fault = self._turn(step).fault if step.turn is not None else None
        if fault is None or step.turn is None:
            return None
        if fault.times == "always":
            return fault
        key = (step.turn, digest_of(asked.messages[0].text if asked.messages else ""))
        self._faults[key] += 1
        return fault if self._faults[key] <= fault.times else None

    def _side_reply(self, asked: LlmRequest) -> Reply:
        request = asked.preamble + "".join(message.text for message in asked.messages)
        prepared = (aside.say for aside in self._scenario.asides if re.search(aside.asked, request))
        default = SIDE_ANSWER if asked.json_schema is None else compact(tools.example(asked.json_schema))
        return _reply(asked, next(prepared, default), None, None)

    def _turn(self, step: ScenarioStep) -> Turn:
        return self._scenario.turns[step.turn or 0]


def count_tokens(asked: LlmRequest) -> int:
    """Estimates the tokens of a request from its length."""
    return _tokens(len(asked.preamble) + sum(len(message.text) for message in asked.messages))


def _reply(asked: LlmRequest, say: str, call: Call | None, usage: Usage | None) -> Reply:
    written = len(say) + (len(compact(call.arguments)) if call else 0)
    return Reply(say, call, usage or _estimate(asked, written))


def _estimate(asked: LlmRequest, written: int) -> Usage:
    """Estimates the usage. Everything up to the last answer was sent before, so it counts as cached."""
    answers = [number for number, message in enumerate(asked.messages) if message.role == "assistant"]
    before = asked.messages[: answers[-1]] if answers else ()
    known = len(asked.preamble) + sum(len(message.text) for message in before) if answers else 0
    return Usage(
        input_tokens=count_tokens(asked),
        output_tokens=_tokens(written),
        cached_tokens=known // CHARACTERS_PER_TOKEN,
    )


def _tokens(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)
