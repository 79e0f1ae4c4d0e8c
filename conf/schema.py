"""What a run is: every section, its fields and their defaults. Defaults live here and nowhere else."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from segue.conf.model_config import ModelConfig

SEGMENT_MULTIPLE = 64
"""Segments are multiples of this many tokens, a whole number of the KDA operator's chunks."""

CPU_PROCESSES = 2
"""Rollout actors, and likewise learner ranks, of a run that computes on CPUs and does not say how many."""


class OnExceed(Enum):
    """What happens to tokens older than the staleness bound."""

    mask = "mask"
    drop = "drop"


class OnSwap(Enum):
    """What new weights do to the states that older weights built."""

    keep = "keep"
    rebuild = "rebuild"


class ZeroVariance(Enum):
    """What happens to trajectories whose group carries no advantage."""

    skip = "skip"
    keep = "keep"


class AdvantageKind(Enum):
    """How rewards become advantages."""

    group_mean = "group_mean"
    grpo = "grpo"
    rloo = "rloo"
    reinforce_pp = "reinforce_pp"
    turn_returns = "turn_returns"
    turn_gae = "turn_gae"
    token_gae = "token_gae"


class LossKind(Enum):
    """The policy's loss; each kind has a section of its own under its name."""

    masked_ratio = "masked_ratio"
    ppo_clip = "ppo_clip"
    cispo = "cispo"
    gspo = "gspo"
    reinforce = "reinforce"
    custom = "custom"


class NormalisationKind(Enum):
    """The weight of a token in the loss."""

    token_mean = "token_mean"
    sequence_mean = "sequence_mean"
    constant = "constant"


class OptimizerKind(Enum):
    """What moves the parameters."""

    adamw = "adamw"
    muon = "muon"


class ScheduleKind(Enum):
    """The learning rate after its warm-up."""

    linear = "linear"
    cosine = "cosine"
    constant = "constant"
    wsd = "wsd"


class Precision(Enum):
    """Dtype of parameters and activations."""

    fp32 = "fp32"
    bf16 = "bf16"


class Skill(Enum):
    """Who plays demonstrations: the flawless expert or the fallible demonstrator."""

    expert = "expert"
    fallible = "fallible"


OWN_ENV_IDS = ("sql", "python", "archive", "craft")
"""Ids of environments that are built without gymnasium's registry."""


@dataclass(kw_only=True, slots=True)
class EnvConfig:
    """The environment and the processes that run it."""

    id: str = "sql"
    """`sql`, `python`, `archive`, `craft`, or a gymnasium id: `my_package:MyEnv-v0` (also from the launch folder)."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment's constructor."""
    eval_options: dict[str, Any] = field(default_factory=dict)
    """Reset options of every evaluation episode: what makes its tasks held out, beside their seeds."""
    variants: dict[str, Any] = field(default_factory=dict)
    """Name to reset options: held-out variations (schemas, phrasings, levels) that the final evaluation adds."""
    workers: int = 1
    """Env worker processes a rollout actor; each runs many episodes, one call at a time."""
    call_timeout_s: float = 30.0
    """Deadline of one call to an environment, in seconds; on expiry its worker is replaced."""
    max_observation_chars: int = 2000
    """Longest text of one reply in the stream, in characters; longer ones are cut and say so."""
    start_timeout_s: float = 60.0
    """Deadline of a worker's start, in seconds."""
    import_folder: str | None = None
    """Folder, appended to the module path, where the id's module and those of reward terms may lie, and in which
    environments work: relative paths among `env.kwargs` are taken from here; null is the launch folder."""
    success_return: float | None = None
    """Return that counts as success where the environment names neither `is_success` nor a reward threshold; refused
    beside a threshold."""


