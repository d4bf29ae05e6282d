"""Shows runs in the output of commands: as sentences, as the JSON object of a run, with the checks of it, and as the
table of `a2rl runs`."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.text import Text

from a2rl.cli.console import out, print_json, print_table, say
from a2rl.core.errors import UsageError
from a2rl.core.printable import printable, printable_json
from a2rl.labels.records import labels_object
from a2rl.results.comparability import comparability
from a2rl.results.figures import remarks_on, run_metrics
from a2rl.results.mirror import MLFLOW_NOTE
from a2rl.results.table import points
from a2rl.run.directory import ASIDE_LOG, UNREADABLE, RunDir
from a2rl.run.events import BaselineKnown, SubmissionAccepted, SubmissionRefused
from a2rl.run.failure import refusal
from a2rl.run.ranking import sample_note, selection_note
from a2rl.run.records import VERDICTS, BaselineRecord, ExecuteRecord, GradeRecord, SetupRecord
from a2rl.sandbox.isolation import Isolation
from a2rl.validity.record import Validity, counted, read_validity

if TYPE_CHECKING:
    from a2rl.bundle.audit import Audit
    from a2rl.grading.regrade import Regrade
    from a2rl.results.verify import CheckOutcome


SHOWN_ITEMS = 20
"""The number of items that are listed; `--json` has all of them."""


def run_object(run: RunDir) -> dict[str, Any]:
    """Returns the JSON object of a run. A figure that is not known yet is null."""
    spec, graded, executed = run.spec, run.read("grade", GradeRecord), run.read("execute", ExecuteRecord)
    base, ready = run.read("baseline", BaselineRecord), run.read("setup", SetupRecord)
    validity, compared = read_validity(run), comparability(run)
    private = graded.final if graded and spec.protocol == "strict" else None
    counts = counted(run, graded)
    return {
        "run_id": spec.run_id,
        "task": spec.task,
        "variant": spec.variant,
        "agent": spec.agent,
        "launch": spec.launch,
        "mode": spec.mode,
        "protocol": spec.protocol,
        "seed": spec.seed,
        "baseline": graded.baseline.score if graded else base.total.score if base else None,
        "best": graded.public.score if graded and graded.public else None,
        "private": private.score if private else None,
        "improvement": graded.improvement if graded else None,
        "gain": counts.gain if graded else None,
        "cross_fitted": counts.cross_fitted,
        "ci": list(counts.ci) if counts.ci else None,
        "ended": executed.ended if executed else None,
        "why": executed.why if executed else "",
        "responsible": executed.responsible if executed else None,
        "submissions": executed.submissions if executed else len(run.ledger.events(SubmissionAccepted)),
        "metrics": run_metrics(run, run.ledger.entries()).model_dump(),
        "refused": [each.model_dump(mode="json") for each in run.ledger.events(SubmissionRefused)],
        "verdict": graded.verdict if graded else None,
        "validity": validity.word if validity else None,
        "findings": [each.model_dump(mode="json") for each in validity.findings] if validity else [],
        "selection": selection_note(run) if graded and graded.final else "",
        "limit": spec.limit,
        "sample": sample_note(run),
        "comparable": not compared.reasons,
        "not_comparable_because": list(compared.reasons),
        "generation": spec.generation.model_dump(mode="json"),
        "sampling": spec.generation.note,
        "reason": graded.reason if graded else refusal(run),
        "judge": graded.judge.model_dump(mode="json") if graded and graded.judge else None,
        "sandbox": ready.sandbox.kind if ready else None,
        "layers": list(ready.sandbox.layers) if ready else None,
        "labels": labels_object(run),
        "report": str(run.report) if run.report.exists() else None,
    }


def run_objects(runs: Iterable[RunDir]) -> list[dict[str, Any]]:
    """Returns the JSON objects of several runs; of one that cannot be read, its id and the reason as its state."""
    found = []
    for run in runs:
        try:
            found.append(run_object(run))
        except UNREADABLE as error:
            found.append({"run_id": run.id, "state": f"damaged: {error}"})
    return found


def state_of(run: RunDir) -> str:
    """Returns the state of a run in a few words."""
    graded = run.read("grade", GradeRecord)
    if graded is not None and graded.failed_stage is not None:
        return f"failed in {graded.failed_stage}"
    for stage in ("report", "validity", "grade", "execute", "baseline", "setup"):
        if run.record_path(stage).exists():
            return "done" if stage == "report" else f"after {stage}"
    return "refused" if refusal(run) else "new"


def sentence(run: RunDir) -> str:
    """Returns the result of a run as sentences."""
    graded = run.read("grade", GradeRecord)
    if graded is None:
        return f"The run was refused: {why}" if (why := refusal(run)) else "The run is not finished."
    notes = f" Note: {answers}." if (answers := run.spec.generation.note) else ""
    notes += f" The scores are those of a {note} items." if (note := sample_note(run)) else ""
    if graded.final is None or graded.improvement is None or graded.improvement_ci is None:
        why = f" ({graded.reason})" if graded.reason else ""
        scores = "" if graded.baseline.score is None else f" The base model scores {graded.baseline}."
        return f"No result: {VERDICTS[graded.verdict]}{why}, which counts as a gain of zero.{scores}{notes}"
    low, high = graded.improvement_ci
    return (
        f"From {graded.baseline} to {graded.final}: {graded.improvement:+.1f} points, "
        f"95% interval [{low:+.1f}, {high:+.1f}]: {VERDICTS[graded.verdict]}."
        + (f" This is the {note}." if (note := selection_note(run)) else "")
        + notes
    )


def sandbox_warning(sandbox: Isolation) -> str:
    """Returns a warning if a run's sandbox is weaker than it should be; empty if it is not."""
    if not sandbox.missing_layers and sandbox.confines:
        return ""
    if not sandbox.confines:
        return "No sandbox: nothing but its instructions keeps the agent in its workspace; the report says so too."
    return (
        f"The sandbox is weaker than recommended; it lacks {'; '.join(sandbox.missing_layers)}; the report says so too."
    )


