"""Runs a command: parses its command line, turns errors and signals into one line on stderr and an exit status."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from onnx2nn.commands.options import fetch_model, keep_models
from onnx2nn.commands.statuses import INTERRUPTED, UNREAD, UNUSABLE
from onnx2nn.errors import Onnx2nnError, UnsupportedModelError, shown, shown_name
from onnx2nn.ground.extras import require
from onnx2nn.ground.terminal import Terminal

EXIT_STATUS = "exit status: 0 outputs agree, 1 they differ or the check failed, 2 the input or an option cannot be used"


_MOST_OPERATORS = 20
"""Operators that a line lists."""


class Parser(argparse.ArgumentParser):
    """A parser that reports a wrong command line in one line."""

    def __init__(self, **options: Any):
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parses a command line; what is left over is an error here, so that a subcommand names itself."""
        parsed, rest = super().parse_known_args(args, namespace)
        if rest:
            options = [name for action in self._actions for name in action.option_strings]
            near = [found for word in rest for found in difflib.get_close_matches(word.partition("=")[0], options, 1)]
            self.error(f"unrecognized arguments: {' '.join(rest)}" + f"; is it {' '.join(near)}?" * bool(near))
        return parsed, rest

    def error(self, message: str) -> NoReturn:
        """Prints the error and exits."""
        self.exit(UNUSABLE, f"{self.prog}: error: {shown(message)} (see {self.prog} --help)\n")


class _Terminated(BaseException):
    """SIGTERM arrived; raised so that temporary files are deleted and subprocesses ended."""


def run(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Runs the command that the parser's `command` default names.

    Args:
        parser: the parser; the parsed arguments hold `command` and `debug`.
        argv: the command line without the program's name; `sys.argv` if None.

    Returns:
        The exit status.
    """
    _complete(parser)
    arguments = parser.parse_args(argv)
    try:
        with _quiet(arguments.debug):
            keep_models(arguments)
            fetch_model(arguments)
            status: int = arguments.command(arguments, Terminal())
            sys.stdout.flush()
            return status
    except KeyboardInterrupt:
        return _fail(parser, "interrupted", INTERRUPTED)
    except BrokenPipeError:  # `onnx2nn ops | head`: the reader has closed the pipe, and the rest goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except (Exception, _Terminated) as error:
        if arguments.debug:
            traceback.print_exc()
        if isinstance(error, UnsupportedModelError):
            print(error)  # all problems; stderr gets a summary
        return _fail(parser, _message(error), UNUSABLE)


def _complete(parser: argparse.ArgumentParser) -> None:
    """Answers a shell that asks for completions, and ends the process then; see docs/command_line.md."""
    if "_ARGCOMPLETE" in os.environ:
        require("argcomplete", extra="cli", purpose="Completing a command line").autocomplete(parser)


def _fail(parser: argparse.ArgumentParser, message: str, status: int) -> int:
    with contextlib.suppress(OSError):  # a full disk behind a stream: the status still tells
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        print(f"{parser.prog}: error: {shown(' '.join(message.split()))}", file=sys.stderr)
    return status


def _message(error: BaseException) -> str:
    if isinstance(error, UnsupportedModelError):
        counts: Counter[str] = Counter()
        for problem in error.problems:
            name = f"{problem.domain}::{problem.operator}" if problem.domain else problem.operator
            counts[name] += len(problem.nodes)
        found = [f"{shown_name(name)} ({count})" for name, count in counts.most_common()]
        more = f" and {len(found) - _MOST_OPERATORS} more operators" * (len(found) > _MOST_OPERATORS)
        return (
            f"nodes that cannot be imported: {', '.join(found[:_MOST_OPERATORS])}{more}; reasons and advice stand above"
        )
    if isinstance(error, Onnx2nnError | _Terminated | OSError):
        return str(error)
    if isinstance(error, MemoryError):
        return "out of memory"
    return f"internal error, please report it: {type(error).__name__}: {error} (--debug shows where)"


@contextlib.contextmanager
def _quiet(debug: bool) -> Iterator[None]:
    """Keeps libraries' warnings off stderr, and turns SIGTERM into an exception."""

    def terminate(*_: Any) -> NoReturn:
        raise _Terminated("terminated")

    with warnings.catch_warnings():
        if not debug:
            warnings.simplefilter("ignore")
        if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
            yield
            return
        previous = signal.signal(signal.SIGTERM, terminate)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, previous)
