"""The original engine (alfworld 0.4.2, textworld 1.7.0) with the interface of `alfred.Play`, to compare ours with it.

    with memoised(), StockPlay(path) as play:
        play.step("go to desk 1")

It is slow (see `memoised`) and not thread-safe: it swaps `sys.stdout` and writes `sys.argv`.
"""

import contextlib
import copy
import io
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

from a2rl.core.errors import UsageError


class StockPlay:
    """One episode in the stock engine. Close it, or use it in a `with`."""

    _free_libraries: ClassVar[list[Any]] = []
    """The original engine maps another copy of the planner's library (34 MB) for every play, and unmapping two of them
    crashes the process on exit. So plays reuse the libraries of closed ones."""

    def __init__(self, path: Path) -> None:
        if find_spec("textworld") is None:
            raise UsageError("TextWorld is not installed: `make setup-textworld` compiles it")
        # Without it alfworld creates a folder in the home directory.
        os.environ.setdefault("ALFWORLD_DATA", tempfile.gettempdir())
        with _quiet():
            import fast_downward
            import textworld
            from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos

            infos = textworld.EnvInfos(won=True, admissible_commands=True, extras=["gamefile"])
            load = self._free_libraries.pop if self._free_libraries else fast_downward.load_lib
            with _replaced(fast_downward, "load_lib", load):
                self._env: Any = textworld.start(str(path), infos, wrappers=[AlfredDemangler, AlfredInfos])
            self._state: Any = self._env.reset()
        self.intro: str = self._state.feedback
        self.steps = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def won(self) -> bool:
        """See `alfred.Play`."""
        return bool(self._state["won"])

    def step(self, command: str) -> str:
        """See `alfred.Play.step`."""
        self.steps += 1
        with _quiet():
            self._state = self._env.step(command)[0]
        return str(self._state.feedback)

    def admissible(self) -> list[str]:
        """See `alfred.Play.admissible`."""
        return list(self._state["admissible_commands"])

    def close(self) -> None:
        """Ends the play."""
        if self._env is not None:
            library, self._env = self._env.unwrapped.downward_lib, None
            library.cleanup()
            self._free_libraries.append(library)


@contextlib.contextmanager
def memoised() -> Iterator[None]:
    """Makes the original engine about 80 times as fast by caching what it computes repeatedly; play stays the same.

    Most of the time of a step is spent on parsing the same constant texts for each admissible command, and most of a
    reset on four translations of the same problem. Whatever is cached is a function of its arguments, or is used by the
    planner alone (the `optimize` translation), which no play here needs.
    """
    with _quiet():
        import fast_downward
        from textworld.envs.pddl import logic, textgen
        from textworld.logic import Rule

    grammar = textgen.ContextSensitiveGrammar
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (textgen, "_parse_and_convert", _cloning(cache(textgen._parse_and_convert))),
            (textgen, "copy_context", _context_copy),
            (textgen.Symbol, "copy", _symbol_copy),
            (Rule, "parse_conjunctive_query", cache(Rule.parse_conjunctive_query)),
            (grammar, "derive", _derive_templates_once(grammar.derive)),
            (logic, "_parse_and_convert", lru_cache(2)(logic._parse_and_convert)),
            (fast_downward, "pddl2sas", _translate_once(fast_downward.pddl2sas)),
        ):
            stack.enter_context(_replaced(owner, name, value))
        yield


def _cloning(parse: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Symbols store the context in which they are derived, so every caller needs copies."""

    def clones(text: str, **options: Any) -> list[Any]:
        return [copy.copy(symbol) for symbol in parse(text, **options)]

    return clones


def _context_copy(context: dict[str, Any]) -> dict[str, Any]:
    # The engine also copies names and variables, which never change.
    return context | {"variables": dict(context["variables"]), "mapping": dict(context["mapping"])}


def _symbol_copy(symbol: Any, context: dict[str, Any]) -> Any:
    twin = copy.copy(symbol)
    twin.context = _context_copy(context)
    return twin


def _derive_templates_once(derive: Callable[..., str]) -> Callable[..., str]:
    """Command templates depend on names and places of receptacles only, which never change in a game."""

    def derive_once(grammar: Any, start: str, context: dict[str, Any]) -> str:
        if start.startswith("#"):
            return derive(grammar, start, context)
        texts = grammar.__dict__.setdefault("_derived_once", {})
        key = (start, *(variable.name for variable in context["mapping"].values()))
        if key not in texts:
            texts[key] = derive(grammar, start, context)
        return str(texts[key])

    return derive_once


def _translate_once(translate: Callable[..., Any]) -> Callable[..., Any]:
    remembered = lru_cache(2)(translate)

    def translate_once(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> Any:
        return remembered(domain, problem)

    return translate_once


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses the engine's output and warnings, and restores `sys.argv`."""
    argv, nowhere = sys.argv, io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            sys.argv = argv
