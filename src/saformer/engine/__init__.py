"""Where computation happens."""
