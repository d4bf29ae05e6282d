"""GRPO with an advantage for every turn of an episode, in addition to that of the whole episode.

This is the second half of GiGPO (Feng et al. 2025, arXiv 2505.10978). It applies where rollouts report in which states
their turns were taken. It overrides a private method of TRL's `GRPOTrainer`, since TRL has no hook for advantages;
the version of TRL is pinned in requirements.lock.
"""

from collections import defaultdict
from typing import Any

import torch
from trl import GRPOTrainer

TURN_WEIGHT = 5.0
"""Weight of a turn's advantage, where the advantage of its episode has weight 1."""
DISCOUNT = 0.95
"""Factor by which a reward counts less for each turn that lies between a turn and the end of its episode."""


class TurnAdvantageGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """Adds turn advantages to those of GRPO where rollouts have a `states` column, and else changes nothing."""

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        scored: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if "states" in inputs[0]:
            episode_advantages = scored["advantages"][:, None]
            by_turn = turn_advantages(inputs, scored["completion_mask"] * scored["tool_mask"])
            # In a group whose episodes all have the same reward, turns would differ by their distance to the end only.
            by_turn = by_turn * (episode_advantages != 0)
            scored["advantages"] = episode_advantages + TURN_WEIGHT * by_turn
        return scored


def turn_advantages(episodes: list[dict[str, Any]], written: torch.Tensor) -> torch.Tensor:
    """Computes the advantage of each token's turn over the other turns that its group took in the same state.

    The advantage of an episode is the same for all its turns. Comparing turns that were taken in the same state shows
    which of them was the mistake. The value of a turn is the discounted reward of its episode.

    Args:
        episodes: the rows, each with `prompt` (the same within a group), `states` (one hashable per turn) and `reward`.
        written: [rows, tokens], 1 for the tokens that the model wrote, else 0. Turns are the runs of 1.

    Returns:
        [rows, tokens], 0 where `written` is 0.
    """
    turns_by_state: dict[Any, list[tuple[int, int, float]]] = defaultdict(list)
    for row, episode in enumerate(episodes):
        last = len(episode["states"]) - 1
        for turn, state in enumerate(episode["states"]):
            value = episode["reward"] * DISCOUNT ** (last - turn)
            turns_by_state[episode["prompt"], state].append((row, turn, value))
    advantages = torch.zeros(len(episodes), max(len(episode["states"]) for episode in episodes))
    for turns in turns_by_state.values():
        mean = sum(value for _, _, value in turns) / len(turns)
        for row, turn, value in turns:
            advantages[row, turn] = value - mean
    begins = written.diff(dim=1, prepend=torch.zeros_like(written[:, :1])) > 0
    turn_of_token = (begins.cumsum(1) - 1).clamp(min=0)
    return advantages.to(written.device).gather(1, turn_of_token) * written
