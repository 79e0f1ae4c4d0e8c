"""The critic: what is still to be earned, read from the final hidden state.

Legend: T tokens, D model width.
"""

import torch
from torch import Tensor, nn


class ValueHead(nn.Module):
    """One linear unit in at least float32.

    It starts at zero, so that a fresh critic says nothing: advantages begin as plain returns, and the model below gets
    no gradient through it before it has learnt something.
    """

    def __init__(self, hidden_size: int, dtype: torch.dtype) -> None:
        """`dtype`: of the model; a narrower one than float32 is widened."""
        super().__init__()
        wide = torch.promote_types(dtype, torch.float32)
        self.weight = nn.Parameter(torch.zeros(hidden_size, dtype=wide))
        self.bias = nn.Parameter(torch.zeros(1, dtype=wide))

    def forward(self, hidden_TD: Tensor) -> Tensor:
        """Hidden states after the final norm to the value of having read each token, [T] in reward units."""
        return hidden_TD.to(self.weight.dtype) @ self.weight + self.bias