@dataclass(kw_only=True, slots=True)
class RolloutConfig:
    """Episodes and the engine that samples them."""

    max_sessions: int = 128
    """Sessions that decode together in one rollout actor."""
    prefill_chunk_tokens: int = 2048
    """Tokens of prompts and observations fed between two decode steps."""
    page_tokens: int = 64
    """Tokens in one page of latent rows."""
    state_budget_mb: int = 1024
    """Memory for states and snapshots in one rollout actor, in MB."""
    max_turns: int = 4
    """Model calls in an episode."""
    max_turn_tokens: int = 128
    """Tokens that the policy may sample in one turn."""
    max_episode_tokens: int = 1024
    """Tokens of a whole trajectory."""
    max_episode_s: float = 120.0
    """Seconds of an episode, its waits for a worker or for a place in the engine not counted."""
    temperature: float = 1.0
    """Sampling temperature in training; in [0.01, 100]."""
    on_swap: OnSwap = OnSwap.keep
    """States at a weight swap: `keep` goes on from them; `rebuild` feeds every live session again, and needs
    train.max_staleness of at least 1, without which none is live then."""
    max_attempts: int = 3
    """Times an episode is played at most, the first included, while infrastructure fails."""
    journal_tokens: int = 16384
    """Tokens between two parts of an unfinished episode's journal, written at turn ends; 0 writes none."""
    record_experts: bool = False
    """Keep the experts of each token in the group files: 2 bytes a token, layer and choice."""
    reward_terms: dict[str, Any] = field(default_factory=dict)
    """Terms beside the environment's, by name: `{term: my_module:my_term, kwargs: {}, timeout_s: 60}`, or
    `term: judge`."""


@dataclass(kw_only=True, slots=True)
class AdvantageConfig:
    """From rewards to advantages."""

    kind: AdvantageKind = AdvantageKind.group_mean
    """Reward minus the group's mean (K2.5, Dr.GRPO); that over the group's or the step's deviation (`grpo`,
    `reinforce_pp`); minus the mean of the others (`rloo`); the same of each turn's return (`turn_returns`); or what
    turns or tokens earned beyond what a critic expected (`turn_gae`, `token_gae`)."""
    std_epsilon: float = 1e-6
    """Added to the standard deviation (`grpo`, `reinforce_pp`, `whiten`); above 0."""
    discount: float = 1.0
    """What a later reward counts for, by turns (`turn_returns`, `turn_gae`) or tokens (`token_gae`) ahead; in
    [0, 1]."""
    gae_lambda: float = 0.95
    """Decay of later surprises in `turn_gae` and `token_gae`; in [0, 1]: 1 trusts the rewards alone, 0 the critic's
    next value alone."""
    whiten: bool = False
    """Advantages of `turn_gae` and `token_gae` less their mean over the step, divided by their standard deviation."""
    zero_variance: ZeroVariance = ZeroVariance.skip
    """Whether trajectories of a group without advantage are run (`keep`, for the squared log-ratio of `masked_ratio`
    and the router's statistics) or not. With a critic no group is without: leave it at `skip`."""

    @property
    def has_critic(self) -> bool:
        """Advantages come from values, which the model learns to tell."""
        return self.kind in (AdvantageKind.turn_gae, AdvantageKind.token_gae)

    @property
    def needs_whole_step(self) -> bool:
        """The values of all trajectories go into each one's advantages."""
        return self.has_critic and self.whiten


@dataclass(kw_only=True, slots=True)
class CriticConfig:
    """The value head of `turn_gae` and `token_gae`, and its loss."""

    coefficient: float = 0.05
    """Weight of the value loss beside the policy's; above 0."""
    target_lambda: float = 1.0
    """Decay of later surprises in what values learn; in [0, 1]: 1 are returns as they were earned."""
    lr_ratio: float = 10.0
    """Learning rate of the value head as a multiple of the model's; above 0."""
    warmup_steps: int = 5
    """First steps, in which the value head learns alone and the policy stays as it is; below `train.steps`."""
    clip: float | None = None
    """When a group trains again, values teach no further once they went so far from its first use towards their target,
    in reward units; above 0; needs train.max_uses above 1; null leaves them free."""


@dataclass(kw_only=True, slots=True)
class MaskedRatioConfig:
    """K2.5: policy gradient inside a window of ratios, and a squared log-ratio everywhere."""

    ratio_low: float = 0.7
    """Tokens whose policy / behaviour ratio is below carry no policy gradient; in (0, 1)."""
    ratio_high: float = 1.4
    """Likewise above; > 1."""
    tau: float = 0.005
    """Weight of the squared log-ratio; >= 0."""


@dataclass(kw_only=True, slots=True)
class PpoClipConfig:
    """PPO's clipped ratio with two bounds."""

    clip_low: float = 0.2
    """Where the advantage is negative, a ratio below 1 - clip_low is held there; in (0, 1)."""
    clip_high: float = 0.2
    """Where the advantage is positive, a ratio above 1 + clip_high is held there; > 0."""
    dual_clip: float | None = None
    """Where the advantage is negative, a ratio above is held there too; > 1; null leaves it free."""


