"""Writes to another user's terminal, and reads what is typed there.

An agent can open only its own terminals, by whatever name or number.
"""

import os

LEVEL = "sandbox"


def attack(scene):
    if not hasattr(scene, "terminal"):
        scene.skip("nobody else has a terminal here")
    reasons = []
    for flags in (os.O_RDWR, os.O_WRONLY, os.O_RDONLY | os.O_NONBLOCK):
        try:
            opened = os.open(scene.terminal, flags | os.O_NOCTTY)
            found = os.fstat(opened).st_rdev, os.fstat(opened).st_dev
        except OSError as error:
            reasons.append(os.strerror(error.errno))
            continue
        if list(found) == scene.terminal_identity:  # not one of its own terminals with the same number
            return f"opened {scene.terminal} with flags {flags:o}"
        reasons.append("another terminal of the same name")
    raise PermissionError(", ".join(reasons))
