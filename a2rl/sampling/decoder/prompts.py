"""What models read and where they end, the same when a model is graded and when an agent trains it."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

NO_KWARGS: Mapping[str, Any] = MappingProxyType({})
Chat = Sequence[Mapping[str, str]]
"""Messages with the keys `role` and `content`."""


def prompt_tokens(tokenizer: Any, prompt: str | Chat, template_kwargs: Mapping[str, Any] = NO_KWARGS) -> list[int]:
    """Returns the tokens of a prompt.

    Args:
        tokenizer: A tokenizer of transformers.
        prompt: A text to continue, or a chat, to which the tokenizer's chat template is applied.
        template_kwargs: Further arguments of the chat template.

    Raises:
        jinja2.TemplateError: The template does not accept the chat.
    """
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True, **template_kwargs)
    # The template writes the special tokens itself.
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def end_tokens(model: Any, tokenizer: Any) -> set[int]:
    """Returns the tokens that end a model's turn: those of its generation configuration, and the tokenizer's."""
    declared = model.generation_config.eos_token_id
    declared = declared if isinstance(declared, list) else [declared]
    return {token for token in [*declared, tokenizer.eos_token_id] if token is not None}


class StopStrings:
    """Says in which rows one of some texts was written: `Stops` for a decoder.

    It looks at the newest tokens only. A text of n bytes spans at most n tokens, and every step looks.
    """

    def __init__(self, tokenizer: Any, strings: Sequence[str]) -> None:
        self._tokenizer, self._strings = tokenizer, strings
        self._window = max(len(string.encode()) for string in strings) + 4

    def __call__(self, rows: Sequence[list[int]]) -> list[bool]:
        """Returns it for each row of tokens."""
        tails = self._tokenizer.batch_decode([row[-self._window :] for row in rows], skip_special_tokens=True)
        return [any(string in tail for string in self._strings) for tail in tails]
