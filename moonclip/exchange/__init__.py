"""Checkpoints as other tools' files, out of a store and into one: one module for each format, streamed both ways."""
