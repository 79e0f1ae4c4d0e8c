"""The model's configuration, with the public field names of Kimi-K3 and Kimi-Linear.

Sizes are counts unless a unit is named. Layer numbers in `linear_attn_config` are 1-based, as published.
"""

from dataclasses import dataclass, field, fields
from enum import Enum

MAX_LAYERS = 1000
"""A model of more takes long to build, even without memory."""
MAX_EXPERTS = 2**16
"""In a layer; an expert's id has 16 bits."""
MAX_SIZE = 2**20
"""Of anything else that is counted, but for heads: no tensor's size in bytes is then beyond 63 bits."""
_AT_MOST = {
    "num_hidden_layers": MAX_LAYERS,
    "num_experts": MAX_EXPERTS,
    "num_attention_heads": 2**16,
    "max_position_embeddings": 2**31 - 1,
}
_ABOVE_ZERO = (
    "activation_situ_beta",
    "activation_situ_linear_beta",
    "rms_norm_eps",
    "qk_norm_eps",
    "initializer_range",
    "routed_scaling_factor",
)


class LayerKind(Enum):
    """What mixes tokens in a layer."""

    kda = "kda"
    mla = "mla"


class HiddenAct(Enum):
    """Gated activation of every MLP."""

    situ = "situ"
    silu = "silu"


@dataclass(kw_only=True, slots=True)
class LinearAttnConfig:
    """KDA layers: where they stand and their shape."""

    full_attn_layers: list[int] = field(default_factory=lambda: [4])
    """1-based numbers of the MLA layers; all others are KDA."""
    num_heads: int = 3
    head_dim: int = 32
    """Key and value width of a head."""
    short_conv_kernel_size: int = 4
    use_full_rank_gate: bool = True
    """Output gate as one matrix (K3) instead of two low-rank ones (Kimi-Linear)."""
    gate_lower_bound: float | None = -5.0
    """Lower bound of the log decay, in [-5, 0); null takes the unbounded softplus gate of Kimi-Linear."""


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    """A K3-style text model. The defaults are the `tiny` model."""

    vocab_size: int = 896
    hidden_size: int = 96
    num_hidden_layers: int = 4
    num_attention_heads: int = 3
    intermediate_size: int = 384
    """Width of the dense MLP of the first `first_k_dense_replace` layers."""
    hidden_act: HiddenAct = HiddenAct.situ
    activation_situ_beta: float = 4.0
    activation_situ_linear_beta: float = 25.0
    rms_norm_eps: float = 1e-5
    qk_norm_eps: float = 1e-6
    """Epsilon of the norms over the MLA latents."""
    initializer_range: float | None = None
    """Standard deviation of the linear layers at the start; null scales each by 1/sqrt(fan_in)."""
    max_position_embeddings: int = 1048576
    q_lora_rank: int | None = 64
    """Width of the query latent; null projects queries directly."""
    kv_lora_rank: int = 48
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 16
    """Width of the shared key slice; it is never rotated."""
    v_head_dim: int = 32
    mla_use_output_gate: bool = True
    linear_attn_config: LinearAttnConfig = field(default_factory=LinearAttnConfig)
    num_experts: int = 32
    num_experts_per_token: int = 4
    num_shared_experts: int = 1
    moe_intermediate_size: int = 48
    routed_expert_hidden_size: int | None = 48
    """Latent width of the routed experts; null lets them work at hidden_size."""
    latent_moe_use_norm: bool = True
    moe_renormalize: bool = True
    routed_scaling_factor: float = 1.0
    first_k_dense_replace: int = 1
    attn_res_block_size: int | None = 2
    """Layers in a block of the attention residual; null takes ordinary residuals."""

    def __post_init__(self) -> None:
        linear = self.linear_attn_config
        bound = linear.gate_lower_bound
        if bound is not None and not -5.0 <= bound < 0.0:
            raise ValueError(f"model.linear_attn_config.gate_lower_bound must be in [-5, 0) or null, got {bound}")
        if len(set(linear.full_attn_layers)) < len(linear.full_attn_layers):
            raise ValueError(
                f"model.linear_attn_config.full_attn_layers must name each layer once, got {linear.full_attn_layers}"
            )
        for number in linear.full_attn_layers:
            if not 1 <= number <= self.num_hidden_layers:
                raise ValueError(
                    "model.linear_attn_config.full_attn_layers must be 1-based layer numbers up to "
                    f"{self.num_hidden_layers}, got {number}"
                )
        if not 0 <= self.first_k_dense_replace < self.num_hidden_layers:
            raise ValueError(
                f"model.first_k_dense_replace must be in [0, {self.num_hidden_layers - 1}], "
                f"got {self.first_k_dense_replace}"
            )
        if not 0 < self.num_experts_per_token < self.num_experts:
            raise ValueError(
                f"model.num_experts_per_token must be in [1, {self.num_experts - 1}], got {self.num_experts_per_token}"
            )
        for name in _ABOVE_ZERO:
            value = getattr(self, name)
            if value is not None and not value > 0.0:
                raise ValueError(f"model.{name} must be above 0, got {value}")
        for section, prefix in ((self, "model"), (linear, "model.linear_attn_config")):
            for size in fields(section):
                value, most = getattr(section, size.name), _AT_MOST.get(size.name, MAX_SIZE)
                is_size = type(value) is int and size.name != "first_k_dense_replace"
                if is_size and not 1 <= value <= most:
                    rule = "at least 1" if value < 1 else f"at most {most}"
                    raise ValueError(f"{prefix}.{size.name} must be {rule}, got {value}")

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Kind of each layer, by 0-based index."""
        full = set(self.linear_attn_config.full_attn_layers)
        return tuple(LayerKind.mla if i + 1 in full else LayerKind.kda for i in range(self.num_hidden_layers))

    @property
    def kda_layers(self) -> tuple[int, ...]:
        """0-based indices of the KDA layers."""
        return tuple(i for i, kind in enumerate(self.layer_kinds) if kind is LayerKind.kda)

    @property
    def mla_layers(self) -> tuple[int, ...]:
        """0-based indices of the MLA layers."""
        return tuple(i for i, kind in enumerate(self.layer_kinds) if kind is LayerKind.mla)

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """0-based indices of the layers with routed experts."""
        return tuple(range(self.first_k_dense_replace, self.num_hidden_layers))

    @property
    def recurrent_shape(self) -> tuple[int, int, int]:
        """Heads, value width and key width of a KDA layer's state of one sequence."""
        linear = self.linear_attn_config
        return linear.num_heads, linear.head_dim, linear.head_dim

    @property
    def conv_shape(self) -> tuple[int, int]:
        """Tokens and channels (q, k, v side by side) of a KDA layer's convolution history of one sequence."""
        linear = self.linear_attn_config
        return linear.short_conv_kernel_size - 1, 3 * linear.num_heads * linear.head_dim

    @property
    def latent_row_size(self) -> int:
        """Numbers that an MLA layer keeps for a token: normalised latent and shared key slice."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def expert_input_size(self) -> int:
        """Width that routed experts read and write."""
        return self.hidden_size if self.routed_expert_hidden_size is None else self.routed_expert_hidden_size
