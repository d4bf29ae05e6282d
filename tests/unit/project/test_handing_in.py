"""Tests how results are handed in to the leaderboard: the workflow and the script that audit them, without network."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
import yaml

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


OLD, NEW = f"{'a' * 64}  https://example.org/{'x' * 200}\n", f"{'b' * 64}  https://example.org/{'x' * 200}\n"


class PullRequest:
    """The main branch with a submission, a clone of it, and a pull request on which the workflow works in the clone."""

    def __init__(self, folder: Path, repository: Path) -> None:
        self._origin, self._clone = folder / "origin", folder / "work" / "clone"
        workflow = yaml.safe_load((repository / ".github" / "workflows" / "submissions.yml").read_text())
        self._command = workflow["jobs"]["audit"]["steps"][-1]["run"]
        (self._origin / "submissions").mkdir(parents=True)
        self._git("init", "--quiet", "--initial-branch=main")
        (self._origin / "submissions" / "old.txt").write_text(OLD)
        (self._origin / "submissions" / "link.txt").symlink_to("old.txt")
        self.base = self._commit()
        subprocess.run(["git", "clone", "--quiet", f"file://{self._origin}", self._clone], check=True)
        for name, text in ((".venv/bin/activate", ""), (".ci/audit-submission", '#!/bin/sh\ncat "$@" >../audited\n')):
            (self._clone / name).parent.mkdir(parents=True)
            (self._clone / name).write_text(text)
            (self._clone / name).chmod(0o700)

    @property
    def submissions(self) -> Path:
        """The folder as the pull request has it."""
        return self._origin / "submissions"

    def audited(self) -> str:
        """Runs the workflow's command as GitHub does; returns what was audited."""
        head = self._commit()
        self._git("update-ref", "refs/pull/7/head", head)
        ours = {"BASE": self.base, "HEAD": head, "NUMBER": "7"}
        subprocess.run(["bash", "-e", "-c", self._command], cwd=self._clone, env=os.environ | ours, check=True)
        log = self._clone.parent / "audited"
        return log.read_text() if log.exists() else ""

    def _commit(self) -> str:
        self._git("add", "--all")
        self._git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message=x")
        return self._git("rev-parse", "HEAD")

    def _git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self._origin, check=True, capture_output=True, text=True)
        return done.stdout.strip()


@pytest.fixture
def pull_request(tmp_path: Path, repository: Path) -> PullRequest:
    return PullRequest(tmp_path, repository)


def test_every_submission_of_a_pull_request_is_audited(pull_request: PullRequest) -> None:
    folder = pull_request.submissions
    (folder / "new.txt").write_text("new\n")
    (folder / "old.txt").write_text("changed\n")
    (folder / "below").mkdir()
    (folder / "below" / "an odd\nname.txt").write_text("below\n")
    (folder / "alice.pub").write_text("a key\n")
    assert sorted(pull_request.audited().split()) == ["below", "changed", "new"]


def test_a_submission_that_was_renamed_and_changed_is_audited(pull_request: PullRequest) -> None:
    (pull_request.submissions / "old.txt").rename(pull_request.submissions / "renamed.txt")
    (pull_request.submissions / "renamed.txt").write_text(NEW)
    assert pull_request.audited() == NEW


def test_a_submission_that_was_a_link_is_audited(pull_request: PullRequest) -> None:
    (pull_request.submissions / "link.txt").unlink()
    (pull_request.submissions / "link.txt").write_text(NEW)
    assert pull_request.audited() == NEW


def test_a_pull_request_that_only_removes_needs_no_audit(pull_request: PullRequest) -> None:
    (pull_request.submissions / "old.txt").unlink()
    assert pull_request.audited() == ""


def test_a_list_of_submissions_that_fails_fails_the_workflow(pull_request: PullRequest) -> None:
    (pull_request.submissions / "new.txt").write_text("new\n")
    pull_request.base = "0" * 40  # git cannot compare with it
    with pytest.raises(subprocess.CalledProcessError):
        pull_request.audited()
