"""The public names as editors and type checkers see them; __init__.py imports each on first access."""

from .api import fisher as fisher
from .api import localize as localize
from .calibration import calibration_error as calibration_error
from .checkpoints.pairs import read_pair as read_pair
from .curves import curve as curve
from .curves import plot_curve as plot_curve
from .grafting.mask import GraftMask as GraftMask
from .grafting.mask_files import load_mask as load_mask
from .grafting.region import Region as Region
from .grafting.scores import mask_of as mask_of
from .localizers.registry import methods as methods
from .localizers.registry import register as register
from .merging.merge import merge as merge
from .modules.grafts import graft as graft
from .modules.grafts import grafted as grafted
from .modules.masked import masked_optimizer as masked_optimizer
from .patches.exact import diff as diff
from .patches.mixed import mixed as mixed
from .patches.patch import Patch as Patch
from .support.errors import GraftError as GraftError

__version__: str
