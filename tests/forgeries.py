"""Forgeries by an operator, who can write every file of a run and of MLflow, and sometimes holds the signing key.

A forgery is a function that edits a finished run. `Scene.finish` then does what the operator can do to hide it:

- naive: nothing but `a2rl report`;
- consistent: the chain, the manifest and MLflow are made anew, so that everything fits together;
- with the key: the same, and all heads are signed again, with times that fit.
"""

import json
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from a2rl.anchor.signatures import FILE as SIGNATURES
from a2rl.anchor.signatures import Head, HeadSignature, SigningKey, add_signature
from a2rl.anchor.signing import Signer, sign_heads
from a2rl.core.errors import A2rlError
from a2rl.core.files import canonical_json, digest_of, file_digest, read_model, write_model
from a2rl.core.settings import Settings
from a2rl.grading.job import GradeJob, GradeResult, ids_of_job
from a2rl.models.checkpoint import weights_digest
from a2rl.results.manifest import FILE as MANIFEST
from a2rl.results.manifest import manifest_of
from a2rl.results.mlflow.tracking import Tracker
from a2rl.results.report.page import report_files, write_report
from a2rl.results.verify import commit_here
from a2rl.run.directory import RunDir
from a2rl.run.events import Graded, PrivateGraded, SubmissionAccepted, SubmissionRefused
from a2rl.run.ledger import GENESIS, Row
from a2rl.scoring.score import summarise
from tests.run_maker import finished_run, grade_result, item_results
from tests.signing_key import make_key
from tests.small_model import edit_json, trained_copy

Level = Literal["naive", "consistent", "with the key"]
LEVELS: tuple[Level, ...] = ("naive", "consistent", "with the key")
Rows = list[tuple[float, str, dict[str, Any]]]
"""The time, the kind and the fields of each event."""
DAY_S = 86400.0
MLFLOW_TABLES = ("latest_metrics", "metrics", "params", "tags", "runs")


class Original(NamedTuple):
    """An honest run, signed by a key that is not the operator's, with its published heads."""

    root: Path
    run_id: str
    environ: dict[str, str]
    key: Path
    published: tuple[Head, ...]
    scores: dict[tuple[str, str], int]
    """How many items are right, by the digest of the weights and the split: what an honest grader finds."""

    @classmethod
    def make(cls, folder: Path) -> "Original":
        """Makes the run, with code, a refusal and three submissions."""
        done = finished_run(folder / "checkout", in_full=True, git_commit=commit_here())
        make_key(folder / "key")
        ledger = done.run.ledger
        right = {(each.weights_digest, "public"): each.result.correct for each in ledger.events(Graded)}
        right |= {(each.weights_digest, "private"): each.result.correct for each in ledger.events(PrivateGraded)}
        original = cls(done.settings.root, done.run.id, done.settings.environ, folder / "key", (), right)
        Scene(done.run, done.settings, original).age()
        heads = _signed_as_it_happened(done.run, folder / "key")
        return original._replace(published=(*heads[::3], heads[-1]))

    def copy(self, folder: Path) -> "Scene":
        """Copies the checkout for one forgery."""
        shutil.copytree(self.root, folder, symlinks=True)
        settings = Settings(folder, self.environ)
        return Scene(RunDir(settings.runs / self.run_id), settings, self)


def _signed_as_it_happened(run: RunDir, path: Path) -> list[Head]:
    """Signs each head a moment after its entry, as the pipeline does during a run."""
    key, signer = SigningKey.load(path), Signer(path)
    heads = []
    for row in run.ledger.rows():
        heads.append(Head(seq=row.seq, hash=row.hash))
        signer.sign(run.id, [row])  # so that it remembers the head
        add_signature(run.root, HeadSignature.make(run.id, heads[-1], row.at + 0.5, key))
    return heads


