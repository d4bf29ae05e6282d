"""What a run's judge was asked, what it cost, and how noisy it is: a part of the record of the result."""

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from a2rl.core.errors import A2rlError
from a2rl.judge.account import Account, Use
from a2rl.judge.noise import JudgeNoise, noise_of
from a2rl.run.directory import RunDir


class JudgeRecord(BaseModel):
    """The judge of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    model: str
    annotator: str
    use: Use
    """All requests of the run; answers from the cache are none."""
    for_agent: Use = Use()
    """Those among them that the agent made for its own rollouts."""
    searches: int = 0
    """The agent's searches."""
    limit_usd: float | None = None
    noise: JudgeNoise | None = None
    """On the items of the final grade, if the run asked twice."""

    def __str__(self) -> str:
        limit = f" of ${self.limit_usd:.2f}" if self.limit_usd is not None else ""
        asked = f"{self.use.requests:,} requests, ${self.use.dollars:.2f}{limit}"
        noise = f"; {self.noise}" if self.noise else ""
        return f"judge {self.name or self.model} ({self.annotator}): {asked}{noise}"


def judge_record(run: RunDir, measures: Sequence[Mapping[str, float]] = ()) -> JudgeRecord | None:
    """Returns the record of a run's judge; None if the run has no judge or its account cannot be read.

    Args:
        run: The run.
        measures: The measures of the items of the final grade.
    """
    spec, account = run.spec, Account(run.account)
    if spec.judge is None:
        return None
    try:
        use, for_agent, searches = account.paid(), account.use("agent's judgement"), account.use("agent's search")
    except A2rlError:
        return None
    return JudgeRecord(
        name=spec.judge.name,
        model=spec.judge.model,
        annotator=spec.judge.annotator,
        use=use,
        for_agent=for_agent,
        searches=searches.requests,
        limit_usd=spec.max_judge_usd,
        noise=noise_of(measures),
    )
