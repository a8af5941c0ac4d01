"""The `kvrewind` command: finds the command, and turns errors into a sentence and a status.

Statuses: 0 nothing found, 1 a finding or a culprit, 2 bad input or usage, 3 a replay diverged,
4 incomplete or unstable, 130 interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts import App

INTERRUPTED = 130

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
    """Every command. What they need is loaded here and not before: see `_loading`."""
    from cyclopts import App

    from .commands import (
        bisect,
        bundle,
        check,
        demo,
        doctor,
        export,
        faults,
        files,
        info,
        merge,
        open,
        perplexity,
        record,
        redact,
        replay,
        runs,
        simulate,
        tail,
    )

    app = App(name="kvrewind", help=HELP, help_format="markdown", version=_version)
    app.suppress_keyboard_interrupt = False
    app.help_flags = ("--help", "-h")
    app.command(demo.demo)
    app.command(record.record)
    app.command(check.check)
    app.command(replay.replay)
    app.command(bisect.bisect)
    app.command(open.open_trace, name="open")
    app.command(files.import_trace, name="import")
    app.command(export.export_trace, name="export")
    app.command(redact.redact)
    app.command(bundle.bundle)
    app.command(info.info)
    app.command(runs.runs)
    app.command(merge.merge)
    app.command(tail.tail)
    app.command(perplexity.perplexity)
    app.command(simulate.simulate)
    app.command(faults.faults)
    app.command(doctor.doctor)
    return app


def _version() -> str:
    return version("kvrewind")


def run(arguments: Sequence[str]) -> int:
    """Run one command; the exit status."""
    with _loading():
        from cyclopts import CycloptsError

        from ..recorder.errors import KvrewindError
        from .console import out, say

        app = build_app()
    try:
        status = app(
            [_spelled_out(a) for a in arguments],
            console=out(),
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
        sys.stdout.flush()
    except CycloptsError as error:
        say(f"kvrewind: {str(error).strip()} See `kvrewind --help`.")
        return 2
    except KvrewindError as error:
        say(f"kvrewind: {error}")
        return error.exit_status
    except KeyboardInterrupt:
        say("kvrewind: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status if isinstance(status, int) else 0


@contextmanager
def _loading() -> Iterator[None]:
    """Modules load for a second; an interruption then ends the process, with nothing to undo.

    As an exception it would come out of some module's inside, at times as another exception.
    """
    theirs = signal.getsignal(signal.SIGINT)
    ours = threading.current_thread() is threading.main_thread()
    if not ours or theirs is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, theirs)


def _spelled_out(argument: str) -> str:
    """`--verify` alone means `--verify=events`, `--redact` alone `--redact=tokens`."""
    return {"--verify": "--verify=events", "--redact": "--redact=tokens"}.get(argument, argument)


def main() -> None:
    sys.exit(run(sys.argv[1:]))
