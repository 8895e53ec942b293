#!/usr/bin/env bash
# The quick start of docs/deploy.md for three machines, line by line as it stands there, from nothing to what Prometheus says of three
# hosts: three network namespaces that know each other by the names of that page, each with a folder of its own. Needs root, iproute2, Python
# 3.10 and TUN devices; skipped otherwise. Without Prometheus its two lines are left out.
#
#   tests/quickstart.sh [ASTERISM]      # default: target/release/asterism
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/support.sh
binary=$(realpath "${1:-target/release/asterism}")

needs_machines
[ -x "$binary" ] || { echo "error: $binary is not there; cargo build --release"; exit 2; }

prefix="asq$$"
folder=$(mktemp -d)
stay=()
unset ASTERISM_SERVER

# What a machine runs in its folder, in the place of this shell: start it with `( )` or `&`.
machine() { # NAME LINE
    exec ip netns exec "$prefix-$1" sh -c "cd '$folder/$1' && PATH='$folder/bin':\$PATH && $2"
}
cleanup() {
    (machine one "timeout 20 asterism down") > /dev/null 2>&1 || true
    remove_machines "${stay[*]}" one two three
    rm -rf /etc/netns/"$prefix"-*
    rmdir /etc/netns 2> /dev/null || true
    rm -rf "$folder"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
failed() {
    echo "error: $1" >&2
    tail -n 8 "$folder"/*.log "$folder"/*/.asterism/*/logs/*.log >&2 || true
    exit 1
}

make_machines 10.78.0 one two three
mkdir "$folder/bin"
ln -s "$binary" "$folder/bin/asterism"
for name in one two three; do
    mkdir -p "$folder/$name" "/etc/netns/$prefix-$name"
    printf '%s\n' '127.0.0.1 localhost' '10.78.0.1 one.room' '10.78.0.2 two.room' '10.78.0.3 three.room' \
        > "/etc/netns/$prefix-$name/hosts"
    ln -s "$PWD/examples" "$PWD/dashboards" "$folder/$name/"
done

python3 - docs/deploy.md "$folder" << 'PYTHON'
import pathlib, re, sys
page, folder = pathlib.Path(sys.argv[1]).read_text(), pathlib.Path(sys.argv[2])
part = page.split("\n## Three machines\n")[1].split("\n## ")[0]
file, lines = (re.search(f"```{kind}\n(.*?)```", part, re.S)[1] for kind in ("toml", "sh"))
for name in ("one", "two", "three"):
    (folder / name / "cluster.toml").write_text(file)
said = [re.fullmatch(r"(.*?)\s+# on (one|two|three)(, stays)?([:;].*)?", line) for line in lines.splitlines()]
assert all(said), "a line does not say on which machine it is run"
(folder / "lines").write_text("".join(f"{on}\t{'stays' if stays else 'ends'}\t{line}\n" for line, on, stays, _ in (one.groups() for one in said)))
PYTHON

# Whether what a line printed is what it is to print.
is_right() { # LINE OUTPUT
    case $1 in
        "asterism status"*) [ "$(grep -cE '^(query|context)-[0-9] .*ready' "$2")" = 3 ] ;;
        *harbour-lantern*) grep -q 4817263 "$2" ;;
        curl*) grep -q '"3"' "$2" ;;
    esac
}
while IFS=$'\t' read -r -u 3 on ends line; do
    case $line in
        scp*)
            read -r _ file to <<< "$line"
            cp "$folder/$on/$file" "$folder/${to%.room:}/"
            continue
            ;;
        prometheus* | curl*)
            command -v prometheus > /dev/null || { echo "there is no prometheus here: not run: $line"; continue; }
            ;;
    esac
    if [ "$ends" = stays ]; then
        machine "$on" "exec $line" >> "$folder/$on-${#stay[@]}.log" 2>&1 &
        stay+=($!)
        echo "$SECONDS s, on $on: $line &"
        continue
    fi
    # What was started a moment ago may not be there yet.
    right=
    for _ in $(seq 120); do
        if (machine "$on" "$line") > "$folder/said" 2> "$folder/$on.log" && is_right "$line" "$folder/said"; then
            right=yes
            break
        fi
        sleep 0.5
    done
    [ "$right" ] || failed "on $on: $line: $(cat "$folder/said")"
    echo "$SECONDS s, on $on: $line"
done 3< "$folder/lines"
for pid in "${stay[@]}"; do kill -0 "$pid" || failed "what was to stay has ended"; done
echo "$(wc -l < "$folder/lines") lines of docs/deploy.md ran as they stand"
