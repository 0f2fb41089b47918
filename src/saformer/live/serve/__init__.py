"""A policy behind a port: many clients, one process, an account for each session."""
