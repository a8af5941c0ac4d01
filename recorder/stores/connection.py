"""Connections to the database of a URL, and what goes wrong with them, in a sentence."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, Pool, QueuePool, create_engine
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SAWarning, SQLAlchemyError

from ..errors import BadInput, MissingTrace
from .address import RunAddress

_PATIENCE: Mapping[str, int] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Of libpq, where the URL says nothing else: a server that is out of reach ends the recording in
half a minute and not, as TCP would have it, in a quarter of an hour."""

_EXTRAS: Mapping[str, str] = {"psycopg": "postgres"}


class BadStore(BadInput):
    """A database that can't be used as a store: why, and what to do next."""

    def __init__(self, address: RunAddress, why: str) -> None:
        super().__init__(f"{address} can't be used as a store: {why}")


def connected(address: RunAddress, pool: type[Pool]) -> Engine:
    """Raises BadStore where there is no such dialect, or its driver isn't installed.

    Whether the database can be reached shows with the first query.
    """
    try:
        dialect = address.url.get_dialect()()
        if dialect.name == "sqlite":
            _require_file(address)
        with warnings.catch_warnings():
            warnings.simplefilter("error", SAWarning)  # of what the URL asks for and nobody knows
            return create_engine(
                address.url,
                connect_args=_arguments(address.url),
                poolclass=pool,
                **_more_at_once(pool),
            )
    except SAWarning as warning:
        what = str(warning).partition(" and are being ignored")[0]
        raise BadStore(address, f"{what}; leave that out of the URL") from None
    except NoSuchModuleError:
        raise BadStore(
            address,
            f"SQLAlchemy knows no {address.url.drivername}; postgresql+psycopg and sqlite need "
            "nothing but kvrewind's own extras",
        ) from None
    except ModuleNotFoundError as error:
        raise BadStore(address, _needs(str(error.name))) from None
    except (ArgumentError, ImportError, TypeError) as error:
        raise BadStore(address, reason(error, address)) from None


def reason(error: Exception, address: RunAddress) -> str:
    """What the database says about an error, in one line and without a password."""
    text = str((error.orig if isinstance(error, DBAPIError) else None) or error)
    if isinstance(error, SQLAlchemyError) and not isinstance(error, DBAPIError):
        text = text.partition("(Background on")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = lines[0] if lines else type(error).__name__
    password = address.url.password
    return said.replace(str(password), "***") if password else said


def _arguments(url: URL) -> dict[str, Any]:
    if url.get_backend_name() == "postgresql":
        return {key: value for key, value in _PATIENCE.items() if key not in url.query}
    if url.get_backend_name() == "sqlite":
        return {"timeout": 30, "check_same_thread": False}
    return {}


def _more_at_once(pool: type[Pool]) -> dict[str, int]:
    """A connection for each iterator that is under way."""
    return {"max_overflow": -1} if issubclass(pool, QueuePool) else {}


def _require_file(address: RunAddress) -> None:
    database = address.url.database
    if not database or database == ":memory:":
        raise BadStore(address, "a database in memory is gone with its process; name a file")


def require_there(address: RunAddress) -> None:
    """SQLite would make an empty database of a wrong name."""
    if address.url.get_backend_name() == "sqlite" and not Path(str(address.url.database)).exists():
        raise MissingTrace(str(address))


def _needs(module: str) -> str:
    extra = _EXTRAS.get(module)
    how = f"pip install 'kvrewind[{extra}]'" if extra else f"pip install {module}"
    return f"its driver {module} is not installed; {how}"
