"""Audits a bundle of a stranger in processes of their own, which cannot harm the reader.

They can write to nothing but a scratch folder (Landlock), and read only the system, the reader's code and models, and
the bundle. They have no privileges, no keys and no network. Only a process that grades anew with a judge of the
reader's own params.yaml gets the network and the keys. `python -P -m a2rl.bundle.confined` is such a process.
"""

import json
import os
import resource
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import a2rl
from a2rl.anchor.signatures import read_signatures
from a2rl.bundle.audit import SHARED, Audit, audit, graded_anew, open_bundle, reopen_bundle
from a2rl.config.params import load_params
from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.event_log import PeriodicThread
from a2rl.core.files import MACHINE_ERRORS, FrozenModel, file_digest
from a2rl.core.processes import POLL_INTERVAL_S, Child, child_environment, is_stopped, module_command, tied_to_parent
from a2rl.core.settings import Settings
from a2rl.grading.outputs import OnProgress, Progress, ignore_progress
from a2rl.judge.params import JudgeParams
from a2rl.linux import landlock
from a2rl.linux.gpus import device_files
from a2rl.linux.resources import lower_limit
from a2rl.llm.keys import grader_keys, keys_message, receive_keys
from a2rl.recording.code_history import GitMissingError, git_program
from a2rl.results.manifest import LABELS, read_manifest
from a2rl.results.report.page import report_files
from a2rl.results.suite.run_summary import RunSummary, summaries
from a2rl.results.verify import Trust, commit_here, read_published
from a2rl.run.directory import RunDir
from a2rl.run.events import RunOpened
from a2rl.sandbox.command import SHARED_MEMORY
from a2rl.sandbox.namespaces import drop_capabilities, leave_network
from a2rl.sandbox.policy import DEVICES, KERNEL_SWITCHES, SYSTEM, readable_parts
from a2rl.sandbox.syscall_rules import install_agent_filter
from a2rl.task_api.catalog import load_task
from a2rl.task_api.data import can_draw

MAX_MEMORY_BYTES = 16 << 30
MAX_CPU_S = 3600
"""Of the checks. A grade has limits of its own."""
MAX_PAGE_CHARS = 4 << 20
"""A longer report is not shown on a leaderboard."""
MAX_SAID_CHARS = 64 << 20
"""A process that would say more says only that: the reader keeps and shows what it says."""

NO_TEXT = "its path is not in UTF-8: rename it"


class Work(FrozenModel):
    """What a process is told to do."""

    bundle: Path
    scratch: Path
    max_bytes: int
    keys: frozenset[str]
    published: Path | None
    gpu_locks: Path
    checked: Audit | None = None
    """What the checks found, if it is to grade anew; else it makes the checks."""
    network: bool = False
    shows: bool = False
    """Whether it also says what a leaderboard shows of a sound run."""


class Shown(FrozenModel):
    """What a leaderboard shows of a sound run: made here, with nothing of the bundle's own report."""

    summary: RunSummary
    keys: frozenset[str]
    """The public keys that signed the ledger to its end."""
    page: str
    """The report; empty if it cannot be drawn with this checkout."""
    data_digest: str = ""
    """The digest of the eval set; empty if it was drawn, because then it follows from the draw."""


class Done(FrozenModel):
    """What a process found."""

    audit: Audit
    judge: JudgeParams | None = None
    """Who judges the answers of the run."""
    shown: Shown | None = None


def audit_bundle(
    bundle: Path,
    settings: Settings,
    keys: frozenset[str],
    published: Path | None,
    grades_anew: bool,
    max_bytes: int,
    on_progress: OnProgress = ignore_progress,
    shows: bool = False,
) -> Done:
    """Audits a bundle, which anybody may have made.

    Args:
        keys: The public keys whose signatures count.
        grades_anew: Whether to grade the checkpoint that counts, and the base model, again, if the run is sound.
        on_progress: Called with how far a grade is.
        shows: Whether to find what a leaderboard shows, too.

    Raises:
        UsageError: It is not a bundle, or its audit takes more than its limits.
        InfrastructureError: This machine cannot confine the audit, or the disk or git failed.
    """
    if not is_text(bundle):
        raise UsageError(NO_TEXT)
    with tempfile.TemporaryDirectory(prefix="a2rl-audit-") as folder:
        work = Work(
            bundle=bundle.resolve(),
            scratch=Path(folder).resolve(),
            max_bytes=max_bytes,
            keys=keys,
            published=published.resolve() if published else None,
            gpu_locks=settings.gpu_locks,
            shows=shows,
        )
        done = _run(work, settings, on_progress)
        if not grades_anew or not done.audit.sound:
            return done
        asks = done.judge is not None and not done.judge.serve and load_params(settings.root).knows_judge(done.judge)
        again = _run(work.model_copy(update={"checked": done.audit, "network": asks}), settings, on_progress)
        return done.model_copy(update={"audit": again.audit})


