import pytest
from pydantic import ValidationError

from a2rl.run.rules import DEFAULT_SUBMISSIONS, Rules, rules
from a2rl.validity.record import Finding, weighed


def test_every_kind_of_finding_belongs_to_one_rule() -> None:
    shown = rules().model_dump()
    kinds = [kind for rule in shown.values() for kind in rule["findings"]]
    assert len(kinds) == len(set(kinds)) == len(rules().levels)


def test_the_rules_decide_what_voids(monkeypatch: pytest.MonkeyPatch) -> None:
    strict = rules().model_copy(update={"code": rules().code.model_copy(update={"findings": {"no-code": "void"}})})
    found = [Finding.of("no-code", "flag", "No code."), Finding.of("of-somebody-else", "note", "It rained.")]
    assert [each.level for each in weighed(found)] == ["flag", "note"]
    monkeypatch.setattr("a2rl.validity.record.rules", lambda: strict)
    assert [each.level for each in weighed(found)] == ["void", "note"]


def test_the_quota_of_the_rules_is_the_one_that_holds() -> None:
    assert rules().quotas.submissions == DEFAULT_SUBMISSIONS


def test_a_mistake_in_the_rules_is_an_error() -> None:
    shown = rules().model_dump()
    for broken in ({**shown, "luck": {}}, {**shown, "code": {"findings": {"no-code": "fatal"}}}):
        with pytest.raises(ValidationError):
            Rules.model_validate(broken)


def test_what_agents_are_told_names_no_finding() -> None:
    assert len(rules().instructions) >= 4
    assert not [kind for kind in rules().levels for text in rules().instructions if kind in text]
