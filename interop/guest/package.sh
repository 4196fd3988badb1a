# The Debian package on an ordinary Debian with systemd: from `apt install` to a mount on a disk of raceline-ublk@.service, as
# docs/OPERATORS.md says, and back to `apt purge`.  The machine starts again in between.
#
# The daemon has the drive /dev/nvme0n1.  The disk's unit is killed, restarted and stopped under verified I/O, and so is the daemon's.
#
# Environment: FSTAB, the guide's line for /etc/fstab.  guide.sh has the guide's commands of its section about the installation,
# raceline_*.deb is the package; they are beside this script.  What outlives a start is in $KEPT.
. ./lib.sh

KEPT=/var/lib/guest
FAILED=$KEPT/failed
STAGE=$(cat $KEPT/stage 2>/dev/null || echo 1)
UNIT=raceline-ublk@disk1
DISK=/dev/ublkb1
MNT=/mnt/disk1
FIRST_NQN=nqn.2026-01.com.example:first
export DEBIAN_FRONTEND=noninteractive RACELINE_RPC_SOCKET=/run/raceline/rpc.sock

# did COMMAND: runs a command that an operator gives, shows it and counts it.
did() {
    echo "$1" >>/tmp/commands
    eval "$1"
}
# took WORDS: says how many commands there were since `begin_count`, and their time.
begin_count() {
    : >/tmp/commands
    date +%s%N >/tmp/begun
}
took() {
    {
        sed 's/^/# $ /' /tmp/commands
        echo "# $1: $(wc -l </tmp/commands) commands, $((($(date +%s%N) - $(cat /tmp/begun)) / 1000000)) ms on an emulated processor"
    } >/dev/ttyS1
}

settled() {
    local state
    state=$(systemctl is-system-running --wait) || fail "$state: $(systemctl --failed --plain --no-legend)"
}

# The package, one export, one connect: a mounted file system with what was copied to it.
first_use() {
    mkdir -p /mnt/first
    begin_count
    did 'apt-get install -y ./raceline_*.deb'
    did "raceline export ram:128M --nqn $FIRST_NQN >/tmp/export.out 2>/tmp/export.err &"
    echo $! >/tmp/export.pid
    until_so 60 grep -q '"ready":true' /tmp/export.out
    did 'modprobe ublk_drv'
    did "raceline connect --as ublk -a 127.0.0.1 -n $FIRST_NQN >/tmp/connect.out 2>/tmp/connect.err &"
    echo $! >/tmp/connect.pid
    until_so 60 grep -q '"device":"/dev/ublkb0"' /tmp/connect.out
    did 'mkfs.ext4 -q /dev/ublkb0'
    did 'mount /dev/ublkb0 /mnt/first'
    did 'cp -r /usr/share/doc/raceline /mnt/first/'
    did 'diff -r /usr/share/doc/raceline /mnt/first/raceline'
    took 'from the package to a verified file system on a block device of the kernel'
    umount /mnt/first
    kill "$(cat /tmp/connect.pid)"
    until_so 60 [ ! -e /dev/ublkb0 ]
    kill "$(cat /tmp/export.pid)"
    rmmod ublk_drv
}

# The guide's commands, one after another: a daemon on the drive, and a disk that programs use by NBD.
guide() {
    echo 'APT::Get::Assume-Yes "true";' >/etc/apt/apt.conf.d/90yes
    bash -e ./guide.sh
    [ "$(systemctl is-active raceline.service raceline.socket raceline-disk@disk0 | sort -u)" = active ] ||
        fail "$(systemctl --no-pager status raceline.service raceline.socket raceline-disk@disk0 | head -n 40)"
}

# The unit raceline-disk@ below the kernel's NBD client; what it wrote is on the drive.
nbd() {
    modprobe nbd
    nbd-client -unix /run/raceline-disk-disk0/disk.sock /dev/nbd0 -N disk
    dd if=/dev/urandom of=/tmp/mark bs=64k count=16 2>/dev/null
    dd if=/tmp/mark of=/dev/nbd0 bs=64k oflag=direct conv=fsync 2>/dev/null
    systemctl kill -s KILL raceline-disk@disk0 --kill-whom=main
    nbd-client -d /dev/nbd0
    dd if=/dev/nvme0n1 bs=64k count=16 iflag=direct 2>/dev/null | cmp - /tmp/mark || fail "the drive has other data"
    until_so 60 systemctl -q is-active raceline-disk@disk0
}

