"""Why a run did not improve the model, in the paper's types, with the lines that show it."""

from collections.abc import Sequence

from a2rl.labels.logs import Line, LogSigns
from a2rl.labels.records import Failure
from a2rl.labels.routes import POLICY_GRADIENTS, Chain, Evidence
from a2rl.run.records import ExecuteRecord, GradeRecord

LOG = "logs/agent.log"


def failures_of(graded: GradeRecord, executed: ExecuteRecord | None, chain: Chain, signs: LogSigns) -> list[Failure]:
    """Returns the reasons, the most certain first; none for a run that improved the model."""
    if graded.verdict == "improved":
        return []
    found = [
        *_copy(graded, chain),
        *_no_submission(graded, executed, signs),
        *_crash(graded, executed, signs),
        *_diverged(graded, signs),
        *_no_reward(chain, signs),
    ]
    found.sort(key=lambda failure: -failure.confidence)
    return found or [Failure(kind="unknown", confidence=0.3)]


def _copy(graded: GradeRecord, chain: Chain) -> list[Failure]:
    if graded.submission_id is None or not chain or chain[-1].route != "copy":
        return []
    return [Failure(kind="copy_model_fallback", confidence=chain[-1].confidence, evidence=chain[-1].evidence)]


def _no_submission(graded: GradeRecord, executed: ExecuteRecord | None, signs: LogSigns) -> list[Failure]:
    if graded.verdict != "no submission" or executed is None or executed.ended not in {"deadline", "quota"}:
        return []
    what = f"the agent was ended ({executed.ended}) after {executed.elapsed_s:.0f} s without a valid submission"
    evidence = Evidence(source="ledger", what=what, at_s=executed.elapsed_s)
    return [Failure(kind="timeout_no_submission", confidence=0.9, evidence=(evidence, *_lines(signs.errors[-1:])))]


def _crash(graded: GradeRecord, executed: ExecuteRecord | None, signs: LogSigns) -> list[Failure]:
    by_others = executed is not None and executed.responsible in {"api", "machine"}
    crashed = executed is not None and executed.ended == "crashed" and not by_others
    if by_others or not (crashed or (signs.errors and graded.verdict in {"no submission", "failed"})):
        return []
    ended = []
    if executed is not None and crashed:
        what = f"the agent crashed with exit code {executed.exit_code}"
        ended = [Evidence(source="ledger", what=what, at_s=executed.elapsed_s)]
    confidence = 0.85 if crashed and signs.errors else 0.7 if crashed else 0.5
    return [Failure(kind="code_error_runtime", confidence=confidence, evidence=(*ended, *_lines(signs.errors[-3:])))]


def _diverged(graded: GradeRecord, signs: LogSigns) -> list[Failure]:
    if signs.diverged is not None:
        return [Failure(kind="training_diverged", confidence=0.8, evidence=_lines([signs.diverged]))]
    if graded.verdict == "worse":
        what = f"the best submission is {-(graded.improvement or 0.0):.1f} points below the base model"
        return [Failure(kind="training_diverged", confidence=0.5, evidence=(Evidence(source="ledger", what=what),))]
    return []


def _no_reward(chain: Chain, signs: LogSigns) -> list[Failure]:
    if signs.flat_reward is None or not any(label.route in POLICY_GRADIENTS for label in chain):
        return []
    return [Failure(kind="rollout_logic_wrong", confidence=0.6, evidence=_lines([signs.flat_reward]))]


def _lines(lines: Sequence[Line]) -> tuple[Evidence, ...]:
    return tuple(Evidence(source="log", what=line.text[:300], file=LOG, line=line.number) for line in lines)
