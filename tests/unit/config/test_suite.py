"""Tests suites: the runs that axes, `exclude` and `include` make, and the effect of replaced settings."""

from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from a2rl.agent_systems.definition import Agent, find_agent
from a2rl.config.params import load_params
from a2rl.config.plan import _check_turns, choose_suite, plan_runs
from a2rl.config.suite import SETTINGS, Suite, make_suite, replace_settings, single_run
from a2rl.core.errors import UsageError
from a2rl.core.files import validation_message
from a2rl.core.settings import Settings
from a2rl.run.directory import new_run_id

GRID: dict[str, Any] = {"tasks": ["gsm8k", "alfworld"], "agents": ["codex", "claude-code"], "budget": "12h"}
HOUR_S = 3600.0


def cells(suite: Suite, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(getattr(cell, name) for name in names) for cell in suite.cells()]


def test_the_runs_are_all_combinations_of_the_axes() -> None:
    suite = make_suite(GRID | {"mode": ["free", "rl-only"], "seeds": [0, 1]})
    assert len(suite.cells()) == 2 * 2 * 2 * 2
    assert len(set(cells(suite, "task", "agent", "mode", "seed"))) == 16


def test_an_axis_may_be_named_in_the_plural_or_the_singular() -> None:
    for key in ("mode", "modes"):
        suite = make_suite({"task": "gsm8k", "agent": "noop", key: ["free", "multi"]})
        assert cells(suite, "task", "mode") == [("gsm8k", "free"), ("gsm8k", "multi")]
    with pytest.raises(UsageError, match="mode and modes are the same setting"):
        make_suite(GRID | {"mode": "free", "modes": ["multi"]})


def test_a_budget_is_a_duration_and_may_be_an_axis() -> None:
    assert cells(make_suite(GRID | {"tasks": "gsm8k", "agents": "noop", "budget": ["1h", "90m"]}), "budget_s") == [
        (HOUR_S,),
        (1.5 * HOUR_S,),
    ]


def test_a_wrong_value_is_named_by_its_key_even_inside_a_list() -> None:
    for value in ("5x", ["30m", "5x"]):
        with pytest.raises(UsageError, match=r"^budget: '5x' is not a duration"):
            make_suite({"tasks": "gsm8k", "agents": "noop", "budget": value})


def test_exclude_leaves_out_what_agrees_with_a_whole_entry() -> None:
    suite = make_suite(GRID | {"mode": ["free", "multi"], "exclude": [{"agent": "codex", "mode": "multi"}]})
    assert len(suite.cells()) == 6
    assert ("codex", "multi") not in cells(suite, "agent", "mode")


def test_a_list_in_exclude_stands_for_any_of_its_values() -> None:
    suite = make_suite(GRID | {"driver": ["a", "b", "c"], "exclude": [{"agent": "codex", "driver": ["a", "b"]}]})
    assert cells(suite, "task", "agent", "driver") == [
        (task, agent, driver)
        for task in ("gsm8k", "alfworld")
        for agent, drivers in (("codex", "c"), ("claude-code", "abc"))
        for driver in drivers
    ]


def test_exclude_sees_what_a_preset_sets() -> None:
    """The same holds for the check that an entry leaves something out."""
    grid = GRID | {"preset": ["none", "paper"], "agents": "codex"}
    del grid["budget"]
    entries = [{"task": "gsm8k", "variant": "full"}, {"task": "alfworld", "budget": "12h"}]
    suite = make_suite(grid | {"exclude": entries})
    assert cells(suite, "task", "preset") == [("gsm8k", "none"), ("alfworld", "none")]
    assert suite.without_effect() == ""
    own = {"preset": "paper", "variant": "mini", "exclude": [{"variant": "full"}]}
    assert "exclude leaves out nothing with variant full" in make_suite(grid | own).without_effect()
    assert "variant mini" in make_suite(grid | {"preset": "paper", "exclude": [{"variant": "mini"}]}).without_effect()


