"""What the task measures."""

from a2rl.task_api.contract import Limits, Task, TaskVariant

TASK = Task(
    id="NAME",
    title="Guess the number",
    level=3,
    metric="share of games won",
    mini=TaskVariant(eval_items=100, limits=Limits(max_new_tokens=8, max_steps=6)),
)
