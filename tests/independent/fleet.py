"""Records a fleet: runs tools over its physics and stores their output as files of a folder that can be judged."""
import render_nccl
import render_network
import render_nvbandwidth as nvb
import render_p2p
import render_smi
from noise import NORMAL
from physics import Fabric, Ports
from truth import Case, Truth

LIMIT = {"nodes": None, "readings": None}    # set while a failing case is made smaller


def hostlist(names):
    return "[%s]" % ", ".join('"%s"' % n for n in names)


class Site:
    """Some nodes of one platform, their files, and the truth about them."""

    def __init__(self, platform, count, seed, noise=NORMAL, stem="node", domain=None, gpus=None, names=None):
        self.platform, self.noise, self.seed = platform, noise, seed
        count = min(count, LIMIT["nodes"] or count)
        self.nodes = names or ["%s%04d" % (stem, i + 1) for i in range(count)]
        self.fabric = Fabric(platform, self.nodes, "%s/%s/fabric" % (stem, seed), noise, gpus)
        self.rng = self.fabric.draw.rng
        self.truth, self.files = Truth(), {}
        self.domain = domain
        self.version, self.driver = {}, {}       # of a node
        self.default_version, self.default_driver = "0.8", platform.driver
        self.holes = set()                       # (source, destination) that were not measured
        self.absent = {}                         # node -> GPUs that the tools do not see
        self.ports = None
        self.claim = []

    # nodes and GPUs

    def present(self, node):
        return [g for g in range(self.fabric.gpus) if g not in self.absent.get(node, ())]

    def some(self, k=1):
        return self.rng.sample(self.nodes, k)

    def gpu(self):
        return self.rng.randrange(self.fabric.gpus)

    # one table of numbers

    def cells(self, parts, test, reading, readings, tool="nvbandwidth", level=None, scale=1.0):
        """The row starts the copy: it reads from, or writes to, the column."""
        level = (level or self.platform.copy) * scale
        level *= self.fabric.draw.run((tool, parts[0] if len({p[0] for p in parts}) == 1 else "all"), reading, readings)
        pull = "_read_" in test
        out = []
        for a in parts:
            row = []
            for b in parts:
                source, target = (b, a) if pull else (a, b)
                share = None if a == b or (source, target) in self.holes else self.fabric.copy(source, target)
                row.append(None if share is None else level * share * self.fabric.draw.cell())
            out.append(row)
        return out

    def host_row(self, node, side, reading, readings):
        level = self.platform.h2d if side == "h2d" else self.platform.d2h
        level *= self.fabric.draw.run(("host", node), reading, readings)
        return [[level * self.fabric.host((node, g), side) * self.fabric.draw.cell() for g in self.present(node)]]

    # files of one node

    def local(self, node, reading=0, readings=1, tests=("read", "write"), host=True, form="text", scale=1.0, both=False,
              engine="ce", tail=""):
        """Output of nvbandwidth on one node."""
        parts = [(node, g) for g in self.present(node)]
        out = []
        if host:
            out.append(("host_to_device_memcpy_ce", self.host_row(node, "h2d", reading, readings)))
            out.append(("device_to_host_memcpy_ce", self.host_row(node, "d2h", reading, readings)))
        if len(parts) > 1:
            for test in tests:
                name = "device_to_device_memcpy_%s_%s" % (test, engine)
                out.append((name, self.cells(parts, name, reading, readings, scale=scale)))
        if both and len(parts) > 1:
            name = "device_to_device_bidirectional_memcpy_read_ce"
            first = self.cells(parts, name, reading, readings, scale=0.99 * scale)
            second = self.cells(parts, "_write_", reading, readings, scale=0.99 * scale)
            out.append((name, first, second))
        version, driver = self.version.get(node, self.default_version), self.driver.get(node, self.default_driver)
        devices = [self.platform.device] * len(parts)
        if form == "json":
            return nvb.as_json(out, version, driver, devices, node)
        return nvb.text(out, version, driver, devices, host=node, tail=tail)

    def locals(self, readings=1, **options):
        readings = min(readings, LIMIT["readings"] or readings)
        for node in self.nodes:
            for k in range(readings):
                suffix = "json" if options.get("form") == "json" else "txt"
                self.files["nodes/%s/nvbandwidth-%d.%s" % (node, k, suffix)] = self.local(node, k, readings, **options)

    def p2p(self, node, reading=0, readings=1, scale=None):
        """Output of p2pBandwidthLatencyTest on one node."""
        parts = [(node, g) for g in self.present(node)]
        draw, p = self.fabric.draw, self.platform
        run = draw.run(("p2p", node), reading, readings)
        warm = lambda r: 1.0 - self.noise.warm * (0.5 ** r if r < 3 else 0.0)
        share = scale or (lambda a, b: 1.0)

        def table(rate):
            return [[p.local * 2 * draw.cell() if a == b else rate(a, b) * run * warm(r) * share(a, b) * draw.cell()
                     for b in parts] for r, a in enumerate(parts)]
        one = lambda a, b: p.p2p * self.fabric.copy(a, b)
        slow = table(lambda a, b: 36.0)
        return render_p2p.text([p.device] * len(parts), table(one), slow, table(lambda a, b: 0.985 * (one(a, b) + one(b, a))),
                               table(lambda a, b: 45.0),
                               lambda us: [[us * (0.9 if a == b else 1.0) * (1 + abs(draw.rng.gauss(0, 0.02))) for b in parts] for a in parts],
                               access=lambda i, j: self.fabric.joined(parts[i], parts[j]))

    def smi(self, node, dead=None, cluster=None, clique=32766, query=True, state=None):
        """Output of nvidia-smi on a node."""
        gpus = len(self.present(node))
        if self.platform.links:
            self.files["nodes/%s/nvlink-s.txt" % node] = render_smi.nvlink(self.platform, node, gpus, dead)
        if query:
            self.files["nodes/%s/smi-q.txt" % node] = render_smi.query(
                self.platform, node, gpus, self.driver.get(node, self.default_driver), cluster, clique, state)

    # files of a domain

    def multinode(self, reading=0, readings=1, tests=("read", "write"), nodes=None, order=None, version="0.8", scale=1.0, tail=""):
        """Output of nvbandwidth over several nodes."""
        parts = [(n, g) for n in (nodes or self.nodes) for g in self.present(n)]
        if order:
            order(parts)
        ranks = [(n, g, self.platform.device) for n, g in parts]
        out = []
        for test in tests:
            name = "multinode_device_to_device_memcpy_%s_ce" % test
            out.append((name, self.cells(parts, name, reading, readings, tool="multinode", scale=scale)))
        return nvb.text(out, version, self.default_driver, ranks=ranks, tail=tail)

    def multi(self, readings=1, **options):
        readings = min(readings, LIMIT["readings"] or readings)
        for k in range(readings):
            self.files["domains/%s/multinode-%d.txt" % (self.domain, k)] = self.multinode(k, readings, **options)

    def nccl(self, parts, kind="all_reduce", level=None, wrong=0):
        """Output of nccl-tests over these GPUs."""
        level = level if level is not None else self.platform.allreduce * self.fabric.collective(parts)
        ranks = [(n, g, self.platform.device) for n, g in parts]
        draw = self.fabric.draw
        jitter = lambda: 1.0 + draw.rng.gauss(0, min(0.006, 2 * self.noise.sigma))
        return render_nccl.text(kind, ranks, level, jitter, wrong)

    # the network

    def network(self, rails, rate, noise=None):
        self.ports = Ports(self.nodes, rails, rate, "%s/ports" % self.seed, noise or self.noise)
        return self.ports

    def pairs(self, meetings, readings=1, rails=None, unit="Gb/sec", name=True):
        """Both directions of every meeting, over every rail."""
        draw = self.ports.draw
        readings = min(readings, LIMIT["readings"] or readings)
        for a, b in meetings:
            for x, y in ((a, b), (b, a)):
                for rail in rails or range(self.ports.rails):
                    for k in range(readings):
                        rate = self.ports.write(x, y, rail)
                        tag = "-mlx5_%d" % rail if self.ports.rails > 1 or name else ""
                        path = "pairs/%s/%s/ib_write_bw%s-%d.txt" % (x, y, tag, k)
                        if rate is None:
                            self.files[path] = render_network.text(0, "mlx5_%d" % rail, rng=draw.rng,
                                                                   failure=" Couldn't connect to %s:18515" % y)
                            continue
                        value = min(rate * draw.run(("net", k), k, readings) * draw.cell(), self.ports.rate * 1.012)
                        self.files[path] = render_network.text(value, "mlx5_%d" % rail, rng=draw.rng, unit=unit)

    # claims

    def claim_domain(self, name, nodes, platform=None, gpus=None, nic=None):
        text = '[[domain]]\nname = "%s"\nnodes = %s\n' % (name, hostlist(nodes))
        if platform is None:
            platform = self.platform.name
        if platform:
            text += 'platform = "%s"\n' % platform
        text += "gpus_per_node = %d\n" % (self.platform.gpus if gpus is None else gpus)
        if nic:
            text += 'nic = "%s"\n' % nic
        self.claim.append(text)

    def claim_each(self, **options):
        for node in self.nodes:
            self.claim_domain(node, [node], **options)

    def claim_leaf(self, name, nodes):
        self.claim.append('[[leaf]]\nname = "%s"\nnodes = %s\n' % (name, hostlist(nodes)))

    def claim_rails(self, count):
        for k in range(count):
            self.claim.append('[[rail]]\nname = "rail%d"\nrdma = "mlx5_%d"\n' % (k, k))

    def case(self):
        files = dict(self.files)
        if self.claim:
            files["claims.toml"] = "\n".join(self.claim)
        return Case(files, self.nodes, self.truth)


def rack(platform, count, seed, noise=NORMAL, claim=True, domain="block01"):
    """A multi-node NVLink domain; its files are written by record_rack."""
    site = Site(platform, count, seed, noise, domain=domain)
    if claim:
        site.claim_domain(domain, site.nodes)
    return site


def record_rack(site, readings=3, local=1, **options):
    """local: readings inside each node."""
    site.locals(local)
    site.multi(readings, **options)
    return site.case()


def boxes(platform, count, seed, noise=NORMAL, claim=True, stem="hgx"):
    """Nodes that are separate NVLink domains."""
    site = Site(platform, count, seed, noise, stem=stem)
    if claim:
        site.claim_each()
    return site


def record_boxes(site, readings=3, **options):
    site.locals(readings, **options)
    return site.case()
