"""Evidence that needs no log: what a request says, against what it could know."""

from __future__ import annotations

from collections.abc import Mapping


def foreign_passphrases(
    request: str, text: str, passphrases: Mapping[str, str | None]
) -> list[tuple[str, str]]:
    """(passphrase, whose) for each that occurs in the decoded, case-folded `text` of `request`
    and isn't its own. A passphrase that several requests share belongs to each of them."""
    own = passphrases.get(request)
    said = text.casefold()
    return [
        (word, owner)
        for owner, word in passphrases.items()
        if word and word != own and word.casefold() in said
    ]
