"""The public names as editors and type checkers see them; __init__.py imports each on first access."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, SupportsFloat, TypedDict, Unpack, overload

from numpy.random import Generator
from torch import Tensor
from torch.nn import Module

from .analysis import by_kind as by_kind
from .analysis import overlaps as overlaps
from .analysis import plot_mask as plot_mask
from .analysis import plot_masks as plot_masks
from .calibration import calibration_error as calibration_error
from .checkpoints.pairs import read_pair as read_pair
from .curves import curve as curve
from .curves import plot_curve as plot_curve
from .grafting.mask import GraftMask as GraftMask
from .grafting.mask_files import load_mask as load_mask
from .grafting.region import Parameters
from .grafting.region import Region as Region
from .grafting.scores import mask_of as mask_of
from .localizers.localizer import Localizer
from .localizers.registry import Rank
from .localizers.registry import methods as methods
from .localizers.registry import register as register
from .losses import fisher as fisher
from .modules.grafts import graft as graft
from .modules.grafts import grafted as grafted
from .modules.masked import masked_optimizer as masked_optimizer
from .modules.pairs import BaseOrPair
from .modules.swapping import active as active
from .modules.targets import Model
from .patches.exact import diff as diff
from .patches.mixed import mixed as mixed
from .patches.patch import Patch as Patch
from .support.errors import DataError as DataError
from .support.errors import GraftError as GraftError
from .support.errors import MaskError as MaskError
from .support.errors import ModelError as ModelError
from .support.errors import ParamsError as ParamsError
from .support.errors import StorageError as StorageError
from .support.errors import TrainingError as TrainingError

__version__: str

class _Settings(TypedDict, total=False):
    """Settings of single methods; `methods()` says of which."""

    attenuation: float
    base_share: float
    batch_size: int
    draws: int
    eval_steps: int
    examples: int
    l1: float
    l1_of: Literal["values", "distances"]
    learning_rate: float
    mode: Literal["expected", "sampled", "empirical", "sampled_logit", "label_logit"]
    offset: float
    path_points: list[float]
    rate_kind: Literal["relative", "absolute", "summed"]
    rounds: int
    rule: Literal["top_k", "threshold"]
    select: Literal["last", "authors"]
    sign: Literal["signed", "magnitude"]
    steps: int

class _Options(_Settings, total=False):
    """What `localize` takes beside the models and sizes."""

    method: str | Localizer | Rank
    loss: Callable[..., Tensor] | None
    batches: Iterable[Any] | None
    dev: Callable[[Any], SupportsFloat] | None
    parameters: Parameters
    heads: Parameters
    seed: int | Generator
    progress: bool | str

@overload
def localize(
    base: BaseOrPair,
    tuned: Module | Mapping[str, Tensor] | None = None,
    *,
    sparsity: float,
    **options: Unpack[_Options],
) -> GraftMask: ...
@overload
def localize(
    base: BaseOrPair,
    tuned: Module | Mapping[str, Tensor] | None = None,
    *,
    sparsity: Iterable[float],
    **options: Unpack[_Options],
) -> dict[float, GraftMask]: ...

_How = Literal[
    "mean",
    "sum",
    "sequence",
    "largest",
    "average",
    "arithmetic",
    "ties",
    "dare",
    "dare_ties",
    "della",
    "della_linear",
    "breadcrumbs",
    "breadcrumbs_ties",
    "consensus",
]

class _Merging(TypedDict, total=False):
    """What `merge` takes beside the tasks and the way."""

    alpha: float
    weights: Mapping[str, float] | None
    share: float | Mapping[str, float] | None
    per: Literal["region", "tensor"] | None
    strictness: float
    seed: int
    gamma: float
    epsilon: float
    rescale: bool
    normalize: bool | None

@overload
def merge(
    base: Model, tasks: Mapping[str, Any], how: _How = "mean", *, to: None = None, **options: Unpack[_Merging]
) -> Model: ...
@overload
def merge(
    base: str | Path, tasks: Mapping[str, Any], how: _How = "mean", *, to: str | Path, **options: Unpack[_Merging]
) -> Path: ...
