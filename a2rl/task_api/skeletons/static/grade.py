"""How the model is graded: by items.py."""

from a2rl.task_api.rows import RowsGrader

from . import items

_grader = RowsGrader(items)
item_ids, grade = _grader.item_ids, _grader.grade
score_outputs, gold_outputs = _grader.score_outputs, _grader.gold_outputs
