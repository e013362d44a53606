"""Whether the Hugging Face hub answers, asked once and quickly, before a library tries at length.

The libraries themselves retry for minutes where there is no network.
"""

import os
import sys
import threading
import urllib.error
import urllib.request

OFFLINE_SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
HUB = "https://huggingface.co"


def hub_reachable(timeout_s: float = 4.0) -> bool:
    """Give whether the hub (or the mirror in HF_ENDPOINT) answers within `timeout_s`; raises nothing.

    False too where one of the offline switches of the environment is on.
    """
    if any(os.environ.get(switch, "").upper() in ("1", "ON", "YES", "TRUE") for switch in OFFLINE_SWITCHES):
        return False
    answered = threading.Event()
    # In a thread, since the time limit of a request doesn't cover looking up the host's name.
    asking = threading.Thread(target=_ask, args=(answered, timeout_s), daemon=True)
    asking.start()
    asking.join(timeout_s)
    return answered.is_set()


def go_offline() -> None:
    """Make the Hugging Face libraries of this process, and of those it starts, use their caches alone."""
    for switch in OFFLINE_SWITCHES:
        os.environ[switch] = "1"
    # A library reads its switch when it is imported; one that was imported before is told here.
    for name in ("huggingface_hub.constants", "datasets.config"):
        if name in sys.modules:
            sys.modules[name].HF_HUB_OFFLINE = True


def _ask(answered: threading.Event, timeout_s: float) -> None:
    request = urllib.request.Request(os.environ.get("HF_ENDPOINT") or HUB, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=timeout_s).close()
    except urllib.error.HTTPError as answer:
        # The hub itself answers, if only with a refusal of this address; a 5xx is a gateway's excuse.
        if answer.code >= 500:
            return
    except (OSError, ValueError):
        return
    answered.set()
