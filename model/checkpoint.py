"""Models as folders that other implementations read: `config.json` and safetensors under the public names.

In memory a layer's experts are stacked; on disk each expert's matrix is a tensor of its own.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from segue.conf.model_config import ModelConfig
from segue.model.network import SegueModel, build_model
from segue.model.published_config import CONFIG_FILE, load_published_config, published_config
from segue.model.safetensors_writer import DTYPE_NAMES, write_safetensors

SHARD_BYTES = 4 * 2**30
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
STACKED = ("experts.w1", "experts.w2", "experts.w3")
QUANTISED = (".weight_packed", ".weight_scale")
WRAPPER_PREFIX = "language_model."
MAX_QUOTED_CHARS = 60
OTHER_TOWERS = ("vision_tower.", "mm_projector.")


def published_tensors(model: SegueModel) -> dict[str, Tensor]:
    """Every parameter and buffer under its name in memory (stacked experts); detached, sharing memory."""
    return {name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def checkpoint_tensors(model: SegueModel) -> dict[str, Tensor]:
    """The same under the public names, one tensor per expert matrix; sharing memory, so copying into them loads."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in published_tensors(model).items():
        if name.endswith(STACKED):
            stem, matrix = name.rsplit(".", 1)
            tensors.update({f"{stem}.{expert}.{matrix}.weight": part for expert, part in enumerate(tensor.unbind(0))})
        else:
            tensors[name] = tensor
    return tensors


def export_checkpoint(model: SegueModel, folder: Path | str, *, shard_bytes: int = SHARD_BYTES) -> None:
    """Write a model as a folder that appears whole or not at all.

    Tensors keep their own dtype. More than `shard_bytes` of tensors become several files with an index.

    Raises:
        FileExistsError: the folder exists and is not empty.
    """
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} must not exist or be empty")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    partial.mkdir()
    try:
        dtype_name = str(model.lm_head.weight.dtype).removeprefix("torch.")
        (partial / CONFIG_FILE).write_text(json.dumps(published_config(model.config, dtype_name), indent=2) + "\n")
        _write_shards(checkpoint_tensors(model), partial, shard_bytes)
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def import_checkpoint(
    folder: Path | str, device: torch.device | str = "cpu", *, must_be_finite: bool = True
) -> tuple[ModelConfig, SegueModel]:
    """Read a folder that `export_checkpoint` or another implementation wrote, one tensor at a time.

    The text model inside the multimodal `kimi_k3` form is read too; its vision tensors are left out. The model takes
    the dtype of the embedding.

    Args:
        folder: with `config.json` and safetensors files.
        device: of the model.
        must_be_finite: refuse a NaN or an infinity; False is for looking into what went wrong.
    Returns:
        The configuration and the model on `device`.
    Raises:
        ValueError: `config.json` or the index is no such file or asks for another model; tensors are missing, extra, of
            another shape, would lose precision or hold a NaN or an infinity (all of them are named); experts are
            quantised; a file is not safetensors.
    """
    folder = Path(folder)
    config, is_wrapped = load_published_config(folder)
    reader = _Reader(folder, prefix=WRAPPER_PREFIX if is_wrapped else "")
    quantised = [name for name in reader.names if name.endswith(QUANTISED)]
    if quantised:
        raise ValueError(
            f"{folder} holds {len(quantised)} quantised tensors (MXFP4; first: {quantised[0]}), which cannot be read; "
            "convert its experts to bfloat16"
        )
    dtype = reader.dtype("model.embed_tokens.weight") if "model.embed_tokens.weight" in reader.names else torch.float32
    problems = list(_find_oversized(reader, config))
    problems = problems or list(_find_problems(reader, _needed_tensors(config, dtype), is_wrapped))
    if problems:
        raise _misfit(folder, problems)
    model = build_model(config, dtype, device)
    for name, target in checkpoint_tensors(model).items():
        stored = _fit(reader.tensor(name), target)
        if must_be_finite and not stored.isfinite().all():
            problems.append(f"values: {name} must be finite, got a NaN or an infinity")
        target.copy_(stored)
    if problems:
        raise _misfit(folder, problems)
    return config, model


