"""How methods are called in tables and figures."""

TITLES = {
    "full": "full fine-tuning",
    "linear": "linearised",
    "attention": "attention only",
    "ties": "TIES (of full)",
    "dare": "DARE (of full)",
    "lota": "LoTA (top movement)",
    "talos": "TaLoS",
    "random": "random mask",
    "graft": "graft",
}


def title(method: str) -> str:
    """A method's name for people; other localizers are called by their own."""
    return TITLES.get(method, method.replace("_", " "))
