"""DeepSearchQA's grader: the model searches and answers, greedily; a judge says whether the answer is right.

The loop is the reference's (autorl_bench/benchmarks/deepsearchqa/eval.py, `_react_loop`; see research/episode.py): up
to 6 turns, each a thought and a search or an answer; the three best results are shown as one line of snippets; a turn
without an action makes the model answer. The reference works on one question at a time. Here every question is a
separate conversation: all of them share the model, and no question waits for another one's search.

An item is correct if the judge says so; exact match, and for Set answers precision, recall and F1 over the items, are
measured as well. An empty answer is wrong without asking the judge. Failures that are not the model's do not count
against it: a failed search costs the model a turn, and the observation says so; a second failed search in an item, or
a failed judgement, makes the item errored.

mini: the judge is a rule that this repo serves over the same API (annotator.py). full: the judge of params.yaml.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from a2rl.core.model_text import answer_of
from a2rl.core.settings import Settings
from a2rl.judge.client import DOLLARS, Answer, Asking
from a2rl.judge.client import Question as Judgement
from a2rl.judge.local import open_judge
from a2rl.judge.params import JudgeConfig
from a2rl.sampling import Conversation, Sampler, SamplingParams
from a2rl.scoring.score import ItemResult, Verdict, errors_tolerated
from a2rl.task_api.contract import Limits, Options, OwnJudge
from tasks.deepsearchqa.annotator import ANNOTATOR, TRIAL, Answered, question
from tasks.deepsearchqa.research import Episode, Hit, Question, compare, observation, read_questions
from tasks.deepsearchqa.research.episode import REFERENCE_INSTRUCTIONS, REFERENCE_STOPS, STOPS
from tasks.deepsearchqa.research.match import SET_ANSWER
from tasks.deepsearchqa.search import SHOWN, Ask, SearchError, check_search, is_leak, open_search

OWN_JUDGE = OwnJudge("tasks.deepsearchqa.annotator", ANNOTATOR)
SEARCH_FAILED = "The search failed."
FAILURES_ALLOWED = 1
"""Maximum number of failed searches in an item that is graded."""
ANSWER_SHOWN = 500
check_services = check_search


@dataclass(slots=True)
class EpisodeResult:
    """The result of an item's episode, before it is judged."""

    answer: str
    tokens: int = 0
    truncated: bool = False
    """Whether a turn, or the model's context, was too short."""
    searches: int = 0
    failed: int = 0
    blocked: int = 0
    """Number of results that were not shown."""
    problem: str = ""
    """Why it cannot be judged."""

    def measures(self) -> dict[str, float]:
        """Returns what the episode took; empty for an answer that was made elsewhere."""
        if not self.tokens:
            return {}
        shown = {"searches": self.searches, "failed searches": self.failed, "blocked results": self.blocked}
        return {name: float(number) for name, number in shown.items()}


def items_of(hidden: Path) -> dict[str, Question]:
    """The eval set by id; an item's id is its row number from 0."""
    return {str(place): row for place, row in enumerate(read_questions(hidden / "eval.jsonl"))}


def item_ids(hidden: Path) -> list[str]:
    """See `a2rl.task_api.contract.Grader`."""
    return list(items_of(hidden))


def grade(
    sampler: Sampler, hidden: Path, ids: Sequence[str], limits: Limits, options: Options, asking: Asking
) -> Callable[[], list[ItemResult]]:
    """See `a2rl.task_api.contract.JudgedGrader`."""
    items, instructions = items_of(hidden), (hidden / "prompt.txt").read_text(encoding="utf-8")
    faithful = options.get("prompts") == "faithful"
    if faithful:
        instructions = REFERENCE_INSTRUCTIONS
    stops = STOPS if options["turns"] == "repaired" else REFERENCE_STOPS
    params = SamplingParams(max_new_tokens=limits.max_new_tokens, stop=stops)
    # As many consecutive failures as make a score impossible: two failed searches make an item errored.
    failures_allowed = 2 * (asking.failures_allowed + 1)
    with open_search(hidden, options, Settings.load(), failures_allowed) as ask:

        def answer(item_id: str) -> Conversation[EpisodeResult]:
            work = yield from _work_on(items[item_id], ask, instructions, limits, faithful)
            _ask(item_id, items[item_id], work, asking)
            return work

        work = sampler.converse([answer(each) for each in ids], params)
    return lambda: _judged({each: items[each] for each in ids}, dict(zip(ids, work, strict=True)), asking)


