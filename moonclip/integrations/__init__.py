"""Thin integrations with libraries people train with, one module each; each is imported only when asked for."""
