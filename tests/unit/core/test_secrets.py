"""Tests that secrets are removed by value from all records, in every plain encoding and however the text is split."""

import base64
import codecs
import html
import json
import random
import time
from collections.abc import Callable
from urllib.parse import quote

import pytest

from a2rl.core.secrets import MIN_CHARS, Scrubber, mark_of

KEY = 'Zq7+/pw&<"x\\y>-Vh3_Lm9%Kd2=Tb5'
"""With everything in it that encodings treat in a way of their own."""
PLAIN = "mk-Ab3dEf6hIj9lMn2pQr5tUv8xYz1B"
NAMES = {"THE_KEY": KEY, "OTHER": PLAIN}


def hexed(mark: str, key: str) -> str:
    return mark.join(f"{octet:02x}" for octet in key.encode())


ENCODINGS: dict[str, Callable[[str], str]] = {
    "as it is": lambda key: key,
    "in capitals": str.upper,
    "backwards": lambda key: key[::-1],
    "for a URL": quote,
    "for a URL, all of it": lambda key: quote(key, safe=""),
    "in percent": lambda key: "%" + hexed("%", key),
    "in JSON": json.dumps,
    "in JSON in JSON": lambda key: json.dumps(json.dumps({"key": key})),
    "in a Python string": lambda key: "\\x" + hexed("\\x", key),
    "in a Unicode string": lambda key: "".join(f"\\u{ord(char):04x}" for char in key),
    "in HTML": html.escape,
    "as HTML entities": lambda key: "".join(f"&#{ord(char)};" for char in key),
    "in hexadecimal": lambda key: hexed("", key),
    "in capital hexadecimal": lambda key: hexed("", key).upper(),
    "in hexadecimal with percent signs between": lambda key: hexed("%", key),
    "as bytes in C": lambda key: "{0x" + hexed(", 0x", key) + "}",
    "in hexadecimal with colons": lambda key: hexed(":", key),
    "in hexadecimal with spaces": lambda key: hexed(" ", key),
    "as a list of bytes": lambda key: str(list(key.encode())),
    "with spaces": " ".join,
    "in base64": lambda key: base64.b64encode(key.encode()).decode(),
    "in base64, one further": lambda key: base64.b64encode(f"a{key}b".encode()).decode(),
    "in base64, two further": lambda key: base64.b64encode(f"ab{key}".encode()).decode(),
    "in base64 for URLs": lambda key: base64.urlsafe_b64encode(f"key={key}".encode()).decode(),
    "in base64 of JSON": lambda key: base64.b64encode(json.dumps({"key": key}).encode()).decode(),
    "in lines of base64": lambda key: codecs.encode(f"{'x' * 50}{key}".encode(), "base64").decode(),
    "in lines of base64 in JSON": lambda key: json.dumps(codecs.encode(f"{'x' * 50}{key}".encode(), "base64").decode()),
    "in base32": lambda key: base64.b32encode(f"abc{key}".encode()).decode(),
}


