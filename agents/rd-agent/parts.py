"""What RD-Agent's loop for RL post-training gets from us: the assignment, patience, and somebody who listens.

Its own prompts (rdagent 1.0.0, scenarios/rl/proposal/prompts.yaml and components/coder/rl/prompts.yaml) name neither
the task's description nor the form of the data; without these an LLM could only guess what to train for.
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
HOPELESS = (litellm.AuthenticationError, litellm.PermissionDeniedError, litellm.NotFoundError)
"""What no repetition mends; RD-Agent would try it again like all else."""
ROLE = """
You have no tools here: this is what an agent with tools is told, and RD-Agent does the work for you. Your program is
written to code/main.py and run there; then the newest folder of a checkpoint in $OUTPUT_DIR is submitted for you, and
its score comes back. Submit nothing yourself, and let each program end well before the deadline.
"""


class GaveUp(SystemExit):
    """The LLM cannot be had. No `Exception`: RD-Agent catches those, to try again."""


class Scenario(RLPostTrainingScen):
    """RD-Agent's own lacks two methods that its base class demands, so that it cannot be made as it was released."""

    @property
    def rich_style_description(self) -> str:
        return self.background

    def get_scenario_all_desc(self, *args: Any, **kwargs: Any) -> str:
        return self.background


class Hypotheses(RLPostTrainingExpGen):
    """RD-Agent's own, with the assignment before its eyes; the code is written for it, too."""

    def gen(self, trace: Any) -> RLExperiment:
        experiment = super().gen(trace)
        for task in experiment.sub_tasks:
            task.description = f"{task.description}\n\n{_assignment()}"
        return experiment

    def _build_trace_summary(self, trace: Any) -> str:
        return "\n\n".join(filter(None, (super()._build_trace_summary(trace), _assignment())))


class Runner(runner.RLPostTrainingRunner):
    """RD-Agent's own, listened to."""

    def develop(self, exp: RLExperiment) -> RLExperiment:
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


def listen() -> None:
    """From here on answers of the LLM are written down, and neither they nor grades are waited for in vain."""
    litellm.drop_params = True  # some models take no temperature
    backend.completion = _completion
    runner.requests = Patient()


class Patient:
    """`requests` for RD-Agent's runner: grading may take longer than the ten minutes that it allows."""

    def post(self, url: str, **options: Any) -> requests.Response:
        return requests.post(url, **{**options, "timeout": None})


def _completion(**asked: Any) -> Any:
    try:
        response = litellm.completion(**{**asked, "timeout": ANSWER_TIMEOUT_S})
    except HOPELESS as error:
        raise GaveUp(f"{type(error).__name__}: {error}") from error
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
        usage=response.usage.model_dump() if response.usage else None,
        cost=response._hidden_params.get("response_cost"),
    )
    return response


def say(kind: str, **fields: Any) -> None:
    """A line of the transcript."""
    print(json.dumps({"kind": kind, "time": time.time(), **fields}, default=str), file=TRANSCRIPT, flush=True)