def is_text(path: Path) -> bool:
    """Says whether a path is text, which it must be so that others can be told of it."""
    return not any("\ud800" <= char <= "\udfff" for char in str(path.resolve()))


def _run(work: Work, settings: Settings, on_progress: OnProgress) -> Done:
    own = {"TMPDIR": str(work.scratch), "HOME": str(work.scratch), "HF_HOME": str(_hub_home(settings))}
    command, environment = (
        tied_to_parent(module_command("a2rl.bundle.confined")),
        {**child_environment(settings), **own},
    )
    with tempfile.NamedTemporaryFile() as errors:
        child = Child(command, environment, work.scratch, Path(errors.name), answers=True)
        try:
            child.tell(keys_message(grader_keys(settings) if work.network else {}))
            child.tell(work.model_dump_json())
            with PeriodicThread("stopping an audit", lambda: is_stopped() and child.end(0.0), lambda: POLL_INTERVAL_S):
                for line in child.answers:
                    message = json.loads(line)
                    if "done" in message:
                        return Done.model_validate(message["done"])
                    if "problem" in message:
                        raise (UsageError if message["usage"] else InfrastructureError)(message["problem"])
                    on_progress(Progress(*message["progress"]))
        finally:
            child.end_group(0.0)
        if child.wait() == -signal.SIGXCPU:
            raise UsageError(f"its audit takes more than {MAX_CPU_S:,} s of processor time")
        said = errors.read()[-2000:].decode(errors="replace").strip().splitlines()
    raise InfrastructureError(f"the audit's process ended without a result: {said[-1] if said else 'it was killed'}")


def main(stdin: TextIO, stdout: TextIO) -> None:
    """Does the work that is written on the standard input, confined."""
    receive_keys(stdin)
    work, settings = Work.model_validate_json(stdin.readline()), Settings.load()
    commit_here()  # it remembers the commit, which the confined process could not read

    def tell(**message: Any) -> None:
        text = json.dumps(message)
        checkout = f"{work.scratch}/checkout/"
        for path, name in ((f"{checkout}runs/", ""), (checkout, ""), (str(work.bundle), work.bundle.name)):
            text = text.replace(json.dumps(path)[1:-1], json.dumps(name)[1:-1])  # others may read it
        if len(text) > MAX_SAID_CHARS:
            raise UsageError("the bundle has more findings, names or figures than any run has")
        stdout.write(text + "\n")
        stdout.flush()

    try:
        _confine(work, settings)
        tell(done=_do(work, settings, lambda progress: tell(progress=progress)).model_dump(mode="json"))
    except Exception as error:  # noqa: BLE001 - what is read may be forged, in any way
        tell(problem=str(error) or repr(error), usage=not _is_machines(error, work))


def _is_machines(error: Exception, work: Work) -> bool:
    """Says whether another machine, or this one at another time, might not fail so; else it is the bundle's fault."""
    if isinstance(error, MemoryError):
        return work.checked is not None  # the checks have a limit of their own, far above what they need
    return isinstance(error, InfrastructureError) or (isinstance(error, OSError) and error.errno in MACHINE_ERRORS)


def _do(work: Work, settings: Settings, on_progress: OnProgress) -> Done:
    if work.checked is not None:
        opened = reopen_bundle(work.scratch, settings)
        return Done(audit=graded_anew(work.checked, opened.run, opened.settings, opened.absent, on_progress))
    opened = open_bundle(work.bundle, work.scratch, settings, work.max_bytes)
    heads = read_published(work.published, opened.run.id) if work.published else ()
    found = audit(opened.run, Trust(work.keys, None, heads), None, opened.absent)
    if not found.sound:
        return Done(audit=found)
    shown = shown_of(opened.run, opened.settings) if work.shows else None
    return Done(audit=found, judge=opened.run.spec.judge, shown=shown)


