import json
import os
import random
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from a2rl.contamination import sources
from a2rl.contamination.sources import Piece, given_texts, item_texts, pieces, read_and_gone, written_by_agent
from a2rl.contamination.text_search import ItemIndex, TextSearch
from a2rl.core.files import write_jsonl
from a2rl.recording.code_history import snapshot_code
from a2rl.run.directory import RunDir
from tests.run_maker import spec
from tests.stories import stories

ITEMS = {str(place): text for place, text in enumerate(stories(200, seed=1))}
KNOWN = stories(400, seed=2)


@pytest.fixture(scope="module")
def text_search() -> TextSearch:
    return TextSearch(ITEMS, KNOWN)


@pytest.fixture(scope="module")
def index() -> ItemIndex:
    return ItemIndex(ITEMS, KNOWN)


def test_an_item_is_found_verbatim_in_a_line_of_code(index: ItemIndex) -> None:
    hits = index.search(f'    PROMPTS.append("{ITEMS["7"]}")  # keep')
    assert [(hit.item, hit.way) for hit in hits] == [("7", "verbatim")]


@pytest.mark.parametrize("between", ["\u200b", "\u00ad", "\ufe0f", "\u0332", "\u3164"])
def test_an_item_is_found_between_characters_nobody_sees(index: ItemIndex, between: str) -> None:
    assert [hit.item for hit in index.search(between.join(ITEMS["7"]))] == ["7"]


def test_an_item_is_found_with_other_numbers_and_names(index: ItemIndex) -> None:
    text = ITEMS["9"]
    for old, new in zip("123456789", "918273645", strict=True):
        text = text.replace(f" {old}", f" {new}1")
    hits = index.search(text)
    assert [hit.item for hit in hits] == ["9"]
    assert hits[0].way in ("renumbered", "verbatim")


def test_an_item_is_found_in_another_order_with_words_left_out(index: ItemIndex) -> None:
    sentences = ITEMS["11"].split(". ")
    told = ". ".join(reversed(sentences)).replace(" the ", " ").replace(" and ", " ")
    assert "11" in [hit.item for hit in index.search(told)]


def test_texts_of_the_same_kind_are_not_taken_for_items(index: ItemIndex) -> None:
    others = stories(300, seed=3)
    assert sum(bool(index.search(text)) for text in others) <= 3


def test_an_item_that_the_agent_was_given_is_not_looked_for() -> None:
    index = ItemIndex(ITEMS, [*KNOWN, ITEMS["3"]])
    assert index.search(ITEMS["3"]) == []
    assert index.findable("verbatim") <= len(ITEMS) - 1


def _pieces(texts: list[str]) -> list[Piece]:
    return [Piece("workspace/data.jsonl", line, text) for line, text in enumerate(texts, start=1)]


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2, 1.0])
def test_planted_items_are_reported_with_their_places(text_search: TextSearch, share: float) -> None:
    planted = [ITEMS[str(place)] for place in range(max(2, round(share * len(ITEMS))))]
    texts = [*stories(200, seed=4), *planted]
    random.Random(0).shuffle(texts)
    found = text_search.run(_pieces(texts))
    assert "verbatim" in found.suspicious()
    assert {place.hit.item for place in found.found["verbatim"]} >= {str(place) for place in range(len(planted))}
    best = found.found["verbatim"][0]
    assert texts[best.piece.line - 1] == ITEMS[best.hit.item]


def test_clean_texts_are_not_reported(text_search: TextSearch) -> None:
    found = text_search.run(_pieces(stories(500, seed=5)))
    assert found.suspicious() == []
    assert found.is_complete


