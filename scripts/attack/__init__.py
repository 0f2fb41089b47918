"""Campaigns against the package: many tries at random, each repeatable by its seed."""