class Scene(NamedTuple):
    """A copy of the run in the hands of the operator."""

    run: RunDir
    settings: Settings
    original: Original

    def age(self) -> None:
        """Makes the run a day old, so that signatures which are made now come late."""
        self.events(lambda rows: [(at - DAY_S, kind, fields) for at, kind, fields in rows])
        for name, text in report_files(self.run, self.settings, self.run.ledger.entries()[:-1]).items():
            self.run.report.with_name(name).write_text(text)  # as it was drawn before the run was closed
        self._make_consistent()
        Tracker(self.settings).sync(self.run)

    def forget_mlflow(self) -> None:
        """Removes all runs from MLflow."""
        for table in MLFLOW_TABLES:
            self.sql(f"DELETE FROM {table}")

    def events(self, edit: Callable[[Rows], Rows | None]) -> None:
        """Rewrites the ledger with a chain that is valid."""
        rows: Rows = [(row.at, row.kind, json.loads(row.body)) for row in self.run.ledger.rows()]
        edited = edit(rows)
        for path in self.run.root.glob("ledger.db*"):
            path.unlink()
        chain: list[Row] = []
        for seq, (at, kind, fields) in enumerate(rows if edited is None else edited, start=1):
            body, previous = canonical_json(fields), chain[-1].hash if chain else GENESIS
            chain.append(Row(seq, at, kind, body, previous, digest_of([seq, at, kind, body, previous])))
        self.run.ledger.restore(chain)

    def event(self, kind: str, change: Callable[[dict[str, Any]], object], which: int | None = None) -> None:
        """Edits the fields of the events of a kind, or of one of them."""

        def edit(rows: Rows) -> None:
            chosen = [fields for _, each, fields in rows if each == kind]
            for fields in chosen if which is None else [chosen[which]]:
                change(fields)

        self.events(edit)

    def record(self, **changes: Any) -> None:
        """Edits the record of the result."""
        edit_json(self.run.record_path("grade"), **changes)

    def sql(self, statement: str) -> None:
        """Edits MLflow's database."""
        with closing(sqlite3.connect(self.settings.mlruns / "mlflow.db")) as database:
            database.execute(statement)
            database.commit()

    def finish(self, level: Level, draws: bool = True) -> None:
        """Hides the forgery, and runs `a2rl report` at the end; unless it `draws`, the report stays as it is."""
        if level != "naive":
            self._make_consistent()
        if level == "with the key":
            self._sign_again()
        with suppress(Exception):  # a page of forged items may not be drawn at all
            if draws:
                write_report(self.run, self.settings)
        with suppress(A2rlError):
            sign_heads(self.run, Signer(self.original.key))  # as `a2rl report` does where the key is
        with suppress(A2rlError):
            Tracker(self.settings).sync(self.run)

    def _make_consistent(self) -> None:
        """Makes the manifest, its digest in the ledger, and MLflow anew."""
        with suppress(A2rlError):
            write_model(self.run.root / MANIFEST, manifest_of(self.run))
        manifest, spec = file_digest(self.run.root / MANIFEST), self.run.load_spec()
        with suppress(A2rlError):
            self.event("run_closed", lambda fields: fields.update(manifest_digest=manifest))
            self.event("run_opened", lambda fields: fields.update(spec_digest=digest_of(spec.model_dump(mode="json"))))
        self.forget_mlflow()

    def _sign_again(self) -> None:
        """Signs every head again. The history of the signer is of no use against the holder of its key."""
        key = SigningKey.load(self.original.key)
        (self.run.root / SIGNATURES).unlink(missing_ok=True)
        for row in self.run.ledger.rows():
            head = Head(seq=row.seq, hash=row.hash)
            add_signature(self.run.root, HeadSignature.make(self.run.id, head, row.at + 0.01, key))

    def grade(self, job: GradeJob, *_: Any, **__: Any) -> GradeResult:
        """An honest grader: its scores follow from the weights and the split, and other weights score otherwise."""
        ids, known = ids_of_job(job), self.original.scores
        if job.model.parent.name == "models":
            return grade_result(item_results(ids, 2), 0.5)
        right = known.get((weights_digest(job.model), job.split), (max(known.values()) + 1) % (len(ids) + 1))
        return grade_result(item_results(ids, right), 0.5)


Forgery = Callable[[Scene], None]


def _best(scene: Scene) -> str:
    [final] = scene.run.ledger.events(PrivateGraded)
    return final.weights_digest


def _grade_file(scene: Scene, right: int) -> GradeResult:
    path = scene.run.items(_best(scene), "private")
    ids = [item.id for item in read_model(path, GradeResult).items]
    result = grade_result(item_results(ids, right), 0.5)
    write_model(path, result)
    return result


def better_private_score(scene: Scene) -> None:
    """All items of the result are right: in the grade file, the ledger and the record."""
    result = _grade_file(scene, 4)
    digest = file_digest(scene.run.items(_best(scene), "private"))
    shown = result.score.model_dump(mode="json")
    scene.event("private_graded", lambda fields: fields.update(result=shown, items_digest=digest))
    _recompute(scene)


