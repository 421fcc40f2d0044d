"""The truth about a fleet as physics: parts with their shares, and the resulting rates of copies, ports and collectives."""
from noise import Draw

PCIE_FALLBACK = 37.0   # GB/s between GPUs that have no NVLink path


class Fabric:
    """GPUs, links, planes. The smallest share of source, destination and path limits a copy."""

    def __init__(self, platform, nodes, seed, noise, gpus=None):
        self.platform, self.nodes = platform, list(nodes)
        self.gpus = platform.gpus if gpus is None else gpus
        self.draw = Draw(seed, noise)
        self.links = {}        # ((node, gpu), "tx" or "rx") -> live links of each group
        self.share = {}        # ((node, gpu), "tx" or "rx" or "h2d" or "d2h") -> share of the rate; power, clocks, width
        self.node_share = {}   # node -> share of everything between GPUs (a common offset, a power cap)
        self.path = {}         # (source, destination) -> share, or None: no path
        self.planes = {}       # group -> links of every GPU that are lost with the plane
        self.island = {}       # node -> name of the NVLink domain that it is really in
        self.parked = set()    # GPUs that no fabric reaches

    def parts(self, node=None):
        return [(n, g) for n in self.nodes if node in (None, n) for g in range(self.gpus)]

    def live(self, gpu, side):
        groups = list(self.platform.groups)
        groups = self.links.get((gpu, side), groups)
        return [max(0, k - self.planes.get(i, 0)) for i, k in enumerate(groups)]

    def lose_links(self, node, gpu, count, sides=("tx", "rx"), first=None):
        """Removes links of a GPU, spread from a random group on."""
        groups = list(self.platform.groups)
        at = self.draw.rng.randrange(len(groups)) if first is None else first
        for _ in range(count):
            while groups[at % len(groups)] == 0:
                at += 1
            groups[at % len(groups)] -= 1
            at += 1
        for side in sides:
            self.links[((node, gpu), side)] = groups

    def slow(self, node, gpu, share, sides=("tx", "rx")):
        for side in sides:
            self.share[((node, gpu), side)] = share

    def slow_pair(self, a, b, share, both=True):
        self.path[(a, b)] = share
        if both:
            self.path[(b, a)] = share

    def end(self, gpu, side):
        """The rate at which one GPU sends or receives, as a share of a healthy one's."""
        noise = self.draw.noise
        level = self.draw.level(gpu, noise.gpu) * self.draw.level((gpu[0],), noise.node)
        return level * self.share.get((gpu, side), 1.0) * self.node_share.get(gpu[0], 1.0)

    def lanes(self, a, b):
        """Share of the links that both ends can use; a group carries what the lesser end has in it."""
        total = sum(self.platform.groups)
        if total == 0:
            return 1.0
        return sum(min(x, y) for x, y in zip(self.live(a, "tx"), self.live(b, "rx"))) / total

    def joined(self, a, b):
        """True if NVLink joins two GPUs."""
        if a in self.parked or b in self.parked:
            return False
        if self.island.get(a[0]) != self.island.get(b[0]):
            return False
        pairs = self.platform.bridged
        return not pairs or tuple(sorted((a[1], b[1]))) in pairs

    def copy(self, a, b, fallback=None):
        """Share of the platform's copy rate from a to b; None where no copy can be made."""
        if not self.joined(a, b):
            if a[0] != b[0]:
                return None
            rate = self.platform.copy
            base = (PCIE_FALLBACK if fallback is None else fallback) / rate
            return base * min(self.share.get((a, "tx"), 1.0), self.share.get((b, "rx"), 1.0)) \
                * self.draw.level(a, self.draw.noise.gpu)
        way = self.path.get((a, b), 1.0)
        if way is None:
            return None
        if self.draw.noise.far and a[0] == b[0] and (a[1] < self.gpus // 2) != (b[1] < self.gpus // 2):
            way *= 1.0 - self.draw.noise.far
        ends = min(self.end(a, "tx"), self.end(b, "rx"))
        return min(ends * self.lanes(a, b), way)

    def host(self, gpu, side):
        return self.share.get((gpu, side), 1.0) * self.draw.level(gpu + ("host",), self.draw.noise.gpu)

    def collective(self, members):
        """A collective runs at its slowest member or path: one minimum over all, no product."""
        worst = min(min(self.end(g, "tx") * sum(self.live(g, "tx")), self.end(g, "rx") * sum(self.live(g, "rx")))
                    / max(1, sum(self.platform.groups)) if self.platform.groups else self.end(g, "tx") for g in members)
        inside = set(members)
        ways = [s for (a, b), s in self.path.items() if a in inside and b in inside and s is not None]
        return min([worst] + ways)


class Ports:
    """Network ports: a rail of a node sends and receives; leaves are joined by uplinks."""

    def __init__(self, nodes, rails, rate, seed, noise):
        self.nodes, self.rails, self.rate = list(nodes), rails, rate
        self.draw = Draw(seed, noise)
        self.share = {}      # (node, rail, "tx" or "rx") -> share
        self.path = {}       # (node, node, rail) -> share, or None: no connection
        self.leaf = {}       # node -> leaf
        self.uplink = {}     # leaf -> share of the traffic that leaves or enters it

    def slow(self, node, rail, share, sides=("tx", "rx")):
        for side in sides:
            self.share[(node, rail, side)] = share

    def write(self, a, b, rail):
        """Gb/s that a writes to b over one rail; None: no connection."""
        way = self.path.get((a, b, rail), 1.0)
        if way is None:
            return None
        if self.leaf.get(a) != self.leaf.get(b):
            way = min(way, self.uplink.get(self.leaf.get(a), 1.0), self.uplink.get(self.leaf.get(b), 1.0))
        noise = self.draw.noise
        tx = self.share.get((a, rail, "tx"), 1.0) * self.draw.level((a, rail), noise.gpu)
        rx = self.share.get((b, rail, "rx"), 1.0) * self.draw.level((b, rail), noise.gpu)
        return self.rate * min(tx, rx, way)
