#!/usr/bin/env bash
# A cluster whose machines come and go, each a network namespace with a folder of its own: under a loop of jobs a third machine joins and the
# first one's host goes; then the first machine, where the supervisor is, is backed up, killed and wiped, and a fourth one is the
# supervisor's. Hosts follow, every job has the tokens of an undisturbed one, what was answered is still known, and a session answers the same.
# Needs what tests/netns.sh needs; skipped otherwise.
#
#   tests/machines.sh [ASTERISM]      # default: target/release/asterism
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/support.sh
binary=$(realpath "${1:-target/release/asterism}")

needs_machines
[ -x "$binary" ] || { echo "error: $binary is not there; cargo build --release"; exit 2; }

prefix="asm$$"
folder=$(mktemp -d)
machines=(first second third fourth)
pids=()
unset ASTERISM_SERVER

# Runs the program on a machine, in its folder, in the place of this shell: start it with `( )` or `&`.
on() { # NAME ARGUMENT...
    cd "$folder/$1"
    exec ip netns exec "$prefix-$1" "$binary" "${@:2}"
}
stays() { # NAME ARGUMENT...
    on "$@" >> "$folder/$1-$2.log" 2>&1 &
    pids+=($!)
}
cleanup() {
    remove_machines "${pids[*]}" "${machines[@]}"
    rm -rf "$folder"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
failed() {
    echo "error: $1" >&2
    tail -n 8 "$folder"/*.log "$folder"/*/data/logs/*.log >&2 || true
    exit 8
}
trap 'failed "line $LINENO"' ERR

make_machines 10.81.0 "${machines[@]}"
# The cluster file with hosts on these machines, the query host on the second.
file() { # NAME...
    local name
    cat << FILE
version = 1
[cluster]
name = "machines"
listen = "0.0.0.0:7400"
data_dir = "data"
[supervisor]
recovery = "redistribute"
[attention.star]
block_tokens = 512
[security]
join_listen = "0.0.0.0:7402"
[api]
admin_listen = "127.0.0.1:7401"
[[host]]
name = "query-0"
node = "second"
role = "query"
FILE
    declare -A address=([first]=10.81.0.1 [second]=10.81.0.2 [third]=10.81.0.3)
    for name; do
        printf '[[node]]\nname = "%s"\naddress = "%s"\n' "$name" "${address[$name]}"
        printf '[[host]]\nname = "context-%s"\nnode = "%s"\nrole = "context"\n' "$name" "$name"
    done
}
mkdir "${machines[@]/#/$folder/}"

# Waits until the supervisor on a machine says that these context hosts are ready and no others are there.
ready() { # MACHINE NAME...
    local wanted said
    wanted=$(printf 'context-%s\n' "${@:2}" | sort)
    for _ in $(seq 120); do
        said=$( (on "$1" status) 2> "$folder/status.log" | grep -E '^context-[a-z]+ .* ready ' | cut -d' ' -f1 | sort) || true
        if [ "$said" = "$wanted" ]; then return; fi
        sleep 0.5
    done
    failed "ready are '$said', expected '$wanted'"
}
# The tokens of what a machine's command prints.
tokens() { # NAME ARGUMENT...
    (on "$@" -o json) 2>> "$folder/jobs.log" | tr -d ' \n' | grep -o '"tokens":\[[^]]*\]'
}
answer() { # MACHINE ID
    tokens "$1" job submit --id "$2" --context "$folder/book.txt" --query "What is the grass?" --max-tokens 24
}
ask() { # MACHINE
    tokens "$1" session ask book "What is the sky?" --max-tokens 8
}
same() { # WHAT WANTED GOT
    [ "$3" = "$2" ] || failed "$1: $3, expected $2"
    echo "$SECONDS s: $1: the same tokens"
}
# Starts the agent of a machine that has the first one's cluster file, with a token.
joins() { # NAME
    cp "$folder/first/cluster.toml" "$folder/$1/"
    (on first cert token --node "$1" --ttl 1h) > "$folder/$1/token" 2>> "$folder/jobs.log"
    stays "$1" node --join 10.81.0.1:7400,10.81.0.4:7400 --token-file token --name "$1"
}

file first second > "$folder/first/cluster.toml"
stays first supervisor
for _ in $(seq 60); do
    if (on first status) > /dev/null 2>&1; then break; fi
    sleep 0.5
done
stays first node --join 10.81.0.1:7400 --name first
joins second
ready first first second
for page in $(seq 120); do echo "On page $page the sky is blue, and the grass is green."; done > "$folder/book.txt"
(on first session create --name book --context "$folder/book.txt") >> "$folder/jobs.log" 2>&1
wanted=$(answer first undisturbed)
book=$(ask first)
echo "$SECONDS s: undisturbed: $wanted"

# Jobs, one after the other, until there is a file.
loop() {
    local number=0
    until [ -e "$folder/enough" ]; do
        number=$((number + 1))
        answer first "loop-$number" > "$folder/answered" || echo "job loop-$number failed" >> "$folder/wrong"
        [ "$(cat "$folder/answered")" = "$wanted" ] || echo "loop-$number: $(cat "$folder/answered")" >> "$folder/wrong"
        echo "$number" > "$folder/count"
    done
}
echo 0 > "$folder/count"
loop &
asking=$!

file first second third > "$folder/first/cluster.toml"
(on first config apply cluster.toml) >> "$folder/jobs.log" 2>&1
joins third
ready first first second third
echo "$SECONDS s: a third machine works, after $(cat "$folder/count") jobs"
file second third > "$folder/first/cluster.toml"
(on first config apply cluster.toml) >> "$folder/jobs.log" 2>&1
ready first second third
before=$(cat "$folder/count")
for _ in $(seq 120); do
    [ "$(cat "$folder/count")" -ge $((before + 2)) ] && break
    sleep 0.5
done
touch "$folder/enough"
wait "$asking"
[ ! -e "$folder/wrong" ] || failed "$(cat "$folder/wrong")"
[ "$(cat "$folder/count")" -ge $((before + 2)) ] || failed "jobs do not go on"
echo "$SECONDS s: the first machine has no host any more; $(cat "$folder/count") jobs under it: the same tokens"
same "the session" "$book" "$(ask first)"

(on first backup "$folder/asterism.tar") >> "$folder/jobs.log" 2>&1
ip netns pids "$prefix-first" | xargs kill -KILL
rm -rf "$folder/first"
(on fourth restore "$folder/asterism.tar" -f cluster.toml) >> "$folder/jobs.log" 2>&1
stays fourth supervisor
ready fourth second third
same "what was answered before" "$wanted" "$(tokens fourth job status undisturbed)"
same "a job of the fourth machine's" "$wanted" "$(answer fourth afterwards)"
same "the session" "$book" "$(ask fourth)"
