#!/usr/bin/env bash
# build-image.sh - make a small bootable Linux image from stock Debian packages.
#
# The image is an unmodified Debian kernel, an initramfs, and a root disk with busybox,
# nvme-cli, fio, iproute2, ethtool, util-linux, e2fsprogs, xfsprogs, verbs in user space and the
# kernel modules that the interop tests need, with soft RoCE.  run-vm.sh boots the image in QEMU.
#
# The script installs nothing on the machine that runs it.  It reads the machine's apt
# configuration and does not change it: the script keeps a private apt state in
# CACHE_DIR, and downloads from the mirror that the machine is configured for.
#
# usage: build-image.sh [-s SUITE] [-f FLAVOUR] [-P pkg,...] [-M mod,...] [-F] CACHE_DIR
#   -s SUITE    bookworm | bookworm-backports | trixie | trixie-backports | ...
#               NAME-backports takes the kernel from backports, user space from NAME.
#               default: bookworm
#   -f FLAVOUR  amd64 | cloud-amd64 (fewer drivers).  default: amd64
#   -P LIST     more Debian packages whose programs go into the image
#   -M LIST     more kernel modules (the script adds their dependencies)
#   -F          rebuild even if CACHE_DIR holds a finished image
#
# The image is CACHE_DIR/SUITE-FLAVOUR/{vmlinuz,vmlinux,initrd.img,root.img,manifest.txt}.
# The last line of standard output is that folder's path; all other output goes to stderr.
#
# needs: Debian 12 or newer, root (chroot), packages: cpio e2fsprogs xz-utils zstd (lz4 optional)

set -Eeuo pipefail
export LC_ALL=C DEBIAN_FRONTEND=noninteractive

suite=bookworm flavour=amd64 more_pkgs="" more_mods="" force=0
usage() { sed -n '/^# usage:/,/^$/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
while getopts s:f:P:M:Fh opt; do
    case $opt in
        s) suite=$OPTARG ;;
        f) flavour=$OPTARG ;;
        P) more_pkgs=${OPTARG//,/ } ;;
        M) more_mods=${OPTARG//,/ } ;;
        F) force=1 ;;
        *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# -eq 1 ] || usage
