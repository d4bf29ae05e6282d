"""What a model says to its reader: its text without thoughts, special tokens and characters that nobody sees; the
programs that it writes; and its text as a part of another model's prompt.

    answer_of("<think>#### 3, maybe</think>\\n#### 18<|im_end|>\\n<|im_start|>user")    # "\\n#### 18"

Whatever reads a model's text (a grader, or a parser of judges' replies) begins with this. The text is hostile: each
expression reads it once, whatever it contains.
"""

import ast
import re
import warnings

UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What Python's parser raises for a text that is not Python."""
_TAGS = "(?:think|thinking|thought|thoughts|reasoning|scratchpad)"
_THOUGHT = re.compile(
    rf"<({_TAGS})>.*?(?:</\1>|\Z)|<\|channel\|>(?:analysis|commentary)\b.*?(?:<\|end\|>|\Z)", re.DOTALL | re.IGNORECASE
)
_END_OF_THOUGHT = re.compile(rf"</{_TAGS}>", re.IGNORECASE)
_END_OF_TURN = re.compile(
    r"<\|(?:im_end|endoftext|end_of_text|eot_id|eom_id|end|return|eos|user|system)\|>|<\|im_start\|>\s*(?:user|system)\b"
    r"|</s>(?=\s|\Z)|<(?:eos|end_of_turn)>|<｜end▁of▁sentence｜>"  # noqa: RUF001 - DeepSeek's token
)
_SPECIAL = re.compile(
    r"<\|start_header_id\|>\s*+\w*+\s*+<\|end_header_id\|>\s*|<\|(?:im_)?start\|>\s*(?:assistant\b\n?)?"
    r"|<\|channel\|>\s*final\b|<\|[a-z_0-9]{1,40}\|>|<(?:s|bos|pad)>|<start_of_turn>(?:model\n)?|\[/?INST\]"
)
_TOKEN = re.compile(
    r"<(?=[|｜]|/?(?:s|bos|eos|pad|unk)>|(?:start|end)_of_turn>|/?SYS>)|\[(?=/?(?:INST|SYSTEM_PROMPT)\])"  # noqa: RUF001
)
"""The first characters of what chat templates write between turns."""
_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")


def answer_of(text: str) -> str:
    """Returns what a model says to its reader.

    A thought without an end goes on to the end of the text; one without a beginning (which some chat templates write)
    began before the text. A token that ends a turn ends the text, unless nothing was said before it.
    """
    text = without_thoughts(_UNSEEN.sub("", text).replace("\r\n", "\n").replace("\r", "\n"))
    turns = (_SPECIAL.sub("", turn) for turn in _END_OF_TURN.split(text))
    return next(filter(str.strip, turns), "").replace("\xa0", " ")


def without_thoughts(text: str, filler: str = "") -> str:
    """Returns a text without its thoughts; see `answer_of`.

    Args:
        filler: What stands in place of each of their characters; with a space, all others keep their places.
    """
    text = _THOUGHT.sub(lambda thought: filler * len(thought[0]), text)
    begin = max((end.end() for end in _END_OF_THOUGHT.finditer(text)), default=0)
    return filler * begin + text[begin:]


def encodable(text: str) -> str:
    """Returns a text without lone surrogates, which JSON allows and UTF-8 does not; question marks stand for them."""
    return text.encode("utf-8", "replace").decode()


def break_tokens(text: str) -> str:
    """Returns a text for another model's prompt: the tokens of the usual chat templates have a backslash in them, so
    that they are text to every tokenizer. All else stays as it is."""
    return _TOKEN.sub(r"\g<0>\\", text)


def code_tree(text: str) -> ast.Module | None:
    """Returns the syntax tree of a program that a model wrote; None if it is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes
            return ast.parse(text)
    except UNREADABLE:
        return None
