# What the scripts share: where things are, headings with times, one job at a
# time in a process group of its own, and cleaning up. Sourced by bash.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
[ -d "$HOME/.cargo/bin" ] && PATH=$HOME/.cargo/bin:$PATH
# Not on every user's path, and `ip`, `ethtool` and `sysctl` live there.
PATH=$PATH:/usr/sbin:/sbin
export PATH

# Everything made in the system carries this name, so that it can be found again.
lab=uw$$
scratch=$(mktemp -d "${TMPDIR:-/tmp}/$lab.XXXXXX")
export UWARP_LAB=$lab UWARP_SCRATCH=$scratch
job=

heading() { printf '\n==== %s\n' "$*"; }
note() { printf -- '---- %s\n' "$*"; }
is_root() { [ "$(id -u)" = 0 ]; }
have() { command -v "$1" >/dev/null 2>&1; }

# can_namespace: may network namespaces be made here?
can_namespace() {
	is_root && have ip && ip netns add "$lab-try" 2>/dev/null && ip netns del "$lab-try"
}

# bounded SECONDS COMMAND...: runs it in a process group of its own, to be ended
# as a whole when it takes too long or this script is interrupted.
bounded() {
	local limit=$1 rc=0
	shift
	set -m
	timeout --kill-after=10 "$limit" "$@" </dev/null &
	job=$!
	set +m
	wait "$job" || rc=$?
	job=
	[ "$rc" != 124 ] || note "ended after its limit of $limit s: $*"
	return "$rc"
}

# Removes the namespaces of this run with whatever still runs in them. A tap or
# veth device goes with its namespace; nothing is made outside one.
sweep() {
	local file name pid
	for file in /run/netns/"$lab"-*; do
		[ -e "$file" ] || continue
		name=${file##*/}
		for pid in $(ip netns pids "$name" 2>/dev/null); do kill -9 "$pid" 2>/dev/null || true; done
		ip netns del "$name" 2>/dev/null || true
	done
}

# ---- hugepages: where root may take them, and given back at the end ---------------
pages=/proc/sys/vm/nr_hugepages
pages_before=

# take_hugepages N: makes N of 2 MiB free; fails where there are fewer.
take_hugepages() {
	local free wanted=$1
	free=$(free_hugepages)
	if [ "$free" -lt "$wanted" ] && is_root && [ -w "$pages" ]; then
		pages_before=$(cat "$pages")
		echo $((pages_before + wanted - free)) >"$pages" || true
		free=$(free_hugepages)
	fi
	if [ "$free" -ge "$wanted" ]; then
		note "hugepages: $free free"
	else
		note "hugepages: $free free and no right to take more: running without"
		return 1
	fi
}
free_hugepages() { awk '/^HugePages_Free:/ { n = $2 } END { print n + 0 }' /proc/meminfo; }
give_back_hugepages() {
	if [ -n "$pages_before" ] && [ "$(cat "$pages")" != "$pages_before" ]; then
		echo "$pages_before" >"$pages" || true
	fi
}

cleanup() {
	trap '' INT TERM HUP
	if [ -n "$job" ]; then
		kill -- "-$job" 2>/dev/null || true
		sleep 0.3
		kill -9 -- "-$job" 2>/dev/null || true
	fi
	sweep
	give_back_hugepages
	rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
