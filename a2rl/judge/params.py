"""Which model judges, and how it is asked: the section `judge` of params.yaml."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from a2rl.errors import UsageError
from a2rl.settings import Settings

DecodingValue = bool | int | float | str


class JudgeParams(BaseModel):
    """An OpenAI-compatible chat endpoint and the settings of the judge behind it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    annotator: str = "weighted_alpaca_eval_gpt4_turbo"
    """What is asked and how the answer is read: a name that the task knows."""
    base_url: str = "https://api.openai.com/v1"
    """`/chat/completions` is added to it."""
    api_key_env: str | None = "OPENAI_API_KEY"
    """Name of the environment variable with the API key; null for an endpoint that needs none."""
    model: str = "gpt-4-1106-preview"
    decoding: dict[str, DecodingValue] = {
        "max_tokens": 1,
        "temperature": 1,
        "top_p": 1,
        "logprobs": True,
        "top_logprobs": 5,
    }
    """Sent with every request as it is. These are the annotator's own."""
    dollars_per_million_prompt_tokens: float = Field(default=10.0, ge=0)
    dollars_per_million_completion_tokens: float = Field(default=30.0, ge=0)
    concurrency: int = Field(default=8, ge=1)
    """Requests under way at once."""
    timeout_s: float = Field(default=60.0, gt=0)
    """For one attempt."""
    attempts: int = Field(default=6, ge=1)
    """How often a request is made before it counts as failed."""
    backoff_s: float = Field(default=1.0, ge=0)
    """The longest wait before the second attempt; it doubles from attempt to attempt."""

    def identity(self) -> dict[str, Any]:
        """What a judgement depends on; where it is asked, how fast and at which price it does not."""
        return {"annotator": self.annotator, "model": self.model, "decoding": self.decoding}


@dataclass(frozen=True, slots=True)
class Judging:
    """A judge, the key to it, and where its answers are kept."""

    params: JudgeParams
    cache: Path
    api_key: str | None = None

    @classmethod
    def by(cls, params: JudgeParams, settings: Settings) -> "Judging":
        """The judge of the params, with the key from the environment.

        Raises:
            UsageError: the key is not set.
        """
        key = settings.environ.get(params.api_key_env) if params.api_key_env else None
        if params.api_key_env and not key:
            raise UsageError(
                f"the judge {params.model} needs an API key: set {params.api_key_env}, "
                "or choose another endpoint under `judge` in params.yaml"
            )
        return cls(params, settings.judgements, key)
