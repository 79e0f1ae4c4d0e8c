"""The delta rule over tiles of 16 tokens: from decayed keys and queries to outputs and states, and back.

A tile's tokens act on the state as one affine map, S_out = M S_in + W with M [K, K]. So only one small matrix product
per chunk index is sequential; all else is flat over tiles.

B tiles, C tokens of a tile, K key width, V value width, N sequences, H heads. States are [K, V] here, as in the
equations; they are ranked as `ChunkLayout.order` says.

Source:
    Kimi K3 report, section 2.1.1, chunkwise form (UT transform); the affine map is that of its context parallelism.
"""

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from segue.kernels.kda.layout import CHUNK, ChunkLayout


class Tiles(NamedTuple):
    """What the delta rule needs of a tile; rows of padding tokens have beta 0."""

    query_in: Tensor
    """[B, C, K]: scaled queries, decayed from the tile's start: they read the entering state."""
    key_in: Tensor
    """[B, C, K]: keys, decayed from the tile's start: they erase from the entering state."""
    key_out: Tensor
    """[B, C, K]: keys, decayed to the tile's end: they write to the leaving state."""
    decay: Tensor
    """[B, K]: decay over the whole tile."""
    query_key: Tensor
    """[B, C, C]: products of query i with key j, decayed from j to i; 0 for j > i."""
    beta: Tensor
    """[B, C]: write strength."""


class Scan(NamedTuple):
    """What the backward pass keeps beside the tiles."""

    solve: Tensor
    """[B, C, C]: (I + beta * key_key)^-1 diag(beta), lower triangular: a token's net write, given that it erases what
    earlier tokens of the tile wrote."""
    erase: Tensor
    """[B, C, K]: solve @ key_in; times the entering state it is what the tile's tokens take back."""
    write: Tensor
    """[B, C, V]: solve @ value."""
    read: Tensor
    """[B, C, K]: query_in - query_key @ erase; what multiplies the entering state in the outputs."""
    transition: Tensor
    """[B, K, K]: M."""
    state_in: Tensor
    """[B, K, V]: entering states."""


def scan_forward(
    tiles: Tiles, key_key: Tensor, value: Tensor, state: Tensor, layout: ChunkLayout
) -> tuple[Tensor, Tensor, Scan]:
    """Outputs [B, C, V] and final states [N*H, K, V].

    Args:
        key_key: [B, C, C], products of key i with key j, decayed from j to i; only j < i is read.
        value: [B, C, V].
        state: [N*H, K, V], initial states.
    """
    unit = torch.eye(CHUNK, dtype=state.dtype, device=state.device).expand_as(key_key)
    mixing = key_key * tiles.beta[:, :, None]
    inverse = torch.linalg.solve_triangular(mixing, unit, upper=False, unitriangular=True)
    solve = inverse.mul_(tiles.beta[:, None])
    erase, write = solve @ tiles.key_in, solve @ value
    read = torch.baddbmm(tiles.query_in, tiles.query_key, erase, alpha=-1)
    transition = state.new_empty(*tiles.decay.shape, tiles.decay.shape[1])
    transition.baddbmm_(tiles.key_out.mT, erase, beta=0, alpha=-1)
    transition.diagonal(dim1=1, dim2=2).add_(tiles.decay)
    state_in, final = _carry(transition, tiles.key_out.mT @ write, state, layout)
    output = (tiles.query_key @ write).baddbmm_(read, state_in)
    return output, final, Scan(solve, erase, write, read, transition, state_in)


def scan_backward(
    d_output: Tensor, d_final: Tensor, tiles: Tiles, scan: Scan, layout: ChunkLayout
) -> tuple[Tiles, Tensor, Tensor, Tensor]:
    """Gradients of the tiles (in the place of beta's that of log beta), of key_key, value and the initial states.

    Args:
        d_output: [B, C, V], 0 in the rows of padding tokens.
        d_final: [N*H, K, V], gradients of the final states.
    """
    d_state_out, d_state = _carry_backward(scan.transition, scan.read.mT @ d_output, d_final, layout)
    # what a token writes beyond what the entering state already predicts
    residual = torch.baddbmm(scan.write, scan.erase, scan.state_in, alpha=-1)
    d_residual = (tiles.query_key.mT @ d_output).baddbmm_(tiles.key_out, d_state_out)
    d_key_in = (scan.solve.mT @ (d_residual @ scan.state_in.mT)).neg_()
    d_value = scan.solve.mT @ d_residual
    # a system (I + beta * key_key) x = beta * y whose y has the gradient d: that of key_key is -d x^T, and that of
    # log beta is the diagonal of d x^T over beta
    mixed = (d_key_in @ scan.erase.mT).baddbmm_(d_value, scan.write.mT)
    d_log_beta = mixed.diagonal(dim1=1, dim2=2) / tiles.beta.clamp_min(torch.finfo(mixed.dtype).tiny)
    d_key_out = residual @ d_state_out.mT
    d_tiles = Tiles(
        query_in=d_output @ scan.state_in.mT,
        key_in=d_key_in,
        key_out=d_key_out,
        decay=d_state_out.mul_(scan.state_in).sum(-1),
        query_key=(d_output @ residual.mT).tril_(),
        beta=d_log_beta,
    )
    return d_tiles, mixed.neg_().tril_(-1), d_value, d_state


def _carry(transition: Tensor, written: Tensor, state: Tensor, layout: ChunkLayout) -> tuple[Tensor, Tensor]:
    """Entering state of every tile [B, K, V] and final states, from initial states [N*H, K, V]."""
    state_in, final = torch.empty_like(written), state.clone()
    num_first = layout.steps[0][1]
    state_in[:num_first] = state[:num_first]
    for (first, count), (following, num_going_on) in itertools.pairwise([*layout.steps, (0, 0)]):
        going_on = slice(first, first + num_going_on)
        ending = slice(first + num_going_on, first + count)
        if num_going_on > 0:
            out = state_in[following : following + num_going_on]
            torch.baddbmm(written[going_on], transition[going_on], state_in[going_on], out=out)
        if num_going_on < count:
            out = final[num_going_on:count]
            torch.baddbmm(written[ending], transition[ending], state_in[ending], out=out)
    return state_in, final


def _carry_backward(transition: Tensor, d_read: Tensor, d_final: Tensor, layout: ChunkLayout) -> tuple[Tensor, Tensor]:
    """Gradients of every tile's leaving state and of the initial states.

    Args:
        d_read: [B, K, V], what reaches the entering states from their own tile's outputs.
        d_final: [N*H, K, V], gradients of the final states.
    """
    d_state_out, d_state = torch.empty_like(d_read), d_final.clone()
    reverse = [*reversed(layout.steps)]
    num_going_on = 0
    for (first, count), (before, _) in itertools.pairwise([*reverse, (0, 0)]):
        d_state_out[first + num_going_on : first + count] = d_final[num_going_on:count]
        tiles = slice(first, first + count)
        out = d_state_out[before : before + count] if first > 0 else d_state[:count]
        torch.baddbmm(d_read[tiles], transition[tiles].mT, d_state_out[tiles], out=out)
        num_going_on = count
    return d_state_out, d_state
