"""Tests the report over many runs: what is combined, what counts as no gain, and what the files contain."""

import csv
import json
import os
import shutil
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from a2rl.core.errors import UsageError
from a2rl.core.files import write_model
from a2rl.core.secrets import register_secrets
from a2rl.core.settings import Settings
from a2rl.results.suite.figures import NAMES
from a2rl.results.suite.files import SuiteReport, report_name, runs_of, write_site, write_suite_report
from a2rl.results.suite.leaderboard import boards, compare_stacks, stack_names
from a2rl.results.suite.run_summary import Summaries, summaries, summary_of
from a2rl.run.budget import this_boot
from a2rl.run.directory import RunDir
from a2rl.run.owner import trust
from tests.run_maker import checkout
from tests.simulated_runs import simulate_run, simulate_suite


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Two agents on two tasks, three seeds each; one of the weak agent's runs has no submission."""
    settings = checkout(tmp_path_factory.mktemp("checkout"))
    number = 0
    for task in ("gsm8k", "humaneval"):
        for agent, skill in (("strong", 0.8), ("weak", 0.3)):
            for seed in range(3):
                number += 1
                tries = 0 if (agent, seed) == ("weak", 2) else 4
                simulate_run(settings, number, skill=skill, submissions=tries, task=task, agent=agent, seed=seed)
    return settings


def written(settings: Settings, **changes: Any) -> SuiteReport:
    page = write_suite_report("sim", RunDir.all(settings.runs), settings)
    return SuiteReport.model_validate_json((page.parent / "report.json").read_text())


def test_the_better_agent_leads_and_is_marked_on_each_task(settings: Settings) -> None:
    report = written(settings)
    assert [each.stack for each in report.standings] == ["strong", "weak"]
    assert [(cell.stack, cell.task) for cell in report.cells if cell.is_best] == [
        ("strong", "gsm8k"), ("strong", "humaneval")
    ]  # fmt: skip
    first = report.standings[0]
    assert first.ci.low < first.mean_gain < first.ci.high
    assert first.cost_usd == pytest.approx(6 * 2.5)
    assert first.tokens == 6_000_000


def test_a_stack_without_a_result_has_gains_of_zero(tmp_path: Path) -> None:
    settings = checkout(tmp_path)
    tries = {"strong": (0.8, 4), "weak": (0.3, 4), "silent": (0.3, 0)}
    for number, (agent, (skill, submissions)) in enumerate(tries.items()):
        for seed in range(3):
            simulate_run(settings, 10 * number + seed, skill=skill, submissions=submissions, agent=agent, seed=seed)
    cells = {cell.stack: cell for cell in written(settings).cells}
    assert [stack for stack, cell in cells.items() if cell.is_best] == ["strong"]
    assert [stack for stack, cell in cells.items() if cell.is_worst] == ["silent"]
    assert (cells["silent"].gain, tuple(cells["silent"].ci)) == (0.0, (0.0, 0.0))
    [found] = compare_stacks("silent", "strong", summaries(RunDir.all(settings.runs)).runs)
    assert found.difference == pytest.approx(cells["strong"].gain)


def test_a_single_run_gets_no_mark(tmp_path: Path) -> None:
    settings = checkout(tmp_path)
    for number, (agent, skill) in enumerate({"strong": 0.9, "weak": 0.2}.items()):
        simulate_run(settings, number, skill=skill, agent=agent)
    assert not any(cell.is_best or cell.is_worst for cell in written(settings).cells)


def test_runs_on_other_items_with_equal_gains_are_not_certain(tmp_path: Path) -> None:
    settings = checkout(tmp_path)
    runs = [simulate_run(settings, number, seed=number) for number in range(2)]
    one, other = summaries(runs).runs
    same = other.model_copy(update={"gain": one.gain, "items_digest": "another draw"})
    [cell] = boards([one, same])[0].cells
    assert one.ci is not None
    assert cell.ci.high - cell.ci.low > (one.ci.high - one.ci.low) / 2


def test_one_run_on_other_items_makes_no_mean_surer(tmp_path: Path) -> None:
    known = summary_of(simulate_run(checkout(tmp_path), 1))
    assert known.ci is not None
    same = [known.model_copy(update={"run_id": str(number), "items_digest": "draw 1"}) for number in range(10)]
    other = known.model_copy(update={"items_digest": "draw 2"})
    [cell] = boards([*same, other])[0].cells
    assert cell.ci.high - cell.ci.low > 0.8 * (known.ci.high - known.ci.low)