@dataclass(kw_only=True, slots=True)
class CispoConfig:
    """CISPO: log-probabilities under a clipped weight that carries no gradient."""

    ratio_low: float = 0.0
    """Weights below are held there; in [0, 1), where 0 holds none."""
    ratio_high: float = 5.0
    """Weights above are held there; >= 1."""


@dataclass(kw_only=True, slots=True)
class GspoConfig:
    """GSPO: one clipped ratio a trajectory, the geometric mean of its tokens'."""

    clip_low: float = 3e-4
    """Where the advantage is negative, a ratio below 1 - clip_low is held there; in (0, 1)."""
    clip_high: float = 4e-4
    """Where the advantage is positive, a ratio above 1 + clip_high is held there; > 0."""


@dataclass(kw_only=True, slots=True)
class ReinforceConfig:
    """REINFORCE under truncated importance weights."""

    ratio_high: float = 2.0
    """Weights above are held there; >= 1."""


@dataclass(kw_only=True, slots=True)
class CustomLossConfig:
    """A loss of the user's own."""

    function: str | None = None
    """`my_module:my_loss`, of a module that is installed or in `env.import_folder`; see `learner/user_loss.py`."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Its keyword arguments."""


@dataclass(kw_only=True, slots=True)
class LossConfig:
    """The policy's loss, and the weights of its tokens."""

    kind: LossKind = LossKind.masked_ratio
    """K2.5's masked ratio, PPO's clip (GRPO, DAPO), CISPO, GSPO, REINFORCE with truncated importance weights, or one
    of your own."""
    masked_ratio: MaskedRatioConfig = field(default_factory=MaskedRatioConfig)
    ppo_clip: PpoClipConfig = field(default_factory=PpoClipConfig)
    cispo: CispoConfig = field(default_factory=CispoConfig)
    gspo: GspoConfig = field(default_factory=GspoConfig)
    reinforce: ReinforceConfig = field(default_factory=ReinforceConfig)
    custom: CustomLossConfig = field(default_factory=CustomLossConfig)
    normalisation: NormalisationKind = NormalisationKind.token_mean
    """Denominator of the loss: all trained tokens of the step, each sequence's own, or a constant."""
    constant_tokens: int = 4096
    """Denominator of `normalisation: constant`, in tokens a step."""


@dataclass(kw_only=True, slots=True)
class MuonConfig:
    """Muon's own numbers; learning rate and weight decay are those of AdamW."""

    momentum: float = 0.95
    """Decay of the sum of gradients, with Nesterov's look ahead; in [0, 1)."""
    ns_steps: int = 5
    """Newton-Schulz iterations that orthogonalise an update; in [1, 20]."""
    qk_clip: float | None = None
    """Heads of latent attention with a score beyond it have their query and key weights scaled back to it after the
    update (K2: 100); above 0; null clips nothing. Implies `learner.measure_max_logits`."""


