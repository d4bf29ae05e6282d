r"""Reads the final number of a solution, as a careful person reads it.

The rule: thoughts, what follows the model's turn or "Question:", and what the text takes back ("Wait, ...") do not
count; a "Wait" that neither a number nor a doubt follows takes nothing back. The answer is the number that is stated
last: after "####", in \boxed{}, or after words such as "the answer is" or "Answer:". A heading is no answer, but what
stands below the heading "Answer" is one; "#### 18" closes the solution. If nothing is stated, the last number is the
answer (of its sentence, the one in bold). Of a calculation, the result counts. Where several numbers are offered ("17
or 18"), there is no answer.

    final_number("#### Step 1: 16 - 7 = 9\n#### Answer\nShe makes **$18**.\n\nDo you have 2 more questions?")    # 18.0

The text is hostile: only the end of a very long text is read, and numbers are looked for in short pieces of it.
"""

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from a2rl.core.model_text import answer_of

QUESTION = "Question:"
TOLERANCE = 1e-6
LONGEST = 50_000
"""Maximum number of characters that are read."""
WINDOW = 300
"""Maximum number of characters in which a number is looked for."""
MOST_UNITS = 2
"""Maximum number of words in a heading that is a number with its unit."""
SEVERAL = math.nan

_BOLD, _BOX = "\x02", "\x03"
_CHARACTERS = str.maketrans(
    dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\ufe63", "-")
    | dict.fromkeys("\u2018\u2019\u02bc\xb4", "'")
    | {"\u2014": " ", "\xd7": "*", "\xf7": "/", "\u2248": "=", "\u2192": ":", "\xb2": "^2", "\xb3": "^3"}
    | {"\xbd": " 1/2", "\xbc": " 1/4", "\xbe": " 3/4", "\u2044": "/", "\u2215": "/"}
)
"""Dashes, quotation marks and signs of arithmetic in ASCII."""
_BOXED = r"\\(?:boxed|fbox)\s*\{((?:[^{}\n]|\{[^{}\n]*\})*)\}"
_MARKUP = [
    (r"~~[^~\n]*~~", ""),  # struck out
    (r"<(?:final_)?answer>", _BOX),
    (r"\*\*|__|</?(?:b|strong)>", _BOLD),
    (r"</?[a-zA-Z][^<>\n]{0,40}>|`|(?<!\w)_|_(?!\w)", ""),
    (r"\\(?:text|textbf|mathrm|mathbf|mathit|mbox)\s*\{([^{}\n]*)\}", r" \1 "),
    (r"\\[dt]?frac\s*\{([^{}\n]*)\}\s*\{([^{}\n]*)\}", r"\1/\2"),
    (rf"{_BOXED}(?=\s*=)", rf"{_BOX}\1"),  # the result stands behind it
    (_BOXED, rf"{_BOX}\1\n"),
    (r"\{,\}", ","),
    (r"\\(?:times|cdot)\b", "*"),
    (r"\\div\b", "/"),
    (r"\\approx\b", "="),
    (r"\\([$%#&])|\\(?:[a-zA-Z]+|[^\w\n])|~", r" \1"),
    ("####", "\n####"),
]
_SEPARATED = re.compile(  # 9,500 9'500 9_500 9 500; 1,00,000; 1.234.567; 9.500,00
    r"(?<![\d.,])\d{1,3}(?:([,'_ ])\d{3}(?:\1\d{3})*(?!\d)|(?:,\d\d)+,\d{3}(?!\d)"
    r"|(?:\.\d{3}){2,}(?![\d.])|(?:\.\d{3})+(?=,\d\d(?!\d)))"
)
_DECIMAL_COMMA = re.compile(r"(?<=\d),(?=\d\d(?![\d,]))")
_MONEY = r"(?:\b(?:Rs\.?|INR|USD|EUR|GBP)\s?|[A-Z]{0,3}\$\s?|[£€¥₹₩₱]\s?)?"
_N = rf"(?<![\w.])(?>(?:-|\bnegative\s)?{_MONEY}-?)(?:(?:\d+\s)?\d+\s?/\s?\d+(?![\d/])|\d+(?:\.\d+)?|\.\d+)"
_NUMBER = re.compile(_N, re.IGNORECASE)
_MARKS = rf"[\s{_BOLD}{_BOX}*:=(\[\"'>$]*+"
_ABOUT = r"(?:(?:approximately|about|exactly|roughly|around|only|just|equal to|a total of)\s+)?"
_DIRECTLY = re.compile(rf"{_MARKS}{_ABOUT}{_MARKS}({_N})", re.IGNORECASE)
_RESULT = re.compile(rf"(?:=|\b(?:is|are|equals)\b|:)(?={_MARKS}{_ABOUT}{_MARKS}{_N})", re.IGNORECASE)
_CUE = re.compile(
    rf"{_BOX}|(?:^\W*|[.!?,:]\W{{1,3}}|\b(?:the|our|my|your|final|so|hence|thus|therefore) )(?:final |correct |right )?"
    r"(?:answer|ans|(?<=final )(?:result|total|amount|number|value))\b"
    r"[^\n.:=]{0,80}?(?:\b(?:is|are|was|be|equals)\b|:|=|\s-\s)",
    re.IGNORECASE,
)
_LABEL = re.compile(r"\W*(?:(?:the|final|correct) )*(?:answer|ans|result|conclusion|total)\W*", re.IGNORECASE)
_HEADING = re.compile(r"\s*#{1,6}")
_PLACE = re.compile(r"^\W*(?:(?:step|part|phase|stage|section|day) ?\d+\b ?[:.)-]?|\d{1,2}[.):] (?=.))", re.IGNORECASE)
_SENTENCE_END = re.compile(rf"(?<=[.!?])[\s{_BOLD}]+(?=[^\W\d_a-z]|[{_BOLD}{_BOX}#])")
_UNIT = r"\s*(?:[^\W\d]+\s+){0,2}"
_OPERATOR = re.compile(rf"[\s{_BOLD}]*{_UNIT}(?:[+*/^]|x\s|-\s)\s*[({_BOLD}]*{_MONEY}\d", re.IGNORECASE)
_CALCULATION = re.compile(
    r"(?:(?!\b(?:because|since|so|as|if|when|where|which|and|or|but|then)\b)(?:[^=,;:()\[\].]|\.(?=\d)))*"
    rf"=(?={_MARKS}{_ABOUT}{_MARKS}{_N})",
    re.IGNORECASE,
)
_TWO_NUMBERS = re.compile(r"\d[^\d.]+\.?\d")
_OFFERED = re.compile(
    rf"{_N}{_MARKS}(?:\s*(?:[^\W\d]+[,;\s]+){{0,2}}[,;(\s]*\b(?:or|maybe|perhaps|possibly)\s+(?:\w+\s+)?[{_BOLD}{_BOX}]*|(?:and|&)\s+)({_N})|{_N}(?:\s*,\s*{_N})+(?:,?\s*(?:or|and)\s+{_N})?(?=\W*\Z)",
    re.IGNORECASE,
)
_CLOSING = re.compile(rf"{_MARKS}{_N}[\s{_BOLD}.%$!)\]]*")
_NOT = re.compile(r"(?:\bnot|n't) (?:be |equal to )?$", re.IGNORECASE)
_TAKEN_BACK = re.compile(
    r"(?:^|[.!?(\n-])[ \x02]{0,3}(?:(?:but|oh|hmm+|oops|ah)\W{1,5})?"
    r"(?:(?P<pause>wait|actually)|oops|correction|no|scratch that|on second thought)(?= ?[,.!:;-])"
    r"|(?P<doubt>\b(?:if|whether|in case) [^.,;:!?\n]{0,40}?)?"  # "Let me know if this is wrong"
    r"(?:\b(?:that|this|it|which|answer|above)(?:'s| is| was) (?:wrong|incorrect|not right|not correct|a mistake)"
    r"|\bI (?:made|have made|was|am) (?:a mistake|an error|wrong))",
    re.IGNORECASE,
)
_SETTLING = re.compile(
    r"\d|n't\b|\b(?:no|nope|not|wrong|incorrect|mistaken?|error|oops|forgot|instead|half|twice"
    r"|too (?:high|low|many|much|few|little|big|small)|(?:should|must|need to|have to) (?:have )?"
    r"(?:add|subtract|divide|multiply|use|count|include))\w*\b",
    re.IGNORECASE,
)
"""What makes more of "Wait" than a pause, if it comes behind it."""
_GUESS = re.compile(
    r"\b(?:(?:it|this|that|answer|result|number|total) (?:could|might|may)(?: also)? be"
    r"|maybe|perhaps|possibly|alternatively)\b",
    re.IGNORECASE,
)
_FAREWELL = re.compile(
    r"\b(?:let me know|feel free|hope (?:this|that|it)|(?:any|more|other|further) questions|happy to help)\b",
    re.IGNORECASE,
)


