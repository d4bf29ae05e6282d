"""Tests that the published schemas are those of the reports that are written."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from a2rl.results.suite.files import write_suite_report
from a2rl.run.directory import RunDir
from tests.run_maker import REPOSITORY, checkout
from tests.simulated_runs import simulate_run

jsonschema = pytest.importorskip("jsonschema")


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_schemas", REPOSITORY / "scripts" / "write_schemas.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_schemas_in_docs_are_those_of_the_code() -> None:
    writer = script()
    for name, model in writer.SCHEMAS.items():
        assert (writer.DOCS / name).read_text() == writer.schema_text(model), "run python scripts/write_schemas.py"


def test_a_report_follows_its_schema_and_a_changed_one_does_not(tmp_path: Path) -> None:
    settings = checkout(tmp_path)
    simulate_run(settings, 1)
    page = write_suite_report("sim", RunDir.all(settings.runs), settings)
    report = json.loads((page.parent / "report.json").read_text())
    schema = json.loads((REPOSITORY / "docs" / "suite-report.schema.json").read_text())
    jsonschema.validate(report, schema)
    del report["standings"][0]["mean_gain"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(report, schema)
