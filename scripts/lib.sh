# Functions and variables that the scripts share, for paths, headings, jobs with
# time limits, results, and cleanup. bash sources this file.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1

# With --help, a script that sources this file prints the comment at its head and exits.
about() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "scripts/${0##*/}"; }
case "${1:-}" in
-h | --help)
	about
	exit 0
	;;
esac

[ -d "$HOME/.cargo/bin" ] && PATH=$HOME/.cargo/bin:$PATH
# `ip`, `ethtool` and `sysctl` are in these folders, which not every user has in PATH.
PATH=$PATH:/usr/sbin:/sbin
export PATH

# Prefix of the names of all namespaces of this run, by which `sweep` finds the namespaces.
lab=uw$$
# A folder of this run. It is created at the end of this file, after the trap that removes it.
scratch=
job=
# Process ids of scripts that run at the same time as the jobs of this script. `cleanup` ends them.
background=()

heading() { printf '\n==== %s\n' "$*"; }
note() { printf -- '---- %s\n' "$*"; }
is_root() { [ "$(id -u)" = 0 ]; }
have() { command -v "$1" >/dev/null 2>&1; }

# can_namespace: succeeds if network namespaces can be created.
can_namespace() {
	is_root && have ip && ip netns add "$lab-try" 2>/dev/null && ip netns del "$lab-try"
}

# bounded SECONDS COMMAND...: runs the command in its own process group. The whole
# group is killed at the time limit, or if this script is interrupted.
bounded() {
	local limit=$1 rc=0
	shift
	set -m
	timeout --kill-after=10 "$limit" "$@" </dev/null &
	job=$!
	set +m
	echo "$job" >"$scratch/job"
	wait "$job" || rc=$?
	job=
	[ "$rc" != 124 ] || note "killed at its time limit of $limit s: $*"
	return "$rc"
}

# ---- results ----------------------------------------------------------------------
# A script that counts results adds to these counters. The last line that it prints is that of `totals`.
passed=0 failed=0 skipped=0
# The lines of the summary, one for each check.
times=()

# check NAME COMMAND...: runs the command for at most half an hour, and counts it as passed or failed.
check() {
	local name=$1 start=$SECONDS verdict=passed
	shift
	heading "$name"
	if bounded 1800 "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)) verdict=FAILED; fi
	times+=("$(printf '%-16s %5d s  %s' "$name" $((SECONDS - start)) "$verdict")")
}

# totals: prints the results, and fails if a check failed.
totals() {
	echo "$passed passed, $failed failed, $skipped skipped"
	[ "$failed" = 0 ]
}

# results FILE: prints the three numbers of the last line of `totals` in the output of a script, or zeros if there is no such line.
results() {
	local numbers
	numbers=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' "$1" | tail -n 1) || true
	echo "${numbers:-0 0 0}"
}

# add_up FILE RC: adds the results of another script to those of this script. FILE has its output, and RC is its exit status.
add_up() {
	local p f s
	read -r p f s < <(results "$1")
	if [ "$2" != 0 ] && [ "$f" = 0 ]; then f=1; fi
	passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

# Kills the processes in the namespaces of this run and deletes the namespaces.
# This also deletes all tap and veth devices, since no device is outside a namespace.
sweep() {
	local file name pid
	for file in /run/netns/"$lab"-*; do
		[ -e "$file" ] || continue
		name=${file##*/}
		for pid in $(ip netns pids "$name" 2>/dev/null); do kill -9 "$pid" 2>/dev/null || true; done
		ip netns del "$name" 2>/dev/null || true
	done
}

# ---- hugepages: reserved as root, released at the end -----------------------------
pages=/proc/sys/vm/nr_hugepages
# The number of hugepages that this script has reserved. At the end the script subtracts this number, since other scripts may have
# reserved hugepages meanwhile.
pages_taken=0

# take_hugepages N: reserves N more hugepages of 2 MiB as root, and fails if fewer than N are free afterwards. Free hugepages may belong
# to another script, which returns them at its end.
take_hugepages() {
	local free before wanted=$1
	if is_root && [ -w "$pages" ]; then
		lock_hugepages
		before=$(cat "$pages")
		# A signal may end the script between the two assignments.
		pages_taken=$((pages_taken + wanted))
		echo $((before + wanted)) >"$pages" || true
		pages_taken=$((pages_taken - wanted + $(cat "$pages") - before))
		unlock_hugepages
	fi
	free=$(free_hugepages)
	if [ "$free" -ge "$wanted" ]; then
		note "hugepages: $free free"
	else
		note "hugepages: $free of $wanted free, and no more can be reserved"
		return 1
	fi
}
free_hugepages() { awk '/^HugePages_Free:/ { n = $2 } END { print n + 0 }' /proc/meminfo; }
give_back_hugepages() {
	[ "$pages_taken" -gt 0 ] || return 0
	local left
	lock_hugepages
	left=$(($(cat "$pages") - pages_taken))
	echo $((left > 0 ? left : 0)) >"$pages" || true
	unlock_hugepages
	pages_taken=0
}
# Only one script at a time reads the number of hugepages and changes it.
lock_hugepages() { exec 9>/run/uwarp-hugepages.lock && flock 9; }
unlock_hugepages() { exec 9>&-; }

cleanup() {
	trap '' INT TERM HUP
	local script
	for script in ${background[@]+"${background[@]}"}; do
		kill "$script" 2>/dev/null || true
		wait "$script" || true
	done
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

scratch=$(mktemp -d "${TMPDIR:-/tmp}/$lab.XXXXXX")
export UWARP_LAB=$lab UWARP_SCRATCH=$scratch