def counting(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [f"Count from {rng.randint(1, 40)} to {rng.randint(41, 80)} with commas." for _ in range(count)]


def with_other_numbers(texts: list[str], seed: int) -> list[str]:
    rng = random.Random(seed)
    return [re.sub(r"\d+", lambda found: str(int(found[0]) + rng.randint(1, 9)), text) for text in texts]


COUNTING = counting(60, seed=0)
TRAINING = [text for text in counting(300, seed=1) if text not in COUNTING]


@pytest.fixture(scope="module")
def partly_counting() -> TextSearch:
    """A search for items, 60 of which have few numbers and the same words as some of the training data."""
    items = ITEMS | {f"count {place}": text for place, text in enumerate(COUNTING)}
    return TextSearch(items, [*KNOWN[:100], *TRAINING])


@pytest.mark.parametrize("copies", [1, 3, 10, 30])
def test_training_data_with_other_numbers_is_not_reported(partly_counting: TextSearch, copies: int) -> None:
    """Some of it is equal to items by chance."""
    made = with_other_numbers(TRAINING * copies, seed=2)
    assert len(set(made) & set(COUNTING)) >= 3
    assert partly_counting.run(_pieces(made)).suspicious() == []


@pytest.mark.parametrize("leaked", [2, 10, 28])
def test_items_unlike_training_data_need_no_more_hits(partly_counting: TextSearch, leaked: int) -> None:
    found = partly_counting.run(_pieces([ITEMS[str(place)] for place in range(leaked)]))
    assert (len(found.found["verbatim"]), found.suspicious()) == (leaked, ["verbatim"])


def test_a_search_without_time_says_that_it_is_incomplete(text_search: TextSearch) -> None:
    assert not text_search.run(_pieces(stories(5, seed=6)), limit_s=0.0).is_complete


def test_items_and_training_data_are_read_as_texts(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "eval.jsonl", [{"task_id": "a/1", "prompt": "def f(x): ...", "test": "assert f(1)"}])
    write_jsonl(tmp_path / "train.jsonl", [{"question": "What is it?", "answer": {"final": "Nothing."}}])
    assert item_texts(tmp_path) == {"a/1": "def f(x): ..."}
    assert "What is it?\nNothing.\nfinal\nquestion\nanswer" in given_texts(tmp_path)


def test_an_items_longest_text_stands_for_its_question(tmp_path: Path) -> None:
    asked = "Which of the two trains is the first to arrive at the coast?"
    chat = [{"role": "user", "content": asked}]
    rows: list[dict[str, Any]] = [
        {"id": "x" * 50, "query": asked, "label": "B"},
        {"id": "b", "prompt": chat},
        {"id": "c", "word": "apple"},
    ]
    write_jsonl(tmp_path / "eval.jsonl", rows)
    assert item_texts(tmp_path) == {"x" * 50: asked, "b": asked}


def test_everything_that_the_agent_wrote_is_read_once(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, spec())
    code = run.workspace / "code"
    code.mkdir(parents=True)
    (code / "train.py").write_text("first = 'an early version'\n")
    snapshot_code(code, run.code, "one")
    (code / "train.py").write_text("second = 'a later version'\n")
    snapshot_code(code, run.code, "two")
    (run.workspace / "notes.txt").write_text("nothing\nimportant here\n")
    (run.workspace / "weights.safetensors").write_bytes(b"\0not a text")
    (run.workspace / "words.safetensors").write_text("named like weights")
    (run.workspace / "site-packages").mkdir()
    (run.workspace / "site-packages" / "module.py").write_text("among libraries")
    (run.workspace / "first-name").write_text("a file with two names")
    os.link(run.workspace / "first-name", run.workspace / "second-name")
    (run.workspace / "program").write_bytes(b"\x7fELF\0\0\0\nnot a text either")
    found = list(written_by_agent(run))
    texts = {piece.text: piece for piece in found}
    assert texts["first = 'an early version'"].file.startswith("code/train.py@")
    assert texts["second = 'a later version'"].line == 1
    assert texts["important here"] == Piece("workspace/notes.txt", 2, "important here")
    assert {"named like weights", "among libraries", "a file with two names"} <= texts.keys()
    assert not any("not a text" in piece.text for piece in found)
    assert found[-1].text == "among libraries"  # what others wrote comes last


def test_equal_files_are_searched_once(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, spec())
    for name in ("step-1", "step-2"):
        (run.workspace / "output" / name).mkdir(parents=True)
        (run.workspace / "output" / name / "tokenizer.json").write_text("the same words\n")
    (run.workspace / "output" / "step-2" / "notes.txt").write_text("other words\n")
    found = [(piece.file, piece.text) for piece in written_by_agent(run)]
    assert sorted(text for _, text in found) == ["other words", "the same words"]


@pytest.mark.parametrize(
    ("limit", "files"),
    [
        ("MAX_BYTES", {"a.txt": "first words\n", "b.txt": "second words\n"}),
        ("MAX_FILE_BYTES", {"a.txt": "first words\n" * 2}),
        ("MAX_READ_BYTES", {"a.txt": "first words\n", "b.txt": "first words\n"}),
    ],
)
def test_text_beyond_a_limit_is_left_out_and_said(
    limit: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text_search: TextSearch
) -> None:
    monkeypatch.setattr(sources, limit, len("first words\n"))
    run = RunDir.create(tmp_path, spec())
    run.workspace.mkdir(parents=True)
    for name, text in files.items():
        (run.workspace / name).write_text(text)
    found: list[str] = []
    with pytest.raises(sources.TooMuchTextError):
        found += (piece.text for piece in written_by_agent(run))
    assert found == ["first words"]
    assert not text_search.run(written_by_agent(run)).is_complete


def test_traps_in_the_workspace_are_passed_by(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "runs", spec())
    run.workspace.mkdir(parents=True)
    (tmp_path / "outside.txt").write_text("hidden words")
    (run.workspace / "link.txt").symlink_to(tmp_path / "outside.txt")
    os.mkfifo(run.workspace / "pipe.txt")
    assert list(written_by_agent(run)) == []


def test_a_file_that_may_belong_to_others_is_not_read_and_said(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "runs", spec())
    run.workspace.mkdir(parents=True)
    (tmp_path / "outside.txt").write_text("hidden words")
    os.link(tmp_path / "outside.txt", run.workspace / "second-name.txt")
    found: list[Piece] = []
    with pytest.raises(sources.TooMuchTextError):
        found += written_by_agent(run)
    assert found == []


MODULE = """from typing import List


def separate(groups: List[str], width: int = 3) -> List[str]:
    \"\"\" Cut each of the groups into parts of that width, and leave
    out what is shorter than half of it; keep the order of the parts.
    >>> separate(["abcdefg"])
    ["abc", "def"]
    \"\"\"
"""


def _escaped_twice(text: str) -> str:
    return json.dumps({"chat": json.dumps([{"content": text}], indent=1)}, indent=1)


@pytest.mark.parametrize(
    "write",
    [
        str, lambda text: f"x = 1\n{text}    return []\n", lambda text: f"PROMPT = {text!r}",
        lambda text: json.dumps({"prompt": text}), lambda text: json.dumps([{"prompt": text}], indent=2),
        _escaped_twice, lambda text: text.replace("\n", "\r\n"), lambda text: text.replace("\n", "\n# "),
        lambda text: json.dumps({text: "7"}), lambda text: json.dumps({"table": [{"one": {}, text: 7}]}),
        lambda text: f'{{"prompt": {json.dumps(text)}, "prompt": "x"}}',
        lambda text: json.dumps([{"one word": each} for each in text.split(" ")]),
    ],
)  # fmt: skip
def test_an_item_of_several_lines_is_found_however_it_is_written(write: Callable[[str], str]) -> None:
    search = TextSearch({"a": MODULE, "b": "\n".join(stories(2, seed=8))}, KNOWN[:40])
    around = "\n".join(stories(40, seed=9))
    written = pieces("f", f"{around}\n{write(MODULE)}\n{around}".encode())
    [place] = search.run(written).found["verbatim"]
    assert place.hit.item == "a"
    assert place.hit.score > 0.9


def test_long_lines_are_cut() -> None:
    cut = list(pieces("f", b"a word " * 2000))
    assert len(cut) > 2
    assert all(len(piece.text) <= 4500 for piece in cut)


def test_a_broken_code_history_is_an_error_not_a_clean_result(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, spec())
    run.code.mkdir()
    subprocess.run(["git", "init", "-q", str(run.code)], check=True)
    (run.code / ".git" / "HEAD").write_text("nonsense")
    with pytest.raises(Exception, match="git cat-file: fatal"):
        list(written_by_agent(run))


@pytest.mark.parametrize("name", ["\nitems.py", "x\u2028deadbeef items.py", "items.py"])
def test_code_is_searched_whatever_its_name(name: str, tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, spec())
    (run.workspace / "code").mkdir(parents=True)
    (run.workspace / "code" / name).write_text("the words of an item")
    snapshot_code(run.workspace / "code", run.code, "a state")
    (run.workspace / "code" / name).unlink()
    assert "the words of an item" in {piece.text for piece in written_by_agent(run)}


def test_a_text_that_is_there_many_times_is_searched_once(text_search: TextSearch) -> None:
    [piece] = pieces("f", b"a line of a log that grows")
    began = time.process_time()
    assert text_search.run([piece] * 200_000).is_complete
    assert time.process_time() - began < 20


def test_files_that_were_read_and_are_gone_are_named(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, spec())
    (run.workspace / "code").mkdir(parents=True)
    (run.workspace / "code" / "kept.jsonl").write_text("{}")
    rows = [{"event": "ended", "read": ["code/kept.jsonl", "code/gone.jsonl", "output/model.safetensors"]}]
    write_jsonl(run.logs / "processes.jsonl", rows)
    assert read_and_gone(run) == ["code/gone.jsonl"]
