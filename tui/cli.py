"""The `kvrewind` command: finds the command, and turns errors into a sentence and a status.

Statuses: 0 nothing found, 1 a finding or a culprit, 2 bad input or usage, 3 a replay diverged,
4 incomplete or unstable, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from cyclopts import App, CycloptsError

from ..recorder.errors import KvrewindError
from .commands import bisect, check, demo, doctor, faults, files, info, open, record, replay
from .console import say

HELP = """A flight recorder and time-travel debugger for paged KV caches.

```
kvrewind demo                           what it does, in five acts
kvrewind record --prompts FILE --out T  record a run
kvrewind check T                        who read whose memory, and why
kvrewind bisect T                       the one decision that allowed it
kvrewind open T                         step through it
```
"""


def build_app() -> App:
    app = App(name="kvrewind", help=HELP, help_format="markdown", version=_version)
    app.help_flags = ("--help", "-h")
    app.command(demo.demo)
    app.command(record.record)
    app.command(check.check)
    app.command(replay.replay)
    app.command(bisect.bisect)
    app.command(open.open_trace, name="open")
    app.command(files.import_trace, name="import")
    app.command(files.export_trace, name="export")
    app.command(info.info)
    app.command(faults.faults)
    app.command(doctor.doctor)
    return app


def _version() -> str:
    return version("kvrewind")


def run(arguments: Sequence[str]) -> int:
    """Run one command; the exit status."""
    try:
        status = build_app()(
            [_spelled_out(a) for a in arguments],
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
    except CycloptsError as error:
        say(f"kvrewind: {str(error).strip()} See `kvrewind --help`.")
        return 2
    except KvrewindError as error:
        say(f"kvrewind: {error}")
        return error.exit_status
    except KeyboardInterrupt:
        say("kvrewind: interrupted")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status if isinstance(status, int) else 0


def _spelled_out(argument: str) -> str:
    """`--verify` alone means `--verify=events`."""
    return "--verify=events" if argument == "--verify" else argument


def main() -> None:
    sys.exit(run(sys.argv[1:]))
