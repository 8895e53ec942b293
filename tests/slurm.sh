#!/usr/bin/env bash
# A Slurm of its own on this machine, a controller and four slurmd, and `asterism launch slurm` in it: a job over four nodes answers
# rightly, nodes are labelled by their switches, a node that dies half way costs nothing, a requeue finishes what was under way and
# keeps sessions, `scancel` leaves no process, and the interactive form runs a command. Needs root, Slurm and munge (Debian:
# slurm-wlm, munge); skipped otherwise.
#
#   tests/slurm.sh [ASTERISM]      # default: target/release/asterism
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/support.sh
binary=$(realpath "${1:-target/release/asterism}")

[ "$(id -u)" = 0 ] || skip "slurmd needs root"
for program in slurmctld slurmd munged sbatch; do command -v "$program" > /dev/null || skip "there is no $program"; done
[ -x "$binary" ] || { echo "error: $binary is not there; cargo build --release"; exit 2; }

folder=$(mktemp -d)
chmod 755 "$folder"
export SLURM_CONF="$folder/slurm.conf"
mkdir -p "$folder"/{bin,state,munge,n1,n2,n3,n4}
ln -s "$binary" "$folder/bin/asterism"
export PATH="$folder/bin:$PATH"
unset ASTERISM_SERVER

