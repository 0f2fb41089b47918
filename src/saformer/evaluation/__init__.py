"""Judging a policy under its limits."""
