"""One decoder layer, with block attention residuals or ordinary ones.

Legend: T tokens, D model width.
"""

import torch
from torch import Tensor, nn

from segue.conf.model_config import LayerKind, ModelConfig
from segue.kernels.attn_res.op import attn_res_mix
from segue.model.layers.kda import KimiDeltaAttention
from segue.model.layers.linear import Linear, RmsNorm
from segue.model.layers.mla import GatedMla
from segue.model.layers.mlp import GatedMlp
from segue.model.layers.moe import SparseMoe
from segue.model.routing import Routing
from segue.model.state import StateStore

Bank = tuple[Tensor, ...]
"""The token embedding and the outputs of finished blocks, each [T, D]."""


def mix(sources: Bank, norm: RmsNorm, query: Linear) -> Tensor:
    """Softmax mixture of the sources under a learned query ([1, D]); [T, D]."""
    return attn_res_mix(sources, norm.weight, query.weight[0], norm.eps)


class DecoderLayer(nn.Module):
    """Attention, then MLP, each reading a mixture of what came before.

    Source:
        Attention Residuals, arXiv 2603.15031; Kimi K3 technical report, arXiv 2607.24653, sec. 2.2.
    """

    def __init__(self, config: ModelConfig, index: int, dtype: torch.dtype) -> None:
        super().__init__()
        size, eps, block_size = config.hidden_size, config.rms_norm_eps, config.attn_res_block_size
        self.has_attn_res = block_size is not None
        self.starts_block = block_size is not None and index % block_size == 0

        self.input_layernorm = RmsNorm(size, eps, dtype)
        self.self_attn: KimiDeltaAttention | GatedMla
        if config.layer_kinds[index] is LayerKind.kda:
            self.self_attn = KimiDeltaAttention(config, config.kda_layers.index(index), dtype)
        else:
            self.self_attn = GatedMla(config, config.mla_layers.index(index), dtype)
        self.post_attention_layernorm = RmsNorm(size, eps, dtype)
        self.is_moe = index >= config.first_k_dense_replace
        if self.is_moe:
            self.block_sparse_moe = SparseMoe(config, index - config.first_k_dense_replace, dtype)
        else:
            self.mlp = GatedMlp(config, config.intermediate_size, dtype)
        if self.has_attn_res:
            self.self_attention_res_norm = RmsNorm(size, eps, dtype)
            self.self_attention_res_proj = Linear(size, 1, dtype)
            self.mlp_res_norm = RmsNorm(size, eps, dtype)
            self.mlp_res_proj = Linear(size, 1, dtype)

    def forward(self, partial: Tensor, bank: Bank, store: StateStore, routing: Routing) -> tuple[Tensor, Bank]:
        """Add this layer's two outputs to the running sum of its block.

        Args:
            partial: sum of the outputs since the block began, or with ordinary residuals since the embedding, [T, D].
            bank: earlier blocks; grows by `partial` where a block starts; empty with ordinary residuals.
        Returns:
            The sum and the bank after this layer.
        """
        if not self.has_attn_res:
            partial = partial + self.self_attn(self.input_layernorm(partial), store)
            return partial + self._feed_forward(self.post_attention_layernorm(partial), store, routing), bank

        mixed = partial
        if bank:
            mixed = mix((*bank, partial), self.self_attention_res_norm, self.self_attention_res_proj)
        attended = self.self_attn(self.input_layernorm(mixed), store)
        if self.starts_block:
            bank, partial = (*bank, partial), attended
        else:
            partial = partial + attended
        mixed = mix((*bank, partial), self.mlp_res_norm, self.mlp_res_proj)
        return partial + self._feed_forward(self.post_attention_layernorm(mixed), store, routing), bank

    def _feed_forward(self, x: Tensor, store: StateStore, routing: Routing) -> Tensor:
        if self.is_moe:
            return self.block_sparse_moe(x, routing, incremental=store.incremental)
        return self.mlp(x, incremental=store.incremental)
