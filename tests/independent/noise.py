"""Sources of noise in readings of healthy parts: permanent levels, levels of a run, warm-up, drift, tails, disturbances."""
import random
from dataclasses import dataclass, field, replace


@dataclass
class Noise:
    sigma: float = 0.003         # of each cell of each reading
    run: float = 0.0             # level of a whole reading
    gpu: float = 0.0             # permanent difference between GPUs
    node: float = 0.0            # permanent difference between nodes
    far: float = 0.0             # copies between halves of a box are lower by this
    tail: float = 0.0            # chance of an exponential dip
    dip: float = 0.05            # its mean depth
    warm: float = 0.0            # the first rows of a p2p matrix are lower by this
    drift: float = 0.0           # all fall by this from the first reading to the last
    disturbed: dict = field(default_factory=dict)   # reading: factor of all its cells

    def but(self, **changes):
        return replace(self, **changes)


CALM = Noise()
NORMAL = Noise(sigma=0.004, gpu=0.0015, node=0.0005, run=0.002)
ROUGH = Noise(sigma=0.01, gpu=0.003, node=0.001, run=0.004, far=0.003)


class Draw:
    """Random numbers of one case: permanent levels are drawn once a part, the rest once a reading or a cell."""

    def __init__(self, seed, noise):
        self.rng = random.Random(seed)
        self.noise = noise
        self.kept = {}

    def level(self, what, sigma):
        """A permanent level of a part; cut at 2 sigma: production tests reject the rest."""
        if sigma == 0:
            return 1.0
        key = ("level",) + tuple(what)
        if key not in self.kept:
            self.kept[key] = 1.0 + max(-2.0, min(2.0, self.rng.gauss(0, 1))) * sigma
        return self.kept[key]

    def run(self, tool, reading, readings):
        """The level of a whole reading of one tool."""
        n = self.noise
        key = ("run", tool, reading)
        if key not in self.kept:
            level = 1.0 + max(-2.5, min(2.5, self.rng.gauss(0, 1))) * n.run
            if n.drift and readings > 1:
                level *= 1.0 - n.drift * reading / (readings - 1)
            self.kept[key] = level * n.disturbed.get(reading, 1.0)
        return self.kept[key]

    def cell(self):
        n = self.noise
        value = 1.0 + self.rng.gauss(0, n.sigma)
        if n.tail and self.rng.random() < n.tail:
            value *= 1.0 - min(0.6, self.rng.expovariate(1.0 / n.dip))
        return max(0.05, value)
