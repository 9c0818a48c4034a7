"""What the save bench measured of one library."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from .peers import Peer
from .sessions import Event


@dataclass(slots=True)
class Row:
    """Everything measured of one library, over all rounds.

    Attributes:
        peer: the library.
        state_bytes: what a save has to keep.
        first_blocked_s: how long each session's first two saves held the loop up.
        first_beside_s: times of steps beside those two.
        blocked_s: how long later ones did.
        held_s: how long locks and hooks then kept the optimizer from its first step.
        window_s: what a save adds until the optimizer moves parameters while nobody stores it yet: blocked time, hooks,
            slower computing.
        extra_s: training time that a save cost until it was durable, blocked time included.
        durable_s: from the call until it was synced, nothing else running.
        cpu_s: processor time of the process tree for such a save.
        steps_s: times of undisturbed steps.
        beside_s: times of steps beside a save.
        stored_bytes: growth of the directory with a save.
        peak_bytes: growth of the process's peak resident size over training alone.
        pss_bytes: growth of the process tree's summed PSS over training alone.
        first_load_s: opening and loading in a fresh process.
        load_s: loading again.
        is_same: whether what was loaded is what was saved, bit for bit.
        failure: why there is nothing of all this, or not all.
    """

    peer: Peer
    state_bytes: int = 0
    first_blocked_s: list[float] = field(default_factory=list)
    first_beside_s: list[float] = field(default_factory=list)
    blocked_s: list[float] = field(default_factory=list)
    held_s: list[float] = field(default_factory=list)
    window_s: list[float] = field(default_factory=list)
    extra_s: list[float] = field(default_factory=list)
    durable_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    steps_s: list[float] = field(default_factory=list)
    beside_s: list[float] = field(default_factory=list)
    stored_bytes: list[int] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    pss_bytes: list[int] = field(default_factory=list)
    first_load_s: list[float] = field(default_factory=list)
    load_s: list[float] = field(default_factory=list)
    is_same: list[bool] = field(default_factory=list)
    failure: str = ""

    def take(self, events: Iterable[Event]) -> None:
        """Add what one session told."""
        quiet: list[dict[str, float]] = []
        memory: dict[str, int] = {}
        expected = ""
        for event in events:
            match event["event"]:
                case "state":
                    self.state_bytes = event["bytes"]
                case "undisturbed":
                    quiet = event["steps"]
                    self.steps_s += [step["all_s"] for step in quiet]
                case "saved":
                    self._take_save(event, quiet)
                case "captured":
                    usual_s = median(step["until_update_s"] for step in quiet)
                    self.window_s.append(event["blocked_s"] + event["step"]["until_update_s"] - usual_s)
                case "idle":
                    self.durable_s.append(event["durable_s"])
                    self.cpu_s.append(event["cpu_s"])
                case "peak":
                    self.peak_bytes.append(event["bytes"])
                case "memory":
                    memory[event["label"]] = event["pss_bytes"]
                case "last":
                    expected = event["digest"]
                case "loaded":
                    (self.first_load_s if event["first"] else self.load_s).append(event["seconds"])
                    self.is_same.append(event["digest"] == expected)
        if "saving" in memory:
            self.pss_bytes.append(memory["saving"] - memory["alone"])

    def _take_save(self, event: Event, quiet: Sequence[dict[str, float]]) -> None:
        """A save, and the undisturbed steps that came right before it."""
        steps = event["steps"]
        if event["first"]:
            self.first_blocked_s.append(event["blocked_s"])
            self.first_beside_s += [step["all_s"] for step in steps]
            return
        self.blocked_s.append(event["blocked_s"])
        self.held_s.append(steps[0]["held_s"])
        self.stored_bytes.append(event["stored_bytes"])
        self.beside_s += [step["all_s"] for step in steps]
        usual_s = median(step["all_s"] for step in quiet)
        self.extra_s.append(event["blocked_s"] + sum(step["all_s"] - usual_s for step in steps))