def show_run(found: RunDir, as_json: bool) -> None:
    """Prints the result of a run."""
    out.print()
    say(sentence(found))
    facts = run_object(found)
    show_validity(read_validity(found))
    ready = found.read("setup", SetupRecord)
    if ready is not None and (warning := sandbox_warning(ready.sandbox)):
        say(warning, style="bold yellow")
    for text in remarks_on(found):
        say(text, style="yellow")
    graded = found.read("grade", GradeRecord)
    if graded is not None and graded.judge is not None:
        say(str(graded.judge))
    if graded is None and refusal(found):
        undrawn = "none, as the run was refused"
    elif graded is None:
        undrawn = f"none yet: `a2rl resume {found.id}` continues the run"
    elif found.ledger.events(BaselineKnown):
        undrawn = f"not drawn, see logs/{ASIDE_LOG}: `a2rl report {found.id}` tries again"
    else:
        undrawn = "none, as there is no baseline"
    say(f"report: {facts['report'] or undrawn}\nverify: a2rl verify {found.id}")
    if late := MLFLOW_NOTE.read(found):
        say(late, style="yellow")
    if as_json:
        print_json(facts)


def show_validity(validity: Validity | None) -> None:
    """Prints what a result is worth, and why."""
    if validity is None or (validity.word == "no result" and not validity.why):
        return
    style = {"void": "bold red", "flagged": "bold yellow"}.get(validity.word, "green")
    out.print(f"The result is {validity.word}." if validity.word != "no result" else "Findings:", style=style)
    for text in validity.why:
        say(f"  {text}", style=style)


def show_checks(checks: "Iterable[CheckOutcome]") -> None:
    """Prints one line for each check."""
    for check in checks:
        mark, text = _check_line(check)
        say(Text.assemble(mark, check.what, f": {printable(text)}" if text else ""))


def _check_line(check: "CheckOutcome") -> tuple[tuple[str, str], str]:
    if check.problem:
        return ("FAILED ", "bold red"), check.problem
    if check.not_checked:
        return ("-      ", "yellow"), f"not checked: {check.not_checked}"
    return ("ok     ", "green"), check.note


def show_regrade(found: "Regrade") -> None:
    """Prints how a second grade compares with the first, and the items that differ."""
    what = f"submission {found.submission}" if found.submission else "the base model"
    if found.is_same:
        mark = ("ok     ", "green")
        text = f"{what} graded anew: {found.after}, the same item by item ({found.after.total} {found.split} items)"
    else:
        mark = ("DIFFERS ", "bold red")
        text = f"{what} graded anew: {found.after}, not {found.before}; {len(found.differences)} items differ"
    say(Text.assemble(mark, printable(text)))
    for each in found.differences[:SHOWN_ITEMS]:
        value = "" if each.before != each.after else f" ({each.value_before:g}, now {each.value_after:g})"
        say(f"        {each.id}: {each.before}, now {each.after}{value}")
    if found.other_answers:
        say(f"        {found.other_answers} answers have another text")