def shown_of(run: RunDir, settings: Settings) -> Shown:
    """Returns what a leaderboard shows of a run that is sound.

    Raises:
        UsageError: Its figures cannot be read, or this checkout does not have its task.
    """
    load_task(run.spec.task, settings.root)  # a run without a result could name any, and each is a column of the table
    found, unreadable = summaries([run])
    if not found:
        raise UsageError(f"the figures of the run cannot be read: {unreadable[run.id]}")
    page = ""
    with suppress(Exception):  # its agent is not one of this checkout, or what the page shows is forged
        page = report_files(run, settings)[run.report.name]
    signatures = read_signatures(run.root)
    summary = found[0]
    if not _has_labels_of_its_end(run):
        summary = summary.model_copy(update={"route": (), "failures": ()})
    keys = frozenset(each.key for each in signatures if each.seq == signatures[-1].seq)
    drawn = run.spec.draw is not None and can_draw(run.spec.task, run.spec.variant)
    data = next((event.data_digest for event in run.ledger.events(RunOpened) if not drawn), "")
    return Shown(summary=summary, keys=keys, page=page if len(page) <= MAX_PAGE_CHARS else "", data_digest=data)


def _has_labels_of_its_end(run: RunDir) -> bool:
    """Whether the labels are those with which the run ended: nothing else vouches for them."""
    manifest, labels = read_manifest(run), run.record_path("labels")
    return manifest is not None and labels.exists() and file_digest(labels) == manifest.files.get(LABELS)


def _confine(work: Work, settings: Settings) -> None:
    """Gives up what the work does not need.

    Raises:
        InfrastructureError: This machine has not what that needs.
    """
    lower_limit(resource.RLIMIT_CORE, 0)
    if work.checked is None:
        lower_limit(resource.RLIMIT_AS, MAX_MEMORY_BYTES)
        lower_limit(resource.RLIMIT_CPU, MAX_CPU_S, margin=5)  # first a signal that says why, then a kill
    os.environ.pop("SSH_AUTH_SOCK", None)
    try:
        away = not work.network and _left_network()
        landlock.restrict(_rights(work, settings, away), 1 if work.network or away else landlock.NETWORK_ABI)
        drop_capabilities()
        if not work.network:
            install_agent_filter(broker=False)
    except OSError as error:
        raise InfrastructureError(
            f"this machine cannot keep the audit of a bundle from doing harm ({error.strerror}): it needs Landlock and "
            "seccomp, and Linux 6.7 or network namespaces; audit it on another machine"
        ) from error


def _left_network() -> bool:
    try:
        leave_network()
    except OSError:
        return False
    return True


def _rights(work: Work, settings: Settings, away: bool) -> landlock.AccessRights:
    grades = work.checked is not None
    use = [Path("/dev", name) for name in DEVICES]
    if grades and (gpus := device_files()):
        may_change_kernel = os.geteuid() == 0 and any(os.access(switch, os.W_OK) for switch in KERNEL_SWITCHES)
        use += [*gpus, *([] if may_change_kernel else [Path("/proc")])]  # CUDA writes the names of its threads there
    folders = (Path(a2rl.__file__).parent.parent, settings.root)
    read = {Path(each) for each in (*SYSTEM, "/etc", "/sys", "/opt", sys.prefix, sys.base_prefix, sys.base_exec_prefix)}
    read |= {(folder / name).resolve() for folder in folders for name in SHARED}
    with suppress(GitMissingError):  # no bundle without code needs it
        prefix = Path(git_program()).resolve().parent.parent
        read |= {*readable_parts(prefix, settings), prefix / "libexec" / "git-core"}
    read |= {path.resolve() for pattern in ("*", "*/*") for path in settings.models.glob(pattern)}
    hub = _hub_home(settings) / "hub"  # the models; beside it is the reader's token
    read |= {settings.vllm_python.parent.parent, hub, work.bundle, work.published or work.bundle}
    return landlock.AccessRights(
        read=tuple(read),
        write=(work.scratch, *([work.gpu_locks] if grades else ())),
        use=tuple(use),
        share=(Path(SHARED_MEMORY),),
        network=work.network or away,
        listen=True,
    )


def _hub_home(settings: Settings) -> Path:
    home = Path(settings.environ.get("HOME") or "/root")
    return Path(settings.environ.get("HF_HOME") or home / ".cache" / "huggingface")


if __name__ == "__main__":
    main(sys.stdin, sys.stdout)
