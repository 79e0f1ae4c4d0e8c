"""Rows added to a table; on a GPU, where there is one, with the same bits each time."""

import pytest
import torch

from segue.kernels.common.rows import add_rows

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
def test_rows_are_added_where_their_index_says_in_the_same_order_each_time(device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    # hundreds of rows for each row of the table
    index_M = torch.randint(5, (2000,), generator=generator)
    rows_MD = torch.randn(2000, 7, generator=generator) * torch.logspace(-3, 3, 2000)[:, None]
    table_ND = torch.randn(6, 7, generator=generator)
    truth_ND = table_ND.double()
    for index, row_D in zip(index_M.tolist(), rows_MD.double(), strict=True):
        truth_ND[index] += row_D

    def sums() -> torch.Tensor:
        return add_rows(table_ND.clone().to(device), index_M.to(device), rows_MD.to(device)).cpu()

    first_ND = sums()
    assert torch.allclose(first_ND.double(), truth_ND, rtol=1e-5, atol=1e-2)
    # nobody's row stays as it is
    assert torch.equal(first_ND[5], table_ND[5])
    assert all(torch.equal(sums(), first_ND) for _ in range(3))
