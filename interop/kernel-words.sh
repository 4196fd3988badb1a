# The kernel command line of guests in the variable `kernel_words`; sourced by run-vm.sh and boot-disk.sh.
#
# Environment: `kvm`, 1 where the guest's CPUs are not emulated.

# mitigations=off: emulated speculation guards cost time and protect nothing in a test guest.
# With panic=-1 and QEMU's -no-reboot, a guest that panics ends at once and does not hang.
kernel_words="console=ttyS0 panic=-1 reboot=t mitigations=off nokaslr tsc=reliable no_timer_check"
kernel_words+=" cryptomgr.notests random.trust_cpu=on rcupdate.rcu_expedited=1 net.ifnames=0"
# The emulated time stamp counter is this machine's.  On a busy machine a guest measures its rate wrong, up to 13 times,
# and all its timers with it; so it is told the rate, where this machine's processor tells it.
if [ "${kvm:-0}" = 0 ] && grep -qm1 '^flags.* constant_tsc' /proc/cpuinfo; then
    khz=$(awk -F: '/^cpu MHz/ { printf "%d", $2 * 1000; exit }' /proc/cpuinfo)
    [ "${khz:-0}" -lt 500000 ] || kernel_words+=" tsc_early_khz=$khz"
fi
