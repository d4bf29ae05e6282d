"""Sends the folder of a run whose baseline, or grade, was replaced by one that makes the result look better.

Records agree with the ledger, and the ledger's chain with itself; whoever verifies the run sees that they do not.
"""

import json

LEVEL = "sandbox"


def attack(scene):
    raise PermissionError("the folder is made outside")


def held(after):
    from tests.redteam.look import reader

    def better(name, key, score):
        def edit(folder):
            path = folder / name
            found = json.loads(path.read_text())
            assert key in found, sorted(found)
            found[key]["mean"] = score
            path.write_text(json.dumps(found))

        return edit

    def verdict(folder):
        path = folder / "records" / "grade.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "verdict": "improved", "submission_id": 1}))

    return reader().look_at(
        better("records/baseline.json", "private", 0.0), better("grades/baseline.json", "score", 0.0), verdict
    )
