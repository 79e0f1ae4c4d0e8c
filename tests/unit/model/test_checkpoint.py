"""Checkpoint folders: published names and shapes, round trip, the multimodal wrapper, errors, atomicity."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from model_cases import make_config, make_linear_config, make_model
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from segue.model.checkpoint import checkpoint_tensors, export_checkpoint, import_checkpoint, published_tensors

CONFIG = make_config()


def read_all(folder: Path) -> dict[str, Tensor]:
    """Every tensor of every file, by the public library."""
    tensors = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            tensors.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    return tensors


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    """Change the single file of a folder."""
    tensors = read_all(folder)
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("config", [CONFIG, make_linear_config()], ids=["k3", "kimi_linear"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shard_bytes", [2**30, 4000])
def test_a_model_comes_back_bit_for_bit(config, dtype: torch.dtype, shard_bytes: int, tmp_path: Path) -> None:
    model = make_model(config, dtype=dtype)
    export_checkpoint(model, tmp_path / "model", shard_bytes=shard_bytes)
    assert (tmp_path / "model" / "model.safetensors.index.json").exists() == (shard_bytes == 4000)
    back_config, back = import_checkpoint(tmp_path / "model")
    assert back_config == config
    assert back.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert back.state_dict()[name].dtype is tensor.dtype
        assert torch.equal(back.state_dict()[name], tensor), name


def test_names_shapes_and_dtypes_on_disk_are_the_published_ones(tmp_path: Path) -> None:
    model = make_model(CONFIG, dtype=torch.bfloat16)
    export_checkpoint(model, tmp_path / "model")
    stored = read_all(tmp_path / "model")
    kda, mla, moe = "model.layers.2.self_attn.", "model.layers.1.self_attn.", "model.layers.1.block_sparse_moe."
    # width 24; KDA 2 heads x 16; MLA 3 heads, 8 + 4 / 6, latents 12 and 10; experts 6 of 10 in latent 14, 2 shared
    shapes = {
        "model.embed_tokens.weight": (40, 24),
        "lm_head.weight": (40, 24),
        "model.norm.weight": (24,),
        "model.output_attn_res_norm.weight": (24,),
        "model.output_attn_res_proj.weight": (1, 24),
        "model.layers.0.input_layernorm.weight": (24,),
        "model.layers.0.post_attention_layernorm.weight": (24,),
        "model.layers.0.self_attention_res_norm.weight": (24,),
        "model.layers.0.self_attention_res_proj.weight": (1, 24),
        "model.layers.0.mlp_res_norm.weight": (24,),
        "model.layers.0.mlp_res_proj.weight": (1, 24),
        "model.layers.0.mlp.gate_proj.weight": (40, 24),
        "model.layers.0.mlp.up_proj.weight": (40, 24),
        "model.layers.0.mlp.down_proj.weight": (24, 40),
        **{f"{kda}{part}_proj.weight": (32, 24) for part in "qkvg"},
        **{f"{kda}{part}_conv1d.weight": (32, 1, 4) for part in "qkv"},
        f"{kda}f_a_proj.weight": (16, 24),
        f"{kda}f_b_proj.weight": (32, 16),
        f"{kda}b_proj.weight": (2, 24),
        f"{kda}A_log": (2,),
        f"{kda}dt_bias": (32,),
        f"{kda}o_norm.weight": (16,),
        f"{kda}o_proj.weight": (24, 32),
        f"{mla}q_a_proj.weight": (12, 24),
        f"{mla}q_a_layernorm.weight": (12,),
        f"{mla}q_b_proj.weight": (36, 12),
        f"{mla}kv_a_proj_with_mqa.weight": (14, 24),
        f"{mla}kv_a_layernorm.weight": (10,),
        f"{mla}kv_b_proj.weight": (42, 10),
        f"{mla}g_proj.weight": (18, 24),
        f"{mla}o_proj.weight": (24, 18),
        f"{moe}gate.weight": (6, 24),
        f"{moe}gate.e_score_correction_bias": (6,),
        f"{moe}routed_expert_down_proj.weight": (14, 24),
        f"{moe}routed_expert_up_proj.weight": (24, 14),
        f"{moe}routed_expert_norm.weight": (14,),
        f"{moe}shared_experts.gate_proj.weight": (20, 24),
        f"{moe}shared_experts.up_proj.weight": (20, 24),
        f"{moe}shared_experts.down_proj.weight": (24, 20),
        **{f"{moe}experts.{e}.{matrix}.weight": (10, 14) for e in range(6) for matrix in ("w1", "w3")},
        **{f"{moe}experts.{e}.w2.weight": (14, 10) for e in range(6)},
    }
    assert {name: tuple(stored[name].shape) for name in shapes} == shapes
    # no other tensor in layers 1 and 2, the one MLA and the one KDA layer looked at
    layers = ("model.layers.1.self_attn", "model.layers.1.block", "model.layers.2.self_attn")
    assert {name for name in stored if name.startswith(layers)} == {name for name in shapes if name.startswith(layers)}
    wide = ("A_log", "dt_bias", "conv1d.weight", "o_norm.weight", "e_score_correction_bias")
    for name, tensor in stored.items():
        assert tensor.dtype is (torch.float32 if name.endswith(wide) else torch.bfloat16), name
    experts = model.state_dict()[f"{moe}experts.w3"]
    assert torch.equal(stored[f"{moe}experts.4.w3.weight"], experts[4])
    content = json.loads((tmp_path / "model" / "config.json").read_text())
    assert content["architectures"] == ["KimiLinearForCausalLM"]
    assert (content["model_type"], content["dtype"]) == ("kimi_linear", "bfloat16")


def test_the_multimodal_form_is_read(tmp_path: Path) -> None:
    model = make_model(CONFIG)
    export_checkpoint(model, tmp_path / "model")

    def wrap(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            tensor = tensors.pop(name)
            if name.endswith("A_log"):
                tensor = torch.cat([tensor, torch.zeros(6, dtype=tensor.dtype)])
            tensors[f"language_model.{name}"] = tensor
        tensors["vision_tower.patch_embed.proj.weight"] = torch.zeros(2, 3)
        tensors["mm_projector.proj.0.weight"] = torch.zeros(2, 3)

    rewrite(tmp_path / "model", wrap)
    path = tmp_path / "model" / "config.json"
    wrapped = {"architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3"}
    path.write_text(json.dumps({**wrapped, "text_config": json.loads(path.read_text())}))
    config, back = import_checkpoint(tmp_path / "model")
    assert config == CONFIG
    for name, tensor in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name


def test_published_variants_of_shapes_are_read(tmp_path: Path) -> None:
    model = make_model(make_linear_config())
    export_checkpoint(model, tmp_path / "model")

    def reshape(tensors: dict[str, Tensor]) -> None:
        for name in tensors:
            if name.endswith("A_log"):
                tensors[name] = tensors[name].view(1, 1, 2, 1)
            if name.endswith("conv1d.weight"):
                tensors[name] = tensors[name].squeeze(1)

    rewrite(tmp_path / "model", reshape)
    back = import_checkpoint(tmp_path / "model")[1]
    for name, tensor in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name


def test_every_misfit_is_named_at_once(tmp_path: Path) -> None:
    export_checkpoint(make_model(CONFIG, dtype=torch.bfloat16), tmp_path / "model")

    def spoil(tensors: dict[str, Tensor]) -> None:
        del tensors["model.norm.weight"]
        del tensors["model.layers.2.block_sparse_moe.experts.3.w1.weight"]
        tensors["model.layers.9.input_layernorm.weight"] = torch.zeros(24)
        tensors["lm_head.weight"] = torch.zeros(41, 24, dtype=torch.bfloat16)
        tensors["model.layers.0.self_attn.A_log"] = torch.zeros(128)
        tensors["model.layers.0.input_layernorm.weight"] = torch.zeros(24)

    rewrite(tmp_path / "model", spoil)
    with pytest.raises(ValueError) as error:
        import_checkpoint(tmp_path / "model")
    assert str(error.value).splitlines()[1:] == [
        "  missing: model.layers.2.block_sparse_moe.experts.3.w1.weight [10, 14]",
        "  missing: model.norm.weight [24]",
        "  extra: model.layers.9.input_layernorm.weight [24]",
        "  shape: lm_head.weight must be [40, 24], got [41, 24]",
        "  dtype: model.layers.0.input_layernorm.weight must fit torch.bfloat16, got torch.float32",
        "  shape: model.layers.0.self_attn.A_log must be [2], got [128]",
    ]


def test_quantised_experts_are_a_clear_error(tmp_path: Path) -> None:
    export_checkpoint(make_model(CONFIG), tmp_path / "model")

    def quantise(tensors: dict[str, Tensor]) -> None:
        name = "model.layers.1.block_sparse_moe.experts.0.w1"
        del tensors[f"{name}.weight"]
        tensors[f"{name}.weight_packed"] = torch.zeros(10, 7, dtype=torch.uint8)
        tensors[f"{name}.weight_scale"] = torch.zeros(10, 1, dtype=torch.uint8)

    rewrite(tmp_path / "model", quantise)
    with pytest.raises(ValueError, match=r"2 quantised tensors \(MXFP4; first: model.layers.1.*convert"):
        import_checkpoint(tmp_path / "model")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    export_checkpoint(make_model(CONFIG), tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"model\.safetensors is not a safetensors file"):
        import_checkpoint(tmp_path / "model")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"index.json must hold a JSON object: Expecting"),
        ("[1]", r"index.json must hold weight_map, an object from tensors to files, got \[1\]"),
        ("{}", "index.json must hold weight_map, an object from tensors to files, got {}"),
        ('{"weight_map": ["a"]}', "index.json must hold weight_map, an object from tensors to files"),
        ('{"weight_map": {}}', "index.json must hold weight_map, an object from tensors to files"),
        ('{"weight_map": {"a": 5}}', "index.json must give for each tensor a file beside it, got 5 for a"),
        ('{"weight_map": {"a": "../x"}}', r"must give for each tensor a file beside it, got '../x' for a"),
        ('{"weight_map": {"a": "/x"}}', r"must give for each tensor a file beside it, got '/x' for a"),
        ('{"weight_map": {"a": "gone"}}', "gone is not a safetensors file: No such file"),
    ],
)
def test_a_broken_index_is_named(content: str, message: str, tmp_path: Path) -> None:
    export_checkpoint(make_model(CONFIG), tmp_path / "model")
    (tmp_path / "model" / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        import_checkpoint(tmp_path / "model")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        # 5 layers and 6 experts are stored
        ({"num_hidden_layers": 1000}, "num_hidden_layers: 1000 are more than the 5 that have a tensor"),
        ({"num_experts": 2**16}, "num_experts: 65536 are more than the 6 that have a tensor"),
    ],
)
def test_counts_are_held_against_the_stored_tensors_before_anything_is_built(
    changes: dict[str, int], problem: str, tmp_path: Path
) -> None:
    export_checkpoint(make_model(CONFIG), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    content = json.loads(path.read_text()) | changes
    del content["linear_attn_config"]["kda_layers"]
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError) as error:
        import_checkpoint(tmp_path / "model")
    assert str(error.value).splitlines()[1:] == [f"  {problem}"]


def test_sizes_beyond_every_bound_are_an_error(tmp_path: Path) -> None:
    export_checkpoint(make_model(CONFIG), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": 2**31 - 1}))
    with pytest.raises(ValueError, match=r"config\.json: vocab_size must be at most 1048576, got 2147483647"):
        import_checkpoint(tmp_path / "model")


def test_values_that_are_not_finite_are_named(tmp_path: Path) -> None:
    export_checkpoint(make_model(CONFIG), tmp_path / "model")

    def spoil(tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"][3, 2] = float("nan")
        tensors["model.layers.1.block_sparse_moe.experts.3.w2.weight"][0, 0] = -float("inf")

    rewrite(tmp_path / "model", spoil)
    with pytest.raises(ValueError) as error:
        import_checkpoint(tmp_path / "model")
    assert sorted(str(error.value).splitlines()[1:]) == [
        "  values: lm_head.weight must be finite, got a NaN or an infinity",
        "  values: model.layers.1.block_sparse_moe.experts.3.w2.weight must be finite, got a NaN or an infinity",
    ]
    _, model = import_checkpoint(tmp_path / "model", must_be_finite=False)
    assert model.lm_head.weight[3, 2].isnan()


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{tmp_path}/config.json must hold the JSON object that describes a model"):
        import_checkpoint(tmp_path)
    export_checkpoint(make_model(CONFIG), tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors is not a safetensors file: No such file"):
        import_checkpoint(tmp_path / "model")


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes").write_text("mine")
    with pytest.raises(FileExistsError, match="must not exist or be empty"):
        export_checkpoint(make_model(CONFIG), tmp_path / "model")
    assert (tmp_path / "model" / "notes").read_text() == "mine"


def test_a_failed_export_leaves_nothing(tmp_path: Path) -> None:
    model = make_model(CONFIG)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.to(torch.complex64))
    with pytest.raises(KeyError):
        export_checkpoint(model, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_published_tensors_share_the_models_memory() -> None:
    model = make_model(CONFIG)
    tensors = published_tensors(model)
    assert tensors.keys() == model.state_dict().keys()
    tensors["lm_head.weight"].fill_(3.0)
    checkpoint_tensors(model)["model.layers.1.block_sparse_moe.experts.2.w2.weight"].fill_(4.0)
    assert (model.lm_head.weight == 3.0).all()
    assert (model.model.layers[1].block_sparse_moe.experts.w2[2] == 4.0).all()
    assert not any(tensor.requires_grad for tensor in tensors.values())