def test_results_that_were_chosen_on_their_items_get_no_mark(tmp_path: Path) -> None:
    settings = checkout(tmp_path)
    for number, (agent, skill) in enumerate({"strong": 0.9, "weak": 0.1}.items()):
        for seed in range(3):
            simulate_run(settings, 10 * number + seed, skill=skill, agent=agent, seed=seed)
    runs = summaries(RunDir.all(settings.runs)).runs
    chosen = [each.model_copy(update={"cross_fitted": each.gain}) for each in runs]
    [measured], [without] = boards(runs), boards(chosen)
    assert [cell.is_best for cell in measured.cells] == [True, False]
    for cell, other in zip(without.cells, measured.cells, strict=True):
        assert (cell.marks, cell.gain) == ("", other.gain)
        widths = [run.ci.high - run.ci.low for run in cell.runs if run.ci is not None]
        assert cell.ci.high - cell.ci.low >= sum(widths) / len(widths) - 1e-9


def test_the_page_says_why_stacks_are_not_compared(tmp_path: Path) -> None:
    settings = checkout(tmp_path)
    measured = [summary_of(simulate_run(settings, number, agent=agent)) for number, agent in enumerate("ab")]
    chosen = [each.model_copy(update={"cross_fitted": each.gain}) for each in measured]
    apart = [measured[0], measured[1].model_copy(update={"items_digest": "another draw"})]
    why = "Not compared: results were chosen on the items that give them (protocol paper)"
    no_shared = "Not compared: the stacks have no finished runs of one task on the same items"
    for runs, told in ((measured, ""), (chosen, why), (chosen[:1], ""), (apart, no_shared), (apart[:1], "")):
        page = write_site(tmp_path / "site", "sim", Summaries(runs, {}), {}, settings).read_text()
        assert "".join(each for each in (why, no_shared) if each in page) == told


def test_worst_stacks_and_rank_reversals_are_marked(tmp_path: Path) -> None:
    settings = checkout(tmp_path)
    skills = {"sft": (0.9, 0.3), "rl": (0.5, 0.9), "free": (0.2, 0.2)}
    for number, (agent, task) in enumerate((agent, task) for agent in skills for task in range(2)):
        for seed in range(3):
            skill, name = skills[agent][task], ("gsm8k", "alfworld")[task]
            simulate_run(settings, 10 * number + seed, skill=skill, task=name, agent=agent, seed=seed)
    report = written(settings)
    marks = {(cell.stack, cell.task): (cell.is_best, cell.is_worst, cell.is_reversed) for cell in report.cells}
    assert marks["sft", "gsm8k"] == (True, False, True)
    assert marks["rl", "alfworld"] == (True, False, True)
    assert marks["free", "gsm8k"] == (False, True, False)
    assert {(each.stack, each.other, each.better_on, each.worse_on) for each in report.reversals} <= {
        ("sft", "rl", "gsm8k", "alfworld"), ("rl", "sft", "alfworld", "gsm8k")
    }  # fmt: skip
    assert len(report.reversals) == 1
    page = (settings.reports / "sim" / "index.html").read_text()
    assert "beats" in page
    assert "†" in page
    rows = list(csv.DictReader((settings.reports / "sim/figures/mini/stack-by-task.csv").open()))
    assert {row["stack"] for row in rows if row["worst"] == "True"} == {"free"}
    assert sum(row["reversed"] == "True" for row in rows) == 4


def test_a_small_difference_is_no_rank_reversal(tmp_path: Path) -> None:
    settings = checkout(tmp_path)
    for number, (agent, task, skill) in enumerate(
        [("a", "gsm8k", 0.42), ("b", "gsm8k", 0.40), ("a", "webshop", 0.40), ("b", "webshop", 0.42)]
    ):
        simulate_run(settings, 20 + number, skill=skill, task=task, agent=agent)
    report = written(settings)
    gains = {(cell.stack, cell.task): cell.gain for cell in report.cells}
    assert gains["a", "gsm8k"] > gains["b", "gsm8k"]
    assert gains["a", "webshop"] < gains["b", "webshop"]
    assert report.reversals == ()
    assert not any(cell.is_worst or cell.is_reversed for cell in report.cells)


