"""Writes docs/results/README.md from the bundles in that folder, so that every figure in it can be checked.

    a2rl bundle RUN -o docs/results/NAME.tar.gz
    python scripts/publish_results.py

The page says of each bundle only what its report says.
"""

import json
import tarfile
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
HEAD = """# Results of real models on real data

Each row is a run of the agent `scripted`, which is in this repository: see [train-your-own.md](../train-your-own.md).
The score is on the items of which the agent was told nothing. `python scripts/publish_results.py` writes this page from
the bundles. `a2rl audit docs/results/BUNDLE` checks one: see [audit.md](../audit.md). To grade its checkpoint again or
to repeat the run, take a checkout of the commit that made it.

| task | base model | agent's time | before | after | gain | validity | machine | commit | bundle |
|---|---|---|---|---|---|---|---|---|---|
"""


def page(folder: Path) -> str:
    """Returns the text of the page for the bundles in a folder."""
    rows = [_row(bundle) for bundle in sorted(folder.glob("*.tar.gz"))]
    stories = [f"\n## {bundle.name}\n\n{_story(bundle)}" for bundle in sorted(folder.glob("*.tar.gz"))]
    return HEAD + "".join(rows) + "".join(stories)


def _read(bundle: Path, name: str) -> dict[str, Any]:
    with tarfile.open(bundle) as archive:
        member = archive.extractfile(name)
        assert member is not None, f"{bundle} has no {name}"
        return dict(json.loads(member.read()))


def _row(bundle: Path) -> str:
    report, spec = _read(bundle, "run/report/report.json"), _read(bundle, "run/spec.json")
    hardware = _read(bundle, "run/records/setup.json")["hardware"]
    cells = (
        f"{report['task']} ({spec['variant']}, {report['final']['total']} private items)",
        spec["model"],
        f"{spec['budget_s'] / 60:.0f} min",
        _score(report["baseline"]),
        _score(report["final"]),
        f"**{report['improvement']:+.1f}** [{report['improvement_ci'][0]:.1f}, {report['improvement_ci'][1]:.1f}]",
        report["validity"],
        f"{hardware['cores']} cores, {hardware['processor']}",
        spec["git_commit"][:7],
        f"[{bundle.name}]({bundle.name})",
    )
    return f"| {' | '.join(cells)} |\n"


def _score(score: dict[str, Any]) -> str:
    return f"{score['score']:.1f} [{score['ci'][0]:.1f}, {score['ci'][1]:.1f}]"


def _story(bundle: Path) -> str:
    """Returns the submissions of a run in order, with their scores on the public half."""
    text = "| submission | after | public score | graded on the private half |\n|---|---|---|---|\n"
    for each in _read(bundle, "run/report/report.json")["submissions"]:
        chosen = "yes" if each["is_result"] else ""
        text += f"| {each['number']} | {each['elapsed_s'] / 60:.0f} min | {_score(each)} | {chosen} |\n"
    return text


if __name__ == "__main__":
    (RESULTS / "README.md").write_text(page(RESULTS), encoding="utf-8")
