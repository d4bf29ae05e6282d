"""Writes the JSON schemas of the reports into docs/: `python scripts/write_schemas.py`."""

import json
from pathlib import Path

from pydantic import BaseModel

from a2rl.results.report.data import RunReport
from a2rl.results.suite.files import SuiteReport

DOCS = Path(__file__).resolve().parents[1] / "docs"
SCHEMAS: dict[str, type[BaseModel]] = {
    "run-report.schema.json": RunReport,
    "suite-report.schema.json": SuiteReport,
}
"""The model that each file describes."""


def schema_text(model: type[BaseModel]) -> str:
    """Returns the text of a model's schema file."""
    return json.dumps(model.model_json_schema(mode="serialization"), indent=2) + "\n"


def main() -> None:
    """Writes all schemas."""
    for name, model in SCHEMAS.items():
        DOCS.joinpath(name).write_text(schema_text(model), encoding="utf-8")


if __name__ == "__main__":
    main()
