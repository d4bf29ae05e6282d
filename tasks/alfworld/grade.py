r"""ALFWorld's grader: the model plays every game of the eval set, greedily, one command a line.

As in the reference (autorl_bench/benchmarks/alfworld/eval.py, after ReAct's alfworld.ipynb), a prompt has two examples
of the game's kind, the intro without its welcome, and "\n>"; the model writes up to the end of the line; a command that
begins with `think:` is answered "OK." and counts as a step like any other. Unless the prompts are the reference's, a
command is read as a person reads it (`read_command`). A game is won if its goal holds within the
step limit. Unlike in the reference, a game that fails for a technical reason is errored instead of lost, and a game
that outgrows the model's context ends there as truncated (vLLM would refuse the prompt and end the reference's whole
evaluation).

The reference plays one game at a time. Here every game is a separate conversation, and all of them share the model.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from a2rl.core.errors import UsageError
from a2rl.sampling import Conversation, Sampler, SamplingParams
from a2rl.scoring.score import ItemResult, Verdict
from a2rl.task_api.contract import Limits, Options
from tasks.alfworld.alfred import Game
from tasks.alfworld.alfred.transcript import Examples, GameEnvironment, examples_that_fit, framed
from tasks.alfworld.release import GAME

ANSWER_SHOWN = 2000


def item_ids(hidden: Path) -> list[str]:
    """See `a2rl.task_api.contract.Grader`. An item is a game; its id is the path of its folder."""
    games = hidden / "games"
    return sorted(path.parent.relative_to(games).as_posix() for path in games.glob(f"**/{GAME}"))


def grade(sampler: Sampler, hidden: Path, ids: Sequence[str], limits: Limits, options: Options) -> list[ItemResult]:
    """See `a2rl.task_api.contract.Grader`."""
    shown = examples_that_fit(_examples(hidden, options["prompts"]), sampler.room_after, limits.max_steps)
    params = SamplingParams(max_new_tokens=limits.max_new_tokens, stop=("\n",))
    faithful = options["prompts"] == "faithful"
    return sampler.converse([_episode(each, hidden, shown, limits, faithful) for each in ids], params)


def score_outputs(outputs: Mapping[str, str], hidden: Path, ids: Sequence[str], limits: Limits) -> list[ItemResult]:
    """See `a2rl.task_api.contract.Grader`. A completion is a list of commands, one a line."""
    return [
        _replayed(each, hidden, outputs[each].splitlines()[: limits.max_steps])
        if each in outputs
        else ItemResult(id=each, verdict="errored", reason="no completion was given")
        for each in ids
    ]


def gold_outputs(hidden: Path) -> dict[str, str]:
    """See `a2rl.task_api.contract.Grader`. The walkthroughs of the games."""
    return {each: "\n".join(Game.load(_file(hidden, each)).walkthrough) for each in item_ids(hidden)}


def item_kinds(hidden: Path) -> dict[str, str]:
    """See `a2rl.task_api.contract.KindsGrader`: the type of the task, which begins the name of a game's folder."""
    return {each: each.partition("-")[0] for each in item_ids(hidden)}


def _file(hidden: Path, item_id: str) -> Path:
    return hidden / "games" / item_id / GAME


def _examples(hidden: Path, name: str) -> Examples:
    if name == "none":
        return {}
    sets: dict[str, Examples] = json.loads((hidden / "prompts.json").read_text(encoding="utf-8"))
    if name not in sets:
        raise UsageError(
            f"the data has no {name} prompts: prepare it from the network, or from a mirror with react_prompts.json"
        )
    return sets[name]


def _episode(
    item_id: str, hidden: Path, examples: Examples, limits: Limits, faithful: bool
) -> Conversation[ItemResult]:
    """Plays a game from its intro to its end."""
    kind, tokens = "", 0
    try:
        game = Game.load(_file(hidden, item_id))
        kind = game.kind
        play = GameEnvironment(game, framed(examples.get(kind, ())), faithful)
        text = play.prompt
        while len(play.commands) < limits.max_steps and not play.done:
            completion = yield text
            if completion.is_cut:
                return _result(item_id, play, tokens, "truncated")
            tokens += completion.tokens
            line = completion.text.strip()
            text += f" {line}\n{play.write(line)}"
        return _result(item_id, play, tokens)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        return ItemResult(id=item_id, verdict="errored", group=kind, reason=f"the game failed: {error!r}")


def _replayed(item_id: str, hidden: Path, commands: Sequence[str]) -> ItemResult:
    play = GameEnvironment(Game.load(_file(hidden, item_id)))
    for command in commands:
        if not play.done:
            play.write(command)
    return _result(item_id, play, 0)


def _result(item_id: str, play: GameEnvironment, tokens: int, cut: Verdict | None = None) -> ItemResult:
    steps, verdict = len(play.commands), cut or ("correct" if play.done else "wrong")
    return ItemResult(
        id=item_id,
        verdict=verdict,
        value=float(verdict == "correct"),
        answer="\n".join(play.commands)[:ANSWER_SHOWN],
        tokens=tokens,
        group=play.game.kind,
        measures={"steps": float(steps), "invalid share": play.invalid / max(steps, 1)},
    )
