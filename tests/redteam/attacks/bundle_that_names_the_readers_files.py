"""Sends a bundle that takes the reader's own files for its base model and hidden data, and brings code of tasks.

The reader's base model is found by its name alone, the hidden data are those of the bundle, and code is refused.
"""

import json

LEVEL = "sandbox"


def attack(scene):
    raise PermissionError("the bundle is made outside")


def held(after):
    from tests.bundles import with_files
    from tests.redteam.look import reader

    def record(**changes):
        def edit(members):
            [text] = [content for entry, content in members if entry.name == "run/records/setup.json"]
            with_files({"run/records/setup.json": json.dumps({**json.loads(text), **changes}).encode()})(members)

        return edit

    return reader().audit(
        record(base_model="../../original/given", hidden=str(reader().victim.parent)),
        with_files({"tasks/gsm8k/grade.py": b"import os; os.abort()", "run/code/.git/config": b"[core]\n"}),
        with_files({"run/given/models/tiny/config.json": b"{}", "run/workspace/code/x.py": b"", "run/owner.lock": b""}),
    )
