"""The abstract interpreter's calls: functions of the program are followed, those of libraries have known meanings."""

import ast

from a2rl.labels.arguments import Arguments
from a2rl.labels.library import (
    GENERATES,
    PASS_ON,
    TRAIN,
    generated,
    is_of_library,
    marks_of_call,
)  # fmt: skip
from a2rl.labels.machine import MAX_DEPTH, ProgramEndsError
from a2rl.labels.training import Training
from a2rl.labels.values import (
    CE,
    FILTERED,
    GENERATED,
    INTERACTIVE,
    LOGP,
    MIXED,
    OUTPUT,
    REPLY,
    TEXT,
    VALUE,
    WEIGHTS,
    Class,
    Constant,
    External,
    Frame,
    Function,
    LocalModule,
    Made,
    Value,
    constant,
    either,
)  # fmt: skip

SAVES = frozenset({"save_pretrained", "save_model", "save_pretrained_merged", "save_file", "copytree", "copyfile"})
READS_WEIGHTS = frozenset({"state_dict", "load_file", "named_parameters", "get_tensor"})
STARTS = frozenset({"subprocess.run", "subprocess.Popen", "subprocess.check_call", "subprocess.call",
                    "subprocess.check_output", "os.system", "os.execvp", "os.popen"})  # fmt: skip
ENDS = frozenset({"sys.exit", "os._exit", "builtins.exit", "builtins.quit"})