@dataclass(kw_only=True, slots=True)
class OptimizerConfig:
    """What moves the parameters, and how far."""

    kind: OptimizerKind = OptimizerKind.adamw
    """AdamW for all, or Muon for matrices (attention by head, experts one by one) and AdamW for the rest."""
    muon: MuonConfig = field(default_factory=MuonConfig)
    lr: float = 6e-4
    """Highest learning rate; Muon's updates are scaled to AdamW's size, so that one rate serves both."""
    beta1: float = 0.9
    """Decay of the first moment, in [0, 1)."""
    beta2: float = 0.95
    """Decay of the second moment, in [0, 1)."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.0
    """Applied to matrices only."""
    warmup_steps: int = 5
    """Steps of linear rise to `lr`."""
    schedule: ScheduleKind = ScheduleKind.linear
    """From there to the last step: falling evenly, falling as half a cosine, level, or level and then falling
    evenly."""
    min_lr_ratio: float = 0.1
    """Learning rate at the last step as a share of `lr`; in [0, 1]; without effect while `constant`."""
    decay_share: float = 0.2
    """Share of all steps, the last ones, in which `wsd` falls; in (0, 1]."""
    grad_clip: float = 1.0
    """Bound of the global gradient norm; 0 turns it off."""


@dataclass(kw_only=True, slots=True)
class BalanceConfig:
    """Quantile balancing of the router."""

    live: bool = True
    """Update the router bias once a step; false freezes it."""
    num_bins: int = 1000
    """Bins of the histogram of router margins; the quantile is exact within one."""


class Checkpointing(Enum):
    """Activation checkpointing inside a segment."""

    none = "none"
    block = "block"


@dataclass(kw_only=True, slots=True)
class LearnerConfig:
    """The learner's step."""

    zero_stage: int = 1
    """ZeRO stage of DeepSpeed: 1, 2 or 3."""
    precision: Precision = Precision.fp32
    """Of parameters and activations; masters, states, routers and gates stay at least fp32."""
    segment_tokens: int = 1024
    """Length of a segment; a multiple of 64."""
    micro_step_tokens: int = 8192
    """Tokens packed into one micro-step."""
    checkpoint: Checkpointing = Checkpointing.none
    """Keep activations of a segment, or recompute them block by block."""
    exact_backend: bool = True
    """The rebuilt segment equals the swept one bit for bit; false replays expert ids within `gauge_tolerance`."""
    gauge_tolerance: float = 0.0
    """Largest difference in nats between the log-probabilities of both runs of a segment."""
    measure_max_logits: bool = False
    """Log the largest score of each head of latent attention in each step, for which all scores are computed once
    more."""
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    balance: BalanceConfig = field(default_factory=BalanceConfig)
    step_timeout_s: float = 600.0
    """Deadline of one learner step, in seconds."""


@dataclass(kw_only=True, slots=True)
class EffortConfig:
    """Budgets of sampled tokens; an episode beyond its own earns -1."""

    episodes: int = 0
    """Training tasks that the initial weights play once, to measure what each class of them takes; 0 sets no budget."""
    percentile: float = 0.5
    """A class takes what this share of its successes stays within; in (0, 1]."""
    tau_start: float = 4.0
    """Budget of the first groups, in times of what their class takes; the bound falls from here evenly."""
    tau_end: float = 1.0
    """And of the last ones; above 0 and at most `tau_start`."""
    anneal_steps: int = 50
    """Learner steps from `tau_start` to `tau_end`."""


@dataclass(kw_only=True, slots=True)
class TrainConfig:
    """The loop."""

    steps: int = 50
    """Learner steps."""
    groups_per_step: int = 16
    """Tasks in a batch."""
    group_size: int = 8
    """Trajectories of one task; at least 2, or with a critic 1."""
    max_staleness: int = 0
    """Learner steps that a trained token may be older than the weights that it trains; 0 is synchronous."""
    on_exceed: OnExceed = OnExceed.mask
    """Take tokens beyond the bound out of training (`mask`), or drop their group."""
    max_uses: int = 1
    """Steps that may train on one group; more than 1 needs max_staleness of at least 1."""
    eval_every: int = 25
    """Steps between evaluations; 0 evaluates only before and after."""
    checkpoint_every: int = 25
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """Last checkpoints kept, beside the best."""
    wait_timeout_s: float = 600.0
    """Longest wait for groups, in seconds."""
    effort: EffortConfig = field(default_factory=EffortConfig)


@dataclass(kw_only=True, slots=True)
class EvalConfig:
    """Held-out evaluation."""

    episodes: int = 200
    """Held-out tasks, played once in each mode."""
    temperature: float = 1.0
    """Temperature of the sampled figure, in [0.01, 100]; the greedy figure stands beside it."""
    seed_start: int = 1_000_000_000
    """First held-out task seed; training seeds lie below."""
    timeout_s: float = 600.0
    """Longest wait for one evaluation, in seconds."""


@dataclass(kw_only=True, slots=True)
class StageConfig:
    """One stage of imitation: what `pretrain.curriculum.stages` lists."""

    length_mix: dict[int, float] = field(default_factory=dict)
    """Length of a sequence, in tokens, to its share of the trained tokens; the shares add up to 1."""
    text_share: float = 0.0
    """Share of each length that is cut from `pretrain.curriculum.text`; the rest is demonstrated. In [0, 1]."""
    tokens_per_step: int = 8192
    """Tokens of a step on average; at least the longest length."""
    lr: float | None = None
    """Highest learning rate of the stage, reached after `pretrain.optimizer.warmup_steps` of its own and falling over
    `max_steps`; null is `pretrain.optimizer.lr`."""
    segment_tokens: int | None = None
    """Length of a segment; a multiple of 64; null is `learner.segment_tokens`."""
    max_steps: int = 1000
    """Steps after which the stage ends with a warning where the held-out loss still falls."""
    eval_every: int = 50
    """Steps between two measurements of the held-out loss, at which a stage may end."""


