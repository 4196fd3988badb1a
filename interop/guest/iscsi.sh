# Checks of an iSCSI target by open-iscsi and the initiator of the kernel.
#
# Environment: PORT, IQN, SECRET and BACK_SECRET.  IQN has LUN 0, a file of 384 MiB that survives the daemon, and LUN 1,
# 32 MiB of memory; both have blocks of 512 bytes.  $IQN-chap demands CHAP of user "me" with SECRET, $IQN-mutual demands
# that the initiator asks for mutual CHAP as well, where the target is "disk" with BACK_SECRET.  ALL=1 runs the checks
# that take longer, too.
#
# This script prints a line "REQUEST word" to ask the machine outside for something.  kill: kill the daemon.  start:
# start it again.  grow: the file has 448 MiB from now on.  add-lun, remove-lun: LUN 5, 8 MiB of memory.
. ./lib.sh
PORTAL=$ADDR:$PORT
SMALL=4m
[ -z "${ALL:-}" ] || SMALL=16m

# ask WORD: asks the machine outside for something.  (It reads ttyS1.  The output of a check does not go there at once.)
ask() { echo "REQUEST $1" >/dev/ttyS1; }
# until_true SECONDS WHAT COMMAND...: repeats the command until it succeeds; fails after SECONDS.
until_true() {
    local limit=$(($1 * 5)) what=$2 i=0
    shift 2
    until "$@"; do
        [ $i -lt $limit ] || fail "$what"
        sleep 0.2
        i=$((i + 1))
    done
}

# ---------------------------------------------------------------- sessions and disks

daemon() {
    mkdir -p /etc/iscsi /run/lock/iscsi /var/lib/iscsi
    echo "InitiatorName=iqn.2026-01.io.raceline:guest" >/etc/iscsi/initiatorname.iscsi
    printf 'iscsid.startup = /bin/true\nnode.startup = manual\n' >/etc/iscsi/iscsid.conf
    modprobe -a iscsi_tcp sd_mod
    iscsid
    until_true 20 "iscsid does not answer" iscsiadm -m iface
}
# node NAME WORDS...: iscsiadm on the record of that target node.
node() {
    local name=$1
    shift
    iscsiadm -m node -T "$name" -p "$PORTAL" "$@"
}
# login NAME [SETTING=VALUE...]: makes a record with these settings, and logs in.
login() {
    local name=$1 setting
    shift
    node "$name" -o delete >/dev/null 2>&1 || true
    node "$name" -o new >/dev/null
    for setting; do
        node "$name" -o update -n "${setting%%=*}" -v "${setting#*=}"
    done
    node "$name" --login
}
# logout NAME: ends all sessions with that target node.  They must be gone within 20 s.
logout() {
    node "$1" --logout
    until_true 20 "a session with $1 stays" no_session "$1"
}
# sessions NAME: prints the folders of the sessions with that target node.
sessions() {
    local s
    for s in /sys/class/iscsi_session/session*; do
        [ "$(cat "$s/targetname" 2>/dev/null)" != "$1" ] || echo "$s"
    done
}
no_session() { [ -z "$(sessions "$1")" ]; }
session() { sessions "$1" | head -n 1; }
state_is() { [ "$(cat "$(session "$IQN")/state" 2>/dev/null)" = "$1" ]; }
# parameter NAME: prints what the connection has negotiated, such as header_digest.
parameter() { cat "$(session "$IQN")"/device/connection*/iscsi_connection/connection*/"$1"; }
# folder_of SESSION LUN: prints the folder of that LUN of a session, or nothing.
folder_of() { ls -d "$1"/device/target*/*:"$2" 2>/dev/null; }
has_disk() { ls "$1"/device/target*/*:"$2"/block >/dev/null 2>&1; }
disk_of() {
    until_true 30 "LUN $2 of $1 has no disk" has_disk "$1" "$2"
    echo "/dev/$(ls "$(folder_of "$1" "$2")/block")"
}
# disk LUN: prints the disk of that LUN of $IQN.
disk() { disk_of "$(session "$IQN")" "$1"; }
size_is() { [ "$(bytes "$1")" = $(($2 << 20)) ]; }
has_lun() { [ -n "$(folder_of "$(session "$IQN")" "$1")" ]; }
rescan() { node "$IQN" -R; }