def test_a_suite_without_runs_is_refused(settings: Settings) -> None:
    params = load_params(settings.root)
    with pytest.raises(UsageError, match="leaves out every combination"):
        plan_runs(make_suite(GRID | {"exclude": [{"variant": "mini"}]}), "mine", params, settings)


def test_include_adds_settings_to_combinations_that_agree() -> None:
    suite = make_suite(GRID | {"include": [{"task": "alfworld", "budget": "24h"}, {"agent": "codex", "driver": "x"}]})
    assert cells(suite, "task", "agent", "budget_s", "driver") == [
        ("gsm8k", "codex", 12 * HOUR_S, "x"),
        ("gsm8k", "claude-code", 12 * HOUR_S, None),
        ("alfworld", "codex", 24 * HOUR_S, "x"),
        ("alfworld", "claude-code", 24 * HOUR_S, None),
    ]


def test_include_adds_a_run_where_it_agrees_with_no_combination() -> None:
    suite = make_suite(GRID | {"include": [{"task": "webshop", "seed": 7, "budget": "1h"}]})
    assert cells(suite, "task", "agent", "seed", "budget_s")[-1] == ("webshop", "codex", 7, HOUR_S)
    assert len(suite.cells()) == 5


def test_include_never_overwrites_a_value_of_an_axis() -> None:
    suite = make_suite(GRID | {"mode": ["free", "multi"], "include": [{"mode": "rl-only"}]})
    assert len(suite.cells()) == 9
    assert cells(suite, "task", "agent", "mode")[-1] == ("gsm8k", "codex", "rl-only")


@pytest.mark.parametrize("entry", [{"agnt": "codex"}, {"mode": "wild"}, {"budget": "soon"}])
def test_a_wrong_entry_is_refused_by_its_name(entry: dict[str, str]) -> None:
    for key in ("include", "exclude"):
        with pytest.raises(UsageError, match=rf"{key}\.0\.{next(iter(entry))}"):
            make_suite(GRID | {key: [entry]})


@pytest.mark.parametrize("key", ["include", "exclude"])
def test_an_entry_that_names_no_setting_is_refused(key: str) -> None:
    with pytest.raises(UsageError, match=f"{key}: an entry names no setting"):
        make_suite(GRID | {key: [{"task": "gsm8k"}, {}]})


NOT_OPTIONAL = [each.key for each in SETTINGS if type(None) not in get_args(each.field.annotation)]


@pytest.mark.parametrize("key", NOT_OPTIONAL)
def test_an_empty_value_in_a_suite_is_refused_by_its_name(key: str) -> None:
    for written in ({"include": [{key: None}]}, {"exclude": [{key: None}]}):
        with pytest.raises(ValidationError) as refused:
            TypeAdapter(dict[str, Suite]).validate_python({"x": GRID | written})
        assert f"x.{next(iter(written))}.0.{key}" in validation_message(refused.value)


@pytest.mark.parametrize("key", ["budget", "seed", "limit", "max_cost_usd", "task", "concurrency"])
@pytest.mark.parametrize("value", [True, False])
def test_a_switch_is_no_value_of_any_other_setting(key: str, value: bool) -> None:
    for written in ({key: value}, {"include": [{key: value}]}):
        with pytest.raises(UsageError, match=key):
            make_suite({each: GRID[each] for each in GRID if not each.startswith(key)} | written)


@pytest.mark.parametrize(
    "twice",
    [
        {"seeds": [0, 0]},
        {"tasks": ["gsm8k"] * 2},
        {"budget": ["60s", "1m"]},
        {"include": [{"task": "webshop", "budget": "60s"}, {"task": "webshop", "budget": "1m"}]},
        {"exclude": [{"task": "gsm8k"}] * 2},
    ],
)
def test_a_value_that_is_given_twice_is_refused(twice: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(twice))}.*more than once"):
        make_suite(GRID | twice)