class Calls(Training):
    """Evaluates calls."""

    def _call(self, node: ast.Call, frame: Frame) -> Value:
        receiver = self.value(node.func.value, frame) if isinstance(node.func, ast.Attribute) else None
        called = (
            self.attribute(receiver, node.func.attr, frame)
            if receiver is not None and isinstance(node.func, ast.Attribute)
            else self.value(node.func, frame)
        )
        arguments = self._arguments(node, frame)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else _last_name(called, node.func)
        results = [self._one(each, receiver, name, arguments, node, frame) for each in called.alternatives()]
        return either(results)

    def _arguments(self, node: ast.Call, frame: Frame) -> Arguments:
        positional: list[Value] = []
        for each in node.args:
            found = self.value(each, frame)
            is_known = isinstance(each, ast.Starred) and found.items is not None
            positional += (found.items or []) if is_known else [found]
        named: dict[str, Value] = {}
        for keyword in node.keywords:
            found = self.value(keyword.value, frame)
            if keyword.arg is not None:
                named[keyword.arg] = found
            elif found.entries:
                named |= found.entries
            else:
                named["**"] = found
        return Arguments(positional, named)

    def _one(
        self, called: Value, receiver: Value | None, name: str, given: Arguments, node: ast.Call, frame: Frame
    ) -> Value:
        what = called.what
        if isinstance(what, Function):
            result = self.enter(what, given, node, frame)
            return self._maybe_reply(result, receiver, given, what)
        if isinstance(what, Class):
            return self.make(what, given, node, frame)
        if receiver is not None:
            self._mutate(receiver, name, given)
            if name in TRAIN and self.train_with(receiver, node, frame):
                return Value(marks={"trained"})
        if isinstance(what, External):
            return self._library(what.name, receiver, name, given, node, frame)
        if isinstance(what, Made):
            return self._object(what, called, receiver, name, given, node, frame)
        return self._unknown(receiver, name, given, node, frame)

    def _maybe_reply(self, result: Value, receiver: Value | None, given: Arguments, what: Function) -> Value:
        """Marks what a method of the program's own environment answers to generated text."""
        is_method = receiver is not None and isinstance(receiver.what, Made) and what.receiver is not None
        if is_method and TEXT in given.marks() and result.items is not None and len(result.items) > 1:
            self.interactions += 1
            return Value(
                result.what, result.marks | {REPLY}, [_with(item, REPLY, TEXT, GENERATED) for item in result.items]
            )
        return result

    def enter(self, function: Function, given: Arguments, node: ast.AST, frame: Frame) -> Value:
        """Follows a call of a function of the program."""
        if self.depth >= MAX_DEPTH or frame.calls.count(id(node)) > 1:
            return Value(marks=given.marks())
        inner = Frame(function.frame.module, {}, function.frame, (*frame.calls, id(node)))
        self._bind(function, given, inner)
        if isinstance(function.node, ast.Lambda):
            return self.value(function.node.body, inner)
        self.depth += 1
        try:
            self.run_block(function.node.body, inner)
        finally:
            self.depth -= 1
        return either(inner.returned) if inner.returned else constant(None)

    def _bind(self, function: Function, given: Arguments, inner: Frame) -> None:
        wanted = function.node.args
        names = [each.arg for each in (*wanted.posonlyargs, *wanted.args)]
        if function.receiver is not None and names:
            inner.names[names.pop(0)] = function.receiver
        defaults = dict(zip(reversed(names), reversed(wanted.defaults), strict=False))
        defaults |= {a.arg: d for a, d in zip(wanted.kwonlyargs, wanted.kw_defaults, strict=True) if d is not None}
        for name, default in defaults.items():
            inner.names[name] = self.value(default, function.frame)
        inner.names |= dict(zip(names, given.positional, strict=False))
        known = {*names, *(each.arg for each in wanted.kwonlyargs)}
        inner.names |= {name: value for name, value in given.named.items() if name in known}
        if wanted.vararg:
            inner.names[wanted.vararg.arg] = Value(items=given.positional[len(names) :])
        if wanted.kwarg:
            rest = {name: value for name, value in given.named.items() if name not in known}
            inner.names[wanted.kwarg.arg] = Value(entries=rest)
        for name in known - inner.names.keys():
            inner.names[name] = Value()

    def make(self, kind: Class, given: Arguments, node: ast.AST, frame: Frame) -> Value:
        """Makes an instance of a class of the program."""
        instance = Value(Made("", kind, given.all()), given.marks())
        fields = [
            each for each in kind.node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        ]
        for each in fields:
            if each.value is not None and isinstance(each.target, ast.Name):
                instance.entries[each.target.id] = self.value(each.value, kind.frame)
        names = [each.target.id for each in fields if isinstance(each.target, ast.Name)]
        instance.entries |= dict(zip(names, given.positional, strict=False)) | given.named
        start = self.member(instance, "__init__")
        if start is not None and isinstance(start.what, Function):
            self.enter(start.what, given, node, frame)
        return instance

    def _mutate(self, receiver: Value, name: str, given: Arguments) -> None:
        """Adds what a method puts into a container or a file."""
        if name in {"append", "add", "extend", "insert", "update", "write", "writelines", "put", "appendleft"}:
            part = given.positional[-1] if given.positional else Value()
            part = part.part() if name in {"extend", "update"} and (part.items or part.element) else part
            marks = part.everything() | ({FILTERED} if self.is_filtering and GENERATED in part.everything() else set())
            receiver.add(Value(part.what, marks, part.items, part.element, part.entries))
            if receiver.items is None:
                receiver.marks |= marks & {GENERATED, FILTERED}
            for file in receiver.entries.get("file", Value()).alternatives():
                if file.text is not None:
                    self.files.setdefault(file.text, set()).update(marks)

    def _library(
        self, full: str, receiver: Value | None, name: str, given: Arguments, node: ast.Call, frame: Frame
    ) -> Value:
        """Returns the result of calling something of a library."""
        special = self.special(full, given, node, frame)
        if special is not None:
            return special
        if full in ENDS:
            raise ProgramEndsError
        if full in STARTS:
            self.start(given, frame)
        return self._effects(full, receiver, name, given, node, frame)

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
        """Returns the result of a method of a library's object, or of calling such an object, as one does models."""
        if made.of is not None:  # an instance of a class of the program is called
            forward = self.member(called, "forward") or self.member(called, "__call__")
            if forward is not None and isinstance(forward.what, Function):
                return self.enter(forward.what, given, node, frame)
        if receiver is None and made.by:
            return _called_object(made, given)
        return self._effects(made.by, receiver, name, given, node, frame)

    def _unknown(self, receiver: Value | None, name: str, given: Arguments, node: ast.Call, frame: Frame) -> Value:
        if receiver is None and "labels" in given.named:
            return Value(Made("torch.output"), given.marks() | {OUTPUT})
        return self._effects("", receiver, name, given, node, frame)

    def _effects(
        self, full: str, receiver: Value | None, name: str, given: Arguments, node: ast.Call, frame: Frame
    ) -> Value:
        """Returns the result of a call by the name of what is called, and notes training and saving."""
        everything = given.marks() | (receiver.everything() if receiver else set())
        if name == "backward" and (receiver is not None or given.positional):
            self.backward(receiver, given, node, frame)
        if name == "step" and not given.positional and not given.named:
            self.optimizer_steps += 1
        if name in SAVES:
            self.saved(name, receiver, given, node, frame)
        if name in {"load_state_dict", "copy_"} and MIXED in given.marks():
            self.note("merge", 0.85, "weights of several checkpoints are combined", node, frame)
        if name == "add_weighted_adapter":
            self.note("merge", 0.9, "adapters are combined", node, frame)
        if name in GENERATES and (receiver is not None or full):
            self.generations += 1
            marks = generated(everything, is_text="vllm" in _maker(receiver) or "LLM" in _maker(receiver))
            return Value(Made("torch.answers"), marks, element=Value(marks=set(marks)))
        if name in READS_WEIGHTS:
            marks = {f"{WEIGHTS}{id(node)}"} | ({f"{WEIGHTS}{id(node)}+"} if self.loops else set())
            return Value(Made(full), marks, element=Value(marks=set(marks)))
        return self._result(full, receiver, name, given)

    def _split(self, receiver: Value | None, name: str, given: Arguments) -> Value | None:
        """Returns the words of a known text; None of anything else."""
        if receiver is None or receiver.text is None or name != "split" or given.positional:
            return None
        return Value(items=[constant(word) for word in receiver.text.split()[:200]])

    def _result(self, full: str, receiver: Value | None, name: str, given: Arguments) -> Value:
        if (words := self._split(receiver, name, given)) is not None:
            return words
        marks = marks_of_call(name, receiver, given.positional, given.named)
        if name in PASS_ON:
            source = receiver if receiver is not None and not isinstance(receiver.what, External) else None
            source = source or (given.positional[0] if given.positional else None)
            if source is not None:
                return Value(
                    source.what, source.marks | marks, source.items, source.element, source.entries, source.others
                )
        if name == "prepare" and given.positional:
            return Value(items=given.positional) if len(given.positional) > 1 else given.positional[0]
        is_environment = receiver is not None and not is_of_library(_maker(receiver)) and TEXT in given.marks()
        if is_environment and name not in {"append", "extend", "add", "write", "format", "join", "decode"}:
            self.interactions += 1
            marks = marks | {REPLY}
        if name in {"zip", "map"}:
            parts = [each.part() for each in given.positional]
            return Value(marks=marks, element=Value(items=parts) if name == "zip" else self._mapped(given))
        kept = {name: each for name, each in given.all().items() if name != "**"}
        return Value(Made(full, arguments=kept) if full else None, marks)

    def _mapped(self, given: Arguments) -> Value:
        function = given.positional[0].what if given.positional else None
        if isinstance(function, Function):
            node = function.node
            return self.enter(
                function, Arguments([each.part() for each in given.positional[1:]], {}), node, function.frame
            )
        return Value(marks=given.marks())

    def run_block(self, body: list[ast.stmt], frame: Frame) -> str:
        """Runs statements."""
        raise NotImplementedError

    def special(self, full: str, given: Arguments, node: ast.Call, frame: Frame) -> Value | None:
        """Returns the result of calls that other parts of the program depend on, such as `getattr`; None of others."""
        raise NotImplementedError


