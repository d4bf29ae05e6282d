"""Tests that the published results are what their bundles say."""

import runpy
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

RESULTS = Path(__file__).resolve().parents[3] / "docs/results"
BUNDLES = sorted(RESULTS.glob("*.tar.gz"))


def test_the_page_follows_from_the_bundles() -> None:
    assert BUNDLES
    page = runpy.run_path(str(RESULTS.parents[1] / "scripts/publish_results.py"))["page"]
    assert (RESULTS / "README.md").read_text(encoding="utf-8") == page(RESULTS)


def test_the_readme_leads_with_a_figure_of_the_page() -> None:
    readme = (RESULTS.parents[1] / "README.md").read_text(encoding="utf-8")
    assert "from 0.0 to 91.4 [82.5, 96.0]" in readme
    assert "| 0.0 [0.0, 5.2] | 91.4 [82.5, 96.0] |" in (RESULTS / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda path: path.name)
def test_a_published_bundle_has_no_weights_and_is_small(bundle: Path) -> None:
    with tarfile.open(bundle) as archive:
        assert not [name for name in archive.getnames() if name.endswith(".safetensors")]
    assert bundle.stat().st_size < 8 << 20


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda path: path.name)
def test_this_version_finds_an_older_bundle_sound(bundle: Path) -> None:
    command = [sys.executable, "-m", "a2rl", "audit", str(bundle)]
    audit = subprocess.run(command, check=False, capture_output=True, text=True, cwd=RESULTS.parents[1])
    assert audit.returncode == 0, audit.stdout
    if bundle.name == "alfworld-smollm2-135m-1h.tar.gz":  # made when these were settings
        assert "this version of a2rl does not know judge_sample, vllm.gpu_memory_utilization" in audit.stdout
