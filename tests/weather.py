#!/usr/bin/env python3
"""The network between the machines of tests/netns.sh: it carries IP packets between TUN devices, loses some and delays all.
It knows no protocol above IP, and needs nothing of the kernel but TUN.

    weather.py NAME=ADDRESS...      makes one device a name, prints "ready", then obeys lines of standard input:

    weather LOSS DELAY              share of packets to lose, seconds to hold each of the others
    cut ADDRESS / heal ADDRESS      nothing passes to or from it any more / again
    limit BYTES                     no larger packets pass, and nobody is told; 0 lets all pass
    block PROTOCOL                  no packets of IP protocol number PROTOCOL (6 is TCP) pass; 0 lets all pass
    end                             prints what passed; the end of the input does the same
"""

import fcntl
import heapq
import os
import random
import selectors
import socket
import struct
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TUN_NO_PI = 0x0001 | 0x1000


def device(name):
    """A TUN device: what a machine sends to the interface is read here, what is written here arrives at the machine."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN_NO_PI))
    return fd


def main():
    devices = {socket.inet_aton(address): device(name) for name, address in (pair.split("=") for pair in sys.argv[1:])}
    random.seed(1)
    loss, delay, cut, under_way, sent, lost = 0.0, 0.0, set(), [], 0, 0
    limit, blocked = 0, 0
    selector = selectors.DefaultSelector()
    for source, fd in devices.items():
        selector.register(fd, selectors.EVENT_READ, source)
    orders = os.fdopen(0, "rb", buffering=0)  # a buffer would hide lines from the selector
    selector.register(orders, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for key, _ in selector.select(wait):
            if key.fileobj is orders:
                match orders.readline().decode().split():
                    case [] | ["end"]:
                        print(f"{sent} packets, {lost} of them lost", flush=True)
                        return
                    case ["weather", share, seconds]:
                        loss, delay = float(share), float(seconds)
                    case ["cut", address]:
                        cut.add(socket.inet_aton(address))
                    case ["heal", address]:
                        cut.discard(socket.inet_aton(address))
                    case ["limit", size]:
                        limit = int(size)
                    case ["block", protocol]:
                        blocked = int(protocol)
                    case words:
                        sys.exit(f"weather.py: unknown words: {' '.join(words)}")
                continue
            packet = os.read(key.fd, 65536)
            source, target = key.data, packet[16:20]
            if packet[0] >> 4 != 4 or target not in devices or source in cut or target in cut:
                continue
            if (limit and len(packet) > limit) or (blocked and packet[9] == blocked):
                continue
            sent += 1
            if random.random() < loss:
                lost += 1
            else:
                heapq.heappush(under_way, (time.monotonic() + delay, sent, devices[target], packet))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, fd, packet = heapq.heappop(under_way)
            try:
                os.write(fd, packet)
            except OSError:
                lost += 1  # the machine takes none now; its protocols cope


main()
