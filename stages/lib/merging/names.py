"""Names of the ways to make one model of several, and what each is made of; needs no heavy library.

A merged model is made of grafts, each within its mask, or of whole fine-tuned models.
"""

from stages.lib.metrics.variants import FINETUNED, GRAFTED

MEAN, SUM, SEQUENCE, LARGEST = "mean", "sum", "sequence", "largest"
# what a parameter gets that several grafts select
RULES = (MEAN, SUM, SEQUENCE, LARGEST)
STITCHES = {f"stitch_{rule}": rule for rule in RULES}
GRAFTED_ARITHMETIC, AVERAGE, ARITHMETIC, TIES, DARE = "grafted_arithmetic", "average", "arithmetic", "ties", "dare"
# method -> the single-task model that it is made of
KINDS = dict.fromkeys([*STITCHES, GRAFTED_ARITHMETIC], GRAFTED) | dict.fromkeys(
    [AVERAGE, ARITHMETIC, TIES, DARE], FINETUNED
)
NAMES = tuple(KINDS)
# these add a vector to the pretrained model, scaled by an alpha that dev chooses
TUNED = (GRAFTED_ARITHMETIC, ARITHMETIC, TIES, DARE)
# what a merged model is called beside the single-task ones
MERGED = "merged"