class _Reader:
    """The tensors of a checkpoint folder by public name, without the wrapper's prefix."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self._stored: dict[str, tuple[Any, str]] = {}
        for path in _tensor_files(folder):
            try:
                file = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{path} is not a safetensors file: {error}") from error
            for stored_name in file.keys():  # noqa: SIM118  not a mapping
                if not (prefix and stored_name.startswith(OTHER_TOWERS)):
                    self._stored[stored_name.removeprefix(prefix)] = (file, stored_name)

    @property
    def names(self) -> Mapping[str, object]:
        return self._stored

    def tensor(self, name: str) -> Tensor:
        file, stored_name = self._stored[name]
        return file.get_tensor(stored_name)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def dtype(self, name: str) -> torch.dtype:
        by_name = {text: dtype for dtype, text in DTYPE_NAMES.items()}
        text = self._slice(name).get_dtype()
        if text not in by_name:
            raise ValueError(f"{name} must be a floating tensor, got {text}")
        return by_name[text]

    def _slice(self, name: str) -> Any:
        file, stored_name = self._stored[name]
        return file.get_slice(stored_name)


def _tensor_files(folder: Path) -> list[Path]:
    index = folder / INDEX_FILE
    if not index.exists():
        return [folder / SINGLE_FILE]
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{index} must hold a JSON object: {error}") from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{index} must hold weight_map, an object from tensors to files, got {_short(content)}")
    for tensor, name in weight_map.items():
        # a name with a folder in it could be anybody's file
        if not isinstance(name, str) or Path(name).name != name or "\0" in name:
            raise ValueError(f"{index} must give for each tensor a file beside it, got {_short(name)} for {tensor}")
    return [folder / name for name in sorted(set(weight_map.values()))]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}…"


def _misfit(folder: Path, problems: list[str]) -> ValueError:
    return ValueError(f"{folder} does not fit its {CONFIG_FILE}:\n  " + "\n  ".join(problems))


def _find_oversized(reader: _Reader, config: ModelConfig) -> Iterator[str]:
    """Counts far beyond what is stored: building such a model, even without memory, would take for ever."""
    for name, pattern, needed in (
        ("num_hidden_layers", r"model\.layers\.(\d+)\.", config.num_hidden_layers),
        ("num_experts", r"\.experts\.(\d+)\.", config.num_experts),
    ):
        matches = (re.search(pattern, stored) for stored in reader.names)
        num_stored = len({match[1] for match in matches if match})
        if needed > num_stored:
            yield f"{name}: {needed} are more than the {num_stored} that have a tensor"


def _needed_tensors(config: ModelConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors of the configured model, without memory."""
    return checkpoint_tensors(build_model(config, dtype, "meta"))


def _find_problems(reader: _Reader, targets: Mapping[str, Tensor], is_wrapped: bool) -> Iterator[str]:
    """Differences between what is stored and what the model needs, a line each."""
    for name in sorted(targets.keys() - reader.names.keys()):
        yield f"missing: {name} {list(targets[name].shape)}"
    for name in sorted(reader.names.keys() - targets.keys()):
        yield f"extra: {name} {list(reader.shape(name))}"
    for name in sorted(targets.keys() & reader.names.keys()):
        target, shape, dtype = targets[name], reader.shape(name), reader.dtype(name)
        if not _fits(name, tuple(target.shape), shape, is_wrapped):
            yield f"shape: {name} must be {list(target.shape)}, got {list(shape)}"
        if torch.promote_types(dtype, target.dtype) is not target.dtype:
            yield f"dtype: {name} must fit {target.dtype}, got {dtype}"


def _fits(name: str, wanted: tuple[int, ...], shape: tuple[int, ...], is_wrapped: bool) -> bool:
    """True for the model's shape and its published variants: A_log with unit axes or padded, taps without theirs."""
    if name.endswith("A_log"):
        is_padded = is_wrapped and len(shape) == 1 and shape[0] >= wanted[0]
        return is_padded or shape in (wanted, (1, 1, *wanted, 1))
    if name.endswith("conv1d.weight"):
        return shape in (wanted, (wanted[0], wanted[2]))
    return shape == wanted


def _fit(stored: Tensor, target: Tensor) -> Tensor:
    """A stored tensor of an accepted shape in the model's shape: padding behind the heads of A_log goes."""
    return stored.flatten()[: target.numel()].view(target.shape)


def _write_shards(tensors: Mapping[str, Tensor], folder: Path, shard_bytes: int) -> None:
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    if len(shards) == 1:
        write_safetensors(folder / SINGLE_FILE, shards[0])
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file_name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(folder / file_name, shard)
        weight_map.update(dict.fromkeys(shard, file_name))
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")
