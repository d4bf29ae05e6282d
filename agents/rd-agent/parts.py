"""Adds the assignment, timeouts and a transcript to RD-Agent's loop for RL post-training.

Its prompts (rdagent 1.0.0, scenarios/rl/proposal/prompts.yaml and components/coder/rl/prompts.yaml) name neither
the task's description nor the form of the data; without these an LLM could only guess the goal of the training.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

TRANSCRIPT = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
sys.stdout = sys.stderr  # RD-Agent and the libraries that it uses print there; stdout is the transcript

import litellm
import requests
from rdagent.log import rdagent_logger
from rdagent.oai.backend import litellm as backend
from rdagent.scenarios.rl.experiment.experiment import RLExperiment
from rdagent.scenarios.rl.proposal.proposal import RLPostTrainingExpGen
from rdagent.scenarios.rl.scen.scenario import RLPostTrainingScen
from rdagent.scenarios.rl.train import runner

ANSWER_TIMEOUT_S = 1_800
SAMPLE_CHARS = 1_000
PERMANENT_ERRORS = (litellm.AuthenticationError, litellm.PermissionDeniedError, litellm.NotFoundError)
"""Errors that remain on a retry; RD-Agent would retry them like any other."""
ROLE = """
You have no tools here: this is what an agent with tools is told, and RD-Agent does the work for you. Your program is
written to code/main.py and run there; then the newest folder of a checkpoint in $OUTPUT_DIR is submitted for you, and
its score comes back. Submit nothing yourself, and let each program end well before the deadline.
"""


class LLMUnavailable(SystemExit):
    """The LLM is unavailable. Not an `Exception`, because RD-Agent catches those and retries."""


class Scenario(RLPostTrainingScen):
    """RD-Agent's scenario with the two abstract methods that the release lacks."""

    @property
    def rich_style_description(self) -> str:
        """The background, as plain text."""
        return self.background

    def get_scenario_all_desc(self, *args: Any, **kwargs: Any) -> str:
        """Returns the background."""
        return self.background


class Hypotheses(RLPostTrainingExpGen):
    """RD-Agent's generator of hypotheses, with the assignment in its prompts and in the tasks of the coder."""

    def gen(self, trace: Any) -> RLExperiment:
        """Returns an experiment whose tasks have the assignment."""
        experiment = super().gen(trace)
        for task in experiment.sub_tasks:
            task.description = f"{task.description}\n\n{_assignment()}"
        return experiment

    def _build_trace_summary(self, trace: Any) -> str:
        return "\n\n".join(filter(None, (super()._build_trace_summary(trace), _assignment())))


class Runner(runner.RLPostTrainingRunner):
    """RD-Agent's runner, with a line in the transcript for each run."""

    def develop(self, exp: RLExperiment) -> RLExperiment:
        """Runs an experiment."""
        exp = super().develop(exp)
        say("Run", **exp.result)
        return exp


def _assignment() -> str:
    workspace = Path(os.environ["WORKSPACE"])
    told = [f"{name}:\n{(workspace / name).read_text()}" for name in ("instructions.md", "description.md")]
    samples = [
        f"The beginning of $DATA_PATH/{path.relative_to(workspace / 'data')}:\n{_beginning(path)}"
        for path in sorted((workspace / "data").rglob("*.jsonl"))
    ]
    now = time.strftime("It is %H:%M:%S now.")
    return "\n\n".join(["## Assignment", os.environ["ASSIGNMENT"], ROLE, now, *told, *samples])


def _beginning(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.read(SAMPLE_CHARS)


def start_recording() -> None:
    """Records all answers of the LLM from now on, and sets timeouts for answers and grades."""
    litellm.drop_params = True  # some models take no temperature
    backend.completion = _completion
    runner.requests = RequestsWithoutTimeout()


class RequestsWithoutTimeout:
    """`requests` for RD-Agent's runner: grading may take longer than the ten minutes that it allows."""

    def post(self, url: str, **options: Any) -> requests.Response:
        """See `requests.post`."""
        return requests.post(url, **{**options, "timeout": None})


def _completion(**asked: Any) -> Any:
    try:
        response = litellm.completion(**{**asked, "timeout": ANSWER_TIMEOUT_S})
    except PERMANENT_ERRORS as error:
        raise LLMUnavailable(f"{type(error).__name__}: {error}") from error
    except Exception as error:
        say("Error", detail=f"{type(error).__name__}: {error}")
        raise
    message = response.choices[0].message
    say(
        "Answer",
        stage=".".join(rdagent_logger._tag.split(".")[:2]),
        model=response.model,
        asked=asked["messages"][-1]["content"],
        text=message.content,
        reasoning=getattr(message, "reasoning_content", None),
    )
    return response


def say(kind: str, **fields: Any) -> None:
    """Writes a line of the transcript."""
    print(json.dumps({"kind": kind, "time": time.time(), **fields}, default=str), file=TRANSCRIPT, flush=True)
