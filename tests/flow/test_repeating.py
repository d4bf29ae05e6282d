"""Tests `a2rl regrade`, `a2rl rerun` and `a2rl label` through the real command line, with a very small model."""

from pathlib import Path

import pytest

from tests.flow.checkout import Checkout

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("checkout") / "a2rl", {"steady": ""}, items=12)


@pytest.fixture(scope="module")
def run_id(checkout: Checkout) -> str:
    run: str = checkout.json("run", "--task", "steady", "--agent", str(checkout.submitter(2)), "--budget", "2m")[
        "run_id"
    ]
    return run


def test_a_regraded_result_is_the_same_to_the_last_item(checkout: Checkout, run_id: str) -> None:
    """This holds for a submission and for the result."""
    for arguments in ((run_id, "1"), (run_id,)):
        found = checkout.json("regrade", *arguments)
        assert found["same"], found
        assert (found["differences"], found["other_answers"]) == ([], 0)


def test_a_rerun_of_a_deterministic_agent_submits_equal_weights(checkout: Checkout, run_id: str) -> None:
    found = checkout.json("rerun", run_id)
    assert found["same"], found
    assert found["again"] != run_id
    assert len(found["submissions"]) == 2


def test_every_run_has_labels_when_it_ends(checkout: Checkout, run_id: str) -> None:
    assert Path(checkout.root / "runs" / run_id / "records" / "labels.json").is_file()
    assert checkout.json("label", run_id)["runs"][run_id]["reason"] == ""
