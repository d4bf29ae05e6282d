"""Writes docs/results/README.md from the bundles in that folder, so that every figure in it can be checked.

    a2rl bundle RUN -o docs/results/NAME.tar.gz
    python scripts/publish_results.py

The page says of each bundle only what its report says.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from a2rl.bundle.audit import open_bundle
from a2rl.core.files import read_model
from a2rl.core.settings import Settings
from a2rl.grading.job import GradeResult
from a2rl.results.table import plain
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionAccepted, SubmissionReceived
from a2rl.scoring.paired import compare

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
HEAD = """# Results on real data

Each row is a run of the agent `scripted`, which is in this repository: see [train-your-own.md](../train-your-own.md).
The score is on the items of which the agent was told nothing. `python scripts/publish_results.py` writes this page from
the bundles. `a2rl audit docs/results/BUNDLE` checks one: see [audit.md](../audit.md). To grade its checkpoint again or
to repeat the run, take a checkout of the commit that made it.

For each run, a table shows its submissions. A change is that from the submission before, on the same public items.

| task | base model | agent's time | before | after | gain | validity | machine | commit | bundle |
|---|---|---|---|---|---|---|---|---|---|
"""


def page(folder: Path) -> str:
    """Returns the text of the page for the bundles in a folder."""
    rows, stories = "", ""
    for bundle in sorted(folder.glob("*.tar.gz")):
        with tempfile.TemporaryDirectory() as scratch:
            run = open_bundle(bundle, Path(scratch), Settings(RESULTS.parents[1], {})).run
            rows += _row(bundle.name, run)
            stories += f"\n## {bundle.name}\n\n{_story(run)}"
    return HEAD + rows + stories


def _read(run: RunDir, name: str) -> dict[str, Any]:
    return dict(json.loads((run.root / name).read_bytes()))


def _row(bundle: str, run: RunDir) -> str:
    report, spec = _read(run, "report/report.json"), _read(run, "spec.json")
    hardware = _read(run, "records/setup.json")["hardware"]
    cells = (
        f"{report['task']} ({spec['variant']}{_private_items(report)})",
        spec["model"],
        f"{spec['budget_s'] / 60:.0f} min",
        _score(report["baseline"]),
        _score(report["final"]),
        _gain(report),
        report["validity"],
        f"{hardware['cores']} cores, {hardware['processor']}",
        spec["git_commit"][:7],
        f"[{bundle}]({bundle})",
    )
    return f"| {' | '.join(cells)} |\n"


def _private_items(report: dict[str, Any]) -> str:
    return f", {report['final']['total']} private items" if report["final"] else ""


def _gain(report: dict[str, Any]) -> str:
    if report["improvement"] is None:
        return "no result"
    low, high = report["improvement_ci"]
    return f"**{report['improvement']:+.1f}** [{low:.1f}, {high:.1f}]"


def _score(score: dict[str, Any] | None) -> str:
    if score is None or score["score"] is None:
        return "no score"
    return f"{score['score']:.1f} [{score['ci'][0]:.1f}, {score['ci'][1]:.1f}]"


def _story(run: RunDir) -> str:
    """Returns the submissions of a run in order, with their scores on the public half and what each stage has added."""
    text = "| submission | by | after | public score | change, 95% interval | graded on the private half |\n"
    text += "|---|---|---|---|---|---|\n"
    methods = {event.receipt: event.claims.method for event in run.ledger.events(SubmissionReceived)}
    accepted = {event.submission_id: event for event in run.ledger.events(SubmissionAccepted)}
    before = read_model(run.baseline_items, GradeResult).items
    for each in _read(run, "report/report.json")["submissions"]:
        if each["score"] is None:
            continue
        event = accepted[each["number"]]
        after = read_model(run.items(event.weights_digest, "public"), GradeResult).items
        change, before = compare(before, after), after
        assert change is not None, f"no item of submission {each['number']} was judged"
        cells = (
            f"{each['number']}",
            plain(methods[event.receipt]),
            f"{each['elapsed_s'] / 60:.0f} min",
            _score(each),
            f"{change.points:+.1f} [{change.ci.low:.1f}, {change.ci.high:.1f}]",
            "yes" if each["is_result"] else "",
        )
        text += f"| {' | '.join(cells)} |\n"
    return text


if __name__ == "__main__":
    (RESULTS / "README.md").write_text(page(RESULTS), encoding="utf-8")
