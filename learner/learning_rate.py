"""The learning rate over the steps of a run."""

import math

from segue.conf.schema import OptimizerConfig, ScheduleKind


def learning_rate(step: int, num_steps: int, config: OptimizerConfig) -> float:
    """Linear warm-up to `config.lr`, then by `config.schedule` to the last step.

    Args:
        step: updates done before this one, from 0.
        num_steps: updates of the whole run; later ones stay at the end's value.
        config: `warmup_steps` updates rise from lr / (warmup_steps + 1); 0 starts at lr. `linear` and `cosine` fall
            from there to `min_lr_ratio` of lr at the last step, `wsd` only in the last `decay_share` of all steps.
    Example:
        lr 1, warm-up 2, 6 steps, ratio 0.1, decay share 1/3:

        linear: 1/3, 2/3, 1, 0.7, 0.4, 0.1
        cosine: 1/3, 2/3, 1, 0.775, 0.325, 0.1
        constant: 1/3, 2/3, 1, 1, 1, 1
        wsd: 1/3, 2/3, 1, 1, 0.55, 0.1
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / (config.warmup_steps + 1)
    if config.schedule is ScheduleKind.constant:
        return config.lr
    num_falling = num_steps - 1 - config.warmup_steps
    if config.schedule is ScheduleKind.wsd:
        num_falling = min(num_falling, max(round(config.decay_share * num_steps), 1))
    first = num_steps - 1 - num_falling
    progress = min(max(step - first, 0) / num_falling, 1.0) if num_falling > 0 else 1.0
    if config.schedule is ScheduleKind.cosine:
        progress = (1.0 - math.cos(math.pi * progress)) / 2.0
    return config.lr * (1.0 - (1.0 - config.min_lr_ratio) * progress)
