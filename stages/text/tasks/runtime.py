"""Device, precision, threads and randomness: what a run needs besides its settings."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from skill_grafting.support.errors import ParamsError
from skill_grafting.support.seeds import derive_seed
from stages.text.tasks.settings import RuntimeParams

Item = TypeVar("Item")
# keys that the memory-efficient attention of float32 takes at once
KEYS_AT_ONCE = 128
# padded tokens of a batch, which memory grows with, where no settings say it
BATCH_TOKENS = 512


@dataclass(frozen=True)
class Runtime:
    """Where and how the arithmetic of a model runs."""

    device: torch.device
    precision: torch.dtype
    batch_tokens: int
    gradient_checkpointing: bool = False

    def autocast(self) -> contextlib.AbstractContextManager:
        """bfloat16 arithmetic if requested; weights and losses stay float32."""
        if self.precision == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.precision)

    def choose_attention(self, tokens: int) -> None:
        """Which kernels of attention CUDA may use from here on, for rows of so many tokens and their gradients.

        That of float32 splits its keys beyond 128 tokens and adds up their gradients in any order; the plain arithmetic
        repeats itself.  It isn't chosen by a context, as gradient checkpointing runs a layer again in the backward pass.
        """
        if self.device.type == "cuda":
            torch.backends.cuda.enable_mem_efficient_sdp(self.precision != torch.float32 or tokens <= KEYS_AT_ONCE)


def start(settings: RuntimeParams) -> Runtime:
    """Prepare torch by the `runtime` section."""
    device = device_of(settings.device)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    if device.type == "cuda":  # its generator is among those that are seeded from here on
        torch.cuda.init()
    # torch seeds itself anew in each process
    seed(0)
    # cuBLAS repeats itself only with a fixed workspace, which it reads from the environment
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # as use_deterministic_algorithms(warn_only=True), which imports the compiler and takes as long as torch itself for it
    torch.set_deterministic_debug_mode("warn")
    # nothing here reads a value that it hasn't written; filling new memory with NaN costs a kernel for each new tensor
    torch.utils.deterministic.fill_uninitialized_memory = False
    return Runtime(device, getattr(torch, settings.precision), settings.batch_tokens, settings.gradient_checkpointing)


def best_runtime() -> Runtime:
    """The best device that there is, in float32, prepared as `start` does it."""
    usual = {"precision": "float32", "threads": 0, "gradient_checkpointing": False}
    return start(RuntimeParams.model_construct(device="auto", batch_tokens=BATCH_TOKENS, **usual))


def device_of(name: str) -> torch.device:
    """The device of a name.  Raises ParamsError if it isn't there."""
    available = {"cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available, "cpu": lambda: True}
    if name == "auto":
        name = next(device for device, is_there in available.items() if is_there())
    if not available[name]():
        raise ParamsError(f"runtime.device: {name!r} is not available on this machine; use 'auto' or 'cpu'")
    return torch.device(name)


def numpy_generator(*words: object) -> np.random.Generator:
    """A NumPy generator for one purpose."""
    return np.random.default_rng(derive_seed(*words))


def permuted(items: Sequence[Item], *words: object) -> list[Item]:
    """The items in a random order for one purpose; a sample has large classes first (rows/sampling.py)."""
    return [items[place] for place in numpy_generator(*words).permutation(len(items))]


def wide(loss: torch.Tensor) -> torch.Tensor:
    """A loss in float64, to be added up with others and read later; MPS has none, so there it is read."""
    loss = loss.detach()
    return (loss.cpu() if loss.device.type == "mps" else loss).double()


def seed(number: int) -> None:
    """Seed torch's global generators, on CUDA that of the run's own device."""
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(number)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(number)


@contextlib.contextmanager
def seeded_torch(*words: object) -> Iterator[None]:
    """Seed torch's global generators, which new heads and dropout draw from."""
    own = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=own):
        seed(derive_seed(*words))
        yield
