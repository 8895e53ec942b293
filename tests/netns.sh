#!/usr/bin/env bash
# Three network namespaces as three machines, joined by a bridge: 1% of packets lost, 20 ms of delay, one machine cut off
# for 10 s and healed. Jobs must finish with the tokens of an undisturbed run. Needs root and iproute2; skipped otherwise.
#
#   tests/netns.sh [ASTERISM]      # default: target/release/asterism
set -euo pipefail
cd "$(dirname "$0")/.."
binary=$(realpath "${1:-target/release/asterism}")

skip() { echo "skipped: $1"; exit 0; }
[ "$(id -u)" = 0 ] || skip "network namespaces need root"
command -v ip > /dev/null || skip "there is no ip (iproute2)"
command -v tc > /dev/null || skip "there is no tc (iproute2)"
[ -x "$binary" ] || { echo "error: $binary is not there; cargo build --release"; exit 2; }

prefix="ast$$"
bridge="${prefix}br"
folder=$(mktemp -d)
agents=()

machine() { ip netns exec "$prefix-$1" "${@:2}"; }
asterism() { machine first "$binary" "$@" -f "$folder/cluster.toml"; }

cleanup() {
    asterism down > /dev/null 2>&1 || true
    for pid in "${agents[@]}"; do kill "$pid" 2> /dev/null || true; done
    wait 2> /dev/null || true
    for name in first second third; do ip netns del "$prefix-$name" 2> /dev/null || true; done
    ip link del "$bridge" 2> /dev/null || true
    rm -rf "$folder"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

ip link add "$bridge" type bridge 2> /dev/null || skip "this machine lets nobody make a bridge"
ip link set "$bridge" up
number=0
for name in first second third; do
    number=$((number + 1))
    ip netns add "$prefix-$name"
    ip link add "$prefix$number" type veth peer name eth0 netns "$prefix-$name"
    ip link set "$prefix$number" master "$bridge" up
    machine "$name" ip link set lo up
    machine "$name" ip addr add "10.77.0.$number/24" dev eth0
    machine "$name" ip link set eth0 up
done

cp tests/netns.toml "$folder/cluster.toml"
asterism cert init > /dev/null
# Started without a function, so that $! is the process itself.
ip netns exec "$prefix-first" "$binary" up --timeout 60 -f "$folder/cluster.toml" > "$folder/up.txt" 2>&1 &
agents+=($!)
for name in second third; do
    ip netns exec "$prefix-$name" "$binary" node --join 10.77.0.1:7400 --name "$name" -f "$folder/cluster.toml" \
        > "$folder/$name.txt" 2>&1 &
    agents+=($!)
done

ready() {
    for _ in $(seq 120); do
        if machine first "$binary" status -o json -f "$folder/cluster.toml" 2> /dev/null | grep -q '^  "ready": true'; then return; fi
        sleep 0.5
    done
    echo "error: the cluster is not ready"
    tail -n 5 "$folder"/*.txt "$folder"/data/logs/*.log
    exit 1
}

"$binary" eval make niah_single_1 --tokens 4k --samples 1 > "$folder/question.jsonl"
answer() { asterism job submit --input "$folder/question.jsonl" --max-tokens 48 -o json | tr -d ' \n' | grep -o '"tokens":\[[^]]*\]'; }

ready
wanted=$(answer)
echo "undisturbed: $wanted"
weather="1% lost, 20 ms of delay"
for name in first second third; do
    machine "$name" tc qdisc add dev eth0 root netem loss 1% delay 20ms 2> /dev/null || weather="no loss and no delay: this kernel has no netem"
done

same() {
    if [ "$2" != "$wanted" ]; then echo "error: $1: $2"; exit 8; fi
    echo "$1: the same tokens"
}

same "$weather" "$(answer)"
answer > "$folder/cut.txt" &
job=$!
sleep 1
ip link set "${prefix}3" down
sleep 10
ip link set "${prefix}3" up
wait "$job"
same "third machine cut off for 10 s" "$(cat "$folder/cut.txt")"
ready
same "healed" "$(answer)"
