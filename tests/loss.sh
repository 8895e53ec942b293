#!/usr/bin/env bash
# QUIC, and UCX over TCP where PING has it, between two network namespaces as two machines, under tests/weather.py: bytes a
# second for 0 to 2% of packets lost and 1 ms of delay each way, in turn. Every transfer must complete; where all packets are
# lost from a moment on, both sides must be told. Needs what tests/netns.sh needs; skipped otherwise.
#
#   tests/loss.sh [PING]      # default: target/release/examples/ping (cargo build --release --workspace --example ping)
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/support.sh
ping=$(realpath "${1:-target/release/examples/ping}")

[ "$(id -u)" = 0 ] || skip "network namespaces need root"
command -v ip > /dev/null || skip "there is no ip (iproute2)"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2> /dev/null || skip "there is no Python 3.10 or later"
[ -w /dev/net/tun ] || skip "there are no TUN devices"
[ -x "$ping" ] || { echo "error: $ping is not there; cargo build --release --workspace --example ping"; exit 2; }

prefix="los$$"
servers=
cleanup() {
    kill $servers ${network_PID:-} 2> /dev/null || true
    wait 2> /dev/null || true
    for name in near far; do ip netns del "$prefix-$name" 2> /dev/null || true; done
}
trap cleanup EXIT
trap 'exit 130' INT TERM

coproc network { exec python3 tests/weather.py "${prefix}1=10.78.0.1" "${prefix}2=10.78.0.2" 2>&1; }
read -r said <&"${network[0]}"
[ "$said" = ready ] || skip "this machine lets nobody make a network: $said"
number=0
for name in near far; do
    number=$((number + 1))
    { ip netns add "$prefix-$name" && ip netns exec "$prefix-$name" true; } 2> /dev/null ||
        skip "this machine lets nobody make a network namespace"
    ip link set "$prefix$number" netns "$prefix-$name"
    ip netns exec "$prefix-$name" ip addr add "10.78.0.$number/24" dev "$prefix$number"
    ip netns exec "$prefix-$name" ip link set "$prefix$number" up
done

export UCX_TLS=tcp
ip netns exec "$prefix-far" "$ping" serve 10.78.0.2:7410 > /dev/null &
servers=$!
ip netns exec "$prefix-far" "$ping" --ucx serve 10.78.0.2:7411 > /dev/null 2>&1 &
servers="$servers $!"
ask() { ip netns exec "$prefix-near" timeout 120 "$ping" "$@"; }
failed() { echo "error: nothing came through at a loss of $1"; exit 8; }
said=$(ask --ucx ask 10.78.0.2:7411 1 1 2>&1) && ucx=yes || ucx=
[ -n "$ucx" ] || [[ $said == *"built without UCX"* ]] || { echo "error: UCX does not get through: $said"; exit 8; }
for loss in 0 0.001 0.005 0.01 0.02; do
    echo "weather $loss 0.001" >&"${network[1]}"
    printf '%s lost: ' "$loss"
    ask ask 10.78.0.2:7410 8388608 5 || failed "$loss"
    [ -z "$ucx" ] || { printf '%s lost: ' "$loss" && ask --ucx ask 10.78.0.2:7411 8388608 5; } || failed "$loss"
done

# Nothing passes any more, or no TCP: whoever sends must be told.
if [ -n "$ucx" ]; then
    for trouble in "cut 10.78.0.2" "block 6"; do
        echo "weather 0 0.001" >&"${network[1]}"
        started=$SECONDS
        ask --ucx ask 10.78.0.2:7411 8388608 100000 > "/tmp/$prefix.txt" 2>&1 &
        asker=$!
        sleep 2
        echo "$trouble" >&"${network[1]}"
        wait "$asker" && { echo "error: nobody noticed: $trouble"; exit 8; }
        echo "$trouble after 2 s: told $((SECONDS - started)) s after the start: $(grep -m 1 '^Error' "/tmp/$prefix.txt")"
        rm -f "/tmp/$prefix.txt"
        printf 'heal 10.78.0.2\nblock 0\n' >&"${network[1]}"
    done
fi
