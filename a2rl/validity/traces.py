"""Checks of what an agent left behind: the code of its submissions, keys in what it wrote, the LLMs and hosts that it
asked for."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from a2rl.core.event_log import EventLog
from a2rl.core.files import read_jsonl
from a2rl.recording.processes import FULL
from a2rl.run.events import SubmissionAccepted
from a2rl.run.rules import rules
from a2rl.sandbox.agent_log import MAX_BYTES as MAX_PRINTED
from a2rl.validity.evidence import RunEvidence
from a2rl.validity.finding import Evidence, Finding

REMOVED = re.compile(rb"\[secret(?: [A-Za-z0-9_]{1,80})?\]")
"""What a2rl writes in place of a key, in everything that it keeps of a run."""
RECORDS = ("llm.jsonl", "proxy.jsonl", "services.jsonl", "processes.jsonl", "output.jsonl", "telemetry.jsonl")
"""The logs that are written while an agent works, each up to a maximum size."""
MAX_PLACES = 20
MAX_LINE = 1 << 20
"""Bytes of a line that are looked at."""
SHOWN = 10


def code(evidence: RunEvidence) -> Iterator[Finding]:
    """Flags a result whose submission came without any code of the agent's."""
    best = evidence.best
    if best is None or best.submission.code_revision is not None:
        return
    number = best.submission.submission_id
    places = [
        Evidence(what="the submission", seq=entry.seq, digest=entry.event.weights_digest)
        for entry in evidence.entries
        if isinstance(entry.event, SubmissionAccepted) and entry.event.submission_id == number
    ]
    text = f"No code was recorded for submission {number}, which is the result, so nobody can tell how it was made."
    yield Finding.of("no-code", "flag", text, *places)


def full_records(evidence: RunEvidence) -> Iterator[Finding]:
    """Flags a run whose agent filled a record: what it did after that, no check can see."""
    run = evidence.run
    full = [path for name in RECORDS if EventLog(path := run.logs / name).is_full]
    full += [path for path in _kept(evidence) if path.is_file() and path.stat().st_size >= MAX_PRINTED]
    processes = run.logs / "processes.jsonl"
    if processes.is_file() and any(row.get("event") == FULL for row in read_jsonl(processes)):
        full.append(processes)
    if full:
        places = [Evidence(what="a full record", file=str(path.relative_to(run.root))) for path in full]
        text = "The agent filled a record of what it did, so what it did afterwards is not recorded there."
        yield Finding.of("full-record", "flag", text, *places)


def leaked_keys(evidence: RunEvidence) -> Iterator[Finding]:
    """Flags a run whose agent wrote a key; a2rl has removed it, and leaves a mark where it stood."""
    found: list[Evidence] = []
    for path in _kept(evidence):
        found.extend(_marks(path, evidence.run.root))
        if len(found) >= MAX_PLACES:
            break
    if found:
        text = (
            "The agent wrote an API key, which was removed: it had a key that it should not have had, or guessed one."
        )
        yield Finding.of("leaked-key", "flag", text, *found[:MAX_PLACES])


def _kept(evidence: RunEvidence) -> Iterator[Path]:
    """Yields the files with what the agent printed and said."""
    run = evidence.run
    yield run.agent_log
    yield run.trajectory
    yield from sorted(run.logs.glob("transcript-*.jsonl"))


def _marks(path: Path, root: Path) -> Iterator[Evidence]:
    if not path.is_file():
        return
    name = str(path.relative_to(root))
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE):
            number += 1
            if (mark := REMOVED.search(line)) is not None:
                yield Evidence(what="a removed key", value=mark[0].decode(), file=name, line=number)


def teachers(evidence: RunEvidence) -> Iterator[Finding]:
    """Notes LLMs that the agent used besides its driver and those that the rules allow."""
    executed, driver = evidence.execute, evidence.run.spec.driver
    used = executed.seen.other_models(driver) if executed and executed.seen else {}
    others = {name: use for name, use in used.items() if name not in rules().teachers.allowed}
    if others:
        places = [
            Evidence(what=f"requests to {name}", value=use.requests, file="logs/llm.jsonl")
            for name, use in list(others.items())[:SHOWN]
        ]
        text = f"The agent used {len(others)} LLM{'s' if len(others) > 1 else ''} besides its driver."
        yield Finding.of("other-llm", "note", text, *places)


def hosts(evidence: RunEvidence) -> Iterator[Finding]:
    """Notes hosts that the agent tried to reach and was refused."""
    refused: dict[str, int] = {}
    for line, host in _refused(evidence):
        refused.setdefault(host, line)
    if refused:
        places = [
            Evidence(what=host, file="logs/proxy.jsonl", line=line) for host, line in list(refused.items())[:SHOWN]
        ]
        text = f"The agent tried to reach {len(refused)} host{'s' if len(refused) > 1 else ''} that it may not reach."
        yield Finding.of("refused-hosts", "note", text, *places)


def _refused(evidence: RunEvidence) -> Iterator[tuple[int, str]]:
    path = evidence.run.logs / "proxy.jsonl"
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
            except ValueError:
                continue  # the last line of a process that was killed
            if isinstance(row, dict) and row.get("allowed") is False:
                yield number, str(row.get("host"))
