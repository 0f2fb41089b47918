"""Simulators: tasks by name, costs made visible, and episodes driven in lanes."""
