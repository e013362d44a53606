"""The public names as editors and type checkers see them; __init__.py imports each on first access."""

from .api import fisher as fisher
from .api import localize as localize
from .curves import curve as curve
from .curves import plot_curve as plot_curve
from .errors import GraftError as GraftError
from .grafting.mask import GraftMask as GraftMask
from .grafting.mask_reading import load_mask as load_mask
from .grafting.modules import graft as graft
from .grafting.modules import grafted as grafted
from .localizers.known import methods as methods
from .localizers.known import register as register
from .merging import merge as merge
from .metrics.calibration import calibration_error as calibration_error
from .models.stored_pairs import read_pair as read_pair
from .patches.patch import Patch as Patch
from .training.masked import masked_optimizer as masked_optimizer

__version__: str
