"""The places where a head can be published: a command, a git repository, an RFC 3161 time-stamp service.

Each function publishes one head within a time limit and returns a receipt: something by which a reader finds it again.
"""

import base64
import hashlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import httpx

from a2rl.anchor.signature import Head
from a2rl.core.bounded_reply import read_body
from a2rl.core.errors import InfrastructureError
from a2rl.core.locks import file_lock
from a2rl.core.retries import RetryableError

GIT_BRANCH = "refs/heads/a2rl-heads"
FETCHED = "refs/a2rl/fetched"
MADE = "refs/a2rl/made"
TRIES = 3
"""How often a push is tried: another run may push at the same moment."""
MAX_RECEIPT_CHARS = 500
MAX_TOKEN_BYTES = 1 << 20


def head_line(run_id: str, head: Head) -> str:
    """Returns a head as it is published: one line of JSON."""
    return json.dumps({"run": run_id, "seq": head.seq, "hash": head.hash}) + "\n"


def publish_by_command(command: str, root: Path, run_id: str, head: Head, timeout_s: float) -> str:
    """Runs a shell command in the checkout with the head on its standard input; its output is the receipt.

    Raises:
        InfrastructureError: It failed or took too long; all that it started is ended.
    """
    done = _run(["/bin/sh", "-c", command], head_line(run_id, head).encode(), timeout_s, folder=root)
    return done.decode("utf-8", "replace").strip()[:MAX_RECEIPT_CHARS]


def publish_to_timestamp_service(url: str, run_id: str, head: Head, timeout_s: float) -> str:
    """Has a time-stamp service sign the head with its time; the receipt is its answer in base64.

    Raises:
        InfrastructureError: It did not answer in time, or not with a time stamp of this head.
    """
    from rfc3161_client import HashAlgorithm, PKIStatus, TimestampRequestBuilder, decode_timestamp_response

    line = head_line(run_id, head).encode()
    request = TimestampRequestBuilder().data(line).hash_algorithm(HashAlgorithm.SHA256).build()
    token = _post(url, request.as_bytes(), timeout_s)
    try:
        answer = decode_timestamp_response(token)
        granted = answer.status in {PKIStatus.GRANTED, PKIStatus.GRANTED_WITH_MODS}
        same = granted and answer.tst_info.message_imprint.message == hashlib.sha256(line).digest()
    except ValueError as error:
        raise InfrastructureError(f"{url} did not answer with a time stamp: {error}") from error
    if not same or answer.tst_info.nonce != request.nonce:
        raise InfrastructureError(f"{url} did not sign this head")
    return base64.b64encode(token).decode()


def publish_to_git(url: str, root: Path, run_id: str, head: Head, timeout_s: float) -> str:
    """Adds the head to `<run>.jsonl` on the branch `a2rl-heads` of a repository; the receipt is the commit.

    Raises:
        InfrastructureError: The repository cannot be reached in time, or refuses the push.
    """
    folder = root / "data" / "anchor" / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.git"
    deadline = time.monotonic() + timeout_s
    with file_lock(folder.with_suffix(".lock"), "another run publishes a head", timeout_s):
        git = _Git(folder, deadline)
        if not (folder / "HEAD").exists():
            git("init", "--quiet", "--bare", str(folder))
        for left in reversed(range(TRIES)):
            commit = _commit(git, url, run_id, head)
            try:
                git("push", "--quiet", url, f"{commit}:{GIT_BRANCH}")
            except InfrastructureError:
                if not left:
                    raise
            else:
                return commit
    raise AssertionError("the last try returns or raises")


class _Git(NamedTuple):
    """Runs git in a bare repository until a deadline."""

    folder: Path
    deadline: float

    def __call__(self, *arguments: str, stdin: bytes = b"") -> str:
        left_s = max(0.1, self.deadline - time.monotonic())
        command = ["env", f"GIT_DIR={self.folder}", "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=/bin/false", "LC_ALL=C"]
        done = _run([*command, "git", "--no-replace-objects", *arguments], stdin, left_s)
        return done.decode("utf-8", "replace").strip()


def _commit(git: _Git, url: str, run_id: str, head: Head) -> str:
    """Makes a commit on top of the repository's branch."""
    there = git("ls-remote", url, GIT_BRANCH).split()
    before = b""
    lines = ""
    if there:
        git("fetch", "--quiet", "--depth=1", url, f"+{GIT_BRANCH}:{FETCHED}")
        before = f"from {FETCHED}\n".encode()
        if git("ls-tree", "--name-only", FETCHED, f"{run_id}.jsonl"):
            lines = git("show", f"{FETCHED}:{run_id}.jsonl") + "\n"
    content = (lines + head_line(run_id, head)).encode()
    message = f"{run_id} {head.seq}".encode()
    stream = b"commit %b\ncommitter a2rl <a2rl@localhost> %d +0000\ndata %d\n%b\n" % (
        MADE.encode(), int(time.time()), len(message), message,
    )  # fmt: skip
    stream += before + b'M 100644 inline "%b.jsonl"\ndata %d\n%b\n' % (run_id.encode(), len(content), content)
    git("fast-import", "--quiet", "--force", stdin=stream)
    return git("rev-parse", MADE)


def _run(command: list[str], stdin: bytes, timeout_s: float, folder: Path | None = None) -> bytes:
    """Runs a program with the user's environment; if it takes too long, it and its children are killed."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, said = process.communicate(stdin, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise InfrastructureError(f"{command[0]} was still at work after {timeout_s:.0f} s") from error
    if process.returncode:
        last = said.decode("utf-8", "replace").strip()[-300:]
        raise InfrastructureError(f"{' '.join(command)[:200]} ended with {process.returncode}: {last}")
    return out


def _post(url: str, content: bytes, timeout_s: float) -> bytes:
    headers = {"Content-Type": "application/timestamp-query"}
    try:
        with httpx.stream("POST", url, content=content, headers=headers, timeout=timeout_s) as response:
            if response.status_code != 200:
                raise InfrastructureError(f"{url} answered with status {response.status_code}")
            return read_body(response.iter_bytes(), MAX_TOKEN_BYTES, timeout_s)
    except (httpx.HTTPError, httpx.InvalidURL, RetryableError) as error:
        raise InfrastructureError(f"{url} does not answer: {error}") from error