@dataclass(kw_only=True, slots=True)
class RecallConfig:
    """How far back the model finds a fact, measured before and after each stage on held-out archives."""

    lengths: list[int] = field(default_factory=list)
    """Lengths of the archives, in tokens, beyond the longest trained one too; an empty list measures nothing."""
    episodes: int = 16
    """Archives of each length and quarter in which the fact may lie."""


@dataclass(kw_only=True, slots=True)
class CurriculumConfig:
    """Imitation in stages, each of which ends when the held-out loss has flattened."""

    stages: list[StageConfig] = field(default_factory=list)
    """In order; their keys are listed below. None at all is `pretrain.steps` of `pretrain.episodes_per_step` each."""
    length_option: str | None = None
    """Reset option that sets the length of a demonstration (`length_tokens` of `archive`); null leaves it to the
    environment, and `length_mix` only counts it."""
    text: str | None = None
    """Text files (a path with `*` and `**`), a document each; UTF-8. Tokenised once into the run folder."""
    held_out_documents: int = 8
    """Text files kept out of training, drawn by the run's seed."""
    held_out_tokens: int = 32768
    """Held-out tokens of each length and source, in at least two sequences."""
    flat_slope: float = 0.01
    """A stage ends when its held-out loss falls by less than this share of itself from one measurement to the next, by
    the straight line through the last `flat_evals`."""
    flat_evals: int = 4
    """Measurements of a stage, its first included, that decide whether it ends; at least 2."""
    max_short_rise: float = 0.02
    """Rise of the loss on the first stage's mix over its lowest, as a share, above which a later stage gets a warning
    and a quarter of its mix is given to the first stage's."""
    recall: RecallConfig = field(default_factory=RecallConfig)


@dataclass(kw_only=True, slots=True)
class PretrainConfig:
    """Imitation of demonstrations."""

    steps: int = 3000
    """Learner steps."""
    episodes_per_step: int = 8
    """Demonstrations in a batch."""
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    skill: Skill = Skill.fallible
    """Who demonstrates: flawless, or with the mistakes that reinforcement learning then has to unlearn."""
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(lr=2.5e-3, beta2=0.98, weight_decay=0.01, warmup_steps=50)
    )
    eval_every: int = 1000
    """Steps between evaluations; 0 evaluates only before and after."""


@dataclass(kw_only=True, slots=True)
class ClusterConfig:
    """Processes and where they run."""

    address: str | None = None
    """Address of a running Ray cluster (`auto` finds it); null starts one here."""
    rollout_actors: int | None = None
    """Processes that play; null is one for each GPU of the machine, 2 on CPUs."""
    learner_ranks: int | None = None
    """Processes that train, each on a GPU of its own where they compute on GPUs; null as above."""
    threads: int = 1
    """Threads of each actor's tensor library."""
    dashboard: bool = True
    """Start Ray's dashboard, on 127.0.0.1 only."""
    start_timeout_s: float = 180.0
    """Deadline of an actor's start, in seconds."""
    answer_timeout_s: float = 120.0
    """A rollout actor that gives no sign of life for so many seconds is replaced."""
    max_losses: int = 3
    """Times in a row that an actor, the learner or Ray may be lost with nothing done in between; more end the run. More
    losses over one task end that task."""
    rollout_resources: dict[str, Any] = field(default_factory=dict)
    """Ray resources of each rollout actor beside its CPUs: `GPU`, or a name that the cluster gives its nodes. `GPU` is
    a part of one; 0 computes on the CPU. Unsaid, a Ray of the run's own shares GPUs out in equal parts."""
    learner_resources: dict[str, Any] = field(default_factory=dict)
    """Likewise for each learner rank."""

    @property
    def num_rollout_actors(self) -> int:
        """`rollout_actors` of a cluster that `placement.placed` has settled."""
        assert self.rollout_actors is not None
        return self.rollout_actors

    @property
    def num_learner_ranks(self) -> int:
        """`learner_ranks` of a cluster that `placement.placed` has settled."""
        assert self.learner_ranks is not None
        return self.learner_ranks


