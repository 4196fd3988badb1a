# The kernel's host manages namespaces of a daemon: it makes them from a pool, attaches, uses, formats, detaches and
# deletes them.  The namespaces survive the daemon.  The daemon tells the host when namespaces come and go.
#
# Environment: PORT, NQN.  The subsystem has a pool of 256 MiB in units of 1 MiB and no namespace.  This script prints
# a line "REQUEST word" to ask the machine outside for something.  restart: kill the daemon, and start it again.  add-ns
# and remove-ns: add or remove namespace 20.  add-subsystem: make $NQN-two.  add-referral: refer discovery to another
# service at OTHER_PORT, which has $NQN-other.  With STATIC=1 (crates/target/examples/export_pool.rs) no program
# answers, and the checks that ask are left out.
. ./lib.sh

# ns_ids: prints the numbers of the namespaces that the kernel has, in one line and ascending order.
ns_ids() {
    local s d ids=""
    for s in /sys/class/nvme-subsystem/nvme-subsys*; do
        [ "$(cat "$s/subsysnqn" 2>/dev/null)" = "$NQN" ] || continue
        for d in "$s"/nvme*n*; do
            d=/sys/block/${d##*/}/nsid
            [ ! -e "$d" ] || ids="$ids $(cat "$d")"
        done
    done
    echo $ids | tr ' ' '\n' | sort -n | xargs
}
# wait_ns WORDS: waits until the kernel has exactly those namespaces, after an event or by its own scan; fails after 20 s.
wait_ns() {
    local i=0
    while [ "$(ns_ids)" != "$1" ]; do
        [ $i -lt 200 ] || fail "namespaces are '$(ns_ids)' and not '$1'"
        sleep 0.1
        i=$((i + 1))
    done
}
cntlid() { cat "/sys/class/nvme/$(ctrl)/cntlid"; }
unallocated() { nvme id-ctrl "/dev/$(ctrl)" | sed -n 's/^unvmcap *: *//p' | tr -d ,; }

connect_empty() {
    nvme connect -t tcp -a "$ADDR" -s "$PORT" -n "$NQN" --keep-alive-tmo=30 --reconnect-delay=1
    local i=0
    while [ "$(state)" != live ]; do
        [ $i -lt 100 ] || fail "the controller is '$(state)'"
        sleep 0.1
        i=$((i + 1))
    done
    nvme id-ctrl -H "/dev/$(ctrl)" >/tmp/id
    grep -qi 'NS Management and Attachment Supported' /tmp/id || fail "OACS says nothing of namespace management"
    grep -qi 'Format NVM Supported' /tmp/id || fail "OACS says nothing of Format NVM"
    [ "$(unallocated)" = $((256 << 20)) ] || fail "unvmcap is $(unallocated)"
}
# There are ten because the iSCSI set-up of the JBOF paper divides one drive into ten.
create_ten() {
    local n c
    c=/dev/$(ctrl)
    for n in 1 2 3 4 5 6 7 8 9 10; do
        nvme create-ns "$c" --nsze=32768 --ncap=32768 --flbas=0 | tee /tmp/created
        grep -Eq "nsid: ?$n\$" /tmp/created || fail "the new namespace is not number $n"
    done
    nvme list-ns "$c" --all | tee /tmp/all
    [ "$(grep -c '^\[' /tmp/all)" = 10 ] || fail "not ten namespaces are allocated"
    [ -z "$(ns_ids)" ] || fail "namespaces are there before they are attached"
    [ "$(unallocated)" = $((96 << 20)) ] || fail "unvmcap is $(unallocated)"
}
attach_ten() {
    local n
    for n in 1 2 3 4 5 6 7 8 9 10; do
        nvme attach-ns "/dev/$(ctrl)" --namespace-id=$n --controllers="$(cntlid)"
    done
    wait_ns "1 2 3 4 5 6 7 8 9 10"
    [ "$(bytes "$(dev 10)")" = $((16 << 20)) ] || fail "namespace 10 has $(bytes "$(dev 10)") bytes"
    refused 'ALREADY_ATTACHED|Already Attached' \
        nvme attach-ns "/dev/$(ctrl)" --namespace-id=1 --controllers="$(cntlid)"
    nvme list-ctrl "/dev/$(ctrl)" --namespace-id=1 | tee /tmp/ctrls
    grep -q "0x$(printf %x "$(cntlid)")" /tmp/ctrls || fail "list-ctrl does not name our controller"
}
# zero DEVICE: whether its first 2 MiB are zero.  (The emulated CPU would take too long for all of it.)
zero() { head -c $((2 << 20)) "$1" | cmp -n $((2 << 20)) - /dev/zero; }
# marked NSID: whether the first 2 MiB of that namespace hold its number.
marked() { yes "namespace $1" | head -c $((2 << 20)) | cmp -n $((2 << 20)) - "$(dev "$1")"; }
# Each namespace holds its own number: no write to one has changed another.
apart() {
    local n
    for n in 1 2 3 4 5 6 7 8 9 10; do
        zero "$(dev $n)" || fail "namespace $n is not zero"
    done
    for n in 1 2 3 4 5 6 7 8 9 10; do
        yes "namespace $n" | head -c $((2 << 20)) | dd of="$(dev $n)" bs=1M oflag=direct iflag=fullblock 2>/dev/null
    done
    cold_caches
    for n in 1 2 3 4 5 6 7 8 9 10; do
        marked $n
    done
}
# same DEVICE BLOCK DEVICE BLOCK: whether 1 MiB from one block on is that from the other on.
same() {
    dd if="$1" bs=512 skip="$2" count=2048 iflag=direct of=/tmp/one 2>/dev/null
    dd if="$3" bs=512 skip="$4" count=2048 iflag=direct of=/tmp/two 2>/dev/null
    cmp /tmp/one /tmp/two
}
# nvme-cli copies within a namespace.  From another one it may not: the host would have to enable format 2 by Host
# Behavior Support, and Linux 6.12 answers that Set Features with EACCES, to root as well.
copies() {
    local d
    d=$(dev 8)
    nvme copy "$d" --sdlba=8192 --slbs=0,1024 --blocks=1023,1023
    same "$d" 0 "$d" 8192 || fail "the copy within the namespace is another one"
    refused 'INVALID_FIELD|Invalid Field' \
        nvme copy "$d" --sdlba=16384 --slbs=0 --blocks=2047 --format=2 --snsids=9
}
# u32 FILE OFFSET: a number of four bytes.
u32() { od -An -tu4 -j "$2" -N 4 "$1" | tr -d ' '; }
# The file under the pool knows which blocks of the namespace were written: 2 MiB by the check apart, and the copy.
lba_status() {
    nvme id-ctrl "/dev/$(ctrl)" | grep -qi '^oacs *: *0x20a$' || fail "OACS says nothing of Get LBA Status"
    nvme admin-passthru "/dev/$(ctrl)" --opcode=0x86 --namespace-id=8 --cdw12=1023 --cdw13=0x02000000 \
        --data-len=4096 --read --raw-binary >/tmp/status
    [ "$(u32 /tmp/status 0)" = 2 ] || fail "$(u32 /tmp/status 0) ranges are allocated"
    [ "$(u32 /tmp/status 8)" = 0 ] || fail "the first begins at $(u32 /tmp/status 8)"
    [ "$(u32 /tmp/status 16)" = 4096 ] || fail "the first has $(u32 /tmp/status 16) blocks"
    [ "$(u32 /tmp/status 24)" = 8192 ] || fail "the second begins at $(u32 /tmp/status 24)"
    [ "$(u32 /tmp/status 32)" = 2048 ] || fail "the second has $(u32 /tmp/status 32) blocks"
}
format_4096() {
    local d
    nvme format "$(dev 2)" --lbaf=1 --force
    wait_ns "1 2 3 4 5 6 7 8 9 10"
    d=$(dev 2)
    blockdev --rereadpt "$d" 2>/dev/null || true
    [ "$(block_size "$d")" = 4096 ] || fail "blocks of $(block_size "$d") bytes"
    [ "$(bytes "$d")" = $((16 << 20)) ] || fail "$(bytes "$d") bytes"
    cold_caches
    zero "$d" || fail "it is not zero"
    marked 3
}
# Namespaces that the host has made keep data as other disks do: fio writes mixed sizes, and compares checksums.
verify_new() {
    verify "$(dev 2)" 2m
    verify "$(dev 7)" 2m
}
# A namespace that is detached while a program has it open goes away.  A read on the open file ends within 20 s without
# data.  Attached again, the namespace has the same data.
detach_open() {
    local c d all="1 2 3 4 5 6 7 8 9 10"
    c=/dev/$(ctrl)
    d=$(dev 10)
    exec 3<"$d"
    nvme detach-ns "$c" --namespace-id=10 --controllers="$(cntlid)"
    wait_ns "${all% 10}"
    cold_caches
    # (the read fails with EIO, or reaches the end of a disk that has no bytes any more)
    timeout 20 dd bs=4096 skip=1000 count=1 <&3 >/tmp/gone 2>/dev/null || [ $? = 1 ] || fail "reading a detached disk hangs"
    [ ! -s /tmp/gone ] || fail "a detached namespace was read"
    exec 3<&-
    nvme attach-ns "$c" --namespace-id=10 --controllers="$(cntlid)"
    wait_ns "$all"
    marked 10
}
detach_delete() {
    local c
    c=/dev/$(ctrl)
    nvme detach-ns "$c" --namespace-id=4 --controllers="$(cntlid)"
    wait_ns "1 2 3 5 6 7 8 9 10"
    refused 'NOT_ATTACHED|Not Attached|not attached' nvme detach-ns "$c" --namespace-id=4 --controllers="$(cntlid)"
    nvme delete-ns "$c" --namespace-id=4
    nvme delete-ns "$c" --namespace-id=5
    wait_ns "1 2 3 6 7 8 9 10"
    [ "$(unallocated)" = $((128 << 20)) ] || fail "unvmcap is $(unallocated)"
    refused 'INSUFFICIENT|nsufficient' nvme create-ns "$c" --nsze=1048576 --ncap=1048576 --flbas=0
    nvme create-ns "$c" --nsze=4096 --ncap=4096 --flbas=1
    nvme attach-ns "$c" --namespace-id=4 --controllers="$(cntlid)"
    wait_ns "1 2 3 4 6 7 8 9 10"
    zero "$(dev 4)" || fail "what was deleted shows through"
}
# Namespaces are attached to the host: after it connects again, with another controller number, it has them again.
reconnect() {
    disconnect
    connect --reconnect-delay=1
    wait_ns "1 2 3 4 6 7 8 9 10"
    marked 1
}
# Namespaces are made and deleted while fio uses another one.
under_io() {
    local c i=0
    c=/dev/$(ctrl)
    fio --name=beside --filename="$(dev 1)" --rw=randwrite --bs=4k --size=8m --direct=1 --ioengine=libaio \
        --iodepth=8 --verify=crc32c --verify_fatal=1 --time_based --runtime=8 --minimal >/tmp/fio.out 2>&1 &
    while [ $i -lt 10 ]; do
        nvme create-ns "$c" --nsze=2048 --ncap=2048 --flbas=0 >/dev/null
        nvme attach-ns "$c" --namespace-id=5 --controllers="$(cntlid)" >/dev/null
        dev 5 >/dev/null
        nvme delete-ns "$c" --namespace-id=5 >/dev/null
        i=$((i + 1))
    done
    wait $! || { cut -c1-200 /tmp/fio.out; fail "the I/O beside it failed"; }
    wait_ns "1 2 3 4 6 7 8 9 10"
}
# ask WORD: asks the machine outside for something.  (It reads ttyS1.  The output of a check does not go there at once.)
ask() { echo "REQUEST $1" >/dev/ttyS1; }
# restarted: has the daemon killed and started again, and waits until the kernel has connected to it again.
restarted() {
    local i=0
    ask restart
    while [ "$(state)" = live ]; do
        [ $i -lt 200 ] || fail "the kernel did not notice that the daemon is gone"
        sleep 0.1
        i=$((i + 1))
    done
    wait_state live 60
}
# identities: prints the number of each namespace and the identifier that the kernel has read from it.
identities() {
    local n
    for n in $(ns_ids); do
        echo "$n $(cat "/sys/block/$(basename "$(dev "$n")")/wwid")"
    done
}
# The daemon keeps the namespaces that hosts have made.  It is killed under I/O, right after it has answered a command, and
# comes back with the same namespaces and data.
survives() {
    local c job
    c=/dev/$(ctrl)
    identities >/tmp/identities
    unpiped fio --name=killed --filename="$(dev 7)" --rw=randwrite --bs=4k-64k --size=6m --direct=1 --ioengine=libaio \
        --iodepth=8 --verify=crc32c --verify_fatal=1 --do_verify=1 --loops=2 --minimal >/tmp/fio.out 2>&1 &
    job=$!
    sleep 1
    nvme create-ns "$c" --nsze=2048 --ncap=2048 --flbas=0
    nvme attach-ns "$c" --namespace-id=5 --controllers="$(cntlid)"
    restarted
    wait_ns "1 2 3 4 5 6 7 8 9 10"
    wait $job || { cut -c1-200 /tmp/fio.out; fail "I/O did not outlive the daemon"; }
    nvme delete-ns "$c" --namespace-id=5
    wait_ns "1 2 3 4 6 7 8 9 10"
    cold_caches
    # (not namespace 1: the check under-io has written over its number)
    marked 3
    marked 6
    identities | diff /tmp/identities - || fail "namespaces have come back under other names"
    [ "$(unallocated)" = $((112 << 20)) ] || fail "unvmcap is $(unallocated)"
}
# creator CONTROLLER: makes namespaces until a command fails.  It adds each acknowledged number to /tmp/acknowledged.
creator() {
    while nvme create-ns "/dev/$1" --nsze=2048 --ncap=2048 --flbas=0 >/tmp/created 2>&1; do
        sed -n 's/.*nsid: *\([0-9]*\).*/\1/p' /tmp/created >>/tmp/acknowledged
    done
}
allocated() { nvme list-ns "/dev/$(ctrl)" --all | sed -n 's/^\[.*\]:\(0x[0-9a-f]*\)/\1/p' | while read -r n; do echo $((n)); done; }
# The daemon is killed while the host makes namespaces.  Afterwards all acknowledged namespaces are there, and at most one
# that was not acknowledged.
kill_while_creating() {
    local job n more
    : >/tmp/acknowledged
    creator "$(ctrl)" &
    job=$!
    while [ "$(wc -l </tmp/acknowledged)" -lt 3 ]; do sleep 0.1; done
    restarted
    wait $job || true
    allocated >/tmp/allocated
    for n in $(cat /tmp/acknowledged); do
        grep -qx "$n" /tmp/allocated || fail "namespace $n was acknowledged, and is lost"
    done
    more=$(($(wc -l </tmp/allocated) - $(wc -l </tmp/acknowledged) - 9))
    [ $more = 0 ] || [ $more = 1 ] || fail "$more namespaces more than the host has asked for"
    for n in $(cat /tmp/allocated); do
        case " 1 2 3 4 6 7 8 9 10 " in *" $n "*) ;; *) nvme delete-ns "/dev/$(ctrl)" --namespace-id="$n" ;; esac
    done
    [ "$(unallocated)" = $((112 << 20)) ] || fail "unvmcap is $(unallocated)"
}
# reported DEVICE PATTERN...: the reservation report has a line that matches each pattern.
reported() {
    local d=$1 p
    shift
    nvme resv-report "$d" --eds >/tmp/report
    for p in "$@"; do
        grep -qiE "^ *$p\$" /tmp/report || { cat /tmp/report; fail "the report has no '$p'"; }
    done
}
# nvme-cli registers this host, and reserves a namespace.  Both are there after the daemon was killed right after its answers.
reservations() {
    local d all="1 2 3 4 6 7 8 9 10"
    ask add-ns
    wait_ns "$all 20"
    d=$(dev 20)
    nvme id-ns "$d" | grep -qi 'rescap *: *0xff' || { nvme id-ns "$d"; fail "RESCAP is not ff"; }
    nvme resv-register "$d" --nrkey=0x1234 --rrega=0 --cptpl=3
    reported "$d" 'gen *: *1' 'rtype *: *0' 'regctl *: *1' 'ptpls *: *1'
    refused 'CONFLICT|Conflict' nvme resv-acquire "$d" --crkey=0x99 --rtype=1 --racqa=0
    nvme resv-acquire "$d" --crkey=0x1234 --rtype=1 --racqa=0
    reported "$d" 'rtype *: *1' 'cntlid *: *(0x)?ffff' 'rcsts *: *(0x)?1' 'rkey *: *(0x)?1234'
    dd if=/dev/zero of="$d" bs=64k count=1 oflag=direct 2>/dev/null
    restarted
    wait_ns "$all 20"
    d=$(dev 20)
    reported "$d" 'gen *: *0' 'rtype *: *1' 'regctl *: *1' 'ptpls *: *1' 'rcsts *: *(0x)?1' 'rkey *: *(0x)?1234'
    nvme resv-acquire "$d" --crkey=0x1234 --prkey=0x1234 --rtype=4 --racqa=1
    reported "$d" 'rtype *: *4'
    refused 'INVALID|Invalid' nvme resv-release "$d" --crkey=0x1234 --rtype=1 --rrela=0
    nvme resv-release "$d" --crkey=0x1234 --rtype=4 --rrela=0
    nvme resv-register "$d" --crkey=0x1234 --nrkey=0x5678 --rrega=2
    nvme resv-register "$d" --crkey=0x5678 --rrega=1
    reported "$d" 'rtype *: *0' 'regctl *: *0'
    ask remove-ns
    wait_ns "$all"
}
# listed NUMBER: waits until `nvme list` shows that number of block devices of the subsystem; fails after 10 s.
listed() {
    local i=0
    while [ "$(nvme list | grep -c "^$(dev 1 | sed 's/n[0-9]*$//')n")" != "$1" ]; do
        [ $i -lt 100 ] || { nvme list; fail "nvme list does not show $1 namespaces"; }
        sleep 0.1
        i=$((i + 1))
    done
}
hot_add_remove() {
    local d
    listed 9
    ask add-ns
    wait_ns "1 2 3 4 6 7 8 9 10 20"
    listed 10
    d=$(dev 20)
    [ "$(bytes "$d")" = $((4 << 20)) ] || fail "namespace 20 has $(bytes "$d") bytes"
    dd if=/dev/urandom of=/tmp/hot bs=64k count=4 2>/dev/null
    dd if=/tmp/hot of="$d" bs=64k oflag=direct 2>/dev/null
    cold_caches
    cmp -n 262144 /tmp/hot "$d"
    ask remove-ns
    wait_ns "1 2 3 4 6 7 8 9 10"
    listed 9
}
TRACE=/sys/kernel/tracing
# The target sends an event to a persistent discovery controller when a subsystem is added.
discovery_event() {
    [ -d $TRACE/events ] || mount -t tracefs tracefs $TRACE || { echo "no tracefs"; return 77; }
    [ -d $TRACE/events/nvme/nvme_async_event ] || { echo "no tracepoint nvme_async_event"; return 77; }
    nvme discover -t tcp -a "$ADDR" -s "$PORT" --persistent --keep-alive-tmo=30 >/tmp/before
    ! grep -q "^subnqn: *$NQN-two\$" /tmp/before || fail "$NQN-two is there already"
    echo >$TRACE/trace
    echo 1 >$TRACE/events/nvme/nvme_async_event/enable
    ask add-subsystem
    local i=0
    while ! grep -qi 'DISC_CHANGED\|0x70f002' $TRACE/trace; do
        [ $i -lt 200 ] || { tail -n 5 $TRACE/trace; fail "no event for the discovery controller"; }
        sleep 0.1
        i=$((i + 1))
    done
    echo 0 >$TRACE/events/nvme/nvme_async_event/enable
    nvme discover -t tcp -a "$ADDR" -s "$PORT" | tee /tmp/after
    grep -q "^subnqn: *$NQN-two\$" /tmp/after || fail "$NQN-two is not listed"
    nvme disconnect -n nqn.2014-08.org.nvmexpress.discovery
}
# The host registers with the discovery service, which is a centralized one, and takes that back.
central() {
    local discovery
    ask central
    nvme discover -t tcp -a "$ADDR" -s "$PORT" --persistent --keep-alive-tmo=30 >/dev/null
    for discovery in /sys/class/nvme/nvme*; do
        [ "$(cat "$discovery/subsysnqn")" != nqn.2014-08.org.nvmexpress.discovery ] || break
    done
    discovery=${discovery##*/}
    [ "$(cat "/sys/class/nvme/$discovery/dctype")" = cdc ] || fail "the kernel sees no centralized service"
    nvme dim --device="$discovery" --task=register
    ask registered
    nvme dim --device="$discovery" --task=deregister
    ask deregistered
    nvme disconnect -n nqn.2014-08.org.nvmexpress.discovery
}
# Discovery lists the referral.  The host follows it to the other service, and uses the subsystem that is offered there.
referral() {
    local i=0
    ask add-referral
    while ! nvme discover -t tcp -a "$ADDR" -s "$PORT" | tee /tmp/referral | grep -qi 'referral'; do
        [ $i -lt 50 ] || { cat /tmp/referral; fail "no referral is listed"; }
        sleep 0.2
        i=$((i + 1))
    done
    # A service lists the address at which it was asked.  Behind the emulator's network, that address leads to the guest
    # itself.  So nc carries connections to it on to the other service.
    nc -ll -p "$OTHER_PORT" -e nc "$ADDR" "$OTHER_PORT" &
    nvme connect-all -t tcp -a "$ADDR" -s "$PORT" --keep-alive-tmo=30 || true
    NQN=$NQN-other
    [ "$(bytes "$(dev 1)")" = $((4 << 20)) ] || fail "what the referral leads to has $(bytes "$(dev 1)") bytes"
    verify "$(dev 1)" 1m
    disconnect
}
delete_all() {
    nvme delete-ns "/dev/$(ctrl)" --namespace-id=0xffffffff
    wait_ns ""
    [ "$(unallocated)" = $((256 << 20)) ] || fail "unvmcap is $(unallocated)"
}

dispatch "$@"
modprobe nvme-tcp
log_start
echo "# kernel $(uname -r), $(nvme version | head -n 1)"
check connect 30 connect_empty
check create-ten 60 create_ten
check attach-ten 60 attach_ten
check dmesg-attach 10 log_clean
check apart 120 apart
check copies 60 copies
check lba-status 30 lba_status
check format-4096 60 format_4096
check verify-new 60 verify_new
check dmesg-format 10 log_clean
check detach-open 60 detach_open
check dmesg-detach 10 log_clean 'I/O error'
check detach-delete 60 detach_delete
check reconnect 60 reconnect
check under-io 120 under_io
check dmesg-under-io 10 log_clean
if [ -z "${STATIC:-}" ]; then
    check survives 120 survives
    check kill-while-creating 90 kill_while_creating
    check reservations 90 reservations
    log_start
    check hot-add-remove 60 hot_add_remove
    check discovery-event 60 discovery_event
    check central 60 central
    check referral 90 referral
    check dmesg-managed 10 log_clean 'failed to connect socket'
fi
check delete-all 30 delete_all
# (the kernel was still identifying namespaces when they were deleted)
check dmesg-end 10 log_clean 'Identify Descriptors failed'
check disconnect 30 disconnect
finish
