"""Rows added to rows of a table, in an order that is the same in every run."""

from torch import Tensor


def add_rows(table_ND: Tensor, index_M: Tensor, rows_MD: Tensor) -> Tensor:
    """Add row m to row `index_M[m]` of the table, in place; an index may come several times.

    Args:
        table_ND: changed.
        index_M: int64.
        rows_MD: in the table's dtype.
    Returns:
        The table.
    """
    if table_ND.is_cuda:
        # there index_add_ adds in whatever order its threads come; both runs of a segment have to agree bit for bit
        return table_ND.index_put_((index_M,), rows_MD, accumulate=True)
    return table_ND.index_add_(0, index_M, rows_MD)