def test_a_run_without_a_result_counts_as_no_gain(settings: Settings) -> None:
    [cell] = [each for each in written(settings).cells if (each.stack, each.task) == ("weak", "gsm8k")]
    runs = {each.run_id: each for each in summaries(RunDir.all(settings.runs)).runs}
    assert cell.verdicts["no submission"] == 1
    assert cell.gain == pytest.approx(sum(runs[name].gain for name in cell.runs) / 3)
    assert sum(not any(runs[name].gains) for name in cell.runs) == 1
    assert len(cell.expected_best) == 3
    assert list(cell.expected_best) == sorted(cell.expected_best)


def test_the_page_is_whole_and_asks_no_other_host(settings: Settings) -> None:
    page = write_suite_report("sim", RunDir.all(settings.runs), settings)
    text = page.read_text()
    assert "strong" in text
    assert "Mini data" in text
    for loaded in ('src="http', 'href="http', "@import", "url("):
        assert loaded not in text.replace("url(#", "")
    assert text.count("<svg") == len(list((page.parent / "figures" / "mini").glob("*.svg")))
    for figure in (page.parent / "figures" / "mini").glob("*.svg"):
        ET.parse(figure)
        assert figure.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
        assert len(figure.with_suffix(".csv").read_text().splitlines()) > 1


def test_a_figure_that_the_page_no_longer_names_is_removed(tmp_path: Path) -> None:
    settings = checkout(tmp_path)
    runs = [simulate_run(settings, number, seed=number) for number in range(2)]
    page = write_suite_report("sim", runs, settings)
    before = {path.name for path in page.parent.glob("figures/*/*")}
    write_suite_report("sim", runs[:1], settings)
    after = {path.name for path in page.parent.glob("figures/*/*")}
    assert before - after == {f"expected-best.{kind}" for kind in ("svg", "pdf", "csv")}
    assert {Path(name).stem for name in before} <= set(NAMES)
    assert all(f"figures/mini/{name}" in page.read_text() for name in after)


def test_the_users_own_files_beside_the_figures_stay(tmp_path: Path) -> None:
    settings = checkout(tmp_path)
    run = simulate_run(settings, 1)
    own = write_suite_report("sim", [run], settings).parent / "figures" / "mini"
    (own / "expected-best.svg").mkdir()
    for name in ("notes.txt", "gains-for-the-paper.pdf", "gains.png"):
        (own / name).write_text("mine")
    (own / "scaling.pdf").symlink_to(own / "notes.txt")
    before = sorted(own.iterdir())
    write_suite_report("sim", [run], settings)
    assert sorted(own.iterdir()) == before


def test_a_name_that_is_markup_or_a_formula_stays_text(tmp_path: Path) -> None:
    settings = checkout(tmp_path)
    simulate_run(settings, 1, agent="<script>alert(1)</script>")
    simulate_run(settings, 2, agent="=1+1", driver="a;=2+2; @b")
    page = write_suite_report("sim", RunDir.all(settings.runs), settings)
    assert "<script>alert" not in page.read_text()
    rows = list(csv.DictReader((page.parent / "runs.csv").open()))
    assert {row["agent"] for row in rows} == {"<script>alert(1)</script>", "'=1+1"}
    assert {row["driver"] for row in rows} == {"", "a;'=2+2;' @b"}  # a semicolon ends a cell, where commas are decimal
    assert {row["reason"] for row in rows} == {""}


def test_a_key_in_a_reason_or_a_name_is_in_no_file(tmp_path: Path) -> None:
    key = "mk-Ab3dEf6hIj9lMn2pQr5tUv8xYz1B"
    register_secrets({"A_KEY": key})
    settings = checkout(tmp_path)
    run = simulate_run(settings, 1, agent=key)
    record = run.record_path("grade")
    record.write_text(json.dumps({**json.loads(record.read_text()), "reason": f"refused {key}"}))
    page = write_suite_report("sim", RunDir.all(settings.runs), settings)
    written_files = [path for path in page.parent.rglob("*") if path.suffix in {".html", ".csv", ".svg", ".json"}]
    assert len(written_files) > 4
    assert not [path.name for path in written_files if key in path.read_text()]


