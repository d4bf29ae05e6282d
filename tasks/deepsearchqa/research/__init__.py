"""Questions that need several searches: a search engine over pages, the ReAct episode, the comparison of answers, and
an expert for the generated questions. Needs only numpy.

    from research import Episode, Index, Question, read_pages

    index = Index(read_pages(Path("pages")))
    episode = Episode(Question("What is the seat of Balco?", "Single Answer", "Dorton"))
    query = episode.take(" Now the seat of Balco.\\nAction: search[seat of Balco]")   # "seat of Balco"
    episode.observe(observation(index.search(query)))
    print(episode.text)                                                                # what the model reads next
"""

from .episode import Episode, Question, next_turn, observation, read_questions
from .index import Hit, Index, Page, read_pages
from .match import Match, compare

__all__ = [
    "Episode",
    "Hit",
    "Index",
    "Match",
    "Page",
    "Question",
    "compare",
    "next_turn",
    "observation",
    "read_pages",
    "read_questions",
]
