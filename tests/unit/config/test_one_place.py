"""Tests that one line adds a run's setting to the command line, the flow, the suites and the spec."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LINE = '    noise: float = Field(default=0.5, ge=0, le=2, description="Amount of noise in this test.")\n'
BEFORE = '    sandbox: SandboxKind = Field(default="landlock"'
SCRIPT = """
import json, sys
from pathlib import Path
from typer.testing import CliRunner
from a2rl.cli.commands import app
from a2rl.config.params import load_params
from a2rl.config.plan import choose_suite, plan_runs
from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.run.spec import RunSpec
from flows.pipeline import a2rl

def helped(command):
    return CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output

settings = Settings.load(Path.cwd())
params = load_params(settings.root)
found = {
    "run": helped("run"), "bench": helped("bench"),
    "flow": a2rl.parameters.properties["noise"],
    "suite": [cell.noise for cell in params.suites["noisy"].cells()],
}
[spec] = plan_runs(choose_suite(params, "noisy", noise=1.5), "noisy", params, settings)
found["spec"] = json.loads(spec.model_dump_json())["noise"]
old = json.loads(spec.model_dump_json())
del old["noise"]
found["old spec"] = RunSpec.model_validate(old).noise
try:
    choose_suite(params, "noisy", noise=3)
except UsageError as error:
    found["refused"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> dict[str, Any]:
    """Returns where a checkout with one additional setting shows that setting."""
    root = tmp_path_factory.mktemp("checkout")
    shutil.copytree(repository / "a2rl", root / "a2rl", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("agents", "flows", "stages", "tasks"):
        (root / name).symlink_to(repository / name)
    spec = root / "a2rl" / "run" / "spec.py"
    text = spec.read_text(encoding="utf-8")
    assert BEFORE in text
    spec.write_text(text.replace(BEFORE, LINE + BEFORE), encoding="utf-8")
    suite = "  noisy:\n    tasks: [gsm8k]\n    agents: [noop]\n    noise: [0.1, 0.2]\n"
    params = (repository / "params.yaml").read_text(encoding="utf-8")
    (root / "params.yaml").write_text(params + suite, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT], cwd=root, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_a_new_setting_is_an_option_with_help_bounds_and_default(found: dict[str, Any]) -> None:
    assert "--noise" in found["run"]
    assert "Amount of noise in this test." in found["run"]
    assert "0<=x<=2" in found["run"]
    assert "[default: 0.5]" in found["run"]


def test_a_new_setting_is_an_option_of_bench(found: dict[str, Any]) -> None:
    assert "--noise" in found["bench"]
    assert "Amount of noise in this test." in found["bench"]


def test_a_new_setting_is_a_flow_parameter_with_help_and_bounds(found: dict[str, Any]) -> None:
    assert found["flow"]["description"] == "Amount of noise in this test."
    assert {"type": "number", "minimum": 0, "maximum": 2} in found["flow"]["anyOf"]


def test_a_new_setting_is_a_key_of_suites_and_may_be_an_axis(found: dict[str, Any]) -> None:
    assert found["suite"] == [0.1, 0.2]
    assert "noise" in found["refused"]
    assert "less than or equal to 2" in found["refused"]


def test_a_new_setting_is_in_the_spec(found: dict[str, Any]) -> None:
    """Specs from before it load with its default."""
    assert found["spec"] == 1.5
    assert found["old spec"] == 0.5
