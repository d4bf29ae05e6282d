"""The abstract interpreter's expressions: each becomes a value with the marks of everything that it depends on."""

import ast
from collections.abc import Callable
from typing import Any

from a2rl.labels.machine import Machine
from a2rl.labels.values import (
    CE,
    FILTERED,
    GENERATED,
    GROUP,
    LOGP,
    MEAN,
    MIXED,
    OUTPUT,
    TEXT,
    WEIGHTED,
    WEIGHTS,
    Constant,
    External,
    Frame,
    Function,
    LocalModule,
    Made,
    Value,
    constant,
    either,
    external,
    joined,
)  # fmt: skip

COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: lambda a, b: bool(a == b), ast.NotEq: lambda a, b: bool(a != b), ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b, ast.Is: lambda a, b: a is b, ast.IsNot: lambda a, b: a is not b,
    ast.Lt: lambda a, b: bool(a < b), ast.LtE: lambda a, b: bool(a <= b),
    ast.Gt: lambda a, b: bool(a > b), ast.GtE: lambda a, b: bool(a >= b),
}  # fmt: skip
TEXT_FIELDS = frozenset({"text", "generated_text", "output_text"})
MAX_CONSTANT = 10_000


class Expressions(Machine):
    """Evaluates expressions."""

    def value(self, node: ast.AST | None, frame: Frame) -> Value:
        """Returns what an expression may be."""
        if node is None:
            return constant(None)
        self.burn()
        handler = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is not None:
            result: Value = handler(node, frame)
            return result
        return self._of_parts(node, frame)

    def truth(self, node: ast.expr, frame: Frame) -> tuple[bool | None, set[str]]:
        """Returns whether a condition holds (None: not known), and its marks."""
        found = self.value(node, frame)
        known = found.constant
        if known is Constant:
            if found.items is not None:
                return bool(found.items), found.everything()
            return None, found.everything()
        return bool(known), found.everything()

    def _of_parts(self, node: ast.AST, frame: Frame) -> Value:
        parts = [self.value(child, frame) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return Value(marks={mark for part in parts for mark in part.everything()})

    def _constant(self, node: ast.Constant, frame: Frame) -> Value:
        return constant(node.value)

    def _name(self, node: ast.Name, frame: Frame) -> Value:
        return frame.find(node.id) or external(f"builtins.{node.id}")

    def _namedexpr(self, node: ast.NamedExpr, frame: Frame) -> Value:
        found = self.value(node.value, frame)
        frame.names[node.target.id] = found
        return found

    def _starred(self, node: ast.Starred, frame: Frame) -> Value:
        return self.value(node.value, frame)

    def _lambda(self, node: ast.Lambda, frame: Frame) -> Value:
        return Value(Function(node, frame))

    def _tuple(self, node: ast.Tuple, frame: Frame) -> Value:
        return self._sequence(node.elts, frame)

    def _list(self, node: ast.List, frame: Frame) -> Value:
        return self._sequence(node.elts, frame)

    def _set(self, node: ast.Set, frame: Frame) -> Value:
        return self._sequence(node.elts, frame)

    def _sequence(self, nodes: list[ast.expr], frame: Frame) -> Value:
        items: list[Value] = []
        for node in nodes:
            found = self.value(node, frame)
            if not isinstance(node, ast.Starred):
                items.append(found)
            elif found.items is not None:
                self.burn(len(found.items))
                items += found.items
            else:
                return joined([Value(element=joined([*items, found.part()])), *items])
        return Value(items=items)

    def _dict(self, node: ast.Dict, frame: Frame) -> Value:
        result = Value()
        for key, each in zip(node.keys, node.values, strict=True):
            found = self.value(each, frame)
            name = self.value(key, frame).text if key is not None else None
            if key is None:
                result.entries |= found.entries
                result.marks |= found.marks
            elif name is not None:
                result.entries[name] = found
            else:
                result.add(found)
        return result

    def _joinedstr(self, node: ast.JoinedStr, frame: Frame) -> Value:
        parts = [
            self.value(each.value if isinstance(each, ast.FormattedValue) else each, frame) for each in node.values
        ]
        known = [part.constant for part in parts]
        if Constant not in known:
            return constant("".join(map(str, known))[:MAX_CONSTANT])
        return Value(marks={mark for part in parts for mark in part.everything()})

    def _boolop(self, node: ast.BoolOp, frame: Frame) -> Value:
        stops, marks, result = isinstance(node.op, ast.Or), set[str](), constant(None)
        certain = True
        for each in node.values:
            result = self.value(each, frame)
            marks |= result.everything()
            if result.constant is Constant:
                certain = False
            elif certain and bool(result.constant) is stops:
                return result
        return result if certain else Value(marks=marks)

    def _unaryop(self, node: ast.UnaryOp, frame: Frame) -> Value:
        found = self.value(node.operand, frame)
        known = found.constant
        if isinstance(node.op, ast.Not) and known is not Constant:
            return constant(not known)
        if isinstance(node.op, ast.USub) and isinstance(known, int | float):
            return constant(-known)
        return Value(found.what if known is Constant else None, found.everything())

    def _ifexp(self, node: ast.IfExp, frame: Frame) -> Value:
        known, marks = self.truth(node.test, frame)
        if known is not None:
            return self.value(node.body if known else node.orelse, frame)
        result = either([self.value(node.body, frame), self.value(node.orelse, frame)])
        return Value(
            result.what, result.everything() | marks, result.items, result.element, result.entries, result.others
        )

    def _compare(self, node: ast.Compare, frame: Frame) -> Value:
        values = [self.value(each, frame) for each in (node.left, *node.comparators)]
        marks = {mark for each in values for mark in each.everything()}
        left, right = values[0].constant, values[-1].constant
        if right is Constant and values[-1].items is not None:
            right = [item.constant for item in values[-1].items]
        if (
            len(values) == 2
            and Constant not in (left, right)
            and (not isinstance(right, list) or Constant not in right)
        ):
            try:
                return Value(Constant(COMPARISONS[type(node.ops[0])](left, right)), marks)
            except TypeError:
                pass
        return Value(marks=marks)

    def _binop(self, node: ast.BinOp, frame: Frame) -> Value:
        return self.binary(node.op, self.value(node.left, frame), self.value(node.right, frame))

    def binary(self, operator: ast.operator, left: Value, right: Value) -> Value:
        """Returns the result of an operation."""
        known = (left.constant, right.constant)
        if isinstance(operator, ast.Add) and all(isinstance(each, str) for each in known):
            return constant(f"{known[0]}{known[1]}"[:MAX_CONSTANT])
        if isinstance(operator, ast.Add) and left.items is not None and right.items is not None:
            self.burn(len(left.items) + len(right.items))
            return Value(items=[*left.items, *right.items])
        one, two = left.everything(), right.everything()
        marks = one | two
        if isinstance(operator, ast.Mult) and is_reward(one, two):
            marks.add(WEIGHTED)
        if isinstance(operator, ast.Sub) and MEAN in two and TEXT in two and LOGP not in marks:
            marks.add(GROUP)
        if isinstance(operator, ast.Add | ast.Sub | ast.Mult) and sum(mark.startswith(WEIGHTS) for mark in marks) > 1:
            marks.add(MIXED)
        if isinstance(operator, ast.Div) and "sum" in one:
            marks.add(MEAN)
        return Value(marks=marks, element=left.element or right.element)

    def _attribute(self, node: ast.Attribute, frame: Frame) -> Value:
        return self.attribute(self.value(node.value, frame), node.attr, frame)

    def attribute(self, owner: Value, name: str, frame: Frame) -> Value:
        """Returns an attribute of a value."""
        what = owner.what
        if name in owner.entries:
            return owner.entries[name]
        if isinstance(what, LocalModule):
            return self.module_frame(what.path).names.get(name) or self.submodule(what.path, name)
        if isinstance(what, External):
            return Value(External(f"{what.name}.{name}"), set(owner.marks))
        found = self.member(owner, name)
        if found is not None:
            return found
        marks = owner.everything()
        if name == "loss":
            marks |= {CE, LOGP}
        elif name in {"logits", "last_hidden_state", "hidden_states"}:
            marks |= {OUTPUT}
        elif name in TEXT_FIELDS and GENERATED in marks:
            marks |= {TEXT}
        what = Made(f"{what.by}.{name}", arguments=what.arguments) if isinstance(what, Made) and what.by else None
        return Value(what, marks, element=owner.element)

    def _subscript(self, node: ast.Subscript, frame: Frame) -> Value:
        owner, place = self.value(node.value, frame), self.value(node.slice, frame)
        if isinstance(owner.what, External) and owner.what.name == "os.environ" and place.text is not None:
            known = self.environ.get(place.text)
            return constant(known) if known is not None else Value()
        if place.text is not None and place.text in owner.entries:
            return owner.entries[place.text]
        if owner.items is not None and isinstance(place.constant, int):
            number = place.constant
            return owner.items[number] if -len(owner.items) <= number < len(owner.items) else Value()
        if place.text == "loss":
            return Value(marks=owner.everything() | {CE, LOGP})
        part = owner.part() if owner.items is not None or owner.element is not None else Value(marks=owner.everything())
        more = {TEXT} if place.text in TEXT_FIELDS and GENERATED in part.marks else set()
        index = {TEXT, GENERATED} & place.everything() if isinstance(place.what, Constant) else set()
        return Value(part.what, part.marks | more | index, part.items, part.element, part.entries or owner.entries)

    def _listcomp(self, node: ast.ListComp, frame: Frame) -> Value:
        return self._comprehension(node.generators, node.elt, frame)

    def _setcomp(self, node: ast.SetComp, frame: Frame) -> Value:
        return self._comprehension(node.generators, node.elt, frame)

    def _generatorexp(self, node: ast.GeneratorExp, frame: Frame) -> Value:
        return self._comprehension(node.generators, node.elt, frame)

    def _dictcomp(self, node: ast.DictComp, frame: Frame) -> Value:
        key = self._comprehension(node.generators, node.key, frame)
        found = self._comprehension(node.generators, node.value, frame)
        return Value(marks=key.marks | found.marks, element=found.element)

    def _comprehension(self, generators: list[ast.comprehension], element: ast.expr, frame: Frame) -> Value:
        inner = Frame(frame.module, {}, frame, frame.calls)
        marks: set[str] = set()
        self.loops += 1
        for each in generators:
            source = self.value(each.iter, inner)
            self.assign(each.target, source.part(), inner)
            for condition in each.ifs:
                tested = self.truth(condition, inner)[1]
                marks |= {FILTERED} if {GENERATED, TEXT} <= tested else set()
        found = self.value(element, inner)
        self.loops -= 1
        return Value(element=Value(found.what, found.marks | marks, found.items, found.element, found.entries))

    def assign(self, target: ast.expr, value: Value, frame: Frame) -> None:
        """Gives a value to a variable, or to several."""
        raise NotImplementedError

    def member(self, owner: Value, name: str) -> Value | None:
        """Returns a method or a class attribute of an instance; None if it has none."""
        raise NotImplementedError

    def module_frame(self, path: str) -> Frame:
        """Returns the variables of a module of the program, which runs when it is imported."""
        raise NotImplementedError

    def submodule(self, path: str, name: str) -> Value:
        """Returns a module within a package of the program."""
        raise NotImplementedError


def is_reward(one: set[str], two: set[str]) -> bool:
    """Says whether one factor is a reward for generated text and the other a log-probability."""
    return any(TEXT in a and LOGP not in a and LOGP in b for a, b in ((one, two), (two, one)))
