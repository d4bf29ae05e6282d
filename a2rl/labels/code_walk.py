"""Reads what a loop of a program's own trains for: a walk over its syntax trees, without running or interpreting
anything.

That something trained, and where, was traced while it ran (`traces.py`). What its losses and generations are for is
read here, near that place; where nothing was traced, this is all that there is. Two passes, each linear:

1. `Origins` notes for all names from which others they are made, so that it can be asked whether a name comes from
   generated text, log-probabilities or weights. Names are not told apart by where they are.
2. `Walk` goes through all modules and functions in the order in which they would run, as far as that can be seen: into
   functions that are named, and into both branches of a condition. Signs are collected until something trains.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal, NamedTuple

from a2rl.core.model_text import code_tree
from a2rl.labels.rules import Sign, trainer_route

MAX_CHARS = 400_000
"""A larger file is not parsed."""
MAX_FILES = 400

MAX_NODES = 400_000
"""Nodes of syntax trees that are looked at for one program. A real one has some ten thousand, most of which are looked
at a few times."""
MAX_PARTS = 1000
"""Names of which one assignment can be made."""
MAX_SPOTS, MAX_BASES, MAX_VISITS = 40, 10, 2
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BY_LIBRARIES = ("__init__", "forward", "training_step")
"""Methods that are called without being named."""
GENERATE = frozenset({"generate", "generate_text", "fast_generate", "batch_generate", "pipeline"})
SOURCES: dict[str, frozenset[str]] = {
    "generated": GENERATE,
    "text": frozenset({"decode", "batch_decode", "text", "pipeline"}),
    "logp": frozenset({
        "log_softmax", "logsoftmax", "log_prob", "log_probs", "logprob", "logprobs", "logps", "nll_loss",
        "cross_entropy", "selective_log_softmax",
    }),
    "weights": frozenset({"state_dict", "load_file", "get_tensor"}),
    "sigmoid": frozenset({"sigmoid"}),
    "average": frozenset({"mean", "fmean", "average", "sum"}),
}  # fmt: skip
"""The names from which things of each kind are made."""
REWARDS = frozenset({"reward", "rewards", "advantage", "advantages", "adv", "advs", "returns"})
WORDS: dict[str, Sign] = {
    "cross_entropy": Sign.IMITATES, "crossentropyloss": Sign.IMITATES, "nll_loss": Sign.IMITATES,
    "labels": Sign.IMITATES, "logsigmoid": Sign.PREFERENCES, "softplus": Sign.PREFERENCES, "gae": Sign.VALUES,
    "critic": Sign.VALUES, "value_head": Sign.VALUES,
}  # fmt: skip
"""What calls of these names, and arguments, show."""
MULTIPLIES = frozenset({"mul", "multiply", "dot", "matmul", "einsum"})
SAVES = frozenset({"save_pretrained", "save_model", "save_pretrained_merged", "save_file", "copytree", "copyfile"})
KEEPS = frozenset({"append", "extend", "add", "write"})
CHOOSES = frozenset({"max", "sorted", "topk", "nlargest", "filter"})


class Program:
    """The code of an agent at one moment, parsed within limits.

    Args:
        files: Text by path, relative to the folder of the code.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = sorted(files)[:MAX_FILES]
        texts = {path: files[path] for path in self._files if path.endswith(".py") and len(files[path]) <= MAX_CHARS}
        self.trees = {path: tree for path, text in texts.items() if (tree := code_tree(text)) is not None}
        """The syntax trees of the Python files that can be parsed."""

    def file(self, name: str) -> str:
        """Finds a file by a path that is whole, or relative to some folder; empty if there is none."""
        ends = [path for path in self._files if name == path or name.endswith(f"/{path}")]
        return max(ends, key=len, default="")


class Spot(NamedTuple):
    """A place in the code where something trains, or where weights are combined."""

    kind: Literal["loop", "trainer", "merge"]
    """A loop, or a trainer with a loss of its own; a trainer of a library; a merge of checkpoints."""
    file: str
    line: int
    signs: frozenset[Sign]
    """What was seen of it and before it."""
    trainer: str = ""
    """The full name of the library's class, such as `trl.SFTTrainer`, of a trainer."""


class Place(NamedTuple):
    """A node in a file; None stands for the end of a loop."""

    file: str
    node: ast.AST | None


class Class(NamedTuple):
    """A class of the program."""

    file: str
    bases: list[ast.expr]
    methods: dict[str, FunctionNode]


class TooLargeError(Exception):
    """The program is too large to be read whole."""