def traces(text: str, key: str) -> bool:
    """Returns whether a third of the key is still there, in this encoding."""
    size = max(6, len(key) // 3)
    return any(key[place : place + size] in text for place in range(len(key) - size))


@pytest.mark.parametrize("key", [KEY, PLAIN])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_secret_is_removed_in_every_plain_encoding(encoding: str, key: str) -> None:
    encoded = ENCODINGS[encoding](key)
    if encoding == "in base64 of JSON":
        encoded = encoded if key == PLAIN else base64.b64encode(key.encode()).decode()
    scrubbed = Scrubber(NAMES).text(f"before {encoded} after")
    assert "[secret " in scrubbed
    assert not traces(scrubbed, encoded[-len(encoded) // 3 if "lines" in encoding else 0 :])
    assert scrubbed.startswith("before ")
    assert scrubbed.endswith(" after")


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_a_secret_is_removed_from_a_stream_wherever_that_is_cut(encoding: str, size: int) -> None:
    scrubber = Scrubber(NAMES)
    text = f"loss 0.1\n{ENCODINGS[encoding](PLAIN)}\nloss 0.2\n" * 3
    stream = scrubber.stream()
    pieces = [text[place : place + size].encode() for place in range(0, len(text), size)]
    assert b"".join([*map(stream.feed, pieces), stream.close()]).decode() == scrubber.text(text)
    assert scrubber.text(text).count(mark_of("OTHER").decode()) >= 3


@pytest.mark.parametrize("key", ["bK3x9QpL2vR7", "nK3x9QpL2vR7", "u12K3x9QpL2v", "0f3a9c77b1d2", "\\K3x9QpL2vR7"])
def test_json_without_its_secrets_is_still_json(key: str) -> None:
    scrubber = Scrubber({"KEY": key})
    for form in (key, key[::-1], key.upper(), hexed("", key)):
        for before in ("", "\\", "\\\\", "\b", "\n", "\x00", "\x0f", "\\u00", "é"):
            for text in (before + form, before + form[1:], before + form[2:]):
                for encoded in (json.dumps({"note": text}), json.dumps({"note": text}, ensure_ascii=False)):
                    assert set(json.loads(scrubber.text(encoded))) == {"note"}


def test_what_is_no_secret_passes_a_stream_at_once() -> None:
    stream = Scrubber(NAMES).stream()
    for line in (b'{"type": "result"}\n', b'{"text": "epoch 1, loss 0.25"}\n', b"output/v1 saved.\n"):
        assert stream.feed(line) == line
    assert stream.close() == b""


@pytest.mark.parametrize(
    "key",
    [
        "sk-ant-api03-" + "aB3_" * 20,
        "sk-proj-" + "x1Y-" * 15,
        "sk-" + "a1B2" * 12,
        "AIza" + "Sy3_" * 9,
        "ghp_" + "a1B2" * 9,
    ],
)
def test_a_key_of_a_known_provider_is_removed_by_its_form(key: str) -> None:
    """The key itself is not known."""
    nothing = Scrubber({})
    assert nothing.text(f"x = '{key}'") == "x = '[secret]'"
    stream = nothing.stream()
    assert b"".join([*(stream.feed(char.encode()) for char in f"={key}\n"), stream.close()]) == b"=[secret]\n"


KEYS = ["AKIA0123456789ABCDEF", "sk-ant-" + "aB3_" * 4, "ghp_" + "a1B2" * 9, "xoxb-" + "1" * 10]


@pytest.mark.parametrize("size", [1, 2, 7, 39, 40, 41, 64, 1000])
def test_what_was_scrubbed_stays_as_it_is(size: int) -> None:
    """A finding is read back by its digest, and the ledger is searched for secrets before it is bundled."""
    scrubber, chosen = Scrubber({"OTHER": PLAIN}), random.Random(size)
    pieces = [*KEYS, PLAIN, "a", "-", " ", "\n", "[secret]", "x" * 300, "é", "sk-", "AKIA"]
    texts = [key * 8 for key in KEYS] + ["".join(chosen.choices(pieces, k=12)) for _ in range(200)]
    for text in texts:
        once, stream = scrubber.text(text), scrubber.stream()
        assert scrubber.text(once) == once
        blocks = [text.encode()[place : place + size] for place in range(0, len(text.encode()), size)]
        assert b"".join([*map(stream.feed, blocks), stream.close()]).decode() == once


@pytest.mark.parametrize(
    "text",
    ["task-specific-learning-rate-schedule-for-grpo", "risk-adjusted", "weights", "sk-learn", "naïve 数学 \udc80"],
)
def test_honest_text_stays_as_it_is(text: str) -> None:
    assert Scrubber(NAMES).text(text) == text


def test_a_word_that_only_ends_as_a_key_begins_stays_as_it_is() -> None:
    stream, text = Scrubber({}).stream(), "task-" + "specific1" * 30
    for _ in range(3):
        assert b"".join([*(stream.feed(char.encode()) for char in text), stream.close()]).decode() == text


def test_a_short_value_is_no_secret() -> None:
    scrubber = Scrubber({"SHORT": "x" * (MIN_CHARS - 1), "EMPTY": ""})
    assert scrubber.secrets == {}
    assert scrubber.text("xxxxxxxxxxxxxx") == "xxxxxxxxxxxxxx"


def test_it_is_fast_enough_for_long_logs() -> None:
    block = b'{"type": "assistant", "text": "step 17, loss 0.31, weights saved to output/v1"}\n' * 12_000
    scrubber, started = Scrubber({f"KEY_{n}": f"{n}{PLAIN}" for n in range(4)}), time.process_time()
    assert scrubber.data(block) == block
    assert time.process_time() - started < 1
