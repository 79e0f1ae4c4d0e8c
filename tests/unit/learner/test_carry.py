"""States between segments: what takes gradients, and in which dtype."""

import torch

from segue.learner.carry import CarriedStates
from segue.learner.schedule import Segment
from segue.learner.segment_module import StateLayout, TensorLayout

BF16 = torch.bfloat16
LAYOUT = StateLayout(
    per_sequence=(TensorLayout((2, 3), torch.float32), TensorLayout((4,), BF16)),
    per_token=(TensorLayout((5,), BF16),),
    device=torch.device("cpu"),
)


def test_carried_rows_take_gradients_unrounded():
    """Each of many later segments adds to them: rounded one by one, the sum would lose what is small."""
    states = CarriedStates(LAYOUT, {0: 8})
    rows = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).to(BF16)
    first = Segment(trajectory=0, start=0, end=6)
    states.store(
        [first], (torch.tensor([6]), torch.tensor([0, 6]), torch.ones(1, 2, 3), torch.ones(1, 4).to(BF16), rows)
    )
    second = Segment(trajectory=0, start=6, end=8)
    state = states.leaves(states.flat([second], states.gather([second])))
    starts, borders, recurrent, conv, leaf = state
    assert (starts.tolist(), borders.tolist()) == ([6], [0, 6])
    assert [x.dtype for x in (recurrent, conv, leaf)] == [torch.float32, BF16, torch.float32]
    assert torch.equal(leaf.to(BF16), rows)
    grad = torch.full_like(leaf, 1.0 + 2.0**-12)
    ((leaf * grad).sum() + recurrent.sum() + conv.sum()).backward()
    states.hand_back([second], state)
    after = (torch.tensor([6]), torch.tensor([0, 6]), recurrent, conv, rows)
    assert torch.equal(states.arrived([first], after)[-1][1], grad)
