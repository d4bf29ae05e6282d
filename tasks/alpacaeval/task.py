"""AlpacaEval 2.0: open-ended instructions, judged against GPT-4 (Dubois et al. 2024, arXiv 2404.04475)."""

from a2rl.core.hub import DataSource
from a2rl.task_api.contract import Limits, Task, TaskVariant

TASK = Task(
    id="alpacaeval",
    title="AlpacaEval 2.0",
    level=2,
    metric="length-controlled win rate",
    source=DataSource(
        repo_id="tatsu-lab/alpaca_eval",
        revision="2edc6fad8be6b14ea7230aabfd08188da6b8b814",
        files=("alpaca_eval_gpt4_baseline.json", "df_gamed.csv"),
        sha256={"df_gamed.csv": "97aeec3f1c7de6dee6fd31fe66f1702623f4614c3efe1c6fc5f4927cd5fd674d"},
        url="https://github.com/tatsu-lab/alpaca_eval",
        licence="CC-BY-NC-4.0",
    ),
    mini=TaskVariant(eval_items=200, limits=Limits(max_new_tokens=32)),
    # 512 new tokens, as the reference (autorl_bench/benchmarks/alpacaeval/eval.py, `max_tokens`).
    full=TaskVariant(eval_items=805, limits=Limits(max_new_tokens=512)),
    judged=("full",),
    annotator="alpaca_eval_gpt5_2_fn",  # the reference's (autorl_bench/benchmarks/alpacaeval/annotators_gpt52_fn)
)
"""The mini variant brings its own judge: see annotator.py."""
