import pytest
from pydantic import ValidationError

from a2rl.core.printable import printable
from a2rl.core.secrets import register_secrets
from a2rl.validity.record import FROM_WORST, MAX_ITEMS, MAX_TEXT, Evidence, Finding, Level, Validity, Word


def finding(level: Level = "flag", text: str = "The halves disagree.") -> Finding:
    return Finding.of("halves-disagree", level, text, Evidence(what="public", value=6.0))


def test_equal_findings_have_equal_ids_and_others_have_others() -> None:
    assert finding().id == finding().id
    assert finding().id.startswith("halves-disagree-")
    assert len({finding().id, finding("void").id, finding(text="They agree.").id}) == 3


@pytest.mark.parametrize(
    ("levels", "has_result", "word"),
    [
        ((), True, "valid"),
        (("note",), True, "valid"),
        (("note", "flag"), True, "flagged"),
        (("flag", "void", "note"), True, "void"),
        ((), False, "no result"),
        (("flag",), False, "no result"),
        (("void",), False, "void"),
    ],
)
def test_the_heaviest_finding_decides(levels: tuple[Level, ...], has_result: bool, word: Word) -> None:
    validity = Validity.of([finding(level) for level in levels], has_result)
    assert validity.word == word
    assert [each.level for each in validity.findings] == sorted(levels, key=["void", "flag", "note"].index)


def test_a_finding_of_two_checks_counts_once() -> None:
    assert len(Validity.of([finding(), finding()]).findings) == 1


@pytest.mark.parametrize("word", ["valid", "flagged", "void", "no result"])
@pytest.mark.parametrize("level", ["void", "flag", "note"])
def test_no_further_finding_makes_a_validity_better(word: Word, level: Level) -> None:
    levels: dict[Word, list[Level]] = {"valid": [], "flagged": ["flag"], "void": ["void"], "no result": []}
    before = Validity.of([finding(each) for each in levels[word]], has_result=word != "no result")
    after = before.lowered_by([finding(level, "Something else.")])
    assert FROM_WORST.index(before.word) >= FROM_WORST.index(after.word)
    assert all(each in after.findings for each in before.findings)


def test_only_what_weighs_is_given_as_the_reason() -> None:
    validity = Validity.of([finding("note", "It took long."), finding("void", "It is foreign."), finding()])
    assert validity.why == ("It is foreign.", "The halves disagree.")


def test_text_of_an_agent_becomes_printable_short_and_secretless() -> None:
    register_secrets({"KEY_OF_A_TEST": "correct-horse-battery"})
    evidence = Evidence(what="a name\x1b[2J", value="it said correct-horse-battery", file="a\nb")
    found = Finding.of("leak", "flag", "x" * 2 * MAX_TEXT, evidence)
    assert "\x1b" not in found.evidence[0].what
    assert "horse" not in str(found.evidence[0].value)
    assert "\n" not in found.evidence[0].file
    assert len(found.text) < MAX_TEXT + 100


def test_texts_in_a_list_become_printable_too() -> None:
    assert Evidence(what="such as", value=["a\x1b[2J"]).value == [printable("a\x1b[2J")]


def test_of_many_items_some_are_named_and_the_rest_are_counted() -> None:
    named = Evidence(what="items", items=tuple(map(str, range(MAX_ITEMS + 1000)))).items
    assert len(named) == MAX_ITEMS + 1
    assert named[-1] == "and 1,000 more"
    assert Evidence(what="items", items=named).items == named


def test_a_validity_reads_back_as_it_was_written() -> None:
    evidence = Evidence(what="rows", value=[1, {"share": 0.5}], seq=3, file="code/train.py", line=7, items=("1",))
    validity = Validity.of([Finding.of("foreign", "void", "Foreign weights.", evidence)])
    assert Validity.model_validate_json(validity.model_dump_json()) == validity


@pytest.mark.parametrize(
    "text",
    [
        "x" * 3 * MAX_TEXT,
        "\x1b" * MAX_TEXT,
        "x" * (MAX_TEXT + 1),
        "AKIA0123456789ABCDEF" * 8,
        " AKIA0123456789ABCDEF" * 70,
    ],
    ids=len,
)
def test_a_finding_with_long_texts_reads_back_with_its_id(text: str) -> None:
    found = Finding.of("long", "flag", text, Evidence(what=text, value=text, file=text))
    again = Finding.model_validate_json(found.model_dump_json())
    assert again == found
    assert Finding.of(again.kind, again.level, again.text, *again.evidence) == found


def test_a_kind_is_one_word_with_hyphens() -> None:
    with pytest.raises(ValidationError, match="pattern"):
        Finding.of("Halves disagree", "flag", "The halves disagree.")
