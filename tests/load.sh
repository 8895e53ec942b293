#!/bin/sh
# A cluster under load: busy processes beside it and a memory limit that makes its hosts wait for pages, while jobs come in a
# stream. No host may be declared dead, every job is answered, and a host that is stopped is noticed within four seconds.
# Linux only; needs a memory cgroup that this user may make.
#
#   tests/load.sh BINARY [SECONDS [BUSY [LIMIT_MIB]]]   (180 s, 24, what hosts have after a job and 288 MiB for the next)
set -eu
binary=$(realpath "$1") seconds=${2:-180} busy=${3:-24} limit=${4:-0}
place=$(mktemp -d) group= pids=
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    base=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup) knob=memory.max used=memory.current
else
    base=/sys/fs/cgroup/memory$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup) knob=memory.limit_in_bytes used=memory.usage_in_bytes
fi
end() {
    for pid in $pids; do kill "$pid" 2>/dev/null || :; done
    [ -z "$group" ] || echo max >"$group/$knob" 2>/dev/null || echo -1 >"$group/$knob" || :
    "$place/asterism" down -f "$place/cluster.toml" 2>/dev/null || :
    [ -z "$group" ] || for _ in 1 2 3 4 5 6 7 8 9 10; do rmdir "$group" 2>/dev/null && break; sleep 1; done
    rm -rf "$place"
}
trap end EXIT
trap 'exit 130' INT TERM
mkdir "$base/asterism-load" || { echo "no memory cgroup can be made at $base: run this where one can"; exit 77; }
group=$base/asterism-load
[ -w "$group/$knob" ] || { echo "$group has no $knob: enable the memory controller for it"; exit 77; }

cd "$place"
# The program's pages are charged to who reads them first: so that they can be taken away, its copy is made within the group.
sh -c 'echo $$ >"$1/cgroup.procs" && exec cp "$2" asterism' sh "$group" "$binary"
./asterism init --hosts 4 | sed 's/127.0.0.1:740[01]/127.0.0.1:0/' >cluster.toml
i=0; while [ $i -lt 700 ]; do echo "In the evening of day $i the harbour was quiet and the boats lay at the quay."; i=$((i + 1)); done | head -c 14000 >text.txt
# A large file keeps its pages on the move.
head -c 268435456 /dev/zero >pages
sh -c 'echo $$ >"$1/cgroup.procs" && exec ./asterism up' sh "$group" >up.log 2>&1 &
pids=$!
until ./asterism status 2>&1 | grep -q "is ready"; do sleep 0.5; done
./asterism job submit --context text.txt --query "Where?" --max-tokens 8 >/dev/null 2>&1
if [ "$limit" = 0 ]; then
    anon=$(sed -n 's/^\(total_rss\|anon\) //p' "$group/memory.stat" | head -1)
    limit=$((anon / 1048576 + 288))
fi
echo $((limit * 1048576)) >"$group/$knob"
echo "limit $limit MiB, used $(($(cat "$group/$used") / 1048576)) MiB, $busy busy processes, $seconds s"
n=0; while [ $n -lt "$busy" ]; do sh -c 'while :; do :; done' & pids="$pids $!"; n=$((n + 1)); done
# Somebody of the group reads a file that is larger than what is left.
sh -c 'echo $$ >"$1/cgroup.procs"; while :; do cat pages; done' sh "$group" >/dev/null & pids="$pids $!"

began=$(date +%s) jobs=0 failed=0 stopped=
while [ $(($(date +%s) - began)) -lt "$seconds" ]; do
    jobs=$((jobs + 1))
    ./asterism job submit --context text.txt --query "Where did they go on day $jobs?" --max-tokens 8 >/dev/null 2>job.log || { failed=$((failed + 1)); tail -3 job.log; }
    if [ -z "$stopped" ] && [ $(($(date +%s) - began)) -gt $((seconds / 2)) ]; then
        ./asterism host list -o jsonl >before.json 2>/dev/null
        lost=$(grep -c '"restarts":[1-9]' before.json || :)
        stopped=$(./asterism host show context-1 -o json 2>/dev/null | sed -n 's/.*"pid": \([0-9]*\).*/\1/p')
        kill -STOP "$stopped"; at=$(date +%s%N)
        until [ ! -e "/proc/$stopped" ]; do sleep 0.05; done
        noticed=$((($(date +%s%N) - at) / 1000000))
    fi
done
cat "$place"/.asterism/*/logs/supervisor.log "$place"/up.log 2>/dev/null | grep -i "host \(lost\|suspect\|back\)" | sed 's/\x1b\[[0-9;]*m//g' | tail -40
echo "jobs $jobs, failed $failed, hosts lost before the stop ${lost:-?}, stop noticed after ${noticed:-?} ms, $(sed -n 's/^pgmajfault //p' "$group/memory.stat") major faults"
./asterism host list 2>/dev/null
[ "$failed" = 0 ] && [ "${lost:-1}" = 0 ] && [ "${noticed:-9999}" -le 4000 ]
