"""Methods that can be trained. They state losses; `training.loop` does the rest."""
