# Shell functions for the scripts about several paths to a namespace; lib.sh has to be sourced before.

# of_port PORT: prints the controller that is connected to that port.  The answer is kept while the controller is there:
# Linux 6.12.118 hangs or faults if "address" is read while the controller's connection ends.
of_port() {
    local c kept=/tmp/controller.$1
    if [ -s "$kept" ] && [ -e "/sys/class/nvme/$(cat "$kept")" ]; then
        cat "$kept"
        return
    fi
    for c in /sys/class/nvme/nvme*; do
        case $(cat "$c/address" 2>/dev/null) in
            *trsvcid="$1"*) echo "${c##*/}" | tee "$kept"; return ;;
        esac
    done
}
# forget_controllers: to be called when controllers are disconnected, as another one may get the same name.
forget_controllers() { rm -f /tmp/controller.*; }
# path PORT: prints the folder in sysfs of the path by that port.  Its name is nvme<subsystem>c<controller>n<namespace>.
path() {
    local c p
    c=$(of_port "$1")
    for p in /sys/class/nvme/"$c"/nvme*c"${c#nvme}"n*; do
        [ ! -e "$p/ana_state" ] || { echo "$p"; return; }
    done
}
ana_state() { cat "$(path "$1")/ana_state" 2>/dev/null || echo gone; }
# wait_ana PORT WORD: waits for the state that the kernel has of the path; fails after 20 s.
wait_ana() {
    local i=0
    while [ "$(ana_state "$1")" != "$2" ]; do
        [ $i -lt 200 ] || fail "the path by port $1 is '$(ana_state "$1")' and not '$2'"
        sleep 0.1
        i=$((i + 1))
    done
}
port_state() { cat "/sys/class/nvme/$(of_port "$1")/state" 2>/dev/null || echo gone; }
wait_live() {
    local i=0
    while [ "$(port_state "$1")" != live ]; do
        [ $i -lt 300 ] || fail "the controller of port $1 is not live"
        sleep 0.1
        i=$((i + 1))
    done
}
# ask REQUEST: the machine outside carries it out.  (The output of a check goes to a file.)
ask() { echo "REQUEST $1" >/dev/ttyS1; }
# writes PORT, reads PORT: print how many commands of that kind the path has completed.
writes() { set -- $(cat "$(path "$1")/stat"); echo "$5"; }
reads() { set -- $(cat "$(path "$1")/stat"); echo "$1"; }
# iopolicy: prints the file with the subsystem's policy.
iopolicy() {
    local s
    for s in /sys/class/nvme-subsystem/nvme-subsys*; do
        [ "$(cat "$s/subsysnqn" 2>/dev/null)" != "$NQN" ] || { echo "$s/iopolicy"; return; }
    done
}
policy() { echo "$1" >"$(iopolicy)"; }
# paths_clean: fails if the kernel has logged anything but what lost paths and attempts to connect them again explain.
paths_clean() { log_clean 'nvme_ns_head_submit_bio|queue [0-9]+: timeout request|long keepalive RTT|no usable path|no available path|failed to send request|starting error recovery|Reconnecting|failed nvme_keep_alive|Failed reconnect|failed to connect|failing I/O|queue_size|I/O (tag|Error|[0-9]+ QID [0-9]+ timeout)|Connect command failed|Connect rejected|failed to connect socket|creating .* I/O queues|read failed|receive failed'; }
