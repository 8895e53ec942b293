#!/bin/sh
# A cluster under load: busy processes beside it and a memory limit that makes its hosts wait for pages, while jobs come in a
# stream. No host but the one that is stopped may be declared dead, before that or after, every job is answered, hosts wait for pages
# at least a hundred times, none is killed for memory, and the stop is noticed within four seconds. Linux only; needs a memory
# cgroup that this user may make.
#
#   tests/load.sh BINARY [SECONDS [BUSY [ROOM_MIB]]]   (180 s, 24, and 48 MiB of room for files beside what a job took at most)
set -eu
binary=$(realpath "$1") seconds=${2:-180} busy=${3:-24} room=${4:-48}
place=$(mktemp -d) group= pids=
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    base=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup) knob=memory.high used=memory.current
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
# What hosts have of their own cannot be taken away where there is no swap, and what they read from files can.
anon() { sed -n 's/^\(total_rss\|anon\) //p' "$group/memory.stat" | head -1; }
most=0
for n in 1 2 3; do
    ./asterism job submit --context text.txt --query "Where?" --max-tokens 8 >/dev/null 2>&1 & job=$!
    while kill -0 $job 2>/dev/null; do now=$(anon); [ "$now" -le "$most" ] || most=$now; sleep 0.02; done
    wait $job
done
limit=$((most / 1048576 + room))
echo $((limit * 1048576)) >"$group/$knob"
# Who finds no page waits for one: nobody is killed, and where all wait the limit grows a little.
if [ -e "$group/memory.oom_control" ]; then
    echo 1 >"$group/memory.oom_control"
    while sleep 0.1; do
        ! grep -q "^under_oom 1" "$group/memory.oom_control" || { limit=$((limit + 8)); echo $((limit * 1048576)) >"$group/$knob"; echo "$limit" >"$place/limit"; }
    done & pids="$pids $!"
fi
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
# The stopped host is lost once; whatever else is lost was alive.
losses=$(sed 's/\x1b\[[0-9;]*m//g' "$place"/.asterism/*/logs/supervisor.log 2>/dev/null | grep -c "host lost" || :)
others=$((losses - 1))
faults=$(sed -n 's/^pgmajfault //p' "$group/memory.stat")
killed=$(sed -n 's/^oom_kill //p' "$group/memory.oom_control" "$group/memory.events" 2>/dev/null || :)
said() { cat "$place"/.asterism/*/logs/supervisor.log "$place"/up.log 2>/dev/null | sed 's/\x1b\[[0-9;]*m//g' | grep -i "$1" | cut -c1-400; }
said "host \(suspect\|back\)\|supervisor" | tail -20
said "host \(lost\|ended\|is started again\)"
echo "jobs $jobs, failed $failed, hosts lost before the stop ${lost:-?} and $others besides the stopped one in all, stop noticed after ${noticed:-?} ms, $faults major faults, limit $(cat limit 2>/dev/null || echo "$limit") MiB in the end, ${killed:-0} killed for memory"
./asterism host list 2>/dev/null
[ "$failed" = 0 ] && [ "${lost:-1}" = 0 ] && [ "$others" = 0 ] && [ "${noticed:-9999}" -le 4000 ] && [ "$faults" -ge 100 ] && [ "${killed:-0}" = 0 ]
