"""The paper: the method and nothing else, in torch and the standard library.

Read in this order. The networks: `batch`, `tokens`, `transformer`, `gaussian`, `normalizer`,
`model`. What they learn: `objectives`. How they act: `budget`, `history`, `policy`, `rules`,
`execution`. Every quantity is in the environment's own units until `Normalizer` maps it to model
units."""