# ---------------------------------------------------------------- discovery, logins

discovery() {
    iscsiadm -m discovery -t sendtargets -p "$PORTAL" | tee /tmp/found
    for name in "$IQN" "$IQN-chap" "$IQN-mutual"; do
        grep -qx "127.0.0.1:$PORT,1 $name" /tmp/found || fail "$name is not told"
    done
}
# The target tells the address at which it was asked.  Behind the emulator's network, that address leads to the guest
# itself.  So nc carries connections to it on.
discovered_login() {
    local relay
    nc -ll -p "$PORT" -e nc "$ADDR" "$PORT" &
    relay=$!
    iscsiadm -m node -T "$IQN" -p "127.0.0.1:$PORT" --login
    dd if="$(disk 0)" of=/dev/null bs=64k count=4 iflag=direct 2>/dev/null
    iscsiadm -m node -T "$IQN" -p "127.0.0.1:$PORT" --logout
    until_true 20 "the session stays" no_session "$IQN"
    kill $relay
    iscsiadm -m node -T "$IQN" -p "127.0.0.1:$PORT" -o delete
}
CHAP="node.session.auth.authmethod=CHAP node.session.auth.username=me"
BACK="node.session.auth.username_in=disk"
# works NAME SETTING...: logs in with these settings, uses the disk, and logs out.
works() {
    local d
    login "$@"
    d=$(disk_of "$(session "$1")" 0)
    dd if=/dev/urandom of="$d" bs=4k count=4 oflag=direct 2>/dev/null
    logout "$1"
}
# shuts_out NAME SETTING...: the login must be refused, and leave no session.
shuts_out() {
    refused 'auth' login "$@"
    no_session "$1" || fail "a session is there"
}
# shellcheck disable=SC2086  # word lists
chap() {
    works "$IQN-chap" $CHAP "node.session.auth.password=$SECRET"
    works "$IQN-chap" $CHAP "node.session.auth.password=$SECRET" $BACK "node.session.auth.password_in=$BACK_SECRET"
    works "$IQN-mutual" $CHAP "node.session.auth.password=$SECRET" $BACK "node.session.auth.password_in=$BACK_SECRET"
}
# shellcheck disable=SC2086  # word lists
chap_refused() {
    shuts_out "$IQN-chap"
    shuts_out "$IQN-chap" $CHAP "node.session.auth.password=another-secret-x"
    shuts_out "$IQN-mutual" $CHAP "node.session.auth.password=$SECRET"
    # Here the target is in the wrong, and the initiator refuses it.
    refused 'error|fail' login "$IQN-mutual" $CHAP "node.session.auth.password=$SECRET" \
        $BACK node.session.auth.password_in=another-secret-y
    no_session "$IQN-mutual" || fail "a session is there"
}

# ---------------------------------------------------------------- data