class _Stated(NamedTuple):
    """A number that a solution states as its answer, or SEVERAL."""

    value: float
    cue: str
    line: int


def is_right(text: str, gold: str) -> bool:
    """Says whether the final number of an answer is that of the data's solution."""
    got, right = final_number(text), final_number(gold)
    assert right is not None
    return got is not None and abs(got - right) < TOLERANCE


def is_right_by_reference(text: str, gold: str) -> bool:
    """Says whether the last number before another question is that of the data's solution, after `####`.

    For the grader's option `prompts: faithful`. It splits `1,000` at the comma, and so takes it for a wrong answer.
    """
    numbers = re.findall(r"-?\d+\.\d+|-?\d+", text.split(QUESTION, maxsplit=1)[0])
    expected = int(gold.split("#### ")[1].replace(",", ""))
    return bool(numbers) and abs(float(numbers[-1]) - expected) < TOLERANCE


def final_number(text: str) -> float | None:
    """Returns the final number of a solution; None if it has no number, or several."""
    lines = [line for line in _readable(text).split("\n") if line.strip()]
    stated = list(_stated(lines))
    value = stated[-1].value if stated else _last(lines)
    guesses = {_last([each]) for line in lines for each in _SENTENCE_END.split(line) if _GUESS.search(each)}
    rivals = list(guesses - {None}) if value in guesses else []
    rivals += [each.value for each in stated[-2:-1] if each.cue == stated[-1].cue and each.line >= stated[-1].line - 1]
    return None if value is None or math.isnan(value) or set(rivals) - {value} else value


