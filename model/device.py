"""The device that a process computes on: the GPU that it was given a share of, else the CPU."""

import torch


class DeviceError(RuntimeError):
    """The GPU that a process was given is not there for it."""


def count_gpus() -> int:
    """GPUs of this machine that torch can use; asks the driver without taking memory on any."""
    return torch.cuda.device_count()


def gpu_names() -> list[str]:
    """Their names."""
    return [torch.cuda.get_device_name(number) for number in range(count_gpus())]


def gpu_memory_bytes() -> int:
    """Memory of all of them."""
    return sum(torch.cuda.get_device_properties(number).total_memory for number in range(count_gpus()))


def open_device(kind: str) -> torch.device:
    """The device of this process, `cpu` or `cuda`; of several GPUs that it sees, the first.

    Never another one than was asked for.

    Raises:
        DeviceError: a GPU was asked for, and torch sees none here.
    """
    device = torch.device(kind)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            f"this process was given a GPU, and torch {torch.__version__} sees none; is a driver there that is new "
            "enough for it, and is it a torch built for CUDA?"
        )
    return device