def score_outputs(
    outputs: Mapping[str, str], hidden: Path, ids: Sequence[str], limits: Limits, judging: JudgeConfig | None = None
) -> list[ItemResult]:
    """See `a2rl.task_api.contract.JudgedGrader`. A completion is just the answer."""
    items = items_of(hidden)
    missing = EpisodeResult("", problem="no completion was given")
    work = {each: EpisodeResult(answer_of(outputs[each]).strip()) if each in outputs else missing for each in ids}
    with open_judge(judging, *OWN_JUDGE) as judge:
        asking = judge.asking(errors_tolerated(len(ids)))
        for each in ids:
            _ask(each, items[each], work[each], asking)
        return _judged({each: items[each] for each in ids}, work, asking)


def trial_question(annotator: str) -> Judgement:
    """See `a2rl.task_api.contract.JudgedGrader`."""
    return question(annotator, TRIAL)


def gold_outputs(hidden: Path) -> dict[str, str]:
    """See `a2rl.task_api.contract.Grader`."""
    return {item_id: item.answer for item_id, item in items_of(hidden).items()}


def item_kinds(hidden: Path) -> dict[str, str]:
    """See `a2rl.task_api.contract.KindsGrader`."""
    return {item_id: f"{item.category}, {item.answer_type}" for item_id, item in items_of(hidden).items()}


def _work_on(
    item: Question, ask: Ask, instructions: str, limits: Limits, faithful: bool
) -> Conversation[EpisodeResult]:
    """Works on an item, from its question to its answer."""
    episode, work = Episode(item, instructions, limits.max_steps, faithful), EpisodeResult("")
    while not episode.over and not work.problem:
        completion = yield episode.text
        work.truncated = completion.finish == "length" or completion.is_cut
        if completion.is_cut:
            return work
        work.tokens += completion.tokens
        query = episode.take(completion.text)
        if query is not None:
            searching = ask(query)
            if not searching.done():
                yield searching
            episode.observe(_found(searching, item, work))
    work.answer = episode.answer or ""
    return work


def _found(searching: Future[Sequence[Hit]], item: Question, work: EpisodeResult) -> str:
    """Returns what the model is shown of a finished search."""
    work.searches += 1
    try:
        hits = searching.result()
    except SearchError as failure:
        work.failed += 1
        if work.failed > FAILURES_ALLOWED:
            work.problem = f"{work.failed} searches failed: {failure}"
        return SEARCH_FAILED
    clean = [hit for hit in hits if not is_leak(hit, item.problem)]
    work.blocked += len(hits) - len(clean)
    return observation(clean[:SHOWN])


def _ask(item_id: str, item: Question, work: EpisodeResult, asking: Asking) -> None:
    """Asks about an answer, if there is one."""
    if work.answer and not work.problem:
        asking.put(item_id, question(asking.annotator, Answered(item.answer_type, item.answer, work.answer)))


def _judged(items: Mapping[str, Question], work: Mapping[str, EpisodeResult], asking: Asking) -> list[ItemResult]:
    """Returns a result for each item."""
    answers = {each: Answer(None, done.problem) if done.problem else Answer(0.0) for each, done in work.items()}
    answers |= asking.answers()
    return [_result(each, item, work[each], answers[each]) for each, item in items.items()]


def _result(item_id: str, item: Question, work: EpisodeResult, answer: Answer) -> ItemResult:
    match = compare(work.answer, item.answer, item.answer_type)
    lost: Verdict = "truncated" if work.truncated else "wrong"
    value = answer.verdict or 0.0
    measures = {"exact match": float(match.exact), DOLLARS: answer.dollars, **work.measures()}
    if item.answer_type == SET_ANSWER:
        measures |= {"precision": match.precision, "recall": match.recall, "F1": match.f1}
    return ItemResult(
        id=item_id,
        verdict="errored" if answer.verdict is None else "correct" if value else lost,
        value=value,
        answer=work.answer[:ANSWER_SHOWN],
        reason=answer.reason,
        tokens=work.tokens,
        group=item.category,
        measures=measures | {f"right, {item.answer_type}s": value},
    )
