"""`config.json` with the public field names of `kimi_linear` and `kimi_k3`, to and from `ModelConfig`."""

import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, fields
from enum import Enum
from pathlib import Path
from typing import Any

from segue.conf.keys import describe_type
from segue.conf.model_config import LinearAttnConfig, ModelConfig

CONFIG_FILE = "config.json"
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
MAX_NUMBER = 2**31
"""Sizes and other numbers of a published model lie below."""
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


def load_published_config(folder: Path) -> tuple[ModelConfig, bool]:
    """The configuration of the text model in a folder, and whether it stands inside the multimodal wrapper.

    Raises:
        ValueError: there is no `config.json`, it is no JSON object, or what `parse_published_config` says; names it.
    """
    path = folder / CONFIG_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{path} must hold the JSON object that describes a model: {reason}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold the JSON object that describes a model, got {type(content).__name__}")
    try:
        return parse_published_config(content), is_wrapper(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def parse_published_config(content: Mapping[str, Any]) -> ModelConfig:
    """A text model's configuration from the content of `config.json`, plain or inside the multimodal wrapper.

    Raises:
        ValueError: fields are missing, have another type or ask for what this model is not; names all of them.
    """
    text = content
    if is_wrapper(content):
        text = content.get("text_config")  # type: ignore[assignment]
        if not isinstance(text, Mapping):
            raise ValueError(f"text_config must be an object where model_type is {WRAPPER_MODEL_TYPE}, got {text!r}")
    problems = [
        f"{name} must be {value}, got {text[name]}" for name, value in FIXED.items() if text.get(name, value) != value
    ]
    num_heads = text.get("num_attention_heads")
    if text.get("num_key_value_heads", num_heads) != num_heads:
        problems.append(f"num_key_value_heads must be {num_heads} (num_attention_heads)")

    values = _read_fields(ModelConfig, text, ABSENT, "", problems)
    section = text.get("linear_attn_config", {})
    if not isinstance(section, Mapping):
        problems.append(f"linear_attn_config must be an object, got {section!r}")
        section = {}
    linear = _read_fields(LinearAttnConfig, section, ABSENT_LINEAR, "linear_attn_config.", problems)
    if problems:
        raise ValueError("; ".join(problems))
    values["linear_attn_config"] = LinearAttnConfig(**linear)
    try:
        config = ModelConfig(**values)
    except ValueError as error:
        raise ValueError(str(error).removeprefix("model.")) from error
    _check_kda_layers(config, section)
    return config


def is_wrapper(content: Mapping[str, Any]) -> bool:
    """True if this is the multimodal model around the text model."""
    return content.get("model_type") == WRAPPER_MODEL_TYPE


def _read_fields(
    schema: type, content: Mapping[str, Any], absent: Mapping[str, Any], prefix: str, problems: list[str]
) -> dict[str, Any]:
    """The fields of a section but for its sections, of the types that the schema has."""
    values: dict[str, Any] = {}
    hints = typing.get_type_hints(schema)
    for schema_field in fields(schema):
        name, hint = schema_field.name, hints[schema_field.name]
        if hint is LinearAttnConfig:
            continue
        if name in content:
            try:
                values[name] = _convert(hint, content[name])
            except TypeError:
                rule = describe_type(f"model.{prefix}{name}")
                problems.append(f"{prefix}{name} must be {rule}, got {content[name]!r}")
        elif name in absent:
            values[name] = absent[name]
        elif name not in OPTIONAL:
            problems.append(f"{prefix}{name} is missing")
    return values


def _convert(hint: Any, value: Any) -> Any:
    """A JSON value as the schema's type; JSON writes 1.0 as 1, but has no NaN.

    Raises:
        TypeError: it is of another type, or beyond what sizes and finite numbers can be.
    """
    if typing.get_origin(hint) is types.UnionType:
        (inner,) = (argument for argument in typing.get_args(hint) if argument is not types.NoneType)
        return None if value is None else _convert(inner, value)
    if typing.get_origin(hint) is list and isinstance(value, list):
        return [_convert(typing.get_args(hint)[0], item) for item in value]
    if hint is float and type(value) in (int, float) and abs(value) < MAX_NUMBER and math.isfinite(value):
        return float(value)
    if hint is int and type(value) is int and abs(value) < MAX_NUMBER:
        return value
    if hint is bool and isinstance(value, bool):
        return value
    if isinstance(hint, type) and issubclass(hint, Enum) and value in [member.value for member in hint]:
        return hint(value)
    raise TypeError


def _check_kda_layers(config: ModelConfig, section: Mapping[str, Any]) -> None:
    """Where the KDA layers are listed, they must be the layers that are not MLA."""
    if "kda_layers" not in section:
        return
    listed = section["kda_layers"]
    # counted, not built: nothing has bounded the number of layers yet
    holds = isinstance(listed, list) and all(type(number) is int for number in listed)
    if holds:
        both = {*listed, *config.linear_attn_config.full_attn_layers}
        num_listed = len(listed) + len(config.linear_attn_config.full_attn_layers)
        holds = num_listed == len(both) == config.num_hidden_layers == max(both) and min(both) == 1
    if not holds:
        raise ValueError(
            f"linear_attn_config.kda_layers must be the layers that full_attn_layers leaves, got {listed!r}"
        )