def test_a_replaced_setting_drops_entries_of_include() -> None:
    """These are the entries that have another value of it."""
    suite = make_suite(GRID | {"include": [{"task": "alfworld", "budget": "24h"}, {"agent": "codex", "driver": "x"}]})
    only = replace_settings(suite, {"tasks": ["gsm8k"], "mode": None})
    assert cells(only, "task", "agent", "driver") == [("gsm8k", "codex", "x"), ("gsm8k", "claude-code", None)]
    short = replace_settings(suite, {"budget": "1h"})
    assert set(cells(short, "budget_s")) == {(HOUR_S,)}


def test_a_replaced_budget_replaces_those_of_single_tasks() -> None:
    suite = make_suite(GRID | {"include": [{"task": "alfworld", "budget": "24h"}]})
    assert set(cells(suite, "task", "budget_s")) == {("gsm8k", 12 * HOUR_S), ("alfworld", 24 * HOUR_S)}
    for given in ("1h", ["1h", "24h"]):
        replaced = replace_settings(suite, {"budget": given})
        assert cells(replaced, "task", "budget_s") == cells(make_suite(GRID | {"budget": given}), "task", "budget_s")


@pytest.mark.parametrize(
    ("name", "runs", "hours"),
    [("paper-main", 30, 360), ("paper-drivers", 51, 612), ("paper-modes", 24, 288), ("paper-scaling", 18, 102)],
)
def test_the_suites_of_the_paper_are_whole(repository: Path, name: str, runs: int, hours: int) -> None:
    suite = load_params(repository).suites[name]
    assert len(suite.cells()) == runs
    assert sum(cell.budget_s for cell in suite.cells()) == hours * HOUR_S
    assert {(cell.variant, cell.protocol) for cell in suite.cells()} == {("full", "paper")}


def test_a_scaffold_of_one_provider_gets_that_providers_drivers(repository: Path) -> None:
    suite = load_params(repository).suites["paper-drivers"]
    found = set(cells(suite, "agent", "driver"))
    assert {driver for agent, driver in found if agent == "codex"} == {"gpt-5.4", "gpt-5.2"}
    assert {driver for agent, driver in found if agent == "claude-code"} == {"claude-opus-4-6", "claude-sonnet-4-5"}


def test_smoke_and_full_bench_are_what_they_were(repository: Path) -> None:
    suites = load_params(repository).suites
    assert cells(suites["smoke"], "task", "agent", "budget_s", "seed") == [
        ("gsm8k", "scripted", 80, 0),
        ("humaneval", "scripted", 60, 0),
        ("alpacaeval", "scripted", 60, 0),
        ("alfworld", "scripted", 170, 0),
        ("webshop", "scripted", 110, 0),
        ("deepsearchqa", "scripted", 100, 0),
    ]
    assert len(suites["full-bench"].cells()) == 6 * 3 * 2
    assert {cell.budget_s for cell in suites["full-bench"].cells() if cell.task == "alfworld"} == {240}
    assert (suites["smoke"].concurrency, suites["full-bench"].concurrency) == (2, 1)


def test_all_runs_of_a_launch_carry_its_id(settings: Settings) -> None:
    """The next launch has another."""
    params = load_params(settings.root)
    suite = choose_suite(params, "smoke", agents=("noop", "copy-base"))
    first, second = (plan_runs(suite, "smoke", params, settings) for _ in range(2))
    [launch] = {spec.launch for spec in first}
    assert launch.startswith("smoke-")
    assert launch not in {spec.launch for spec in second}


def test_the_type_of_numbers_is_the_runs_or_else_the_files(settings: Settings) -> None:
    params = load_params(settings.root)
    given = {"task": "gsm8k", "agent": "noop"}
    [plain], [chosen] = (
        plan_runs(single_run({**given, **more}), "runs", params, settings) for more in ({}, {"dtype": "float16"})
    )
    assert (plain.dtype, chosen.dtype) == (params.grading.dtype, "float16")


