"""The tokenizer of a stored model, for reports that count tokens: the library tokenizers alone, as importing torch takes seconds."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from skill_grafting.support.io import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"


def stored_tokenizer(folder: Path) -> "Tokens | PreTrainedTokenizerBase":
    """The tokenizer of a folder that the stage `model` wrote; one that is written in Python alone is transformers' own."""
    if (folder / FILE).is_file():
        return Tokens(folder)
    from skill_grafting.models.loading import load_tokenizer

    return load_tokenizer(folder)


class Tokens:
    """Called like a tokenizer of transformers, it gives the same token ids and offsets of one text or pair of texts."""

    is_fast = True

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self.backend = Tokenizer.from_file(str(folder / FILE))
        self.backend.no_padding()
        mask = read_json(folder / SETTINGS).get("mask_token")
        self.mask_token: str | None = mask.get("content") if isinstance(mask, dict) else mask
        self.mask_token_id = self.backend.token_to_id(self.mask_token) if self.mask_token else None

    def __call__(
        self,
        text: str,
        pair: str | None = None,
        *,
        add_special_tokens: bool = True,
        max_length: int = 0,
        **options: bool,
    ) -> dict[str, Any]:
        """Token ids, of at most `max_length` if `truncation` is asked for, and the place of each in the text."""
        if options.get("truncation"):
            self.backend.enable_truncation(max_length)
        else:
            self.backend.no_truncation()
        found = self.backend.encode(text, pair, add_special_tokens=add_special_tokens)
        return {"input_ids": found.ids, "offset_mapping": found.offsets}
