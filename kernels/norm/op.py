"""RMSNorm and the gated head-wise RMSNorm at the end of a KDA layer."""

from segue.kernels.norm.naive import naive_gated_head_norm as gated_head_norm
from segue.kernels.norm.naive import naive_rms_norm as rms_norm

__all__ = ["gated_head_norm", "rms_norm"]
