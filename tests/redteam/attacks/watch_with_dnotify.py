"""Gets signals about changes in a folder that it has open, by dnotify, the predecessor of inotify.

An agent cannot observe what others do in folders that are not its own.
"""

import fcntl
import os

LEVEL = "sandbox"
DN_ACCESS, DN_CREATE = 1, 4


def attack(scene):
    folder = os.open("data", os.O_RDONLY | os.O_DIRECTORY)
    fcntl.fcntl(folder, fcntl.F_NOTIFY, DN_ACCESS | DN_CREATE)
    return "told of every access to the data"
