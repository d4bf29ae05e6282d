"""Rollouts by several processes: this one and forks of it, which are sent the weights before they play.

Tasks hand this file to agents as it is, beside `episodes.py`.
"""

import multiprocessing
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch
from safetensors.torch import load, save

Columns = dict[str, list[Any]]
"""One entry for each episode in each column."""
Play = Callable[[Any, Any, list[str], int], Columns]
"""Plays episodes by their names: model, tokenizer, names, seed."""


class Players:
    """Share names out among processes, and put together what they bring back, in the order of the names."""

    def __init__(self, play: Play, processes: int) -> None:
        self._play, self._processes = play, processes
        self._forks: list[Connection] = []

    def play(self, model: Any, tokenizer: Any, names: Sequence[str], seed: int) -> Columns:
        """Raises RuntimeError where a process has died; what a process raised is raised here."""
        if self._processes == 1 or model.device.type != "cpu":
            return self._play(model, tokenizer, list(names), seed)
        while len(self._forks) < self._processes - 1:
            self._fork(model, tokenizer)
        shares = [list(names[first :: self._processes]) for first in range(self._processes)]
        # Cloned: tied weights share memory, which the format cannot say.
        weights = save({name: tensor.clone() for name, tensor in model.state_dict().items()})
        for number, fork in enumerate(self._forks, start=1):
            with suppress(BrokenPipeError):  # of one that has died, as its answer will say
                fork.send((weights, shares[number], seed + number))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            played = [self._play(model, tokenizer, shares[0], seed)]
        finally:
            torch.set_num_threads(threads)
            answers = [_answer(fork) for fork in self._forks]  # of all, so that none is left over for the next time
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
            played.append(answer)
        return _together(played, len(names))

    def _fork(self, model: Any, tokenizer: Any) -> None:
        # Forked, not spawned: what an environment closes over need not be picklable. As torch's own data loaders do.
        fork = multiprocessing.get_context("fork")
        ours, theirs = fork.Pipe()
        inherited = [*self._forks, ours]
        fork.Process(target=_serve, args=(theirs, inherited, self._play, model, tokenizer), daemon=True).start()
        theirs.close()
        self._forks.append(ours)


def _serve(pipe: Connection, inherited: Sequence[Connection], play: Play, model: Any, tokenizer: Any) -> None:
    """What a fork does until the other end is closed."""
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
        except Exception as error:  # noqa: BLE001  for the process that waits
            pipe.send(error)


def _answer(fork: Connection) -> Columns | Exception:
    try:
        answer: Columns | Exception = fork.recv()
    except EOFError:
        return RuntimeError("a process that plays episodes has died")
    return answer


def _together(parts: Sequence[Columns], count: int) -> Columns:
    whole: Columns = {column: [None] * count for column in parts[0]}
    for first, part in enumerate(parts):
        for column, entries in part.items():
            whole[column][first :: len(parts)] = entries
    return whole
