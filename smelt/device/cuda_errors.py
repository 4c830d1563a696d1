"""Statuses of NVIDIA's driver as errors: what happened, what can still be used, what to do. For `cuda_driver`."""

from __future__ import annotations

from typing import Any

from smelt.errors import DeviceError, RunError, SmeltError

DRIVER = "install NVIDIA's driver, or run on a machine that has one"
OLDEST = 12000  # CUDA 12.0: the first driver that has every call that is made here
FIRST = 8, 0  # the first compute capability that has every instruction of the kernels
# The context is lost after these: nothing more runs on the device in this process, and arrays there are gone.
FATAL = {
    "ILLEGAL_ADDRESS": "a kernel used memory that is not its own",
    "MISALIGNED_ADDRESS": "a kernel used an address that is not aligned",
    "INVALID_ADDRESS_SPACE": "a kernel used memory of the wrong kind",
    "ILLEGAL_INSTRUCTION": "a kernel has an instruction that this GPU lacks",
    "INVALID_PC": "a kernel jumped out of its code",
    "HARDWARE_STACK_ERROR": "the stack of a kernel is damaged",
    "LAUNCH_FAILED": "a kernel failed",
    "LAUNCH_TIMEOUT": "a kernel ran longer than the system allows: this GPU serves a display",
    "ASSERT": "an assertion in a kernel failed",
    "ECC_UNCORRECTABLE": "memory of the GPU is damaged",
    "NVLINK_UNCORRECTABLE": "the link between GPUs failed",
    "CONTEXT_IS_DESTROYED": "the context of this process was destroyed",
    "DEVICE_UNAVAILABLE": "the GPU is lost, or another process has it alone",
    "SYSTEM_NOT_READY": "the GPU is not ready",
    "UNKNOWN": "the GPU failed",
}
LOST = (
    "this process cannot use the GPU any more, and arrays in its memory are lost; "
    'device="cpu" still works; start a new process for the GPU'
)
REMEDIES = {
    "LAUNCH_TIMEOUT": "smaller sizes, or a GPU without a display",
    "ECC_UNCORRECTABLE": "nvidia-smi -q -d ECC shows the damage; reset or replace the GPU",
    "NVLINK_UNCORRECTABLE": "nvidia-smi nvlink -s shows the links",
    "DEVICE_UNAVAILABLE": "nvidia-smi shows whether the device is there and who uses it",
    "SYSTEM_NOT_READY": "nvidia-smi shows the state of the device",
    "CONTEXT_IS_DESTROYED": "do not reset the device in this process",
}
# Code that the driver does not take.
CODE = {
    "UNSUPPORTED_PTX_VERSION": "the driver is older than the compiler of this code",
    "INVALID_IMAGE": "the driver does not know this code",
    "NO_BINARY_FOR_GPU": "the code is for other GPUs",
    "INVALID_PTX": "the driver does not know this code",
    "JIT_COMPILER_NOT_FOUND": "the driver has no compiler for PTX",
}
# Answers of cuInit on machines whose driver cannot be used.
SETUP = {
    "NO_DEVICE": f"the NVIDIA driver found no device (NO_DEVICE): {DRIVER}; CUDA_VISIBLE_DEVICES may hide them",
    "SYSTEM_DRIVER_MISMATCH": "the NVIDIA driver and its library have different versions: restart the machine, "
    "or install the driver again",
    "COMPAT_NOT_SUPPORTED_ON_DEVICE": "the forward-compatibility library does not support this GPU: update the driver",
    "INSUFFICIENT_DRIVER": "the NVIDIA driver is too old: update it",
}


def short_name(status: Any) -> str:
    """CUDA_ERROR_OUT_OF_MEMORY → OUT_OF_MEMORY."""
    return str(getattr(status, "name", status)).removeprefix("CUDA_").removeprefix("ERROR_")


def explain_setup(status: Any) -> str:
    """Why the driver cannot be used, with the remedy."""
    name = short_name(status)
    return SETUP.get(name, f"the NVIDIA driver cannot be used ({name}): nvidia-smi shows its state")


def explain_version(version: int, compiler: int | None = None) -> str | None:
    """Why a driver is too old, with the remedy; None where it is not. `compiler`: the major version of NVRTC."""
    text = f"CUDA {version // 1000}.{version % 1000 // 10}"
    if version < OLDEST:
        return f"the NVIDIA driver is too old: it supports {text}, smelt needs CUDA {OLDEST // 1000}: update the driver"
    if compiler is not None and version // 1000 < compiler:
        return (
            f"the NVIDIA driver supports {text}, NVRTC makes code for CUDA {compiler}: "
            f'update the driver, or pip install "nvidia-cuda-nvrtc<{version // 1000 + 1}"'
        )
    return None


def explain_capability(here: tuple[int, int]) -> str | None:
    """Why a GPU is too old, with the remedy; None where it is not."""
    if here >= FIRST:
        return None
    chip, first = ("sm_{}{}".format(*each) for each in (here, FIRST))
    return f'the GPU is an {chip}, smelt\'s kernels need {first} or later: XLA runs on it (pip install "smelt[gpu]")'


def explain(name: str, what: str) -> SmeltError:
    """The error for a status that is no success. `what`: the operation that failed."""
    if name == "OUT_OF_MEMORY":
        remedy = (
            "use smaller sizes, close models, or end other programs on the GPU (nvidia-smi); what is loaded works on"
        )
        return RunError("no memory left on the GPU", got=what, remedy=remedy)
    if name in FATAL:
        remedy = REMEDIES.get(name, "if a program of smelt's own kernels did it, report it")
        return DeviceError(FATAL[name], got=f"{name} in {what}", remedy=f"{LOST}; {remedy}")
    if name in CODE:
        remedy = "update the driver, or compile the model again on this machine"
        return DeviceError(CODE[name], got=f"{name} in {what}", remedy=remedy)
    remedy = "nvidia-smi shows the state of the device; what is loaded works on"
    return DeviceError(f"{what} failed on the GPU", got=name, remedy=remedy)


def lost_device(how: SmeltError) -> DeviceError:
    """The error of every later use of a device that was lost."""
    return DeviceError(f"the GPU was lost before: {how.message}", got=how.got, remedy=LOST)
