"""Writes docs/command_line.md from the parsers of the commands.

python scripts/command_line.py          # after an option has changed
python scripts/command_line.py --check  # changes nothing, fails where something would change
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from onnx2nn.commands import main as onnx2nn_command
from onnx2nn.commands import onnx2pytorch as onnx2pytorch_command
from onnx2nn.commands import statuses

PAGE = Path(__file__).resolve().parent.parent / "docs" / "command_line.md"

HEAD = f"""\
# The command line

`onnx2nn COMMAND`, also `python -m onnx2nn COMMAND`, has the parts; `onnx2pytorch` simplifies, imports, compares and
saves one file in one go. Wherever a command takes a model, it takes a path or a URL ([where models are](remote.md)).
Files appear complete or not at all. On a terminal a step shows what runs and for how long, and a download shows a bar;
in a pipe there are plain lines on stdout, and nothing of bars.

## Exit status

| status | meaning |
|---|---|
| {statuses.OK} | success: the outputs agree, nothing stands in the way of an import |
| {statuses.FAILED} | a comparison or a check failed |
| {statuses.UNUSABLE} | the input or an option cannot be used; the last line on stderr says why |
| {statuses.INTERRUPTED} | interrupted (SIGINT) |
| {statuses.UNREAD} | stdout was closed, as by `head` |

## Environment variables

| variable | meaning |
|---|---|
| `ONNX2NN_CACHE` | compiled packages and files from URLs; by default `onnx2nn` in the user's cache folder |
| `XDG_CACHE_HOME` | the user's cache folder, `~/.cache` by default |
| `CXX` | the C++ compiler of `compile` |
| `HF_TOKEN`, `HF_HOME`, `HF_ENDPOINT`, `HF_HUB_OFFLINE` | of huggingface_hub: token, cache, server, no network |
| `NO_COLOR`, `COLUMNS` | of rich: no colours, the width |

Credentials of other file systems are those of their packages, such as `AWS_ACCESS_KEY_ID` of s3fs.

## Completion

`pip install "onnx2nn[cli]"` brings argcomplete. For bash and zsh, in the shell's start file:

```
eval "$(register-python-argcomplete onnx2nn onnx2pytorch)"
```

and for fish: `register-python-argcomplete --shell fish onnx2nn | source`.
"""


def page() -> str:
    """Returns the text of the page."""
    return "\n".join([HEAD, *_commands()])


def _commands() -> Iterator[str]:
    whole = onnx2nn_command.parser()
    for action in whole._actions:  # argparse lists a parser's arguments in no other way
        if isinstance(action, argparse._SubParsersAction):
            about = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, parser in action.choices.items():
                yield from _command(f"onnx2nn {name}", about[name], parser)
    single = onnx2pytorch_command.parser()
    yield from _command("onnx2pytorch", single.description or "", single)


def _command(name: str, about: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## `{name}`\n"
    sentence = parser.description or about
    yield f"{sentence[0].upper()}{sentence[1:].rstrip('.')}.\n"
    yield "| argument | meaning |\n|---|---|"
    for action in parser._actions:
        if not isinstance(action, argparse._HelpAction):
            meaning = " ".join((action.help or "").split()).replace("|", "\\|")
            required = "; required" if action.required and action.option_strings else ""
            yield f"| {_argument(action)} | {meaning}{required} |"
    yield ""


def _argument(action: argparse.Action) -> str:
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    shown = "" if action.nargs == 0 else str(value).replace("|", "\\|")
    names = ", ".join(f"`{option}`" for option in action.option_strings)
    if not names:
        return f"`{shown}`" + (", may be left out" if action.nargs == "?" else "")
    return f"{names} `{shown}`" if shown else names


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail where the page is out of date")
    text = page()
    if parser.parse_args().check:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            print(f"{PAGE.name} is out of date: python scripts/command_line.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
