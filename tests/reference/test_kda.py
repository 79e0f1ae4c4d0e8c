"""KDA in its chunk and recurrent forms against the per-token recurrence, for both decays.

Covered: values, states and gradients in fp64, fp32 and bf16; ragged packing; carried states; extreme decays; leaks
between sequences and from later tokens. Not covered: the layout alone (unit tests), GPU kernels.
"""

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from kernel_check import (
    Operator,
    assert_as_accurate_as_reference,
    assert_equals_reference,
    outputs_and_gradients,
    relative_error,
)
from tolerances import FP64_ERROR, KDA_STRONG_DECAY_ERROR, KDA_STRONG_DECAY_GRADIENT_ERROR
from torch import Tensor

from segue.kernels.kda.naive import naive_kda
from segue.kernels.kda.op import kda, kda_step

LENGTHS = [0, 1, 15, 16, 17, 63, 64, 65, 200, 0]
BOUNDS = [-5.0, None]
DECAYS = ["slow", "mixed", "fast"]
NAMES = ["q", "k", "v", "gate_logits", "beta_logits", "A_log", "dt_bias", "state"]


def make_offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)])


def make_inputs(
    lengths: list[int], *, decay: str = "mixed", H: int = 2, K: int = 16, V: int = 24, seed: int = 0
) -> list[Tensor]:
    """Random fp64 inputs in the order of NAMES. `slow` keeps memory for hundreds of tokens, so that leaks show;
    `fast` drives whole tiles to the lower bound."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    T, N = sum(lengths), len(lengths)
    inputs = [normal(T, H, K), normal(T, H, K), normal(T, H, V), normal(T, H, K), normal(T, H)]
    inputs += [0.1 * normal(H), normal(H * K), normal(N, H, V, K)]
    if decay == "slow":
        inputs[5].zero_()
        inputs[6].sub_(10).clamp_(max=-8)
    if decay == "fast":
        inputs[3] += torch.where(torch.arange(T) % 48 < 32, 30.0, -3.0)[:, None, None]
    return inputs


def packed(form: Callable[..., tuple[Tensor, Tensor]], lengths: list[int], lower_bound: float | None) -> Operator:
    """`form` as a function of the eight tensors of NAMES."""
    return lambda *inputs: form(*inputs, make_offsets(lengths), lower_bound=lower_bound)


@pytest.mark.parametrize("lower_bound", BOUNDS)
@pytest.mark.parametrize("decay", DECAYS)
def test_chunk_form_and_its_gradients_equal_the_recurrence(decay: str, lower_bound: float | None) -> None:
    inputs = make_inputs(LENGTHS, decay=decay)
    assert_equals_reference(packed(kda, LENGTHS, lower_bound), packed(naive_kda, LENGTHS, lower_bound), inputs)


@pytest.mark.parametrize("lower_bound", BOUNDS)
@pytest.mark.parametrize("part", [0, 1])
def test_chunk_gradients_pass_gradcheck(part: int, lower_bound: float | None) -> None:
    lengths = [0, 18, 2]
    inputs = [x.requires_grad_() for x in make_inputs(lengths, K=3, V=2)]
    operator = packed(kda, lengths, lower_bound)
    assert torch.autograd.gradcheck(lambda *x: operator(*x)[part], inputs, fast_mode=True)


@pytest.mark.parametrize("lower_bound", BOUNDS)
def test_gradient_through_the_final_state_alone_equals_the_recurrence_s(lower_bound: float | None) -> None:
    lengths = [33, 5]
    grads = []
    for form in (kda, naive_kda):
        inputs = [x.requires_grad_() for x in make_inputs(lengths, decay="slow")]
        # queries do not touch the state
        grads.append(torch.autograd.grad(packed(form, lengths, lower_bound)(*inputs)[1].sum(), inputs[1:]))
    for name, grad, grad_ref in zip(NAMES[1:], *grads, strict=True):
        assert relative_error(grad, grad_ref) < FP64_ERROR, name


@pytest.mark.parametrize("lower_bound", BOUNDS)
def test_steps_equal_the_recurrence_and_the_chunk_form(lower_bound: float | None) -> None:
    T, N = 37, 3
    inputs = make_inputs([T] * N, decay="slow")
    per_sequence = [x.unflatten(0, (N, T)) for x in inputs[:5]]
    state, outputs = inputs[7], []
    for t in range(T):
        o, state = kda_step(*(x[:, t] for x in per_sequence), *inputs[5:7], state, lower_bound=lower_bound)
        outputs.append(o)
    for form in (kda, naive_kda):
        o_ref, state_ref = packed(form, [T] * N, lower_bound)(*inputs)
        assert relative_error(torch.stack(outputs, 1).flatten(0, 1), o_ref) < FP64_ERROR
        assert relative_error(state, state_ref) < FP64_ERROR


@pytest.mark.parametrize("lower_bound", BOUNDS)
def test_step_and_its_gradients_equal_the_recurrence(lower_bound: float | None) -> None:
    def step(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        return kda_step(*inputs, lower_bound=lower_bound)

    reference = packed(naive_kda, [1] * 4, lower_bound)
    assert_equals_reference(step, reference, make_inputs([1] * 4))
    assert_as_accurate_as_reference(step, reference, make_inputs([1] * 4), torch.float32)


@pytest.mark.parametrize("lower_bound", BOUNDS)
def test_state_handed_over_at_any_token_gives_the_same_continuation(lower_bound: float | None) -> None:
    T = 35
    inputs = make_inputs([T], decay="slow")
    o_ref, state_ref = packed(kda, [T], lower_bound)(*inputs)
    for cut in range(T + 1):
        o_head, state = packed(kda, [cut], lower_bound)(*(x[:cut] for x in inputs[:5]), *inputs[5:])
        o_tail, state = packed(kda, [T - cut], lower_bound)(*(x[cut:] for x in inputs[:5]), *inputs[5:7], state)
        assert relative_error(torch.cat([o_head, o_tail]), o_ref) < FP64_ERROR, cut
        assert relative_error(state, state_ref) < FP64_ERROR, cut


@pytest.mark.parametrize("lower_bound", BOUNDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_editing_a_neighbour_leaves_outputs_and_gradients_bit_identical(
    dtype: torch.dtype, lower_bound: float | None
) -> None:
    lengths = [40, 70, 17]
    results = []
    for seed in (1, 2):
        inputs = [x.to(dtype) for x in make_inputs(lengths, decay="slow")]
        for x, noise in zip(inputs[:5], make_inputs(lengths, seed=seed)[:5], strict=True):
            x[40:110] = noise[40:110].to(dtype)
        inputs[7][1] *= seed
        inputs = [x.requires_grad_() for x in inputs]
        o, state = packed(kda, lengths, lower_bound)(*inputs)
        mine = torch.cat([o[:40], o[110:]])
        grads = torch.autograd.grad(mine.square().sum() + state[::2].sum(), inputs)
        assert all(g[40:110].count_nonzero() == 0 for g in grads[:5])
        assert grads[7][1].count_nonzero() == 0
        results.append([mine, state[::2], grads[7][::2], *(torch.cat([g[:40], g[110:]]) for g in grads[:5])])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("lower_bound", BOUNDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_editing_a_neighbour_leaves_a_step_bit_identical(dtype: torch.dtype, lower_bound: float | None) -> None:
    results = []
    for seed in (1, 2):
        inputs = [x.to(dtype) for x in make_inputs([1] * 5, decay="slow")]
        noise = make_inputs([1] * 5, seed=seed)
        for i in (0, 1, 2, 3, 4, 7):
            inputs[i][2] = noise[i][2].to(dtype)
        results.append(kda_step(*inputs, lower_bound=lower_bound))
    for one, two in zip(*results, strict=True):
        assert not torch.equal(one[2], two[2])
        assert torch.equal(one[[0, 1, 3, 4]], two[[0, 1, 3, 4]])


@pytest.mark.parametrize("lower_bound", BOUNDS)
@pytest.mark.parametrize("decay", DECAYS)
def test_editing_later_tokens_leaves_earlier_outputs_bit_identical(decay: str, lower_bound: float | None) -> None:
    T = 40
    inputs = [x.float() for x in make_inputs([T], decay=decay)]
    o_ref, _ = packed(kda, [T], lower_bound)(*inputs)
    for cut in (1, 7, 16, 25, 39):
        edited = [x.clone() for x in inputs]
        for x, noise in zip(edited[:5], make_inputs([T], seed=3)[:5], strict=True):
            x[cut:] = noise[cut:].float()
        o, _ = packed(kda, [T], lower_bound)(*edited)
        assert torch.equal(o[:cut], o_ref[:cut]), cut


@pytest.mark.parametrize("lower_bound", BOUNDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("decay", ["slow", "mixed"])
def test_rounding_is_at_most_twice_the_recurrence_s(decay: str, dtype: torch.dtype, lower_bound: float | None) -> None:
    lengths = [1, 64, 65, 130]

    def reference(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        o, state = packed(naive_kda, lengths, lower_bound)(*inputs)
        return o, state.to(torch.promote_types(state.dtype, torch.float32))

    inputs = make_inputs(lengths, decay=decay, K=32, V=32)
    assert_as_accurate_as_reference(packed(kda, lengths, lower_bound), reference, inputs, dtype)


@pytest.mark.parametrize(("lower_bound", "shift"), [(-5.0, 6.0), (None, 6.0), (-5.0, 200.0)])
def test_whole_tiles_near_the_strongest_decay_are_accurate_and_finite_in_fp32(
    lower_bound: float | None, shift: float
) -> None:
    lengths = [64, 33]
    inputs = [x.float() for x in make_inputs(lengths, K=32, V=32)]
    inputs[3] += shift
    results = outputs_and_gradients(packed(kda, lengths, lower_bound), inputs)
    truths = outputs_and_gradients(packed(naive_kda, lengths, lower_bound), [x.double() for x in inputs])
    for name, result, truth in zip(["o", "new state", *NAMES], results, truths, strict=True):
        assert torch.isfinite(result).all(), name
        of_decay = name in ("gate_logits", "A_log", "dt_bias")
        # at 200 the sigmoid rounds to 1 and has no gradient: every log decay is the bound itself
        if not (of_decay and shift == 200.0):
            assert relative_error(result, truth) < (
                KDA_STRONG_DECAY_GRADIENT_ERROR if of_decay else KDA_STRONG_DECAY_ERROR
            ), name


@pytest.mark.parametrize("lower_bound", BOUNDS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_grad_mode_changes_no_bit(mode: Callable[[], AbstractContextManager[None]], lower_bound: float | None) -> None:
    # lengths of no other test: the first call, which lays them out, is the one without grad
    lengths = [41, 3, 18] if mode is torch.no_grad else [42, 3, 18]
    inputs = [x.float() for x in make_inputs(lengths)]
    operator = packed(kda, lengths, lower_bound)
    with mode():
        without = operator(*inputs)
    with_grad = operator(*(x.requires_grad_() for x in inputs))
    assert all(torch.equal(a, b) for a, b in zip(with_grad, without, strict=True))
    torch.autograd.grad(with_grad[0].sum(), inputs)


def test_strided_inputs_give_the_same_bits() -> None:
    lengths = [20, 31]
    inputs = [x.float() for x in make_inputs(lengths, K=16, V=16)]
    # as they come out of one projection
    q, k, v = torch.stack(inputs[:3], 1).unbind(1)
    assert not q.is_contiguous()
    o, state = packed(kda, lengths, -5.0)(q, k, v, *inputs[3:])
    o_ref, state_ref = packed(kda, lengths, -5.0)(*inputs)
    assert torch.equal(o, o_ref)
    assert torch.equal(state, state_ref)


@pytest.mark.parametrize("lower_bound", BOUNDS)
def test_order_of_packing_changes_nothing(lower_bound: float | None) -> None:
    lengths, order = [30, 0, 100, 5], [2, 3, 0, 1]
    inputs = make_inputs(lengths)
    o, state = packed(kda, lengths, lower_bound)(*inputs)
    shuffled = [torch.cat([x.split(lengths)[n] for n in order]) for x in inputs[:5]]
    o_other, state_other = packed(kda, [lengths[n] for n in order], lower_bound)(
        *shuffled, *inputs[5:7], inputs[7][order]
    )
    assert relative_error(o_other, torch.cat([o.split(lengths)[n] for n in order])) < FP64_ERROR
    assert relative_error(state_other, state[order]) < FP64_ERROR


def test_no_tokens_keep_the_state() -> None:
    inputs = make_inputs([0, 0])
    o, state = kda(*inputs, make_offsets([0, 0]), lower_bound=-5.0)
    assert o.shape == (0, 2, 24)
    assert torch.equal(state, inputs[7])