def _recompute(scene: Scene) -> None:
    """Makes the record of the result anew from the forged items, as the stage does."""
    from stages.grade import grade
    from stages.validity import validity

    before = scene.run.ledger.rows()
    for stage in ("grade", "validity"):
        scene.run.record_path(stage).unlink(missing_ok=True)
    with suppress(A2rlError):
        grade(scene.run, scene.settings)
        validity(scene.run, scene.settings)
    added = scene.run.ledger.rows()[len(before) :]
    decided = [json.loads(row.body) for row in added if row.kind == "validity_decided"]

    def tidy(rows: Rows) -> Rows:
        kept = rows[: len(before)]
        return [
            (at, kind, decided[-1] if kind == "validity_decided" and decided else fields) for at, kind, fields in kept
        ]

    scene.events(tidy)


def better_public_score(scene: Scene) -> None:
    """The public score of a submission is better, in its grade file and in the ledger."""
    event = scene.run.ledger.events(Graded)[0]
    path = scene.run.items(event.weights_digest, "public")
    ids = [item.id for item in read_model(path, GradeResult).items]
    result = grade_result(item_results(ids, 4), 0.5)
    write_model(path, result)
    new = {"result": result.score.model_dump(mode="json"), "items_digest": file_digest(path), "improvement": 50.0}
    scene.event("graded", lambda fields: fields.update(new), 0)
    _recompute(scene)


def edited_result(scene: Scene) -> None:
    """The improvement is larger, in the record alone."""
    scene.record(improvement=90.0, improvement_ci=[80.0, 95.0], verdict="improved")


def result_without_score(scene: Scene) -> None:
    """The record has an improvement, but no final score from which it could follow."""
    scene.record(final=None, improvement=90.0, improvement_ci=[80.0, 95.0], verdict="improved")


def other_time(scene: Scene) -> None:
    """The agent took another time, in the record alone."""
    edit_json(scene.run.record_path("execute"), elapsed_s=0.001)


def unsigned_end(scene: Scene) -> None:
    """The entries after the first signature are others, in a future in which no signature is missing yet."""
    path, years = scene.run.root / SIGNATURES, 10 * 365 * DAY_S
    signed = json.loads(first := path.read_text().splitlines()[0])["seq"]
    scene.events(lambda rows: [*rows[:signed], *((at + years, kind, fields) for at, kind, fields in rows[signed:])])
    path.write_text(first + "\n")


def edited_ledger_score(scene: Scene) -> None:
    """The scores are better, in the ledger alone."""
    scene.event("graded", lambda fields: fields["result"].update(score=100.0))


def invented_interval(scene: Scene) -> None:
    """The interval of the result is narrower, in the ledger and the record."""
    narrow = {"ci": [74.9, 75.1]}
    scene.event("private_graded", lambda fields: fields["result"].update(narrow))
    final = scene.run.ledger.events(PrivateGraded)[0].result
    scene.record(final=final.model_dump(mode="json"))


def invented_measure(scene: Scene) -> None:
    """The base model has a figure that no item gives, in the ledger and the records."""
    record = json.loads(scene.run.record_path("baseline").read_text())
    invented = record["private"] | {"measures": {"pass at 1": 0.1}}
    edit_json(scene.run.record_path("baseline"), private=invented)
    scene.event("baseline_known", lambda fields: fields.update(private=invented))
    scene.record(baseline=invented)


def invented_gain(scene: Scene) -> None:
    """Each submission has gained 99 points, in the ledger."""
    scene.event("graded", lambda fields: fields.update(improvement=99.0))


def score_without_items(scene: Scene) -> None:
    """The public score of the best submission is better, and the ledger names no items from which it follows."""
    best = _best(scene)

    def better(fields: dict[str, Any]) -> None:
        if fields["weights_digest"] == best:
            fields["result"].update(score=99.0)
            fields.update(items_digest="", improvement=99.0 - 50.0)

    scene.event("graded", better)
    public = next(each.result for each in scene.run.ledger.events(Graded) if each.weights_digest == best)
    scene.record(public=public.model_dump(mode="json"))


def result_of_no_submission(scene: Scene) -> None:
    """The final score is that of weights that nobody submitted, with items of their own; the best one's stay."""
    path = scene.run.items("0" * 64, "private")
    items = read_model(scene.run.items(_best(scene), "private"), GradeResult).items
    result = grade_result(item_results([item.id for item in items], len(items)), 0.5)
    write_model(path, result)
    final = result.score.model_dump(mode="json")
    new = {"weights_digest": "0" * 64, "result": final, "items_digest": file_digest(path)}
    scene.event("private_graded", lambda fields: fields.update(new))
    scene.record(final=final)


def new_chain(scene: Scene) -> None:
    """The ledger is a new chain in which one submission arrived a minute earlier."""
    scene.event("submission_accepted", lambda fields: fields.update(elapsed_s=fields["elapsed_s"] + 60.0), 0)


