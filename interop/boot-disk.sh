#!/usr/bin/env bash
# boot-disk.sh - make a disk with a boot loader from an image made by build-image.sh or debian-disk.sh.
#
# A machine's own firmware can start Debian's kernel from the disk, and the kernel finds its root there.
#
# usage: boot-disk.sh IMAGE_DIR FILE
#
# The disk has GRUB before its first partition, and in that the root, with the kernel and the initramfs.
#
# needs: packages grub-pc-bin and e2fsprogs.  This program needs no root.

set -euo pipefail
image=${1:-} file=${2:-}
[ -n "$file" ] || { sed -n '/^# usage:/,/^# needs/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
grub=/usr/lib/grub/i386-pc
[ -e $grub/boot.img ] || { echo "boot-disk: missing file: $grub/boot.img (package grub-pc-bin)" >&2; exit 1; }
for program in grub-mkimage debugfs; do
    command -v $program >/dev/null || { echo "boot-disk: missing program: $program (packages grub-pc-bin e2fsprogs)" >&2; exit 1; }
done
. "${0%/*}/kernel-words.sh"
work=$(mktemp -d "${TMPDIR:-/tmp}/boot-disk.XXXXXX")
trap 'rm -rf "$work"' EXIT

# ------------------------------------------------------------------- the root
cp --sparse=always "$image/root.img" "$work/root.img"
for part in vmlinuz initrd.img; do
    # (a Debian may have links of these names)
    debugfs -w -R "rm $part" "$work/root.img" >/dev/null 2>&1
    debugfs -w -R "write $image/$part $part" "$work/root.img" >/dev/null 2>&1
done
sectors=$((($(stat -c %s "$work/root.img") + 511) / 512))

# ------------------------------------------------------------- the boot loader
# GRUB's first sector stays where it runs.  The loaders that a first sector replaces by their own do not start here: what
# another process writes over code that has run is not seen by QEMU's emulated processor.
cat >"$work/grub.cfg" <<CONFIG
set root=(hd0,msdos1)
linux /vmlinuz $kernel_words loglevel=7 guest.root=/dev/vda1 root=/dev/vda1
initrd /initrd.img
boot
CONFIG
grub-mkimage -d $grub -O i386-pc -o "$work/core.img" -p /grub -c "$work/grub.cfg" biosdisk part_msdos ext2 linux boot

# ------------------------------------------------------------------- the disk
# The sector where the partition begins; GRUB has those before it.
begin=2048
[ "$(stat -c %s "$work/core.img")" -le $(((begin - 1) * 512)) ] || { echo "boot-disk: GRUB is too large" >&2; exit 1; }
# le NUMBER: the number's four bytes, the lowest first.
le() { printf ' %02x %02x %02x %02x' $(($1 & 255)) $(($1 >> 8 & 255)) $(($1 >> 16 & 255)) $(($1 >> 24)); }
# The partition's 16 bytes in the table: active, Linux; the addresses by cylinder are not used.
bytes="80 fe ff ff 83 fe ff ff$(le $begin)$(le $sectors)"
rm -f "$file"
truncate -s $(((begin + sectors) * 512)) "$file"
put() { dd of="$file" bs=1 seek="$1" conv=notrunc status=none; }
head -c 440 $grub/boot.img | put 0
# shellcheck disable=SC2086,SC2059  # a list of words, and a text of escapes
printf "$(printf '\\x%s' $bytes)" | put 446
printf '\x55\xaa' | put 510
dd if="$work/core.img" of="$file" bs=512 seek=1 conv=notrunc status=none
dd if="$work/root.img" of="$file" bs=1M seek=$((begin / 2048)) conv=notrunc,sparse status=none
