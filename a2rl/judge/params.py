"""Which model judges and how it is asked: the sections `judge` and `judges` of params.yaml."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue

from a2rl.core.errors import UsageError
from a2rl.core.files import StrictModel, expanded
from a2rl.core.settings import Settings
from a2rl.judge.account import Kind
from a2rl.judge.annotator import Annotator, annotator_names, find_annotator

DETERMINISTIC: dict[str, JsonValue] = {"temperature": 0}
"""The decoding of a task's own annotator, where the judge sets none."""
SERVED_TIMEOUT_S = 900.0
"""Timeout of one attempt at a model that this machine serves: on a CPU, an answer takes long."""


class JudgeParams(StrictModel):
    """An OpenAI-compatible chat endpoint, or a model that is served here, and how it is asked.

    What params.yaml leaves out comes from the annotator; `resolved` fills it in. In the spec of a run nothing is left
    out, so that a run depends on no file outside of it.
    """

    name: str = ""
    """Its name in `judges`, for reports."""
    annotator: str = ""
    """For tasks that compare two answers: the prompt format and how the reply is read, by a name of alpaca-eval's
    configurations (or of a2rl/judge/annotators/), or a folder with one. Other tasks have a format of their own."""
    base_url: str = "https://api.openai.com/v1"
    """`/chat/completions` is added to it."""
    api_key_env: str | None = "OPENAI_API_KEY"
    """Name of the environment variable with the API key; null for an endpoint that needs none."""
    serve: str | None = None
    """Instead of an endpoint: a base model (a name, a folder or a hub id) that this machine serves for the judge."""
    model: str = ""
    """The annotator's own, unless given."""
    decoding: dict[str, JsonValue] | None = None
    """Sent unchanged with every request; the annotator's own, unless given."""
    annotator_digest: str = ""
    """Digest of the annotator's prompt and parser. Runs from before it existed have none."""
    dollars_per_million_prompt_tokens: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    dollars_per_million_completion_tokens: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    concurrency: int = Field(default=64, ge=1)
    """Number of concurrent requests."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Timeout of one attempt."""
    attempts: int = Field(default=6, ge=1)
    """Number of attempts before a request counts as failed."""
    backoff_s: float = Field(default=1.0, ge=0)
    """The longest wait before the second attempt; it doubles from attempt to attempt."""

    @property
    def has_price(self) -> bool:
        """Whether its tokens cost something."""
        return self.dollars_per_million_prompt_tokens + self.dollars_per_million_completion_tokens > 0

    def identity(self) -> dict[str, Any]:
        """Returns what a verdict depends on, besides the endpoint: not the concurrency or the price."""
        served = {"serve": self.serve} if self.serve else {}
        digest = {"annotator_digest": self.annotator_digest} if self.annotator_digest else {}
        return {"annotator": self.annotator, "model": self.model, "decoding": self.decoding, **digest, **served}

    def price(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Returns the price of a request in dollars."""
        dollars = prompt_tokens * self.dollars_per_million_prompt_tokens
        dollars += completion_tokens * self.dollars_per_million_completion_tokens
        return dollars / 1_000_000

    def resolved(self, own: str) -> "JudgeParams":
        """Returns the judge of a task, with everything filled in.

        Args:
            own: The task's annotator. If it compares two answers, the judge may have another one that does.

        Raises:
            UsageError: The judge has no model or no endpoint, or its annotator does not exist.
        """
        compares = own in annotator_names()
        annotator = find_annotator(self.annotator or own) if compares else None
        model = self.model or self.serve or (annotator.model if annotator else "")
        if not model:
            raise UsageError(f"the judge {self.name or own} has no model: name one under `judges` in params.yaml")
        decoding = self.decoding
        if decoding is None:
            decoding = dict(annotator.decoding) if annotator else DETERMINISTIC
        filled: dict[str, Any] = {
            "annotator": _absolute(self.annotator or own) if compares else own,
            "annotator_digest": annotator.digest if annotator else "",
            "base_url": self._endpoint(annotator),
            "model": model,
            "decoding": decoding,
        }
        if self.serve:
            filled |= {"api_key_env": None, "concurrency": 1, "timeout_s": SERVED_TIMEOUT_S}
        return self.model_copy(update=filled)

    def _endpoint(self, annotator: Annotator | None) -> str:
        if "base_url" in self.model_fields_set or self.serve or annotator is None:
            return self.base_url
        if not annotator.is_openai:
            raise UsageError(
                f"the annotator {annotator.name} is for another kind of API: "
                "name an OpenAI-compatible endpoint for its model (base_url) under `judges` in params.yaml"
            )
        return annotator.base_url or self.base_url


@dataclass(frozen=True, slots=True)
class JudgeConfig:
    """A judge, its API key, and the file of its cached answers."""

    params: JudgeParams
    cache: Path
    api_key: str | None = None
    served: Path | None = None
    """The folder of the model that this machine serves for it."""
    served_digest: str = ""
    """The digest of that model."""
    account: Path | None = None
    """The file that counts what the run spends; None: nothing is counted."""
    limit_usd: float | None = None
    """Nothing more is asked when the account has this many dollars."""
    purpose: Kind = "judgement"
    job: str = ""
    """What the judgements are for, in the account."""

    @classmethod
    def by(
        cls, params: JudgeParams, settings: Settings, served: Path | None = None, served_digest: str = ""
    ) -> "JudgeConfig":
        """Configures a judge with the API key from the environment.

        Raises:
            UsageError: The key is not set.
        """
        name = params.api_key_env
        key = settings.keys((name,)).get(name) if name else None
        if name and not key:
            raise UsageError(
                f"the judge {params.model} needs an API key: set {name}, "
                "or choose another judge with --judge (`judges` in params.yaml)"
            )
        return cls(params, settings.judgements, key, served, served_digest)


def _absolute(annotator: str) -> str:
    """Returns the name of an annotator, or its folder as an absolute path."""
    return str(expanded(annotator).resolve()) if "/" in annotator else annotator
