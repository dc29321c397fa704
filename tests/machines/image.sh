# Shared by the scripts that build the images of the tests' virtual machines: Debian's kernel, and an initramfs
# of Debian's programs. Sourced by bash with `set -euo pipefail`, in the order of the functions.
# shellcheck shell=bash

machines=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
say() { echo "build-image: $*" >&2; }
die() { say "$*"; exit 1; }

# begin CACHE FORCE SETTINGS FILE...: one build at a time in the folder CACHE. Ends the script if its image was made by
# the same files and settings, unless FORCE is `--force`.
begin() {
	local force=$2 settings=$3
	cache=$1
	shift 3
	mkdir -p "$cache"
	exec 9>"$cache/lock"
	flock 9
	recipe=$(cat "$machines/image.sh" "$machines/agent.c" "$@" - <<<"$settings" | sha256sum | cut -d' ' -f1)
	if [ "$force" != --force ] && [ -s "$cache/vmlinux" ] && [ -s "$cache/initramfs.cpio" ] &&
		grep -qx "recipe $recipe" "$cache/manifest" 2>/dev/null; then
		say "up to date: $cache"
		exit 0
	fi
	[ "$(id -u)" = 0 ] || die "must run as root (it installs Debian packages)"
	export DEBIAN_FRONTEND=noninteractive
	work=$(mktemp -d "$cache/build.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	chmod 755 "$work"
	root=$work/root
	say "packages"
	apt-get update -qq >/dev/null 2>&1 || say "apt-get update failed; going on with the present lists"
	apt_install busybox-static dash cpio xz-utils kmod gcc libc6-dev binutils python3 qemu-system-x86
}

apt_install() {
	apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "$@" >"$work/apt.log" 2>&1 ||
		{ tail -5 "$work/apt.log" >&2; die "apt-get install failed: $*"; }
}

# kernel NAME: chooses the kernel, 6.1.0-56-amd64 or (without a name) the one that linux-image-amd64 depends on. Unpacks it
# into $work/kernel, decompressed so that QEMU enters it directly. Sets krel, kver and mods.
kernel() {
	local image=linux-image-$1
	if [ -z "$1" ]; then
		image=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -1)
	fi
	krel=${image#linux-image-}
	[ -n "$krel" ] || die "no kernel package found"
	kver=$(apt-cache show "$image" | sed -n 's/^Version: //p' | head -1)
	say "kernel $krel ($kver)"
	(cd "$work" && apt-get download -qq "$image=$kver" >/dev/null 2>&1) || die "cannot download $image of version $kver"
	dpkg-deb -x "$work/$image"_*.deb "$work/kernel"
	# shellcheck disable=SC2034 # for the scripts
	mods=$work/kernel/lib/modules/$krel
	python3 - "$work/kernel/boot/vmlinuz-$krel" "$work/vmlinux" <<-'PY'
		import lzma, struct, sys
		b = open(sys.argv[1], "rb").read()
		off, size = struct.unpack_from("<II", b, 0x248)
		p = b[((b[0x1f1] or 4) + 1) * 512 + off:][:size]
		if p[:6] != b"\xfd7zXZ\0":
		    sys.exit("build-image: the kernel is not xz-compressed")
		open(sys.argv[2], "wb").write(lzma.LZMADecompressor().decompress(p))
	PY
}

# modules NAME...: prints the files of the modules and of those that they need, in an order in which insmod can take them.
modules() {
	local name
	depmod -b "$work/kernel" "$krel" 2>/dev/null
	for name; do
		modprobe -d "$work/kernel" -S "$krel" --show-depends "$name" 2>/dev/null | awk '$1 == "insmod" { print $2 }'
	done | awk '!seen[$0]++'
}

# file_system: the folders, BusyBox, and dash as the shell: BusyBox's would run its own ip in place of iproute2's.
file_system() {
	say "initramfs"
	mkdir -p "$root"/{bin,sbin,dev,proc,sys,tmp,run,root,etc,usr/bin,usr/sbin,var}
	ln -s ../run "$root/var/run"
	cp /bin/busybox "$root/bin/"
	add /bin/dash
	ln -s dash "$root/bin/sh"
	echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
	echo 'root:x:0:' >"$root/etc/group"
	printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
}

# add FILE: copies a program or a library to the same place, with the libraries that it needs.
add() {
	local f=$1 l
	[ -e "$root$f" ] && return
	mkdir -p "$root$(dirname "$f")"
	cp -L "$f" "$root$f"
	for l in $(ldd "$f" 2>/dev/null | grep -oE '/[^ ]+'); do
		[ -e "$root$l" ] || { mkdir -p "$root$(dirname "$l")"; cp -L "$l" "$root$l"; }
	done
}

# add_programs NAME...: the same for programs on the search path.
add_programs() {
	local p f
	for p; do
		f=$(PATH=/usr/sbin:/usr/bin:/sbin:/bin command -v "$p") || die "$p is missing"
		add "$f"
	done
}

# finish INIT PACKAGE...: adds the agent, INIT as /init and BusyBox's other programs, and puts kernel, initramfs and a list
# of what they were made of into the cache.
finish() {
	local init=$1
	shift
	find "$root/usr" "$root/bin" -type f -perm -u+x -exec strip --strip-unneeded {} + 2>/dev/null || true
	"$root/bin/busybox" --list-full | while read -r f; do
		[ -e "$root/$f" ] || { mkdir -p "$root/$(dirname "$f")"; ln -s /bin/busybox "$root/$f"; }
	done
	gcc -O2 -Wall -static -o "$root/sbin/agent" "$machines/agent.c"
	install -m 755 "$init" "$root/init"
	(cd "$root" && find . -print0 | cpio -0 -o -H newc -R 0:0 --quiet) >"$work/initramfs.cpio"
	mv "$work/vmlinux" "$work/initramfs.cpio" "$cache/"
	{
		echo "recipe $recipe"
		echo "kernel $krel $kver"
		dpkg-query -W -f '${Package} ${Version}\n' qemu-system-x86 "$@"
	} >"$cache/manifest"
	say "done: $cache ($(du -sh --apparent-size "$cache/initramfs.cpio" | cut -f1) initramfs)"
}
