"""ALFWorld: household games in text, played to the end (Shridhar et al. 2021, arXiv 2010.03768)."""

from a2rl.core.hub import DataSource
from a2rl.task_api.contract import Limits, Option, Task, TaskVariant

TASK = Task(
    id="alfworld",
    title="ALFWorld",
    level=3,
    metric="games won",
    # What `alfworld-download` of alfworld 0.4.2 fetches. The later 2.1.3 has fewer receptacles: other games.
    source=DataSource(
        host="github",
        repo_id="alfworld/alfworld",
        revision="0.4.0",
        files=("json_2.1.2_tw-pddl.zip",),
        url="https://github.com/alfworld/alfworld",
        licence="MIT",
    ),
    mini=TaskVariant(eval_items=240, limits=Limits(max_new_tokens=24, max_steps=30)),
    # As the reference (autorl_bench/benchmarks/alfworld/eval.py): the 134 games of valid_unseen.
    full=TaskVariant(eval_items=134, limits=Limits(max_new_tokens=100, max_steps=50)),
    options={
        "prompts": Option(
            default="repaired",
            choices=("repaired", "faithful", "none"),
            help="The two examples before a game. faithful: ReAct's own, whose `put X in/on Y` no game of alfworld 0.4"
            " understands, and commands are read as they are; repaired: ours, in the games' own commands; none: for"
            " models trained without any.",
        ),
    },
)
