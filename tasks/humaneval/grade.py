r"""HumanEval's grader: one greedy answer, right if the function passes the published tests (pass@1).

A base model continues the prompt, as in the paper (arXiv 2107.03374, section 2.2), and is stopped at the end of its
function: at a `class`, `def`, comment, `if` or `print` without indentation, or at the end of a code block. A model with
a chat template gets the reference's prompt (opencompass humaneval_openai_sample_evals_gen_dcae0e, which humaneval_gen
refers to), and stops by itself. The reference uses that prompt for base models as well, without stop strings, so that
their text after the function counts; its post-processing (humaneval_postprocess_v2) removes the indentation of an
answer without a code block, so that a correct body of a function cannot even be parsed.

The program is the prompt and then the code of the answer: program.py says which. With the option `prompts: faithful` it
is the first code block, or else the whole answer, as in the reference. The tests are the published ones; the
limit of 3 s is on processor time here, so that a busy machine judges like an idle one.

Answers run in `a2rl.code_execution`, which explains why they cannot forge a pass. Tests see the values of a function,
not its objects: an answer that returns something other than plain data (such as a generator) fails.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from a2rl.code_execution.pool import CodeCase, CodePool, Outcome
from a2rl.core.files import read_jsonl
from a2rl.sampling import Completion, Sampler, SamplingParams, as_prompt
from a2rl.scoring.score import ItemResult, Verdict
from a2rl.task_api.contract import Limits, Options
from tasks.humaneval.program import STOPS, faithful_program, program
from tasks.humaneval.prompts import prompt

ANSWER_SHOWN = 400


@dataclass(frozen=True, slots=True)
class Item:
    """A function to write."""

    id: str
    prompt: str
    """Imports, helper functions, signature and docstring."""
    entry_point: str
    canonical_solution: str
    test: str
    group: str = ""


def items_of(hidden: Path) -> list[Item]:
    """The eval set; an item's id is its published one."""
    return _items(hidden / "eval.jsonl")


def _items(path: Path) -> list[Item]:
    rows = read_jsonl(path) if path.exists() else []
    fields = ("prompt", "entry_point", "canonical_solution", "test")
    return [
        Item(id=row["task_id"], group=row.get("group", ""), **{field: row[field] for field in fields}) for row in rows
    ]


def item_ids(hidden: Path) -> list[str]:
    """See `a2rl.task_api.contract.Grader`."""
    return [item.id for item in items_of(hidden)]


def published_ids(hidden: Path) -> list[str]:
    """See `a2rl.task_api.contract.PublishedGrader`."""
    return [item.id for item in published_items(hidden)]


def published_items(hidden: Path) -> list[Item]:
    """Returns the training half and the eval set; mini has only the latter."""
    return _items(hidden / "training.jsonl") + items_of(hidden)


def grade(sampler: Sampler, hidden: Path, ids: Sequence[str], limits: Limits, options: Options) -> list[ItemResult]:
    """See `a2rl.task_api.contract.Grader`."""
    by_id = {item.id: item for item in items_of(hidden)}
    items = [by_id[item_id] for item_id in ids]
    chat, faithful = sampler.has_chat_template, options.get("prompts") == "faithful"
    params = SamplingParams(max_new_tokens=limits.max_new_tokens, stop=() if chat or faithful else STOPS)
    asked = [as_prompt(prompt(item.prompt, chat, faithful)) for item in items]
    return judged(items, sampler.generate(asked, params), faithful_program if faithful else program)


def score_outputs(outputs: Mapping[str, str], hidden: Path, ids: Sequence[str], limits: Limits) -> list[ItemResult]:
    """See `a2rl.task_api.contract.Grader`."""
    by_id = {item.id: item for item in published_items(hidden)}
    answered = [by_id[item_id] for item_id in ids if item_id in outputs]
    results = judged(answered, [Completion(outputs[item.id], "stop", 0, 0) for item in answered])
    found = {result.id: result for result in results}
    missing = "no completion was given"
    return [found.get(item_id) or ItemResult(id=item_id, verdict="errored", reason=missing) for item_id in ids]


def gold_outputs(hidden: Path) -> dict[str, str]:
    """See `a2rl.task_api.contract.Grader`."""
    return {item.id: item.canonical_solution for item in items_of(hidden)}


def item_kinds(hidden: Path) -> dict[str, str]:
    """See `a2rl.task_api.contract.KindsGrader`; the published problems have one kind."""
    return {item.id: item.group for item in items_of(hidden)}


def judged(
    items: Sequence[Item], completions: Sequence[Completion], made: Callable[[str, str, str], str] = program
) -> list[ItemResult]:
    """Runs and tests the answers, as the programs that `made` makes of them."""
    if not items:
        return []
    cases = [
        CodeCase(made(item.prompt, item.entry_point, completion.text), item.entry_point, item.prompt, item.test)
        for item, completion in zip(items, completions, strict=True)
    ]
    with CodePool(most=len(cases)) as pool:
        outcomes = pool.test(cases)
        # Reported because without Landlock an answer that imports an unusual module fails.
        measures = {} if pool.layers.landlock else {"answers judged without Landlock": 1.0}
    return [
        ItemResult(
            id=item.id,
            verdict=_verdict(outcome, completion),
            value=float(outcome.passed),
            answer=completion.text[:ANSWER_SHOWN],
            reason="" if outcome.is_sure else outcome.why,
            tokens=completion.tokens,
            group=item.group,
            measures=measures,
        )
        for item, completion, outcome in zip(items, completions, outcomes, strict=True)
    ]


def _verdict(outcome: Outcome, completion: Completion) -> Verdict:
    if not outcome.is_sure:
        return "errored"
    return "correct" if outcome.passed else "truncated" if completion.finish == "length" else "wrong"
