"""How people name commits: refs and their logs, and the revisions that are typed."""
