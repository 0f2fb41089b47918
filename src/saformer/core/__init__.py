"""The paper: the method and nothing else, in torch and the standard library.

Read in this order: `batch`, `tokens`, `transformer`, `actor`, `critic`, `objectives`, then
`budget`, `history`, `execution`. Every quantity here is in the environment's own units until
`Normalizer` maps it to model units.
"""
