"""Names of all localizers, so that settings can be checked without loading torch; a test compares LOCALIZERS."""

NAMES = (
    "movement",
    "magnitude",
    "random",
    "bias",
    "fish",
    "layerwise",
    "tensorwise",
    "attribution",
    "grown",
    "learned",
    "stitch",
    "attribution_learned",
    "talos",
    "lota",
)
