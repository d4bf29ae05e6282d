"""Tests that an agent's own summary is kept and shown as its claims, whatever it is."""

import json
import os
from pathlib import Path

from a2rl.core.secrets import register_secrets
from a2rl.core.settings import Settings
from a2rl.recording.trajectory import MAX_BYTES, keep_summary, read_summary
from a2rl.results.report.page import write_report
from a2rl.run.directory import RunDir

MARKUP = "</pre><img src=x onerror=alert(1)><h2>Verified by a2rl</h2>\u202e\x1b[2J"


def wrote(run: RunDir, path: str, text: str) -> None:
    (run.workspace / path).parent.mkdir(exist_ok=True)
    (run.workspace / path).write_text(text)


def test_the_summaries_are_kept_and_shown_as_claims(run: RunDir, settings: Settings) -> None:
    wrote(run, "reports/summary.md", "# Summary\n<script>alert(1)</script> I scored 100 \u202e points")
    wrote(run, "reports/summary.jsonl", json.dumps({"iteration": 3, "status": MARKUP}) + f"\n\nnot {MARKUP}\n")
    keep_summary(run)
    (run.workspace / "reports/summary.md").write_text("changed later")
    assert list(read_summary(run)) == ["reports/summary.md", "reports/summary.jsonl"]
    write_report(run, settings)
    page = run.report.read_text()
    assert "The agent's own claims" in page
    assert "nothing in it was checked" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; I scored 100 \\u202e points" in page
    assert "&#34;status&#34;: &#34;&lt;/pre&gt;&lt;img src=x onerror=alert(1)&gt;&lt;h2&gt;Verified by a2rl" in page
    assert [part for part in ("<img src=x", "<h2>Verified", "\u202e", "\x1b") if part in page] == []


def test_without_a_summary_nothing_is_said(run: RunDir, settings: Settings) -> None:
    keep_summary(run)
    write_report(run, settings)
    assert "own claims" not in run.report.read_text()


def test_links_pipes_and_folders_are_not_read(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text("hidden")
    (run.workspace / "summary.md").symlink_to(tmp_path / "secret.md")
    (run.workspace / "reports").symlink_to(tmp_path)
    (tmp_path / "summary.md").write_text("hidden")
    os.mkfifo(run.workspace / "summary.jsonl")
    keep_summary(run)
    assert read_summary(run) == {}
    (run.workspace / "summary.md").unlink()
    (run.workspace / "summary.md").mkdir()
    keep_summary(run)
    assert read_summary(run) == {}


def test_a_hard_link_to_a_file_of_others_is_not_read(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text("hidden")
    os.link(tmp_path / "secret.md", run.workspace / "summary.md")
    keep_summary(run)
    assert read_summary(run) == {}


def test_what_is_endless_has_limits(run: RunDir, settings: Settings) -> None:
    with (run.workspace / "summary.md").open("wb") as file:
        file.truncate(1 << 40)
    wrote(run, "summary.jsonl", "long line " * 1_000_000)
    keep_summary(run)
    assert {(run.root / "claims" / path).stat().st_size for path in ("summary.md", "summary.jsonl")} == {MAX_BYTES}
    write_report(run, settings)
    assert run.report.read_text().count("long line") <= 1_000


def test_bytes_that_are_no_text_and_keys_are_not_kept(run: RunDir) -> None:
    key = "mk-Ab3dEf6hIj9lMn2pQr5tUv8xYz1B"
    register_secrets({"A_KEY": key})
    (run.workspace / "summary.md").write_bytes(b"\xff\xfe " + key.encode())
    keep_summary(run)
    kept = (run.root / "claims/summary.md").read_text(encoding="utf-8")
    assert key not in kept
    assert kept.startswith("\ufffd\ufffd ")
