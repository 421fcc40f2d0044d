"""nvidia-smi: nvlink -s, topo -m, -q."""
import uuid


def gpu_uuid(node, gpu):
    return "GPU-" + str(uuid.uuid5(uuid.NAMESPACE_DNS, "%s.%d" % (node, gpu)))


def nvlink(platform, node, gpus, dead=None, indent="\t "):
    """dead: {gpu: links that are inactive}."""
    out = ""
    for g in range(gpus):
        out += "GPU %d: %s (UUID: %s)\n" % (g, platform.device, gpu_uuid(node, g))
        for k in range(platform.links):
            gone = k < (dead or {}).get(g, 0)
            out += "%sLink %d: %s\n" % (indent, k, "<inactive>" if gone else platform.link_rate + " GB/s")
    return out


def topo(platform, gpus, links=None, nics=0):
    """links(a, b): text of a cell."""
    names = ["GPU%d" % g for g in range(gpus)] + ["NIC%d" % k for k in range(nics)]
    out = "\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    for r, a in enumerate(names):
        cells = []
        for c, b in enumerate(names):
            if r == c:
                cells.append(" X ")
            elif a[0] == "G" and b[0] == "G":
                cells.append(links(r, c) if links else "NV%d" % platform.links)
            else:
                cells.append("PIX" if a[-1] == b[-1] else "NODE")
        half = 0 if r < max(1, gpus // 2) else 1
        out += a + "\t" + "\t".join(cells) + ("\t%s\t%d\t\tN/A" % (("0-47", "48-95")[half], half) if a[0] == "G" else "") + "\n"
    out += ("\nLegend:\n\n  X    = Self\n"
            "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n"
            "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node\n"
            "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)\n"
            "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)\n"
            "  PIX  = Connection traversing at most a single PCIe bridge\n"
            "  NV#  = Connection traversing a bonded set of # NVLinks\n")
    if nics:
        out += "\nNIC Legend:\n\n" + "".join("  NIC%d: mlx5_%d\n" % (k, k) for k in range(nics))
    return out


def query(platform, node, gpus, driver="570.124.06", cluster=None, clique=None, state=None, bandwidth="Full"):
    """cluster, clique: the fabric of its GPUs; cluster may be a function of the GPU. Without one all is N/A."""
    out = ("\n==============NVSMI LOG==============\n\n"
           "Timestamp                                 : Mon Nov 23 10:00:00 2026\n"
           "Driver Version                            : %s\nCUDA Version                              : 12.8\n\n"
           "Attached GPUs                             : %d\n" % (driver, gpus))
    for g in range(gpus):
        own = cluster(g) if callable(cluster) else cluster
        mine = clique(g) if callable(clique) else clique
        out += "GPU %s.0\n" % ("%08X:%02X:00" % (g // 4 * 8, 0x1b + 0x10 * g))
        out += "    Product Name                          : %s\n" % platform.device
        out += "    Product Brand                         : NVIDIA\n    Product Architecture                  : Hopper\n"
        out += "    GPU UUID                              : %s\n    Minor Number                          : %d\n" % (gpu_uuid(node, g), g)
        out += "    Fabric\n"
        values = (state or "Completed", "Success", str(mine), own) if own else ("N/A",) * 4
        for key, value in zip(("State", "Status", "CliqueId", "ClusterUUID"), values):
            out += "        %-34s: %s\n" % (key, value)
        out += "        Health\n            Bandwidth                     : %s\n" % (bandwidth if own else "N/A")
        for key in ("Route Recovery in progress", "Route Unhealthy", "Access Timeout Recovery"):
            out += "            %-30s: %s\n" % (key, "False" if own else "N/A")
        out += "    Performance State                     : P0\n\n"
    return out