main_pid() { systemctl show -P MainPID "${1:-$UNIT}"; }
restarts() { systemctl show -P NRestarts "${1:-$UNIT}"; }
# journal [UNIT]: what the unit has said since the mark.
journal() { journalctl -q -o cat -u "${1:-$UNIT}" --after-cursor="$(cat /tmp/cursor)"; }
mark() { journalctl -n 0 --show-cursor | sed -n 's/^-- cursor: //p' >/tmp/cursor; }

# The unit makes the disk, in all of its sandbox, and the guide's line mounts it.
disk() {
    begin_count
    did "systemctl start $UNIT"
    did "mkfs.ext4 -q $DISK"
    did "mkdir $MNT"
    did "echo '$FSTAB' >>/etc/fstab"
    did 'systemctl daemon-reload'
    did "mount $MNT"
    took 'after the commands of the guide: a disk of the unit that is mounted'
    grep -q "^$DISK $MNT ext4 rw" /proc/mounts || fail "$(grep $MNT /proc/mounts)"
}

# sandbox: the process has what the unit gives it, and no more.
sandbox() {
    local pid caps disk
    pid=$(main_pid)
    grep -q '^Seccomp:.*2$' /proc/$pid/status || fail "no filter of system calls: $(grep Seccomp /proc/$pid/status)"
    grep -q '^NoNewPrivs:.*1$' /proc/$pid/status || fail "$(grep NoNewPrivs /proc/$pid/status)"
    # CAP_SYS_ADMIN (21), CAP_SYS_RESOURCE (24), CAP_SYS_PTRACE (19), CAP_DAC_READ_SEARCH (2)
    caps=$(sed -n 's/^CapEff:\t//p' /proc/$pid/status)
    [ "$caps" = 0000000001280004 ] || fail "its capabilities are $caps"
    [ "$(systemctl show -P WatchdogUSec $UNIT)" = 30s ] || fail "the watchdog: $(systemctl show -P WatchdogUSec $UNIT)"
    [ "$(systemctl show -P DevicePolicy $UNIT)" = closed ] || fail "devices: $(systemctl show -P DevicePolicy $UNIT)"
    [ "$(readlink /proc/$pid/ns/mnt)" != "$(readlink /proc/1/ns/mnt)" ] || fail "it has the mounts of the machine"
    [ "$(cat /proc/$pid/oom_score_adj)" = -900 ] || fail "oom_score_adj is $(cat /proc/$pid/oom_score_adj)"
    ! grep -q rwxp /proc/$pid/maps || fail "memory to write and run: $(grep rwxp /proc/$pid/maps)"
    # Another program with these devices reads the disk, and drives of the same kind; it cannot write them, or read the root's.
    try_device "dd if=$DISK of=/dev/null count=1" || fail "the unit's devices have no disk"
    for disk in $DISK /dev/nvme0n1; do
        ! try_device "dd if=/dev/zero of=$disk count=0 conv=notrunc" || fail "the unit's devices have $disk to write"
    done
    ! try_device 'dd if=/dev/vda of=/dev/null count=1' || fail "the unit's devices have the root's disk"
}
try_device() {
    local words
    words=$(sed -n 's/^\(Device[A-Za-z]*=.*\)/-p "\1"/p' /usr/lib/systemd/system/raceline-ublk@.service | tr '\n' ' ')
    eval "systemd-run -q --wait $words $1"
}

verify() {
    fio --name=v --filename=$MNT/verify --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bs=16k --size=24m --fsync=64 \
        --verify=crc32c --do_verify=1 --verify_fatal=1 >/tmp/fio.log 2>&1 || fail "$(tail -n 3 /tmp/fio.log)"
    cp -r /usr/share/doc/raceline $MNT/
    dd if=/dev/urandom of=$MNT/data bs=64k count=160 conv=fsync 2>/dev/null
    (cd $MNT && find raceline data -type f -print0 | sort -z | xargs -0 sha256sum) >$KEPT/sums
    umount $MNT
    mount $MNT
    sums
}
sums() {
    echo 3 >/proc/sys/vm/drop_caches
    (cd $MNT && sha256sum -c --quiet $KEPT/sums) || fail 'a file is not as it was written'
}

