#!/usr/bin/env bash
# debian-disk.sh - make an ordinary Debian with systemd, its own kernel and its own initramfs, for boot-disk.sh.
#
# usage: debian-disk.sh FOLDER [SUITE [PACKAGE,...]]
#   SUITE      bookworm (default): with the cloud kernel.  Any other one, such as trixie, has the ordinary kernel.
#   PACKAGE    more packages for it
#
# FOLDER gets root.img, vmlinuz and initrd.img, as an image of build-image.sh has them, and build-id, by which finished work is
# known.  The system runs a job as guest-init.sh does, once it is up: the second disk has it, and the third takes its exit code.
# A job that ends with the code 94 goes on after a restart of the machine.  run-vm.sh can start it, too: the root is a whole disk
# there, and is named by its label (-a root=LABEL=guest).
#
# The last line of standard output is FOLDER; all other output goes to stderr.
#
# needs: root (chroot), packages: mmdebstrap e2fsprogs

set -Eeuo pipefail
export LC_ALL=C DEBIAN_FRONTEND=noninteractive
[ $# -ge 1 ] && [ $# -le 3 ] || { sed -n '/^# usage:/,/^$/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
say() { printf 'debian-disk: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
trap 'say "failed in line $LINENO: $BASH_COMMAND"' ERR
[ "$(id -u)" -eq 0 ] || die "must run as root (it uses chroot)"
for tool in mmdebstrap mkfs.ext4; do
    command -v "$tool" >/dev/null || die "missing tool: $tool"
done
suite=${2:-bookworm} more=${3:-}
mkdir -p "$1"
out=$(cd "$1" && pwd)
want_id="$suite|$more|$(sha256sum "$0" | cut -c1-16)"
if [ "$(cat "$out/build-id" 2>/dev/null)" = "$want_id" ]; then
    say "the system is up to date"
    echo "$out"
    exit 0
fi

mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1)
[ -n "$mirror" ] || die "no apt source is configured (apt-get update first?)"
work=$(mktemp -d "$out/work.XXXXXX")
root=$work/root
trap 'umount "$root/proc" 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT
say "making a Debian ($suite)"
# The cloud kernel has few drivers; its initramfs may have them all, and is small.  Of the ordinary kernel's drivers, the initramfs
# has those of virtual machines, whatever the machine is that makes it: an emulated processor takes long to unpack all of them.
kernel=linux-image-amd64 modules=list
[ "$suite" != bookworm ] || kernel=linux-image-cloud-amd64 modules=most
mmdebstrap --variant=minbase \
    --include="systemd-sysv,udev,dbus,kmod,procps,$kernel,initramfs-tools,e2fsprogs${more:+,$more}" \
    "$suite" "$root" "$mirror" >&2

echo "MODULES=$modules" >"$root/etc/initramfs-tools/conf.d/guest"
printf '%s\n' virtio_pci virtio_blk nvme ext4 >>"$root/etc/initramfs-tools/modules"
mount -t proc proc "$root/proc"
chroot "$root" update-initramfs -u -k all >&2
umount "$root/proc"

echo guest >"$root/etc/hostname"
echo 'LABEL=guest / ext4 errors=panic 0 1' >"$root/etc/fstab"
# The journal is kept: the next start finds this one's.
mkdir -p "$root/var/log/journal" "$root/job" "$root/out"
# (nobody logs in, and a job has the second port)
rm -f "$root/etc/machine-id"
touch "$root/etc/machine-id"
ln -sf /dev/null "$root/etc/systemd/system/serial-getty@ttyS0.service"
cat >"$root/usr/local/sbin/guest-job" <<'JOB'
#!/bin/sh
# As /init of the small guests: the job is a tar on the second disk, and its exit code goes to the third.
tar -xf /dev/vdb -C /job
set -a
[ -e /job/.env ] && . /job/.env
set +a
stty -F /dev/ttyS1 raw -echo
rc=0
(cd /job && exec sh ./run.sh) >/dev/ttyS1 2>&1 </dev/null || rc=$?
if [ $rc = 94 ]; then
    systemctl --no-block reboot
    exit
fi
echo $rc >/dev/vdc
sync
systemctl --no-block poweroff
JOB
chmod 755 "$root/usr/local/sbin/guest-job"
cat >"$root/etc/systemd/system/guest-job.service" <<'UNIT'
[Unit]
Description=The job of this guest

[Service]
ExecStart=/usr/local/sbin/guest-job
UNIT
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -sf ../guest-job.service "$root/etc/systemd/system/multi-user.target.wants/guest-job.service"

find "$root/var/cache/apt" "$root/var/lib/apt/lists" -type f -delete
cp "$root"/boot/vmlinuz-* "$work/vmlinuz"
cp "$root"/boot/initrd.img-* "$work/initrd.img"
size=$(($(du -sm "$root" | cut -f1) * 12 / 10 + 256))
mkfs.ext4 -q -F -L guest -d "$root" "$work/root.img" "${size}M" >&2
mv "$work/root.img" "$work/vmlinuz" "$work/initrd.img" "$out"
echo "$want_id" >"$out/build-id"
echo "$out"
