#!/usr/bin/env bash
# run-vm.sh - boot an image made by build-image.sh, and run one shell script in it.
#
# The script's standard output and error appear on this program's standard
# output, and the script's exit code becomes this program's.  This program unpacks
# what the script leaves in /out into the folder given with -o.  The guest reaches
# servers on this machine's loopback address at 10.0.2.2.  -p makes a TCP port of
# the guest reachable on this machine's loopback address.
#
# usage: run-vm.sh [options] IMAGE_DIR SCRIPT
#        run-vm.sh [options] -i IMAGE_DIR            (interactive shell)
#   -t SECONDS       end the guest after this time (default 120)
#   -p HOST:GUEST    forward 127.0.0.1:HOST to the guest's TCP port GUEST (repeatable)
#   -n MINE:PEER     a second network device, eth1, on a wire to another guest: MINE and PEER are the
#                    paths of the two ends, as sockets; the other guest has them the other way round
#   -q SOCKET        a monitor of QEMU (QMP) at this path; the wire of -n is "n1" for set_link
#   -f FILE          put FILE into the guest's /job, its working folder (repeatable)
#   -e NAME=VALUE    set a variable in the script's environment (repeatable)
#   -o DIR           folder for what the script leaves in /out (default: it is lost)
#   -l FILE          keep the kernel's console log (default: the end is shown if the guest reports no exit code)
#   -w FILE          capture the guest's network traffic in pcap format
#   -m MIB -c CPUS   memory (default 1024) and CPUs (default 2)
#   -M MACHINE       pc (default) | q35
#   -T MODE          single (default: emulated CPUs take turns) | multi (each has a thread)
#   -k               use KVM (default: software emulation, works everywhere)
#   -a WORDS         more words for the kernel command line
#   -b SOCKET        start from a disk by vhost-user, as boot-disk.sh makes it, and not from IMAGE_DIR; the disk keeps what
#                    the guest writes (not with -a and -i)
#
# exit: the script's own code; 124 when the time of -t was over; 125 when the guest reported
#       no code because it crashed or QEMU failed (the console log says why).
# environment: QEMU (program, default qemu-system-x86_64), QEMU_CPU (model, default max),
#       QEMU_ARGS (more arguments)
#
# needs: package qemu-system-x86 (7.2 or newer for -n).  This program needs no root.

set -euo pipefail
limit=120 mem=1024 cpus=2 machine=pc threads=single kvm=0 shell=0 outdir="" log="" pcap="" words="" wire="" monitor="" bootdisk=""
fwd=() files=() envs=()
usage() { sed -n '/^# usage:/,/^# needs/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
while getopts t:p:n:q:f:e:o:l:w:m:c:M:T:a:b:kih opt; do
    case $opt in
        t) limit=$OPTARG ;; p) fwd+=("$OPTARG") ;; n) wire=$OPTARG ;; q) monitor=$OPTARG ;; f) files+=("$OPTARG") ;;
        e) envs+=("$OPTARG") ;; o) outdir=$OPTARG ;; l) log=$OPTARG ;; w) pcap=$OPTARG ;;
        m) mem=$OPTARG ;; c) cpus=$OPTARG ;; M) machine=$OPTARG ;; T) threads=$OPTARG ;; a) words=$OPTARG ;;
        b) bootdisk=$OPTARG ;;
        k) kvm=1 ;; i) shell=1 ;; *) usage ;;
    esac
done
shift $((OPTIND - 1))
image=${1:-} script=${2:-}
[ -n "$image" ] || usage
[ "$shell" = 1 ] || [ -n "$script" ] || usage
die() { echo "run-vm: $*" >&2; exit 125; }
qemu=${QEMU:-qemu-system-x86_64}
command -v "$qemu" >/dev/null || die "missing program: $qemu (package qemu-system-x86)"
[ -e "$image/initrd.img" ] || die "no image in $image"
[ -z "$bootdisk" ] || [ -z "$words" ] || die "the command line of a disk with a boot loader is on the disk: -a is not for -b"
[ -z "$bootdisk" ] || [ "$shell" = 0 ] || die "-i is not for -b"