written() { awk '{ print $7 }' "/sys/block/${DISK#/dev/}/stat"; }
moved() { [ "$(written)" -gt "$(cat /tmp/before)" ]; }
# under_way: waits until the disk is written.
under_way() {
    written >/tmp/before
    until_so 90 moved
}
# jobs_start, jobs_end: verifying jobs on the file system, one after another.
jobs() {
    while [ ! -e /tmp/enough ]; do
        fio --name=x --filename=$MNT/jobs --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bs=16k --size=8m \
            --verify=crc32c --do_verify=1 --verify_fatal=1 >/tmp/fio.log 2>&1 || return 1
    done
}
jobs_start() {
    rm -f /tmp/enough
    mark
    date +%s >/tmp/jobs.begun
    jobs &
    echo $! >/tmp/jobs.pid
    under_way
}
jobs_end() {
    under_way
    touch /tmp/enough
    wait "$(cat /tmp/jobs.pid)" || {
        journalctl -q -o short-monotonic -t raceline -t systemd --since "@$(cat /tmp/jobs.begun)" | grep -i raceline | tail -n 60 | sed 's/^/#   /' >/dev/ttyS1
        fail "a job failed: $(grep -m 1 -i error /tmp/fio.log)"
    }
    grep -q "^$DISK $MNT ext4 rw" /proc/mounts || fail "the mount is gone: $(grep $MNT /proc/mounts)"
    sums
}
# goes_on PID: the unit has another process than this one, which has gone on with the disk.
changed() { [ "$(main_pid)" != "$1" ] && systemctl -q is-active $UNIT; }
recovered() { journal | grep -q '"recovered":true'; }
goes_on() {
    until_so 120 changed "$1"
    until_so 30 recovered
    mark
}

killed() {
    local pid i n
    n=$(restarts)
    jobs_start
    for i in 1 2 3; do
        under_way
        pid=$(main_pid)
        systemctl kill -s KILL $UNIT
        goes_on "$pid"
    done
    jobs_end
    [ "$(restarts)" = $((n + 3)) ] || fail "systemd counts $(restarts) restarts"
}

restarted() {
    local pid
    pid=$(main_pid)
    jobs_start
    systemctl restart $UNIT
    goes_on "$pid"
    jobs_end
}

# A stopped process is one whose core hangs: systemd ends it after WatchdogSec.
watchdog() {
    local pid
    pid=$(main_pid)
    jobs_start
    kill -STOP "$pid"
    until_so 120 changed "$pid"
    journal | grep -q 'Watchdog timeout' || fail "$(journal | tail -n 5)"
    goes_on "$pid"
    jobs_end
}

# The subsystem is away for a while: reload (another process takes its place), restart, kill.
daemon() {
    local pid how
    jobs_start
    for how in reload restart 'kill -s KILL --kill-whom=main'; do
        under_way
        pid=$(main_pid raceline)
        # shellcheck disable=SC2086  # several words
        systemctl $how raceline
        until_so 60 raceline subsys ls
        [ "$(main_pid raceline)" != "$pid" ] || fail "the daemon is the same process after $how"
        under_way
    done
    pid=$(main_pid)
    jobs_end
    [ "$(main_pid)" = "$pid" ] || fail 'the process of the disk is another one'
    # A daemon that has taken the place of another one ends in order.
    ! journal raceline | grep -E 'not our child|Killing process' || fail 'the restart after the reload was not in order'
}

# Nobody else could go on with the disk.
held() {
    refused 'a disk of raceline-ublk@ is in use' apt-get remove -y raceline
    [ -x /usr/bin/raceline ] || fail 'the program is gone'
    systemctl -q is-active raceline $UNIT || fail 'a unit has ended'
    sums
    dpkg --status raceline | grep -q 'install ok installed' || fail "$(dpkg --status raceline | grep Status)"
}

