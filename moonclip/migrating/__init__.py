"""Bringing what other libraries saved into a store, one commit for each checkpoint; docs/migrate.md is the manual."""