class Origins:
    """Which names of a program come from what.

    Raises:
        TooLargeError: There is too much to read.
    """

    def __init__(self, trees: Sequence[ast.AST]) -> None:
        self._work = 0
        self._made_of: dict[str, set[str]] = defaultdict(set)
        pairs = [pair for tree in trees for node in self.nodes(tree) for pair in self._pairs(node)]
        functions = [node for tree in trees for node in self.nodes(tree) if isinstance(node, FUNCTIONS)]
        names = {each.name: [parameter.arg for parameter in each.args.args] for each in functions}
        for tree in trees:
            for call in (node for node in self.nodes(tree) if isinstance(node, ast.Call)):
                self._pass(call, names.get(last_name(call.func), []))
        for targets, value in pairs:
            self._note(targets, value)
        self._kinds = {kind: self._reached(sources) for kind, sources in SOURCES.items()}
        self._kinds["replied"] = self._reached({word for pair in pairs for word in self._replies(*pair)})

    def nodes(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yields a node and all below it.

        Raises:
            TooLargeError: There was too much to read before.
        """
        for each in ast.walk(node):
            self._work += 1
            if self._work > MAX_NODES:
                raise TooLargeError
            yield each

    def words(self, node: ast.AST) -> Iterator[str]:
        """Yields the names of variables and attributes in a piece of code."""
        for each in self.nodes(node):
            if isinstance(each, ast.Name):
                yield each.id
            elif isinstance(each, ast.Attribute):
                yield each.attr

    def of(self, kind: str, *nodes: ast.AST) -> bool:
        """Says whether a piece of code has something of a kind, such as generated text."""
        names = self._kinds[kind]
        return any(word in names for node in nodes for word in self.words(node))

    def _pairs(self, node: ast.AST) -> Iterator[tuple[list[ast.expr], ast.expr]]:
        """Yields targets with the value from which they are made."""
        if isinstance(node, ast.Assign):
            for target in node.targets:
                parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
                values = node.value.elts if isinstance(node.value, ast.Tuple | ast.List) else []
                if len(parts) == len(values):
                    yield from (([part], value) for part, value in zip(parts, values, strict=True))
                else:
                    yield parts, node.value
        elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
            yield [node.target], node.value
        elif isinstance(node, ast.For | ast.comprehension):
            yield [node.target], node.iter
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            yield [node.optional_vars], node.context_expr
        else:
            yield from self._results(node)

    def _results(self, node: ast.AST) -> Iterator[tuple[list[ast.expr], ast.expr]]:
        """Yields functions with what they return, and containers with what is put into them."""
        if isinstance(node, FUNCTIONS):
            for each in self.nodes(node):
                if isinstance(each, ast.Return | ast.Yield) and each.value is not None:
                    yield [ast.Name(node.name)], each.value
        elif isinstance(node, ast.ClassDef):
            yield [ast.Name(node.name)], ast.Name("forward")  # what an object returns when it is called
        elif isinstance(node, ast.Call) and last_name(node.func) in KEEPS and isinstance(node.func, ast.Attribute):
            yield from (([node.func.value], each) for each in node.args)

    def _note(self, targets: Sequence[ast.expr], value: ast.AST) -> None:
        made_of = list(islice(dict.fromkeys(self.words(value)), MAX_PARTS))
        for target in targets:
            # What is put into a container is part of it.
            for word in self.words(target.value if isinstance(target, ast.Subscript) else target):
                self._made_of[word].update(made_of)

    def _pass(self, call: ast.Call, parameters: list[str]) -> None:
        """Notes what the parameters of a function are made of."""
        own = parameters[1:] if parameters[:1] == ["self"] else parameters
        for parameter, given in zip(own, call.args, strict=False):
            self._made_of[parameter].update(self.words(given))
        for keyword in call.keywords:
            if keyword.arg in own:
                self._made_of[keyword.arg].update(self.words(keyword.value))

    def _replies(self, targets: Sequence[ast.expr], value: ast.AST) -> Iterator[str]:
        """Yields the names of what a method answers to a generated text, such as an observation and a reward."""
        if len(targets) > 1 and isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            given = {word for each in value.args for word in self.words(each)}
            if given & self._kinds["text"] & self._kinds["generated"]:
                yield from (word for each in targets for word in self.words(each))

    def _reached(self, sources: Collection[str]) -> set[str]:
        """Returns the names that are made of some sources, these included."""
        makes: dict[str, list[str]] = defaultdict(list)
        for name, parts in self._made_of.items():
            for part in parts:
                makes[part].append(name)
        found, waiting = set(sources), list(sources)
        while waiting:
            for name in makes[waiting.pop()]:
                if name not in found:
                    found.add(name)
                    waiting.append(name)
        return found


class Walk:
    """Goes through a program, and notes where it trains in `spots`.

    Raises:
        TooLargeError: There is too much to read.
    """

    def __init__(self, program: Program) -> None:
        self.spots: list[Spot] = []
        self._origins = Origins(list(program.trees.values()))
        self._functions: dict[str, list[Place]] = defaultdict(list)
        self._classes: dict[str, Class] = {}
        self._names: dict[str, dict[str, str]] = {}
        for path, tree in program.trees.items():
            self._names[path] = dict(_imports(self._origins.nodes(tree)))
            self._define(path, tree)
        self._visits: Counter[int] = Counter()
        self._signs: set[Sign] = set()
        self._lasting: set[Sign] = set()
        self._is_mixed = False
        self._loop: Place | None = None
        self._depth = 0
        for path, tree in program.trees.items():
            self._through([Place(path, tree)])
        for places in self._functions.values():
            for place in places:
                if place.node is not None and not self._visits[id(place.node)]:
                    self._visits[id(place.node)] += 1
                    self._through([Place(place.file, each) for each in ast.iter_child_nodes(place.node)])

    def _define(self, path: str, tree: ast.AST) -> None:
        for node in self._origins.nodes(tree):
            if isinstance(node, FUNCTIONS):
                self._functions[node.name].append(Place(path, node))
            elif isinstance(node, ast.ClassDef):
                methods = {each.name: each for each in node.body if isinstance(each, FUNCTIONS)}
                self._classes[node.name] = Class(path, node.bases, methods)

    def _through(self, places: Iterable[Place]) -> None:
        """Goes through code and all that it leads to, without recursion: code can be nested deeply."""
        self._depth = 0
        waiting = list(places)[::-1]
        while waiting:
            here = waiting.pop()
            if here.node is None:
                self._depth -= 1
                if not self._depth:
                    self._end_loop()
            else:
                waiting += reversed(list(self._visit(here.file, here.node)))
        self._end_loop()

    def _visit(self, file: str, node: ast.AST) -> Iterator[Place]:
        """Notes what a node shows; yields what comes next."""
        if isinstance(node, ast.Name | ast.Attribute):
            yield from self._named(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.Call):
            self._call(file, node)
        elif isinstance(node, ast.BinOp | ast.AugAssign):
            self._calculation(node)
        elif isinstance(node, ast.If | ast.comprehension):
            self._condition(node)
        if isinstance(node, FUNCTIONS):
            return  # what it has runs when it is called
        is_loop = isinstance(node, ast.For | ast.While | ast.AsyncFor)
        self._depth += is_loop
        inner = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Call):
            inner = [*inner[1:], node.func]  # the arguments are computed before it is called
        yield from (Place(file, each) for each in inner)
        if is_loop:
            yield Place(file, None)

    def _named(self, name: str) -> Iterator[Place]:
        """Yields the bodies of functions and classes of the program, the first times that they are named."""
        found = self._functions.get(name, ())
        if name in self._classes:
            own = self._classes[name]
            found = [Place(own.file, own.methods[each]) for each in BY_LIBRARIES if each in own.methods]
        for file, function in found:
            if isinstance(function, FUNCTIONS) and self._visits[id(function)] < MAX_VISITS:
                self._visits[id(function)] += 1
                if function.name == "training_step":
                    self._loop = Place(file, function)
                yield from (Place(file, each) for each in function.body)

    def _call(self, file: str, node: ast.Call) -> None:
        name, of = last_name(node.func), self._origins.of
        self._signs |= {
            WORDS[each] for each in (name.lower(), *(str(each.arg) for each in node.keywords)) if each in WORDS
        }
        if name in GENERATE or of("generated", node.func):
            self._signs |= {Sign.GENERATES}
            if of("replied", *node.args, *(each.value for each in node.keywords)):
                self._signs |= {Sign.EPISODES}
        if name == "log" and of("sigmoid", *node.args):
            self._signs |= {Sign.PREFERENCES}
        if name in CHOOSES and of("generated", *node.args) and of("text", *node.args):
            self._signs |= {Sign.FILTERS}
        if name == "Linear" and [each.value for each in node.args[1:] if isinstance(each, ast.Constant)] == [1]:
            self._lasting |= {Sign.VALUES}
        if name in MULTIPLIES and len(node.args) > 1:
            self._weighted(node.args[-2], node.args[-1])
        self._event(file, node, name)

    def _event(self, file: str, node: ast.Call, name: str) -> None:
        if name == "backward" and self._loop is None:
            self._loop = Place(file, node)
        if name in SAVES:
            self._save(file, node)
        else:
            self._trainer(file, node, node.func)
            if name not in {"isinstance", "issubclass"}:
                for each in node.args:  # a class that is given to a function
                    self._trainer(file, node, each.body if isinstance(each, ast.IfExp) else each)

    def _trainer(self, file: str, node: ast.Call, of: ast.expr) -> None:
        """Notes the training of a library's trainer, or of a class of the program that extends one."""
        name, loss = self._base(of, file) if isinstance(of, ast.Name | ast.Attribute) else ("", None)
        if trainer_route(name) is None:
            return
        self._end_loop()
        own_loss = False
        if loss is not None:
            before, self._signs = self._signs & {Sign.GENERATES}, set()
            for part in self._origins.nodes(loss):
                if isinstance(part, ast.Call):
                    self._call(file, part)
                elif isinstance(part, ast.BinOp):
                    self._calculation(part)
            own_loss = bool(self._signs)
            self._signs |= before if own_loss else set()
        self._note("loop" if own_loss else "trainer", file, node.lineno, "" if own_loss else name)

    def _base(self, expression: ast.expr, file: str) -> tuple[str, FunctionNode | None]:
        """Returns the full name of the class that is called, or of that which it extends, and a loss of its own."""
        loss, names, classes = None, list[str](), [(expression, file)]
        for _ in range(MAX_BASES):
            if not classes:
                break
            expression, file = classes.pop(0)
            own = self._classes.get(last_name(expression))
            if own is None:
                names.append(self._full_name(expression, file))
            else:
                loss = loss or own.methods.get("compute_loss")
                classes += [(base, own.file) for base in own.bases]
        return next(filter(trainer_route, names), names[0] if names else ""), loss

    def _full_name(self, expression: ast.expr, file: str) -> str:
        parts: list[str] = []
        while isinstance(expression, ast.Attribute):
            parts.append(expression.attr)
            expression = expression.value
        first = expression.id if isinstance(expression, ast.Name) else ""
        return ".".join([self._names.get(file, {}).get(first, first), *reversed(parts)])

    def _calculation(self, node: ast.BinOp | ast.AugAssign) -> None:
        left, right = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
        of = self._origins.of
        if isinstance(node.op, ast.Mult):
            self._weighted(left, right)
        elif isinstance(node.op, ast.Sub) and of("average", right) and not of("logp", left, right):
            self._signs |= {Sign.GROUPS} if of("generated", left) or self._is_reward(left) else set()
        if isinstance(node.op, ast.Add | ast.Sub) and of("weights", left) and of("weights", right):
            self._is_mixed = True

    def _weighted(self, left: ast.AST, right: ast.AST) -> None:
        for logp, weight in ((left, right), (right, left)):
            if self._origins.of("logp", logp) and self._is_reward(weight):
                self._signs |= {Sign.REWARDS}

    def _is_reward(self, node: ast.AST) -> bool:
        words = {word.lower() for word in self._origins.words(node)}
        if any("mask" in word for word in words):
            return False
        of_text = self._origins.of("generated", node) and self._origins.of("text", node)
        return bool(words & REWARDS) or (of_text and not self._origins.of("logp", node))

    def _condition(self, node: ast.If | ast.comprehension) -> None:
        """Notes whether generated texts are kept only if they pass a check."""
        of = self._origins.of
        if isinstance(node, ast.comprehension):
            keeps, tests = bool(node.ifs), node.ifs
        else:
            inner = [each for part in node.body for each in self._origins.nodes(part)]
            keeps = any(isinstance(each, ast.Continue) or last_name(each) in KEEPS for each in inner)
            tests = [node.test]
        if keeps and of("generated", *tests) and of("text", *tests):
            self._signs |= {Sign.FILTERS}

    def _save(self, file: str, node: ast.Call) -> None:
        if not self._depth:
            self._end_loop()
        if self._is_mixed and not self._loop:
            self._note("merge", file, node.lineno)

    def _end_loop(self) -> None:
        """Notes a loop that trains, when it has ended."""
        if self._loop is not None:
            self._note("loop", self._loop.file, getattr(self._loop.node, "lineno", 0))

    def _note(self, kind: Literal["loop", "trainer", "merge"], file: str, line: int, trainer: str = "") -> None:
        signs = frozenset(self._signs | self._lasting)
        self._signs, self._loop, self._is_mixed = set(), None, False
        if len(self.spots) < MAX_SPOTS:
            self.spots.append(Spot(kind, file, line, signs, trainer))


def spots_in(program: Program) -> list[Spot]:
    """Returns where a program trains; nothing if there is too much of it."""
    try:
        return Walk(program).spots
    except (TooLargeError, RecursionError, MemoryError):
        return []


def last_name(node: ast.AST) -> str:
    """Returns the last part of the name of what is called, or of a call."""
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yields the names that a file has for what it imports, with the full ones."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((each.asname or each.name, each.name) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((each.asname or each.name, f"{node.module}.{each.name}") for each in node.names)
