"""Reads which training a program's code has: a walk over its syntax trees, without running or interpreting anything.

What was traced while it ran counts more (`traces.py`): this is for programs that were not. Two passes, each linear:

1. `Origins` notes for all names from which others they are made, so that it can be asked whether a name comes from
   generated text, log-probabilities or weights. Names are not told apart by where they are.
2. `Walk` goes through the code in the order in which it would run, as far as that can be seen: into modules that are
   imported and functions that are named, once each, and into both branches of a condition. Signs are collected until
   something trains.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from a2rl.labels.commands import Started, lines_of, started
from a2rl.labels.phases import Phase
from a2rl.labels.program import Program
from a2rl.labels.routes import Evidence, Route
from a2rl.labels.rules import Sign, route_of_trainer, rule_of, trainer_route

MAX_NODES = 400_000
"""Nodes of syntax trees that are looked at for one program. A real one has some ten thousand, most of which are looked
at a few times."""
MAX_PHASES, MAX_BASES, MAX_VISITS = 40, 10, 2
TRAINER = 0.7
"""The confidence if a trainer of a library is found in the code."""
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
STARTS = frozenset({"run", "Popen", "check_call", "call", "check_output", "system", "popen", "execvp"})
SAVES = frozenset({"save_pretrained", "save_model", "save_pretrained_merged", "save_file", "copytree", "copyfile"})
KEEPS = frozenset({"append", "extend", "add", "write"})
CHOOSES = frozenset({"max", "sorted", "topk", "nlargest", "filter"})


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

    Args:
        trees: The syntax trees.

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
        made_of = set(self.words(value))
        for target in targets:
            # What is put into a container is part of it.
            for word in self.words(target.value if isinstance(target, ast.Subscript) else target):
                self._made_of[word] |= made_of

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
    """Goes through a program in the order in which it would run, and notes what trains in `phases`.

    Args:
        program: Its files.
    """

    def __init__(self, program: Program) -> None:
        self.phases: list[Phase] = []
        self.saves: list[Phase] = []
        """Where something is saved."""
        self.has_steps = False
        """Whether an optimizer takes steps."""
        self._program = program
        trees = {path: tree for path in program.modules if (tree := program.tree(path)) is not None}
        self._origins = Origins(list(trees.values()))
        self._functions: dict[str, list[Place]] = defaultdict(list)
        self._classes: dict[str, Class] = {}
        self._names: dict[str, dict[str, str]] = {}
        self._constants: dict[str, ast.expr] = {}
        for path, tree in trees.items():
            self._names[path] = dict(_imports(self._origins.nodes(tree)))
            self._define(path, tree)
        self._visits: Counter[int] = Counter()
        self._started: set[str] = set()
        self._signs: set[Sign] = set()
        self._lasting: set[Sign] = set()
        self._is_mixed = False
        self._loop: Place | None = None
        self._depth = 0

    def run(self, commands: Sequence[Sequence[str]]) -> None:
        """Follows command lines; without any, the files say what is run.

        Raises:
            TooLargeError: There is too much to read.
        """
        for words in commands:
            self._start(started(words, self._program.files))
        if not commands:
            for path in self._program.outermost_scripts:
                self._shell(path)
            if not self._program.scripts:
                self._modules_alone()

    def run_all(self) -> None:
        """Goes through all modules and functions, whether or not something seems to run them.

        Raises:
            TooLargeError: There is too much to read.
        """
        self._modules_alone()
        for places in self._functions.values():
            for place in places:
                if place.node is not None and not self._visits[id(place.node)]:
                    self._visits[id(place.node)] += 1
                    self._through([Place(place.file, each) for each in ast.iter_child_nodes(place.node)])

    def _modules_alone(self) -> None:
        for path in self._program.outermost_modules:
            self._file(path)

    @property
    def result(self) -> list[Phase]:
        """What trains. Without any, a program that saves a model all the same makes a copy of it."""
        # A loop trains only if an optimizer takes a step.
        return [phase for phase in self.phases if self.has_steps or not phase.is_loop] or self.saves[:1]

    def _define(self, path: str, tree: ast.AST) -> None:
        for node in self._origins.nodes(tree):
            if isinstance(node, FUNCTIONS):
                self._functions[node.name].append(Place(path, node))
            elif isinstance(node, ast.ClassDef):
                methods = {each.name: each for each in node.body if isinstance(each, FUNCTIONS)}
                self._classes[node.name] = Class(path, node.bases, methods)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self._constants[node.targets[0].id] = node.value

    def _start(self, what: Started, file: str = "", line: int = 0) -> None:
        if what.route is not None:
            self._end_loop()
            self._note(what.route, 0.9, what.why, file, line)
        elif what.script and (path := self._program.file(what.script)) is not None:
            self._file(path)
        elif what.shell.startswith("\n"):
            self._lines(what.shell, file)
        elif what.shell and (path := self._program.file(what.shell)) is not None:
            self._shell(path)

    def _shell(self, path: str) -> None:
        if path not in self._started:
            self._started.add(path)
            self._lines(self._program.files[path], path)

    def _lines(self, script: str, file: str) -> None:
        for words in lines_of(script):
            self._start(started(words, self._program.files), file)

    def _file(self, path: str) -> None:
        tree = self._program.tree(path)
        if tree is not None and path not in self._started:
            self._started.add(path)
            self._through([Place(path, tree)])

    def _through(self, places: Iterable[Place]) -> None:
        """Goes through code and all that it leads to, without recursion: code can be nested deeply."""
        outer, self._depth = self._depth, 0
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
        self._depth = outer

    def _visit(self, file: str, node: ast.AST) -> Iterator[Place]:
        """Notes what a node shows; yields what comes next."""
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from self._modules(file, node)
        elif isinstance(node, ast.Name | ast.Attribute):
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

    def _modules(self, file: str, node: ast.Import | ast.ImportFrom) -> Iterator[Place]:
        for path in sorted(self._program.imports(node, file)):
            tree = self._program.tree(path)
            if tree is not None and not self._visits[id(tree)]:
                self._visits[id(tree)] += 1
                yield Place(path, tree)

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
                    self._loop, self.has_steps = Place(file, function), True
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
        if name == "step" and not node.args and "sched" not in last_name(getattr(node.func, "value", node)).lower():
            self.has_steps = True
        if name in SAVES:
            self._save(file, node, name)
        elif name in STARTS:
            self._command(file, node)
        else:
            self._trainer(file, node, node.func)
            if name not in {"isinstance", "issubclass"}:
                for each in node.args:  # a class that is given to a function
                    self._trainer(file, node, each.body if isinstance(each, ast.IfExp) else each)

    def _trainer(self, file: str, node: ast.Call, of: ast.expr) -> None:
        """Notes the training of a library's trainer, or of a class of the program that extends one."""
        name, loss = self._base(of, file) if isinstance(of, ast.Name | ast.Attribute) else ("", None)
        route = trainer_route(name)
        if route is None:
            return
        self._end_loop()
        settings = [str(each.arg) for each in node.keywords if ast.unparse(each.value) != "None"]
        why = name.rpartition(".")[2]
        if loss is not None:
            before, self._signs = self._signs & {Sign.GENERATES}, set()
            for part in self._origins.nodes(loss):
                if isinstance(part, ast.Call):
                    self._call(file, part)
                elif isinstance(part, ast.BinOp):
                    self._calculation(part)
            if self._signs:
                self._signs |= before
                self.has_steps = True
                rule = rule_of(self._signs)
                self._note(rule.route, rule.read, f"{why} with a loss of its own: {rule.why}", file, node.lineno, True)
                return
        self._note(route_of_trainer(route, self._signs, settings), TRAINER, why, file, node.lineno)

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

    def _command(self, file: str, node: ast.Call) -> None:
        """Follows a program that is started."""
        if self._full_name(node.func, file).partition(".")[0] in {"subprocess", "os"} and node.args:
            words = _command_words(node.args[0], self._constants)
            self._start(started(words, self._program.files), file, node.lineno)

    def _save(self, file: str, node: ast.Call, name: str) -> None:
        if not self._depth:
            self._end_loop()
        if self._is_mixed and not self._loop:
            self._note("merge", 0.6, "weights of several checkpoints are combined", file, node.lineno)
        if name != "save_model":  # of a trainer
            evidence = Evidence(source="code", what=f"{name}() without any training", file=file, line=node.lineno)
            self.saves.append(Phase("copy", 0.6, evidence))

    def _end_loop(self) -> None:
        """Notes a loop that trains, when it has ended."""
        if self._loop is not None:
            rule, place = rule_of(self._signs | self._lasting), self._loop
            self._note(rule.route, rule.read, rule.why, place.file, getattr(place.node, "lineno", 0), is_loop=True)

    def _note(self, route: Route, confidence: float, why: str, file: str, line: int, is_loop: bool = False) -> None:
        signs = frozenset(self._signs | self._lasting)
        self._signs, self._loop, self._is_mixed = set(), None, False
        if len(self.phases) < MAX_PHASES:
            evidence = Evidence(source="code", what=why, file=file, line=line)
            self.phases.append(Phase(route, confidence, evidence, signs, is_loop))


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


def _command_words(node: ast.expr, constants: Mapping[str, ast.expr]) -> list[str]:
    """Returns the words of a command line, as far as the code has them as constants."""
    if isinstance(node, ast.Call) and last_name(node) == "split" and isinstance(node.func, ast.Attribute):
        node = node.func.value
    if isinstance(node, ast.Name):
        node = constants.get(node.id, node)
    if isinstance(node, ast.List | ast.Tuple):
        words: list[str] = []
        for each in node.elts:
            inner = each.value if isinstance(each, ast.Starred) else None
            known = constants.get(inner.id) if isinstance(inner, ast.Name) else None
            words += [_text(part) for part in known.elts] if isinstance(known, ast.List) else [_text(each)]
        return words
    return next(lines_of(_text(node)), [])


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.Attribute) and node.attr == "executable":
        return "python"
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "?"
