"""The commands of `a2rl`; `a2rl COMMAND --help` has an example of each."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from a2rl.cli.agents import app as agents_app
from a2rl.errors import A2rlError, UsageError, unknown
from a2rl.settings import Settings

app = typer.Typer(
    name="a2rl",
    help="Agent2 RL-Bench: can an LLM agent, alone and on a budget, engineer the RL post-training of a base model?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(agents_app, name="agents")

Task = Annotated[str, typer.Option(help="Task id; `a2rl tasks` lists them.")]
Variant = Annotated[str, typer.Option(help="mini: small generated data. full: the real data.")]
Source = Annotated[Path | None, typer.Option(help="Local mirror of the full variant's data, instead of the hub.")]
Driver = Annotated[str | None, typer.Option(help="The LLM that drives the agent.")]
MaxSubmissions = Annotated[int | None, typer.Option(min=1, help="Quota of submissions; 100 unless given.")]
MaxGrading = Annotated[str | None, typer.Option(help="Quota of grading time; as long as the budget unless given.")]
BaseUrl = Annotated[str | None, typer.Option(help="Where the driver's API is: a proxy, a local server, `a2rl driver`.")]
Mode = Annotated[str | None, typer.Option(help="free, sft-only, rl-only, or multi: several attempts in turn.")]
Trials = Annotated[int | None, typer.Option(min=1, help="Attempts of mode multi; 3 unless given.")]
MaxTurns = Annotated[int | None, typer.Option(min=1, help="Limit on the driver's turns, where the agent can.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Quota of the driver's tokens, in and out.")]
MaxCost = Annotated[float | None, typer.Option(help="Quota in dollars, where the agent says what it costs.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on the last line.")]
Split = Annotated[str, typer.Option(help="public, private or all.")]


@app.command()
def run(
    task: Task = "gsm8k",
    agent: Annotated[str, typer.Option(help="Agent id (`a2rl agents`), or the path of a start script.")] = "scripted",
    variant: Variant = "mini",
    model: Annotated[str, typer.Option(help="Base model: tiny, a folder, or a hub id.")] = "tiny",
    budget: Annotated[str, typer.Option(help="The agent's time: 90s, 30m, 12h, 1h30m.")] = "2m",
    mode: Mode = "free",
    protocol: Annotated[
        str, typer.Option(help="strict: result on held-out items. paper: best of all submissions.")
    ] = "strict",
    seed: Annotated[int, typer.Option(help="Told to the agent.")] = 0,
    driver: Driver = None,
    base_url: BaseUrl = None,
    trials: Trials = None,
    max_turns: MaxTurns = None,
    max_tokens: MaxTokens = None,
    max_cost_usd: MaxCost = None,
    source: Source = None,
    max_submissions: MaxSubmissions = None,
    max_grading: MaxGrading = None,
    grading_port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 0,
    sandbox: Annotated[str, typer.Option(help="landlock, bwrap or none (for debugging).")] = "landlock",
    as_json: Json = False,
) -> None:
    """One benchmark run, from the base model to the report.

    Example: `a2rl run --task gsm8k --agent scripted --budget 2m`
    """
    from a2rl.cli.flow_runner import run_flow, showing
    from a2rl.params import load_params
    from a2rl.plan import choose_grid, plan_runs
    from a2rl.run import RunDir

    settings = Settings.load()
    params = load_params(settings.root)
    grid = choose_grid(
        params, "smoke", tasks=(task,), agents=(agent,), seeds=(seed,), variant=variant, model=model, mode=mode,
        protocol=protocol, budget=budget, driver=driver, base_url=base_url, trials=trials, max_turns=max_turns,
        max_tokens=max_tokens, max_cost_usd=max_cost_usd, source=str(source.resolve()) if source else None,
        max_submissions=max_submissions, max_grading=max_grading, grading_port=grading_port, sandbox=sandbox,
    )  # fmt: skip
    [spec] = plan_runs(grid, "runs", params, settings)
    _warn_of_short_keys([agent], settings)
    created = RunDir.create(settings.runs, spec)
    with showing(lambda: _show_run(created, as_json)):
        run_flow({"run_ids": [created.id]}, [created.id], settings)


@app.command()
def bench(
    suite: Annotated[str, typer.Argument(help="A suite of params.yaml.")] = "full-bench",
    task: Annotated[list[str] | None, typer.Option(help="Instead of the suite's tasks; may be repeated.")] = None,
    agent: Annotated[list[str] | None, typer.Option(help="Instead of the suite's agents; may be repeated.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Instead of the suite's seeds; may be repeated.")] = None,
    variant: Annotated[str | None, typer.Option(help="mini or full.")] = None,
    model: Annotated[str | None, typer.Option(help="Base model.")] = None,
    mode: Mode = None,
    protocol: Annotated[str | None, typer.Option(help="strict or paper.")] = None,
    budget: Annotated[str | None, typer.Option(help="The agent's time for each run.")] = None,
    driver: Driver = None,
    base_url: BaseUrl = None,
    trials: Trials = None,
    max_turns: MaxTurns = None,
    max_tokens: MaxTokens = None,
    max_cost_usd: MaxCost = None,
    max_submissions: MaxSubmissions = None,
    max_grading: MaxGrading = None,
    source: Source = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Runs side by side.")] = None,
    sandbox: Annotated[str | None, typer.Option(help="landlock, bwrap or none (for debugging).")] = None,
    as_json: Json = False,
) -> None:
    """A grid of runs: every task with every agent and every seed.

    Example: `a2rl bench smoke --seed 0 --seed 1 --concurrency 2`
    """
    from a2rl.cli.console import print_json
    from a2rl.cli.flow_runner import run_flow, showing
    from a2rl.cli.results import run_object
    from a2rl.params import load_params
    from a2rl.plan import choose_grid, plan_runs
    from a2rl.run import RunDir

    settings = Settings.load()
    params = load_params(settings.root)
    overrides: dict[str, Any] = {
        "tasks": tuple(task) if task else None, "agents": tuple(agent) if agent else None,
        "seeds": tuple(seed) if seed else None, "variant": variant, "model": model, "mode": mode, "protocol": protocol,
        "budget": budget, "driver": driver, "base_url": base_url, "trials": trials, "max_turns": max_turns,
        "max_tokens": max_tokens, "max_cost_usd": max_cost_usd, "max_submissions": max_submissions,
        "source": str(source.resolve()) if source else None, "concurrency": concurrency,
        "max_grading": max_grading, "sandbox": sandbox,
    }  # fmt: skip
    grid = choose_grid(params, suite, **overrides)
    _warn_of_short_keys(grid.agents, settings)
    created = [RunDir.create(settings.runs, spec) for spec in plan_runs(grid, suite, params, settings)]
    ids = [each.id for each in created]
    with showing(lambda: print_json([run_object(each) for each in created]) if as_json else None):
        try:
            run_flow({"suite": suite, "run_ids": ids, "concurrency": grid.concurrency}, ids, settings)
        finally:
            _show_runs(created)


@app.command()
def resume(run_id: Annotated[list[str], typer.Argument(help="Run ids.")], as_json: Json = False) -> None:
    """Go on with runs that were interrupted or whose machine died, with what is left of their budget.

    Example: `a2rl resume gsm8k-scripted-20260412-093015-a1b2`
    """
    from a2rl.cli.flow_runner import run_flow, showing

    settings = Settings.load()
    runs = [_find_run(each, settings) for each in dict.fromkeys(run_id)]

    def show() -> None:
        for each in runs:
            _show_run(each, as_json)

    with showing(show):
        run_flow({"run_ids": [each.id for each in runs]}, [each.id for each in runs], settings)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def grade(
    context: typer.Context,
    task: Task,
    model: Annotated[str, typer.Option(help="The checkpoint: a folder, tiny, or a hub id.")],
    variant: Variant = "mini",
    source: Source = None,
    split: Split = "all",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many items.")] = None,
    backend: Annotated[str | None, typer.Option(help="transformers or vllm.")] = None,
    as_json: Json = False,
) -> None:
    """Score a checkpoint; no run, no agent. Options of the task itself (`a2rl tasks`) are given the same way.

    Examples: `a2rl grade --task gsm8k --variant full --source ~/gsm8k --model output/v1 --json`,
    `a2rl grade --task alfworld --model tiny --engine textworld`
    """
    from a2rl.cli.console import progress_bar
    from a2rl.cli.scoring import grade_checkpoint, task_options

    settings = Settings.load()
    with progress_bar(f"grading {model} on {task} ({variant})") as on_progress:
        graded = grade_checkpoint(
            settings, task, model, variant, source, split, limit, backend, task_options(context.args), on_progress
        )
    _show_score(graded.score, as_json, graded.settings)


@app.command()
def score(
    task: Task,
    outputs: Annotated[Path | None, typer.Option(help="JSON Lines of {id, completion}.")] = None,
    annotations: Annotated[
        Path | None, typer.Option(help="Instead: a judge's annotations, .json or .json.xz (alpacaeval).")
    ] = None,
    variant: Variant = "mini",
    source: Source = None,
    split: Split = "all",
    as_json: Json = False,
) -> None:
    """Score completions that were made elsewhere, or a judge's annotations of them. The id is the row number from 0 in
    the test file (gsm8k).

    Examples: `a2rl score --task gsm8k --variant full --source ~/gsm8k --outputs completions.jsonl`,
    `a2rl score --task alpacaeval --annotations annotations.json --json`
    """
    from a2rl.cli.scoring import score_annotations, score_file

    if (outputs is None) == (annotations is None):
        raise UsageError("give either --outputs or --annotations")
    if annotations is not None:
        _show_figures(score_annotations(Settings.load(), task, annotations, source), as_json)
    elif outputs is not None:
        _show_score(score_file(Settings.load(), task, outputs, variant, source, split), as_json)


@app.command()
def prepare(task: Task, variant: Variant = "mini", source: Source = None) -> None:
    """Make a task's data anew (mini data and `tiny` come with `make data`).

    Example: `a2rl prepare --task gsm8k --variant full --source ~/gsm8k`
    """
    from a2rl.cli.console import out
    from a2rl.cli.scoring import known_variant
    from a2rl.data import prepare_data

    folder = prepare_data(task, known_variant(variant), source, Settings.load())
    out.print(f"{folder}/visible for the agent, {folder}/hidden for the grader")


@app.command()
def verify(run_id: str, as_json: Json = False) -> None:
    """Check that a run is what it claims to be: ledger, checkpoints, scores, records, MLflow.

    Example: `a2rl verify gsm8k-scripted-20260412-093015-a1b2`
    """
    from rich.text import Text

    from a2rl.cli.console import out, print_json
    from a2rl.printable import printable
    from a2rl.tracking import Tracker
    from a2rl.verify import verify_run

    settings = Settings.load()
    checks = verify_run(_find_run(run_id, settings), Tracker(settings))
    for check in checks:
        mark = ("FAILED ", "bold red") if check.problem else ("ok     ", "green")
        out.print(
            Text.assemble(mark, check.what, f": {printable(check.problem)}" if check.problem else ""), soft_wrap=True
        )
    failed = [check for check in checks if check.problem]
    if as_json:
        print_json({"run_id": run_id, "sound": not failed, "problems": [check.problem for check in failed]})
    if failed:
        sys.exit(1)


@app.command()
def tasks(as_json: Json = False) -> None:
    """The tasks there are.

    Example: `a2rl tasks --json`
    """
    from a2rl.catalog import load_task, task_ids
    from a2rl.cli.console import out, print_json, print_table

    settings = Settings.load()
    found = [load_task(task_id, settings.root) for task_id in task_ids(settings.root)]
    if as_json:
        print_json([task.model_dump(mode="json") for task in found])
        return
    rows = [
        (task.id, str(task.level), task.metric, str(task.mini.eval_items), str(task.full.eval_items), task.source.url)
        for task in found
    ]
    print_table(("task", "level", "metric", "mini", "full", "source"), rows, right=("mini", "full"))
    options = [
        (f"{task.id}: --{name} {'|'.join(option.choices)}", f"{option.help} Default: {option.default}.")
        for task in found
        for name, option in task.options.items()
    ]
    if options:
        out.print()
        print_table(("option", ""), options)


@app.command()
def runs(as_json: Json = False) -> None:
    """The runs there are, and where each stands.

    Example: `a2rl runs`
    """
    from a2rl.cli.console import print_json
    from a2rl.cli.results import run_object, state_of
    from a2rl.run import RunDir

    found = list(RunDir.all(Settings.load().runs))
    if as_json:
        print_json([{"id": each.id, "state": state_of(each), **run_object(each)} for each in found])
    else:
        _show_runs(found)


@app.command()
def report(run_id: str) -> None:
    """Draw a run's report anew and bring MLflow up to date.

    Example: `a2rl report gsm8k-scripted-20260412-093015-a1b2`
    """
    from a2rl.cli.console import out
    from a2rl.mirror import mark_behind
    from a2rl.report import write_report
    from a2rl.tracking import Tracker

    settings = Settings.load()
    found = _find_run(run_id, settings)
    write_report(found, settings)
    out.print(str(found.report), soft_wrap=True)
    Tracker(settings).sync(found)
    mark_behind(found, "")


@app.command()
def driver(
    scenario: Annotated[str, typer.Argument(help="The name of a scenario that comes with a2rl, or a YAML file.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 0,
    log: Annotated[Path | None, typer.Option(help="JSON Lines of what was served: tokens, turns, status.")] = None,
) -> None:
    """Serve a scripted LLM on this machine, for any agent system to run on: offline, repeatable, for nothing.

    Example: `a2rl driver gsm8k --port 8765 --log served.jsonl`
    """
    from a2rl.cli.console import out
    from a2rl.driver.scenario import load_scenario
    from a2rl.driver.server import serve

    def announce(url: str) -> None:
        out.print(
            f"playing {scenario}; an agent system finds it by one of\n  ANTHROPIC_BASE_URL={url}\n"
            f"  OPENAI_BASE_URL={url}/v1\n  GOOGLE_GEMINI_BASE_URL={url}",
            soft_wrap=True,
            markup=False,
        )

    serve(load_scenario(scenario), port, log, announce)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    short_help="Attack the pipeline as hostile agents would, in every sandbox of this machine.",
)
def redteam(context: typer.Context) -> None:
    """Runs the attacks of tests/redteam/ and says what stopped each; `a2rl redteam --help` lists the options."""
    import subprocess

    settings = Settings.load()
    root = settings.root
    if not (root / "tests" / "redteam").is_dir():
        raise UsageError(f"{root} has no tests/redteam: run this in a checkout of a2rl")
    environment = {**settings.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-m", "tests.redteam", *context.args], env=environment, check=False)
    raise typer.Exit(done.returncode)


@app.command()
def doctor(as_json: Json = False) -> None:
    """What this machine has for benchmark runs, and what to do about what is missing.

    Example: `a2rl doctor`
    """
    from rich.text import Text

    from a2rl.cli.console import out, print_json
    from a2rl.doctor import examine

    findings = examine(Settings.load())
    if as_json:
        print_json([finding._asdict() for finding in findings])
        return
    for finding in findings:
        mark = (
            ("ok       ", "green")
            if finding.ok
            else ("missing  ", "yellow")
            if finding.optional
            else ("PROBLEM  ", "bold red")
        )
        out.print(Text.assemble(mark, (f"{finding.what:<14}", "bold"), finding.found), soft_wrap=True)
        if finding.mend:
            out.print(Text(f"{'':23}{finding.mend}", "dim"), soft_wrap=True)
    if any(not finding.ok and not finding.optional for finding in findings):
        sys.exit(1)


def _warn_of_short_keys(agents: Iterable[str], settings: Settings) -> None:
    from a2rl.catalog import find_agent
    from a2rl.cli.console import err
    from a2rl.keys import too_short

    for name in sorted({name for agent in agents for name in too_short(find_agent(agent, settings.root), settings)}):
        err.print(f"{name} is too short to be told from other words: it is not removed from logs", style="yellow")


def _find_run(run_id: str, settings: Settings) -> Any:
    from a2rl.run import RunDir

    name = Path(run_id).name
    if not (settings.runs / name / "spec.json").is_file():
        raise unknown("run", name, [each.id for each in RunDir.all(settings.runs)][-10:])
    return RunDir(settings.runs / name)


def _show_run(found: Any, as_json: bool) -> None:
    from a2rl.cli.console import out, print_json
    from a2rl.cli.results import run_object, sandbox_of, sandbox_warning, sentence
    from a2rl.mirror import behind

    out.print()
    out.print(sentence(found), soft_wrap=True)
    facts = run_object(found)
    if warning := sandbox_warning(sandbox_of(found)):
        out.print(warning, style="bold yellow", soft_wrap=True, markup=False)
    out.print(f"report: {facts['report']}\nverify: a2rl verify {found.id}", soft_wrap=True, markup=False)
    if late := behind(found):
        out.print(late, style="yellow", soft_wrap=True, markup=False)
    if as_json:
        print_json(facts)


def _show_runs(found: list[Any]) -> None:
    from a2rl.cli.console import out, print_table
    from a2rl.cli.results import run_object, state_of
    from a2rl.mirror import behind

    def figure(value: float | None, sign: str = "") -> str:
        return "-" if value is None else f"{value:{sign}.1f}"

    rows = []
    for each in found:
        try:
            facts = run_object(each)
        except A2rlError as error:
            rows.append((each.id, f"damaged: {error}", *["-"] * 7))
            continue
        ci = f"[{facts['ci'][0]:+.1f}, {facts['ci'][1]:+.1f}]" if facts["ci"] else "-"
        final = facts["private"] if facts["protocol"] == "strict" else facts["best"]
        rows.append(
            (
                each.id, state_of(each), figure(facts["baseline"]), figure(final), figure(facts["gain"], "+"),
                ci, str(facts["submissions"]), "; ".join(filter(None, (facts["verdict"], facts["selection"]))) or "-",
                facts["sandbox"] or "-",
            )
        )  # fmt: skip
    columns = ("run", "state", "baseline", "result", "gain", "95% interval", "submissions", "verdict", "sandbox")
    print_table(columns, rows, right=("baseline", "result", "gain", "submissions"))
    for each in found:
        if late := behind(each):
            out.print(late, style="yellow", soft_wrap=True, markup=False)


def _show_figures(figures: dict[str, Any], as_json: bool) -> None:
    from a2rl.cli.console import out, print_json

    for name, value in figures.items():
        if value not in {None, ""}:
            out.print(f"{name}: {value if isinstance(value, str) else f'{value:.4f}'}", soft_wrap=True, markup=False)
    if as_json:
        print_json(figures)


def _show_score(result: Any, as_json: bool, settings: dict[str, str] | None = None) -> None:
    from a2rl.cli.console import out, print_json, print_table

    out.print(
        f"score {result}  (correct {result.correct}, wrong {result.wrong}, truncated {result.truncated}, "
        f"errored {result.errored}; {result.total} items in {result.seconds:.1f} s)",
        soft_wrap=True,
        markup=False,
    )
    if result.groups:
        rows = [
            (name, f"{group.score:.1f}" if group.score is not None else "-", str(group.total))
            for name, group in result.groups.items()
        ]
        print_table(("kind", "score", "items"), rows, right=("score", "items"))
    if result.measures:
        out.print(", ".join(f"{name} {value:.2f}" for name, value in result.measures.items()), soft_wrap=True)
    if as_json:
        print_json(result.model_dump(mode="json") | ({"settings": settings} if settings else {}))
    if result.score is None:
        raise (
            UsageError(f"there is no score: {result.reason}")
            if result.total == 0
            else A2rlError(f"there is no score: {result.reason}")
        )
