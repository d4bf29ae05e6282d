r"""Makes the program that is run for an answer, of the code that a careful person would take from it.

The rule: thoughts and what follows the model's turn do not count. An answer that begins with indented code continues
the prompt, up to the end of the function. Else the code is the last block that defines the function, with what it needs
of the blocks before it; a block that is introduced as an alternative comes after all others. Else it is the whole
answer, else the lines that define the function between prose, else a block or the answer as the function's body. The
first of these that is valid Python after the prompt is run; nothing is chosen by what it computes.

    program(prompt, "total", "Sure!\n```python\ndef total(xs):\n    return sum(xs)```")
"""

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile

from a2rl.core.model_text import answer_of, code_tree

STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint", "\n```")
LONGEST = 20_000
"""Maximum number of characters that are read."""
BLOCKS = 8
"""Maximum number of code blocks that are read, from the last one."""
TRIES = 24
"""Maximum number of candidates."""
_INDENT = "    "
_BLOCK = re.compile(
    r"(?:(?<!`)`{3,}|(?<!~)~{3,})[ \t]*+[\w+#.-]*+[ \t]*+\n(.*?)(?:`{3}|~{3}|\Z)|(?<!`)`{3}([^`\n]+)`{3}", re.DOTALL
)
_BEGINS = (
    r"from [\w.]+ import |import [\w.]+(?: as \w+)?(?:, ?[\w., ]++)?\s*+(?:#.*)?$"
    r"|(?:async )?def \w|class \w+\s*[(:]|@\w"
)
_GOES_ON = rf"\s|$|[)\]}}]|[A-Za-z_]\w* ?(?::[^=\n]*)?= ?|#|'''|\"\"\"|{_BEGINS}"
_ALTERNATIVE = re.compile(
    r"\balternative(?:ly)?\b|\banother (?:way|approach|option|version|solution|implementation)\b|\b(?:can|could) also\b"
    r"|\bor\W{0,8}\Z",
    re.IGNORECASE,
)
_FUTURE = re.compile(r"^from __future__ import .*$", re.MULTILINE)


def program(prompt: str, function: str, answer: str) -> str:
    """Returns the program that is run for an answer.

    Args:
        prompt: Imports, helper functions, signature and docstring of the function.
        answer: The text that the model wrote after the prompt.
    """
    answer = answer_of(answer)[:LONGEST]
    programs = [_together(prompt, code) for code in islice(_candidates(function, answer), TRIES)]
    return next((each for each in programs if code_tree(each)), programs[0])


def faithful_program(prompt: str, _function: str, answer: str) -> str:
    """Returns the program that the reference runs, for the option `prompts: faithful` (humaneval_postprocess_v2)."""
    blocks = re.findall(r"```\w*\n(.*?)```", answer, re.DOTALL)
    return prompt + (blocks[0] if blocks else answer).lstrip()


def _candidates(function: str, answer: str) -> Iterator[str]:
    """Yields what may be the code of an answer, the likeliest first."""
    defines = re.compile(rf"^([ \t]*)(?:async )?def {re.escape(function)}\b", re.MULTILINE)
    begun, continued = answer.lstrip("\n"), _cut(answer)
    if not begun or (begun[0].isspace() and continued.strip() and not defines.match(begun)):
        yield from _bodies(continued)
        yield from _bodies("\n".join(takewhile(lambda line: line[:1].isspace() or not line, begun.split("\n"))))
    fenced = list(_BLOCK.finditer(answer))[-BLOCKS:]
    blocks = [textwrap.dedent(each[1] or each[2] or "") for each in fenced]
    before = [
        answer[end : each.start()] for end, each in zip([0, *(each.end() for each in fenced)], fenced, strict=False)
    ]
    for place in sorted(
        reversed(range(len(blocks))), key=lambda place: bool(_ALTERNATIVE.search(before[place][-300:]))
    ):
        if defines.search(blocks[place]):
            yield "\n".join([*_needed(blocks[:place], blocks[place]), blocks[place]])
    if found := defines.search(answer):
        yield answer
        yield from (code for code in _definitions(answer.split("\n")) if defines.search(code))
        inside = takewhile(
            lambda line: line.startswith(found[1]) or not line.strip(), answer[found.start() :].split("\n")
        )
        yield textwrap.dedent("\n".join(inside))
    else:
        for code in (*blocks, answer, *re.findall(r"(?:^[ \t]+\S.*\n?|^\n)+", answer, re.MULTILINE)[:1]):
            yield from _bodies(code)


def _cut(completion: str) -> str:
    """Cuts a completion at the first stop string, if it was made without them."""
    return completion[: min(place for stop in STOPS if (place := (completion + stop).find(stop)) >= 0)]


def _bodies(code: str) -> Iterator[str]:
    """Yields a function's body as it is, indented, and with its first line indented (whose spaces are easily lost)."""
    if code.lstrip("\n")[:1].isspace():
        yield code
    yield textwrap.indent(textwrap.dedent(code), _INDENT)
    yield _INDENT + code.lstrip()


def _definitions(lines: list[str]) -> Iterator[str]:
    """Yields the runs of lines that define something, without the prose around them."""
    while lines:
        if re.match(_BEGINS, lines[0]):
            run = list(takewhile(lambda line: re.match(_GOES_ON, line), lines))
            yield "\n".join(run)
            lines = lines[len(run) :]
        else:
            lines = lines[1:]


def _needed(others: Sequence[str], block: str) -> list[str]:
    """Returns the blocks that only import and define, and make a name that this block uses, or one that it needs."""
    trees = [code_tree(other) or ast.Module([], []) for other in others]
    made = [[_made(each) for each in tree.body] for tree in trees]
    names = [set[str]().union(*each) if all(each) else set() for each in made]
    used, needed = {"*"} | _used(code_tree(block)), set[int]()
    while more := {place for place, each in enumerate(names) if used & each} - needed:
        needed |= more
        used = used.union(*(_used(trees[place]) for place in more))
    return [others[place] for place in sorted(needed)]


def _used(tree: ast.AST | None) -> set[str]:
    """Returns the names in a program."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} if tree else set()


def _made(statement: ast.stmt) -> set[str]:
    """Returns the names that a definition, an import or a constant makes; none for other statements."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {each.asname or each.name.partition(".")[0] for each in statement.names}
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        # What calls something may be a trial of the function, which is not defined yet.
        is_constant = not any(isinstance(node, ast.Call) for node in ast.walk(statement))
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return set[str]().union(*map(_used, targets)) if is_constant else set()
    return {statement.name} if hasattr(statement, "name") else set()


def _together(prompt: str, code: str) -> str:
    """Returns the code after the prompt; imports from `__future__` must come first."""
    future = "".join(f"{line}\n" for line in _FUTURE.findall(code))
    return future + prompt + _FUTURE.sub("", code)
