"""Tests annotators: alpaca-eval's configurations by name, and how the reply of each kind of annotator is read."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from a2rl.core.errors import UsageError
from a2rl.judge.annotator import annotator_names, find_annotator
from a2rl.judge.params import JudgeParams
from a2rl.judge.parsers import MAX_CHARS, PARSERS, UnreadableReplyError, first_share, parse
from tests import alpaca_eval_package as package
from tests.fake_judge import reply

REFERENCE = "alpaca_eval_gpt5_2_fn"
FIELDS = {"instruction": "Say hello.", "output_1": "Hello.", "output_2": "No."}
RANKED = '{"ordered_models":[{"model":"M","rank":1},{"model":"m","rank":2}]}'
UNUSABLE = {"alpaca_farm", "alpaca_farm_greedy_gpt4", "lmsys_gpt4", "improved_lmsys_gpt4"}
"""Annotators that ask about several pairs at once, or for two marks."""


def called(arguments: Any) -> dict[str, Any]:
    """Returns the reply of a judge that calls a function."""
    call = {"type": "function", "function": {"name": "make_partial_leaderboard", "arguments": arguments}}
    return {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": [call]}}]}


def wrote(text: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


@pytest.mark.parametrize("name", sorted(set(annotator_names()) - UNUSABLE))
def test_every_annotator_but_four_can_be_used_by_its_name(name: str) -> None:
    annotator = find_annotator(name)
    assert annotator.parser in PARSERS
    text = "\n".join(message["content"] for message in annotator.messages(FIELDS))
    assert all(each in text for each in FIELDS.values())
    assert "{instruction}" not in text
    assert "<|im_" not in text
    assert not {"model_name", "client_kwargs", "max_new_tokens", "max_tokens_to_sample"} & annotator.decoding.keys()


@pytest.mark.parametrize("name", sorted(UNUSABLE))
def test_an_annotator_in_another_form_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"several pairs|13 annotators|no parser of an annotator 'lmsys_parser'"):
        find_annotator(name)


def test_the_reference_annotator_reads_rankings_by_function_call() -> None:
    judge = JudgeParams(name="gpt-5.2", annotator=REFERENCE).resolved(REFERENCE)
    assert judge.model == "gpt-5.2"
    assert judge.decoding is not None
    assert judge.decoding["tool_choice"] == {"type": "function", "function": {"name": "make_partial_leaderboard"}}
    assert "max_tokens" not in judge.decoding  # refused by OpenAI for this model
    annotator = find_annotator(REFERENCE)
    assert annotator.messages(FIELDS) == find_annotator("alpaca_eval_gpt4_turbo_fn").messages(FIELDS)
    assert annotator.first_share(called(RANKED)) == 0
    assert annotator.first_share(called(RANKED.replace('"M"', '"x"').replace('"m"', '"M"').replace('"x"', '"m"'))) == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"choices": {}},
        {"choices": ["m"]},
        wrote(None),
        wrote(""),
        wrote("\x00\x1b[2J"),
        wrote("m is better"),
        called(None),
        called(""),
        called("{}"),
        called('{"ordered_models": []}'),
        called('{"ordered_models": 7}'),
        called('{"ordered_models": [{"model": "x", "rank": 1}]}'),
        called('{"ordered_models": [{"model": "m"}]}'),
        called('{"ordered_models": [{"model": "m", "rank": 3}]}'),
        called('{"ordered_models": [{"model": "m", "rank": true}]}'),
        called('{"ordered_models": [{"model": "m", "rank": NaN}]}'),
        called('{"ordered_models": [{"model": "m", "rank": 1e308}]}'),
        called('{"ordered_models": [{"model": "m", "rank": "1"}]}'),
        called('{"ordered_models": [{"model": "m", "rank": [1]}]}'),
        called("[" * 50_000),
        called("m" * (MAX_CHARS + 1)),
        called(RANKED[:-5]),
    ],
    ids=lambda body: str(body)[-40:],
)
def test_a_reply_in_another_form_is_no_verdict_and_one_line(body: dict[str, Any]) -> None:
    with pytest.raises(UnreadableReplyError) as error:
        find_annotator(REFERENCE).first_share(body)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("name", "text", "first"),
    [
        ("alpaca_eval_gpt4", "[{'model': 'model_1', 'rank': 1}, {'model': 'model_2', 'rank': 2}]", 1.0),
        ("alpaca_eval_gpt4", "[{'model': 'model_1', 'rank': 2}, {'model': 'model_2', 'rank': 1}]", 0.0),
        ("chatgpt", "Output (b)", 0.0),
        ("chatgpt", "\nOutput (a)", 1.0),
        ("weighted_alpaca_eval_gpt5_nano", "M", 0.0),
        # more than the answer
        ("weighted_alpaca_eval_gpt5_nano", "```\nM\n```", 0.0),
        ("weighted_alpaca_eval_gpt5_nano", "**m**.", 1.0),
        ("weighted_alpaca_eval_gpt5_nano", "My verdict: m", 1.0),
        ("weighted_alpaca_eval_gpt5_nano", "Model m gives more detail.\n\nM", 0.0),
        ("weighted_alpaca_eval_gpt5_nano", "Both are similar.\nThe better output is M.", 0.0),
        ("weighted_alpaca_eval_gpt5_nano", "<think>Is it m, or M?</think>m", 1.0),
        ("weighted_alpaca_eval_gpt5_nano", "m<|im_end|>", 1.0),
        ("alpaca_eval_gpt4", "```python\n[{'model': 'model_1', 'rank': 1}, {'model': 'model_2', 'rank': 2}]\n```", 1.0),
        ("alpaca_eval_gpt4", "Here: [{'model': 'model_1', 'rank': 2}, {'model': 'model_2', 'rank': 1}].", 0.0),
        (REFERENCE, f"```\n{RANKED}\n```", 0.0),
        (REFERENCE, f"The ranking is {RANKED}, I think.", 0.0),
        (REFERENCE, f"<think>[1]</think>{RANKED}", 0.0),
    ],
)
def test_annotators_that_answer_in_text_are_read(name: str, text: str, first: float) -> None:
    assert find_annotator(name).first_share(wrote(text)) == first


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("alpaca_eval_gpt4", "__import__('os').system('true')"),
        ("alpaca_eval_gpt4", "(" * 90_000),
        ("chatgpt", "Output (a)\nOutput (b)"),
        ("chatgpt", "Neither."),
        ("weighted_alpaca_eval_gpt5_nano", "m or M"),
        ("weighted_alpaca_eval_gpt5_nano", "m is much worse"),
        ("weighted_alpaca_eval_gpt5_nano", "Verdict: neither m nor M"),
        ("alpaca_eval_gpt4", "[{'model': 'model_1', 'rank': 1}] or [{'model': 'model_1', 'rank': 2}]"),
    ],
)
def test_text_that_names_no_one_output_is_no_verdict(name: str, text: str) -> None:
    with pytest.raises(UnreadableReplyError):
        find_annotator(name).first_share(wrote(text))


PIPELINE = {"parsers_to_kwargs": {"json_parser": {"annotation_key": "ordered_models"}, "ranking_parser": {}}}
TOKENS = {"numerator_token": "m", "denominator_tokens": ["m", "M"]}
CASES: list[tuple[str, dict[str, Any], Any]] = [
    ("regex_parser", {"outputs_to_match": {1: r"\n\(a\)", 2: r"\n\(b\)"}}, "\n(b)\n\n### x:\n(a)\n\n### y:\n(b)"),
    ("regex_parser", {"outputs_to_match": {1: "(?i)output \\(a\\)", 2: "(?i)output \\(b\\)"}}, '{"x": "OUTPUT (B)"}'),
    ("ranking_parser", {}, "[{'model': 'model_1', 'rank': 2}, {'model': 'model_2', 'rank': 1}]"),
    ("ranking_parser", {"model_1_name": "m"}, [{"model": "m", "rank": 1}]),
    ("json_parser", {"annotation_key": "integer"}, 'blah ```json\n{"why": "x", "integer": 1}```'),
    ("json_parser", {"annotation_key": None}, '[{"a": 1}, {"a": 2}]'),
    ("pipeline_meta_parser", PIPELINE, RANKED.replace("m", "model_1")),
    *(
        (
            "logprob_parser",
            {"numerator_token": "m", "denominator_tokens": ["m", "M"], **more},
            reply(shares)["choices"][0],
        )
        for more in ({}, {"is_binarize": False}, {"is_binarize": False, "log_prob_index": -1})
        for shares in ({"m": 0.6, "M": 0.4}, {"m": 0.2, "M": 0.5, "x": 0.3}, {"M": 1.0}, {"m": 1.0})
    ),
]


@pytest.mark.parametrize(("kind", "arguments", "completion"), CASES)
def test_every_parser_reads_what_the_packages_own_does(kind: str, arguments: dict[str, Any], completion: Any) -> None:
    completion = json.loads(json.dumps(completion).replace("model_1odel", "model"))
    theirs = getattr(package.module("completion_parsers"), kind)(completion, **json_copy(arguments))
    ours = parse(kind, arguments, completion)
    assert [type(each) for each in ours] == [type(each) for each in theirs] or kind == "logprob_parser"
    assert ours == pytest.approx(theirs) if kind == "logprob_parser" else ours == theirs


def json_copy(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy that the package may change; it compiles patterns in place."""
    return {key: dict(value) if isinstance(value, dict) else value for key, value in arguments.items()}


