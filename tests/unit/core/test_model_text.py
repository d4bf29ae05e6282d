"""Tests what a model says to its reader."""

import pytest

from a2rl.core.model_text import answer_of


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
