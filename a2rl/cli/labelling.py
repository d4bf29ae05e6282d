"""`a2rl label`: by which route agents trained, and why runs failed."""

from typing import TYPE_CHECKING, Annotated

import typer

from a2rl.cli.options import Json
from a2rl.core.settings import Settings

if TYPE_CHECKING:
    from a2rl.labels.records import LabelsRecord
    from a2rl.run.directory import RunDir

SHOWN = 5
"""The pieces of evidence that are shown for each label; `--json` has all of them."""


def label(
    run_id: Annotated[list[str], typer.Argument(help="Run ids.")],
    *,
    judge: Annotated[
        str | None, typer.Option(help="A second rater: a judge of params.yaml, which reads the same code.")
    ] = None,
    max_usd: Annotated[
        float, typer.Option(min=0, help="What the second rater may cost for each run, in dollars.")
    ] = 1.0,
    as_json: Json = False,
) -> None:
    """Label runs anew: the route of training (SFT, DPO, GRPO ...) and the reasons of failures, with their evidence.

    Every run is labelled when it ends; this command does it again, after an update for example.

    Example: `a2rl label gsm8k-scripted-20260412-093015-a1b2 --judge gpt-4.1`
    """
    from a2rl.cli.console import print_json
    from a2rl.cli.results import find_run

    settings = Settings.load()
    records: dict[str, LabelsRecord] = {}
    for name in dict.fromkeys(run_id):
        found = find_run(name, settings)
        records[found.id] = _labelled(found, settings, judge, max_usd)
        _show(found.id, records[found.id])
    kappa = _show_agreement(list(records.values()))
    if as_json:
        print_json({"kappa": kappa, "runs": {key: each.model_dump(mode="json") for key, each in records.items()}})


def _labelled(run: "RunDir", settings: Settings, judge: str | None, max_usd: float) -> "LabelsRecord":
    from a2rl.config.params import load_params
    from a2rl.labels.rater import rate
    from a2rl.labels.records import write_labels

    record = write_labels(run, settings)
    if judge is None:
        return record
    params = load_params(settings.root).named_judge(judge)
    params = params if params.model else params.resolved(params.annotator)
    return run.write("labels", record.model_copy(update={"second": rate(run, params, settings, max_usd)}))


def _show_agreement(records: "list[LabelsRecord]") -> float | None:
    """Prints how far both raters agree and returns Cohen's kappa; None if it is not defined."""
    from a2rl.cli.console import out
    from a2rl.labels.rater import cohens_kappa, pair_of

    pairs = [pair for record in records if (pair := pair_of(record)) is not None]
    kappa = cohens_kappa(pairs)
    if pairs:
        agreement = sum(one == other for one, other in pairs)
        shown = "not defined" if kappa is None else f"{kappa:.2f}"
        out.print(f"both raters agree on the last step of {agreement} of {len(pairs)} runs; Cohen's kappa: {shown}")
    return kappa


def _show(name: str, record: "LabelsRecord") -> None:
    from a2rl.cli.console import out
    from a2rl.labels.routes import in_words

    out.print(f"{name}: {in_words(record.chain)}", soft_wrap=True, markup=False)
    for each in record.chain:
        out.print(f"  {each.route} (confidence {each.confidence:.2f})", markup=False)
        for piece in each.evidence[:SHOWN]:
            where = f"{piece.file}:{piece.line}" if piece.file else piece.source
            commit = f" in {piece.commit[:8]}" if piece.commit else ""
            out.print(f"    {where}{commit}: {piece.what}", soft_wrap=True, markup=False)
    for failure in record.failures:
        out.print(f"  failure: {failure.kind} (confidence {failure.confidence:.2f})", markup=False)
        for piece in failure.evidence[:SHOWN]:
            out.print(f"    {piece.file or piece.source}: {piece.what}", soft_wrap=True, markup=False)
    if record.second is not None:
        routes = " > ".join(record.second.routes) or f"no answer: {record.second.reason}"
        out.print(f"  second rater {record.second.model}: {routes}", soft_wrap=True, markup=False)
