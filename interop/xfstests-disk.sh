#!/usr/bin/env bash
# xfstests-disk.sh - make a disk for the guest that holds a small Debian, and in it xfstests, built from its source.
#
# usage: xfstests-disk.sh SOURCE FOLDER
#   SOURCE   a folder with the source of xfstests; nothing is written there
#   FOLDER   for FOLDER/xfstests.img, and FOLDER/build-id, by which a finished disk is known
#
# The last line of standard output is the disk's path; all other output goes to stderr.
#
# needs: root (chroot), packages: mmdebstrap e2fsprogs

set -Eeuo pipefail
export LC_ALL=C DEBIAN_FRONTEND=noninteractive
[ $# -eq 2 ] || { sed -n '/^# usage:/,/^$/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
say() { printf 'xfstests-disk: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
trap 'say "failed in line $LINENO: $BASH_COMMAND"' ERR
[ "$(id -u)" -eq 0 ] || die "must run as root (it uses chroot)"
for tool in mmdebstrap mkfs.ext4; do
    command -v "$tool" >/dev/null || die "missing tool: $tool"
done
source=$(cd "$1" && pwd)
[ -x "$source/check" ] && [ -d "$source/tests/generic" ] || die "no source of xfstests in $source"
mkdir -p "$2"
out=$(cd "$2" && pwd)
disk=$out/xfstests.img

want_id="$(sha256sum "$0" | cut -c1-16) $(cd "$source" && find . -type f -newermt 1990-01-01 -printf '%P %s\n' | sort | sha256sum | cut -c1-16)"
if [ "$(cat "$out/build-id" 2>/dev/null)" = "$want_id" ] && [ -f "$disk" ]; then
    say "the disk is up to date"
    echo "$disk"
    exit 0
fi

# What the tests run, and what builds them.
runs="acl,attr,bc,dmsetup,e2fsprogs,file,gawk,hostname,kmod,libaio1,perl,procps,psmisc,quota,util-linux,uuid-runtime,xfsprogs,xxd"
builds="autoconf,automake,gcc,gettext,libacl1-dev,libaio-dev,libattr1-dev,libc6-dev,libtool-bin,make,pkg-config,uuid-dev,xfslibs-dev"
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1)
[ -n "$mirror" ] || die "no apt source is configured (apt-get update first?)"

work=$(mktemp -d "$out/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root
say "making a Debian"
mmdebstrap --variant=minbase --include="$runs,$builds" bookworm "$root" "$mirror" >&2
cp -R "$source" "$root/xfstests"
rm -rf "$root/xfstests/.git"
say "building xfstests"
chroot "$root" /bin/bash -euc 'cd /xfstests; make -s configure; ./configure -q; make -s -j2' >"$work/log" 2>&1 ||
    { tail -n 20 "$work/log" >&2; die "xfstests does not build"; }
chroot "$root" /bin/bash -euc 'useradd -m fsgqa; useradd -M 123456-fsgqa; useradd -M fsgqa2' >&2
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale}
mkdir -p "$root/mnt/test" "$root/mnt/scratch"
size=$(($(du -sm "$root" | cut -f1) * 11 / 10 + 256))
mkfs.ext4 -q -F -d "$root" "$work/disk" "${size}M" >&2
mv "$work/disk" "$disk"
echo "$want_id" >"$out/build-id"
echo "$disk"
