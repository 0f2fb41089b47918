"""Rules that go past the paper: each with options of its own, and fitted as training ends."""
