"""How a run in a database is named: an SQLAlchemy URL with `run=NAME` in its query."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from ..errors import BadInput

_SECRET = ("password", "passwd", "sslpassword", "passphrase", "token", "secret")
_DEFAULT_DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
"""Of URLs that name none. SQLAlchemy's own default differs between its versions."""


@dataclass(frozen=True, slots=True)
class RunAddress:
    """One run of a shared database, or the database where `run` is None.

    Its text never holds the password.
    """

    url: URL
    run: str | None = None

    def __str__(self) -> str:
        shown = self.url
        for key in shown.query:
            if any(word in key.lower() for word in _SECRET):
                shown = shown.update_query_dict({key: "***"})
        if self.run is not None:
            shown = shown.update_query_dict({"run": self.run})
        return shown.render_as_string(hide_password=True).replace("%2A%2A%2A", "***")

    @property
    def name(self) -> str:
        """In short, as a title."""
        return self.run or self.url.database or str(self)

    def of_run(self, name: str) -> RunAddress:
        return replace(self, run=name)


Place = Path | RunAddress
"""Of a trace: a file of its own, or a run in a database."""


def place_of(target: Place | str) -> Place:
    """What a command's argument names: the path of a file, or an address in a database.

    Raises BadInput for a URL that is none.
    """
    if isinstance(target, str) and "://" in target:
        return _address(target)
    return Path(target) if isinstance(target, str) else target


def _address(text: str) -> RunAddress:
    scheme = text.partition("://")[0]
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise BadInput(
            f"the {scheme}:// URL can't be understood; write it as in "
            "postgresql+psycopg://user@host/database?run=NAME"
        ) from None
    if "@" in (url.host or ""):
        raise BadInput(f"the {scheme}:// URL has several @: write one in a password as %40")
    run = url.query.get("run")
    if run is not None and (not isinstance(run, str) or not run):
        raise BadInput(f"{RunAddress(url)} must name one run: run=NAME")
    driver = _DEFAULT_DRIVERS.get(url.drivername, url.drivername)
    return RunAddress(url.set(drivername=driver).difference_update_query(["run"]), run)
