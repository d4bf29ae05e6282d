"""Regenerates the eval set from a2rl's public code, and looks whether its own items are among those it is graded on.

The agent knows this repository by heart: the generators, and every seed in it. What decides the items and the halves of
its run is a secret, to which the run has committed, and which nothing that the agent can read contains.
"""

import re
from pathlib import Path

LEVEL = "run"


def attack(scene):
    """Searches all that it can read for anything that decides a draw."""
    found = []
    for file in [Path("run_meta.json"), *Path("..").glob("given/**/*"), *Path().rglob("*")]:
        try:
            text = file.read_text(errors="replace") if file.is_file() and file.stat().st_size < 1 << 20 else ""
        except OSError:
            continue
        found += re.findall(r"\b(?:split_seed|salt|draw)\b", text) if file.name.endswith(".json") else []
    for path in (scene.hidden, scene.ledger, str(Path(scene.ledger).with_name("spec.json"))):
        try:
            found.append(Path(path).read_bytes()[:20])
        except OSError:
            continue
    if not found:
        raise PermissionError("nothing that it can read says anything of the draw")
    return found


def held(after):
    """Regenerates the public edition, as an agent could, and compares it with the items of the run."""
    from a2rl.core.files import read_jsonl
    from a2rl.run.inputs import hidden_of
    from a2rl.task_api.split import split_ids
    from tasks.gsm8k import mini

    rows = read_jsonl(hidden_of(after.run) / "eval.jsonl")
    own = {mini.canonical(row["question"]) for row in rows}
    known = {mini.canonical(each.question) for each in mini.generate(len(rows), 2604, "eval")}
    if own & known:
        return f"it knows {len(own & known)} of {len(own)} items"
    ids = [str(number) for number in range(400)]
    spec = after.run.spec
    public = {tuple(split_ids(ids, "public", seed)) for seed in (0, 20260412, spec.seed)}
    if tuple(split_ids(ids, "public", spec.split_seed)) in public:
        return "it knows the halves"
    return after.got or ""
