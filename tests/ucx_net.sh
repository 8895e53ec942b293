#!/usr/bin/env bash
# Two network namespaces as two machines, joined by tests/weather.py, whose interfaces take packets of 9,000 bytes, and a cluster
# whose tensors go over UCX's TCP between them. In the middle of it large packets are lost without a word (an MTU black hole), or
# all of TCP, or everything for 3 s: jobs must finish with the same tokens, and `status` must say what the link fell back to and why.
# Last, QUIC alone through the black hole. Needs a build with UCX, and what tests/netns.sh needs; skipped otherwise.
#
#   tests/ucx_net.sh [ASTERISM]      # default: target/release/asterism
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/support.sh
binary=$(realpath "${1:-target/release/asterism}")

needs_machines
[ -x "$binary" ] || { echo "error: $binary is not there; cargo build --release --features ucx"; exit 2; }
"$binary" bench transport --help | grep -q ucx-tcp || skip "$binary was built without UCX"

prefix="ucx$$"
folder=$(mktemp -d)
agents=()

machine() { ip netns exec "$prefix-$1" "${@:2}"; }
asterism() { machine first "$binary" "$@" -f "$folder/cluster.toml"; }
stop() {
    asterism down > /dev/null 2>&1 || true
    for pid in "${agents[@]}"; do kill "$pid" 2> /dev/null || true; done
    for pid in "${agents[@]}"; do wait "$pid" 2> /dev/null || true; done
    agents=()
}
cleanup() {
    stop
    remove_machines "" first second
    rm -rf "$folder"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

mtu=9000 make_machines 10.79.0 first second

export UCX_TLS=tcp
# A cluster whose tensors travel by $1, ready.
start() {
    rm -rf "$folder/data"
    cat > "$folder/cluster.toml" <<- END
	version = 1
	[cluster]
	name = "ucx"
	listen = "10.79.0.1:7400"
	data_dir = "data"
	[transport]
	data = "$1"
	[attention.star]
	[api]
	admin_listen = "127.0.0.1:7401"
	[[node]]
	name = "first"
	address = "10.79.0.1"
	[[node]]
	name = "second"
	address = "10.79.0.2"
	[[host]]
	name = "query-0"
	node = "first"
	role = "query"
	[[host]]
	name = "context-0"
	node = "second"
	role = "context"
	END
    asterism cert init > /dev/null
    ip netns exec "$prefix-first" "$binary" up --timeout 60 -f "$folder/cluster.toml" > "$folder/up.txt" 2>&1 &
    agents+=($!)
    ip netns exec "$prefix-second" "$binary" node --join 10.79.0.1:7400 --name second -f "$folder/cluster.toml" \
        > "$folder/second.txt" 2>&1 &
    agents+=($!)
    for _ in $(seq 120); do
        if asterism status -o json 2> /dev/null | grep -q '^  "ready": true'; then return; fi
        sleep 0.5
    done
    echo "error: the cluster is not ready"
    tail -n 5 "$folder"/*.txt "$folder"/data/logs/*.log
    exit 1
}
"$binary" eval make niah_single_1 --tokens 4k --samples 1 > "$folder/question.jsonl"
answer() { asterism job submit --input "$folder/question.jsonl" --max-tokens 48 -o json | tr -d ' \n' | grep -o '"tokens":\[[^]]*\]'; }
# Waits until DATA of the query host has all these words: a host reports its links once a second.
data() {
    local row until=$((SECONDS + 10))
    while ((SECONDS < until)); do
        row=$(asterism status 2> /dev/null | grep '^query-0')
        for words in "$@"; do [[ $row == *"$words"* ]] || continue 2; done
        return
    done
    echo "error: $* is not in: $row"
    exit 8
}
same() {
    if [ "$2" != "$wanted" ]; then echo "error: $1: $2"; exit 8; fi
    echo "$1, $SECONDS s after the start: the same tokens, $(asterism status 2> /dev/null | grep '^query-0' | grep -o '[0-9]* over .* ' | tr -s ' ')"
}

start auto
wanted=$(answer)
data "over ucx"
same "undisturbed" "$(answer)"
weather "limit 1400"
same "packets above 1,400 bytes lost" "$(answer)"
data "over quic" "nothing came over UCX" "MTU"
weather "limit 0"
stop

start auto
same "undisturbed" "$(answer)"
weather "block 6"
same "TCP lost" "$(answer)"
data "over quic" "nothing came over UCX"
weather "block 0"
stop

start auto
same "undisturbed" "$(answer)"
answer > "$folder/cut.txt" &
job=$!
weather "cut 10.79.0.2"
sleep 3
weather "heal 10.79.0.2"
wait "$job"
same "cut off for 3 s" "$(cat "$folder/cut.txt")"
stop

weather "limit 1400"
start quic
same "QUIC, packets above 1,400 bytes lost" "$(answer)"
weather end
cat <&"${network[0]}"
