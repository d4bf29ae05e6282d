"""Splits the grading of one checkpoint into parts for several devices, and puts the results together.

The items of a part are spread over the whole eval set. Greedy answers are those of the undivided job, except where two
tokens tie; sampled answers (temperature above 0) come from other random numbers.
"""

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from a2rl.core.files import write_model
from a2rl.grading.job import GradeJob, GradeResult, Part, ids_of_job, score_items
from a2rl.grading.outputs import join_outputs, outputs_path


def parts_of(job: GradeJob, most: int) -> list[GradeJob]:
    """Returns the jobs that together grade what a job grades: at most this many, and only the job itself if it is one.

    Raises:
        UsageError: The hidden data is missing.
    """
    if most == 1:
        return [job]
    items = len(ids_of_job(job))
    count = max(1, min(most, items))
    return [
        job.model_copy(update={"part": Part(place, count), "result": _part_of(job, place, count)})
        for place in range(count)
    ]


def merged(job: GradeJob, parts: Sequence[GradeJob], results: Sequence[GradeResult]) -> GradeResult:
    """Returns the result of a job from those of its parts, and writes it in their place."""
    if parts == [job]:
        return results[0]
    rounds = zip_longest(*(result.items for result in results))
    items = [item for one_of_each in rounds for item in one_of_each if item is not None]
    # The sum of the parts is the time that one device would have needed, from which the limits of grades are computed.
    seconds = sum(result.score.seconds for result in results)
    score = score_items(job.task, job.hidden, items, seconds)
    whole = GradeResult(dtype=job.dtype, engine_start=results[0].engine_start, score=score, items=tuple(items))
    join_outputs([outputs_path(part.result) for part in parts], outputs_path(job.result))
    write_model(job.result, whole)
    for part in parts:
        part.result.unlink(missing_ok=True)
    return whole


def _part_of(job: GradeJob, place: int, count: int) -> Path:
    return job.result.with_name(f"{job.result.stem}-part-{place + 1}-of-{count}.json")