def moved_times(scene: Scene) -> None:
    """All entries are dated a day earlier."""
    scene.events(lambda rows: [(at - DAY_S, kind, fields) for at, kind, fields in rows])


def swapped_checkpoint(scene: Scene) -> None:
    """Another checkpoint lies where the one that counts was."""
    _swap(scene)


def _swap(scene: Scene) -> str:
    old, base = _best(scene), scene.settings.root / "models" / "small"
    folder = scene.run.checkpoint(old)
    shutil.rmtree(folder)
    trained_copy(base, folder, 99)
    return old


def swapped_checkpoint_and_digest(scene: Scene) -> None:
    """Another checkpoint lies there, and the ledger names its digest; the scores are those of the old one."""
    old = _swap(scene)
    new = weights_digest(scene.run.checkpoint(old))
    scene.run.checkpoint(old).rename(scene.run.checkpoint(new))
    for split in ("public", "private"):
        if scene.run.items(old, split).exists():
            scene.run.items(old, split).rename(scene.run.items(new, split))
    for kind in ("submission_accepted", "graded", "private_graded"):
        scene.event(kind, lambda fields: fields.update(weights_digest=new) if fields["weights_digest"] == old else None)


def dropped_items(scene: Scene) -> None:
    """The wrong items of the result are gone."""
    path = scene.run.items(_best(scene), "private")
    items = tuple(item for item in read_model(path, GradeResult).items if item.verdict == "correct")
    result = GradeResult(score=summarise(items, 0.5), items=items)
    write_model(path, result)
    new = {"result": result.score.model_dump(mode="json"), "items_digest": file_digest(path)}
    scene.event("private_graded", lambda fields: fields.update(new))
    scene.record(final=new["result"])


def dropped_baseline_items(scene: Scene) -> None:
    """The items that the base model had right are gone from its grade."""
    path = scene.run.baseline_items
    items = tuple(item for item in read_model(path, GradeResult).items if item.verdict != "correct")
    write_model(path, GradeResult(score=summarise(items), items=items))


def other_baseline(scene: Scene) -> None:
    """The base model has everything wrong: in its grade file, the records and the ledger."""
    path = scene.run.baseline_items
    items = read_model(path, GradeResult).items
    none = item_results([item.id for item in items], 0)
    write_model(path, GradeResult(score=summarise(none), items=none))
    half = summarise(none[: len(none) // 2]).model_dump(mode="json")
    whole, digest = summarise(none).model_dump(mode="json"), file_digest(path)
    edit_json(scene.run.record_path("baseline"), total=whole, public=half, private=half)
    scene.event("baseline_known", lambda fields: fields.update(public=half, private=half, items_digest=digest))
    _recompute(scene)


def other_split(scene: Scene) -> None:
    """The settings name another seed for the halves."""
    edit_json(scene.run.root / "spec.json", split_seed=8)


def longer_budget(scene: Scene) -> None:
    """The settings name a shorter budget than the agent had."""
    edit_json(scene.run.root / "spec.json", budget_s=60.0)


def other_base_model(scene: Scene) -> None:
    """The base model was another."""
    edit_json(scene.run.record_path("setup"), model_digest="0" * 64)
    scene.event("run_opened", lambda fields: fields.update(model_digest="0" * 64))


def other_data(scene: Scene) -> None:
    """A question of the eval set is another."""
    path = next((scene.settings.root / "data-of").rglob("eval.jsonl"))
    path.write_text(path.read_text().replace("What is 1 + 1", "What is 1 + 2"))


def edited_log(scene: Scene) -> None:
    """A line is gone from the agent's log."""
    (scene.run.logs / "agent.log").write_text("nothing happened\n")


def removed_log(scene: Scene) -> None:
    """The agent's log is gone."""
    (scene.run.logs / "agent.log").unlink()


def edited_code(scene: Scene) -> None:
    """The history of the agent's code has another last commit."""
    git = ["git", "-C", str(scene.run.code), "-c", "user.name=a", "-c", "user.email=a@localhost"]
    (scene.run.code / "train.py").write_text("print('harmless')\n")
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "x"], check=True)


def rewritten_code(scene: Scene) -> None:
    """The history of the agent's code is another one, and the ledger names its commits."""
    shutil.rmtree(scene.run.code / ".git")
    git = ["git", "-C", str(scene.run.code), "-c", "user.name=a", "-c", "user.email=a@localhost"]
    subprocess.run([*git, "init", "--quiet", "--initial-branch=main"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "x"], check=True)
    done = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    scene.event("submission_accepted", lambda fields: fields.update(code_revision=done.stdout.strip()))


