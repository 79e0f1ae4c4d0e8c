"""The model: embedding, decoder layers, final norm; the head's weight stands beside them.

Legend: T new tokens of all sequences, N sequences, D model width.
"""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from segue.conf.model_config import ModelConfig
from segue.conf.schema import Checkpointing
from segue.model.initialisation import init_weights
from segue.model.inputs import PackedInputs
from segue.model.layers.decoder import Bank, DecoderLayer, mix
from segue.model.layers.linear import Embedding, Linear, RmsNorm
from segue.model.routing import Routing
from segue.model.state import SequenceState, StateStore


class Decoder(nn.Module):
    """Everything below the head: the public name space `model.`."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.embed_tokens = Embedding(config.vocab_size, size, dtype)
        self.layers = nn.ModuleList(DecoderLayer(config, index, dtype) for index in range(config.num_hidden_layers))
        self.norm = RmsNorm(size, eps, dtype)
        self.has_attn_res = config.attn_res_block_size is not None
        if self.has_attn_res:
            self.output_attn_res_norm = RmsNorm(size, eps, dtype)
            self.output_attn_res_proj = Linear(size, 1, dtype)
        self.block_size = config.attn_res_block_size or 1

    def forward(self, token_ids: Tensor, store: StateStore, routing: Routing, checkpointing: Checkpointing) -> Tensor:
        """[T] to the hidden states after the final norm, [T, D]."""
        partial: Tensor = self.embed_tokens(token_ids)
        bank: Bank = ()
        for start in range(0, len(self.layers), self.block_size):
            if checkpointing is Checkpointing.block:
                partial, bank = checkpoint(
                    self._run_block, start, partial, bank, store, routing, use_reentrant=False, preserve_rng_state=False
                )
            else:
                partial, bank = self._run_block(start, partial, bank, store, routing)
        if self.has_attn_res:
            partial = mix((*bank, partial), self.output_attn_res_norm, self.output_attn_res_proj)
        return self.norm(partial)

    def _run_block(
        self, start: int, partial: Tensor, bank: Bank, store: StateStore, routing: Routing
    ) -> tuple[Tensor, Bank]:
        for layer in self.layers[start : start + self.block_size]:
            partial, bank = layer(partial, bank, store, routing)
        return partial, bank


class SegueModel(nn.Module):
    """A K3-style language model; its parameters and buffers carry the public names.

    Weights are empty until `init_weights` or a checkpoint fills them. Parameters that must not be rounded (decay and
    convolution parameters, KDA output norm, router bias) are at least float32 whatever `dtype` is.

    Attributes:
        checkpointing: activation checkpointing by blocks of the attention residual (by layers where there is none).
    Invariants:
        Packing, segmenting, checkpointing and decoding change no result: tests/unit/model/, tests/reference/.
    Example:
        >>> model = build_model(config, torch.float32)
        >>> model.init_weights(torch.Generator().manual_seed(0))
        >>> state = DifferentiableState.zeros(config, inputs.num_sequences, torch.float32)
        >>> hidden, state = model(inputs, state, Routing())
        >>> logits = model.lm_head(hidden)
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = config
        self.checkpointing = Checkpointing.none
        self.model = Decoder(config, dtype)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, dtype)

    def forward(self, inputs: PackedInputs, state: SequenceState, routing: Routing) -> tuple[Tensor, SequenceState]:
        """Feed new tokens to sequences that stand at `state`.

        Args:
            inputs: the tokens of all sequences, packed.
            state: where the sequences stand; its kind decides what returns (`model/state.py`, `model/pool.py`).
            routing: told whether to count and which experts to replay; holds this forward's routes afterwards.
        Returns:
            Hidden states after the final norm [T, D], which `lm_head` turns into logits, and the state after them.
        """
        store = state.open(inputs)
        hidden = self.model(inputs.token_ids, store, routing, self.checkpointing)
        return hidden, store.close()

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw every weight; the same generator gives the same weights in any dtype (before rounding)."""
        init_weights(self, self.config, generator)


def build_model(config: ModelConfig, dtype: torch.dtype, device: torch.device | str = "cpu") -> SegueModel:
    """A model with empty weights on a device; `meta` holds shapes only."""
    with torch.device(device):
        return SegueModel(config, dtype)