def _readable(text: str) -> str:
    """Returns what counts of a text, with one notation for numbers and for marks."""
    text = answer_of(text).partition(QUESTION)[0]
    text = unicodedata.normalize("NFKC", text[-LONGEST:].translate(_CHARACTERS))[-LONGEST:]
    for pattern, plain in _MARKUP:
        text = re.sub(pattern, plain, text)
    text = _SEPARATED.sub(lambda found: re.sub(r"\D", "", found[0]), text)
    text = _DECIMAL_COMMA.sub(".", text)
    settled = max((found.end() for found in _SETTLING.finditer(text)), default=0)
    taken_back = [
        found.end()
        for found in _TAKEN_BACK.finditer(text)
        if not found["doubt"] and (found.start() < settled or not found["pause"])
    ]
    return text[taken_back[-1] :] if taken_back else text


def _stated(lines: Sequence[str]) -> Iterator[_Stated]:
    """Yields the numbers that a solution states as its answer, up to the mark that closes it."""
    below_label = False
    for place, line in enumerate(lines):
        heading = _HEADING.match(line)
        said = line[heading.end() :] if heading else line
        cues = list(_CUE.finditer(said))
        for cue, end in zip(cues, [*(each.start() for each in cues[1:]), len(said)], strict=False):
            if (value := _read(said[cue.end() : end], anywhere=True)) is not None:
                yield _Stated(value, cue[0].lower(), place)
        if cues:
            below_label = not re.search(r"\w", said[cues[-1].end() :])
        elif _LABEL.fullmatch(_PLACE.sub("", said)) or (heading and not said.strip()):
            below_label = True
        elif below_label and re.search(r"\w", said):
            below_label = False
            if (value := _read(said, anywhere=True)) is not None:
                yield _Stated(value, "", place)
        elif (
            heading
            and not _is_title(said, lines[place + 1 : place + 4])
            and (value := _read(said, anywhere=False)) is not None
        ):
            yield _Stated(value, str(place), place)
            if _CLOSING.fullmatch(said):
                return


