"""How good an environment's demonstrator is, measured by playing it."""

import random
from collections.abc import Iterable
from dataclasses import dataclass

from segue.envs.tool import ToolCall
from segue.envs.tool_env import ToolEnv


@dataclass(frozen=True, kw_only=True, slots=True)
class DemonstratorReport:
    """Success of a demonstrator over a number of tasks."""

    skill: str
    num_episodes: int
    success: float
    """Share of successful episodes."""
    query_correct: float | None
    """Share of episodes in which a query returned the truth; None where the environment does not say."""
    mean_reward: float

    def __str__(self) -> str:
        queries = "" if self.query_correct is None else f", right rows {self.query_correct:.3f}"
        return (
            f"demonstrator {self.skill}: success {self.success:.3f}{queries}, "
            f"mean reward {self.mean_reward:.3f} over {self.num_episodes} episodes"
        )


def measure_demonstrator(env: ToolEnv, skill: str, seeds: Iterable[int]) -> DemonstratorReport:
    """Plays the demonstrator on the task of each seed; the environment is in this process.

    Args:
        env: with a demonstrator that ends its episodes.
        skill: `expert` or `fallible`.
        seeds: at least one.
    """
    successes: list[bool] = []
    queries: list[bool] = []
    rewards: list[float] = []
    for seed in seeds:
        env.reset(seed=seed)
        reward, num_steps, has_ended = 0.0, 0, False
        while not has_ended:
            turn = env.expert(skill, demonstrator_rng(seed, num_steps))
            for call in turn["calls"]:
                _, step_reward, terminated, truncated, info = env.step(ToolCall(**call))
                reward += step_reward
                num_steps += 1
                has_ended = terminated or truncated
                if has_ended:
                    break
        successes.append(info["is_success"])
        rewards.append(reward)
        if "query_correct" in info:
            queries.append(info["query_correct"])
    num_episodes = len(successes)
    return DemonstratorReport(
        skill=skill,
        num_episodes=num_episodes,
        success=sum(successes) / num_episodes,
        query_correct=sum(queries) / num_episodes if queries else None,
        mean_reward=sum(rewards) / num_episodes,
    )


def demonstrator_rng(seed: int, num_steps: int) -> random.Random:
    """A demonstrator's randomness at one turn, so that an episode replayed from its seed is the same.

    Args:
        seed: of the episode.
        num_steps: calls that the episode has behind it.
    """
    return random.Random(f"demonstrator:{seed}:{num_steps}")
