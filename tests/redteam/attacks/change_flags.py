"""Changes the flags and the project of files that it has open for reading only, by ioctl.

A file's project decides to which disk quota it counts; on btrfs, an open folder is enough to create a subvolume in it.
None of these ioctls works in the sandbox.
"""

import fcntl
import os
import struct
from functools import partial
from pathlib import Path

LEVEL = "sandbox"
GET_FLAGS, SET_FLAGS, NO_DUMP = 0x80086601, 0x40086602, 0x40
SET_ATTRIBUTES, ENABLE_VERITY, BTRFS_SUBVOLUME = 0x401C5820, 0x40806685, 0x5000940E


def attack(scene):
    given = next(Path("models").glob("*/*"))
    ways = {}
    for target in (given, given.parent, Path(scene.workspace)):
        opened = os.open(target, os.O_RDONLY)
        for name, request, argument in (
            ("flags", SET_FLAGS, flags_of(opened)),
            ("attributes", SET_ATTRIBUTES, struct.pack("5I8x", 0, 0, 0, 7, 0)),
            ("verity", ENABLE_VERITY, struct.pack("III", 1, 1, 4096) + bytes(116)),
            ("subvolume", BTRFS_SUBVOLUME, bytearray(struct.pack("q4088s", 0, b"planted"))),
        ):
            ways[f"{name}: {target}"] = partial(fcntl.ioctl, opened, request, argument)
    return scene.try_each(ways)


def flags_of(opened):
    try:
        (flags,) = struct.unpack("q", fcntl.ioctl(opened, GET_FLAGS, bytes(8)))
    except OSError:
        flags = 0
    return struct.pack("q", flags ^ NO_DUMP)
