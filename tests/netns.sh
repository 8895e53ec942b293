#!/usr/bin/env bash
# Three network namespaces as three machines, joined by tests/weather.py: 1% of packets lost, 20 ms of delay each way, one
# machine cut off for 10 s and healed. Jobs must finish with the tokens of an undisturbed run. Needs root, iproute2, Python
# 3.10 and TUN devices; skipped otherwise.
#
#   tests/netns.sh [ASTERISM]      # default: target/release/asterism
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/support.sh
binary=$(realpath "${1:-target/release/asterism}")

needs_machines
[ -x "$binary" ] || { echo "error: $binary is not there; cargo build --release"; exit 2; }

prefix="ast$$"
folder=$(mktemp -d)
agents=()

machine() { ip netns exec "$prefix-$1" "${@:2}"; }
asterism() { machine first "$binary" "$@" -f "$folder/cluster.toml"; }

cleanup() {
    asterism down > /dev/null 2>&1 || true
    remove_machines "${agents[*]}" first second third
    rm -rf "$folder"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

make_machines 10.77.0 first second third

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
echo "undisturbed, $SECONDS s after the start: $wanted"

same() {
    if [ "$2" != "$wanted" ]; then echo "error: $1: $2"; exit 8; fi
    echo "$1, $SECONDS s after the start: the same tokens"
}

weather "weather 0.01 0.02"
same "1% lost, 20 ms of delay" "$(answer)"
answer > "$folder/cut.txt" &
job=$!
sleep 1
weather "cut 10.77.0.3"
sleep 10
weather "heal 10.77.0.3"
wait "$job"
same "third machine cut off for 10 s" "$(cat "$folder/cut.txt")"
ready
same "healed" "$(answer)"
weather end
cat <&"${network[0]}"
