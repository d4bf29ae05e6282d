"""WebShop: find and buy what an instruction asks for (Yao et al. 2022, arXiv 2207.01206)."""

from a2rl.core.hub import DataSource
from a2rl.task_api.contract import Limits, Option, Task, TaskVariant

TASK = Task(
    id="webshop",
    title="WebShop",
    level=3,
    metric="purchases worth at least half",
    # The release lies on Google Drive; this is a copy of its files, which are held to their digests (release.py).
    source=DataSource(
        repo_id="YWZBrandon/webshop-data",
        revision="ce990fff5aee388db2706f07820c578ab68e0453",
        files=("items_shuffle_1000.json", "items_ins_v2_1000.json", "items_human_ins.json"),
        sha256={
            "items_shuffle_1000.json": "30a4765c3a327af72d9a9a95a6b2486d516f0fa1d3ecd83681901ce82a21b269",
            "items_ins_v2_1000.json": "f88a36314a397b53b3d9c3fa5878e5f7b26d35019a51ec83fbedeca61a948f6f",
            "items_human_ins.json": "cf78667548a71786e1d9049c24b802e48e1084ad4bb021cae56ce1f6d96954a3",
        },
        url="https://github.com/princeton-nlp/WebShop",
        licence="MIT",
    ),
    mini=TaskVariant(eval_items=200, limits=Limits(max_new_tokens=32, max_steps=15)),
    # As the reference (autorl_bench/benchmarks/webshop/eval.py): sessions 0 to 99 of the edition with 1,000 products.
    full=TaskVariant(eval_items=100, limits=Limits(max_new_tokens=100, max_steps=50)),
    options={
        "prompts": Option(
            default="repaired",
            choices=("repaired", "faithful"),
            help="The wording of the prompts in the full variant, and how an action is read. faithful: as in the"
            " reference.",
        )
    },
)
