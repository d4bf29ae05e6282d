"""The abstract interpreter's statements: only code that runs counts, in the order in which it runs."""

import ast

from a2rl.labels.builtin_calls import BuiltinCalls
from a2rl.labels.machine import ProgramEndsError
from a2rl.labels.values import (
    FILTERED,
    GENERATED,
    REPLY,
    TEXT,
    Class,
    Ending,
    Frame,
    Function,
    LocalModule,
    Value,
    constant,
    either,
    external,
    joined,
)  # fmt: skip

ROUNDS = 2
"""How often the body of a loop runs, so that what one round computes reaches the next."""
STOPS = {"returns", "ends", "leaves the loop"}


class Interpreter(BuiltinCalls):
    """Runs programs."""

    def run_file(self, path: str, argv: tuple[str, ...] = (), calls: tuple[int, ...] = ()) -> None:
        """Runs a Python file as a program."""
        tree = self.program.tree(path)
        if tree is None:
            return
        before, self.argv = self.argv, argv
        frame = Frame(path, {"__name__": constant("__main__"), "__file__": Value()}, None, (*calls, hash(argv)))
        try:
            self.run_block(tree.body, frame)
        except ProgramEndsError:
            pass
        finally:
            self.argv = before

    def module_frame(self, path: str) -> Frame:
        """Returns the variables of a module, which runs when it is imported."""
        if path not in self.modules:
            name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            frame = self.modules[path] = Frame(path, {"__name__": constant(name)})
            tree = self.program.tree(path)
            if tree is not None:
                self.run_block(tree.body, frame)
        return self.modules[path]

    def submodule(self, path: str, name: str) -> Value:
        """Returns a module within a package."""
        found = self.program.relative(path, 1, name) if path.endswith("__init__.py") else None
        return Value(LocalModule(found)) if found else Value()

    def run_block(self, body: list[ast.stmt], frame: Frame) -> Ending:
        """Runs statements; returns how they ended."""
        pushed = 0
        ending: Ending = "goes on"
        for statement in body:
            self.burn()
            handler = getattr(self, f"_run_{type(statement).__name__.lower()}", None)
            if handler is None:
                for child in ast.iter_child_nodes(statement):
                    if isinstance(child, ast.expr):
                        self.value(child, frame)
                continue
            before = len(self.implicit)
            ending = handler(statement, frame)
            pushed += len(self.implicit) - before
            if ending in STOPS:
                break
        for _ in range(pushed):
            self.implicit.pop()
        return ending if ending in STOPS else "goes on"

    def _run_functiondef(self, node: ast.FunctionDef, frame: Frame) -> Ending:
        frame.names[node.name] = Value(Function(node, frame))
        return "goes on"

    _run_asyncfunctiondef = _run_functiondef

    def _run_classdef(self, node: ast.ClassDef, frame: Frame) -> Ending:
        frame.names[node.name] = Value(Class(node, frame))
        return "goes on"

    def _run_import(self, node: ast.Import, frame: Frame) -> Ending:
        for alias in node.names:
            path = self.program.module(alias.name, frame.module)
            if path is not None:
                self.module_frame(path)
                frame.names[alias.asname or alias.name.partition(".")[0]] = Value(LocalModule(path))
            else:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                frame.names[alias.asname or whole] = external(whole)
        return "goes on"

    def _run_importfrom(self, node: ast.ImportFrom, frame: Frame) -> Ending:
        name = node.module or ""
        find = self.program.relative(frame.module, node.level, name) if node.level else None
        path = find if node.level else self.program.module(name, frame.module)
        for alias in node.names:
            if path is not None and alias.name == "*":
                frame.names |= self.module_frame(path).names
            elif path is not None:
                known = self.module_frame(path).names.get(alias.name)
                frame.names[alias.asname or alias.name] = known or self.submodule(path, alias.name)
            else:
                inside = self.program.module(f"{name}.{alias.name}", frame.module)
                found = Value(LocalModule(inside)) if inside else external(f"{name or 'local'}.{alias.name}")
                frame.names[alias.asname or alias.name] = found
        return "goes on"

    def _run_assign(self, node: ast.Assign, frame: Frame) -> Ending:
        found = self._replied(node, self.value(node.value, frame))
        for target in node.targets:
            self.assign(target, found, frame)
        return "goes on"

    def _replied(self, node: ast.Assign, found: Value) -> Value:
        """Marks the answer to generated text that is unpacked, as that of `env.step(action)` is."""
        is_method = isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute)
        is_unpacked = isinstance(node.targets[0], ast.Tuple) and is_method
        is_step = is_method and isinstance(node.value, ast.Call) and getattr(node.value.func, "attr", "") == "step"
        if {GENERATED, TEXT} <= found.everything() and found.items is None and (is_unpacked or is_step):
            return Value(found.what, found.marks | ({REPLY} if is_step else set()), None, found.element, found.entries)
        return found

    def _run_annassign(self, node: ast.AnnAssign, frame: Frame) -> Ending:
        if node.value is not None:
            self.assign(node.target, self.value(node.value, frame), frame)
        return "goes on"

    def _run_augassign(self, node: ast.AugAssign, frame: Frame) -> Ending:
        before, more = self.value(node.target, frame), self.value(node.value, frame)
        after = self.binary(node.op, before, more)
        if after.element is None and (more.element is not None or more.items is not None):
            after = Value(marks=after.marks, element=joined([before.element, more.part()]))
        if self.is_filtering and isinstance(node.op, ast.Add) and GENERATED in more.everything():
            after.marks.add(FILTERED)
        self.assign(node.target, after, frame)
        return "goes on"

    def assign(self, target: ast.expr, value: Value, frame: Frame) -> None:
        """Gives a value to a variable, or to several."""
        if isinstance(target, ast.Name):
            frame.names[target.id] = value
        elif isinstance(target, ast.Starred):
            self.assign(target.value, Value(element=value.part()), frame)
        elif isinstance(target, ast.Tuple | ast.List):
            same = value.items is not None and len(value.items) == len(target.elts)
            parts = value.items if same and value.items else [value.part()] * len(target.elts)
            for each, part in zip(target.elts, parts, strict=True):
                self.assign(each, part, frame)
        elif isinstance(target, ast.Attribute):
            self.value(target.value, frame).entries[target.attr] = value
        elif isinstance(target, ast.Subscript):
            owner, place = self.value(target.value, frame), self.value(target.slice, frame)
            owner.marks |= value.everything()
            if place.text is not None:
                owner.entries[place.text] = value
            else:
                owner.add(value)

    def _run_return(self, node: ast.Return, frame: Frame) -> Ending:
        found = self.value(node.value, frame)
        if conditions := self.conditions() - found.marks:
            more = found.marks | conditions
            found = Value(found.what, more, found.items, found.element, found.entries, found.others)
        frame.returned.append(found)
        return "returns"

    def _run_raise(self, node: ast.Raise, frame: Frame) -> Ending:
        return "ends"

    def _run_continue(self, node: ast.Continue, frame: Frame) -> Ending:
        return "leaves the loop"

    _run_break = _run_continue

    def _run_if(self, node: ast.If, frame: Frame) -> Ending:
        known, marks = self.truth(node.test, frame)
        if known is not None:
            return self.run_block(node.body if known else node.orelse, frame)
        return self._both(node, marks, frame)

    def _both(self, node: ast.If, marks: set[str], frame: Frame) -> Ending:
        """Runs both branches of a condition that is not known, and joins what they leave behind."""
        before = dict(frame.names)
        self.uncertain += 1
        self.implicit.append(marks)
        endings, after = [], []
        for branch in (node.body, node.orelse):
            frame.names = dict(before)
            try:
                endings.append(self.run_block(branch, frame))
            except ProgramEndsError:
                endings.append("ends")
            after.append(frame.names)
        self.implicit.pop()
        self.uncertain -= 1
        alive = [names for names, end in zip(after, endings, strict=True) if end not in STOPS] or after
        frame.names = _merged(alive)
        if all(end in STOPS for end in endings):
            return "returns" if "returns" in endings else "leaves the loop" if "leaves the loop" in endings else "ends"
        if any(end in STOPS for end in endings):
            self.implicit.append(marks)  # what follows runs only for some; `run_block` takes this away at its end
        return "goes on"

    def _run_for(self, node: ast.For, frame: Frame) -> Ending:
        source = self.value(node.iter, frame)
        known = source.items if source.items is not None and len(source.items) <= 6 else None
        self.loops += 1
        for part in known or [source.part()] * ROUNDS:
            self.assign(node.target, part, frame)
            if self.run_block(node.body, frame) in {"returns", "ends"}:
                break
        self.loops -= 1
        self.run_block(node.orelse, frame)
        return "goes on"

    _run_asyncfor = _run_for

    def _run_while(self, node: ast.While, frame: Frame) -> Ending:
        known, _ = self.truth(node.test, frame)
        if known is False and not isinstance(node.test, ast.UnaryOp | ast.Name | ast.Compare | ast.BoolOp):
            return "goes on"
        if known is False and self.loops == 0 and isinstance(node.test, ast.Constant):
            return "goes on"
        self.loops += 1
        for _ in range(ROUNDS):
            if self.run_block(node.body, frame) in {"returns", "ends"}:
                break
        self.loops -= 1
        return "goes on"

    def _run_with(self, node: ast.With, frame: Frame) -> Ending:
        for item in node.items:
            found = self.value(item.context_expr, frame)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, found, frame)
        return self.run_block(node.body, frame)

    _run_asyncwith = _run_with

    def _run_try(self, node: ast.Try, frame: Frame) -> Ending:
        ending = self.run_block(node.body, frame)
        if ending == "goes on":
            ending = self.run_block(node.orelse, frame)
        last = self.run_block(node.finalbody, frame)
        return last if last in STOPS else ending

    _run_trystar = _run_try

    def _run_expr(self, node: ast.Expr, frame: Frame) -> Ending:
        value = node.value
        if isinstance(value, ast.Yield | ast.YieldFrom):
            found = self.value(value.value, frame)
            frame.returned.append(Value(element=found if isinstance(value, ast.Yield) else found.part()))
        else:
            self.value(value, frame)
        return "goes on"

    def _run_delete(self, node: ast.Delete, frame: Frame) -> Ending:
        return "goes on"

    def _run_global(self, node: ast.Global, frame: Frame) -> Ending:
        return "goes on"

    def _run_match(self, node: ast.Match, frame: Frame) -> Ending:
        subject = self.value(node.subject, frame)
        for case in node.cases:
            wanted = self.value(case.pattern.value, frame) if isinstance(case.pattern, ast.MatchValue) else None
            if wanted is None or subject.text is None or wanted.text == subject.text:
                ending = self.run_block(case.body, frame)
                if subject.text is not None:
                    return ending
        return "goes on"


def _merged(branches: list[dict[str, Value]]) -> dict[str, Value]:
    names = {name for branch in branches for name in branch}
    return {
        name: either([branch[name] for branch in branches if name in branch])
        for name in names
    }  # fmt: skip
