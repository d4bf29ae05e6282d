"""Estimates how long an engine of vLLM works on a grade, by its tokens and by what the device can do in a second.

    work = Work(items=1_319, prompt=980, fresh=80, answer=200, longest=512)
    str(time_of_grade(work, memory, "bfloat16", DEVICES["H100"]))

A model reads a prompt as fast as the device multiplies. It writes in steps, each of which adds a token to every answer
in progress: a step reads all weights once, and each of its tokens reads what the cache has of its own text. So the time
is a sum over the tokens that are read, those that are written, and the steps. Grading itself, such as a judge, programs
that are run and the answers of an environment, is not part of it.
"""

from a2rl.core.files import StrictModel
from a2rl.sampling.engine_params import NUMBER_BYTES, ON_GPU, Dtype, EngineMemory


class Work(StrictModel):
    """The tokens of a grade. Those of an item are means."""

    items: int
    prompt: float
    """What an item's first prompt has."""
    fresh: float
    """What of it no other prompt begins with; the rest is in the cache."""
    turns: float = 1.0
    """How many prompts an item has."""
    later: float = 0.0
    """What an episode adds between the answers. The rest of each turn's prompt is in the cache."""
    answer: float
    """What the model writes to an item, in all turns."""
    longest: float
    """The most that it writes to one."""


class Device(StrictModel):
    """What a device reaches in practice."""

    read_flops: float
    """Operations in a second while it reads a prompt, in the dtype that is computed in."""
    write_flops: float
    """The same in a step, whose matrices are narrow."""
    weights_per_s: float
    """Bytes of weights that it reads in a second."""
    cache_per_s: float
    """Bytes of keys and values that it reads in a second."""
    shared_per_s: float
    """The same of what several texts begin with, which it has read a moment ago for another text."""
    step_s: float
    """What a step takes besides: scheduling, starting kernels, drawing tokens."""
    turn_s: float
    """What a prompt takes besides its tokens: its text is divided into tokens, and the cache is searched for them."""
    block: int
    """Tokens of a block of the cache. Only whole blocks are found again."""
    load_per_s: float
    """Bytes of a checkpoint that an engine takes in a second, with the comparison of every weight."""


def _gpu(flops: float, bytes_per_s: float) -> Device:
    """Returns a GPU by its data sheet, of which these shares are estimates."""
    return Device(
        read_flops=0.5 * flops,
        write_flops=0.5 * flops,
        weights_per_s=0.8 * bytes_per_s,
        cache_per_s=0.6 * bytes_per_s,
        shared_per_s=0.6 * bytes_per_s,
        step_s=5e-3,
        turn_s=2e-3,
        block=16,
        load_per_s=2e9,
    )


DEVICES = {"A100": _gpu(312e12, 2.0e12), "H100": _gpu(989e12, 3.35e12), "H200": _gpu(989e12, 4.8e12)}
"""GPUs by a part of their name."""


class GradeTime(StrictModel):
    """The seconds of a grade on a kept engine."""

    load_s: float
    read_s: float
    write_s: float
    at_once: int
    """Answers in progress at a time."""

    @property
    def total_s(self) -> float:
        """The sum."""
        return self.load_s + self.read_s + self.write_s


def device_named(name: str) -> Device | None:
    """Returns a GPU by its full name, such as `NVIDIA H100 80GB HBM3`; None if it is not known."""
    return next((device for part, device in DEVICES.items() if part in name), None)


def time_of_grade(work: Work, memory: EngineMemory, dtype: Dtype, device: Device) -> GradeTime:
    """Estimates a grade.

    Args:
        work: Its tokens.
        memory: The engine's plan, which has the size of the weights and of the cache.
        dtype: The dtype that the engine computes in.
        device: What computes.
    """
    own = work.fresh + work.later + work.answer
    at_once = max(1, min(work.items, ON_GPU["max_num_seqs"], int(memory.cache_tokens / own)))
    operations = 2 * memory.weights_bytes / NUMBER_BYTES[dtype]
    read = work.fresh + work.later + work.turns * device.block / 2
    # While the longest answers end, fewer are in progress.
    steps = work.items * work.answer / at_once + work.longest - work.answer
    own_context, shared_context = work.fresh + (work.later + work.answer) / 2, work.prompt - work.fresh
    token_bytes = memory.cache_bytes / memory.cache_tokens
    look_back_s = token_bytes * (own_context / device.cache_per_s + shared_context / device.shared_per_s)
    step_s = memory.weights_bytes / device.weights_per_s + device.step_s
    return GradeTime(
        load_s=memory.weights_bytes / device.load_per_s,
        read_s=work.items * (work.turns * device.turn_s + read * operations / device.read_flops),
        write_s=steps * step_s + work.items * work.answer * (operations / device.write_flops + look_back_s),
        at_once=at_once,
    )
