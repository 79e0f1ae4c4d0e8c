"""A KDA layer's decoding step over pooled states: from projections to what the output projection takes.

N sequences, L new tokens of each, H heads, D head width (keys and values alike), W convolution taps.
"""

import torch
from torch import Tensor

from segue.kernels.kda.op import kda_step
from segue.kernels.norm.op import gated_head_norm
from segue.kernels.short_conv.op import short_conv_step


def kda_decode(
    qkv: Tensor,
    gate_logits: Tensor,
    beta_logits: Tensor,
    output_gate: Tensor,
    taps_WC: Tensor,
    A_log_H: Tensor,
    dt_bias: Tensor,
    norm_weight_V: Tensor,
    recurrent: Tensor,
    conv: Tensor,
    slots_N: Tensor,
    *,
    lower_bound: float | None,
    eps: float,
) -> Tensor:
    """Short convolution with SiLU, the recurrence of `kda_step`, gated head norm; one token after the other.

    Shapes:
        qkv [N, L, 3*H*D], queries, keys, values side by side; gate_logits, output_gate [N, L, H*D]; beta_logits
        [N, L, H]; taps_WC [W, 3*H*D], the last tap for the current token; A_log_H [H]; dt_bias [H*D]; norm_weight_V
        [D]; recurrent [slots, H, D, D]; conv [slots, W-1, 3*H*D], oldest first; slots_N [N]. Returns [N, L, H*D].
    Args:
        qkv, gate_logits, beta_logits, output_gate: projections of the new tokens; any floating dtype.
        recurrent, conv: the pool's tensors of one layer; rows `slots_N` are changed in place. recurrent is at least
            fp32.
        slots_N: int64, distinct; on a GPU they are read there.
        lower_bound, eps: as `kda` and `gated_head_norm` take them.
    Returns:
        In the dtype of `output_gate`.
    Raises:
        ValueError: sizes disagree; on a GPU, a head width or number of taps or tokens without a kernel.
    Invariants:
        On a GPU as composed of the three operators: tests/reference/test_kda_triton.py.
    """
    N, L, width = qkv.shape
    _, H, D, _ = recurrent.shape
    expected = {
        "qkv": (qkv, (N, L, 3 * H * D)),
        "gate_logits": (gate_logits, (N, L, H * D)),
        "beta_logits": (beta_logits, (N, L, H)),
        "output_gate": (output_gate, (N, L, H * D)),
        "taps": (taps_WC, (conv.shape[1] + 1, width)),
        "A_log": (A_log_H, (H,)),
        "dt_bias": (dt_bias, (H * D,)),
        "norm_weight": (norm_weight_V, (D,)),
        "recurrent": (recurrent, (recurrent.shape[0], H, D, D)),
        "conv": (conv, (recurrent.shape[0], conv.shape[1], width)),
        "slots": (slots_N, (N,)),
    }
    for name, (tensor, shape) in expected.items():
        if tensor.shape != shape:
            raise ValueError(f"{name} must be {list(shape)}, got {list(tensor.shape)}")
    if qkv.is_cuda and lower_bound is not None and recurrent.dtype is torch.float32:
        # triton is not installed where there is no GPU that it serves
        from segue.kernels.kda.triton_decode import MAX_NEW, NUM_TAPS, triton_decode
        from segue.kernels.kda.triton_op import HEAD_WIDTHS

        if D not in HEAD_WIDTHS or len(taps_WC) != NUM_TAPS or not 1 <= L <= MAX_NEW:
            raise ValueError(
                f"on a GPU, heads must be one of {HEAD_WIDTHS} wide, with {NUM_TAPS} taps and 1 to {MAX_NEW} tokens, "
                f"got {D}, {len(taps_WC)} and {L}"
            )
        if not (recurrent.is_contiguous() and conv.is_contiguous() and taps_WC.is_contiguous()):
            raise ValueError("on a GPU, pool tensors and taps must be contiguous")
        return triton_decode(
            qkv, gate_logits, beta_logits, output_gate, taps_WC, A_log_H, dt_bias, norm_weight_V, recurrent, conv,
            slots_N, lower_bound=lower_bound, eps=eps,
        )  # fmt: skip
    state, window = recurrent.index_select(0, slots_N), conv.index_select(0, slots_N)
    outputs = []
    for i in range(L):
        x, window = short_conv_step(qkv[:, i], taps_WC.T, window)
        q, k, v = x.view(N, 3, H, D).unbind(1)
        gates = (gate_logits[:, i].view(N, H, D), beta_logits[:, i], A_log_H, dt_bias)
        o, state = kda_step(q, k, v, *gates, state, lower_bound=lower_bound)
        outputs.append(gated_head_norm(o, output_gate[:, i], norm_weight_V, eps))
    recurrent.index_copy_(0, slots_N, state)
    conv.index_copy_(0, slots_N, window)
    return torch.stack(outputs, 1)
