"""Text output of ib_write_bw's client."""

RULE = "-" * 87


def text(gbits, device="mlx5_0", qps=4, rng=None, peak=None, unit="Gb/sec", failure=None, both=False):
    hexa = (lambda k: "%0*x" % (k, rng.getrandbits(4 * k))) if rng else (lambda k: "0" * k)
    out = [RULE, "                    RDMA_Write %sBW Test" % ("Bidirectional " if both else ""),
           " Dual-port       : OFF\t\tDevice         : %s" % device,
           " Number of qps   : %d\t\tTransport type : IB" % qps,
           " Connection type : RC\t\tUsing SRQ      : OFF",
           " PCIe relax order: ON",
           " ibv_wr* API     : ON",
           " TX depth        : 128",
           " CQ Moderation   : 1",
           " Mtu             : 4096[B]",
           " Link type       : IB",
           " Max inline data : 0[B]",
           " rdma_cm QPs\t : OFF",
           " Data ex. method : Ethernet", RULE]
    if failure:
        return "\n".join(out[:1] + [failure]) + "\n"
    for _ in range(qps):
        out.append(" local address: LID 0x%s QPN 0x%s PSN 0x%s RKey 0x%s VAddr 0x%s" % (hexa(2), hexa(4), hexa(6), hexa(6), hexa(16)))
    for _ in range(qps):
        out.append(" remote address: LID 0x%s QPN 0x%s PSN 0x%s RKey 0x%s VAddr 0x%s" % (hexa(2), hexa(4), hexa(6), hexa(6), hexa(16)))
    value = gbits if unit == "Gb/sec" else gbits * 1e9 / 8 / (1 << 20)
    top = value * 1.002 if peak is None else peak
    rate = gbits * 1e9 / 8 / (1 << 20) / 1e6
    out += [RULE, " #bytes     #iterations    BW peak[%s]    BW average[%s]   MsgRate[Mpps]" % (unit, unit),
            " 1048576    20000            %6.2f             %6.2f\t\t     %8.6f" % (top, value, rate), RULE]
    return "\n".join(out) + "\n"
