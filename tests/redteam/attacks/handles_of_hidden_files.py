"""Gets handles of hidden files, to open them later, and asks the kernel for its log and its mount table.

None of these calls is available in the sandbox.
"""

import ctypes
import platform
import struct
from functools import partial

LEVEL = "sandbox"
NUMBERS = {"x86_64": (303, 103), "aarch64": (264, 116)}
STATMOUNT, LISTMOUNT, ALL_MOUNTS = 457, 458, 0xFFFFFFFFFFFFFFFF
LOG_SIZE = 10


def attack(scene):
    if platform.machine() not in NUMBERS:
        scene.skip("system call numbers of another architecture")
    handle_of, log = NUMBERS[platform.machine()]
    handle, mount = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128)), ctypes.c_int()
    request, answer = struct.pack("IIQQ", 24, 0, ALL_MOUNTS, 0), (ctypes.c_uint64 * 64)()
    calls = {
        "a handle": (handle_of, -100, scene.hidden.encode(), handle, ctypes.byref(mount), 0),
        "the kernel's log": (log, LOG_SIZE, None, 0),
        "the mounts": (LISTMOUNT, request, answer, ctypes.c_size_t(64), 0),
    }
    return scene.try_each({name: partial(scene.syscall, *arguments) for name, arguments in calls.items()})