def test_mini_and_full_are_never_combined(tmp_path: Path) -> None:
    settings = checkout(tmp_path)
    simulate_run(settings, 1, variant="mini")
    simulate_run(settings, 2, variant="full")
    found = boards(summaries(RunDir.all(settings.runs)).runs)
    assert [board.variant for board in found] == ["full", "mini"]
    assert all(standing.runs == 1 for board in found for standing in board.standings)


def test_tasks_without_a_result_lift_no_stack(tmp_path: Path) -> None:
    settings = checkout(tmp_path)
    simulate_run(settings, 0, agent="honest", task="gsm8k")
    for number, task in enumerate(("gsm8k", "humaneval", "webshop"), start=1):
        simulate_run(settings, number, agent="empty", task=task, submissions=0)
    [board] = boards(summaries(RunDir.all(settings.runs)).runs)
    assert [each.stack for each in board.standings] == ["honest", "empty"]


def test_stacks_are_named_by_settings_that_differ_within_a_task(tmp_path: Path) -> None:
    settings = checkout(tmp_path)
    simulate_run(settings, 1, agent="claude-code", driver="opus", budget_s=60.0)
    simulate_run(settings, 2, agent="claude-code", driver="sonnet", budget_s=60.0)
    simulate_run(settings, 3, agent="claude-code", driver="opus", budget_s=90.0, task="humaneval", seed=3)
    names = stack_names(summaries(RunDir.all(settings.runs)).runs)
    assert sorted(names.values()) == ["claude-code · opus", "claude-code · opus", "claude-code · sonnet"]


def test_the_table_of_runs_and_its_file_have_the_labels(tmp_path: Path) -> None:
    settings = checkout(tmp_path)
    labels = {"route": ("SFT", "online RL"), "failures": ("training_diverged", "unknown")}
    run = summary_of(simulate_run(settings, 1)).model_copy(update=labels)
    page = write_site(tmp_path / "site", "sim", Summaries([run], {}), {}, settings)
    [row] = csv.DictReader((page.parent / "runs.csv").open())
    assert (row["route"], row["failures"]) == ("SFT > online RL", "training_diverged, unknown")
    assert '<option value="SFT &gt; online RL">' in page.read_text()
    assert "training_diverged, unknown" in page.read_text()


def test_an_unfinished_run_is_listed_and_not_counted(tmp_path: Path) -> None:
    settings = checkout(tmp_path)
    simulate_run(settings, 1)
    unfinished = simulate_run(settings, 2)
    unfinished.record_path("grade").unlink()
    report = written(settings)
    assert report.unfinished == (unfinished.id,)
    assert report.standings[0].runs == 1


def test_a_summary_is_kept_until_the_run_changes(tmp_path: Path) -> None:
    settings = checkout(tmp_path)
    run = simulate_run(settings, 1)
    first = summary_of(run)
    kept = run.root / "summary.json"
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "gpu_hours": 99.0, "schema_version": 4}))
    assert summary_of(run) == first
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "reason": "kept"}))
    assert summary_of(run).reason == "kept"
    record = run.record_path("grade")
    record.write_text(json.dumps({**json.loads(record.read_text()), "reason": "changed"}))
    assert summary_of(run).reason == "changed"
    assert first.reason == ""


def test_a_run_whose_machine_failed_keeps_the_agents_time(tmp_path: Path) -> None:
    run = simulate_run(checkout(tmp_path), 1, gpus=2)
    run.record_path("execute").unlink()
    killed = {"running_since": time.monotonic() - 7200.0, "boot": this_boot()}
    write_model(run.clock.path, run.clock.read_state().model_copy(update=killed))
    summary = summary_of(run)
    assert summary.agent_s == run.spec.budget_s
    assert summary.gpu_hours == pytest.approx(2 * run.spec.budget_s / 3600)


def test_runs_that_share_a_gpu_for_grading_each_count_a_part(tmp_path: Path) -> None:
    run = simulate_run(checkout(tmp_path), 1, gpus=1, grading_gpus=1, side_by_side=4)
    summary = summary_of(run)
    assert summary.gpu_hours == pytest.approx(1.25 * summary.agent_s / 3600)


