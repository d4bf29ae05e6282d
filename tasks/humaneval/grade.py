r"""HumanEval's grader: one greedy answer, right if the function passes the published tests (pass@1).

A base model continues the prompt, as in the paper (arXiv 2107.03374, section 2.2), and is stopped where its function is
over: at a `class`, `def`, comment, `if` or `print` at the margin, or at the end of a code block. A model with a chat
template is asked in the reference's words (opencompass humaneval_openai_sample_evals_gen_dcae0e, which humaneval_gen
stands for), and stops by itself. The reference gives base models these words too and no stop strings, so that they are
judged on how they go on talking; its post-processing (humaneval_postprocess_v2) strips the indentation off an answer
that has no code block, and a function's body that is right can then not even be parsed.

What is run is the prompt and then the answer: all of it where it begins indented, and so continues the prompt; else its
first code block that defines the function, else its first code block (as the reference), else all of it. What neither
defines the function nor is indented is taken for its body, and indented. The tests are the published ones; the limit of
3 s is one on processor time here, so that a busy machine judges like an idle one.

Answers run in `a2rl.sandbox`, which says why a pass is one. Tests see a function's values, not its objects: an answer
that returns what is no plain data (a generator) fails.
"""

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from a2rl.files import read_jsonl
from a2rl.sampling import Completion, Message, Prompt, Sampler, SamplingParams
from a2rl.sandbox.pool import CodeCase, CodePool
from a2rl.score import ItemResult
from a2rl.task import Limits, Options

STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint", "\n```")
ASKED = (
    "Read the following function signature and docstring, and fully implement the function described. "
    "Your response should only contain the code for this function.\n"
)
BLOCK = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)(?:^[ \t]*```|\Z)", re.MULTILINE | re.DOTALL)
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
    return [
        Item(
            id=row["task_id"],
            prompt=row["prompt"],
            entry_point=row["entry_point"],
            canonical_solution=row["canonical_solution"],
            test=row["test"],
            group=row.get("group", ""),
        )
        for row in rows
    ]


def item_ids(hidden: Path) -> list[str]:
    """See `a2rl.task.Grader`."""
    return [item.id for item in items_of(hidden)]


def published_ids(hidden: Path) -> list[str]:
    """See `a2rl.task.PublishedGrader`."""
    return [item.id for item in published_items(hidden)]


def published_items(hidden: Path) -> list[Item]:
    """The agent's training half and the eval set; mini has the latter only."""
    return _items(hidden / "training.jsonl") + items_of(hidden)


def grade(sampler: Sampler, hidden: Path, ids: Sequence[str], limits: Limits, options: Options) -> list[ItemResult]:
    """See `a2rl.task.Grader`."""
    by_id = {item.id: item for item in items_of(hidden)}
    items = [by_id[item_id] for item_id in ids]
    chat = sampler.has_chat_template
    params = SamplingParams(max_new_tokens=limits.max_new_tokens, stop=() if chat else STOPS)
    return judged(items, sampler.generate([prompt(item, chat) for item in items], params))


def score_outputs(outputs: Mapping[str, str], hidden: Path, ids: Sequence[str]) -> list[ItemResult]:
    """See `a2rl.task.Grader`."""
    by_id = {item.id: item for item in published_items(hidden)}
    answered = [by_id[item_id] for item_id in ids if item_id in outputs]
    results = judged(answered, [Completion(outputs[item.id], "stop", 0, 0) for item in answered])
    found = {result.id: result for result in results}
    missing = "no completion was given"
    return [found.get(item_id) or ItemResult(id=item_id, verdict="errored", reason=missing) for item_id in ids]


def gold_outputs(hidden: Path) -> dict[str, str]:
    """See `a2rl.task.Grader`."""
    return {item.id: item.canonical_solution for item in items_of(hidden)}


def item_kinds(hidden: Path) -> dict[str, str]:
    """See `a2rl.task.KindsGrader`; the published problems are of one."""
    return {item.id: item.group for item in items_of(hidden)}


def prompt(item: Item, chat: bool) -> Prompt:
    """What the model is asked."""
    return (Message("user", ASKED + item.prompt),) if chat else item.prompt


def program(item: Item, completion: str) -> str:
    """What is run of an answer."""
    begun = completion.lstrip("\r\n")
    if begun.startswith((" ", "\t")) or not begun:
        return item.prompt + _cut(completion)
    blocks = BLOCK.findall(completion)
    defines = re.compile(rf"^def {re.escape(item.entry_point)}\b", re.MULTILINE)
    code = next((block for block in blocks if defines.search(block)), blocks[0] if blocks else completion)
    is_body = not defines.search(code) and not code.startswith((" ", "\t"))
    return item.prompt + (textwrap.indent(code, "    ") if is_body else code)


def _cut(completion: str) -> str:
    """Up to the first stop string, for completions that were made without them."""
    return completion[: min(place for stop in STOPS if (place := (completion + stop).find(stop)) >= 0)]


def judged(items: Sequence[Item], completions: Sequence[Completion]) -> list[ItemResult]:
    """Runs and tests the answers."""
    if not items:
        return []
    cases = [
        CodeCase(program(item, completion.text), item.entry_point, item.prompt, item.test)
        for item, completion in zip(items, completions, strict=True)
    ]
    with CodePool(most=len(cases)) as pool:
        outcomes = pool.judge(cases)
        # Only where it matters: there an answer that imports something unusual fails for the kernel's sake.
        measures = {} if pool.layers.landlock else {"answers judged without Landlock": 1.0}
    return [
        ItemResult(
            id=item.id,
            verdict="correct" if outcome.passed else "truncated" if completion.finish == "length" else "wrong",
            value=float(outcome.passed),
            answer=completion.text[:ANSWER_SHOWN],
            tokens=completion.tokens,
            group=item.group,
            measures=measures,
        )
        for item, completion, outcome in zip(items, completions, outcomes, strict=True)
    ]
