"""Tests the shop's search engine: its terms, its scores, and that it ranks like WebShop's own."""

import json
import lzma
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from a2rl.core.files import folder_digest
from tasks.webshop.shop import index as bm25
from tasks.webshop.shop.analysis import stem, terms, words
from tasks.webshop.shop.index import Index, build


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("red cotton shirts", ["red", "cotton", "shirt"]),
        ("The Men's 3.5-oz. lotions\u2122", ["men", "3.5", "oz", "lotion", "\u2122"]),
        ("u.s.a. o'keeffe 1,000.50 a.5 5.a", ["u.s.a", "o'keeff", "1,000.50", "5", "5"]),
        ("material:cotton 5:30 x_1 __ _a_", ["material:cotton", "5", "30", "x_1", "_a_"]),
        ("it is not for the", []),
        ("dogs\u2019 dog\u2019s DOG'S", ["dog", "dog", "dog"]),
        ("\u7ea2\u8272 \u30ab\u30ca \u3042\u3044", ["\u7ea2", "\u8272", "\u30ab\u30ca", "\u3042", "\u3044"]),
        ("a\u0301b \U0001f600 \u2605 \u2606 \u2713", ["a\u0301b", "\U0001f600", "\u2605"]),
        ("\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea 1\ufe0f\u20e3 \u2764\ufe0f",
         ["\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "1\ufe0f\u20e3", "\u2764\ufe0f"]),
        ("", []),
    ],
)  # fmt: skip
def test_a_text_is_cut_into_terms_as_lucene_cuts_it(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


@pytest.mark.parametrize(
    "text", ["_" * 200_000, "_" * 200_000 + "\xe9", "_\u0301" * 20_000], ids=["ascii", "unicode", "marks"]
)
def test_a_run_of_underscores_is_read_once(text: str) -> None:
    assert "" not in terms(text)


def test_a_word_is_cut_where_lucene_cuts_it() -> None:
    assert [len(word) for word in words("x" * 600)] == [255, 255, 90]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("caresses", "caress"), ("ponies", "poni"), ("ties", "ti"), ("cats", "cat"), ("feed", "feed"),
        ("agreed", "agre"), ("plastered", "plaster"), ("motoring", "motor"), ("sing", "sing"), ("conflated", "conflat"),
        ("hopping", "hop"), ("falling", "fall"), ("filing", "file"), ("happy", "happi"), ("sky", "sky"),
        ("relational", "relat"),
        ("vietnamization", "vietnam"), ("hopeful", "hope"), ("adjustable", "adjust"), ("adoption", "adopt"),
        ("controlling", "control"), ("rate", "rate"), ("cease", "ceas"), ("possibly", "possibl"), ("apology", "apolog"),
        ("as", "as"), ("by", "by"), ("3.5", "3.5"), ("skies", "ski"), ("dying", "dy"), ("sensational", "sensat"),
    ],
)  # fmt: skip
def test_stems_are_porters(word: str, expected: str) -> None:
    assert stem(word) == expected


def corpus(count: int, seed: int) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    vocabulary = [f"w{number}" for number in range(40)]
    return [
        (f"D{number:04d}", " ".join(rng.choices(vocabulary, k=rng.choice((0, 1, 3, 8, 63))))) for number in range(count)
    ]


def scores_by_definition(texts: list[tuple[str, str]], query: str) -> dict[str, float]:
    """Computes BM25 in plain arithmetic. Lengths are stored in one byte: up to 40 exactly, and 63 as 60."""
    rows = {name: Counter(text.split()) for name, text in texts}
    filled = [row for row in rows.values() if row]
    average = sum(row.total() for row in filled) / len(filled)
    found: dict[str, float] = {}
    for term, times in Counter(query.split()).items():
        frequency = sum(term in row for row in filled)
        idf = np.log(1 + (len(filled) - frequency + 0.5) / (frequency + 0.5))
        for name, row in rows.items():
            if term in row:
                length = 60 if row.total() == 63 else row.total()
                norm = 0.9 * (1 - 0.4 + 0.4 * length / average)
                found[name] = found.get(name, 0) + times * idf * row[term] / (row[term] + norm)
    return found


