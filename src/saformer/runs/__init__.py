"""Run directories: what was asked for, what was measured, and everything needed to go on."""