class Logger(Enum):
    """What metrics are sent to, beside `metrics.jsonl`."""

    tensorboard = "tensorboard"
    wandb = "wandb"
    mlflow = "mlflow"


class WandbMode(Enum):
    """Whether W&B is sent anything."""

    offline = "offline"
    online = "online"


@dataclass(kw_only=True, slots=True)
class WandbConfig:
    """Weights & Biases; the key of an account is never part of a configuration."""

    mode: WandbMode = WandbMode.offline
    """Keep what `wandb sync` may send later in the run folder, or send it at once; `wandb login` first."""
    project: str = "segue"
    """Project that the run is shown in."""
    entity: str | None = None
    """User or team; null is the account's default."""


@dataclass(kw_only=True, slots=True)
class MlflowConfig:
    """MLflow; passwords and tokens are never part of a configuration."""

    tracking_uri: str | None = None
    """Address of a tracking server, or of a database; null keeps one in the run folder."""
    experiment: str = "segue"
    """Experiment that the run is shown in."""


@dataclass(kw_only=True, slots=True)
class RunConfig:
    """Where a run lives and where it starts from."""

    dir: str | None = None
    """Run folder: resumed if it holds a run, else started; null makes a new dated one under `runs/`."""
    init_from: str | None = "warm_start"
    """Exported model to start from; `warm_start` is the one shipped for the default task; null is random."""
    console: bool = True
    """Live view on a terminal; lines otherwise."""
    loggers: list[Logger] = field(default_factory=lambda: [Logger.tensorboard])
    """What metrics are sent to beside `metrics.jsonl`; `wandb` and `mlflow` are extras to be installed."""
    wandb: WandbConfig = field(default_factory=WandbConfig)
    mlflow: MlflowConfig = field(default_factory=MlflowConfig)


@dataclass(kw_only=True, slots=True)
class SpreadConfig:
    """A quantity that varies: lognormal."""

    median: float = 1.0
    """Half of the draws lie below; above 0."""
    tail: float = 1.0
    """99th percentile over the median; at least 1, which is no variation at all."""


@dataclass(kw_only=True, slots=True)
class SimulateConfig:
    """What `segue simulate` takes episodes, engine and learner to be."""

    turns: SpreadConfig = field(default_factory=lambda: SpreadConfig(median=2.0))
    """Of an episode, at most `rollout.max_turns`."""
    prompt_tokens: SpreadConfig = field(default_factory=lambda: SpreadConfig(median=130.0))
    """Before the first turn; a group's members share them."""
    turn_tokens: SpreadConfig = field(default_factory=lambda: SpreadConfig(median=60.0, tail=1.5))
    """Sampled in a turn."""
    observation_tokens: SpreadConfig = field(default_factory=lambda: SpreadConfig(median=30.0, tail=1.5))
    """Of what the environment replies to a turn, with its frame."""
    reset_s: SpreadConfig = field(default_factory=lambda: SpreadConfig(median=0.001))
    """The environment's time until it has a task, in seconds."""
    call_s: SpreadConfig = field(default_factory=lambda: SpreadConfig(median=0.001))
    """The environment's time over a turn, in seconds; an env worker is at one call at a time."""
    decode_step_s: float = 0.004
    """Seconds of a decode step of a rollout actor, beside what each session adds."""
    decode_session_s: float = 0.00009
    """What each session adds, in seconds."""
    prefill_tokens_per_s: float = 4000.0
    """Prompt and observation tokens that a rollout actor feeds a second."""
    learner_step_s: float = 0.1
    """Seconds of a learner step, beside its tokens."""
    learner_tokens_per_s: float = 4000.0
    """Tokens of trajectories that all ranks together train a second."""
    publish_s: float = 0.05
    """Seconds of handing new weights to the rollout actors."""


@dataclass(kw_only=True, slots=True)
class SegueConfig:
    """The root."""

    seed: int = 0
    """Of everything drawn: weights, training tasks, sampling noise."""
    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    tokenizer: str = "segue_bpe_1k"
    """`segue_bpe_1k`, `bytes`, or the path of a tokenizer file."""
    env: EnvConfig = field(default_factory=EnvConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    simulate: SimulateConfig = field(default_factory=SimulateConfig)
