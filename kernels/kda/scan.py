"""The delta rule over tiles of 16 tokens: from decayed keys and queries to outputs and states, and back.

A tile's tokens act on the state as one affine map, S_out = M S_in + W with M [K, K]. So only one small matrix product
per chunk index is sequential (`carry`); all else is flat over tiles and may be done a block of tiles at a time:

    solve_tiles -> affine_map, readout -> carry -> outputs = own + read @ S_in

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
    value: Tensor
    """[B, C, V]."""
    beta: Tensor
    """[B, C]: write strength."""


class Solved(NamedTuple):
    """A tile's tokens acting on each other: each one's net write, given that it erases what earlier ones wrote."""

    query_key: Tensor
    """[B, C, C]: products of query i with key j, decayed from j to i; 0 for j > i."""
    solve: Tensor
    """[B, C, C]: (I + beta * key_key)^-1 diag(beta), lower triangular."""
    erase: Tensor
    """[B, C, K]: solve @ key_in; times the entering state it is what the tile's tokens take back."""
    write: Tensor
    """[B, C, V]: solve @ value."""


def solve_keys(key_key: Tensor, beta: Tensor, *, out: Tensor) -> Tensor:
    """Fill `Solved.solve` from the decayed products of key i with key j [B, C, C], of which only j < i is read."""
    unit = torch.eye(CHUNK, dtype=beta.dtype, device=beta.device).expand_as(key_key)
    mixing = key_key * beta[:, :, None]
    inverse = torch.linalg.solve_triangular(mixing, unit, upper=False, unitriangular=True)
    return torch.mul(inverse, beta[:, None], out=out)


def affine_map(tiles: Tiles, solved: Solved, *, transition: Tensor, written: Tensor) -> None:
    """Fill M [B, K, K] and W [B, K, V]."""
    transition.baddbmm_(tiles.key_out.mT, solved.erase, beta=0, alpha=-1)
    transition.diagonal(dim1=1, dim2=2).add_(tiles.decay)
    torch.bmm(tiles.key_out.mT, solved.write, out=written)


def readout(tiles: Tiles, solved: Solved, *, read: Tensor, own: Tensor) -> None:
    """Fill what multiplies the entering state in the outputs [B, C, K], and what the tile itself adds [B, C, V]."""
    torch.baddbmm(tiles.query_in, solved.query_key, solved.erase, alpha=-1, out=read)
    torch.bmm(solved.query_key, solved.write, out=own)


def carry(transition: Tensor, written: Tensor, state: Tensor, layout: ChunkLayout) -> tuple[Tensor, Tensor]:
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


def carry_backward(transition: Tensor, d_read: Tensor, d_final: Tensor, layout: ChunkLayout) -> tuple[Tensor, Tensor]:
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


def tiles_backward(
    d_output: Tensor, d_state_out: Tensor, state_in: Tensor, tiles: Tiles, solved: Solved
) -> tuple[Tiles, Tensor, Tensor]:
    """Gradients of the tiles (in the place of beta's that of log beta), of `query_key` and of `key_key`.

    Args:
        d_output: [B, C, V], 0 in the rows of padding tokens.
    """
    # what a token writes beyond what the entering state already predicts
    residual = torch.baddbmm(solved.write, solved.erase, state_in, alpha=-1)
    d_residual = (solved.query_key.mT @ d_output).baddbmm_(tiles.key_out, d_state_out)
    d_key_in = (solved.solve.mT @ (d_residual @ state_in.mT)).neg_()
    d_value = solved.solve.mT @ d_residual
    # a system (I + beta * key_key) x = beta * y whose y has the gradient d: that of key_key is -d x^T, and that of
    # log beta is the diagonal of d x^T over beta
    mixed = (d_key_in @ solved.erase.mT).baddbmm_(d_value, solved.write.mT)
    d_log_beta = mixed.diagonal(dim1=1, dim2=2) / tiles.beta.clamp_min(torch.finfo(mixed.dtype).tiny)
    d_tiles = Tiles(
        query_in=d_output @ state_in.mT,
        key_in=d_key_in,
        key_out=residual @ d_state_out.mT,
        decay=(state_in * d_state_out).sum(-1),
        value=d_value,
        beta=d_log_beta,
    )
    return d_tiles, (d_output @ residual.mT).tril_(), mixed.neg_().tril_(-1)
