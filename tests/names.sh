#!/usr/bin/env bash
# Machines that are known by names, and come back at other addresses, as pods do: a context host's machine and then the
# supervisor's. Nobody else is restarted, and answers stay the same. Names stand in a file of hosts that a mount namespace has for itself. Needs root
# and unshare; skipped otherwise.
#
#   tests/names.sh [ASTERISM]      # default: target/release/asterism
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/support.sh
binary=$(realpath "${1:-target/release/asterism}")

[ -x "$binary" ] || { echo "error: $binary is not there; cargo build --release"; exit 2; }
if [ -z "${NAMES_ALONE:-}" ]; then
    [ "$(id -u)" = 0 ] || skip "a mount namespace needs root"
    unshare --mount true 2> /dev/null || skip "this machine lets nobody make a mount namespace"
    NAMES_ALONE=1 exec unshare --mount --propagation private "$0" "$binary"
fi

folder=$(mktemp -d)
pids=()
cleanup() {
    for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null || true; done
    wait 2> /dev/null || true
    rm -rf "$folder"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
failed() {
    echo "error: $1" >&2
    tail -n 8 "$folder"/*.log "$folder"/*/logs/*.log >&2 || true
    exit 1
}

cat /etc/hosts > "$folder/hosts"
mount --bind "$folder/hosts" /etc/hosts
declare -A at=([first]=127.0.9.1 [second]=127.0.9.2)
names() {
    { echo 127.0.0.1 localhost; for name in first second; do echo "${at[$name]} $name.room"; done; } > "$folder/hosts"
}
names

read -r hosts join admin < <(python3 -c '
import socket
free = [socket.socket(type=kind) for kind in (socket.SOCK_DGRAM, socket.SOCK_DGRAM, socket.SOCK_STREAM)]
for one in free: one.bind(("", 0))
print(*(one.getsockname()[1] for one in free))')
cat > "$folder/cluster.toml" << FILE
version = 1
[cluster]
name = "names"
listen = "127.0.9.1:$hosts"
[attention.dense]
[security]
join_listen = "127.0.9.1:$join"
[api]
admin_listen = "127.0.0.1:$admin"
[[node]]
name = "first"
address = "first.room"
[[node]]
name = "second"
address = "second.room"
[[host]]
name = "query-0"
node = "first"
role = "query"
[[host]]
name = "context-0"
node = "first"
role = "context"
[[host]]
name = "context-1"
node = "second"
role = "context"
FILE
asterism() { "$binary" "$@" -f "$folder/cluster.toml"; }
start() { # NAME DATA_DIR ARGUMENTS...
    local name=$1 data=$2
    shift 2
    ASTERISM__CLUSTER__DATA_DIR="$folder/$data" ASTERISM__SECURITY__JOIN_LISTEN="${at[first]}:$join" \
        "$binary" "$@" -f "$folder/cluster.toml" >> "$folder/$name.log" 2>&1 &
    pids+=($!)
    last=$!
}
supervisor() { start supervisor data supervisor --listen "${at[first]}:$hosts"; }
node() { # NAME
    start "$1" "$1" node --join "first.room:$hosts" --token-from "first.room:$join" --token-file "$folder/$1.token" --name "$1"
}
export ASTERISM_SERVER="http://127.0.0.1:$admin"
ready() { # the number of hosts, and a place that one of them has
    for _ in $(seq 240); do
        status=$(asterism status -o json 2> /dev/null || true)
        if [ "$(grep -c '"health": "ready"' <<< "$status")" = "$1" ] && grep -qF "$2" <<< "$status"; then return; fi
        sleep 0.25
    done
    failed "not $1 hosts, one of them at $2"
}
answer() {
    asterism job submit --context examples/harbour.txt --query "What is the special magic number for harbour-lantern?" \
        --max-tokens 24 -o json | tr -d ' \n' | grep -o '"tokens":\[[^]]*\]'
}
same() { if [ "$(answer)" = "$wanted" ]; then echo "$SECONDS s: $1: the same tokens"; else failed "$1: other tokens"; fi; }

supervisor
on_first=$last
for name in first second; do
    for _ in $(seq 240); do
        if asterism cert token --node "$name" --save "$folder/$name.token" 2> "$folder/token.log"; then break; fi
        sleep 0.25
    done
    [ -s "$folder/$name.token" ] || failed "no token for $name"
    node "$name"
done
on_second=$last
ready 3 127.0.9.2
wanted=$(answer)
echo "$SECONDS s: machines known by names: $wanted"

kill -9 "$on_second"
at[second]=127.0.9.7
names
node second
ready 3 127.0.9.7
same "a context host's machine came back at another address"

kill "$on_first"
wait "$on_first" || true
at[first]=127.0.9.8
names
supervisor
ready 3 127.0.9.7
grep -q 'is lost' "$folder/second.log" || failed "the second machine's agent did not notice"
kill -0 "${pids[1]}" || failed "the first machine's agent was restarted"
same "the supervisor's machine came back at another address"
