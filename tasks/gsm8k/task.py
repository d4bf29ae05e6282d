"""GSM8K: grade-school math word problems, scored by the final number (Cobbe et al., arXiv 2110.14168)."""

from a2rl.core.hub import DataSource
from a2rl.task_api.contract import Limits, Option, Task, TaskVariant

TASK = Task(
    id="gsm8k",
    title="GSM8K",
    level=1,
    metric="exact match of the final number",
    source=DataSource(
        repo_id="openai/gsm8k",
        revision="740312add88f781978c0658806c59bc2815b9866",
        files=("main/train-00000-of-00001.parquet", "main/test-00000-of-00001.parquet"),
        url="https://github.com/openai/grade-school-math",
        licence="MIT",
    ),
    mini=TaskVariant(eval_items=400, limits=Limits(max_new_tokens=96)),
    # 512 new tokens, as the reference's generation config (opencompass gsm8k_gen_1d7fe4) allows.
    full=TaskVariant(eval_items=1319, limits=Limits(max_new_tokens=512)),
    options={
        "prompts": Option(
            default="repaired",
            choices=("repaired", "faithful"),
            help="The solved examples, and how an answer is read. faithful: as in the reference, which reads `1,000`"
            " as 0.",
        )
    },
)
