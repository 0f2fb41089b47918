"""What runs while people and machines look on: the page of `saformer play`, the policy server."""
