"""Learning from stored trajectories."""
