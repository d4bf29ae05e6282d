"""Sends a bundle that fills the reader's disk or memory: gigabytes of zeros in kilobytes, endless lists, deep JSON.

What a bundle says of itself is compared with limits before it is unpacked, and it may not have more than it says.
"""

import json

LEVEL = "sandbox"
DEEP = b"[" * 200_000


def attack(scene):
    raise PermissionError("the bundle is made outside")


def held(after):
    from tests.bundles import with_files
    from tests.redteam.look import reader

    def says(files):
        return lambda members: members.__setitem__(
            0, (members[0][0], json.dumps({**json.loads(members[0][1]), "files": files}).encode())
        )

    def more_than_it_says(members):
        entry = next(place for place, (entry, _) in enumerate(members) if entry.name == "run/logs/agent.log")
        members[entry] = members[entry][0], bytes(1 << 28)

    empty = {"bytes": 0, "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
    return reader().audit(
        says({"run/ledger.jsonl": {**empty, "bytes": 1 << 58}}),
        says({f"run/logs/{number}": empty for number in range(200_000)}),
        more_than_it_says,
        lambda members: members.__setitem__(0, (members[0][0], DEEP)),
        with_files({"run/ledger.jsonl": DEEP, "run/records/grade.json": DEEP, "run/spec.json": DEEP}),
    )
