"""The paper's tables and figures: what each needs, and how it is shown beside the published
numbers."""
