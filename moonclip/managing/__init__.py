"""The parts of :class:`~moonclip.manager.CheckpointManager`, by what they do, and what it is told when it is made."""
