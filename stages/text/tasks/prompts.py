"""Prompts: how a language model is asked for a label."""

import string
from collections.abc import Callable
from itertools import product

from pydantic import field_validator

from skill_grafting.support.fields import Section

SENTENCES = ("sentence1", "sentence2")
# what a template may do to a text, as {sentence1:cut}; LM-BFF's prompts of pairs need both
TEXT_FORMS: dict[str, Callable[[str], str]] = {
    "": str,
    "cut": lambda text: text[:-1],
    "lower": lambda text: text[:1].lower() + text[1:],
}


class Prompt(Section):
    """A template with one {mask}, and the word each label is read off as.

    Of a text `{sentence1:cut}` leaves out the last character, and `{sentence1:lower}` starts it in lower case.
    """

    template: str
    verbalizer: dict[str, str]

    @field_validator("template")
    @classmethod
    def _check_template(cls, template: str) -> str:
        try:
            parts = [part for part in string.Formatter().parse(template) if part[1] is not None]
        except ValueError as error:
            raise ValueError(f"a template such as '{{sentence1}} It was {{mask}}.': {error}") from None
        known = {("mask", ""), *product(SENTENCES, TEXT_FORMS)}
        fields = [name for _, name, form, conversion in parts if (name, form) in known and not conversion]
        if fields.count("mask") != 1 or len(fields) < len(parts):
            raise ValueError("a template with {mask} once, and otherwise only {sentence1} and {sentence2}")
        if {*fields} == {"mask"}:
            raise ValueError("a template with {sentence1} or {sentence2}, or every row would be the same")
        return template

    @field_validator("verbalizer")
    @classmethod
    def _check_words(cls, verbalizer: dict[str, str]) -> dict[str, str]:
        if len({*verbalizer.values()}) < len(verbalizer):
            words = ", ".join(verbalizer.values())
            raise ValueError(f"a verbalizer with a different word for each label, not {words}")
        for word in verbalizer.values():
            if not word or word != word.strip():
                raise ValueError(f"a verbalizer of words, none empty or with a space around it, not {word!r}")
        return verbalizer
