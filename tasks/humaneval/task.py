"""HumanEval: functions written from their docstrings, scored by unit tests (Chen et al. 2021, arXiv 2107.03374)."""

from a2rl.core.hub import DataSource
from a2rl.task_api.contract import Limits, Option, Task, TaskVariant

TASK = Task(
    id="humaneval",
    title="HumanEval",
    level=1,
    metric="functions that pass their tests (pass@1)",
    source=DataSource(
        repo_id="openai/openai_humaneval",
        revision="7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
        files=("openai_humaneval/test-00000-of-00001.parquet",),
        url="https://github.com/openai/human-eval",
        licence="MIT",
    ),
    mini=TaskVariant(eval_items=240, limits=Limits(max_new_tokens=48)),
    # The reference grades the second half of the 164 problems (autorl_bench/benchmarks/__init__.py). Its config leaves
    # the length of answers to the model's; 512 is what opencompass's other one for them (humaneval_gen_8e312c) allows.
    full=TaskVariant(eval_items=82, limits=Limits(max_new_tokens=512)),
    options={
        "prompts": Option(
            default="repaired",
            choices=("repaired", "faithful"),
            help="How the function is found in an answer. faithful: as in the reference, the first code block, or else"
            " all of it.",
        )
    },
)
