"""The console that a command prints to; its reader or terminal may go away."""

from contextlib import suppress

from rich.console import Console

from segue.actors.terminal import visible


class PatientConsole(Console):
    """A console whose reader may go away: rich would end the program then."""

    def on_broken_pipe(self) -> None:
        """Say nothing more."""
        self.quiet = True

    def say(self, text: str) -> None:
        """Print one line as it is; who is gone, or has no room, misses it, and nothing ends for that."""
        with suppress(OSError):
            self.print(visible(text), highlight=False, markup=False, soft_wrap=True)
