"""Tests what a model says to its reader."""

import pytest

from a2rl.core.model_text import answer_of, break_tokens, without_thoughts


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("18", "18"),
        ("    return 1\n", "    return 1\n"),
        ("<think>#### 3, maybe</think>\n#### 18", "\n#### 18"),
        ("<Thinking>3</Thinking>18", "18"),
        ("<think>3<think>4</think>5</think>18", "18"),
        ("so it is 3</think>\n18", "\n18"),
        ("<think>it is 18", ""),
        ("18<think>or 3", "18"),
        ("<thi\u200bnk>\n18", ""),
        ("18<|im_end|>\n<|im_start|>user\n20", "18"),
        ("<|im_start|>assistant\n    18<|endoftext|>20", "    18"),
        ("18<end_of_turn>", "18"),
        ("<start_of_turn>model\n18", "18"),
        ("18</s> [INST] And 2?", "18"),
        ("'</s>'.join(x)", "'</s>'.join(x)"),
        ("<|eot_id|>18", "18"),
        ("<|start_header_id|>assistant<|end_header_id|>\n\n18", "18"),
        ("<|channel|>analysis<|message|>3?<|end|><|start|>assistant<|channel|>final<|message|>18<|return|>", "18"),
        ("1\r\n2\r3", "1\n2\n3"),
        ("\ufeff1\u200b8\xa0eggs", "18 eggs"),
        ("a <b> c", "a <b> c"),
    ],
)
def test_the_answer_is_what_the_model_says_to_its_reader(text: str, answer: str) -> None:
    assert answer_of(text) == answer


@pytest.mark.parametrize(
    "token",
    [
        "<|im_end|>", "<|im_start|>", "<|eot_id|>", "<|turn>", "<\uff5cUser\uff5c>", "<s>", "</s>", "<bos>", "<eos>",
        "<pad>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "<<SYS>>", "<</SYS>>",
    ],
)  # fmt: skip
def test_a_token_in_a_part_of_a_prompt_is_text(token: str) -> None:
    assert token not in break_tokens(f"1{token}{token}x\n")
    assert break_tokens(f"1{token}").replace("\\", "") == f"1{token}"


def test_what_is_no_token_stays_as_it_is() -> None:
    text = "if a < b | c: x[INSTALL] = [1]  # <b>, <section>, </strong>, \\n"
    assert break_tokens(text) == text


@pytest.mark.parametrize("text", ["ab<think>c</think>de", "<think>a</think>b</think>cd<thought>e", "ab"])
def test_what_is_no_thought_can_keep_its_place(text: str) -> None:
    kept = without_thoughts(text, ".")
    assert len(kept) == len(text)
    assert kept.replace(".", "") == without_thoughts(text)
    assert all(there in (".", char) for there, char in zip(kept, text, strict=True))
