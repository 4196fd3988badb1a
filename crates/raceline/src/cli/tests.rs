//! The command line as users type it: what is accepted, and the exact message when it is not.

use raceline_accel::{CrcPath, OpCode};
use raceline_target::{ConnectionOptions, PlacementPolicy, ZeroCopySend};

use super::values::{IoChoice, ModeChoice, OutputFormat};
use super::*;
use crate::failure::usage_line;

fn parse(line: &str) -> Result<Verb, String> {
    let words: Vec<String> =
        std::iter::once("raceline").chain(line.split_whitespace()).map(str::to_owned).collect();
    let cli = letters::parse_from(&words);
    cli.map(|cli| cli.verb).map_err(|error| usage_line(&error, &words))
}

const TARGET: &str = "-a 192.0.2.1 -s 4420 -n nqn.2014-08.org.example:1";

#[test]
fn the_definition_is_consistent() {
    letters::definition().debug_assert();
    letters::with_devices().debug_assert();
}

#[test]
fn verbs_that_ask_a_daemon_take_the_option_that_their_message_names() {
    let message = raceline_control::client::ClientError::Nowhere(Vec::new()).to_string();
    let (_, named) = message.split_once("name its socket with --").unwrap();
    let (option, others) = named.split_once(" or ").unwrap();
    assert!(others.starts_with(manage::SOCKET_VARIABLE), "{message}");
    for command in [letters::definition(), letters::with_devices()] {
        let mut asking = Vec::new();
        for verb in command.get_subcommands() {
            let mut options = verb.get_arguments();
            let is_socket =
                |arg: &&clap::Arg| arg.get_env() == Some(manage::SOCKET_VARIABLE.as_ref());
            let Some(socket) = options.find(is_socket) else { continue };
            let aliases = socket.get_all_aliases().unwrap_or_default();
            let takes = socket.get_long() == Some(option) || aliases.contains(&option);
            assert!(takes, "{} has no --{option}", verb.get_name());
            asking.push(verb.get_name());
        }
        for verb in ["rpc", "bdev", "config", "list", "smart-log", "connect-all", "disconnect"] {
            assert!(asking.contains(&verb), "{verb}: {asking:?}");
        }
    }
}

#[test]
fn export_defaults() {
    let Verb::Export(args) = parse("export ram:64M").unwrap() else { unreachable!() };
    assert_eq!(args.devices[0].to_string(), "ram:64M");
    assert_eq!((args.max_io_size, args.in_capsule), (1 << 20, 8192));
    assert_eq!((args.mode, args.io), (ModeChoice::Adaptive, IoChoice::Auto));
    assert!(args.listen.is_empty() && args.hosts.is_empty() && args.cores.is_none());
    assert!(!(args.allow_any_host || args.insecure || args.allow_wildcard));
}

#[test]
fn export_with_everything() {
    let line = "export ram:64M file:/srv/a,size=1G,buffered null:1T,bs=4096 -n nqn.2014-08.org.example:1 \
                -l 127.0.0.1:0 -l [::1]:0 --host nqn.2014-08.org.example:a --host nqn.2014-08.org.example:b \
                --insecure --allow-wildcard --cores 0,2-3 --mode poll --serial S1 --max-io-size 1M \
                --in-capsule 4k --io epoll -vv";
    let Verb::Export(args) = parse(line).unwrap() else { unreachable!() };
    assert_eq!((args.devices.len(), args.listen.len(), args.hosts.len()), (3, 2, 2));
    assert_eq!(args.cores.unwrap().0, [0, 2, 3]);
    assert_eq!(
        (args.mode, args.io, args.max_io_size),
        (ModeChoice::Poll, IoChoice::Epoll, 1 << 20)
    );
    assert_eq!(args.serial.unwrap(), "S1");
}

