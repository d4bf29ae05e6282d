"""What an agent can ask while it trains: the grader's search, and a judge for answers to training questions.

Online RL needs both. They are offered by the run's grading service (a2rl/grading/agent_services.py), which counts and
records every request. The eval set stays out of reach by text: a query that quotes ten words in a row of one of its
questions is refused, and so is a judgement of one; results that quote a question of either set are left out, as are
those that name the data set. A question in other words is not recognised.

full: the grader's engine, its recording and its judge. mini: the pages and the rule that the agent has as files too.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path

from a2rl.core.errors import InfrastructureError
from a2rl.core.settings import Settings
from a2rl.judge.client import Judge
from a2rl.judge.local import open_judge
from a2rl.judge.params import JudgeConfig
from a2rl.task_api.contract import NotForAgentError, Options, SearchResults, UnaskedError, Variant
from tasks.deepsearchqa.annotator import Answered, question
from tasks.deepsearchqa.research import Hit, compare, read_questions
from tasks.deepsearchqa.search import QUOTED_WORDS, SHOWN, Ask, NotAskedError, Quotes, SearchError, is_leak, open_search

WHOLE = 10**6
"""More words than a question has."""
FAILURES_ALLOWED = 20
PAUSE_S = 60.0
"""After more consecutive failed searches, the engine is asked once in so many seconds until it answers."""
LONGEST_TEXT = 2000
"""The largest part of a title, snippet or address that is passed on; the model is shown less."""
OF_EVAL_SET = "this is a question of the eval set: search and judge are for the training questions"


class Services:
    """The search and the judge of one run; safe to use from several threads."""

    def __init__(self, visible: Path, hidden: Path, quoted_words: int, ask: Ask, judge: Judge | None) -> None:
        train, evaluated = (read_questions(path) for path in (visible / "train.jsonl", hidden / "eval.jsonl"))
        self._train = {_words(each.problem): each for each in train}
        self._eval = Quotes((each.problem for each in evaluated), quoted_words)
        self._any = Quotes((each.problem for each in (*train, *evaluated)), quoted_words)
        self._ask, self._judge = ask, judge

    def search(self, query: str) -> SearchResults:
        """See `a2rl.task_api.contract.AgentServices`."""
        if self._eval.occur_in(query):
            raise NotForAgentError(OF_EVAL_SET)
        searching: Future[Sequence[Hit]] = self._ask(query)
        try:
            hits = searching.result()
        except NotAskedError as failure:
            raise UnaskedError(f"the search failed: {failure}") from failure
        except SearchError as failure:
            raise InfrastructureError(f"the search failed: {failure}") from failure
        clean = [hit for hit in hits if not is_leak(hit, "") and not self._any.occur_in(f"{hit.title} {hit.snippet}")]
        shown = [{name: text[:LONGEST_TEXT] for name, text in hit._asdict().items()} for hit in clean[:SHOWN]]
        return SearchResults(shown, blocked=len(hits) - len(clean))

    def judge(self, problem: str, answer: str) -> float:
        """See `a2rl.task_api.contract.AgentServices`."""
        asked = self._train.get(_words(problem))
        if asked is None:
            of_eval_set = self._eval.occur_in(problem)
            raise NotForAgentError(OF_EVAL_SET if of_eval_set else "this is no question of data/train.jsonl")
        if not answer.strip():
            return 0.0
        if self._judge is None:
            return float(compare(answer, asked.answer, asked.answer_type).exact)
        given = question(self._judge.annotator, Answered(asked.answer_type, asked.answer, answer))
        judged = self._judge.ask_one(given)
        if judged.verdict is None:
            raise InfrastructureError(f"the judgement failed: {judged.reason}")
        return judged.verdict


@contextmanager
def open_services(
    variant: Variant, visible: Path, hidden: Path, options: Options, settings: Settings, judging: JudgeConfig | None
) -> Iterator[Services]:
    """See `a2rl.task_api.contract.ServicesModule`."""
    pages, quoted_words = hidden, QUOTED_WORDS
    if variant == "mini":
        # Its eval set is about a world of its own; its questions share long runs of words, so only whole ones count.
        options, pages, quoted_words = {**options, "search": "pages"}, visible, WHOLE
    with ExitStack() as stack:
        ask = stack.enter_context(open_search(pages, options, settings, FAILURES_ALLOWED, PAUSE_S))
        judge = stack.enter_context(open_judge(judging)) if judging else None
        yield Services(visible, hidden, quoted_words, ask, judge)


def _words(text: str) -> str:
    return " ".join(text.lower().split())