@pytest.mark.parametrize(("is_binarize", "value"), [(False, 2 - 0.75 / 0.95), (True, 1)])
def test_tokens_with_the_same_text_are_one_answer(is_binarize: bool, value: float) -> None:
    """Such as a letter with a space before it, without one, and as a byte."""
    shares = (("m", 0.6), ("M", 0.2), ("m", 0.1), ("m", 0.05))
    top = [{"token": token, "logprob": math.log(share)} for token, share in shares]
    choice = {"logprobs": {"content": [{"top_logprobs": top}]}}
    assert parse("logprob_parser", {**TOKENS, "is_binarize": is_binarize}, choice) == pytest.approx([value])


@pytest.mark.parametrize("values", [[], [1, 2], [0], [math.nan], [3], [0.5], [True], ["1"], [None], [10**400]])
def test_a_preference_that_cannot_be_is_no_verdict(values: list[Any]) -> None:
    with pytest.raises(UnreadableReplyError):
        first_share(values)


def write_config(folder: Path, **changes: Any) -> Path:
    """Writes an annotator of a user's own."""
    import yaml

    config = {
        "prompt_template": f"{folder.name}/prompt.txt",
        "fn_completions": "openai_completions",
        "completions_kwargs": {"model_name": "mine", "max_new_tokens": 5},
        "completion_parser_kwargs": {"outputs_to_match": {1: "first", 2: "second"}},
        **changes,
    }
    folder.mkdir(parents=True)
    (folder / "prompt.txt").write_text("\n\nHuman: {instruction}\n1: {output_1}\n2: {output_2}\n\nAssistant:")
    (folder / "configs.yaml").write_text(yaml.safe_dump({folder.name: config}))
    return folder


