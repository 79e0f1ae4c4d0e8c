"""Muon against its definition in fp64, written out for each block; which parameters it moves; torch's own as a witness.

Through DeepSpeed, whose flat tensors cut matrices anywhere: tests/e2e/test_deepspeed_exactness.py.
"""

import queue
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from learner_cases import make_config, make_model
from muon_cases import moved_block, moved_matrix, newton_schulz

from segue.conf.schema import MuonConfig, OptimizerConfig, OptimizerKind
from segue.learner.muon import Exchange, Muon, orthogonalise
from segue.learner.muon_plan import Shard, plan_updates
from segue.learner.optimizer import build_optimizer, configure, muon_blocks

LR, DECAY, MOMENTUM = 0.02, 0.1, 0.9
NUMBERS = {"lr": LR, "decay": DECAY, "momentum": MOMENTUM}


def muon_config(num_steps: int = 5) -> OptimizerConfig:
    muon = MuonConfig(momentum=MOMENTUM, ns_steps=num_steps)
    return OptimizerConfig(kind=OptimizerKind.muon, muon=muon, lr=LR, weight_decay=DECAY, beta1=0.8, beta2=0.9)


def test_a_step_moves_singular_values_as_in_the_hand_worked_example():
    found = orthogonalise(torch.tensor([[[3.0, 0.0], [0.0, 4.0]]], dtype=torch.float64), 1)[0]
    assert found.diagonal().tolist() == pytest.approx([1.1933, 0.9765], abs=1e-4)
    assert found[0, 1] == found[1, 0] == 0.0


@pytest.mark.parametrize("shape", [(3, 4, 7), (2, 7, 4), (1, 1, 5), (2, 6, 6)])
def test_blocks_are_orthogonalised_each_by_itself(shape):
    matrices = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrices[-1] *= 1e-3
    for found, matrix in zip(orthogonalise(matrices, 5), matrices, strict=True):
        torch.testing.assert_close(found, newton_schulz(matrix, 5), rtol=0, atol=1e-10)
    # no singular value was small: all are near 1
    values = torch.linalg.svdvals(orthogonalise(torch.eye(4, dtype=torch.float64)[None], 5))
    assert bool(((values > 0.6) & (values < 1.3)).all())


def test_matrices_of_zeros_stay():
    assert not orthogonalise(torch.zeros(2, 3, 4), 5).any()


def test_every_matrix_has_the_blocks_that_it_is_described_with():
    blocks = muon_blocks(make_model(make_config()))
    layer = "model.layers.{}."
    # KDA: 2 heads of 32 from 32; MLA: 2 heads, queries 16 + 8 from 16, keys and values 16 + 16 from 16
    expected = {
        layer.format(0) + "self_attn.q_proj.weight": (2, 32, 32),
        layer.format(2) + "self_attn.v_proj.weight": (2, 32, 32),
        layer.format(0) + "self_attn.o_proj.weight": (1, 32, 64),
        layer.format(0) + "self_attn.b_proj.weight": (1, 2, 32),
        layer.format(1) + "self_attn.q_a_proj.weight": (1, 16, 32),
        layer.format(1) + "self_attn.q_b_proj.weight": (2, 24, 16),
        layer.format(3) + "self_attn.kv_b_proj.weight": (2, 32, 16),
        layer.format(3) + "self_attn.kv_a_proj_with_mqa.weight": (1, 24, 32),
        layer.format(0) + "mlp.up_proj.weight": (1, 64, 32),
        layer.format(1) + "block_sparse_moe.experts.w1": (8, 16, 16),
        layer.format(1) + "block_sparse_moe.gate.weight": (1, 8, 32),
    }
    assert {name: blocks[name] for name in expected} == expected
    direct = make_config()
    direct.q_lora_rank = None
    assert muon_blocks(make_model(direct))["model.layers.1.self_attn.q_proj.weight"] == (2, 24, 32)
    vectors = (
        "embed_tokens.weight",
        "lm_head.weight",
        "norm.weight",
        "A_log",
        "dt_bias",
        "conv1d.weight",
        "res_proj.weight",
    )
    for name, parameter in make_model(make_config()).named_parameters():
        assert (name in blocks) != name.endswith(vectors), name
        if name in blocks:
            assert torch.tensor(blocks[name]).prod() == parameter.numel(), name