def cut_off(scene: Scene) -> None:
    """The last entries of the ledger are gone, with their signatures."""
    scene.events(lambda rows: rows[:-3])
    path, last = scene.run.root / SIGNATURES, len(scene.run.ledger.rows())
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines() if json.loads(line)["seq"] <= last))


def removed_refusal(scene: Scene) -> None:
    """A refused submission is gone: from the ledger and the record."""
    scene.events(lambda rows: [row for row in rows if row[1] != SubmissionRefused.kind])
    edit_json(scene.run.record_path("execute"), refused=0)


def deleted_submission(scene: Scene) -> None:
    """The last submission that does not count is gone: from the ledger and the record, with its files."""
    best, accepted = _best(scene), scene.run.ledger.events(SubmissionAccepted)
    gone = next(event for event in reversed(accepted) if event.weights_digest != best)

    def without(rows: Rows) -> Rows:
        kept = [row for row in rows if gone.weights_digest != row[2].get("weights_digest")]
        return [row for row in kept if not (row[1] == "submission_received" and row[2]["receipt"] == gone.receipt)]

    scene.events(without)
    shutil.rmtree(scene.run.checkpoint(gone.weights_digest))
    scene.run.items(gone.weights_digest, "public").unlink()
    edit_json(scene.run.record_path("execute"), submissions=len(accepted) - 1)


def raised_validity(scene: Scene) -> None:
    """The validity is another word than the checks found."""
    path = scene.run.record_path("validity")
    record = json.loads(path.read_text())
    record["validity"]["word"] = "void" if record["validity"]["word"] != "void" else "valid"
    path.write_text(json.dumps(record))


def edited_mlflow_metric(scene: Scene) -> None:
    """A score in MLflow is better."""
    scene.sql("UPDATE latest_metrics SET value = 99 WHERE key = 'score'")


def edited_mlflow_interval(scene: Scene) -> None:
    """An interval in MLflow is narrower."""
    scene.sql("UPDATE latest_metrics SET value = value + 20 WHERE key = 'score_low'")


def edited_mlflow_tag(scene: Scene) -> None:
    """A tag of a submission in MLflow names other weights."""
    scene.sql("UPDATE tags SET value = 'ab' WHERE key = 'a2rl.weights_digest'")


def edited_mlflow_head(scene: Scene) -> None:
    """The ledger is a new chain, and MLflow's head is that of the new one."""
    new_chain(scene)
    scene.sql(f"UPDATE tags SET value = '{scene.run.ledger.rows()[-1].hash}' WHERE key = 'a2rl.ledger_head'")


def removed_signatures(scene: Scene) -> None:
    """The signatures are gone."""
    (scene.run.root / SIGNATURES).unlink()


def replaced_signatures(scene: Scene) -> None:
    """The signatures are by the operator's own key."""
    own = scene.settings.root / "own-key"
    make_key(own)
    (scene.run.root / SIGNATURES).unlink()
    add_signature(scene.run.root, Signer(own).sign(scene.run.id, scene.run.ledger.rows()))


def replayed_signatures(scene: Scene) -> None:
    """The signatures are those that the signer made for another run, of the same heads."""
    other, key = "gsm8k-test-2", SigningKey.load(scene.original.key)
    (scene.run.root / SIGNATURES).unlink()
    for row in scene.run.ledger.rows():
        head = Head(seq=row.seq, hash=row.hash)
        add_signature(scene.run.root, HeadSignature.make(other, head, row.at + 0.01, key))


def replaced_report(scene: Scene) -> None:
    """The report shows another score. `a2rl report` would draw it anew: see `UNDRAWN`."""
    page = scene.run.report.read_text()
    scene.run.report.write_text(page.replace("<footer>", "<h1>100.0 points</h1><footer>"))


FORGERIES: tuple[Forgery, ...] = (
    new_chain, moved_times, cut_off, better_private_score, better_public_score, edited_result, edited_ledger_score,
    result_without_score, other_time, unsigned_end,
    dropped_items, dropped_baseline_items, other_baseline, swapped_checkpoint, swapped_checkpoint_and_digest,
    other_base_model, other_data, other_split, longer_budget, removed_refusal, deleted_submission, raised_validity,
    edited_log, removed_log, edited_code, rewritten_code, replaced_report, edited_mlflow_metric,
    edited_mlflow_interval, edited_mlflow_tag, edited_mlflow_head, removed_signatures, replaced_signatures,
    replayed_signatures, invented_interval, invented_measure, invented_gain, score_without_items,
    result_of_no_submission,
)  # fmt: skip
UNDRAWN: frozenset[Forgery] = frozenset({replaced_report})
"""Forgeries after which there is no `a2rl report`, which would undo them."""