def test_a_summary_that_came_with_a_copied_run_is_not_believed(tmp_path: Path) -> None:
    run = simulate_run(checkout(tmp_path), 1)
    honest = summary_of(run)
    kept = run.root / "summary.json"
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "gain": 99.0}))
    shutil.copytree(run.root, copied := tmp_path / "sent" / run.id)
    assert summary_of(RunDir(copied)).gain == honest.gain != summary_of(run).gain


@pytest.mark.heavy
def test_one_more_run_leaves_the_other_summaries_as_they_are(tmp_path: Path) -> None:
    settings = checkout(tmp_path)
    simulate_suite(settings, 12, submissions=5)
    written(settings)
    for kept in settings.runs.glob("*/summary.json"):
        kept.write_text(json.dumps({**json.loads(kept.read_text()), "reason": "kept"}))
    simulate_run(settings, 12, submissions=5)
    page = write_suite_report("sim", RunDir.all(settings.runs), settings)
    rows = list(csv.DictReader((page.parent / "runs.csv").open()))
    assert [row["run_id"] for row in rows if row["reason"] != "kept"] == ["gsm8k-sim-00012"]
    assert len(rows) == 13


def test_a_replaced_ledger_of_equal_size_and_time_is_read_again(tmp_path: Path) -> None:
    settings = checkout(tmp_path)
    run, other = simulate_run(settings, 1), simulate_run(settings, 2)
    for items in other.grades.iterdir():
        run.grades.joinpath(items.name).write_bytes(items.read_bytes())
    first, before = summary_of(run), run.ledger.path.stat()
    run.ledger.path.write_bytes(other.ledger.path.read_bytes())
    os.utime(run.ledger.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = run.ledger.path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert summary_of(run).tries == summary_of(other).tries != first.tries


def test_only_pages_of_runs_that_exist_are_linked(tmp_path: Path) -> None:
    """Runs may be on another disk."""
    settings, large = checkout(tmp_path), tmp_path / "large"
    large.mkdir()
    (settings.root / "runs").symlink_to(large)
    run, unfinished = simulate_run(settings, 1), simulate_run(settings, 2)
    run.report.parent.mkdir()
    run.report.touch()
    trust(run, settings)
    page = write_suite_report("sim", [run, unfinished], settings)
    assert run.root == large / run.id
    assert f'href="{os.path.relpath(large, page.parent)}/{run.id}/report/index.html"' in page.read_text()
    assert f"{unfinished.id}/report" not in page.read_text()  # it has no page yet


def test_a_broken_run_does_not_prevent_the_report(tmp_path: Path) -> None:
    settings = checkout(tmp_path)
    simulate_run(settings, 1)
    simulate_run(settings, 2).record_path("grade").write_text("{")
    report = written(settings)
    assert report.standings[0].runs == 1
    assert list(report.unreadable) == ["gsm8k-sim-00002"]


def test_runs_are_found_by_suite_launch_and_id(settings: Settings) -> None:
    assert len(runs_of(["tests"], settings)) == len(runs_of(["sim-launch"], settings)) == 12
    assert [run.id for run in runs_of(["gsm8k-sim-00001"], settings)] == ["gsm8k-sim-00001"]
    with pytest.raises(UsageError, match="no runs of a suite"):
        runs_of(["nothing"], settings)


def test_a_report_over_no_readable_run_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run to report on"):
        write_suite_report("sim", [], checkout(tmp_path))


def test_the_folder_of_a_report_cannot_be_elsewhere() -> None:
    assert report_name(["../../etc", "b"]).startswith(".._.._etc-and-b-")
    assert "/" not in report_name(["a/" * 200])
    assert len(report_name(["a" * 500])) == 100


def test_reports_over_other_runs_are_in_other_folders() -> None:
    runs = [f"reasoning_gym-number_format-scripted-20260412-093015-{name}" for name in ("a1b2", "c3d4", "e5f6", "0718")]
    names = (runs[:3], [*runs[:2], runs[3]], ["one", "other"], ["one-and-other"], ["a/b"], ["a_b"])
    assert len({report_name(each) for each in names}) == len(names)
    assert report_name(["one", "other", "one"]) == "one-and-other"
    assert report_name(["smoke"]) == "smoke"
