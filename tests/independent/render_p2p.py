"""p2pBandwidthLatencyTest's text."""


def matrix(title, cells, corner="   D\\D"):
    n = len(cells)
    out = [title, corner + "".join("%6d " % c for c in range(n))]
    for r in range(n):
        out.append("%6d " % r + "".join("%6.2f " % v for v in cells[r]))
    return "\n".join(out) + "\n"


def text(devices, enabled, disabled, both, both_disabled, latency, access=None):
    """enabled, disabled, both, both_disabled: full tables with the local copy on the diagonal."""
    n = len(devices)
    out = "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\n"
    for i, name in enumerate(devices):
        out += "Device: %d, %s, pciBusID: %x, pciDeviceID: 0, pciDomainID:0\n" % (i, name, 0x1b + 0x10 * i)
    can = access or (lambda i, j: True)
    for i in range(n):
        for j in range(n):
            if i != j:
                out += "Device=%d %s Access Peer Device=%d\n" % (i, "CAN" if can(i, j) else "CANNOT", j)
    out += ("\n***NOTE: In case a device doesn't have P2P access to other one, it falls back to normal memcopy procedure.\n"
            "So you can see lesser Bandwidth (GB/s) and unstable Latency (us) in those cases.\n\n")
    out += "P2P Connectivity Matrix\n     D\\D" + "".join("%6d" % c for c in range(n)) + "\n"
    for i in range(n):
        out += "%6d\t" % i + "".join("%6d" % (1 if i == j or can(i, j) else 0) for j in range(n)) + "\n"
    out += matrix("Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)", disabled)
    out += matrix("Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)", enabled)
    out += matrix("Bidirectional P2P=Disabled Bandwidth Matrix (GB/s)", both_disabled)
    out += matrix("Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)", both)
    out += matrix("P2P=Disabled Latency Matrix (us)", latency(18.0), "   GPU") + "\n"
    out += matrix("", latency(4.5), "   CPU")[1:] + "\n"
    out += matrix("P2P=Enabled Latency (P2P Writes) Matrix (us)", latency(2.3), "   GPU") + "\n"
    out += matrix("", latency(1.4), "   CPU")[1:] + "\n"
    return out + ("NOTE: The CUDA Samples are not meant for performance measurements. "
                  "Results may vary when GPU Boost is enabled.\n")
