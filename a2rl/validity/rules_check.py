"""Checks of the rules on hosts and teachers, and the weight that the rules give to findings."""

import json
from collections.abc import Iterable, Iterator

from a2rl.run.rules import rules
from a2rl.validity.evidence import RunEvidence
from a2rl.validity.finding import Evidence, Finding

SHOWN = 10


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


def weighed(findings: Iterable[Finding]) -> list[Finding]:
    """Returns the findings with the levels of the rules."""
    levels = rules().levels
    return [
        each if levels.get(each.kind, each.level) == each.level
        else Finding.of(each.kind, levels[each.kind], each.text, *each.evidence)
        for each in findings
    ]  # fmt: skip