say() { printf 'build-image: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
trap 'say "failed in line $LINENO: $BASH_COMMAND"' ERR
[ "$(id -u)" -eq 0 ] || die "must run as root (it uses chroot)"
for tool in apt-get dpkg-deb cpio xz zstd mkfs.ext4; do
    command -v "$tool" >/dev/null || die "missing tool: $tool"
done

mkdir -p "$1"
cache=$(cd "$1" && pwd)
out=$cache/$suite-$flavour
base_suite=${suite%-backports}

# Tests may start several builds at once: the lock lets one at a time use the cache.
exec 9>"$cache/.lock"
command -v flock >/dev/null && flock 9

# A finished image is used again while the options and the two scripts stay the same.
want_id="$suite|$flavour|$more_pkgs|$more_mods|$(cat "$0" "${0%/*}/guest-init.sh" | sha256sum | cut -c1-16)"
if [ "$force" = 0 ] && [ "$(cat "$out/build-id" 2>/dev/null)" = "$want_id" ]; then
    say "image is up to date"
    echo "$out"
    exit 0
fi

# ---------------------------------------------------------------- private apt
# The mirror addresses come from the machine's configured sources; only the
# suite names differ.  main_uri is the main archive, sec_uri the security archive.
host_codename=$(. /etc/os-release && echo "${VERSION_CODENAME:?}")
targets=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages')
main_uri=$(awk -v r="$host_codename" '$2 == r {print $1; exit}' <<<"$targets")
sec_uri=$(awk -v r="$host_codename-security" '$2 == r {print $1; exit}' <<<"$targets")
[ -n "$main_uri" ] || die "no apt source for $host_codename is configured (apt-get update first?)"

apt=$cache/apt-$suite
debs=$cache/debs
mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$debs"
: >"$apt/status"                        # an empty system, so that apt lists every dependency
stanza() {
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\n' "$1" "$2"
    printf 'Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n'
}
rolling=' sid unstable testing forky '
{
    stanza "$main_uri" "$base_suite"
    case $rolling in *" $base_suite "*) ;; *)
        stanza "$main_uri" "$base_suite-updates"
        [ -z "$sec_uri" ] || stanza "$sec_uri" "$base_suite-security" ;;
    esac
    [ "$suite" = "$base_suite" ] || stanza "$main_uri" "$suite"
} >"$apt/debian.sources"
apt_opts=(
    -o "Dir::Etc::sourcelist=$apt/debian.sources" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null
    -o "Dir::State::lists=$apt/lists" -o "Dir::State::status=$apt/status"
    -o "Dir::State::extended_states=$apt/extended" -o "Dir::Cache=$apt"
    -o APT::Architecture=amd64 -o APT::Architectures::=amd64
    -o APT::Install-Recommends=0 -o APT::Sandbox::User=root
    -o Acquire::Languages=none -o Acquire::Retries=3
    -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
)
say "reading package lists of $suite"
apt-get "${apt_opts[@]}" -qq update >&2

# closure PACKAGES... : prints "name=version filename" for each package that an empty system would need.
closure() {
    apt-get "${apt_opts[@]}" -y --print-uris install "$@" 2>"$apt/err" |
        sed -n "s/^'[^']*' \([^ ]*\.deb\) .*/\1/p" |
        while IFS= read -r f; do
            n=${f%%_*} v=${f#*_} v=${v%_*}
            printf '%s=%s %s\n' "$n" "${v//%3a/:}" "$f"
        done
}
# get: downloads the packages in the "name=version filename" lines on stdin to $debs.
get() {
    local spec file want=()
    while read -r spec file; do
        [ -e "$debs/$file" ] || want+=("$spec")
    done
    [ ${#want[@]} -eq 0 ] && return 0
    say "downloading ${#want[@]} packages"
    (cd "$debs" && apt-get "${apt_opts[@]}" -qq download "${want[@]}" >&2)
}

# ------------------------------------------------------------------ packages
# User space.  The pattern drops packages that only maintainer scripts and unused plugins
# need.  If a program needs a library of a dropped package, the script fails below.
progs="busybox-static dash nvme-cli fio iproute2 ethtool util-linux mount e2fsprogs xfsprogs kmod libgcc-s1
    ibverbs-providers ibverbs-utils rdmacm-utils $more_pkgs"
drop='^(python3|libpython3|perl|libperl|libsqlite|adduser|passwd|login|debconf|dpkg|tar|tzdata|systemd|libsystemd-shared|media-types|sensible-utils|lsb-base|init-system)'
# shellcheck disable=SC2086  # word lists
closure $progs | grep -Ev "$drop" >"$apt/user.list" || true
[ -s "$apt/user.list" ] || { cat "$apt/err" >&2; die "cannot resolve: $progs"; }
# The kernel: up to 6.x it is one package; from 7.x on it is a binary package and a modules package.
release_opt=()
[ "$suite" = "$base_suite" ] || release_opt=(-t "$suite")
closure "${release_opt[@]}" "linux-image-$flavour" |
    grep -E '^linux-(image|binary|modules|base)-[0-9]' >"$apt/kernel.list" || true
[ -s "$apt/kernel.list" ] || { cat "$apt/err" >&2; die "no linux-image-$flavour in $suite"; }
cat "$apt/user.list" "$apt/kernel.list" | get

# -------------------------------------------------------------------- unpack
work=$cache/work-$suite-$flavour.$$
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root/usr/bin" "$root/usr/sbin" "$root/usr/lib" "$root/usr/lib64" "$root/img"
for d in bin sbin lib lib64; do ln -s "usr/$d" "$root/$d"; done
# unpack FILE [tar arguments]: unpacks a package, and keeps the merged-/usr links made above.
unpack() {
    local f=$1; shift
    dpkg-deb --fsys-tarfile "$debs/$f" | tar -x --keep-directory-symlink -C "$root" "$@"
}
say "unpacking"
while read -r _ file; do
    unpack "$file" --exclude='./usr/share/*' --exclude='./usr/include/*'
done <"$apt/user.list"
kparts='drivers/nvme drivers/block drivers/virtio drivers/net/virtio_net
    drivers/net/net_failover drivers/net/dummy drivers/net/veth drivers/net/ethernet/intel/e1000
    drivers/scsi drivers/md drivers/char drivers/dma-buf drivers/base drivers/nvdimm drivers/dax
    drivers/hwmon drivers/ptp drivers/pps drivers/infiniband block net/core net/tls net/sched net/ipv4 net/ipv6 net/802
    fs/configfs fs/ext4 fs/jbd2 fs/mbcache fs/xfs fs/nls lib crypto arch/x86/crypto arch/x86/lib security'
pats=('./boot/*' './lib/modules/*/modules.*' './usr/lib/modules/*/modules.*'
      './usr/lib/modules/*/vmlinuz' './lib/modules/*/vmlinuz')
for p in $kparts; do pats+=("./lib/modules/*/kernel/$p*" "./usr/lib/modules/*/kernel/$p*"); done
while read -r _ file; do
    # tar exits with 2 when a pattern matches nothing.  The checks below find what is missing.
    unpack "$file" --wildcards "${pats[@]}" 2>/dev/null || true
done <"$apt/kernel.list"
# first FILE...: prints the first of the files that exists.
first() { local f; for f; do [ ! -e "$f" ] || { echo "$f"; return; }; done; }
kver=$(first "$root"/usr/lib/modules/*)
kver=${kver##*/}
[ -n "$kver" ] || die "the kernel packages held no modules"
vmlinuz=$(first "$root/boot/vmlinuz-$kver" "$root/usr/lib/modules/$kver/vmlinuz")
[ -n "$vmlinuz" ] || die "the kernel packages held no vmlinuz"

# ------------------------------------------------------------------- modules
# The modules that the tests want, by name.  A name that this kernel does not have goes to "absent".
mods="virtio_pci virtio_net e1000e virtio_blk configfs
    nvme nvme-fabrics nvme-tcp nvmet nvmet-tcp nvme-auth nvme-keyring null_blk brd loop
    ext4 xfs dm-mod dm-flakey dummy veth sch_netem inet_diag tcp_diag
    sch_mqprio sch_ingress cls_flower cls_u32 act_skbedit act_mirred act_gact
    ib_uverbs rdma_cm rdma_ucm rdma_rxe nvme-rdma nvmet-rdma
    crc32c_generic crc32c-intel crc32c_intel $more_mods"
img=$root/img
moddir=usr/lib/modules/$kver
mkdir -p "$img/$moddir"
chroot "$root" depmod "$kver" 2>/dev/null
have="" absent=""
: >"$work/mods"
for m in $mods; do
    if chroot "$root" modprobe -S "$kver" -D "$m" >"$work/dep" 2>/dev/null; then
        have="$have $m"
        sed -n 's/^insmod \([^ ]*\).*/\1/p' "$work/dep" >>"$work/mods"
    else
        absent="$absent $m"
    fi
done
# The image has all crypto and library modules too: the kernel asks for them by algorithm name.
(cd "$root" && find -L "$moddir/kernel/crypto" "$moddir/kernel/arch/x86/crypto" \
    "$moddir/kernel/lib" -name '*.ko*' ! -name '*test*' 2>/dev/null) | sed 's#^#/#' >>"$work/mods"
sed 's#^/lib/#/usr/lib/#' "$work/mods" | sort -u | while IFS= read -r m; do
    mkdir -p "$img${m%/*}"
    # The image holds the modules uncompressed, because an emulated CPU unpacks them slowly.
    case $m in
        *.xz) xz -dc "$root$m" >"$img${m%.xz}" ;;
        *.zst) zstd -qdc "$root$m" >"$img${m%.zst}" ;;
        *) cp "$root$m" "$img$m" ;;
    esac
done
cp "$root/$moddir"/modules.builtin* "$root/$moddir/modules.order" "$img/$moddir/"

# ---------------------------------------------------------------- user space
for d in bin sbin lib lib64; do mkdir -p "$img/usr/$d"; ln -s "usr/$d" "$img/$d"; done
# copy FILE...: copies files to the same place in the image, links together with their targets.
copy() {
    local f t
    for f; do
        f=/${f#/}
        case $f in /bin/* | /sbin/* | /lib/* | /lib64/*) f=/usr$f ;; esac
        [ -e "$img$f" ] || [ -L "$img$f" ] && continue
        mkdir -p "$img${f%/*}"
        cp -a "$root$f" "$img$f"
        if [ -L "$root$f" ]; then
            t=$(chroot "$root" readlink -f "$f") && copy "$t"
        fi
    done
}
[ -e "$root/usr/bin/readlink" ] || ln -s busybox "$root/usr/bin/readlink"
# The programs of the wanted packages; their libraries are found below.
list_elf() {
    for p in $progs; do
        file=$(awk -v p="$p" 'index($1, p "=") == 1 {print $2; exit}' "$apt/user.list")
        dpkg-deb --fsys-tarfile "$debs/$file" | tar -t |
            sed -n -E 's#^\.(/(usr/)?s?bin/[^/]+)$#\1#p; s#^\.(/.*/libgcc_s\.so\.1)$#\1#p
                s#^\.(/usr/lib/.*/libibverbs/.*\.so)$#\1#p'
    done
}
# (lslogins is left out: it needs a library of a dropped package)
list_elf | grep -v /lslogins | sort -u >"$work/elf"
missing=
while IFS= read -r f; do
    [ -e "$root$f" ] || [ -L "$root$f" ] || continue
    copy "$f"
    chroot "$root" /usr/lib64/ld-linux-x86-64.so.2 --verify "$f" 2>/dev/null || continue # static, or a script
    libs=$(chroot "$root" /usr/lib64/ld-linux-x86-64.so.2 --list "$f" 2>&1) ||
        { missing="$missing; $f: $libs"; continue; }
    # shellcheck disable=SC2046
    copy $(sed -n -E 's#^.*[[:space:]](/[^ ]+) \(0x.*#\1#p' <<<"$libs")
done <"$work/elf"
copy /usr/lib64/ld-linux-x86-64.so.2
for f in "$root"/usr/lib/x86_64-linux-gnu/libnss_{files,dns}.so.2; do [ ! -e "$f" ] || copy "${f#"$root"}"; done
[ -z "$missing" ] || die "libraries not found (does \$drop drop too much?)$missing"
# libibverbs finds the driver of a device by these files.
[ ! -d "$root/etc/libibverbs.d" ] || { mkdir -p "$img/etc"; cp -a "$root/etc/libibverbs.d" "$img/etc/"; }
# fio's optional engines need Ceph and Gluster.  The tests use fio's built-in engines only.
rm -rf "$img/usr/lib/x86_64-linux-gnu/fio"
# The shell is dash, because busybox's shell prefers its built-in commands to real programs.
ln -sf dash "$img/usr/bin/sh"
# busybox provides every command for which the image has no real program.
chroot "$root" busybox --list-full | while IFS= read -r a; do
    a=/usr/${a#usr/}
    case $a in /usr/linuxrc) continue ;; esac
    [ -e "$img$a" ] || [ -L "$img$a" ] || { mkdir -p "$img${a%/*}"; ln -s /usr/bin/busybox "$img$a"; }
done
chroot "$root" depmod -b /img "$kver" 2>/dev/null

mkdir -p "$img"/{proc,sys,dev,run,tmp,job,out,mnt,root,var,etc}
ln -sf /run "$img/var/run"; ln -sf /tmp "$img/var/tmp"; ln -sf /proc/self/mounts "$img/etc/mtab"
echo 'root:x:0:0:root:/root:/bin/sh' >"$img/etc/passwd"
echo 'root:x:0:' >"$img/etc/group"
printf '127.0.0.1 localhost\n10.0.2.2 host\n10.0.2.15 guest\n' >"$img/etc/hosts"
echo 'hosts: files' >"$img/etc/nsswitch.conf"
install -m 755 "$(dirname "$0")/guest-init.sh" "$img/init"

# The first stage, in the initramfs: it mounts the root disk, which holds everything above.
boot=$work/boot
mkdir -p "$boot"/{bin,dev,proc,new,mods}
cp "$root/usr/bin/busybox" "$boot/bin/"
for m in virtio_pci virtio_blk ext4 crc32c_generic; do
    # (modprobe prints nothing for a module that is built into the kernel or absent)
    { chroot "$root" modprobe -S "$kver" -D "$m" 2>/dev/null || true; } |
        sed -n 's/^insmod \([^ ]*\)\.ko.*/\1.ko/p'
done | sed 's#^/lib/#/usr/lib/#' | awk '!seen[$0]++' | while IFS= read -r m; do
    cp "$img$m" "$boot/mods/"
    echo "/mods/${m##*/}" >>"$boot/mods/list"
done
touch "$boot/mods/list"
cat >"$boot/init" <<'STAGE1'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs dev /dev
while read -r m; do $b insmod "$m"; done </mods/list 2>/dev/null
$b mount -t proc proc /proc
disk=/dev/vda
for word in $($b cat /proc/cmdline); do
    case $word in guest.root=*) disk=${word#*=} ;; esac
done
i=0
while [ ! -b "$disk" ] && [ $i -lt 100 ]; do $b sleep 0.05; i=$((i + 1)); done
$b umount /proc
$b mount -t ext4 "$disk" /new && exec $b switch_root /new /init
echo "guest: cannot mount the root disk"
$b reboot -f
STAGE1
chmod 755 "$boot/init"

# ------------------------------------------------------------------- results
new=$work/out
mkdir -p "$new"
# The archive is uncompressed: QEMU loads it into memory, while the emulated CPU would have to
# unpack a compressed one at every boot.
(cd "$boot" && find . -print0 | sort -z | cpio --null -o -H newc --quiet) >"$new/initrd.img"
# The disk has room for 512 MiB that tests write; its file is sparse.  It has no journal and no
# checksums, because each run throws its changes away.
size=$(($(du -sm "$img" | cut -f1) * 11 / 10 + 512))
mkfs.ext4 -q -F -L guest-root -m 0 -b 4096 -O '^has_journal,^metadata_csum' -d "$img" "$new/root.img" "${size}M" >&2
cp "$vmlinuz" "$new/vmlinuz"
# The unpacked kernel (an ELF file with a PVH entry point) saves the guest from unpacking it.
# Boot protocol 2.08: setup_sects is at 0x1f1, payload offset and length are at 0x248.
le() { od -An -v -tu"$2" -j"$(($1))" -N"$2" "$vmlinuz" | tr -d ' '; }
off=$((($(le 0x1f1 1) + 1) * 512 + $(le 0x248 4))) len=$(le 0x24c 4)
magic=$(od -An -v -tx1 -j"$off" -N4 "$vmlinuz" | tr -d ' ')
case $magic in
    fd377a58) dec="xz -dc --single-stream" ;;
    28b52ffd) dec="zstd -qdc" ;;
    02214c18) dec="lz4 -dc" ;;
    1f8b*) dec="gzip -dc" ;;
    *) dec= ;;