#[test]
fn serve_takes_the_options_of_connections_that_export_takes() {
    let options = "--placement mark --busy-poll 50 --sock-priority 3 --zero-copy auto \
                   --zero-copy-bytes 64k --send-flags --profile adq --balance";
    let Verb::Export(export) = parse(&format!("export ram:64M {options}")).unwrap() else {
        unreachable!()
    };
    let Verb::Serve(serve) = parse(&format!("serve {options}")).unwrap() else { unreachable!() };
    assert_eq!(serve.connections.options(), export.connections.options());
    let options = serve.connections.options();
    assert_eq!(options.placement, Some(PlacementPolicy::Mark));
    assert_eq!((options.socket_priority, options.zero_copy_bytes), (Some(3), Some(65_536)));
    assert_eq!(options.zero_copy, Some(ZeroCopySend::Auto));
    assert!(options.send_flags && options.follows_device_queues && options.balances);
    let Verb::Serve(serve) = parse("serve").unwrap() else { unreachable!() };
    assert_eq!(serve.connections.options(), ConnectionOptions::default());
    for line in ["serve -m [0,1] --reuseport cpu", "export ram:64M --cores 0 --reuseport cpu"] {
        let options = match parse(line).unwrap() {
            Verb::Export(args) => args.connections.options(),
            Verb::Serve(args) => args.connections.options(),
            _ => unreachable!(),
        };
        assert_eq!(options.placement, Some(PlacementPolicy::Listener), "{line}");
    }
    let refused = parse("serve --reuseport cpu").unwrap_err();
    assert!(refused.contains("--cpumask <CORES>"), "{refused}");
    let refused = parse("serve -m 0x1 --reuseport cpu --placement napi").unwrap_err();
    assert!(refused.contains("cannot be used with"), "{refused}");
}

