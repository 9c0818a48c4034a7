"""From a person's objects to a commit: ``recording`` captures and hands over, ``jobs`` are saves on their way."""