def _called_object(made: Made, given: Arguments) -> Value:
    """Returns the result of calling an object, such as a tokenizer, a model or a layer."""
    last, marks = made.by.rpartition(".")[2], given.marks()
    if last in {"from_pretrained", *PASS_ON} and "Tokenizer" in made.by:
        return Value(marks=marks - {TEXT, OUTPUT})
    if last == "from_pretrained":
        has_value = made.arguments.get("num_labels", Value()).constant == 1 or "Value" in made.by
        return Value(Made("torch.output"), marks | {OUTPUT} | ({VALUE} if has_value else set()))
    if last == "Linear":
        width = made.arguments.get("1", made.arguments.get("out_features", Value())).constant
        return Value(marks=marks | ({VALUE} if width == 1 else set()))
    if last in {"pipeline", "LLM"}:
        return Value(marks=generated(marks, True), element=Value(marks=generated(marks, True)))
    return Value(marks=marks | marks_of_call(last, None, given.positional, given.named))


def _with(value: Value, *marks: str) -> Value:
    return Value(value.what, value.marks | set(marks), value.items, value.element, value.entries)


def _maker(value: Value | None) -> str:
    """Returns the full name of what made an object; empty if it is not known."""
    what = value.what if value else None
    if isinstance(what, Made):
        return what.by
    if isinstance(what, Constant):
        return "builtins"
    if isinstance(what, LocalModule):
        return "builtins"
    if value is not None and (value.items is not None or value.element is not None or value.entries):
        return "builtins"
    return what.name if isinstance(what, External) else "builtins" if _is_plain(value) else ""


def _is_plain(value: Value | None) -> bool:
    """Says whether a value is computed, such as text or a tensor, rather than an object of its own."""
    return value is not None and bool(value.marks & {GENERATED, OUTPUT, LOGP, CE, TEXT, INTERACTIVE})


def _last_name(called: Value, node: ast.expr) -> str:
    if isinstance(called.what, External):
        return called.what.name.rpartition(".")[2]
    return node.id if isinstance(node, ast.Name) else ""
