"""The device of a process: what it was given, or an error, never the other one."""

import re

import pytest
import torch

from segue.model.device import DeviceError, count_gpus, gpu_memory_bytes, gpu_names, open_device


def test_a_process_without_a_gpu_computes_on_the_cpu_whatever_it_sees() -> None:
    assert open_device("cpu") == torch.device("cpu")


def test_a_gpu_that_was_given_and_is_not_there_is_an_error() -> None:
    if torch.cuda.is_available():
        assert open_device("cuda") == torch.device("cuda")
        return
    seen = f"^this process was given a GPU, and torch {re.escape(torch.__version__)} sees none; is a driver there"
    with pytest.raises(DeviceError, match=seen):
        open_device("cuda")


def test_what_is_told_of_gpus_is_told_of_each() -> None:
    assert len(gpu_names()) == count_gpus()
    assert (gpu_memory_bytes() > 0) == (count_gpus() > 0)
