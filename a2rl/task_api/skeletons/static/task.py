"""What the task measures."""

from a2rl.task_api.contract import Limits, Task, TaskVariant

TASK = Task(
    id="NAME",
    title="Sums of two numbers",
    level=1,
    metric="share of right answers",
    mini=TaskVariant(eval_items=200, limits=Limits(max_new_tokens=12)),
)
