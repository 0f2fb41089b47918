"""Methods that can be trained. They state losses; `training.fit` does the rest."""