def test_a_folder_with_a_configuration_is_an_annotator(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "mine")
    judge = JudgeParams(annotator=str(folder), base_url="http://127.0.0.1:1").resolved(REFERENCE)
    assert (judge.annotator, judge.model, judge.decoding) == (str(folder), "mine", {"max_tokens": 5})
    [message] = find_annotator(judge.annotator).messages(FIELDS)
    assert message == {"role": "user", "content": "Say hello.\n1: Hello.\n2: No."}
    (folder / "prompt.txt").write_text("{instruction} {output_1} {output_2} Which?")
    find_annotator.cache_clear()
    assert JudgeParams(annotator=str(folder)).resolved(REFERENCE).identity() != judge.identity()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"prompt_template": "none.txt"}, "no prompt none.txt"),
        ({"batch_size": 5}, "several pairs"),
        ({"fn_completion_parser": "magic_parser"}, "magic_parser"),
        ({"completion_parser_kwargs": {"outputs_to_match": {1: "("}}}, "not valid"),
        ({"completion_parser_kwargs": {"patterns": {}}}, "not valid"),
        ({"completions_kwargs": {"model_name": "x", "tokens_to_favor": ["a"]}}, "tokens_to_favor"),
        ({"completions_kwargs": None}, "cannot be read"),
    ],
)
def test_an_unusable_configuration_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UsageError) as error:
        find_annotator(str(write_config(tmp_path / "mine", **changes)))
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_an_annotator_for_another_kind_of_api_needs_an_endpoint() -> None:
    with pytest.raises(UsageError, match="base_url"):
        JudgeParams(annotator="claude_ranking").resolved(REFERENCE)
    judge = JudgeParams(annotator="claude_ranking", base_url="http://127.0.0.1:4000/v1").resolved(REFERENCE)
    assert judge.decoding == {"max_tokens": 100, "temperature": 0}
    assert (
        JudgeParams(annotator="mistral-large-2402_ranking").resolved(REFERENCE).base_url == "https://api.mistral.ai/v1"
    )


def test_a_task_with_an_annotator_of_its_own_keeps_it() -> None:
    judge = JudgeParams(annotator=REFERENCE, model="any").resolved("correct_or_incorrect")
    assert (judge.annotator, judge.decoding) == ("correct_or_incorrect", {"temperature": 0})
    with pytest.raises(UsageError, match="no model"):
        JudgeParams(annotator=REFERENCE).resolved("correct_or_incorrect")


def test_a_judge_of_an_older_spec_keeps_its_identity() -> None:
    older = {
        "annotator": "weighted_alpaca_eval_gpt4_turbo",
        "base_url": "https://api.openai.com/v1",
        "api_key_env": "OPENAI_API_KEY",
        "model": "gpt-4-1106-preview",
        "decoding": {"max_tokens": 1, "temperature": 1, "logprobs": True},
        "dollars_per_million_prompt_tokens": 10.0,
        "dollars_per_million_completion_tokens": 30.0,
        "concurrency": 64,
        "timeout_s": 60.0,
        "attempts": 6,
        "backoff_s": 1.0,
    }
    judge = JudgeParams.model_validate(older)
    assert judge.identity() == {key: older[key] for key in ("annotator", "model", "decoding")}
