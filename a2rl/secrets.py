"""Removes secrets by their value from whatever of a run is kept: logs, code, transcripts, ledger, report.

    scrubber = Scrubber({"OPENAI_API_KEY": "sk-..."})
    scrubber.text("my key is sk-...")           # my key is [secret OPENAI_API_KEY]
    stream = scrubber.stream()                   # for what comes in pieces: feed(block), close()

Each value is known in its plain encodings as well: escaped for URLs, JSON, HTML or Python, in hexadecimal, in base64
and base32 at any alignment, as UTF-16, backwards, in any case, and broken into lines. Keys in the form of well-known
providers are removed without being known. That is against leaks and plain tricks: who may use a key can always write
it down in a cipher of their own. So the agents of which a2rl speaks to the LLM itself get no key at all (a2rl/relay).

`learn` makes secrets known to this process, `scrub` and `scrub_bytes` remove those: the last doors (ledger, logs, code
history, report) call them wherever they are. Only the standard library is used: the supervisor needs it, too.
"""

import base64
import html
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from urllib.parse import quote, quote_plus

MIN_CHARS = 8
"""A shorter value may be part of any word: it is not removed, and the user is told so."""
MIN_FORM = 10
"""Of a value in an encoding; raw values may be shorter."""
BREAKS = (b"\\r\\n", b"\\n", b"\\r", b"\r", b"\n")
"""Between two characters of a secret: programs that write in base64 break it into lines, which JSON escapes."""
BETWEEN_OCTETS = ("", " ", ":", "-", "_", "%", "\\x", "\\\\x", ",", ", ", ", 0x", ",0x", " 0x")
"""Where they are written in hexadecimal; what stands before the first one is no secret."""
SHAPES = (
    rb"sk-(?:ant|proj|svcacct|admin|or|lf)-[\w-]{16,200}",
    rb"sk-[A-Za-z0-9]{20,200}",
    rb"AIza[\w-]{35,60}",
    rb"gh[pousr]_[A-Za-z0-9]{30,255}",
    rb"github_pat_\w{22,255}",
    rb"hf_[A-Za-z0-9]{30,60}",
    rb"xox[abprs]-[\w-]{10,200}",
    rb"AKIA[A-Z0-9]{16}",
)
"""Keys of Anthropic, OpenAI, Google, GitHub, Hugging Face, Slack and AWS."""
HEADS = (b"sk-", b"AIza", b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_", b"hf_", b"xox", b"AKIA")
MAX_SHAPE = 270
BLOCK = 1 << 20
_SHAPE = re.compile(rb"(?<![A-Za-z0-9_-])(?:" + b"|".join(SHAPES) + rb")")
_WORD = re.compile(rb"(?<![\w-])[\w-]{1,%d}\Z" % MAX_SHAPE)
_BREAK = b"(?:" + b"|".join(map(re.escape, BREAKS)) + b")?"


class Scrubber:
    """Knows some secrets, by name."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self.secrets = {name: value for name, value in secrets.items() if len(value) >= MIN_CHARS}
        """Those that are removed."""
        self._names = list(self.secrets)
        self._by_secret = [_forms(value) for value in self.secrets.values()]
        self._forms = tuple({form.lower() for forms in self._by_secret for form in forms})

    @cached_property
    def _known(self) -> re.Pattern[bytes]:
        """Made when it is needed, which takes a moment: most processes never meet a secret."""
        groups = (
            b"(?P<s%d>%s)" % (place, b"|".join(map(_broken, forms))) for place, forms in enumerate(self._by_secret)
        )
        return re.compile(b"|".join(groups), re.IGNORECASE)

    def text(self, text: str) -> str:
        """The text without the secrets."""
        return self.data(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def data(self, data: bytes) -> bytes:
        """The bytes without the secrets."""
        return _SHAPE.sub(b"[secret]", self.without_known(data))

    def without_known(self, data: bytes) -> bytes:
        """The bytes without the secrets whose value is known."""
        bare = _bare(data)
        if any(form in bare for form in self._forms):  # a hundred times as fast as the expression, which then follows
            return self._known.sub(self._replace, data)
        return data

    def stream(self) -> "ScrubbedStream":
        """For bytes that come in pieces."""
        return ScrubbedStream(self, self._forms)

    def _replace(self, found: re.Match[bytes]) -> bytes:
        number = int((found.lastgroup or "s0")[1:])
        return f"[secret {self._names[number]}]".encode()


class ScrubbedStream:
    """Bytes in pieces. What may be the beginning of a secret is held back until it is known not to be one."""

    def __init__(self, scrubber: Scrubber, forms: tuple[bytes, ...]) -> None:
        self._scrubber = scrubber
        self._forms = forms
        self._longest = max([MAX_SHAPE, *map(len, forms)])
        self._held = self._before = b""
        self.has_found = False
        """Whether there were any secrets so far."""

    def feed(self, block: bytes) -> bytes:
        """What is certain by now, without the secrets."""
        whole = self._held + block
        data = self._scrubber.without_known(whole)
        self.has_found = self.has_found or data is not whole
        cut = len(data) - self._doubtful(data)
        self._held = data[cut:]
        return self._pass_on(data[:cut])

    def close(self) -> bytes:
        """The rest, when nothing will follow."""
        rest, self._held = self._held, b""
        return self._pass_on(rest)

    def _pass_on(self, data: bytes) -> bytes:
        """Without keys by their shape, which begin where a word does: `_before` stands for a word that goes on."""
        before = self._before
        if data:
            self._before = b"_" if _WORD.search(data[-1:]) else b""
        clean, found = _SHAPE.subn(b"[secret]", before + data)
        self.has_found = self.has_found or found > 0
        return clean[len(before) :]

    def _doubtful(self, data: bytes) -> int:
        """How many bytes at the end may be the beginning of a secret."""
        word = _WORD.search((self._before + data)[-MAX_SHAPE - 1 :])
        held = len(word[0]) if word and any(word[0].startswith(head[: len(word[0])]) for head in HEADS) else 0
        tail = data[-3 * self._longest :]
        for end in (tail, tail[:-1]) if tail.endswith(b"\\") else (tail,):  # it may be half a line break
            bare = _bare(end)
            if length := max((_overlap(bare, form) for form in self._forms), default=0):
                held = max(held, _with_breaks(end, length) + len(tail) - len(end))
        return held


def _forms(value: str) -> list[bytes]:
    """A secret in its plain encodings, the longest first."""
    raw, utf16 = value.encode("utf-8", "surrogateescape"), value.encode("utf-16-le", "surrogatepass")
    octets = [f"{octet:02x}" for octet in raw]
    texts = [
        json.dumps(value)[1:-1], json.dumps(json.dumps(value))[3:-3], html.escape(value), quote(raw, safe=""),
        quote(raw), quote_plus(raw), value[::-1], " ".join(value), ", ".join(map(str, raw)), ",".join(map(str, raw)),
        "".join(f"&#{ord(char)};" for char in value), "".join(f"&#x{ord(char):x};" for char in value),
        "".join(f"\\u{ord(char):04x}" for char in value), *(mark.join(octets) for mark in BETWEEN_OCTETS),
    ]  # fmt: skip
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    encoded += [utf16, *_in_base(raw, base64.b64encode, 6), *_in_base(raw, base64.urlsafe_b64encode, 6)]
    encoded += [*_in_base(raw, base64.b32encode, 5), *_in_base(utf16, base64.b64encode, 6)]
    return sorted({raw, *(form for form in encoded if len(form) >= MIN_FORM)}, key=len, reverse=True)


def _in_base(raw: bytes, encode: Callable[[bytes], bytes], bits: int) -> Iterator[bytes]:
    """The characters that are the same whatever stands around the value, for each place where it may begin."""
    for before in range(bits // 2 if bits == 6 else bits):
        yield encode(bytes(before) + raw)[-(-8 * before // bits) : 8 * (before + len(raw)) // bits]


def _broken(form: bytes) -> bytes:
    """An expression for a form that may be broken into lines."""
    return _BREAK.join(re.escape(form[place : place + 1]) for place in range(len(form)))


def _bare(data: bytes) -> bytes:
    """In lower case and without line breaks, to be compared with forms."""
    for each in BREAKS:
        data = data.replace(each, b"")
    return data.lower()


def _overlap(data: bytes, form: bytes) -> int:
    """The longest end of `data` that is the beginning, and not the whole, of `form`."""
    place = max(0, len(data) - len(form) + 1) - 1
    while (place := data.find(form[:1], place + 1)) >= 0:
        if form.startswith(data[place:]):
            return len(data) - place
    return 0


def _with_breaks(tail: bytes, length: int) -> int:
    """How many bytes of the end hold the last `length` that are no line breaks."""
    return next((taken for taken in range(length, len(tail)) if len(_bare(tail[-taken:])) >= length), len(tail))


_lock = threading.Lock()
_known = Scrubber({})


def learn(secrets: Mapping[str, str]) -> None:
    """Makes secrets known to this process, in addition to those that it knows."""
    global _known  # noqa: PLW0603 - what a process must not write down is a matter of the whole process
    with _lock:
        if not secrets.items() <= _known.secrets.items():
            _known = Scrubber({**_known.secrets, **secrets})


def known() -> dict[str, str]:
    """The secrets that this process knows, for those that it starts."""
    return dict(_known.secrets)


def scrub(text: str) -> str:
    """The text without the secrets that this process knows."""
    return _known.text(text)


def scrub_bytes(data: bytes) -> bytes:
    """The bytes without the secrets that this process knows."""
    return _known.data(data)


def scrub_file(path: Path) -> None:
    """Removes the secrets that this process knows from a file that only we write.

    Raises:
        OSError: it cannot be read or written.
    """
    looking = scrubbed_stream()
    for _ in _scrubbed(path, looking):
        pass
    if looking.has_found:
        clean = path.with_name(f"{path.name[:200]}.clean")
        with clean.open("wb") as file:
            file.writelines(_scrubbed(path, scrubbed_stream()))
        clean.replace(path)


def _scrubbed(path: Path, stream: ScrubbedStream) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            yield stream.feed(block)
    yield stream.close()


def scrubbed_stream() -> ScrubbedStream:
    """A stream without the secrets that this process knows."""
    return _known.stream()
