"""Removes secrets by their value from whatever is kept of a run: logs, code, transcripts, ledger, report.

    scrubber = Scrubber({"OPENAI_API_KEY": "sk-..."})
    scrubber.text("my key is sk-...")           # my key is [secret OPENAI_API_KEY 0123abcd]
    stream = scrubber.stream()                   # for data that arrives in pieces: feed(block), close()

Each value is also found in its plain encodings: escaped for URLs, JSON, HTML or Python, in hexadecimal, in base64 and
base32 at any alignment, as UTF-16, backwards, in any case, and broken into lines. Keys with the form of well-known
providers are removed even if they are not registered. This protects against accidental leaks and simple tricks only:
an agent that has a key can also encrypt it before writing it. Therefore agents whose LLM requests pass through the
relay get no key at all (a2rl/llm/relay).

`register_secrets` makes secrets known to this process; `scrub` and `scrub_bytes` remove the registered ones. The
ledger, logs, code history and report call them when they write. No library: scanners such as detect-secrets find
candidates by pattern and do not remove known values from streams. Standard library only: the supervisor imports this
module.
"""

import base64
import hashlib
import html
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from urllib.parse import quote, quote_plus

SECRET_NAME = re.compile(r"(?i)(^|_)(key|token|secret|password|passwd|credentials?)(_|$)|apikey")
"""Finds names of environment variables that hold a secret."""
MIN_CHARS = 8
"""A shorter value could be part of ordinary words, so it is not removed, and the user is warned."""
MIN_FORM = 10
"""Minimum length of an encoded value; raw values may be shorter."""
BREAKS = (b"\\r\\n", b"\\n", b"\\r", b"\r", b"\n")
"""Line breaks allowed between two characters of a secret: base64 is broken into lines, and JSON escapes the breaks."""
BETWEEN_OCTETS = ("", " ", ":", "-", "_", "%", "\\x", "\\\\x", ",", ", ", ", 0x", ",0x", " 0x")
"""Separators between the bytes of a hexadecimal dump; what precedes the first byte is not part of the secret."""
SHAPES = (
    rb"sk-(?:ant|proj|svcacct|admin|or|lf)-[\w-]{16}",
    rb"sk-[A-Za-z0-9]{20}",
    rb"AIza[\w-]{35}",
    rb"gh[pousr]_[A-Za-z0-9]{30}",
    rb"github_pat_\w{22}",
    rb"hf_[A-Za-z0-9]{30}",
    rb"xox[abprs]-[\w-]{10}",
    rb"AKIA[A-Z0-9]{16}",
)
"""How the keys of Anthropic, OpenAI, Google, GitHub, Hugging Face, Slack and AWS begin."""
HEADS = (b"sk-", b"AIza", b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_", b"hf_", b"xox", b"AKIA")
MAX_SHAPE = 40
"""After so many characters of a word, it is known whether it begins as a key."""
WORD = b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
BLOCK = 1 << 20
_SHAPE = re.compile(rb"(?<![\w-])(?:" + b"|".join(SHAPES) + rb")[\w-]*")  # to the word's end, where a key may follow
_WORD = re.compile(rb"(?<![\w-])[\w-]{1,%d}\Z" % MAX_SHAPE)
_CUT_CODE = re.compile(rb"u[0-9A-Fa-f]{0,3}\Z")
_BREAK = b"(?:" + b"|".join(map(re.escape, BREAKS)) + b")?"


_MARK = re.compile(rb"\[secret ([^\[\]\n]{1,200}) [0-9a-f]{8}\]")
MAX_MARK = 220


def mark_of(name: str) -> bytes:
    """Returns what stands in place of a secret. Its checksum tells it from other words in brackets."""
    return f"[secret {name} {hashlib.sha256(f'a2rl/{name}'.encode()).hexdigest()[:8]}]".encode()


def first_mark(data: bytes) -> bytes | None:
    """Returns the first mark of a removed secret in some bytes."""
    marks = (found[0] for found in _MARK.finditer(data) if found[0] == mark_of(found[1].decode("utf-8", "replace")))
    return next(marks, None)


class Scrubber:
    """Removes a given set of named secrets."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self.secrets = {name: value for name, value in secrets.items() if len(value) >= MIN_CHARS}
        """The secrets that are removed, by name: those of at least MIN_CHARS."""
        self._names = list(self.secrets)
        self._by_secret = [_forms(value) for value in self.secrets.values()]
        self._forms = tuple({form.lower() for forms in self._by_secret for form in forms})

    @cached_property
    def _known(self) -> re.Pattern[bytes]:
        """Matches all forms of the secrets; compiled on first use, because it is slow and rarely needed."""
        groups = (
            b"(?P<s%d>%s)" % (place, b"|".join(map(_broken, forms))) for place, forms in enumerate(self._by_secret)
        )
        return re.compile(b"|".join(groups), re.IGNORECASE)

    def text(self, text: str) -> str:
        """Returns the text without the secrets."""
        return self.data(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def data(self, data: bytes) -> bytes:
        """Returns the bytes without the secrets."""
        return _SHAPE.sub(b"[secret]", self.without_known(data))

    def without_known(self, data: bytes) -> bytes:
        """Returns the bytes without the named secrets; keys that are only recognised by their form stay."""
        bare = _bare(data)
        if any(
            form in bare for form in self._forms
        ):  # a hundred times faster than the expression, which is only run after a hit
            return self._known.sub(self._replace, data)
        return data

    def stream(self, by_form: bool = True) -> "ScrubbingStream":
        """Returns a scrubber for bytes that arrive in pieces."""
        return ScrubbingStream(self, self._forms, by_form)

    def _replace(self, found: re.Match[bytes]) -> bytes:
        number = int((found.lastgroup or "s0")[1:])
        return _rest_of_escape(found.string, found.start()) + mark_of(self._names[number])


class ScrubbingStream:
    """Scrubs bytes that arrive in pieces. It holds back bytes that may begin a secret until this is decided."""

    def __init__(self, scrubber: Scrubber, forms: tuple[bytes, ...], by_form: bool = True) -> None:
        self._scrubber = scrubber
        self._forms, self._by_form = forms, by_form
        self._longest = max([MAX_SHAPE, *map(len, forms)])
        self._held = self._before = b""
        self._in_key = False
        self.has_found = False
        """Whether any secret was found so far."""

    def feed(self, block: bytes) -> bytes:
        """Takes the next piece; returns, without secrets, the bytes that no longer have to be held back."""
        whole = self._held + block
        data = self._scrubber.without_known(whole)
        self.has_found = self.has_found or data is not whole
        cut = len(data) - self._doubtful(data)
        self._held = data[cut:]
        return self._pass_on(data[:cut])

    def close(self) -> bytes:
        """Returns the remaining bytes at the end of the stream."""
        rest, self._held = self._held, b""
        return self._pass_on(rest)

    def _pass_on(self, data: bytes) -> bytes:
        """Removes keys by their form, each to the end of its word; `_before` marks a word that continues."""
        if self._in_key:
            data = data.lstrip(WORD)
        if not data or not self._by_form:
            return data
        before, is_word = self._before, data[-1] in WORD
        clean, found = _SHAPE.subn(b"[secret]", before + data)
        self.has_found = self.has_found or found > 0
        self._before, self._in_key = b"_" if is_word else b"", is_word and clean.endswith(b"]")
        return clean[len(before) :]

    def _doubtful(self, data: bytes) -> int:
        """Returns how many bytes at the end may be the beginning of a secret."""
        tail, held = data[-3 * self._longest :], 0
        for end in (
            (tail, tail[:-1]) if tail.endswith(b"\\") else (tail,)
        ):  # the backslash may be half of an escaped line break
            bare = _bare(end)
            if length := max((_overlap(bare, form) for form in self._forms), default=0):
                held = max(held, _with_breaks(end, length) + len(tail) - len(end))
        word = _WORD.search((self._before + data[: len(data) - held])[-MAX_SHAPE - 1 :]) if self._by_form else None
        return held + (len(word[0]) if word and any(word[0].startswith(head[: len(word[0])]) for head in HEADS) else 0)


def _forms(value: str) -> list[bytes]:
    """Returns a secret in its plain encodings, longest first."""
    raw, utf16 = value.encode("utf-8", "surrogateescape"), value.encode("utf-16-le", "surrogatepass")
    octets = [f"{octet:02x}" for octet in raw]
    texts = [
        json.dumps(value)[1:-1], json.dumps(json.dumps(value))[3:-3], html.escape(value), quote(raw, safe=""),
        quote(raw), quote_plus(raw), value[::-1], json.dumps(value[::-1])[1:-1], " ".join(value),
        ", ".join(map(str, raw)), ",".join(map(str, raw)), "".join(f"&#{ord(char)};" for char in value),
        "".join(f"&#x{ord(char):x};" for char in value), "".join(f"\\u{ord(char):04x}" for char in value),
        *(mark.join(octets) for mark in BETWEEN_OCTETS),
    ]  # fmt: skip
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    encoded += [utf16, *_in_base(raw, base64.b64encode, 6), *_in_base(raw, base64.urlsafe_b64encode, 6)]
    encoded += [*_in_base(raw, base64.b32encode, 5), *_in_base(utf16, base64.b64encode, 6)]
    return sorted({raw, *(form for form in encoded if len(form) >= MIN_FORM)}, key=len, reverse=True)


def _in_base(raw: bytes, encode: Callable[[bytes], bytes], bits: int) -> Iterator[bytes]:
    """Yields the encoded characters that do not depend on the surrounding bytes, for each alignment of the value."""
    for before in range(bits // 2 if bits == 6 else bits):
        yield encode(bytes(before) + raw)[-(-8 * before // bits) : 8 * (before + len(raw)) // bits]


def _broken(form: bytes) -> bytes:
    """Returns a regular expression for a form that may be broken into lines."""
    return _BREAK.join(re.escape(form[place : place + 1]) for place in range(len(form)))


def _rest_of_escape(data: bytes, place: int) -> bytes:
    """Returns what completes a JSON escape that is cut off at `place`: JSON without its secrets is still JSON."""
    code = _CUT_CODE.search(data[max(0, place - 4) : place])
    start = end = place - len(code[0]) if code else place
    while data[start - 1 : start] == b"\\":
        start -= 1
    if (end - start) % 2 == 0:
        return b""
    return b"0" * (5 - len(code[0])) if code else b"\\"


def _bare(data: bytes) -> bytes:
    """Returns the data in lower case and without line breaks, for comparison with the forms."""
    for each in BREAKS:
        data = data.replace(each, b"")
    return data.lower()


def _overlap(data: bytes, form: bytes) -> int:
    """Returns the length of the longest suffix of `data` that is a proper prefix of `form`."""
    place = max(0, len(data) - len(form) + 1) - 1
    while (place := data.find(form[:1], place + 1)) >= 0:
        if form.startswith(data[place:]):
            return len(data) - place
    return 0


def _with_breaks(tail: bytes, length: int) -> int:
    """Returns how many bytes of the tail contain its last `length` bytes other than line breaks."""
    return next((taken for taken in range(length, len(tail)) if len(_bare(tail[-taken:])) >= length), len(tail))


_lock = threading.Lock()
_known = Scrubber({})


def register_secrets(secrets: Mapping[str, str]) -> None:
    """Adds secrets, by name, to those that this process removes."""
    global _known  # noqa: PLW0603 - secrets concern the whole process, wherever it writes
    with _lock:
        if not secrets.items() <= _known.secrets.items():
            _known = Scrubber({**_known.secrets, **secrets})


def known_secrets() -> dict[str, str]:
    """Returns the registered secrets, to hand to child processes."""
    return dict(_known.secrets)


def scrub(text: str) -> str:
    """Returns the text without the registered secrets."""
    return _known.text(text)


def scrub_bytes(data: bytes) -> bytes:
    """Returns the bytes without the registered secrets."""
    return _known.data(data)


def scrub_file(path: Path) -> None:
    """Removes the registered secrets from a file that no other process writes.

    Raises:
        OSError: The file cannot be read or written.
    """
    looking = scrubbing_stream()
    for _ in _scrubbed(path, looking):
        pass
    if looking.has_found:
        clean = path.with_name(f".{os.urandom(16).hex()}")  # the agent may have chosen any name for another file
        with clean.open("wb") as file:
            file.writelines(_scrubbed(path, scrubbing_stream()))
        clean.replace(path)


def _scrubbed(path: Path, stream: ScrubbingStream) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            yield stream.feed(block)
    yield stream.close()


def scrubbing_stream(by_form: bool = True) -> ScrubbingStream:
    """Returns a stream scrubber for the registered secrets and, if `by_form`, for what looks like a key."""
    return _known.stream(by_form)