#[test]
fn adq_takes_recipes_and_journals() {
    let line = "adq apply eth0 --listener 192.0.2.1:4420 --listener [2001:db8::1]:4420 --role host --queues 4 \
                --profile paper --confirm-within 60s --state-dir /tmp -o json";
    let Verb::Adq(args) = parse(line).unwrap() else { unreachable!() };
    let adq::Action::Apply(args) = args.action else { unreachable!() };
    assert_eq!((args.recipe.listeners.len(), args.recipe.queues), (2, Some(4)));
    assert_eq!(args.recipe.role, adq::RoleChoice::Host);
    assert_eq!(args.recipe.profile, adq::ProfileChoice::Paper);
    assert_eq!(args.confirm_within.unwrap().as_secs(), 60);
    for (line, message) in [
        ("adq plan eth0 --listener 4420", "write ADDR:PORT, as in 192.0.2.1:4420"),
        ("adq plan eth0 --queues 0", "0 is not in 1..=256"),
        ("adq plan eth0 --role both", "[possible values: target, host]"),
        ("adq revert", "required arguments were not provided"),
        ("export ram:1M --profile fast", "[possible values: adq]"),
    ] {
        let error = parse(line).unwrap_err();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn host_verbs_share_their_options() {
    let options = format!(
        "{TARGET} -q nqn.2014-08.org.example:h -I 6ba7b810-9dad-11d1-80b4-00c04fd430c8 -k 30 -o json -g -G"
    );
    let Verb::Read(args) = parse(&format!("read {options} --slba 8 --blocks 2 out")).unwrap()
    else {
        unreachable!()
    };
    assert_eq!((args.slba, args.blocks, args.namespace.0), (8, 2, 1));
    assert_eq!(args.file.to_str(), Some("out"));
    let connect = args.connect;
    assert!(connect.header_digest && connect.data_digest);
    assert_eq!(connect.address.output, OutputFormat::Json);
    assert_eq!(connect.address.keep_alive.as_secs(), 30);
    assert_eq!((connect.address.address.as_str(), connect.address.port), ("192.0.2.1", 4420));
    for verb in ["identify", "write", "perf"] {
        parse(&format!("{verb} {options}")).unwrap();
    }
    parse("discover -a localhost -s 4420 -o json -k 0").unwrap();
}

#[test]
fn perf_speaks_fio() {
    let line = format!(
        "perf {TARGET} --namespace 2 -i 4 -Q 64 --rw randrw --rwmixread 70 --bs 8k --iodepth 16 \
         --runtime 500ms --ramp_time 0 --rate_iops 1000 --cores 0-1 --verify --size 1G --offset 4k --seed 9"
    );
    let Verb::Perf(args) = parse(&line).unwrap() else { unreachable!() };
    assert_eq!((args.queues, args.queue_size, args.iodepth, args.bs), (4, Some(64), 16, 8192));
    assert_eq!((args.rw.name(), args.rwmixread, args.rate_iops), ("randrw", 70, Some(1000)));
    assert_eq!((args.runtime.as_millis(), args.ramp_time.as_millis()), (500, 0));
    let Verb::Perf(args) = parse(&format!("perf {TARGET}")).unwrap() else { unreachable!() };
    assert_eq!((args.numjobs, args.iodepth_batch, args.norandommap), (1, None, false));
    assert_eq!((args.rw.name(), args.bs, args.iodepth), ("randread", 4096, 32));
    assert_eq!((args.runtime.as_secs(), args.ramp_time.as_secs()), (8, 2));
}

/// Wrong command lines, each with its message.
const WRONG_LINES: &[(&str, &str)] = &[
    ("fly", "unrecognized subcommand 'fly' (see raceline --help)"),
    (
        "export",
        "the following required arguments were not provided: <DEVICE>... (see raceline export --help)",
    ),
    (
        "export rom:1M",
        "invalid value 'rom:1M' for '<DEVICE>...': device `rom:1M`: unknown kind `rom`: use ram:, \
             null:, file: or block: (if it is a path, write file:rom:...) (see raceline export --help)",
    ),
    (
        "export ram:1MB",
        "invalid value 'ram:1MB' for '<DEVICE>...': device `ram:1MB`: the suffix of `1MB` is \
             ambiguous: write M or MiB (powers of 1024) (see raceline export --help)",
    ),
    (
        "export ram:1M --host=",
        "invalid value '' for '--host <NQN>': a name has at least 1 byte (see raceline export --help)",
    ),
    (
        "export ram:1M --cores 3-1",
        "invalid value '3-1' for '--cores <LIST>': 3-1 runs backwards: write 1-3 (see raceline export --help)",
    ),
    (
        "export ram:1M --max-io-size 100k",
        "invalid value '100k' for '--max-io-size <SIZE>': the largest transfer is a power of two \
             from 4k to 16M (see raceline export --help)",
    ),
    (
        "export ram:1M --mode fast",
        "invalid value 'fast' for '--mode <MODE>' [possible values: poll, adaptive, interrupt] \
             (see raceline export --help)",
    ),
    (
        "export ram:1M --allow-any-host --host nqn.2014-08.org.example:1",
        "the argument '--allow-any-host' cannot be used with '--host <NQN>' (see raceline export --help)",
    ),
    (
        "discover -a 127.0.0.1 -s 70000",
        "invalid value '70000' for '--trsvcid <PORT>': 70000 is not in 1..=65535 (see raceline discover --help)",
    ),
    (
        "identify -n nqn.2014-08.org.example:1",
        "the following required arguments were not provided: --traddr <ADDR> (see raceline identify --help)",
    ),
    (
        "read -a 127.0.0.1 -n nqn.2014-08.org.example:1 --blocks 0",
        "invalid value '0' for '--blocks <N>': 0 is not in 1..18446744073709551615 (see raceline read --help)",
    ),
    (
        "write -a 127.0.0.1 -n nqn.2014-08.org.example:1 --namespace 0",
        "invalid value '0' for '--namespace <N>': a namespace is a number from 1 to 4294967294 \
             (see raceline write --help)",
    ),
    (
        "perf -a 127.0.0.1 -n nqn.2014-08.org.example:1 --rw trim",
        "invalid value 'trim' for '--rw <MODE>': not a workload: use read, write, randread, \
             randwrite, rw or randrw (see raceline perf --help)",
    ),
    (
        "perf -a 127.0.0.1 -n nqn.2014-08.org.example:1 --rwmixread 101",
        "invalid value '101' for '--rwmixread <PERCENT>': 101 is not in 0..=100 (see raceline perf --help)",
    ),
    (
        "perf -a 127.0.0.1 -n nqn.2014-08.org.example:1 --runtime 0",
        "invalid value '0' for '--runtime <TIME>': must be more than 0 (see raceline perf --help)",
    ),
    (
        "connect -t tcp -a 192.0.2.1 -s 4420 -n nqn.2014-08.org.example:1",
        "the following required arguments were not provided: --as <WHAT>: add --as nbd (a server), --as ublk (/dev/ublkbN) \
             or --as vhost-user (a virtual machine); to have a daemon connect, use raceline connect-all (see raceline \
             connect --help)",
    ),
    (
        "demo --seconds 1",
        "invalid value '1' for '--seconds <N>': 1 is not in 2..=3600 (see raceline demo --help)",
    ),
    (
        "export ram:1M --quiet -v",
        "the argument '--quiet' cannot be used with '--verbose...' (see raceline export --help)",
    ),
];

#[test]
fn wrong_lines_say_what_would_be_right() {
    assert!(parse("identify -a h -n nqn.2014-08.org.example:1").is_ok());
    for (line, message) in WRONG_LINES {
        assert_eq!(&parse(line).unwrap_err(), message, "raceline {line}");
    }
}

#[test]
fn every_verb_has_a_help_text_that_fits() {
    for verb in letters::definition().get_subcommands_mut() {
        assert!(verb.get_about().is_some(), "{}", verb.get_name());
        for argument in verb.get_arguments() {
            assert!(argument.get_help().is_some(), "{} {}", verb.get_name(), argument.get_id());
        }
    }
}

/// Verbs that do something at an address, with their options by list of the help. Options without a list come first there.
fn verbs_at_addresses() -> Vec<clap::Command> {
    let mut command = letters::definition();
    command.build();
    let at_address =
        |verb: &&clap::Command| verb.get_arguments().any(|arg| arg.get_long() == Some("traddr"));
    command.get_subcommands().filter(at_address).cloned().collect()
}

#[test]
fn options_stand_in_the_list_that_they_are_of() {
    let verbs = verbs_at_addresses();
    assert!(verbs.len() > 20, "{}", verbs.len());
    for mut verb in verbs {
        let name = verb.get_name().to_owned();
        let shown = |arg: &&clap::Arg| !arg.is_hide_set();
        let of_iscsi: Vec<String> = verb
            .get_arguments()
            .filter(shown)
            .filter(|arg| arg.get_help_heading() == Some("iSCSI"))
            .map(|arg| arg.get_id().to_string())
            .collect();
        assert!(of_iscsi.is_empty() || of_iscsi == nvme::OF_ISCSI, "{name}: {of_iscsi:?}");
        let help = verb.render_long_help().to_string();
        assert_eq!(help.contains("\niSCSI:\n"), !of_iscsi.is_empty(), "{help}");
        // No word of iSCSI where no option is of it.
        assert_eq!(help.to_lowercase().contains("iscsi"), !of_iscsi.is_empty(), "{help}");
        let (own, target) = (help.find("\nOptions:\n"), help.find("\nTarget:\n"));
        assert!(own.is_some() && own < target, "{help}");
        let own = &help[own.unwrap()..target.unwrap()];
        for arg in verb.get_arguments().filter(shown) {
            let long = arg.get_long().filter(|_| arg.get_help_heading().is_none());
            assert!(long.is_none_or(|long| own.contains(&format!("--{long}"))), "{name}: {own}");
        }
        // The options that all share follow those of the verb.
        let places = ["namespace-id <N>", "output-format", "raw-binary", "--help"]
            .map(|long| own.find(long));
        assert!(places.into_iter().flatten().is_sorted(), "{name}: {own}");
    }
}

#[test]
fn each_verb_of_nvme_cli_has_examples_that_are_read() {
    for (verb, lines) in examples::EXAMPLES {
        for line in lines {
            parse(&format!("{verb} {line}"))
                .unwrap_or_else(|error| panic!("{verb} {line}: {error}"));
        }
    }
    for mut verb in verbs_at_addresses() {
        let help = verb.render_long_help().to_string();
        let name = verb.get_name();
        assert!(help.matches(&format!(" raceline {name} ")).count() >= 2, "{help}");
    }
}

#[test]
fn bench_limit_takes_lists_and_auto() {
    let line = "bench limit --io-size 4k,128k --rw read,write --depth 1,32 --connections 1,1024 \
                --memory hot --pages huge --mode blocking --chunk 8 --receive-size 64k --prefetch ahead \
                --seconds 2 --repeat 5 --target-core 2 --host-core 3 -o json";
    let Verb::Bench(args) = parse(line).unwrap() else { unreachable!() };
    let bench::Experiment::Limit(args) = args.experiment else { unreachable!() };
    assert_eq!((args.io_size, args.depth), (vec![4096, 131_072], vec![1, 32]));
    assert_eq!((args.connections, args.memory), (vec![1, 1024], 1 << 20));
    assert_eq!((args.chunk.0, args.receive_size.0), (Some(8), Some(65_536)));
    assert_eq!((args.cores.target_core, args.cores.host_core), (2, 3));
    let Verb::Bench(args) = parse("bench limit").unwrap() else { unreachable!() };
    let bench::Experiment::Limit(args) = args.experiment else { unreachable!() };
    assert_eq!((args.memory, args.chunk.0, args.receive_size.0), (512 << 20, None, None));
}

#[test]
fn bench_gap_takes_points() {
    let line = "bench gap --points io=4k,depth=2|3,connections=16 --null --pairs 7 --runtime 100ms";
    let Verb::Bench(args) = parse(line).unwrap() else { unreachable!() };
    let bench::Experiment::Gap(args) = args.experiment else { unreachable!() };
    assert_eq!(raceline_bench::gap::full(&args.points.unwrap()).len(), 4);
    assert!(args.null && !args.quick && args.pairs == Some(7));
    assert_eq!(args.run.mode, ModeChoice::Poll);
    assert_eq!(args.target, bench::SubjectChoice::Serve);
    let Verb::Bench(args) = parse("bench gap --target both").unwrap() else { unreachable!() };
    let bench::Experiment::Gap(args) = args.experiment else { unreachable!() };
    assert_eq!((args.target, args.pairs), (bench::SubjectChoice::Both, None));
}

#[test]
fn bench_accel_takes_operations_engines_and_paths() {
    let line = "bench accel --op crc32c,copy_crc32c --engine software,dsa --path table,sse4.2 --size 1,64m \
                --depth 1,1024 --working-set hot,32m --runs 9 --runtime 2ms --core 0 --device-core 1";
    let Verb::Bench(args) = parse(line).unwrap() else { unreachable!() };
    let bench::Experiment::Accel(args) = args.experiment else { unreachable!() };
    assert_eq!(args.operations, [OpCode::Crc32c, OpCode::CopyCrc32c]);
    assert_eq!(args.engine, [bench::EngineChoice::Software, bench::EngineChoice::Dsa]);
    assert_eq!(args.path, [CrcPath::Table, CrcPath::Sse42]);
    assert_eq!((args.size, args.depth), (vec![1, 64 << 20], vec![1, 1024]));
    assert_eq!((args.working_set, args.runs), (vec![0, 32 << 20], 9));
    assert_eq!((args.core, args.device_core), (Some(0), Some(1)));
    let Verb::Bench(args) = parse("bench accel").unwrap() else { unreachable!() };
    let bench::Experiment::Accel(args) = args.experiment else { unreachable!() };
    assert!(args.operations.is_empty() && args.path == [CrcPath::Auto]);
    assert_eq!(args.engine.last(), Some(&bench::EngineChoice::DsaEmulated));
}

#[test]
fn bench_digest_takes_sizes_and_depths() {
    let line = "bench digest --io-size 4k,128k --depth 1,4096 --path auto --offload none --rounds 5 --mode interrupt";
    let Verb::Bench(args) = parse(line).unwrap() else { unreachable!() };
    let bench::Experiment::Digest(args) = args.experiment else { unreachable!() };
    assert_eq!((args.io_size, args.depth), (vec![4096, 131_072], vec![1, 4096]));
    assert_eq!((args.path, args.rounds), (vec![CrcPath::Auto], 5));
    assert_eq!((args.offload, args.run.mode), (bench::OffloadChoice::None, ModeChoice::Interrupt));
    let Verb::Bench(args) = parse("bench digest --quick").unwrap() else { unreachable!() };
    let bench::Experiment::Digest(args) = args.experiment else { unreachable!() };
    assert!(args.quick && args.depth.is_empty() && args.run.mode == ModeChoice::Poll);
}

#[test]
fn bench_distance_takes_cores() {
    let Verb::Bench(args) = parse("bench distance --cores 0,2-3 --once").unwrap() else {
        unreachable!()
    };
    let bench::Experiment::Distance(args) = args.experiment else { unreachable!() };
    assert_eq!(args.cores.unwrap().0, [0, 2, 3]);
    assert!(args.once);
}

#[test]
fn bench_run_takes_experiments() {
    let line = "bench run ADQ-F6 ch-t2 --quick --out /tmp/r --cpus 1,0 --blocks 7 --runtime 100ms --offload none";
    let Verb::Bench(args) = parse(line).unwrap() else { unreachable!() };
    let bench::Experiment::Run(args) = args.experiment else { unreachable!() };
    assert_eq!((args.ids.len(), args.cpus, args.blocks), (2, vec![1, 0], Some(7)));
    assert!(args.quick && !args.full && args.offload == Some(bench::OffloadChoice::None));
    parse("bench run --file mine.toml").unwrap();
    let error = parse("bench run").unwrap_err();
    assert!(error.contains("<ID>"), "{error}");
    let Verb::Bench(args) = parse("bench compare a b --anyway").unwrap() else { unreachable!() };
    assert!(matches!(args.experiment, bench::Experiment::Compare(args) if args.anyway));
}

#[test]
fn bench_says_what_would_be_right() {
    for (options, message) in [
        ("limit --depth 0", "a number from 1 to 4096"),
        ("limit --connections 1025", "a number from 1 to 1024"),
        ("limit --chunk 0", "auto, or the number of PDUs in one send"),
        ("limit --receive-size 64", "auto, or a size from 128 bytes to 16M"),
        ("limit --prefetch yes", "auto, on, ahead or off"),
        ("limit --per-pdu --chunk 2", "cannot be used with"),
        ("accel --op crc64", "no operation is called \"crc64\""),
        ("accel --path avx2", "no CRC path is called \"avx2\""),
        ("accel --size 0", "an operand has 1 byte to 64M"),
        ("accel --depth 1025", "a number from 1 to 1024"),
        ("digest --depth 0", "a number from 1 to 4096"),
        ("run all --quick --full", "cannot be used with"),
        ("run all --blocks 0", "1..=1000"),
        ("digest --quick --depth 1", "cannot be used with"),
        ("distance --cores 0,0", "core 0 is there twice"),
        ("gap --points size=4k", "points are chosen as in io=4k|16k,rw=read,depth=1|32"),
    ] {
        let line = parse(&format!("bench {options}")).unwrap_err();
        assert!(line.contains(message) && line.ends_with("(see raceline bench --help)"), "{line}");
    }
}

/// `--mdns` stands for an address, and one of both has to be there.
#[test]
fn discover_takes_an_address_or_searches() {
    let Verb::Discover(args) = parse("discover --mdns --wait 10 -o json").unwrap() else {
        unreachable!()
    };
    assert!(args.mdns && args.wait == std::time::Duration::from_secs(10));
    assert!(parse("discover").is_ok());
    assert!(parse("discover --mdns -a 192.0.2.1").unwrap_err().contains("cannot be used with"));
    let waits = parse("discover -a 192.0.2.1 --wait 3").unwrap_err();
    assert!(waits.contains("--wait") && waits.contains("cannot be used with"), "{waits}");
    assert!(parse("discover --config x --mdns").unwrap_err().contains("cannot be used with"));
}

/// Lines that users copy from `nvme connect` and `nvme discover` are understood.
#[test]
fn host_verbs_take_nvme_clis_spelling() {
    let connect = "-t tcp -a 192.0.2.1 -s 4420 -n nqn.2014-08.org.example:1 -k 10 -l 60 -g -G -d -D \
                   -q nqn.2014-08.org.example:h -I 6ba7b810-9dad-11d1-80b4-00c04fd430c8 -o normal";
    for (verb, rest) in [
        ("identify", "--namespace-id 2"),
        ("read", "--blocks 1 --namespace-id 2"),
        ("write", ""),
        ("perf", "-i 4 -W 1 -P 1 -Q 128"),
    ] {
        parse(&format!("{verb} {connect} {rest}")).unwrap();
    }
    let long = "discover --transport=TCP --traddr=192.0.2.1 --trsvcid=8009 \
                --hostnqn=nqn.2014-08.org.example:h --keep-alive-tmo=5 --ctrl-loss-tmo=-1 \
                --output-format=json";
    let Verb::Discover(args) = parse(long).unwrap() else { unreachable!() };
    assert_eq!((args.target.0.ctrl_loss_tmo, args.target.0.port), (-1, 8009));
    for (other, why) in [
        ("fc", "nvme-cli knows it, and Raceline does not: write -t tcp"),
        ("loop", "nvme-cli knows it, and Raceline does not: write -t tcp"),
        ("udp", "it is no transport of nvme-cli: write -t tcp"),
    ] {
        let error = parse(&format!("discover -t {other} -a 192.0.2.1")).unwrap_err();
        assert!(error.contains(why) && error.contains(other), "{error}");
    }
}

#[test]
fn iscsi_is_asked_for_with_or_without_a_name() {
    let export = |line: &str| match parse(line).unwrap() {
        Verb::Export(args) => args,
        _ => unreachable!(),
    };
    let args = export("export --iscsi ram:1M ram:2M");
    assert_eq!((args.iscsi.as_deref(), args.devices.len()), (Some(""), 2));
    let args = export("export ram:1M --iscsi=iqn.2026-01.io.raceline:x --iscsi-listen 127.0.0.1");
    assert_eq!(args.iscsi.as_deref(), Some("iqn.2026-01.io.raceline:x"));
    assert_eq!(args.iscsi_listen[0].to_string(), "127.0.0.1:3260");
    for wrong in ["--initiator iqn.a", "--iscsi-listen 127.0.0.1", "--iscsi --chap-user u"] {
        parse(&format!("export ram:1M {wrong}")).unwrap_err();
    }
    for line in [
        "portal add 192.0.2.1 [2001:db8::1]:1 --tag 3 --wait",
        "initiator add ANY !iqn.a --from 192.0.2.0/24",
        "target add iqn.a:b m0 m1 --map 1:2 --chap mutual --auth 1",
        "lun add iqn.a:b m0 --lun 255",
        "auth add me secret --tag 2 --mutual-user it --mutual-secret other",
        "connections",
    ] {
        parse(&format!("iscsi {line}")).unwrap();
    }
    for line in [
        "portal add",
        "target set iqn.a:b",
        "target set iqn.a:b --auth 1",
        "lun add n m0 --lun 256",
    ] {
        parse(&format!("iscsi {line}")).unwrap_err();
    }
    let wrong = parse("iscsi target add iqn.a:b m0 --map 1").unwrap_err();
    assert!(wrong.contains("PORTALS:INITIATORS"), "{wrong}");
}
