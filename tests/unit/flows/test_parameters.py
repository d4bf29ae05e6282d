"""Tests the flow's parameters in Prefect: for its UI and for `prefect deployment run a2rl/full-bench --param`."""

from typing import Any

import pytest
from prefect.utilities.schema_tools import is_valid_schema, validate

from a2rl.config.suite import SUITE_SETTINGS
from flows.pipeline import a2rl

SCHEMA: dict[str, Any] = a2rl.parameters.model_dump()


def test_the_schema_is_valid_and_has_every_setting_with_its_text() -> None:
    is_valid_schema(SCHEMA)
    assert set(SCHEMA["properties"]) == {"suite", "run_ids", "pool", *(each.suite_key for each in SUITE_SETTINGS)}
    for setting in SUITE_SETTINGS:
        assert SCHEMA["properties"][setting.suite_key]["description"] == setting.field.description


def test_generated_parameters_are_those_of_before() -> None:
    before = {
        "suite", "tasks", "agents", "seeds", "variant", "model", "mode", "protocol", "budget", "driver", "base_url",
        "trials", "max_turns", "max_tokens", "max_cost_usd", "max_submissions", "max_grading", "source", "concurrency",
        "sandbox", "run_ids",
    }  # fmt: skip
    assert before <= set(SCHEMA["properties"])
    assert not SCHEMA["required"]


@pytest.mark.parametrize(
    ("parameters", "is_valid"),
    [
        ({"variant": "full", "model": "Qwen/Qwen2.5-7B", "budget": "12h"}, True),
        ({"tasks": ["gsm8k"], "seeds": [0, 1], "concurrency": 2, "mode": ["free", "multi"]}, True),
        ({"variant": "huge"}, False),
        ({"max_cost_usd": 0}, False),
        ({"concurrency": 0}, False),
        ({"seeds": ["x"]}, False),
    ],
)
def test_prefect_checks_parameters_before_a_run_is_scheduled(parameters: dict[str, Any], is_valid: bool) -> None:
    assert (validate(parameters, SCHEMA) == []) is is_valid
    if is_valid:
        assert parameters.items() <= a2rl.validate_parameters(parameters).items()
