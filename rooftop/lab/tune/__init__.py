"""Configs chosen by measuring."""