def test_updates_equal_the_definition_and_adamw_for_the_rest():
    model, twin = make_model(make_config()), make_model(make_config())
    blocks = muon_blocks(model)
    optimizer = build_optimizer(model.named_parameters(), muon_config(), blocks)
    rest = [(name, p) for name, p in twin.named_parameters() if name not in blocks]
    adamw = build_optimizer(rest, muon_config(), {})
    generator = torch.Generator().manual_seed(1)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    gradients: dict[str, list[torch.Tensor]] = {name: [] for name in start}
    for _ in range(3):
        for (name, parameter), other in zip(model.named_parameters(), twin.parameters(), strict=True):
            parameter.grad = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            other.grad = parameter.grad.clone()
            gradients[name].append(parameter.grad.clone())
        optimizer.step()
        adamw.step()
    others = dict(twin.named_parameters())
    for name, parameter in model.named_parameters():
        if name not in blocks:
            assert torch.equal(parameter, others[name]), name
            continue
        wanted = moved_matrix(start[name], gradients[name], blocks[name], **NUMBERS)
        torch.testing.assert_close(
            parameter.detach(), wanted, rtol=0, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_torchs_muon_agrees_as_far_as_bf16_goes():
    # torch's computes in bf16, knows matrices only, and keeps a mean instead of a sum, which the iteration cannot see
    start = torch.randn(24, 16, generator=torch.Generator().manual_seed(0))
    mine, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    optimizer = build_optimizer([("w", mine)], muon_config(), {"w": (1, 24, 16)})
    witness = torch.optim.Muon([theirs], lr=LR, weight_decay=DECAY, momentum=MOMENTUM, adjust_lr_fn="match_rms_adamw")
    for seed in range(3):
        mine.grad = torch.randn(24, 16, generator=torch.Generator().manual_seed(10 + seed))
        theirs.grad = mine.grad.clone()
        optimizer.step()
        witness.step()
    error = (mine - theirs).detach().square().mean().sqrt() / (mine - start).detach().square().mean().sqrt()
    assert float(error) < 0.02


def exchanges(num_ranks: int) -> list[Exchange]:
    """Of ranks that are threads."""
    mail = {(a, b): queue.Queue[torch.Tensor]() for a in range(num_ranks) for b in range(num_ranks)}

    def exchange(rank: int, parts: torch.Tensor, num_sent: list[int], num_received: list[int]):
        for receiver, part in enumerate(parts.split(num_sent)):
            mail[rank, receiver].put(part.clone())

        def wait() -> torch.Tensor:
            arrived = [mail[sender, rank].get(timeout=10) for sender in range(num_ranks)]
            assert [part.numel() for part in arrived] == num_received
            return torch.cat(arrived)

        return wait

    return [partial(exchange, rank) for rank in range(num_ranks)]


@pytest.mark.parametrize("bucket_numel", [1, 12, 1000])
@pytest.mark.parametrize("ends", [(0,), (5,), (24,), (30,), (60,), (72,), (3, 23), (10, 10), (26, 70), (25, 40, 41)])
def test_where_a_flat_tensor_is_cut_changes_no_bit(ends, bucket_numel, monkeypatch):
    # two matrices, of 3 x 8 and 2 x 2 x 12, in one flat tensor that ranks share; an end at 24, 48 or 72 cuts none
    monkeypatch.setattr("segue.learner.muon.plan_updates", partial(plan_updates, bucket_numel=bucket_numel))
    blocks, spans = {"a": (1, 3, 8), "b": (2, 2, 12)}, {"a": (0, 24), "b": (24, 72)}
    flat, *gradients = torch.randn(4, 72, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    borders = (0, *ends, 72)
    num_ranks = len(borders) - 1

    def updated(rank: int, exchange: Exchange, borders: tuple[int, ...]) -> torch.Tensor:
        start, end = borders[rank : rank + 2]
        tensor = torch.nn.Parameter(flat[start:end].clone())
        optimizer = build_optimizer([("a", torch.nn.Parameter(flat[:24].view(3, 8)))], muon_config(), blocks)
        assert isinstance(optimizer, Muon)
        # as ZeRO does
        optimizer.param_groups[0]["params"] = [tensor]
        shards = [
            Shard(name=name, offset=max(first - start, 0), borders=np.clip(borders, first, last) - first)
            for name, (first, last) in spans.items()
        ]
        optimizer.place({tensor: shards}, rank, exchange)
        for gradient in gradients:
            tensor.grad = gradient[start:end].clone()
            optimizer.step()
        return tensor.detach()

    whole = updated(0, lambda parts, *_: lambda: parts, (0, 72))
    with ThreadPoolExecutor(num_ranks) as pool:
        parts = list(
            pool.map(lambda rank, exchange: updated(rank, exchange, borders), range(num_ranks), exchanges(num_ranks))
        )
    assert torch.equal(torch.cat(parts), whole)
    wanted = moved_matrix(flat[:24].view(3, 8), [g[:24].view(3, 8) for g in gradients], blocks["a"], **NUMBERS)
    torch.testing.assert_close(whole[:24].view(3, 8), wanted, rtol=0, atol=1e-12)


def test_rows_of_an_updated_parameter_take_their_factors():
    start = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain, scaled = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    factors = torch.tensor([1.0, 0.5, 0.25, 2.0], dtype=torch.float64)
    for parameter, row_factors in ((plain, {}), (scaled, {"w": factors})):
        optimizer = build_optimizer([("w", parameter)], muon_config(), {"w": (2, 2, 3)})
        parameter.grad = start.flip(0)
        optimizer.row_factors = row_factors
        optimizer.step()
    torch.testing.assert_close(scaled.detach(), plain.detach() * factors[:, None], rtol=0, atol=1e-15)


def test_configure_sets_the_numbers_of_the_next_update():
    parameter = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.float64))
    optimizer = build_optimizer([("w", parameter)], OptimizerConfig(kind=OptimizerKind.muon), {"w": (1, 2, 2)})
    configure(optimizer.param_groups, muon_config(num_steps=1), LR)
    start, parameter.grad = parameter.detach().clone(), torch.tensor([[1.0, 2.0], [3.0, 5.0]], dtype=torch.float64)
    optimizer.step()
    wanted = moved_block(start, [parameter.grad], num_steps=1, **NUMBERS)
    torch.testing.assert_close(parameter.detach(), wanted, rtol=0, atol=1e-12)
