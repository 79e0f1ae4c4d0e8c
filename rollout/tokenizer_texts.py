"""Texts to train a vocabulary on: demonstrations of an environment, piece by piece as the chat encodes them.

    python -m segue.rollout.tokenizer_texts --out texts.jsonl
    python -m segue.model.tokenizer.train_bpe --texts texts.jsonl --out model/tokenizer/segue_bpe_1k.json

These two commands make the shipped vocabulary.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from segue.conf.schema import EnvConfig, Skill
from segue.envs.episodes import EpisodeTable
from segue.envs.factory import EnvFactory
from segue.envs.tool import ToolCall
from segue.rollout.chat import declaration


def episode_texts(table: EpisodeTable, episode_id: str, seed: int, options: dict[str, Any]) -> list[str]:
    """Every text of one demonstration that is encoded on its own."""
    task = table.reset(episode_id, seed, options)
    texts = [f"```json\n{declaration(task.tools)}\n```", task.system, task.observation]
    is_over = False
    while not is_over:
        turn = table.expert(episode_id, Skill.fallible.value)
        texts.append(turn["response"])
        for call in turn["calls"]:
            reply = table.step(episode_id, ToolCall(name=call["name"], arguments=call["arguments"]))
            texts += [call["name"], *call["arguments"], *map(str, call["arguments"].values()), reply.observation]
            is_over = reply.terminated or reply.truncated
            if is_over:
                break
    table.close(episode_id)
    return [text for text in texts if text]


def demonstrations(config: EnvConfig, num_episodes: int, levels: list[int]) -> Iterator[list[str]]:
    """Texts of the first training tasks; every other task is of the first level, the others take turns."""
    factory = EnvFactory(config)
    table = EpisodeTable(factory, config.max_observation_chars)
    others = levels[1:] or levels
    try:
        for seed in range(num_episodes):
            level = levels[0] if seed % 2 == 0 else others[seed // 2 % len(others)]
            yield episode_texts(table, f"texts-{seed}", seed, {"level": level})
    finally:
        factory.stop()


def main() -> None:
    """Write one episode's texts a line."""
    parser = argparse.ArgumentParser(description="Texts of sql demonstrations, for training a vocabulary.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--episodes", type=int, default=8000)
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 2, 3])
    args = parser.parse_args()
    with args.out.open("w", encoding="utf-8") as file:
        for texts in demonstrations(EnvConfig(), args.episodes, args.levels):
            file.write(json.dumps(texts, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