work=$(mktemp -d "${TMPDIR:-/tmp}/run-vm.XXXXXX")
child=
cleanup() {
    [ -z "$child" ] || kill "$child" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# ------------------------------------------------- the job, as a tar on a disk
mkdir "$work/job"
[ -z "$script" ] || cp -- "$script" "$work/job/run.sh"
for f in "${files[@]}"; do cp -RL -- "$f" "$work/job/"; done
for e in "${envs[@]}"; do printf "%s='%s'\n" "${e%%=*}" "${e#*=}"; done >"$work/job/.env"
tar -C "$work/job" --owner=0 --group=0 -cf "$work/job.img" .
truncate -s %4096 "$work/job.img"
truncate -s 256M "$work/out.img"            # sparse

# ------------------------------------------------------------------- the machine
# The guest boots the unpacked kernel without unpacking it; KVM needs the ordinary entry point.
kernel=$image/vmlinuz
[ "$kvm" = 1 ] || [ ! -e "$image/vmlinux" ] || kernel=$image/vmlinux
netdev=user,id=n0
for p in "${fwd[@]}"; do netdev+=",hostfwd=tcp:127.0.0.1:${p%%:*}-10.0.2.15:${p##*:}"; done
args=(-no-user-config -nodefaults -display none -no-reboot -M "$machine" -m "$mem" -smp "$cpus")
if [ "$kvm" = 1 ]; then
    args+=(-accel kvm -cpu host)
else
    # With thread=multi the guest may crash, because its kernel patches its own code while another
    # emulated CPU runs that code.  With thread=single the emulated CPUs take turns.
    args+=(-accel "tcg,thread=$threads,tb-size=256" -cpu "${QEMU_CPU:-max}")
fi
. "${0%/*}/kernel-words.sh"
cmdline=$kernel_words
[ "$shell" = 1 ] && cmdline+=" quiet guest.shell" || cmdline+=" loglevel=7"
[ -n "$bootdisk" ] || args+=(-kernel "$kernel" -initrd "$image/initrd.img" -append "$cmdline $words")
# QEMU before 8.1 leaves memory barriers out of what one emulated CPU at a time runs.  A virtio driver needs
# them to see that the device waits to be told of new buffers; without them the network can stop for good.
# An e1000e is told of each buffer by a register.
nic=e1000e
[ "$kvm" = 0 ] || nic=virtio-net-pci
args+=(-netdev "$netdev" -device "$nic,netdev=n0,romfile=")
if [ -n "$wire" ]; then
    # Datagrams need no order of starting, and go nowhere while the other guest is not there.
    rm -f "${wire%%:*}"
    args+=(-netdev "dgram,id=n1,local.type=unix,local.path=${wire%%:*},remote.type=unix,remote.path=${wire#*:}")
    args+=(-device "$nic,netdev=n1,romfile=")
fi
[ -z "$monitor" ] || args+=(-qmp "unix:$monitor,server=on,wait=off")
# The disks are the root, the job and the results.  Blocks written to the root go to a temporary
# file, so several runs can share the image.
export TMPDIR=$work
if [ -n "$bootdisk" ]; then
    # The other end of the socket reads and writes the guest's memory.
    args+=(-object "memory-backend-memfd,id=shared,size=${mem}M,share=on" -machine memory-backend=shared)
    args+=(-chardev "socket,id=boot,path=$bootdisk,reconnect=1")
    args+=(-device "vhost-user-blk-pci,chardev=boot,num-queues=2,bootindex=0")
else
    args+=(-drive "if=none,id=d0,format=raw,snapshot=on,cache=unsafe,file=$image/root.img" -device "virtio-blk-pci,drive=d0")
fi
args+=(-drive "if=none,id=d1,format=raw,readonly=on,file=$work/job.img" -device "virtio-blk-pci,drive=d1")
args+=(-drive "if=none,id=d2,format=raw,cache=unsafe,file=$work/out.img" -device "virtio-blk-pci,drive=d2")
[ -z "$pcap" ] || args+=(-object "filter-dump,id=f0,netdev=n0,file=$pcap")
# shellcheck disable=SC2206  # a list of words
args+=(${QEMU_ARGS:-})

if [ "$shell" = 1 ]; then
    exec_args=(-chardev stdio,id=con,mux=on,signal=off -serial chardev:con -mon chardev=con)
    "$qemu" "${args[@]}" "${exec_args[@]}"
    exit
fi

# The first serial port is the kernel's console, to a file.  The second is the job's output, to ours.
args+=(-serial "file:$work/console.log" -serial stdio)
timeout --foreground -k 5 "$limit" "$qemu" "${args[@]}" </dev/null 2>"$work/qemu.err" &
child=$!
# QEMU runs in the background, so that a signal to this program ends the guest at once.
status=0
wait "$child" || status=$?
child=
[ -z "$log" ] || cp "$work/console.log" "$log" 2>/dev/null || true

# The results disk has the exit code in its first line, and from 64 KiB on a tar of /out.
rc=$(head -c 16 "$work/out.img" | tr -d '\0' | head -n 1)
if [ -n "$rc" ]; then
    if [ -n "$outdir" ]; then
        mkdir -p "$outdir"
        dd if="$work/out.img" bs=64K skip=1 status=none 2>/dev/null | tar -C "$outdir" -xf - || true
    fi
else
    rc=125
    [ "$status" != 124 ] && [ "$status" != 137 ] || rc=124
    {
        echo "run-vm: the guest reported no exit code (QEMU ended with $status); console:"
        tail -n 40 "$work/console.log" 2>/dev/null
        cat "$work/qemu.err"
    } >&2
fi
exit "$rc"
