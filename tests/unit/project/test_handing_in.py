"""Tests how results are handed in to the leaderboard: the script that audits them, without a network."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

BUNDLE = b"a bundle\n"
LINE = f"{hashlib.sha256(BUNDLE).hexdigest()}  https://example.org/result.tar.gz\n"
CURL = """#!/bin/sh
echo "$@" >>"$LOG"
while [ "$1" != --output ]; do shift; done
echo 'a bundle' >"$2"
"""
A2RL = """#!/bin/sh
echo a2rl "$@" >>"$LOG"
exit "${AUDIT:-0}"
"""
"""Fakes, which note how they are called."""


class Submission:
    """A submission, and what the script does with it."""

    def __init__(self, folder: Path, script: Path) -> None:
        self._script, self._file, self._log = script, folder / "result.txt", folder / "log"
        self._environment = {"PATH": f"{folder}:{os.environ['PATH']}", "LOG": str(self._log)}
        for name, text in (("curl", CURL), ("a2rl", A2RL)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o700)

    def audit(self, text: str, **environment: str) -> tuple[int, list[str]]:
        """Returns the exit status, and the programs that were called."""
        self._file.write_text(text)
        self._log.write_text("")
        done = subprocess.run([self._script, self._file], env=self._environment | environment, check=False)
        return done.returncode, self._log.read_text().splitlines()


@pytest.fixture
def submission(tmp_path: Path, repository: Path) -> Submission:
    return Submission(tmp_path, repository / ".ci" / "audit-submission")


def test_a_submission_is_downloaded_and_audited(submission: Submission) -> None:
    code, [download, audit] = submission.audit(LINE)
    assert code == 0
    assert download.endswith("--url https://example.org/result.tar.gz")
    assert audit.startswith("a2rl audit ")
    assert [submission.audit(LINE, AUDIT=str(status))[0] for status in (1, 2, 3, 4)] == [1, 2, 0, 4]


def test_a_bundle_with_weights_is_named_and_not_downloaded(submission: Submission) -> None:
    code, called = submission.audit(LINE + f"{'0' * 64}  https://example.org/large.tar.gz\n")
    assert (code, len(called)) == (0, 2)
    assert not any("large" in each for each in called)


@pytest.mark.parametrize(
    "text",
    ["", "x", LINE.replace("  ", " "), LINE.replace("https", "http"), LINE + "more", LINE * 3, f"{LINE}\n{LINE}",
     LINE.replace(".org", ".org/$(id)")],
)  # fmt: skip
def test_a_file_that_is_no_submission_is_refused(submission: Submission, text: str) -> None:
    assert submission.audit(text) == (2, [])


def test_a_bundle_with_another_digest_is_not_audited(submission: Submission) -> None:
    code, called = submission.audit("0" * 64 + LINE[64:])
    assert (code, len(called)) == (1, 1)
