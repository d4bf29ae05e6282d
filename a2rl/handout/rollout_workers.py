"""Rollouts in several processes: this one and forks of it, which get the current weights before they play.

Tasks hand this file to agents as it is, next to `episodes.py`.
"""

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import torch
from safetensors.torch import load, save

Columns = dict[str, list[Any]]
"""One entry for each episode in each column."""
Play = Callable[[Any, Any, list[str], int], Columns]
"""Plays episodes by their names: model, tokenizer, names, seed."""


class _Fork(NamedTuple):
    """A process that plays, and the pipe to it."""

    process: BaseProcess
    pipe: Connection


class RolloutWorkers:
    """Distributes episodes among processes and returns their results in the order of the names."""

    def __init__(self, play: Play, processes: int) -> None:
        self._play, self._processes = play, processes
        self._forks: list[_Fork] = []

    def play(self, model: Any, tokenizer: Any, names: Sequence[str], seed: int) -> Columns:
        """Plays the named episodes; an exception in a process is raised here.

        Raises:
            RuntimeError: A process has died.
        """
        if self._processes == 1 or model.device.type != "cpu":
            return self._play(model, tokenizer, list(names), seed)
        while len(self._forks) < self._processes - 1:
            self._forks.append(self._fork(model, tokenizer))
        shares = [list(names[first :: self._processes]) for first in range(self._processes)]
        try:
            return _together(self._play_shares(model, tokenizer, shares, seed), len(names))
        except BaseException:
            # Answers that are still to come would be taken for answers of the next call.
            self._end()
            raise

    def _play_shares(self, model: Any, tokenizer: Any, shares: Sequence[list[str]], seed: int) -> list[Columns]:
        """Plays the first share in this process, and each other share in a fork."""
        # Cloned, because tied weights share memory, which safetensors does not support.
        weights = save({name: tensor.clone() for name, tensor in model.state_dict().items()})
        for number, fork in enumerate(self._forks, start=1):
            _send(fork.pipe, (weights, shares[number], seed + number))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            played = [self._play(model, tokenizer, shares[0], seed)]
        finally:
            torch.set_num_threads(threads)
        return played + [_answer(fork.pipe) for fork in self._forks]

    def _fork(self, model: Any, tokenizer: Any) -> _Fork:
        # Forked, like torch's data loaders, so that the closures of environments need not be picklable.
        fork = multiprocessing.get_context("fork")
        ours, theirs = fork.Pipe()
        inherited = [*(other.pipe for other in self._forks), ours]
        arguments = (theirs, inherited, self._play, model, tokenizer)
        process = fork.Process(target=_serve, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return _Fork(process, ours)

    def _end(self) -> None:
        """Ends all forks; the next call starts new ones."""
        for fork in self._forks:
            fork.pipe.close()
            fork.process.kill()
            fork.process.join()
        self._forks.clear()


def _serve(pipe: Connection, inherited: Sequence[Connection], play: Play, model: Any, tokenizer: Any) -> None:
    """Plays shares in a fork until the pipe is closed."""
    for connection in inherited:
        connection.close()
    torch.set_num_threads(1)
    while True:
        try:
            weights, names, seed = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            model.load_state_dict(load(weights))
            pipe.send(play(model, tokenizer, names, seed))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised in the process that waits
            pipe.send(error)


def _send(pipe: Connection, work: object) -> None:
    try:
        pipe.send(work)
    except OSError as error:
        raise RuntimeError("a process that plays episodes has died") from error


def _answer(pipe: Connection) -> Columns:
    try:
        answer: Columns | Exception = pipe.recv()
    except (EOFError, OSError) as error:  # the process died before or during its answer
        raise RuntimeError("a process that plays episodes has died") from error
    if isinstance(answer, Exception):
        raise answer
    return answer


def _together(parts: Sequence[Columns], count: int) -> Columns:
    whole: Columns = {column: [None] * count for column in parts[0]}
    for first, part in enumerate(parts):
        for column, entries in part.items():
            whole[column][first :: len(parts)] = entries
    return whole
