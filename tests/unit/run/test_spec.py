"""Tests spec.json: files without a later setting still load, and invalid files do not."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from a2rl.core.files import digest_of
from a2rl.run.spec import RunSettings, RunSpec

FIRST = {
    "schema_version": 1, "run_id": "gsm8k-noop-1", "suite": "smoke", "task": "gsm8k", "variant": "mini",
    "agent": "noop", "driver": None, "mode": "free", "model": "tiny", "protocol": "strict", "seed": 0,
    "budget_s": 90.0, "max_submissions": None, "source": None, "backend": "transformers", "exact": False,
    "options": {}, "split_seed": 20260412, "grading_port": 0, "git_commit": "", "versions": {"a2rl": "0"},
    "created_at": "2026-04-12T09:30:15+0000",
}  # fmt: skip
"""The keys without a default, and those of the settings that mattered first."""


def test_a_spec_without_a_later_setting_keeps_its_digest() -> None:
    spec = RunSpec.model_validate_json(json.dumps(FIRST))
    assert (spec.sandbox, spec.trials, spec.launch) == ("landlock", 1, "")
    assert spec.grading_quota_s == 90
    assert digest_of(spec.model_dump(mode="json", exclude_unset=True)) == digest_of(FIRST)


def test_a_spec_survives_writing_and_reading() -> None:
    spec = RunSpec.model_validate(FIRST | {"max_grading_s": "30m", "launch": "smoke-1"})
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec
    assert spec.grading_quota_s == 1800


@pytest.mark.parametrize("change", [{"budget": "2m"}, {"noise": 1}, {"mode": "wild"}, {"seed": "x"}, {"budget_s": 0}])
def test_an_unknown_key_or_a_wrong_value_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(change))):
        RunSpec.model_validate(FIRST | change)


def test_every_setting_has_a_text_and_a_default() -> None:
    for name, field in RunSettings.model_fields.items():
        assert field.description, name
        assert not field.is_required(), name
