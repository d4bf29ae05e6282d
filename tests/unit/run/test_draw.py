import json
from pathlib import Path

import pytest

from a2rl.core.errors import UsageError
from a2rl.run.draw import Draw

ONE = Draw(seed="1" * 64, salt="2" * 64)


def test_two_draws_differ_in_everything() -> None:
    first, second = Draw.fresh(), Draw.fresh()
    assert {first.seed, first.salt}.isdisjoint({second.seed, second.salt})
    assert (first.halves_seed, first.name, first.commitment) != (second.halves_seed, second.name, second.commitment)


def test_what_follows_from_a_seed_does_not_depend_on_the_salt() -> None:
    """The commitment does."""
    salted = ONE.model_copy(update={"salt": "3" * 64})
    assert salted.commitment != ONE.commitment
    assert (salted.halves_seed, salted.name) == (ONE.halves_seed, ONE.name)
    assert salted.items_seed("gsm8k") == ONE.items_seed("gsm8k")


def test_each_task_has_a_seed_of_its_own() -> None:
    assert len({ONE.items_seed(task) for task in ("gsm8k", "humaneval", "webshop")}) == 3


def test_a_commitment_can_be_computed_without_a2rl() -> None:
    """As docs/validity.md explains it."""
    import hashlib

    text = json.dumps(["a2rl draw", ONE.seed, ONE.salt], separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == ONE.commitment


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_draw_is_read_from_its_own_file_or_from_a_spec(tmp_path: Path, wrapped: bool) -> None:
    content = ONE.model_dump()
    (tmp_path / "file").write_text(json.dumps({"task": "gsm8k", "draw": content} if wrapped else content))
    assert Draw.read(tmp_path / "file") == ONE


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"seed": "12", "salt": "34"}', '{"draw": null}', "7"])
def test_a_file_without_a_draw_is_refused_with_a_remedy(tmp_path: Path, content: str) -> None:
    (tmp_path / "file").write_text(content)
    with pytest.raises(UsageError, match=r"spec\.json of an earlier run"):
        Draw.read(tmp_path / "file")
    with pytest.raises(UsageError, match="cannot be read"):
        Draw.read(tmp_path / "missing")