def show_audit(found: "Audit") -> None:
    """Prints the validity of the result, with each finding and its evidence, and what the audit concludes."""
    for what, why in found.not_regraded.items():
        say(f"not graded anew: {what}: {why}", style="yellow")
    if found.left_out:
        gone = ", ".join(found.left_out[:SHOWN_ITEMS]) + (" ..." if len(found.left_out) > SHOWN_ITEMS else "")
        text = printable(f"not here, so the result is flagged at best: {gone}")
        say(text, style="yellow")
    if found.validity is not None:
        for finding in found.validity.findings:
            say(f"{finding.level}: {finding.text} ({finding.id})")
            for each in finding.evidence:
                place = each.model_dump(mode="json", exclude_defaults=True)
                say(f"    {printable_json(place)}")
    word = found.validity.word if found.validity else "not decided"
    say(f"{'sound' if found.sound else 'NOT SOUND'}; validity: {word}", style="bold")


ORDERS = ("run", "created", "suite", "task", "agent", "driver", "seed", "gain", "submissions")
"""What runs can be sorted by."""


class ListedRun(NamedTuple):
    """A run in the list."""

    run: RunDir
    state: str
    facts: dict[str, Any]
    """The JSON object of the run; empty for one that cannot be read."""


class Column(NamedTuple):
    """A column of the table."""

    title: str
    text: Callable[[dict[str, Any]], str | None]
    """Takes the facts of a run; what is empty is shown as a dash."""
    is_number: bool = False


COLUMNS = (
    Column("suite", lambda run: run["suite"]),
    Column("driver", lambda run: run["driver"]),
    Column("mode", lambda run: run["mode"]),
    Column("seed", lambda run: str(run["seed"]), is_number=True),
    Column("state", lambda run: run["state"]),
    Column("baseline", lambda run: points(run["baseline"]), is_number=True),
    Column("result", lambda run: points(run["private" if run["protocol"] == "strict" else "best"]), is_number=True),
    Column("gain", lambda run: points(run["gain"], "+"), is_number=True),
    Column("95% interval", lambda run: run["ci"] and f"[{run['ci'][0]:+.1f}, {run['ci'][1]:+.1f}]"),
    Column("submissions", lambda run: str(run["submissions"]), is_number=True),
    Column("verdict", lambda run: "; ".join(filter(None, (run["verdict"], run["selection"], run["sample"])))),
    Column("validity", lambda run: run["validity"]),
    Column("sandbox", lambda run: run["sandbox"]),
)


def list_runs(
    runs: Iterable[RunDir], order: str = "run", reverse: bool = False, **wanted: str | None
) -> list[ListedRun]:
    """Returns the runs that have all wanted values, sorted.

    Runs that cannot be read are at the end; they are left out if anything particular is wanted.

    Raises:
        UsageError: There is no such order.
    """
    if order not in ORDERS:
        raise UsageError(f"runs cannot be sorted by {order!r}: choose one of {', '.join(ORDERS)}")
    filters = {name: value for name, value in wanted.items() if value is not None}
    found = [_listed(run) for run in runs]
    readable = [each for each in found if each.facts and _is_wanted(each, filters)]
    known = [each for each in readable if _value(each, order) is not None]
    known.sort(key=lambda each: _value(each, order), reverse=reverse)
    unknown = [each for each in readable if _value(each, order) is None]
    return [*known, *unknown, *([] if filters else [each for each in found if not each.facts])]


def show_list(found: Iterable[ListedRun]) -> None:
    """Prints the table."""
    listed = list(found)
    titles = ("run", *(column.title for column in COLUMNS))
    numbers = [column.title for column in COLUMNS if column.is_number]
    print_table(titles, [_row(each) for each in listed], right=numbers)
    for each in listed:
        if each.facts and (late := MLFLOW_NOTE.read(each.run)):
            say(late, style="yellow")


def _listed(run: RunDir) -> ListedRun:
    try:
        run.check_plain()
        spec = run.spec
        more = {"suite": spec.suite, "driver": spec.driver, "created": spec.created_at}
        return ListedRun(run, state_of(run), {**run_object(run), **more})
    except UNREADABLE as error:
        return ListedRun(run, f"damaged: {error}", {})


def _value(listed: ListedRun, name: str) -> Any:
    return listed.state if name == "state" else listed.run.id if name == "run" else listed.facts.get(name)


def _is_wanted(listed: ListedRun, filters: dict[str, str]) -> bool:
    return all(str(_value(listed, name) or "-") == value for name, value in filters.items())


def _row(listed: ListedRun) -> tuple[str, ...]:
    if not listed.facts:
        return listed.run.id, *(listed.state if column.title == "state" else "-" for column in COLUMNS)
    facts = {**listed.facts, "state": listed.state}
    return listed.run.id, *(column.text(facts) or "-" for column in COLUMNS)
