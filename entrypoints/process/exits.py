"""How a process ends: the exit codes, and one sentence for what its operator can change."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from antiphon.domain.errors import ModelsFailed, SettingsError, StoreError

EXIT_WRONG_USE = 2
EXIT_MODELS_FAILED = 3
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells expect

HANGUP: tuple[signal.Signals, ...] = ()
"""What a terminal sends when it closes, unless nohup, or the operator, has let it be ignored."""
if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
    HANGUP = (signal.SIGHUP,)

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, *HANGUP)
"""What stops a server in order."""


@contextmanager
def ending_with_a_sentence() -> Iterator[None]:
    """End the process if an error of the tree leaves the block: print it, without a traceback."""
    try:
        yield
    except (SettingsError, StoreError) as error:
        end(str(error))
    except ModelsFailed as error:
        end(str(error), EXIT_MODELS_FAILED)


def end(sentence: str, exit_code: int = EXIT_WRONG_USE) -> NoReturn:
    """Print the sentence to standard error, and end the process."""
    print(f"antiphon: {sentence}", file=sys.stderr)  # noqa: T201
    sys.exit(exit_code)
