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

# A script that has more to put back defines restore().
cleanup() {
	trap '' INT TERM HUP
	if [ -n "$job" ]; then
		kill -- "-$job" 2>/dev/null || true
		sleep 0.3
		kill -9 -- "-$job" 2>/dev/null || true
	fi
	sweep
	if declare -F restore >/dev/null; then restore; fi
	rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
