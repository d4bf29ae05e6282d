"""Writes to somebody else's terminal, and reads what is typed there.

An agent's terminals are its own: it cannot open another one, by any name or number.
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
        if list(found) == scene.terminal_identity:  # and not one of its own with the same number
            return f"opened {scene.terminal} with flags {flags:o}"
        reasons.append("another terminal of the same name")
    raise PermissionError(", ".join(reasons))
