"""Logged behaviour: stored, relabelled with a cost in hindsight, and cut into windows."""
