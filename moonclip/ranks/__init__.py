"""Saves that several ranks make together: one commit of what all of them hold, or none."""
