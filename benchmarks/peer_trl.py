"""TRL's GRPO trainer on a random model of a given architecture: CPU-seconds of rollout and update per step.

Run by `bench_end_to_end.py`, or alone: `python benchmarks/peer_trl.py --model hybrid`. Needs the extra `bench`.
Prints one JSON line: parameters and, per measured step, CPU-seconds of generation and of the whole step.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")

import datasets
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from trl import GRPOConfig, GRPOTrainer


def byte_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """One token a byte, and two special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", pad_token="<pad>")


def build_model(kind: str, vocab_size: int) -> transformers.PreTrainedModel:
    """A random model: `hybrid` is Qwen3-Next (linear and full attention, experts), `dense` is Qwen3."""
    torch.manual_seed(0)
    if kind == "dense":
        config: Any = transformers.Qwen3Config(
            vocab_size=vocab_size,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            tie_word_embeddings=False,
        )
        return transformers.Qwen3ForCausalLM(config)
    config = transformers.Qwen3NextConfig(
        vocab_size=vocab_size,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=4,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=32,
        linear_num_key_heads=3,
        linear_num_value_heads=3,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        num_experts=32,
        num_experts_per_tok=4,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=48,
        full_attention_interval=4,
        tie_word_embeddings=False,
    )
    return transformers.Qwen3NextForCausalLM(config)


class TimedTrainer(GRPOTrainer):
    """Notes the CPU-seconds of generation and of whole steps."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.generation_cpu_s: list[float] = []
        super().__init__(*args, **kwargs)

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        result = super()._generate(*args, **kwargs)
        self.generation_cpu_s.append(time.process_time() - start)
        return result


class StepClock(transformers.TrainerCallback):
    """CPU-seconds at the end of each optimiser step."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.marks.append(time.process_time())


def measure(
    kind: str, *, sequences: int, new_tokens: int, prompt_tokens: int, steps: int, folder: Path
) -> dict[str, Any]:
    """Medians over the steps after the first two."""
    torch.set_num_threads(1)
    tokenizer = byte_tokenizer()
    model = build_model(kind, len(tokenizer))
    prompts = [f"{i:03d}".ljust(prompt_tokens, "x") for i in range(sequences * (steps + 1))]
    clock = StepClock()
    trainer = TimedTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [float(sum(map(ord, text)) % 7) for text in completions],
        args=GRPOConfig(
            output_dir=str(folder),
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=sequences,
            num_generations=8,
            max_completion_length=new_tokens,
            max_steps=steps,
            learning_rate=1e-4,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            gradient_checkpointing=False,
            generation_kwargs={"min_new_tokens": new_tokens},
        ),
        train_dataset=datasets.Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer,
        callbacks=[clock],
    )
    trainer.train()
    steps_cpu_s = [after - before for before, after in zip(clock.marks, clock.marks[1:], strict=False)][1:]
    rollout_cpu_s = statistics.median(trainer.generation_cpu_s[2:])
    step_cpu_s = statistics.median(steps_cpu_s)
    tokens = sequences * new_tokens
    return {
        "model": kind,
        "parameters": sum(p.numel() for p in model.parameters()),
        "rollout_tokens_per_cpu_s": tokens / rollout_cpu_s,
        "train_tokens_per_cpu_s": tokens / (step_cpu_s - rollout_cpu_s),
        "tokens_per_cpu_s": tokens / step_cpu_s,
    }


def main() -> None:
    """Measure one model and print a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["hybrid", "dense"], required=True)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/segue_peer_trl"))
    args = parser.parse_args()
    result = measure(
        args.model,
        sequences=args.sequences,
        new_tokens=args.new_tokens,
        prompt_tokens=args.prompt_tokens,
        steps=args.steps,
        folder=args.folder,
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
