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

[ "$(id -u)" = 0 ] || skip "network namespaces need root"
command -v ip > /dev/null || skip "there is no ip (iproute2)"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2> /dev/null || skip "there is no Python 3.10 or later"
[ -w /dev/net/tun ] || skip "there are no TUN devices"
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
    kill "${network_PID:-}" 2> /dev/null || true
    wait 2> /dev/null || true
    for name in first second; do ip netns del "$prefix-$name" 2> /dev/null || true; done
    rm -rf "$folder"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

coproc network { exec python3 tests/weather.py "${prefix}1=10.79.0.1" "${prefix}2=10.79.0.2" 2>&1; }
read -r said <&"${network[0]}"
[ "$said" = ready ] || skip "this machine lets nobody make a network: $said"
network() { printf '%s\n' "$@" >&"${network[1]}"; }
number=0
for name in first second; do
    number=$((number + 1))
    { ip netns add "$prefix-$name" && machine "$name" true; } 2> /dev/null ||
        skip "this machine lets nobody make a network namespace"
    ip link set "$prefix$number" netns "$prefix-$name"
    machine "$name" ip link set lo up
    machine "$name" ip addr add "10.79.0.$number/24" dev "$prefix$number"
    machine "$name" ip link set "$prefix$number" mtu 9000 up
done

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
# Waits until DATA of the query host has all these words.
data() {
    local row
    for _ in $(seq 40); do
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
network "limit 1400"
same "packets above 1,400 bytes lost" "$(answer)"
data "over quic" "nothing came over UCX" "MTU"
network "limit 0"
stop

start auto
same "undisturbed" "$(answer)"
network "block 6"
same "TCP lost" "$(answer)"
data "over quic" "nothing came over UCX"
network "block 0"
stop

start auto
same "undisturbed" "$(answer)"
answer > "$folder/cut.txt" &
job=$!
network "cut 10.79.0.2"
sleep 3
network "heal 10.79.0.2"
wait "$job"
same "cut off for 3 s" "$(cat "$folder/cut.txt")"
stop

network "limit 1400"
start quic
same "QUIC, packets above 1,400 bytes lost" "$(answer)"
network end
cat <&"${network[0]}"
