//! Two lines to copy for each verb that has none in its own help.

use clap::Command;

/// By verb: with nvme-cli's letters on a device of a daemon, and on an address, where the verb takes both.
pub(super) const EXAMPLES: [(&str, [&str; 2]); 25] = [
    ("discover", ["-a 192.0.2.1", "--mdns"]),
    ("disconnect", ["-n NQN", "-d /run/raceline-disks/disk-NQN-1.sock"]),
    ("disconnect-all", ["", "-r tcp"]),
    ("identify", ["-a 192.0.2.1 -n NQN", "--iscsi -a 192.0.2.1 -n IQN"]),
    ("read", ["-a 192.0.2.1 -n NQN --blocks 8 FILE", "-a 192.0.2.1 -n NQN --slba 64 --blocks 8 -"]),
    ("write", ["-a 192.0.2.1 -n NQN FILE", "-a 192.0.2.1 -n NQN --slba 64 --blocks 8 FILE"]),
    ("connect-all", ["-a 192.0.2.1", "-a 192.0.2.1 -s 8009 --persistent"]),
    ("list", ["-o json", "-a 192.0.2.1"]),
    ("list-subsys", ["Nvme0 -o json", "-a 192.0.2.1"]),
    ("id-ctrl", ["Nvme0 -H", "-a 192.0.2.1 -n NQN -o json"]),
    ("id-ns", ["Nvme0n1 -H", "-a 192.0.2.1 -n NQN -N 1"]),
    ("get-log", ["Nvme0 -i 2 -l 512", "-a 192.0.2.1 -n NQN --log-id 2 --log-len 512 -o binary"]),
    ("smart-log", ["Nvme0 -H", "-a 192.0.2.1 -n NQN -o json"]),
    ("error-log", ["Nvme0 -e 8", "-a 192.0.2.1 -n NQN -o json"]),
    ("create-ns", ["Nvme0 -S 10G -b 4096", "-a 192.0.2.1 -n NQN --nsze-si 10G --block-size 4096"]),
    ("attach-ns", ["Nvme0 -n 2", "-a 192.0.2.1 -n NQN -N 2"]),
    ("detach-ns", ["Nvme0 -n 2", "-a 192.0.2.1 -n NQN -N 2"]),
    ("delete-ns", ["Nvme0 -n 2", "-a 192.0.2.1 -n NQN -N 2"]),
    ("format", ["Nvme0n1 -b 4096 --force", "-a 192.0.2.1 -n NQN -N 1 --block-size 4096 --force"]),
    ("ns-rescan", ["Nvme0", "-a 192.0.2.1 -n NQN -o json"]),
    ("reset", ["Nvme0", "-a 192.0.2.1 -n NQN"]),
    ("flush", ["Nvme0n1", "-a 192.0.2.1 -n NQN -N 1"]),
    ("dsm", ["Nvme0n1 -d -s 0,64 -b 8,16", "-a 192.0.2.1 -n NQN -N 1 --ad --slbs 0 --blocks 8"]),
    (
        "write-zeroes",
        ["Nvme0n1 -s 64 -c 7", "-a 192.0.2.1 -n NQN -N 1 --start-block 64 --block-count 7"],
    ),
    ("compare", ["Nvme0n1 -s 64 -d FILE", "-a 192.0.2.1 -n NQN -N 1 --start-block 64 --data FILE"]),
];

/// The command line, with the examples at the end of the help of each verb.
pub(super) fn with_examples(command: Command) -> Command {
    EXAMPLES.into_iter().fold(command, |command, (verb, lines)| {
        command.mut_subcommand(verb, |verb| {
            let before = verb.get_after_help().map(|text| format!("{text}\n\n"));
            let mut text = before.unwrap_or_default() + "Examples:";
            for line in lines {
                text.push_str(format!("\n  raceline {} {line}", verb.get_name()).trim_end());
            }
            verb.after_help(text)
        })
    })
}