facts() {
    local d
    d=$(disk 0)
    size_is "$d" 384 || fail "LUN 0 has $(bytes "$d") bytes"
    size_is "$(disk 1)" 32 || fail "LUN 1 has $(bytes "$(disk 1)") bytes"
    [ "$(block_size "$d")" = 512 ] || fail "blocks of $(block_size "$d")"
    [ "$(cat "$(folder_of "$(session "$IQN")" 0)/vendor" | tr -d ' ')" = RACELINE ] || fail "the vendor is $(cat "$(folder_of "$(session "$IQN")" 0)/vendor")"
    sg_vpd --page=di "$d" | tee /tmp/vpd
    grep -qi 'NAA' /tmp/vpd || fail "no NAA designator"
    sg_vpd --page=di "$(disk 1)" >/tmp/vpd1
    ! cmp -s /tmp/vpd /tmp/vpd1 || fail "two LUNs have one identity"
}
# with DIGEST DIGEST [SETTING=VALUE...]: logs in with these header and data digests, and verifies data on both LUNs.
with() {
    local header=$1 data=$2
    shift 2
    login "$IQN" "node.conn[0].iscsi.HeaderDigest=$header" "node.conn[0].iscsi.DataDigest=$data" "$@"
    disk 0 >/dev/null
    [ "$(parameter header_digest)" = "$([ "$header" = None ] && echo 0 || echo 1)" ] || fail "header_digest is $(parameter header_digest)"
    [ "$(parameter data_digest)" = "$([ "$data" = None ] && echo 0 || echo 1)" ] || fail "data_digest is $(parameter data_digest)"
    verify "$(disk 1)" $SMALL
    verify "$(disk 0)" $SMALL
}
# file_system TYPE: writes and syncs files on LUN 0, unmounts, empties the caches, mounts again, and compares the files.
file_system() {
    local d sum i
    d=$(disk 0)
    case $1 in ext4) mkfs.ext4 -q -F "$d" ;; xfs) mkfs.xfs -q -f "$d" ;; esac
    mount -t "$1" "$d" /mnt
    mkdir /mnt/dir
    dd if=/dev/urandom of=/mnt/dir/data bs=1M count=8 conv=fsync 2>/dev/null
    for i in 1 2 3 4; do
        echo "$i" >/mnt/dir/small$i
    done
    sync
    sum=$(cat /mnt/dir/* | md5sum)
    umount /mnt
    cold_caches
    mount -t "$1" "$d" /mnt
    [ "$(cat /mnt/dir/* | md5sum)" = "$sum" ] || fail "the files changed"
    rm -r /mnt/dir
    fstrim -v /mnt
    umount /mnt
    case $1 in ext4) fsck.ext4 -f -n "$d" ;; xfs) xfs_repair -n "$d" ;; esac
}
discard() {
    local d
    d=$(disk 1)
    dd if=/dev/urandom of="$d" bs=1M count=6 oflag=direct 2>/dev/null
    all_zero "$d" 0 6 && fail "nothing was written"
    blkdiscard -o 0 -l $((4 << 20)) "$d"
    all_zero "$d" 0 4 || fail "discarded blocks do not read as zeroes"
    all_zero "$d" 4 2 && fail "more was discarded than asked for"
    blkdiscard -z -o $((4 << 20)) -l $((2 << 20)) "$d"
    all_zero "$d" 4 2 || fail "blkdiscard -z left data"
}

# ---------------------------------------------------------------- changes

# told TEXT: reads LUN 0 until the kernel logs what a unit attention said.
told() {
    dd if="$(disk 0)" of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null
    dmesg | grep -qi "$1"
}
grown() {
    local d
    d=$(disk 0)
    ask grow
    until_true 30 "the kernel is not told that the capacity has changed" told 'capacity data has changed'
    rescan
    until_true 20 "LUN 0 has $(bytes "$d") bytes" size_is "$d" 448
    dd if=/dev/urandom of=/tmp/end bs=64k count=1 2>/dev/null
    dd if=/tmp/end of="$d" bs=64k seek=$((448 * 16 - 1)) oflag=direct 2>/dev/null
    dd if="$d" of=/tmp/back bs=64k skip=$((448 * 16 - 1)) iflag=direct 2>/dev/null
    cmp /tmp/end /tmp/back
}
lun_comes() {
    ! has_lun 5 || fail "LUN 5 is there already"
    ask add-lun
    until_true 30 "the kernel is not told of a LUN" told 'LUN assignments on this target have changed'
    rescan
    size_is "$(disk 5)" 8 || fail "LUN 5 has $(bytes "$(disk 5)") bytes"
    verify "$(disk 5)" 1m
    sg_luns "$(disk 0)" | tee /tmp/luns
    grep -q 0005000000000000 /tmp/luns || fail "LUN 5 is not listed"
}
unreadable() { ! dd if="$1" of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null; }
lun_goes() {
    local d
    d=$(disk 5)
    dmesg -c >/dev/null
    ask remove-lun
    until_true 30 "LUN 5 can still be read" unreadable "$d"
    until_true 30 "the kernel is not told of a LUN" told 'LUN assignments on this target have changed'
    sg_luns "$(disk 0)" | tee /tmp/luns
    ! grep -q 0005000000000000 /tmp/luns || fail "LUN 5 is still listed"
    # Linux leaves it to its user to remove the disk; what a rescan finds is what there is.
    echo 1 >"$(folder_of "$(session "$IQN")" 5)/delete"
    rescan
    sleep 1
    ! has_lun 5 || fail "a rescan finds LUN 5"
    dd if="$(disk 0)" of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null
}
# conflicts COMMAND...: the command must end with a reservation conflict.
conflicts() { refused 'conflict|error' "$@"; }
put() { dd if=/dev/zero of="$1" bs=4k count=1 oflag=direct; }
# Two sessions of this guest are two I_T nexuses.
reservations() {
    local first one two
    first=$(session "$IQN")
    one=$(disk 1)
    iscsiadm -m session -r "${first##*session}" --op new
    two=$(disk_of "$(sessions "$IQN" | grep -vx "$first")" 1)
    sg_persist --out --register --param-sark=0xabc "$one"
    sg_persist --in --read-keys "$two" | tee /tmp/keys
    grep -qi 0xabc /tmp/keys || fail "the key is not listed"
    sg_persist --out --reserve --param-rk=0xabc --prout-type=5 "$one"
    sg_persist --in --read-reservation "$two" | tee /tmp/reservation
    grep -qi 'registrants only' /tmp/reservation || fail "the reservation is not shown"
    put "$one"
    conflicts put "$two"
    sg_persist --out --register --param-sark=0xdef "$two"
    put "$two"
    sg_persist --out --preempt --param-rk=0xdef --param-sark=0xabc --prout-type=5 "$two"
    # The first registrant is told that it was preempted, and may not write from then on.
    sg_turs "$one" || true
    conflicts put "$one"
    sg_persist --out --clear --param-rk=0xdef "$two"
    sg_turs "$one" || true
    put "$one"
}

# decodes WORDS...: a tool of sg3-utils must succeed, and print nothing of what it says of answers that are cut or wrong.
decodes() {
    "$@" >/tmp/sg.out 2>&1 || { cat /tmp/sg.out; fail "exit $? of $*"; }
    ! grep -iE 'malformed|truncated|too short|unexpected|invalid|illegal|overflow' /tmp/sg.out || fail "what $* says"
}
# sg3-utils decodes what the target says of a LUN, and its writers do what they say.
sg_tools() {
    local d
    d=$(disk 1)
    decodes sg_inq "$d"
    grep -q RACELINE /tmp/sg.out || fail "no vendor"
    decodes sg_vpd --all "$d"
    decodes sg_readcap --16 "$d"
    decodes sg_modes --all "$d"
    decodes sg_opcodes "$d"
    decodes sg_requests "$d"
    decodes sg_get_lba_status --lba=0 "$d"
    decodes sg_persist --in --report-capabilities "$d"
    decodes sg_sync "$d"
    decodes sg_verify --lba=0 --count=64 "$d"
    dd if=/dev/urandom of=/tmp/blocks bs=512 count=2 2>/dev/null
    dd if=/tmp/blocks of="$d" bs=512 count=1 oflag=direct 2>/dev/null
    # The first block of the file is what is there, the second one takes its place.
    decodes sg_compare_and_write --in=/tmp/blocks --lba=0 --num=1 --xferlen=1024 "$d"
    refused 'miscompare' sg_compare_and_write --in=/tmp/blocks --lba=0 --num=1 --xferlen=1024 "$d"
    dd if="$d" of=/tmp/back bs=512 count=1 iflag=direct 2>/dev/null
    dd if=/tmp/blocks bs=512 skip=1 count=1 2>/dev/null | cmp - /tmp/back
    decodes sg_write_same --in=/tmp/back --xferlen=512 --lba=2048 --num=2048 "$d"
    dd if="$d" bs=512 skip=4095 count=1 iflag=direct 2>/dev/null | cmp - /tmp/back
    decodes sg_unmap --lba=2048 --num=2048 --force "$d"
    all_zero "$d" 1 1 || fail "blocks that are unmapped do not read as zeroes"
}
# part DISK BLOCK BLOCKS: the checksum of that part.
part() { dd if="$1" bs=512 skip="$2" count="$3" iflag=direct 2>/dev/null | md5sum; }
# sg_xcopy has the target copy, between two LUNs and within one, and sg_copy_results asks it what became of that.
extended_copy() {
    local one two sum d
    one=$(disk 0)
    two=$(disk 1)
    # sg_xcopy opens disks by the names that udev makes, which is not here.
    mkdir -p /dev/block
    for d in "$one" "$two"; do
        ln -sf "$d" "/dev/block/$(cat "/sys/block/${d#/dev/}/dev")"
    done
    decodes sg_copy_results --params "$one"
    grep -i 'segment' /tmp/sg.out
    dd if=/dev/urandom of="$one" bs=512 seek=4096 count=4096 oflag=direct 2>/dev/null
    sum=$(part "$one" 4096 4096)
    decodes sg_xcopy if="$one" of="$two" bs=512 skip=4096 seek=777 count=4096
    [ "$(part "$two" 777 4096)" = "$sum" ] || fail "the copy to the other LUN differs"
    decodes sg_xcopy if="$two" of="$two" bs=512 skip=777 seek=20000 count=4096
    [ "$(part "$two" 20000 4096)" = "$sum" ] || fail "the copy within a LUN differs"
    decodes sg_xcopy if="$two" of="$one" bs=512 skip=20000 seek=70000 count=4096 list_id=7 id_usage=hold
    [ "$(part "$one" 70000 4096)" = "$sum" ] || fail "the copy back differs"
    # sg_xcopy sends the command to the destination.
    sg_copy_results --status --list_id=7 "$one" | tee /tmp/status
    grep -qi 'completed without errors' /tmp/status || fail "the status of the copy"
    # Behind the end of the destination.
    refused 'fail|error|abort|sense' sg_xcopy if="$one" of="$two" bs=512 skip=4096 seek=65000 count=4096
}

# ---------------------------------------------------------------- breaks

# fio_background SIZE LOOPS: starts a verifying job on LUN 0, which writes its exit code to /tmp/fio.rc at its end.
fio_background() {
    rm -f /tmp/fio.rc
    (
        rc=0
        fio --name=background --filename="$(disk 0)" --rw=randwrite --bs=4k-64k --offset=64m --size="$1" \
            --direct=1 --ioengine=libaio --iodepth=8 --verify=crc32c --verify_fatal=1 --verify_dump=0 \
            --do_verify=1 --loops="$2" --minimal >/tmp/fio.out 2>&1 || rc=$?
        echo $rc >/tmp/fio.rc
    ) &
}
ended() { [ -s /tmp/fio.rc ]; }
# writes_done DISK: prints how many writes of it the kernel has completed.
writes_done() { awk -v d="${1#/dev/}" '$3 == d {print $8}' /proc/diskstats; }
has_written() { [ "$(writes_done "$1")" -ge "$2" ]; }
logout_under_io() {
    local d before
    d=$(disk 0)
    before=$(writes_done "$d")
    # fio cannot finish 1000 loops here: only the logout ends the job.
    fio_background 16m 1000
    until_true 30 "fio does not write" has_written "$d" $((before + 50))
    logout "$IQN"
    until_true 60 "fio did not end: I/O is stuck" ended
    [ "$(cat /tmp/fio.rc)" != 0 ] || fail "fio had ended before the logout"
}
kill_under_io() {
    local d before i
    d=$(disk 0)
    fio_background 12m "$1"
    for i in $(seq "$1"); do
        before=$(writes_done "$d")
        until_true 60 "fio does not write" has_written "$d" $((before + 50))
        ended && fail "fio had ended before kill $i: $(tail -n 1 /tmp/fio.out)"
        ask kill
        until_true 60 "the kernel did not notice that the target is gone" state_is FAILED
        ask start
        until_true 60 "the kernel did not log in again" state_is LOGGED_IN
    done
    until_true 120 "fio did not end: I/O is stuck" ended
    [ "$(cat /tmp/fio.rc)" = 0 ] || { cut -c1-200 /tmp/fio.out; fail "fio ended with $(cat /tmp/fio.rc)"; }
}
storm() {
    local i
    for i in 1 2 3 4 5 6; do
        login "$IQN"
        dd if="$(disk 0)" of=/dev/null bs=64k count=4 iflag=direct 2>/dev/null
        logout "$IQN"
    done
}

dispatch "$@"
log_start
echo "# kernel $(uname -r), $(iscsiadm --version)"
check iscsid 60 daemon
check discovery 60 discovery
check discovered-login 90 discovered_login
check chap 120 chap
check chap-refused 120 chap_refused
# Linux was still looking for partitions when it was told to log out.
check dmesg-logins 10 log_clean 'Buffer I/O error on dev sd[a-z]+, logical block [0-9]+, async page read'

check digests-none 120 with None None
check facts 30 facts
check ext4 120 file_system ext4
check blkdiscard 60 discard
[ -z "${ALL:-}" ] || check xfs 150 file_system xfs
check dmesg-data 10 log_clean
check capacity-grows 90 grown
check lun-comes 90 lun_comes
# Linux logs reads of the LUN that is gone.
check lun-goes 90 lun_goes
check dmesg-changes 10 log_clean 'I/O error|Logical unit not supported'
check reservations 90 reservations
check dmesg-reservations 10 log_clean 'reservation conflict|[Ii]/[Oo] error'
check sg-tools 60 sg_tools
check extended-copy 60 extended_copy
check dmesg-copies 10 log_clean
check logout-all 60 logout "$IQN"

check digests-crc32c 120 with CRC32C CRC32C node.session.iscsi.InitialR2T=Yes node.session.iscsi.ImmediateData=No
check dmesg-digests 10 log_clean
check logout-under-io 120 logout_under_io
# Linux logs the requests that the logout ended.
check dmesg-logout 10 log_clean '[Ii]/[Oo] error|Synchronizing SCSI cache|Synchronize Cache'
if [ -n "${ALL:-}" ]; then
    check digests-header 120 with CRC32C None node.session.iscsi.ImmediateData=No
    check logout-header 60 logout "$IQN"
    check digests-data 120 with None CRC32C node.session.iscsi.InitialR2T=Yes
    check logout-data 60 logout "$IQN"
    check short-bursts 150 with None None node.session.iscsi.FirstBurstLength=4096 node.session.iscsi.MaxBurstLength=16384 \
        'node.conn[0].iscsi.MaxRecvDataSegmentLength=4096'
    check logout-short 60 logout "$IQN"
    check login-storm 180 storm
    check dmesg-variants 10 log_clean
fi
check login-for-kill 60 login "$IQN"
check kill-under-io 300 kill_under_io "${KILLS:-1}"
check dmesg-kill 10 log_clean 'detected conn error'
check verify-after 120 verify "$(disk 0)" 2m
check logout 60 logout "$IQN"
check dmesg-end 10 log_clean
finish
