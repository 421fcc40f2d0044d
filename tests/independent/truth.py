"""The truth about a case: its faulty parts, the findings allowed for them, and the right outcomes."""
from dataclasses import dataclass, field

BAD = ("degraded", "failed")
BLAMELESS = {"domain", "plane", "instrument", "leaf", "boundary", "fleet", "claim"}   # such a locus blames no node
SIDES = {"tx", "rx"}


@dataclass
class Pattern:
    """A locus that may be named: a field that is None is not compared."""
    kinds: frozenset
    node: str = None
    gpu: int = None
    ends: frozenset = None
    rails: frozenset = None
    directions: frozenset = None

    def fits(self, locus):
        kind = locus.get("kind")
        if kind not in self.kinds:
            return False
        if self.ends is not None:
            return ends(locus) == self.ends
        if self.node is not None and locus.get("node") != self.node:
            return False
        if self.gpu is not None and locus.get("gpu") not in (None, self.gpu):
            return False
        if self.gpu is not None and kind in ("gpu", "direction") and locus.get("gpu") != self.gpu:
            return False
        if self.rails is not None and locus.get("rail") is not None and str(locus["rail"]) not in self.rails:
            return False
        return not (self.directions and locus.get("direction") and locus["direction"] not in self.directions)


def ends(locus):
    """The two ends of a pair, as node or node:gpu."""
    first = locus.get("node", "")
    if locus.get("gpu") is not None:
        first += ":%d" % locus["gpu"]
    return frozenset((first, str(locus.get("peer", ""))))


@dataclass
class Fault:
    """One faulty part. It is found when one way of naming it is complete; all patterns of all ways are allowed."""
    name: str
    ways: list                      # lists of patterns; every pattern of one list must be named
    nodes: set = field(default_factory=set)        # nodes whose verdict it may make bad
    must: bool = True               # must it be found?
    silent: set = field(default_factory=set)       # nodes whose verdict need not be bad (ends of a pair, spares)
    soft: bool = False              # is a finding of outcome unknown enough?

    def found(self, loci):
        return any(all(any(p.fits(x) for x in loci) for p in way) for way in self.ways)

    def allows(self, locus):
        return any(p.fits(locus) for way in self.ways for p in way)


@dataclass
class Truth:
    faults: list = field(default_factory=list)
    also: list = field(default_factory=list)       # patterns that may be named, but need not be
    overall: set = field(default_factory=lambda: {"pass"})
    unknown: set = field(default_factory=set)      # nodes that need not pass; "*" is all
    must_unknown: set = field(default_factory=set)  # nodes that must not pass
    fixed: bool = False             # overall was set by hand

    def add(self, fault):
        self.faults.append(fault)
        if not self.fixed and fault.must:
            self.overall = set(BAD)
        return fault

    def may(self, *outcomes):
        self.overall, self.fixed = set(outcomes), True

    def gpu(self, node, gpu, sides=None, must=True, coarse=False):
        """A GPU, or one direction of it."""
        pattern = Pattern(frozenset({"gpu", "direction"}), node, gpu, directions=frozenset(sides) if sides else None)
        ways = [[pattern]]
        if coarse:
            ways.append([Pattern(frozenset({"node", "tray"}), node)])
        return self.add(Fault("gpu %s:%d" % (node, gpu), ways, {node}, must))

    def node(self, node, gpus=(), must=True, kinds=("node", "tray")):
        """A whole node: as itself, or as each of its GPUs."""
        ways = [[Pattern(frozenset(kinds), node)]]
        if gpus:
            ways.append([Pattern(frozenset({"gpu", "direction"}), node, g) for g in gpus])
        return self.add(Fault("node %s" % node, ways, {node}, must))

    def pair(self, a, b, must=True):
        """Two GPUs (node, gpu) with a slow path between them. No end is to blame unless both are in one node."""
        first, second = "%s:%d" % a, "%s:%d" % b
        nodes = {a[0], b[0]}
        pattern = Pattern(frozenset({"pair", "direction"}), ends=frozenset((first, second)))
        fault = Fault("pair %s %s" % (first, second), [[pattern]], set(), must, silent=nodes)
        if len(nodes) == 1:
            fault.nodes = nodes
            fault.silent = set()
        else:
            self.unknown |= nodes
        return self.add(fault)

    def way(self, a, b, rail=None, must=True):
        """Two nodes with a slow network path between them, where neither end can be named."""
        pattern = Pattern(frozenset({"pair", "direction", "rail"}), ends=frozenset((a, b)))
        self.unknown |= {a, b}
        return self.add(Fault("way %s %s" % (a, b), [[pattern]], set(), must, silent={a, b}))

    def port(self, node, rail=0, device=None, sides=None, must=True):
        """A network port of a node."""
        names = {"rail%d" % rail, str(rail), "mlx5_%d" % rail} | ({device} if device else set())
        pattern = Pattern(frozenset({"rail", "direction", "nic"}), node, rails=frozenset(names),
                          directions=frozenset(sides) if sides else None)
        whole = Pattern(frozenset({"node"}), node, rails=frozenset(names))
        return self.add(Fault("port %s rail %d" % (node, rail), [[pattern], [whole]], {node}, must))

    def above(self, name, kinds, must=True, overall=BAD):
        """A part above the nodes: a plane, a domain, a leaf, the instrument."""
        fault = self.add(Fault(name, [[Pattern(frozenset(kinds))]], set(), must))
        self.may(*overall)
        return fault

    def allow(self, kinds, node=None, gpu=None, ends_of=None):
        self.also.append(Pattern(frozenset(kinds), node, gpu, frozenset(ends_of) if ends_of else None))

    def bad_nodes(self):
        return set().union(*[g.nodes for g in self.faults]) if self.faults else set()


@dataclass
class Case:
    """Files of one fleet, and the truth about it."""
    files: dict
    nodes: list
    truth: Truth