def test_contradicting_settings_are_refused_also_in_single_runs(settings: Settings) -> None:
    params = load_params(settings.root)
    with pytest.raises(UsageError, match="--trials is for --mode multi"):
        plan_runs(make_suite(GRID | {"mode": ["free", "multi"], "trials": 2}), "mine", params, settings)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"limit": 0}, "limit"),
        ({"seed": 1 << 32}, "seed"),
        ({"limit": 401}, r"--limit 401 is more than the 400 items of gsm8k \(mini\): leave it out"),
        ({"limit": 1}, "no items for one of the two halves of gsm8k .*at least 2, or --protocol paper"),
    ],
)
def test_an_impossible_sample_is_refused_before_anything_starts(
    settings: Settings, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        plan_runs(single_run({"task": "gsm8k", "agent": "noop", **given}), "runs", load_params(settings.root), settings)


@pytest.mark.parametrize(("given", "limit"), [({"limit": 2}, 2), ({"limit": 1, "protocol": "paper"}, 1)])
def test_the_size_of_a_sample_is_in_the_spec(settings: Settings, given: dict[str, Any], limit: int) -> None:
    suite = single_run({"task": "gsm8k", "agent": "noop", **given})
    [spec] = plan_runs(suite, "runs", load_params(settings.root), settings)
    assert spec.limit == limit


def test_a_run_records_paths_that_hold_in_every_folder(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id stays an id, also in a folder with something of that name."""
    here = tmp_path / "here"
    for folder in ("out/v1", "tiny", "kept"):
        (here / folder).mkdir(parents=True)
    for file in ("start.sh", "noop"):
        (here / file).touch()
    (here / "latest").symlink_to("out/v1")
    monkeypatch.chdir(here)

    def recorded(agent: str, model: str) -> tuple[str, str]:
        suite = single_run({"task": "gsm8k", "agent": agent, "model": model})
        [spec] = plan_runs(suite, "runs", load_params(settings.root), settings)
        return spec.agent, spec.model

    assert recorded("start.sh", "out/v1") == (f"{here}/start.sh", f"{here}/out/v1")
    assert recorded("noop", "kept/../out/v1") == ("noop", f"{here}/out/v1")
    assert recorded("noop", "latest") == ("noop", f"{here}/latest")
    assert recorded("noop", "tiny") == ("noop", "tiny")
    assert recorded("noop", "Qwen/Qwen2.5-0.5B") == ("noop", "Qwen/Qwen2.5-0.5B")


def test_a_sample_of_all_items_is_no_sample(settings: Settings) -> None:
    suite = single_run({"task": "gsm8k", "agent": "noop", "limit": 400})
    [spec] = plan_runs(suite, "runs", load_params(settings.root), settings)
    assert spec.limit is None


def test_no_two_of_many_ids_made_in_the_same_second_are_the_same() -> None:
    assert len({new_run_id("gsm8k", "scripted") for _ in range(5_000)}) == 5_000


def test_an_agent_with_a_key_has_turns_even_without_a_url(settings: Settings) -> None:
    limited = find_agent("claude-code", settings.root)
    other = Agent(id="other", title="Other", start=("true",), forward_env=("OTHER_KEY",))
    with pytest.raises(UsageError, match="--max-turns: Other cannot be told"):
        _check_turns([limited, other], settings)


@pytest.mark.parametrize(
    ("agents", "able"),
    [
        (("claude-code", "noop"), True),
        (("gemini-cli",), True),
        (("claude-code", "codex"), False),
        (("noop",), False),
        (("start.sh",), False),
    ],
)
def test_a_limit_on_turns_needs_agents_that_can_be_told_one(
    settings: Settings, tmp_path: Path, agents: tuple[str, ...], able: bool
) -> None:
    (tmp_path / "start.sh").touch()
    named = [str(tmp_path / name) if name == "start.sh" else name for name in agents]
    suite, params = make_suite({"tasks": "gsm8k", "agents": named, "max_turns": 3}), load_params(settings.root)
    if able:
        assert len(plan_runs(suite, "s", params, settings)) == len(agents)
        return
    with pytest.raises(UsageError, match=r"--max-turns: .* cannot be told .* claude-code, gemini-cli, mini-swe-agent"):
        plan_runs(suite, "s", params, settings)
