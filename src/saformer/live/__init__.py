"""What runs while people and machines look on: the page `saformer play`, and the policy server."""