esac
if [ -n "$dec" ] && command -v "${dec%% *}" >/dev/null; then
    # The payload ends with its unpacked size (4 bytes), which the tools call trailing garbage.
    dd if="$vmlinuz" of="$work/payload" iflag=skip_bytes,count_bytes bs=1M \
        skip="$off" count="$((len - 4))" status=none
    $dec <"$work/payload" >"$new/vmlinux" 2>/dev/null || true
fi
if [ "$(head -c 4 "$new/vmlinux" 2>/dev/null | od -An -tx1 | tr -d ' ')" != 7f454c46 ]; then
    rm -f "$new/vmlinux"
    say "note: kernel could not be unpacked, run-vm.sh will boot vmlinuz (slower)"
fi
cfg=$(first "$root/boot/config-$kver" "$root/usr/lib/modules/$kver/config")
[ -z "$cfg" ] || cp "$cfg" "$new/config"
{
    echo "kernel: $kver"
    echo "modules:$have"
    echo "not in this kernel:$absent"
    echo "packages:"
    sed 's/ .*//; s/^/  /' "$apt/kernel.list" "$apt/user.list"
} >"$new/manifest.txt"
printf '%s' "$want_id" >"$new/build-id"
rm -rf "$out"
mv "$new" "$out"
say "kernel $kver, root disk $(du -sm "$out/root.img" | cut -f1) MiB; absent:${absent:- none}"
echo "$out"
