"""`config.json` with the public field names of `kimi_linear` and `kimi_k3`, to and from `ModelConfig`."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any

from segue.conf.model_config import HiddenAct, LinearAttnConfig, ModelConfig

ARCHITECTURE = "KimiLinearForCausalLM"
MODEL_TYPE = "kimi_linear"
WRAPPER_MODEL_TYPE = "kimi_k3"

# what this model always is; a published model that says otherwise cannot be read
FIXED: dict[str, Any] = {
    "tie_word_embeddings": False,
    "mla_use_nope": True,
    "moe_router_activation_func": "sigmoid",
    "moe_layer_freq": 1,
    "num_expert_group": 1,
    "num_nextn_predict_layers": 0,
}
# what other implementations want to read, and is written without meaning here
WRITTEN: dict[str, Any] = {"use_grouped_topk": True, "topk_group": 1, "topk_method": "noaux_tc"}
# a model published before K3 lacks K3's fields: their meaning when absent, where it differs from the schema's default
ABSENT: dict[str, Any] = {
    "q_lora_rank": None,
    "mla_use_output_gate": False,
    "routed_expert_hidden_size": None,
    "latent_moe_use_norm": False,
    "attn_res_block_size": None,
}
ABSENT_LINEAR: dict[str, Any] = {"use_full_rank_gate": False, "gate_lower_bound": None}
# a published model may leave these to our default; all others must be there
OPTIONAL = {
    "activation_situ_beta",
    "activation_situ_linear_beta",
    "qk_norm_eps",
    "initializer_range",
    "max_position_embeddings",
}


def published_config(config: ModelConfig, dtype_name: str) -> dict[str, Any]:
    """The content of `config.json` for a model whose matrices have the named dtype (`bfloat16`, `float32`, ...)."""
    content = asdict(config) | FIXED | WRITTEN
    content["hidden_act"] = config.hidden_act.value
    content["num_key_value_heads"] = config.num_attention_heads
    content["linear_attn_config"]["kda_layers"] = [index + 1 for index in config.kda_layers]
    if config.initializer_range is None:
        del content["initializer_range"]
    return {"architectures": [ARCHITECTURE], "model_type": MODEL_TYPE, "dtype": dtype_name, **content}


def parse_published_config(content: Mapping[str, Any]) -> ModelConfig:
    """A text model's configuration from `config.json`, plain or inside the multimodal wrapper.

    Raises:
        ValueError: fields are missing or ask for what this model is not; names all of them.
    """
    text = content["text_config"] if is_wrapper(content) else content
    problems = [
        f"{name} must be {value}, got {text[name]}" for name, value in FIXED.items() if text.get(name, value) != value
    ]
    num_heads = text.get("num_attention_heads")
    if text.get("num_key_value_heads", num_heads) != num_heads:
        problems.append(f"num_key_value_heads must be {num_heads} (num_attention_heads)")

    values = _read_fields(ModelConfig, text, ABSENT, "", problems)
    linear = _read_fields(
        LinearAttnConfig, text.get("linear_attn_config", {}), ABSENT_LINEAR, "linear_attn_config.", problems
    )
    acts = {act.value for act in HiddenAct}
    if values.get("hidden_act", HiddenAct.situ.value) not in acts:
        problems.append(f"hidden_act must be one of {sorted(acts)}, got {values['hidden_act']}")
    if problems:
        raise ValueError("config.json: " + "; ".join(problems))
    values["hidden_act"] = HiddenAct(values["hidden_act"])
    values["linear_attn_config"] = LinearAttnConfig(**linear)
    return ModelConfig(**values)


def is_wrapper(content: Mapping[str, Any]) -> bool:
    """True if this is the multimodal model around the text model."""
    return content.get("model_type") == WRAPPER_MODEL_TYPE


def _read_fields(
    schema: type, content: Mapping[str, Any], absent: Mapping[str, Any], prefix: str, problems: list[str]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for schema_field in fields(schema):
        name = schema_field.name
        if name in content:
            values[name] = content[name]
        elif name in absent:
            values[name] = absent[name]
        elif name not in OPTIONAL and schema_field.default is not MISSING:
            problems.append(f"{prefix}{name} is missing")
    return values
