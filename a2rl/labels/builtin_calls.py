"""Calls that decide which code runs: imports by name, attributes by name, arguments of the command line, files."""

import ast

from a2rl.labels.arguments import Arguments
from a2rl.labels.calls import Calls
from a2rl.labels.library import LossKind, route_of_loss, trainer_route
from a2rl.labels.values import Class, External, Frame, Function, LocalModule, Made, Value, constant, external

READS = frozenset({"builtins.open", "datasets.load_dataset", "pandas.read_json", "pandas.read_parquet",
                   "datasets.Dataset.from_json", "datasets.load_from_disk"})  # fmt: skip
BATCH = ("labels", "input_ids")


class BuiltinCalls(Calls):
    """Evaluates calls with a known result, and finds methods."""

    def special(self, full: str, given: Arguments, node: ast.Call, frame: Frame) -> Value | None:
        """Returns the result of calls with a known meaning; None of others."""
        first, second = [*given.positional, Value(), Value()][:2]
        result: Value | None = None
        if full == "builtins.getattr" and second.text is not None:
            result = self.attribute(first, second.text, frame)
        elif full in {"importlib.import_module", "builtins.__import__"} and first.text is not None:
            path = self.program.module(first.text, frame.module)
            result = Value(LocalModule(path)) if path is not None else external(first.text)
        elif full in {"os.environ.get", "os.getenv"} and first.text is not None:
            known = self.environ.get(first.text)
            result = constant(known) if known is not None else second
        elif full.endswith((".ArgumentParser", "add_argument_group")):
            result = Value(Made("argparse.parser"))
        elif full in READS:
            result = self._read(full, given)
        elif full in {"builtins.dict", "builtins.len", "builtins.str", "builtins.int"}:
            result = self._plain(full, given, first)
        elif full == "functools.partial" and isinstance(first.what, Function):
            result = first
        return result

    def _plain(self, full: str, given: Arguments, first: Value) -> Value:
        if full == "builtins.dict":
            return Value(first.what, first.marks, entries=first.entries | given.named)
        if full in {"builtins.str", "builtins.int"} and isinstance(first.constant, str | int):
            return constant(str(first.constant)) if full == "builtins.str" else first
        return Value(marks=given.marks() - {"sum"})

    def _read(self, full: str, given: Arguments) -> Value:
        names = [each.text for value in given.all().values() for each in (value, *(value.items or ())) if each.text]
        marks = {mark for name in names for mark in self.files.get(name, ())}
        file = next((each for each in given.all().values() if each.text), Value())
        return Value(Made(full), given.marks() | marks, element=Value(marks=set(marks)), entries={"file": file})

    def attribute(self, owner: Value, name: str, frame: Frame) -> Value:
        """Returns an attribute, or the parser of command lines where it is one."""
        if isinstance(owner.what, Made) and owner.what.by == "argparse.parser" and name not in owner.entries:
            return Value(Made(f"argparse.parser.{name}"))
        return super().attribute(owner, name, frame)

    def _object(
        self,
        made: Made,
        called: Value,
        receiver: Value | None,
        name: str,
        given: Arguments,
        node: ast.Call,
        frame: Frame,
    ) -> Value:
        if made.by == "argparse.parser.add_argument" and receiver is not None:
            self._add_argument(receiver, given)
            return Value()
        if made.by.startswith("argparse.parser.parse") and receiver is not None:
            namespace = Value(entries=dict(receiver.entries))
            is_pair = made.by.endswith("known_args")
            return Value(items=[namespace, Value()]) if is_pair else namespace
        if made.by == "argparse.parser.set_defaults" and receiver is not None:
            receiver.entries |= given.named
        return super()._object(made, called, receiver, name, given, node, frame)

    def _add_argument(self, parser: Value, given: Arguments) -> None:
        flags = [each.text for each in given.positional if each.text]
        if not flags:
            return
        longest = max(flags, key=len)
        destination = given.named.get("dest", Value()).text or longest.lstrip("-").replace("-", "_")
        parser.entries[destination] = self._argument(flags, longest, given)

    def _argument(self, flags: list[str], longest: str, given: Arguments) -> Value:
        """Returns what an option is: as the command line says, or else its default."""
        is_switch = given.named.get("action", Value()).text
        for place, each in enumerate(self.argv):
            flag, is_whole, value = each.partition("=")
            if flag not in flags:
                continue
            if is_switch in {"store_true", "store_false"}:
                return constant(is_switch == "store_true")
            text = value if is_whole else self.argv[place + 1] if place + 1 < len(self.argv) else ""
            return constant(text) if text and "$" not in text and text != "?" else Value()
        if is_switch in {"store_true", "store_false"}:
            return constant(is_switch == "store_false")
        if not longest.startswith("-"):
            free = [each for each in self.argv if not each.startswith("-")]
            return constant(free[0]) if free else given.named.get("default", Value())
        return given.named.get("default", Value() if "required" in given.named else constant(None))

    def member(self, owner: Value, name: str) -> Value | None:
        """Returns a method or class attribute of an instance or a class of the program; None if it has none."""
        what = owner.what
        kind = what.of if isinstance(what, Made) else what
        for each in self._bases(kind):
            for statement in each.node.body:
                if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name == name:
                    return self._method(statement, each.frame, owner)
                if isinstance(statement, ast.Assign) and any(
                    isinstance(target, ast.Name) and target.id == name for target in statement.targets
                ):
                    return self.value(statement.value, each.frame)
        return None

    def _method(self, node: ast.FunctionDef | ast.AsyncFunctionDef, frame: Frame, owner: Value) -> Value:
        decorators = {each.id for each in node.decorator_list if isinstance(each, ast.Name)}
        function = Function(node, frame, None if "staticmethod" in decorators else owner)
        if "property" in decorators or "cached_property" in decorators:
            return self.enter(function, Arguments([], {}), node, frame)
        return Value(function)

    def _bases(self, kind: object, depth: int = 6) -> list[Class]:
        if not isinstance(kind, Class) or depth == 0:
            return []
        found = [kind]
        for base in kind.node.bases:
            found += self._bases(self.value(base, kind.frame).what, depth - 1)
        return found

    def library_base(self, made: Made) -> str:
        """Returns the full name of the library's class from which an object is made."""
        if made.of is None:
            return made.by
        for kind in self._bases(made.of):
            for base in kind.node.bases:
                what = self.value(base, kind.frame).what
                if isinstance(what, External):
                    return what.name
        return ""

    def custom_loss(self, made: Made, node: ast.Call, frame: Frame) -> LossKind | None:
        """Returns the route of the loss in `compute_loss` or `training_step` of a class of the program."""
        instance = Value(made, entries=dict(made.arguments))
        is_trainer = trainer_route(self.library_base(made)) is not None
        own = self.member(instance, "compute_loss") if is_trainer else None
        if own is None or not isinstance(own.what, Function):
            return None
        model = Value(Made("transformers.AutoModel.from_pretrained"))
        inputs = Value(entries={name: Value() for name in BATCH})
        loss = self.enter(own.what, Arguments([model, inputs], {}), node, frame)
        kind = route_of_loss(loss.everything())
        return None if kind.route == "unknown" else kind._replace(why=f"{kind.why}, in compute_loss()")

    def train_with(self, trainer: Value, node: ast.Call, frame: Frame) -> bool:
        """Notes a phase if the object is a trainer, also of Lightning; returns whether it is."""
        if super().train_with(trainer, node, frame):
            return True
        made = trainer.what
        is_lightning = isinstance(made, Made) and made.by.split(".")[0] in {"pytorch_lightning", "lightning"}
        module = self.value(node.args[0], frame) if is_lightning and node.args else None
        step = self.member(module, "training_step") if module is not None else None
        if step is None or not isinstance(step.what, Function):
            return False
        loss = self.enter(step.what, Arguments([Value(), Value()], {}), node, frame)
        kind = route_of_loss(loss.everything())
        self.note(kind.route, kind.confidence, f"{kind.why}, in training_step()", node, frame)
        return True
