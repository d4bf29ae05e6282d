"""The abstract interpreter's training: which calls train, save a model or start another program."""

import ast
import shlex

from a2rl.labels.arguments import Arguments
from a2rl.labels.commands import LONGEST_LINE
from a2rl.labels.expressions import Expressions
from a2rl.labels.library import LossKind, route_of_loss, trainer_route
from a2rl.labels.routes import Route
from a2rl.labels.values import FILTERED, GENERATED, LOGP, MIXED, External, Frame, Function, Made, Value, constant


class Training(Expressions):
    """Notes training, merging and saving."""

    def train_with(self, trainer: Value, node: ast.Call, frame: Frame) -> bool:
        """Notes a phase if the object is a trainer; returns whether it is."""
        found = False
        for each in trainer.alternatives():
            what = each.what
            if not isinstance(what, Made):
                continue
            kind = self._kind_of(what, node, frame)
            if kind is None:
                continue
            found = True
            certainty = 0.95 if not trainer.others else 0.5
            self.note(kind.route, certainty * kind.confidence, kind.why, node, frame)
        return found

    def _kind_of(self, made: Made, node: ast.Call, frame: Frame) -> LossKind | None:
        if made.of is not None:
            own = self.custom_loss(made, node, frame)
            if own is not None:
                return own
        base = self.library_base(made)
        route = trainer_route(base)
        if route is None:
            return None
        short = base.rpartition(".")[2]
        given = {mark for name, each in made.arguments.items() if "reward" not in name for mark in each.everything()}
        if route == "SFT" and {GENERATED, FILTERED} <= given:
            return _kind("rejection sampling", f"{short} on the model's own answers that passed a check")
        if route == "GRPO" and self._plays(made, node, frame):
            return _kind("online RL", f"{short} on episodes of an environment")
        return _kind(route, f"{short}.{getattr(node.func, 'attr', 'train')}()")

    def _plays(self, made: Made, node: ast.Call, frame: Frame) -> bool:
        """Says whether a trainer gets its answers from episodes of several turns."""
        if any(
            made.arguments.get(name, constant(None)).constant is not None for name in ("environment_factory", "tools")
        ):
            return True
        rollout = made.arguments.get("rollout_func")
        if rollout is None or rollout.constant is None:
            return False
        if not isinstance(rollout.what, Function):
            return True
        before, answers = self.interactions, self.generations
        self.enter(rollout.what, Arguments([], {}), node, frame)
        # A rollout that generates here and asks nothing is a single answer. Else, what it calls plays the episodes.
        return self.interactions > before or self.generations == answers

    def backward(self, receiver: Value | None, given: Arguments, node: ast.Call, frame: Frame) -> None:
        """Notes a phase by the marks of the loss from which gradients are computed."""
        loss = given.positional[0] if given.positional and LOGP not in (receiver or Value()).everything() else receiver
        marks = loss.everything() if loss is not None else set()
        kind = route_of_loss(marks)
        self.note(kind.route, kind.confidence, kind.why, node, frame, is_loop=True)

    def saved(self, name: str, receiver: Value | None, given: Arguments, node: ast.Call, frame: Frame) -> None:
        """Notes that a model is saved."""
        value = given.positional[0] if name == "save_file" and given.positional else receiver
        if value is not None and MIXED in value.everything():
            self.note("merge", 0.85, "weights of several checkpoints are combined", node, frame)
        self.save(name, node, frame, value)

    def start(self, given: Arguments, frame: Frame) -> None:
        """Notes a command line that the program starts."""
        command = given.positional[0] if given.positional else given.named.get("args", Value())
        if command.text is not None and len(command.text) <= LONGEST_LINE:
            try:
                self.commands.append(shlex.split(command.text))
            except ValueError:
                return
        elif command.items is not None:
            self.commands.append([_word(each) for each in command.items])

    def enter(self, function: Function, given: Arguments, node: ast.AST, frame: Frame) -> Value:
        """Follows a call of a function of the program."""
        raise NotImplementedError

    def custom_loss(self, made: Made, node: ast.Call, frame: Frame) -> LossKind | None:
        """Returns the route of the loss that a trainer of the program computes itself; None if it does not."""
        raise NotImplementedError

    def library_base(self, made: Made) -> str:
        """Returns the full name of the library's class from which an object is made."""
        raise NotImplementedError


def _word(value: Value) -> str:
    """Returns a word of a command line, as far as it is known."""
    if isinstance(value.what, External) and value.what.name == "sys.executable":
        return "python"
    return value.text if value.text is not None else "?"


def _kind(route: Route, why: str) -> LossKind:
    return LossKind(route, 1.0, why, frozenset())
