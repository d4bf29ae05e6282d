"""The object store with the copies of runs: a folder (`file:///srv/a2rl`) or a bucket (`s3://bucket/prefix`).

S3 takes its keys, region and endpoint from the usual variables: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
AWS_ENDPOINT_URL.
"""

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from a2rl.core.errors import A2rlError, InfrastructureError, UsageError
from a2rl.core.files import MACHINE_ERRORS

PARTIAL = ".part"


class ObjectStore:
    """Objects by key. A key that can be read has its whole content.

    Args:
        url: `file:///folder` or `s3://bucket/prefix`.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    @property
    def local_folder(self) -> Path | None:
        """The folder, if the store is one on this machine."""
        return Path(self._url.removeprefix("file://")) if self._url.startswith("file://") else None

    def write(self, key: str, content: bytes) -> None:
        """Writes an object; an existing one is replaced as a whole."""
        with self._errors(f"write {key}"):
            if (folder := self.local_folder) is None:
                self._files.pipe_file(self._path(key), content)
                return
            partial = self._partial(folder / key)
            partial.write_bytes(content)
            _publish(partial, folder / key)

    def upload(self, key: str, path: Path) -> None:
        """Copies a file into the store; an existing object is replaced as a whole."""
        with self._errors(f"write {key}"):
            if (folder := self.local_folder) is None:
                self._files.put_file(str(path), self._path(key))
                return
            partial = self._partial(folder / key)
            self._files.put_file(str(path), str(partial))
            _publish(partial, folder / key)

    def download(self, key: str, path: Path) -> None:
        """Copies an object to a file, which must not exist yet."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._errors(f"read {key}"):
            self._files.get_file(self._path(key), str(path))

    def read(self, key: str) -> bytes | None:
        """Returns the content of an object; None if there is no such object."""
        with self._errors(f"read {key}"), suppress(FileNotFoundError):
            return bytes(self._files.cat_file(self._path(key)))
        return None

    def read_all(self, keys: Sequence[str]) -> list[bytes]:
        """Returns the contents of objects, fetched side by side where the store can do that.

        Raises:
            InfrastructureError: One of them is missing.
        """
        with self._errors("read the ledger"):
            if not keys:
                return []
            found: Mapping[str, bytes] = self._files.cat([self._path(key) for key in keys])
            by_name = {path.rpartition("/")[2]: content for path, content in found.items()}
            return [by_name[key.rpartition("/")[2]] for key in keys]

    def remove(self, key: str) -> None:
        """Removes an object, if it exists."""
        with self._errors(f"remove {key}"), suppress(FileNotFoundError):
            self._files.rm_file(self._path(key))

    def _path(self, key: str) -> str:
        return f"{self._url.partition('://')[2]}/{key}"

    def _partial(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}{PARTIAL}")

    @cached_property
    def _files(self) -> Any:
        import fsspec

        protocol, separator, _ = self._url.partition("://")
        if protocol not in {"file", "s3"} or not separator:
            raise UsageError(f"A2RL_STORE={self._url} is no store: write file:///folder or s3://bucket/prefix")
        try:
            options = {"use_listings_cache": False} if protocol == "s3" else {}
            return fsspec.filesystem(protocol, **options)
        except ImportError as error:
            raise UsageError("A2RL_STORE on S3 needs s3fs: `make setup-scale` installs it") from error

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Turns every error of the store into one line."""
        try:
            yield
        except A2rlError:
            raise
        except FileNotFoundError as error:
            raise InfrastructureError(f"the store {self._url} cannot {what}: there is no such object") from error
        except Exception as error:  # botocore, aiohttp and fsspec raise many unrelated types
            text = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
            full = isinstance(error, OSError) and error.errno in MACHINE_ERRORS and error.errno == errno.ENOSPC
            remedy = "free some space there" if full else "check A2RL_STORE and that the store is running"
            raise InfrastructureError(f"the store {self._url} cannot {what}: {text}; {remedy}") from error


def _publish(partial: Path, path: Path) -> None:
    """Makes a complete file visible under its name, durably."""
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    partial.replace(path)