def _is_title(heading: str, below: Sequence[str]) -> bool:
    """Says whether a heading is the title of a step: "Step 1: ...", or "3 apples are bought" with a sum below."""
    words = re.findall(r"[^\W\d]+", heading)
    return bool(_PLACE.match(heading)) or (
        len(words) > MOST_UNITS and "=" not in heading and any(map(_NUMBER.search, below))
    )


def _read(phrase: str, anywhere: bool) -> float | None:
    """Reads the number that a phrase states: at its beginning, as its result, or else, if wanted, anywhere in it."""
    sentence = _SENTENCE_END.split(phrase[:WINDOW], maxsplit=1)[0]
    directly = _DIRECTLY.match(sentence)
    if directly and not _is_calculated(sentence, directly):
        return _chosen(sentence, directly.start(1))
    results = [_DIRECTLY.match(sentence, found.end()) for found in _RESULT.finditer(sentence)]
    starts = [result.start(1) for result in results if result and not _OPERATOR.match(sentence, result.end())]
    if starts:
        return _chosen(sentence, starts[-1])
    return SEVERAL if directly else _last([sentence]) if anywhere else None


def _is_calculated(sentence: str, number: re.Match[str]) -> bool:
    """Says whether a number only begins a calculation."""
    calculation = _CALCULATION.match(sentence, number.start(1))
    return bool(_OPERATOR.match(sentence, number.end()) or (calculation and _TWO_NUMBERS.search(calculation[0])))


def _last(lines: Sequence[str]) -> float | None:
    """Reads the last number; of its sentence, the last one in bold."""
    for whole in (False, True):
        for line in reversed(lines):
            for text in reversed(_SENTENCE_END.split(line if whole else _PLACE.sub("", line, count=1))):
                sentence = text[-WINDOW:]
                starts = [
                    each.start() for each in _NUMBER.finditer(sentence) if not _NOT.search(sentence, 0, each.start())
                ]
                bold = [start for start in starts if sentence.count(_BOLD, 0, start) % 2]
                if starts and (whole or not _FAREWELL.search(sentence)):
                    return _chosen(sentence, (bold or starts)[-1])
    return None


def _chosen(sentence: str, start: int) -> float:
    """Returns the number that begins there; SEVERAL if it is one of several that are offered."""
    for offer in _OFFERED.finditer(sentence):
        if offer.start() <= start < offer.end() and len({_value(each) for each in _NUMBER.findall(offer[0])}) > 1:
            return SEVERAL
    found = _NUMBER.match(sentence, start)
    assert found is not None
    return _value(found[0])


def _value(number: str) -> float:
    sign = -1 if "-" in number or "negative" in number.lower() else 1
    *whole, part = re.findall(r"[\d./]+", re.sub(r"(?i:Rs)\.?|[^\d./ ]|(?<= ) | (?=/)|(?<=/) ", "", number))
    above, _, below = part.partition("/")
    share = float(above) / float(below or 1) if float(below or 1) else math.inf
    return sign * (sum(map(float, whole)) + share)
