"""DeepSearchQA: questions that take several searches, judged (Google DeepMind 2026, arXiv 2601.20975)."""

from a2rl.core.hub import DataSource
from a2rl.task_api.contract import Limits, Option, Task, TaskVariant

TASK = Task(
    id="deepsearchqa",
    title="DeepSearchQA",
    level=3,
    metric="questions answered",
    source=DataSource(
        repo_id="google/deepsearchqa",
        revision="b2623f8653065c2672de6d941fc5434cd652376c",
        files=("DSQA-full.csv",),
        sha256={"DSQA-full.csv": "25d48dcf7efa872e5467032e8b8eedf38d301f59a252d0da95cda584baa78396"},
        url="https://huggingface.co/datasets/google/deepsearchqa",
        licence="Apache-2.0",
    ),
    mini=TaskVariant(eval_items=240, limits=Limits(max_new_tokens=64, max_steps=6)),
    # As the reference (autorl_bench/benchmarks/deepsearchqa/eval.py): 200 of the 800 that are held out, 6 steps.
    full=TaskVariant(eval_items=200, limits=Limits(max_new_tokens=256, max_steps=6)),
    options={
        "search": Option(
            default="pages",
            choices=("pages", "serpapi", "searxng"),
            help="What is searched. pages: the pages in the data (mini, or a mirror's); serpapi: Google, with"
            " SERPAPI_KEY; searxng: your own server, at SEARXNG_URL.",
        ),
        "prompts": Option(
            default="repaired",
            choices=("repaired", "faithful"),
            help="The wording of the instructions in the full variant. faithful: the reference's, and an action in a"
            " thought counts.",
        ),
        "turns": Option(
            default="repaired",
            choices=("repaired", "faithful"),
            help="Where a turn of the model ends. faithful: also before its action, as in the reference, so that an"
            " action counts only on the line of its thought.",
        ),
    },
    judged=("full",),
    serves_agents=True,
    annotator="correct_or_incorrect",
)
"""The mini variant has its own judge: see annotator.py."""
