"""Trajectories that other people's tools recorded."""
