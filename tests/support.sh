# What the scripts of this folder share. Sourced from the repository's root.

# Ends a script that a machine cannot run, loudly; it fails where nothing may be skipped.
skip() {
  echo "SKIPPED, nothing was tested: $1" >&2
  [ "${ASTERISM_REQUIRE:-}" != all ]
  exit
}

# Ends a script that needs machines, where none can be made.
needs_machines() {
  [ "$(id -u)" = 0 ] || skip "network namespaces need root"
  command -v ip > /dev/null || skip "there is no ip (iproute2)"
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2> /dev/null || skip "there is no Python 3.10 or later"
  [ -w /dev/net/tun ] || skip "there are no TUN devices"
}

# Makes machines: a network namespace "$prefix-NAME" each, with the address NETWORK.1, NETWORK.2 and so on, joined by tests/weather.py, which does
# what `weather` tells it. Answers are read from "${network[0]}".
make_machines() { # NETWORK NAME...
  local name number=0 ends=() network_of=$1
  shift
  for name; do
    number=$((number + 1))
    ends+=("$prefix$number=$network_of.$number")
  done
  coproc network { exec python3 tests/weather.py "${ends[@]}" 2>&1; }
  read -r said <&"${network[0]}"
  [ "$said" = ready ] || skip "this machine lets nobody make a network: $said"
  number=0
  for name; do
    number=$((number + 1))
    { ip netns add "$prefix-$name" && ip netns exec "$prefix-$name" true; } 2> /dev/null ||
      skip "this machine lets nobody make a network namespace"
    ip link set "$prefix$number" netns "$prefix-$name"
    ip netns exec "$prefix-$name" ip link set lo up
    ip netns exec "$prefix-$name" ip addr add "$network_of.$number/24" dev "$prefix$number"
    ip netns exec "$prefix-$name" ip link set "$prefix$number" mtu "${mtu:-1500}" up
  done
}

# What the network between the machines does from now on, a line each.
weather() { printf '%s\n' "$@" >&"${network[1]}"; }

# Ends these processes and the network, and takes the machines away.
remove_machines() { # "PID..." NAME...
  local name
  # Whatever has ended already.
  kill $1 ${network_PID:-} 2> /dev/null || true
  wait 2> /dev/null || true
  shift
  for name; do ip netns del "$prefix-$name" 2> /dev/null || true; done
}
