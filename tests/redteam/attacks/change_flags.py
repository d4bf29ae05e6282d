"""Changes flags and project of files that it has open for reading only, by the controls of the file system.

A file's project says whose disk quota it counts for; a folder that is open is enough for btrfs to make one in it.
None of these controls works inside.
"""

import fcntl
import os
import struct
from pathlib import Path

LEVEL = "sandbox"
GET_FLAGS, SET_FLAGS, NO_DUMP = 0x80086601, 0x40086602, 0x40
SET_ATTRIBUTES, ENABLE_VERITY, BTRFS_SUBVOLUME = 0x401C5820, 0x40806685, 0x5000940E


def attack(scene):
    given = next(Path("models").glob("*/*"))
    got, stopped = [], []
    for target in (given, given.parent, Path(scene.workspace)):
        opened = os.open(target, os.O_RDONLY)
        for request, argument in ((SET_FLAGS, flags_of(opened)), (SET_ATTRIBUTES, struct.pack("5I8x", 0, 0, 0, 7, 0)),
                                  (ENABLE_VERITY, struct.pack("III", 1, 1, 4096) + bytes(116)),
                                  (BTRFS_SUBVOLUME, bytearray(struct.pack("q4088s", 0, b"planted")))):  # fmt: skip
            try:
                fcntl.ioctl(opened, request, argument)
            except OSError as error:
                stopped.append(error.strerror)
            else:
                got.append(f"{request:x}: {target}")
    if got:
        return got
    raise PermissionError(f"{len(stopped)} times stopped: {sorted(set(stopped))}")


def flags_of(opened):
    try:
        (flags,) = struct.unpack("q", fcntl.ioctl(opened, GET_FLAGS, bytes(8)))
    except OSError:
        flags = 0
    return struct.pack("q", flags ^ NO_DUMP)
