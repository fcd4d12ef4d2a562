"""Command names -> commands: two thin Click groups that import nothing heavy until a command runs."""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import click

from . import __version__
from .errors import CampError

DATA_COMMANDS = {
    "sample": "Draw a sample data set: scenes with five captions each.",
    "import": "Captions and splits -> a data set.",
    "append": "Add images and captions to a data set; existing ids stay.",
    "info": "Show what a data set holds.",
    "extract": "Photographs -> region features in shards.",
    "show": "Draw an image's regions on it.",
    "import-features": "Somebody else's region features -> shards of a data set.",
    "export-features": "Region features -> a layout that other projects read.",
    "convert": "Region features -> the other file format or float type.",
    "build-vocab": "Captions -> a vocabulary, token ids, a matrix of word vectors.",
    "import-vocab": "Another project's vocabulary -> one of a data set.",
    "tokenize": "Captions -> token ids per split.",
    "verify": "Check every file of a data set; --repair rebuilds what can be.",
}
CAMP_COMMANDS: dict[str, str] = {
    "train": "Train a matcher from a data set's shards and tokens.",
    "import-checkpoint": "Weights that a paper's authors released -> a run.",
    "eval": "Measure: recall in both directions, of any score matrix.",
    "search": "A text -> images, an image -> captions, from an index on disk.",
    "score": "One image, some texts -> a number for each.",
    "report": "A run -> one HTML page: recall, galleries, explanations.",
    "compare": "Several configs on one data set -> one table and one plot.",
    "mine": "A run -> the hardest negatives of each image and caption, for a second round.",
    "explain": "Draw what a model attended to, and how far its gates opened.",
}


class LazyGroup(click.Group):
    """A group that knows its commands' names and one-line helps, and imports one when it is run.

    The command `import-vocab` is the attribute `command` of `camp.commands.import_vocab`.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module = cmd_name.replace("-", "_")
        module += "_" if module in ("import", "eval") else ""  # Python's own words
        return importlib.import_module(f".commands.{module}", __package__).command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.lazy:
            close = difflib.get_close_matches(args[0], self.lazy, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else f" There are: {', '.join(self.lazy)}."
            ctx.fail(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Click's own version would import every command for its help line.
        if self.lazy:
            with formatter.section("Commands"):
                formatter.write_dl(list(self.lazy.items()))

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command and turn whatever happens into the exit codes of the contract."""
        if kwargs.get("standalone_mode") is False:
            return super().main(*args, **kwargs)
        previous = signal.signal(signal.SIGTERM, _terminate)
        try:
            # A command's return value is its exit code, as `ctx.exit(code)` gives it.
            sys.exit(super().main(*args, **{**kwargs, "standalone_mode": False}) or 0)
        except click.exceptions.Abort:
            _fail("interrupted; run the same command again to go on", code=130)
        except click.ClickException as error:
            error.show()
            sys.exit(error.exit_code)
        except CampError as error:
            if _debugging():
                raise
            _fail(str(error), code=error.exit_code)
        except Exception as error:
            if _debugging():
                raise
            text = f"{type(error).__name__}: {error}"
            _fail(f"unexpected {text}; add --debug for the traceback and report it", code=1)
        finally:
            signal.signal(signal.SIGTERM, previous)


def _terminate(signum: int, frame: object) -> NoReturn:
    click.echo("stopped; run the same command again to go on", err=True)
    sys.exit(128 + signum)


def _fail(message: str, *, code: int) -> NoReturn:
    click.echo(f"error: {message}", err=True)
    sys.exit(code)


def _debugging() -> bool:
    return "--debug" in sys.argv or os.environ.get("CAMP_DEBUG", "") not in ("", "0")


_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "CAMP"}


@click.group(cls=LazyGroup, lazy=DATA_COMMANDS, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="camp-data")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def camp_data(debug: bool) -> None:
    """Prepare data: captions, region features, vocabularies, shards."""


@click.group(cls=LazyGroup, lazy=CAMP_COMMANDS, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="camp")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def camp(debug: bool) -> None:
    """Train and measure text-image matchers."""


if __name__ == "__main__":
    camp_data()