pid_of() { cat "$folder/$1.pid" 2> /dev/null; }
# Every process that names a path of this run: Slurm's, and the cluster's.
of_this_run() { pgrep -f "$folder/$1" || true; }
# A process, with all that it started.
family() {
    echo "$1"
    for child in $(pgrep -P "$1" || true); do family "$child"; done
}
cleanup() {
    scancel --quiet --full "${job:-0}" 2> /dev/null || true
    for name in n1 n2 n3 n4 slurmctld munged; do
        pid=$(pid_of "$name") && kill "$pid" 2> /dev/null || true
    done
    sleep 1
    for pid in $(of_this_run ''); do kill -9 "$pid" 2> /dev/null || true; done
    rm -rf "$folder"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

failed() {
    echo "error: $1" >&2
    tail -n 15 "$folder"/job.log "$folder"/run/logs/*.log "$folder"/slurmctld.log >&2 || true
    exit 1
}
within() { # SECONDS WHAT COMMAND...
    local seconds=$1 what=$2
    shift 2
    for _ in $(seq $((seconds * 4))); do if "$@" > /dev/null 2>&1; then return; fi; sleep 0.25; done
    failed "$what: not within $seconds s"
}
said() { echo "$SECONDS s: $*"; }

read -r -a ports < <(python3 -c '
import socket
free = [socket.socket() for _ in range(5)]
for one in free: one.bind(("", 0))
print(*(one.getsockname()[1] for one in free))')
here=$(hostname -s)
{
    cat << CONF
ClusterName=room
SlurmctldHost=$here
SlurmctldPort=${ports[0]}
AuthInfo=socket=$folder/munge/socket,cred_expire=6
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=0
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
KillWait=5
MpiDefault=none
TopologyPlugin=topology/tree
CONF
    for node in 1 2 3 4; do
        echo "NodeName=n$node NodeHostname=$here NodeAddr=127.0.1.$node Port=${ports[node]} CPUs=4 State=UNKNOWN"
    done
    echo "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
} > "$SLURM_CONF"
printf '%s\n' 'SwitchName=s1 Nodes=n[1-2]' 'SwitchName=s2 Nodes=n[3-4]' 'SwitchName=top Switches=s[1-2]' > "$folder/topology.conf"
head -c 1024 /dev/urandom > "$folder/munge/key"
chmod 700 "$folder/munge" && chmod 400 "$folder/munge/key"
munged --force --key-file="$folder/munge/key" --socket="$folder/munge/socket" --pid-file="$folder/munged.pid" \
    --log-file="$folder/munge/log" --seed-file="$folder/munge/seed" 2> /dev/null || skip "munged does not start here"
slurmctld || skip "slurmctld does not start here"
for node in n1 n2 n3 n4; do slurmd -N "$node" || skip "slurmd does not start here"; done
idle() { [ "$(sinfo --noheader --Node --format=%t | sort -u)" = idle ]; }
within 20 "four idle nodes" idle
said "Slurm $(slurmctld -V | cut -d' ' -f2) with four nodes"

printf '%s\n' 'version = 1' '[attention.star]' > "$folder/cluster.toml"
asterism eval make niah_single_1 --tokens 4k --samples 1 > "$folder/question.jsonl"
asterism eval make niah_single_1 --tokens 12k --samples 1 > "$folder/long.jsonl"
gold_of() { python3 -c 'import json, sys; print(json.loads(next(sys.stdin))["answer"])' < "$folder/$1.jsonl"; }
gold=$(gold_of question)

cluster() { asterism "$@" -f "$folder/run/topology.toml"; }
tokens() { tr -d ' \n' | grep -o '"tokens":\[[^]]*\]'; }
answer() { cluster job submit --input "$folder/${1:-question}.jsonl" --max-tokens 48 -o json | tokens; }
ready() { [ "$(cluster status -o json | grep -c '"health": "ready"')" = "$1" ]; }
same() { if [ "$2" = "$wanted" ]; then said "$1: the same tokens"; else failed "$1: $2 instead of $wanted"; fi; }

# Two tasks on each node.
job=$(sbatch --parsable --nodes=4 --ntasks-per-node=2 --output="$folder/job.log" --time=10 \
    deploy/slurm/batch -f "$folder/cluster.toml" --folder "$folder/run" --drain 20)
within 60 "a cluster of nine hosts" ready 9
said "$(cluster status -o json | grep -o '"name": "context-[0-9]*"' | wc -l) context hosts and a query host are ready"
for switch in s1 s2; do
    [ "$(grep -cE "^(island|rack) = \"$switch\"" "$folder/run/topology.toml")" = 4 ] || failed "two nodes at switch $switch are not labelled so"
done
said "nodes have the labels of their switches"
cluster job submit --input "$folder/question.jsonl" --max-tokens 48 | grep -qF "$gold" || failed "the answer has no $gold"
wanted=$(answer)
said "the answer has $gold: $wanted"

# A machine is lost half way: its slurmd, the step on it, and with that its agent and hosts.
cluster session create --name kept --context examples/harbour.txt > /dev/null
asked() { cluster session ask kept "What is the special magic number for harbour-lantern?" -o json | tokens; }
kept=$(asked)
plain=(--context examples/harbour.txt --query "What is the special magic number for harbour-lantern?" --max-tokens 64 --method dense)
alone=$(cluster job submit "${plain[@]}" -o json | tokens)
cluster job submit --input "$folder/long.jsonl" --max-tokens 48 > "$folder/answer" &
asking=$!
agent=$(pgrep -f "node --join .*--token-file $folder/run/tokens/n3 " | while read -r pid; do
    if [ "$(cat "/proc/$pid/comm")" != srun ]; then echo "$pid"; fi
done)
[ -n "$agent" ] || failed "no agent runs on n3"
kill -9 "$(pid_of n3)" $(ps -o ppid= -p "$agent") "$agent"
wait "$asking" || failed "the job did not outlive a node"
grep -qF "$(gold_of long)" "$folder/answer" || failed "the job that ran when n3 was killed answers: $(cat "$folder/answer")"
said "n3 was killed while a job encoded, and its answer has $(gold_of long)"
within 60 "the other hosts" ready 7
[ "$(squeue --noheader --jobs "$job" --format=%T)" = RUNNING ] || failed "the job did not outlive a node"

# The time limit is near, as Slurm says by the signal: what is accepted then is finished after the requeue.
slurmd -N n3
cluster job submit "${plain[@]}" --id over --no-wait > /dev/null
scancel --signal=USR1 --batch "$job"
again() { [ "$(scontrol show job "$job" | grep -o 'Restarts=[0-9]*')" = Restarts=1 ] && ready 9; }
within 90 "the job's second life" again
finished() { cluster job result over -o json > "$folder/over"; }
within 30 "the job that was under way" finished
[ "$(tokens < "$folder/over")" = "$alone" ] || failed "the job that was under way answers otherwise after the requeue"
said "the job that was under way ended after the requeue as it does without"
[ "$(asked)" = "$kept" ] || failed "the session answers otherwise after the requeue"
said "the session answers as before"

# Nothing outlives the job.
scancel "$job"
gone() { [ -z "$(pgrep -f "$folder/run/")" ]; }
within 30 "no process after scancel" gone
said "scancel left no process"

# The interactive form, with a command beside the cluster.
deploy/slurm/interactive --quiet --nodes=2 -- -f "$folder/cluster.toml" --folder "$folder/run2" -- \
    asterism job submit --input "$folder/question.jsonl" --max-tokens 48 -o json > "$folder/beside" 2> "$folder/beside.log" ||
    { cat "$folder/beside.log"; failed "the interactive form"; }
same "two nodes, interactively" "$(tokens < "$folder/beside")"
within 30 "no process after the command" idle
