"""Levels of healthy machines, from public measurements: the rate of one copy, one port, one collective."""
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Platform:
    name: str                  # as claimed; "" for an unknown name
    device: str                # product name that the tools print
    gpus: int                  # GPUs of a node
    links: int                 # NVLinks of a GPU
    groups: tuple              # how its links spread over switches (racks: one link to each plane)
    copy: float                # nvbandwidth CE, one direction, GB/s
    p2p: float                 # p2pBandwidthLatencyTest, one direction, GB/s
    h2d: float                 # host to device, CE, GB/s
    d2h: float
    allreduce: float           # busbw of an all-reduce over all GPUs of a node
    link_rate: str             # one link in nvidia-smi nvlink -s
    gather: float = 0.0        # busbw of all_gather
    nominal: float = 0.0       # datasheet rate of a GPU, one direction
    rack: int = 1              # nodes of a domain
    rack_allreduce: float = 0.0
    local: float = 1250.0      # local copy, bytes counted once
    driver: str = "570.124.06"
    bridged: tuple = field(default=())   # pairs with a bridge; () means a switch joins all


HGX_A100 = Platform("hgx-a100", "NVIDIA A100-SXM4-80GB", 8, 12, (2,) * 6, 275.8, 274.0, 26.0, 26.0, 235.0, "25", 223.4, 300)
HGX_H100 = Platform("hgx-h100", "NVIDIA H100 80GB HBM3", 8, 18, (5, 4, 4, 5), 394.0, 376.0, 55.4, 55.0, 478.0, "26.562", 355.0, 450)
HGX_H200 = Platform("hgx-h200", "NVIDIA H200", 8, 18, (5, 4, 4, 5), 396.4, 378.0, 55.43, 55.06, 480.0, "26.562", 361.4, 450)
HGX_B200 = Platform("hgx-b200", "NVIDIA B200", 8, 18, (9, 9), 770.0, 746.0, 55.4, 55.1, 840.0, "53.125", 682.0, 900)
GB200 = Platform("gb200-nvl72", "NVIDIA GB200", 4, 18, (1,) * 18, 770.0, 746.0, 201.0, 193.0, 679.6, "53.125", 650.0, 900,
                 rack=18, rack_allreduce=840.0)
GB300 = Platform("gb300-nvl72", "NVIDIA GB300", 4, 18, (1,) * 18, 770.0, 746.0, 201.0, 193.0, 680.0, "53.125", 650.0, 900,
                 rack=18, rack_allreduce=842.0)
GB200_NVL4 = Platform("", "NVIDIA GB200", 4, 18, (18,), 252.0, 245.0, 201.0, 193.0, 240.0, "53.125", 230.0, 300)
H100_NVL = Platform("h100-nvl", "NVIDIA H100 NVL", 2, 12, (12,), 256.6, 250.0, 55.2, 54.9, 216.0, "26.562", 210.0, 300,
                    bridged=((0, 1),))
H100_NVL4 = Platform("h100-nvl", "NVIDIA H100 NVL", 4, 12, (12,), 256.6, 250.0, 55.2, 54.9, 26.0, "26.562", 25.0, 300,
                     bridged=((0, 1), (2, 3)))
GH200 = Platform("gh200", "NVIDIA GH200 480GB", 1, 18, (18,), 396.0, 380.0, 346.0, 295.0, 0.0, "26.562", 0.0, 450)
L40S = Platform("", "NVIDIA L40S", 8, 0, (), 24.9, 24.2, 26.5, 26.4, 20.0, "", 20.0, 31)
RTX6000 = Platform("", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 8, 0, (), 54.0, 53.0, 57.0, 56.5, 40.0, "", 40.0, 63)
NETWORK = Platform("", "", 0, 0, (), 0, 0, 0, 0, 0, "")

NDR = 392.0     # Gb/s, ib_write_bw with several queue pairs
HDR = 196.0
BY_NAME = {p.name: p for p in (HGX_A100, HGX_H100, HGX_H200, HGX_B200, GB200, GB300, H100_NVL, GH200)}
