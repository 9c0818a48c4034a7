"""From tensors to a commit: what is stored, in which order it becomes durable, and who is at work."""
