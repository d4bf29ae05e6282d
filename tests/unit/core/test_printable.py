"""Tests that text of an agent is shown with visible escapes and never acts on the terminal."""

import json
import unicodedata

import pytest

from a2rl.core.printable import MAX_MARKS, printable, printable_json


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("v1\x1b[2J", r"v1\x1b[2J"),
        ("a\nb\tc\rd", r"a\nb\tc\rd"),
        ("\x00\x07\x7f\x9b31m", r"\x00\x07\x7f\x9b31m"),
        ("gpj\u202etxt", r"gpj\u202etxt"),
        ("\u2066\u2069\u200b\u200f\ufeff\u2028", r"\u2066\u2069\u200b\u200f\ufeff\u2028"),
        ("\udcff", r"\udcff"),
        ("\U000e0041", r"\U000e0041"),
        ("plain output/v1 - 数学 naïve Ünïcode 🙂", "plain output/v1 - 数学 naïve Ünïcode 🙂"),
    ],
)
def test_what_cannot_be_seen_is_a_visible_escape(hostile: str, shown: str) -> None:
    assert printable(hostile) == shown


def test_no_control_or_format_character_of_unicode_passes() -> None:
    refused = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    passed = [
        code
        for code in range(0x110000)
        if unicodedata.category(chr(code)) in refused and printable(f"a{chr(code)}") == f"a{chr(code)}"
    ]
    # Arabic and Kaithi number signs are format characters, but visible.
    assert {hex(code) for code in passed} <= {
        hex(code) for code in (*range(0x600, 0x606), 0x6DD, 0x70F, 0x8E2, 0x890, 0x891)
    }


def test_a_flood_of_combining_marks_stays_on_its_own_line() -> None:
    shown = printable("a" + "\u0301" * 500)
    assert shown.startswith("a" + "\u0301" * MAX_MARKS + r"\u0301")
    assert shown.count("\u0301") == MAX_MARKS


def test_lines_are_kept_where_asked_for_but_no_carriage_return() -> None:
    assert printable("a\n\tb\rc\x1b", lines=True) == "a\n\tb\\rc\\x1b"


def test_a_long_text_is_cut_and_says_so() -> None:
    assert printable("x" * 50, 10) == "x" * 10 + " [and 40 more characters]"


def test_json_for_a_terminal_is_visible_ascii_and_the_same_value() -> None:
    value = {"path": "\x1b[2J\x7f\x9b\u202e\u2066\U000e0041é\udc80"}
    line = printable_json(value)
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line) == value