# A machine whose disk is mounted goes down within a minute.
down() {
    local end
    # When the machine was up again, by its clock.
    end=$(($(date +%s) - $(cut -d . -f 1 /proc/uptime)))
    echo "# the machine went down in at most $((end - $(cat $KEPT/down))) s" >/dev/ttyS1
    [ $((end - $(cat $KEPT/down))) -le 60 ] || fail "it took $((end - $(cat $KEPT/down))) s to go down"
}
# The next start makes the disk and mounts it.
again() {
    # (an emulated machine is up minutes after its start)
    until_so 400 mountpoint -q $MNT
    grep -q "^$DISK $MNT ext4 rw" /proc/mounts || fail "$(grep $MNT /proc/mounts)"
    sums
}

# How the machine went down, and came up: the mount ended before its disk, and the disk before the daemon.
order() {
    journalctl -q -b -1 -o short-monotonic --since "@$(cat $KEPT/down)" >/tmp/last
    ! grep -E 'Failed unmounting|[Tt]imed out|Killing process' /tmp/last || fail 'the end was not in order'
    before /tmp/last "Unmounted .*disk1" "Stopped raceline-ublk@disk1"
    before /tmp/last "Stopped raceline-ublk@disk1" "Stopped raceline.service"
    journalctl -q -b -o short-monotonic >/tmp/this
    before /tmp/this "Started raceline-ublk@disk1" "Mounted .*disk1"
}
# before FILE ONE TWO: the last line with ONE comes before the last one with TWO.
before() {
    local one two
    one=$(grep -n "$2" "$1" | tail -n 1 | cut -d : -f 1)
    two=$(grep -n "$3" "$1" | tail -n 1 | cut -d : -f 1)
    [ -n "$one" ] && [ -n "$two" ] && [ "$one" -lt "$two" ] || {
        grep -E "$2|$3" "$1"
        fail "no '$2' (line $one) before '$3' (line $two)"
    }
}

# left: what has the package's name, in memory, too.
left() {
    find / /run -xdev '(' -path /proc -o -path /sys -o -path /job -o -path /root -o -path /run/systemd -o -path '/var/lib/dpkg*' -o -path '/var/log*' ')' -prune \
        -o -name "*raceline*" -print | sort | tr "\n" " "
}

# A disk that nobody uses ends with its unit, and the package goes with what it brought.
removed() {
    local found
    umount $MNT
    sed -i "\\,^$DISK ,d" /etc/fstab
    systemctl daemon-reload
    systemctl disable --now $UNIT
    until_so 60 [ ! -e $DISK ]
    apt-get remove -y raceline
    found=$(left)
    [ "$found" = '/etc/default/raceline /etc/raceline /etc/systemd/system/raceline.service.d /var/lib/raceline ' ] ||
        fail "the removal left $found"
    apt-get purge -y raceline
    found=$(left)
    [ "$found" = '/etc/raceline /etc/systemd/system/raceline.service.d /var/lib/raceline ' ] || fail "the purge left $found"
    [ "$(ls /etc/raceline/disks)" = "disk0.conf
disk1.conf" ] || fail "$(ls /etc/raceline/disks)"
    [ -z "$(systemctl list-units --all --plain --no-legend 'raceline*')" ] || fail "$(systemctl list-units --all 'raceline*')"
    settled
}

dispatch "$@"
mkdir -p $KEPT
log_start
if [ "$STAGE" = 1 ]; then
    # (a panic also starts the machine again)
    echo broken >$KEPT/stage
    # (nobody else uses apt)
    systemctl mask --now apt-daily.timer apt-daily-upgrade.timer >/dev/null 2>&1
    systemctl reset-failed
    check settled 240 settled
    check first-use 240 first_use
    check guide 300 guide
    check nbd 120 nbd
    check disk 180 disk
    check sandbox 120 sandbox
    check verify 240 verify
    check killed 400 killed
    check restarted 240 restarted
    check watchdog 300 watchdog
    check daemon 400 daemon
    check held 120 held
    # (the end of the NBD disk's process is provoked)
    check kernel-log 20 log_clean 'nbd0'
    date +%s >$KEPT/down
    echo 2 >$KEPT/stage
    exit 94
fi
if [ "$STAGE" = 2 ]; then
    check down 20 down
    check again 420 again
    check settled-again 240 settled
    check order 120 order
    check removed 240 removed
    check kernel-log-again 20 log_clean
else
    echo "not ok started: the machine has started again before its job was done"
    echo started >>$FAILED
fi
finish
