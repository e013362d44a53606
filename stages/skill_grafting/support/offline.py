"""Whether the Hugging Face hub answers: one short request, since its libraries retry for minutes where there is no network."""

import os
import sys
import threading
import urllib.error
import urllib.request

SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")


def endpoint() -> str:
    """The hub's address, or that of a mirror in HF_ENDPOINT."""
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def hub_answers(timeout_s: float = 4.0) -> bool:
    """True if the hub answers in time; if not, or if a switch says so, its libraries use their caches alone from here on."""
    answered = threading.Event()
    if not any(os.environ.get(switch, "").upper() in ("1", "ON", "YES", "TRUE") for switch in SWITCHES):
        # in a thread, since the time limit of a request doesn't cover looking up the host's name
        request = threading.Thread(target=_ask, args=(answered, timeout_s), daemon=True)
        request.start()
        request.join(timeout_s)
    if not answered.is_set():
        _go_offline()
    return answered.is_set()


def _ask(answered: threading.Event, timeout_s: float) -> None:
    try:
        urllib.request.urlopen(urllib.request.Request(endpoint(), method="HEAD"), timeout=timeout_s).close()
    except urllib.error.HTTPError as answer:
        if answer.code >= 500:  # a gateway's excuse; the hub itself may refuse this address, and has answered
            return
    except (OSError, ValueError):
        return
    answered.set()


def _go_offline() -> None:
    for switch in SWITCHES:
        os.environ[switch] = "1"
    # a library reads its switch when it is imported; one that was imported before gets it here
    for name in ("huggingface_hub.constants", "datasets.config"):
        if name in sys.modules:
            sys.modules[name].HF_HUB_OFFLINE = True