def test_scores_are_those_of_the_definition(tmp_path: Path) -> None:
    texts = corpus(120, seed=1)
    build(texts, tmp_path / "index")
    index = Index(tmp_path / "index")
    for query in ("w1", "w1 w2 w3", "w5 w5 w6", "w7 unknown", "unknown", ""):
        expected = scores_by_definition(texts, query)
        order = sorted(expected, key=lambda name: (-round(expected[name], 5), name))
        hits = index.search(query, 30).hits
        assert [hit.id for hit in hits] == order[:30]
        assert [hit.score for hit in hits] == pytest.approx([expected[name] for name in order[:30]], abs=1e-5)
        assert all(texts[hit.number][0] == hit.id for hit in hits)


def all_scored(texts: list[tuple[str, str]], query: str) -> list[tuple[str, float]]:
    """Scores every document that has a word of the query, in float32 like Lucene; the best come first."""
    rows = [Counter(text.split()) for _, text in texts]
    lengths = np.array([row.total() for row in rows], np.int32)
    filled = int((lengths > 0).sum())
    gain_of_one = bm25.gains_of_one(filled, int(lengths.sum()))[bm25.length_bytes(lengths)]
    total = np.zeros(len(rows))
    for word, times in Counter(query.split()).items():
        counts = np.array([row[word] for row in rows], np.float32)
        weight = np.float32(times) * bm25.rarity(filled, int((counts > 0).sum()))
        total += bm25.scores(weight, counts * gain_of_one)
    rounded = total.astype(np.float32).tolist()
    return sorted(((texts[n][0], rounded[n]) for n in np.flatnonzero(total)), key=lambda hit: (-hit[1], hit[0]))


def test_scores_are_rounded_as_by_lucene(tmp_path: Path) -> None:
    rng = random.Random("rounding")
    # Few words of very different frequency in short texts: many documents are alike, so the limit falls into ties.
    vocabulary, frequencies = [f"w{n}" for n in range(30)], [1 / (n + 1) for n in range(30)]
    for catalogue in range(4):
        names = rng.sample([f"D{n:03d}" for n in range(900)], 400)
        texts = [
            (name, " ".join(rng.choices(vocabulary, frequencies, k=rng.choice((0, 1, 2, 3, 9, 63))))) for name in names
        ]
        texts[7] = (texts[7][0], " ".join(["w0"] * 300 + ["w5"]))
        build(texts, tmp_path / str(catalogue))
        index = Index(tmp_path / str(catalogue))
        for _ in range(30):
            query = " ".join(rng.choices(vocabulary, k=rng.choice((1, 1, 2, 3, 5, 12))))
            expected = all_scored(texts, query)
            for top in (1, 7, 50, 500):
                hits, total = index.search(query, top)
                assert [(hit.id, hit.score) for hit in hits] == expected[:top]
                assert total == len(expected[:top])


def test_equal_scores_are_in_the_order_of_ids(tmp_path: Path) -> None:
    build([(name, "red shirt") for name in ("B3", "A1", "B10", "a0")], tmp_path / "index")
    assert [hit.id for hit in Index(tmp_path / "index").search("shirts", 3).hits] == ["A1", "B10", "B3"]


def test_an_index_is_a_function_of_its_documents(tmp_path: Path) -> None:
    for name in ("one", "two"):
        build(corpus(50, seed=2), tmp_path / name)
    assert folder_digest(tmp_path / "one") == folder_digest(tmp_path / "two")


def test_an_empty_catalogue_can_be_searched(tmp_path: Path) -> None:
    for name, texts in (("none", []), ("blank", [("B1", "the")])):
        build(texts, tmp_path / name)
        assert Index(tmp_path / name).search("red") == ((), 0)


def test_two_documents_with_one_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="same id"):
        build([("B1", "red"), ("B1", "blue")], tmp_path)


def test_real_products_are_ranked_as_by_webshops_own_index(shared_data: Path, tmp_path: Path) -> None:
    with lzma.open(shared_data / "webshop" / "products_1000.jsonl.xz", "rt", encoding="utf-8") as file:
        build(((row["id"], row["contents"]) for row in map(json.loads, file)), tmp_path / "index")
    index = Index(tmp_path / "index")
    lines = (shared_data / "webshop" / "lucene_search_400.jsonl").read_text().splitlines()
    for row in map(json.loads, lines):
        hits = index.search(row["query"]).hits
        assert [hit.id for hit in hits] == [name for name, _ in row["hits"]]
        assert [hit.score for hit in hits] == pytest.approx([score for _, score in row["hits"]], abs=1e-4)
