"""How fast a bar's bytes go by. Loaded with the bar: it needs rich."""

from rich.progress import ProgressColumn, Task
from rich.text import Text

from .text import size


class RateColumn(ProgressColumn):
    """``"12.3 MiB/s"``, in the units in which the bytes are shown; empty until it can be told."""

    def render(self, task: Task) -> Text:
        """What is shown now."""
        rate = task.finished_speed or task.speed
        return Text("" if rate is None else f"{size(int(rate))}/s", style="progress.data.speed")
