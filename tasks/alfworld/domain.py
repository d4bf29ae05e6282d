"""The PDDL domain and the text grammar of the released games, for writing games of our own that both engines accept.

Both texts belong to ALFWorld, so neither is in this repository. The alfworld wheel has another edition of them; the
released ones (json_2.1.1) result from the few edits below, and digests verify the result.
"""

import json
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from a2rl.core.errors import TaskDefinitionError, UsageError
from tasks.alfworld.alfred import digests

_SINK = "(receptacleType ?r SinkType)"
_HELP = re.compile(r'"#help\.feedback#";\s+grammar :: """(.*?)""";', re.DOTALL)
_NO_TASK = "UNKNOWN GOAL."


@cache
def released_domain() -> str:
    """Returns the `pddl_domain` of every released game."""
    text = _shipped("alfred.pddl").replace(f";{_SINK}", _SINK)  # cleaning works at a Sink, too
    return _checked(text.removesuffix("\n)\n").rstrip("\n") + "\n)\n", digests.DOMAIN)


def released_grammar(task_sentence: str) -> str:
    """Returns the `grammar` of a released game with this task, e.g. "put a clean mug in desk."."""
    if not task_sentence.endswith(".") or set(task_sentence) & set('"\\\n#{}[]|'):
        raise ValueError(f"a task sentence must be plain text that ends with a full stop, not {task_sentence!r}")
    return _grammar().replace(_NO_TASK, task_sentence)


@cache
def _grammar() -> str:
    text = _HELP.sub(_plain_help, _shipped("alfred.twl2"))
    _checked(digests.without_task(text), digests.GRAMMAR)
    return text


def _plain_help(action: re.Match[str]) -> str:
    """Returns the help text itself; the wheel's grammar has a rule that yields it."""
    (rule,) = json.loads(action[1])["help.feedback"]
    return f'"{rule["rhs"]}";'


def _shipped(name: str) -> str:
    spec = find_spec("alfworld")  # not imported, because that would create folders in the home directory
    if spec is None or spec.origin is None:
        raise UsageError(
            "the package alfworld is not installed: `pip install --no-deps -r requirements.lock` installs it"
        )
    return (Path(spec.origin).parent / "data" / name).read_text()


def _checked(text: str, expected: str) -> str:
    if digests.digest(text) != expected:
        raise TaskDefinitionError("the installed alfworld has a different domain or grammar: install alfworld==0.4.2")
    return text
