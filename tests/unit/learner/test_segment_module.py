"""The flat-tensor module: what it returns, for which labels, and in which dtypes."""

import pytest
import torch
from learner_cases import NUM_BINS, make_batch, make_config, make_critic, make_model
from torch.utils._python_dispatch import TorchDispatchMode

from segue.learner.batch import TokenBatch
from segue.learner.carry import CarriedStates
from segue.learner.schedule import MicroStep, Segment
from segue.learner.segment_module import SegmentModule, state_layout, unpack_outputs

STEP = MicroStep(segments=(Segment(trajectory=0, start=0, end=70), Segment(trajectory=1, start=0, end=40)))


def run(model, batch, *, count_routes=True, measure_logits=False, critic=None):
    inputs = batch.inputs(STEP)
    states = CarriedStates(state_layout(model), {})
    state = states.flat(STEP.segments, states.gather(STEP.segments))
    tensors = (inputs.token_ids, inputs.label_positions, inputs.label_ids, inputs.temperature, inputs.offsets)
    flags = (count_routes, measure_logits)
    return unpack_outputs(SegmentModule(model, NUM_BINS, critic)(*tensors, *flags, inputs.replay_ids, *state))


def test_only_labels_are_predicted_and_each_as_if_all_were():
    batch = make_batch([70, 40])
    everything = batch.is_label.copy()
    everything[:] = True
    everything[[0, 70]] = False
    cut = [slice(0, 70), slice(70, 110)]
    full = TokenBatch.pack(
        [batch.token_ids[part] for part in cut],
        [everything[part] for part in cut],
        [batch.temperature[part] for part in cut],
    )
    model = make_model(make_config())
    some, every = run(model, batch), run(model, full)
    assert len(some.logprob) == batch.num_labels < len(every.logprob) == 108
    chosen = batch.is_label[everything]
    assert torch.allclose(some.logprob, every.logprob[torch.from_numpy(chosen)], atol=1e-13)
    assert torch.allclose(some.entropy, every.entropy[torch.from_numpy(chosen)], atol=1e-13)


def test_the_state_that_returns_has_the_layout_that_went_in():
    model, batch = make_model(make_config(), torch.bfloat16), make_batch([70, 40])
    layout, outputs = state_layout(model), run(model, batch)
    consumed, borders, *tensors = outputs.state
    assert consumed.tolist() == [70, 40]
    # rows of these tokens only
    assert borders.tolist() == [0, 70, 110]
    per_sequence = tensors[: len(layout.per_sequence)]
    assert [(tuple(t.shape), t.dtype) for t in per_sequence] == [((2, *s), d) for s, d in layout.per_sequence]
    rows = tensors[len(layout.per_sequence) :]
    assert [(tuple(t.shape), t.dtype) for t in rows] == [((110, *s), d) for s, d in layout.per_token]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_values_are_of_every_token_in_at_least_fp32_and_only_with_a_critic(dtype):
    model, batch = make_model(make_config(), dtype), make_batch([70, 40])
    value = run(model, batch, critic=make_critic(model)).value
    assert (tuple(value.shape), value.dtype) == ((110,), torch.promote_types(dtype, torch.float32))
    assert tuple(run(model, batch).value.shape) == (0,)


@pytest.mark.parametrize("count_routes", [True, False])
def test_routes_are_counted_when_told(count_routes):
    model, batch = make_model(make_config()), make_batch([70, 40])
    outputs = run(model, batch, count_routes=count_routes)
    assert outputs.route_histogram.shape == (3, 8, NUM_BINS)
    assert (outputs.route_histogram.sum(2) == (110 if count_routes else 0)).all()
    assert outputs.expert_ids.shape == (110, 3, 2)
    assert outputs.value.numel() == 0


class DtypeWatch(TorchDispatchMode):
    """Dtypes of what the operations of gates, routers and probabilities return."""

    WATCHED = ("sigmoid", "reciprocal", "exp", "softmax", "log_softmax", "topk", "cumsum", "logaddexp")

    def __init__(self):
        super().__init__()
        self.seen = {}

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        name = str(function).split(".")[1].strip("_")
        first = result[0] if isinstance(result, tuple) else result
        if name in self.WATCHED and first.is_floating_point():
            self.seen.setdefault(name, set()).add(first.dtype)
        return result


def test_states_router_logits_and_gates_stay_fp32_in_a_bf16_module():
    model, batch = make_model(make_config(), torch.bfloat16), make_batch([70, 40])
    logits = []
    for layer in model.model.layers[1:]:
        layer.block_sparse_moe.gate.register_forward_hook(lambda module, args, output: logits.append(output.dtype))
    with DtypeWatch() as watch:
        outputs = run(model, batch)
        outputs.logprob.sum().backward()
    assert logits == [torch.float32] * 3
    # decays, write strengths, output gates, router scores, attention and the head
    # (on CPU the logistic function ends with a reciprocal)
    assert {"reciprocal", "exp", "topk"} <= watch.seen.keys()
    assert all(dtypes == {torch.float32} for dtypes in watch.seen.values()), watch.seen
    num_kda = len(model.config.kda_layers)
    assert {tensor.dtype for tensor in outputs.state[2 : 2 + num_kda]} == {torch.float32}
    assert outputs.logprob.dtype == torch.float32
    # while the matrices and what passes between layers are bf16
    assert model.lm_head.weight.dtype == torch.bfloat16
    assert outputs.state[-1].dtype == torch.bfloat16
