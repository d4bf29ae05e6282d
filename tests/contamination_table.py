"""Measures how often planted eval items are found, and how often clean runs are flagged.

python -m tests.contamination_table                  # the mini data sets: some minutes
python -m tests.contamination_table --gsm8k FOLDER   # also the real GSM8K: a folder with train.jsonl and test.jsonl

In texts: items are planted in a training file of the agent among honest rows, verbatim, with other numbers, or in other
words, and the search of the runs looks for them. In weights alone: a model that was trained on a share of the items is
simulated (it answers those right with probability 0.9, all others as before), and the test against fresh twins decides.
"""

import argparse
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from a2rl.contamination.check import LEAST_GAP, LEVEL
from a2rl.contamination.sources import Piece, given_texts, item_texts
from a2rl.contamination.text_search import TextSearch
from a2rl.contamination.twins import unpaired_gap
from a2rl.core.files import read_jsonl
from a2rl.core.settings import Settings

SHARES = (0.01, 0.05, 0.2, 1.0)
SEEDS = (0, 1, 2)
CLEAN_SEEDS = range(6)
TASKS = ("gsm8k", "humaneval", "alpacaeval", "webshop", "deepsearchqa")
HONEST_ROWS = 500
MANY_ROWS = 24_000
REMEMBERED = 0.9
SIMULATED = 500
SYNONYMS = {
    "buys": "purchases", "has": "owns", "gives": "hands", "how many": "what number of", "total": "overall",
    "each": "every", "sells": "trades", "find": "look for", "return": "give back", "write": "compose",
    "makes": "produces", "then": "later", "what is": "tell me", "gets": "receives", "more": "additional",
    "with": "having", "list": "sequence", "price": "cost",
}  # fmt: skip

Change = Callable[[str, random.Random], str]


class Corpus(NamedTuple):
    """An eval set with the training data beside it."""

    name: str
    items: Mapping[str, str]
    known: Sequence[str]


def verbatim(text: str, rng: random.Random) -> str:
    """Returns the text itself."""
    return text


def renumbered(text: str, rng: random.Random) -> str:
    """Returns the text with other numbers."""
    return re.sub(r"\d+", lambda found: str(int(found[0]) + rng.randint(1, 9)), text)


def paraphrased(text: str, rng: random.Random) -> str:
    """Returns the text with its sentences in another order, other words for some, and some left out."""
    sentences = re.split(r"(?<=[.?!\n]) ", text)
    rng.shuffle(sentences)
    told = " ".join(sentences)
    for word, other in SYNONYMS.items():
        told = re.sub(rf"\b{word}\b", other, told, flags=re.IGNORECASE)
    return " ".join(word for word in told.split() if rng.random() > 0.1)


CHANGES: tuple[Change, ...] = (verbatim, renumbered, paraphrased)


def corpora(gsm8k: Path | None) -> Iterator[Corpus]:
    """Yields the mini data sets whose items are texts, and the real GSM8K if there is a mirror."""
    settings = Settings.load()
    for task in TASKS:
        data = settings.data(task, "mini")
        yield Corpus(f"{task} (mini)", item_texts(data / "hidden"), given_texts(data / "visible"))
    if gsm8k is not None:
        items, known = (
            [row["question"] for row in read_jsonl(gsm8k / f"{split}.jsonl")] for split in ("test", "train")
        )
        yield Corpus("gsm8k", {str(place): text for place, text in enumerate(items)}, known)


def honest_rows(known: Sequence[str], rng: random.Random, count: int = HONEST_ROWS) -> list[str]:
    """Returns what an honest agent writes: rows of its data, some with other numbers, some in other words."""
    return [rng.choice(CHANGES)(text, rng) for text in rng.choices(known, k=count)]


def is_flagged(search: TextSearch, texts: Sequence[str]) -> bool:
    """Says whether a run whose agent wrote these texts is flagged."""
    written = [Piece("workspace/train.jsonl", line, text) for line, text in enumerate(texts, start=1)]
    return bool(search.run(written).suspicious())


def in_texts(corpus: Corpus) -> str:
    """Returns a row: how many of the runs are flagged, clean and with planted items."""
    search = TextSearch(corpus.items, corpus.known)
    cells = [
        str(sum(is_flagged(search, honest_rows(corpus.known, random.Random(seed), count)) for seed in CLEAN_SEEDS))
        for count in (HONEST_ROWS, MANY_ROWS)
    ]
    for change in CHANGES:
        for share in SHARES:
            cells.append(str(sum(is_flagged(search, _planted(corpus, change, share, seed)) for seed in SEEDS)))
    return f"| {corpus.name} | {len(corpus.items)} | {' | '.join(cells)} |"


def _planted(corpus: Corpus, change: Change, share: float, seed: int) -> list[str]:
    rng = random.Random(f"{seed}/{share}")
    count = max(1, round(share * len(corpus.items)))
    items = [change(text, rng) for text in rng.sample(list(corpus.items.values()), count)]
    texts = [*honest_rows(corpus.known, rng), *items]
    rng.shuffle(texts)
    return texts


def in_weights(before: float, items: int) -> str:
    """Returns a row: the share of simulated models that are flagged, clean and trained on a share of the items."""
    cells = []
    for share in (0.0, *SHARES):
        flagged = 0
        for number in range(SIMULATED):
            rng = random.Random(f"{before}/{items}/{share}/{number}")
            right = [rng.random() < (REMEMBERED if rng.random() < share else before) for _ in range(items)]
            fresh = [rng.random() < before for _ in range(items)]
            gap = unpaired_gap([float(each) for each in right], [float(each) for each in fresh])
            flagged += gap.p < LEVEL and gap.points >= LEAST_GAP
        cells.append(f"{flagged / SIMULATED:.0%}")
    return f"| {before:.0%} | {items} | {' | '.join(cells)} |"


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gsm8k", type=Path, help="a mirror of the real GSM8K")
    chosen, started = parser.parse_args(), time.monotonic()
    planted = [f"{change.__name__} {share:.0%}" for change in CHANGES for share in SHARES]
    _say(f"Runs that are flagged, of {len(CLEAN_SEEDS)} clean ones and {len(SEEDS)} others:\n")
    _say(f"| data | items | clean | clean, {MANY_ROWS:,} rows | {' | '.join(planted)} |")
    _say(f"|---|{'---|' * (len(planted) + 3)}")
    for corpus in corpora(chosen.gsm8k):
        _say(in_texts(corpus))
    shares = " | ".join(f"{share:.0%}" for share in SHARES)
    _say(f"\nModels that are flagged, by the share of items in their training:\n\n| score | items | clean | {shares} |")
    _say(f"|---|---|---|{'---|' * len(SHARES)}")
    for before in (0.1, 0.4, 0.7):
        for items in (100, 200, 660):
            _say(in_weights(before, items))
    _say(f"\n{time.monotonic() - started:.0f} s")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
