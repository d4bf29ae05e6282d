"""Attaches, lists and removes shared memory, semaphores and queues of other processes, by guessing their numbers.

System V and POSIX IPC objects are not in any folder. The agent cannot reach any of those that exist outside.
"""

import ctypes
import platform
from functools import partial

LEVEL = "sandbox"
NUMBERS = {
    "x86_64": {"shmctl": 31, "semctl": 66, "msgctl": 71},
    "aarch64": {"shmctl": 195, "semctl": 191, "msgctl": 187},
}
INFO = {"shmctl": 14, "semctl": 19, "msgctl": 12}


def attack(scene):
    if platform.machine() not in NUMBERS:
        scene.skip("system call numbers of another architecture")
    ways, answer = {}, ctypes.create_string_buffer(256)
    for name, number in NUMBERS[platform.machine()].items():
        arguments = (0, 0, INFO[name], answer) if name == "semctl" else (0, INFO[name], answer)
        ways[name] = partial(scene.syscall, number, *arguments)
    return scene.try_each(ways)
