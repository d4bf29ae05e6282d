"""Search results that may hold the answers: the data set's own pages, copies of it, and what quotes a question.

Lists of mirrors age, so a result is judged by what gives a copy away: its address or text names the data set, or it
repeats the question. What remains are pages that tell answers without any of this; the recording shows them.
"""

import re

from tasks.deepsearchqa.research import Hit

NAMES = re.compile(r"deep[\W_]?search[\W_]?qa|\bdsqa\b|2601\.20975|ryanduy/demacia", re.IGNORECASE)
"""The data set (google/deepsearchqa on the hub, and its leaderboard), its file, its paper, and its copies on the hub,
of which one has another name."""
QUOTED_WORDS = 10
"""Words of the question in a row that nobody writes by chance."""
_WORD = re.compile(r"\w+")


def is_leak(hit: Hit, question: str) -> bool:
    """Whether a result must not be shown to somebody who is asked this question."""
    if any(NAMES.search(text) for text in hit):
        return True
    asked, said = _WORD.findall(question.lower()), " ".join(_WORD.findall(f"{hit.title} {hit.snippet}".lower()))
    runs = (asked[start : start + QUOTED_WORDS] for start in range(max(1, len(asked) - QUOTED_WORDS + 1)))
    return any(" ".join(run) in said for run in runs if run)
