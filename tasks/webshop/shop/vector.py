"""Plays many visits at once."""

from collections.abc import Sequence

from .catalogue import Shop
from .product import Goal
from .session import Mode, Session, Step


class VectorEnv:
    """Any number of sessions in one shop, each up to `max_steps` actions.

    env = VectorEnv(shop)
    observations = env.reset(goals)
    steps = env.step(["search[red shirt]"] * len(goals))
    """

    def __init__(self, shop: Shop, max_steps: int = 50, mode: Mode = "text") -> None:
        self.shop, self.max_steps, self.mode = shop, max_steps, mode
        self.sessions: list[Session] = []
        self.steps: list[Step] = []
        """The last answer of each session."""

    def reset(self, goals: Sequence[Goal]) -> list[str]:
        """Starts a session for each goal, and returns the first observations."""
        self.sessions = [Session(self.shop, goal, self.mode) for goal in goals]
        self.steps = [Step(session.observation, 0.0, False, True) for session in self.sessions]
        return [step.observation for step in self.steps]

    def step(self, actions: Sequence[str | None]) -> list[Step]:
        """Takes an action for each; None, or a session that is done, repeats the last answer with reward 0."""
        rows = zip(self.sessions, self.steps, actions, strict=True)
        self.steps = [
            last._replace(reward=0.0) if last.done or action is None else self._step(session, action)
            for session, last, action in rows
        ]
        return self.steps

    def _step(self, session: Session, action: str) -> Step:
        step = session.step(action)
        return step._replace(done=step.done or session.steps >= self.max_steps)
