"""Landlock: a process permanently gives up access to files, ports and outside processes (Linux 5.13).

Contract: `restrict` binds the calling thread and everything that it starts afterwards; it cannot be undone. It needs no
privileges and no installation. An older kernel restricts less: `abi` returns the version that it supports. No version
covers UDP, unix sockets with a path, and metadata (stat, chmod).
Source: docs.kernel.org/userspace-api/landlock.html.

No library: the package py-landlock (0.1.1) cannot grant rights on single files (it requests folder rights for them,
which the kernel refuses) or on devices. This module makes the three system calls with ctypes.
"""

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_NO_NEW_PRIVS = 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_REMOVE_FILE, _MAKE_REG, _REFER = 1 << 5, 1 << 8, 1 << 13
_USE = _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_SHARE = _WRITE_FILE | _READ_FILE | _TRUNCATE | _REMOVE_FILE | _MAKE_REG
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All rights on files, by the ABI version that introduced the last of them."""
_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1
NETWORK_ABI = 4
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1 << 0, 1 << 1
SCOPES_ABI = 6


@dataclass(frozen=True)
class AccessRights:
    """What a restricted process may still access. Paths that do not exist, or are not accessible, are left out."""

    read: tuple[Path, ...] = ()
    """Files and folders to read and execute."""
    list_only: tuple[Path, ...] = ()
    """Folders to list, with all below."""
    write: tuple[Path, ...] = ()
    """Files and folders to read, change, create and remove."""
    use: tuple[Path, ...] = ()
    """Devices, or folders of devices, to read, write and control."""
    share: tuple[Path, ...] = ()
    """Folders in which files may be created, used and removed by name; they cannot be listed."""
    listen: bool = False
    """Whether it may listen on TCP ports, on any of them."""
    network: bool = False
    """Whether it may connect to and listen on any TCP port."""


def check(result: int, what: str = "") -> int:
    """Returns the result of a C function; raises OSError with its errno, and what has failed, if it is negative."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}" if what else os.strerror(error))
    return result


def prctl(option: int, value: int) -> None:
    """Sets a property of this process; raises OSError if the kernel refuses."""
    check(LIBC.prctl(option, value, 0, 0, 0), f"prctl {option} is refused")


def abi() -> int:
    """Returns the kernel's Landlock version; 0 if it has none or it is switched off."""
    version = LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_RULESET_VERSION))
    return max(0, int(version))


def restrict(rights: AccessRights, at_least: int = 1) -> None:
    """Gives up all access except `rights`; from ABI 6 on also signals and abstract sockets to outside processes.

    Args:
        at_least: The oldest Landlock version that is acceptable.

    Raises:
        OSError: The kernel has no Landlock, or an older version.
    """
    version = abi()
    if version < at_least:
        raise OSError(errno.ENOSYS, f"Landlock is too old: version {version} instead of {at_least}")
    mask = _FILE_RIGHTS[max((known for known in _FILE_RIGHTS if known <= version), default=1)]
    fields = [mask]
    if version >= NETWORK_ABI:
        fields.append(0 if rights.network else _CONNECT_TCP if rights.listen else _BIND_TCP | _CONNECT_TCP)
    if version >= SCOPES_ABI:
        fields.append(_SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS)
    ruleset = _call(_CREATE_RULESET, struct.pack(f"{len(fields)}Q", *fields), len(fields) * 8, 0)
    try:
        _allow_paths(ruleset, rights.read, _READ & mask)
        _allow_paths(ruleset, rights.list_only, _READ_DIR)
        _allow_paths(ruleset, rights.write, mask)
        _allow_paths(ruleset, rights.use, _USE & mask)
        _allow_paths(ruleset, rights.share, _SHARE & mask)
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def scope_signals() -> bool:
    """Limits this process's signals to itself and its descendants, and changes nothing else (Linux 6.12).

    Returns:
        False if this kernel does not support it.

    Raises:
        OSError: The kernel refuses.
    """
    if abi() < SCOPES_ABI:
        return False
    # Without this rule, the process could no longer move files between folders.
    ruleset = _call(_CREATE_RULESET, struct.pack("3Q", _REFER, 0, _SCOPE_SIGNALS), 24, 0)
    try:
        _allow_paths(ruleset, (Path("/"),), _REFER)
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return True


def _allow_paths(ruleset: int, paths: Iterable[Path], rights: int) -> None:
    for path in paths:
        try:
            beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        try:
            allowed = rights if stat.S_ISDIR(os.fstat(beneath).st_mode) else rights & _OF_A_FILE
            _call(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", allowed, beneath), 0)
        finally:
            os.close(beneath)


def _call(number: int, *arguments: int | bytes) -> int:
    values = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return check(LIBC.syscall(number, *values), "Landlock is unavailable")
