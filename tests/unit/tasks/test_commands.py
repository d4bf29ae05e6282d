"""Tests how commands are read: those of ALFWorld's games and those of WebShop's visits."""

import pytest

from tasks.alfworld.alfred.transcript import read_command
from tasks.webshop.shop.transcript import read_action, reference_action


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("go to desk 1", "go to desk 1"),
        (" go to desk 1 ", "go to desk 1"),
        ("> go to desk 1", "go to desk 1"),
        (">go to desk 1", "go to desk 1"),
        ('"go to desk 1"', "go to desk 1"),
        ("'go to desk 1'.", "go to desk 1"),
        ("“go to desk 1”", "go to desk 1"),
        ("`go to desk 1`", "go to desk 1"),
        ("**go to desk 1**", "go to desk 1"),
        ("go to desk 1.", "go to desk 1"),
        ("Go to desk 1", "go to desk 1"),
        ("TAKE MUG 1 FROM DESK 1!", "take mug 1 from desk 1"),
        ("Action: go to desk 1", "go to desk 1"),
        ("**Action:** `go to desk 1`", "go to desk 1"),
        ("Action 3: go to desk 1", "go to desk 1"),
        ("Command: look", "look"),
        ("- inventory", "inventory"),
        ("1. open drawer 2", "open drawer 2"),
        ("I need a mug. go to desk 1", "go to desk 1"),
        ("I need a mug. > Go to desk 1.", "go to desk 1"),
        ("Thought: I need a mug. Action: go to desk 1", "go to desk 1"),
        ("<think>I need a mug.</think> go to desk 1", "go to desk 1"),
        ("<thinking>take it?</thinking> go to desk 1", "go to desk 1"),
        ("take mug 1? no</think>go to desk 1", "go to desk 1"),
        ("go to desk 1<|im_end|>", "go to desk 1"),
        ("go to desk 1<|im_end|><|im_start|>user", "go to desk 1"),
        ("go to desk 1\rtake mug 1", "go to desk 1"),
        ("think: I need to go. take it", "think: I need to go. take it"),
        ("Think: I need a mug.", "think: I need a mug."),
        ("> think: I need a mug.", "think: I need a mug."),
        ("Thought: I need a mug.", "think: I need a mug."),
        # not commands, or not one
        ("I go to desk 1", "I go to desk 1"),
        ("I could go to desk 1 or to desk 2", "I could go to desk 1 or to desk 2"),
        ("go to desk 1, take mug 1", "go to desk 1, take mug 1"),
        ("put mug 1 in/on desk 1", "put mug 1 in/on desk 1"),
        ("goto desk 1", "goto desk 1"),
        ("", ""),
    ],
)
def test_a_command_is_read_as_a_person_reads_it(line: str, command: str) -> None:
    assert read_command(line) == command
    assert read_command(command) == command


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("search[red shoes]", "search[red shoes]"),
        (" click[Buy Now] ", "click[Buy Now]"),
        ("choose[large]", "click[large]"),
        ("> click[Buy Now]", "click[Buy Now]"),
        (">click[Buy Now]", "click[Buy Now]"),
        ("'click[Buy Now]'", "click[Buy Now]"),
        ('"click[Buy Now]".', "click[Buy Now]"),
        ("`click[Buy Now]`", "click[Buy Now]"),
        ("**click[Buy Now]**", "click[Buy Now]"),
        ("click[Buy Now].", "click[Buy Now]"),
        ("Click[Buy Now]", "click[Buy Now]"),
        ("SEARCH[red shoes]", "search[red shoes]"),
        ("click [Buy Now]", "click[Buy Now]"),
        ('click["Buy Now"]', "click[Buy Now]"),
        ("Action: click[Buy Now]", "click[Buy Now]"),
        ("**Action:** click[Buy Now]", "click[Buy Now]"),
        ("Action 2: Choose[large]", "click[large]"),
        ("The price is right. click[Buy Now]", "click[Buy Now]"),
        ("Does it fit? click[Buy Now]", "click[Buy Now]"),
        ("It fits! click[Buy Now]", "click[Buy Now]"),
        ("So I buy it: click[Buy Now]", "click[Buy Now]"),
        ("_It fits. click[Buy Now]_", "click[Buy Now]"),
        ("Thought: it fits. Action: click[Buy Now].", "click[Buy Now]"),
        ("<think>It fits: click[large]?</think>click[Buy Now]", "click[Buy Now]"),
        ("<thinking>It fits: click[large]?</thinking> click[Buy Now]", "click[Buy Now]"),
        ("It fits: click[large]?</think>click[Buy Now]", "click[Buy Now]"),
        ("click[Buy Now]<|im_end|>", "click[Buy Now]"),
        ("click[12\xa0oz]", "click[12\xa0oz]"),
        ('click[6"]', 'click[6"]'),
        # not actions, or not one: read as by the reference
        ("think[I should click[Buy Now]]", "think[I should click[Buy Now]]"),
        ("search[a] or search[b]", "search[a] or search[b]"),
        ("I will click[Buy Now]", "I will click[Buy Now]"),
        ("It fits, so click[Buy Now]", "It fits, so click[Buy Now]"),
        ("I see [Buy Now]. click[Buy Now]", "I see [Buy Now]. click[Buy Now]"),
        ("It may fit (e.g. click[Buy Now])", "It may fit (e.g. click[Buy Now])"),
        ("doubleclick[Buy Now]", "doubleclick[Buy Now]"),
        ("Buy Now", "Buy Now"),
        ("click[]", "click[]"),
        ("", ""),
    ],
)
def test_an_action_is_read_as_a_person_reads_it(line: str, action: str) -> None:
    assert read_action(line) == action
    assert read_action(action) == action


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("Action: click[x]", "click[x]"),
        ("choose[x]", "click[x]"),
        ("> click[x]", "> click[x]"),
        ("Click[x]", "Click[x]"),
    ],
)
def test_the_faithful_way_reads_an_action_as_the_reference_does(line: str, action: str) -> None:
    assert reference_action(line) == action


@pytest.mark.timeout(10)
@pytest.mark.parametrize("part", ["> ", "action: ", "go ", "click[", "click[a]", "<think>", "think: ", ". ", "'", "]"])
def test_no_line_takes_long_to_read(part: str) -> None:
    for length in (200, 20_000):
        read_command((part * length)[:length])
        read_action((part * length)[:length])
