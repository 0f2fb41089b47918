"""The `saformer` command: thin verbs over `saformer.api`."""
