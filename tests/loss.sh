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

needs_machines
[ -x "$ping" ] || { echo "error: $ping is not there; cargo build --release --workspace --example ping"; exit 2; }

prefix="los$$"
servers=
cleanup() {
    remove_machines "$servers" near far
}
trap cleanup EXIT
trap 'exit 130' INT TERM

make_machines 10.78.0 near far

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
    weather "weather $loss 0.001"
    printf '%s lost: ' "$loss"
    ask ask 10.78.0.2:7410 8388608 5 || failed "$loss"
    [ -z "$ucx" ] || { printf '%s lost: ' "$loss" && ask --ucx ask 10.78.0.2:7411 8388608 5; } || failed "$loss"
done

# Nothing passes any more, or no TCP: whoever sends must be told.
if [ -n "$ucx" ]; then
    for trouble in "cut 10.78.0.2" "block 6"; do
        weather "weather 0 0.001"
        started=$SECONDS
        ask --ucx ask 10.78.0.2:7411 8388608 100000 > "/tmp/$prefix.txt" 2>&1 &
        asker=$!
        sleep 2
        weather "$trouble"
        wait "$asker" && { echo "error: nobody noticed: $trouble"; exit 8; }
        echo "$trouble after 2 s: told $((SECONDS - started)) s after the start: $(grep -m 1 '^Error' "/tmp/$prefix.txt")"
        rm -f "/tmp/$prefix.txt"
        weather "heal 10.78.0.2" "block 0"
    done
fi
