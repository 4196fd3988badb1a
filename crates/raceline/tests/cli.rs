//! The program as users run it: exports on port 0, used by the other verbs, and every refusal.

mod support;

use std::io::Write as _;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Export, Scratch, run, run_with_input};

fn ok(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert_eq!(output.code, Some(0), "{arguments:?}: {}", output.stderr);
    output.stdout
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Runs a verb that must fail, and gives its only line of output.
fn fails(arguments: &[&str], code: i32) -> String {
    let output = run(arguments);
    assert_eq!(output.code, Some(code), "{arguments:?}: {}", output.stderr);
    assert_eq!(output.stdout, "", "{arguments:?}");
    let lines: Vec<&str> = output.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{arguments:?}: {}", output.stderr);
    lines[0].to_owned()
}

#[test]
fn the_ready_line_says_everything() {
    let export =
        Export::start(&["ram:64M", "null:1T,bs=4096", "-l", "127.0.0.1:0", "-l", "[::1]:0"]);
    let ready = &export.ready;
    assert_eq!(ready["ready"], true);
    assert_eq!(ready["pid"], export.pid());
    assert!(ready["nqn"].as_str().unwrap().starts_with("nqn.2026-01.io.raceline:"));
    assert_eq!(ready["listeners"].as_array().unwrap().len(), 2);
    let namespaces = ready["namespaces"].as_array().unwrap();
    assert_eq!(namespaces[0]["nsid"], 1);
    assert_eq!(namespaces[0]["device"], "ram:64M");
    assert_eq!(
        (&namespaces[0]["block_size"], &namespaces[0]["block_count"]),
        (&512.into(), &131_072.into())
    );
    assert_eq!((&namespaces[1]["nsid"], &namespaces[1]["block_size"]), (&2.into(), &4096.into()));
    assert_ne!(namespaces[0]["uuid"], namespaces[1]["uuid"]);
    let people = export.terminate();
    assert!(people.contains("admits any host of this machine"), "{people}");
    assert!(people.contains("nvme connect -t tcp -a 127.0.0.1 -s "), "{people}");
}

#[test]
fn names_survive_a_restart() {
    let names = || {
        let export = Export::start(&["ram:8M"]);
        let ready = export.ready.clone();
        let document = json(&ok(&export.host(&["identify", "-o", "json"])));
        export.terminate();
        let serial = document["controller"]["serial"].clone();
        (ready["nqn"].clone(), ready["namespaces"][0]["uuid"].clone(), serial)
    };
    assert_eq!(names(), names());
}

#[test]
fn discover_and_identify_agree_with_the_ready_line() {
    let export = Export::start(&["ram:64M"]);
    let log = json(&ok(&["discover", "-a", "127.0.0.1", "-s", &export.port, "-o", "json"]));
    let records = log["records"].as_array().unwrap();
    let record = records.iter().find(|record| record["subnqn"] == export.ready["nqn"]).unwrap();
    assert_eq!(
        (&record["trtype"], &record["trsvcid"]),
        (&"tcp".into(), &export.port.as_str().into())
    );
    let document = json(&ok(&export.host(&["identify", "-o", "json"])));
    assert_eq!(document["controller"]["subnqn"], export.ready["nqn"]);
    let (found, ready) = (&document["namespaces"][0], &export.ready["namespaces"][0]);
    for field in ["nsid", "block_size", "block_count", "uuid"] {
        assert_eq!(found[field], ready[field], "{field}");
    }
    let table = ok(&export.host(&["identify"]));
    assert!(table.contains("64 MiB"), "{table}");
    assert!(ok(&["discover", "-a", "localhost", "-s", &export.port]).contains(&export.nqn));
    let missing = fails(&export.host(&["identify", "--namespace", "9"]), 2);
    assert!(missing.contains("no namespace 9"), "{missing}");
    export.terminate();
}

#[test]
fn what_is_written_is_read_back() {
    let scratch = Scratch::new();
    let export = Export::start(&["ram:64M", "--max-io-size", "64k"]);
    let data: Vec<u8> =
        (0..300 * 512u32).map(|index| index.to_le_bytes()[index as usize % 3]).collect();
    let (input, output) = (scratch.file("in", &data), scratch.path("out"));
    let text = ok(&export.host(&["write", "--slba", "7", &input]));
    assert!(text.contains("300 blocks"), "{text}");
    ok(&export.host(&["read", "--slba", "7", "--blocks", "300", &output, "-G", "-g"]));
    assert_eq!(std::fs::read(&output).unwrap(), data);

    let piped = run_with_input(&export.host(&["write", "--slba", "1000", "-"]), &data[..1024]);
    assert_eq!(piped.code, Some(0), "{}", piped.stderr);
    let back = run(&export.host(&["read", "--slba", "999", "--blocks", "4"]));
    assert_eq!(back.code, Some(0), "{}", back.stderr);
    assert_eq!(&back.bytes[512..1536], &data[..1024]);
    assert_eq!((&back.bytes[..512], &back.bytes[1536..]), (&[0; 512][..], &[0; 512][..]));
    export.terminate();
}

#[test]
fn partial_blocks_are_refused() {
    let scratch = Scratch::new();
    let export = Export::start(&["ram:1M"]);
    let odd = scratch.file("odd", &[1; 1000]);
    let line = fails(&export.host(&["write", &odd]), 2);
    assert!(line.contains("1000 bytes, which is not a multiple of the block size 512"), "{line}");
    let piped = run_with_input(&export.host(&["write", "-"]), &[1; 700]);
    assert_eq!(piped.code, Some(1));
    assert!(piped.stderr.contains("end 188 bytes into a block"), "{}", piped.stderr);
    let beyond = fails(&export.host(&["read", "--slba", "2047", "--blocks", "2", "-"]), 2);
    assert!(beyond.contains("has 2048 blocks"), "{beyond}");
    let missing = fails(&export.host(&["write", &scratch.path("missing")]), 1);
    assert!(missing.contains("cannot open"), "{missing}");
    export.terminate();
}

#[test]
fn perf_reports_as_fio_does() {
    let export = Export::start(&["ram:64M"]);
    let quick = ["--runtime", "500ms", "--ramp_time", "100ms"];
    let mut arguments = vec!["perf", "--rw", "randrw", "--iodepth", "8", "-i", "2", "-o", "json"];
    arguments.extend(quick);
    let document = json(&ok(&export.host(&arguments)));
    let job = &document["jobs"][0];
    assert_eq!(job["error"], 0);
    for side in ["read", "write"] {
        // The number depends on the load of this machine.
        assert!(job[side]["iops"].as_f64().unwrap() > 0.0, "{job}");
        let total = job[side]["total_ios"].as_u64().unwrap();
        assert_eq!(job[side]["io_bytes"].as_u64().unwrap(), total * 4096);
        assert!(job[side]["clat_ns"]["percentile"]["99.990000"].as_u64().unwrap() > 0);
        assert!(job[side]["lat_ns"]["mean"].as_f64().unwrap() > 0.0);
    }
    assert!(job["usr_cpu"].is_f64() && job["sys_cpu"].is_f64());
    let cost = &job["cost"];
    let total = |side: &str| job[side]["total_ios"].as_u64().unwrap();
    assert_eq!(cost["ios"].as_u64().unwrap(), total("read") + total("write"));
    for name in ["cpu_ns", "system_calls", "pdus_per_receive", "pdus_per_send", "copied_bytes"] {
        assert!(cost[name].as_f64().unwrap() > 0.0, "{name}: {cost}");
    }
    assert!(cost["instructions"].is_f64() || cost["instructions_missing"].is_string(), "{cost}");
    let mut arguments = vec!["perf", "--rw", "read", "--bs", "128k", "--iodepth", "2"];
    arguments.extend(quick);
    let table = ok(&export.host(&arguments));
    assert!(table.contains("read 128 KiB, 1 queue of depth 2"), "{table}");
    assert!(table.contains("cost per I/O, this side"), "{table}");
    // One report on request, and one at the end.
    export.ask_report();
    let people = export.terminate();
    assert_eq!(people.matches("cost per I/O, this target").count(), 2, "{people}");
}

#[test]
fn perf_keeps_a_rate() {
    let export = Export::start(&["ram:8M"]);
    let arguments = [
        "perf",
        "--rate_iops",
        "500",
        "--runtime",
        "1",
        "--ramp_time",
        "0",
        "--iodepth",
        "4",
        "-o",
        "json",
    ];
    let document = json(&ok(&export.host(&arguments)));
    let total = document["jobs"][0]["read"]["total_ios"].as_u64().unwrap();
    let missed = document["jobs"][0]["missed_ios"].as_u64().unwrap();
    assert_eq!(total + missed, 500);
    export.terminate();
}

#[test]
fn perf_proves_what_was_written() {
    let export = Export::start(&["ram:16M"]);
    let options =
        ["--verify", "--runtime", "300ms", "--ramp_time", "0", "--size", "4M", "-o", "json"];
    for digests in [&[][..], &["-g", "-G"][..]] {
        for mode in ["write", "randrw"] {
            let mut arguments = vec!["perf", "--rw", mode, "-i", "2", "--iodepth", "8"];
            arguments.extend(options);
            arguments.extend(digests);
            let document = json(&ok(&export.host(&arguments)));
            assert!(document["jobs"][0]["verified_ios"].as_u64().unwrap() > 0);
        }
    }
    // Fill the range, check it with a run that only reads, then damage one block.
    let fill = [
        "perf",
        "--rw",
        "write",
        "--verify",
        "--runtime",
        "1",
        "--ramp_time",
        "0",
        "--size",
        "64k",
        "--iodepth",
        "4",
    ];
    ok(&export.host(&fill));
    let check = [
        "perf",
        "--rw",
        "randread",
        "--verify",
        "--runtime",
        "300ms",
        "--ramp_time",
        "0",
        "--size",
        "64k",
        "--iodepth",
        "4",
    ];
    ok(&export.host(&check));
    let damage = run_with_input(&export.host(&["write", "--slba", "42", "-"]), &[9; 512]);
    assert_eq!(damage.code, Some(0), "{}", damage.stderr);
    let output = run(&export.host(&check));
    assert_eq!(output.code, Some(4), "{}", output.stderr);
    let line = "raceline: namespace 1, LBA 42: found data that was never written here";
    assert_eq!(output.stderr.trim_end(), line);
    export.terminate();
}

#[test]
fn perf_says_what_does_not_fit() {
    let export = Export::start(&["ram:1M,bs=4096", "ram:1M,readonly"]);
    for (options, text) in [
        (&["--bs", "512"][..], "--bs 512 is not a multiple of the block size 4096"),
        (&["--bs", "2M"], "--bs 2097152 is more than the controller's largest transfer 1048576"),
        (&["--namespace", "7"], "there is no namespace 7; the subsystem has 1, 2"),
        (&["--namespace", "2", "--rw", "write"], "namespace 2 is write protected"),
        (&["--size", "2M"], "the namespace has 1048576 bytes"),
        (&["--iodepth", "4000"], "--iodepth 4000 needs a queue of 4001 entries"),
    ] {
        let mut arguments = vec!["perf", "--runtime", "1"];
        arguments.extend(options);
        let line = fails(&export.host(&arguments), 2);
        assert!(line.contains(text), "{line}");
    }
    export.terminate();
}

#[test]
fn files_are_exported_and_kept() {
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    let device = format!("file:{image},size=4M,buffered");
    let export = Export::start(&[&device]);
    let piped = run_with_input(&export.host(&["write", "--slba", "5", "-"]), &[7; 512]);
    assert_eq!(piped.code, Some(0), "{}", piped.stderr);
    let busy = fails(&["export", &device, "-l", "127.0.0.1:0"], 1);
    assert!(busy.contains("is in use"), "{busy}");
    export.terminate();
    assert_eq!(std::fs::read(&image).unwrap()[5 * 512..6 * 512], [7; 512]);
    let export = Export::start(&[&format!("{device},readonly")]);
    let refused = run_with_input(&export.host(&["write", "-"]), &[7; 512]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("namespace 1 is write protected"), "{}", refused.stderr);
    export.terminate();
}

#[test]
fn what_cannot_be_exported_is_refused_in_one_line() {
    let scratch = Scratch::new();
    let missing = scratch.path("missing.img");
    let line = fails(&["export", &missing, "-l", "127.0.0.1:0"], 1);
    assert!(line.contains(&missing), "{line}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let line = fails(&["export", "ram:1M", "-l", &address], 1);
    assert!(
        line.contains(&format!("cannot listen on {address}: another process listens there")),
        "{line}"
    );
    let line = fails(&["export", "ram:1M", "-l", "0.0.0.0:0"], 2);
    assert!(line.contains("--allow-wildcard"), "{line}");
    let line = fails(&["export", "ram:1M", "-l", "192.0.2.1:0"], 2);
    assert!(line.contains("--insecure") && line.contains("--host"), "{line}");
    let elsewhere = ["export", "ram:1M", "-l", "192.0.2.1:0", "--allow-any-host", "--insecure"];
    let line = fails(&elsewhere, 1);
    assert!(line.contains("it is not an address of this machine"), "{line}");
    let line = fails(&["export", "ram:1P"], 1);
    assert!(line.contains("memory"), "{line}");
    let line = fails(&["export", "ram:1M,bs=1024"], 2);
    assert!(line.contains("use bs=512 or bs=4096"), "{line}");
    let line = fails(&["export", "ram:1M", "--cores", "1000"], 1);
    assert!(line.contains("core 1000 cannot be used"), "{line}");
}

#[test]
fn who_is_not_admitted_is_refused() {
    let export = Export::start(&["ram:1M", "--host", "nqn.2014-08.org.example:friend"]);
    let friend = export.host(&["identify", "-q", "nqn.2014-08.org.example:friend"]);
    ok(&friend);
    let line = fails(&export.host(&["identify", "-q", "nqn.2014-08.org.example:other"]), 3);
    assert!(line.contains("Connect Invalid Host"), "{line}");
    export.terminate();
}

#[test]
fn who_names_no_subsystem_learns_where_the_names_are() {
    let export = Export::start(&["ram:1M"]);
    let mut words = export.host(&["identify"]);
    let name = words.iter().position(|word| *word == "-n").unwrap() + 1;
    words[name] = "nqn.2014-08.org.example:missing";
    let line = fails(&words, 3);
    let port = words[words.iter().position(|word| *word == "-s").unwrap() + 1];
    let advice = format!("`raceline discover -a 127.0.0.1 -s {port}` lists the names");
    assert!(line.contains("Connect Invalid Parameters") && line.contains(&advice), "{line}");
    export.terminate();
}

#[test]
fn another_server_than_a_target_is_named_as_such() {
    use std::io::{Read as _, Write as _};
    let web = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = web.local_addr().unwrap();
    let served = std::thread::spawn(move || {
        let (mut client, _) = web.accept().unwrap();
        let mut request = [0; 128];
        client.read_exact(&mut request).unwrap();
        client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let port = address.port().to_string();
    let line = fails(&["discover", "-a", "127.0.0.1", "-s", &port, "-l", "0"], 3);
    let wanted = format!(
        "what answers at {address} speaks no NVMe/TCP (it sent `HTTP/1.1`): check the port (--trsvcid"
    );
    assert!(line.contains(&wanted), "{line}");
    served.join().unwrap();
}

#[test]
fn who_cannot_listen_says_where_and_what_to_do() {
    let scratch = Scratch::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let disk = ["connect", "--as", "nbd", "--bdev", "ram:1M"];
    let line = fails(&[&disk[..], &["--listen", &address]].concat(), 1);
    let wanted = format!(
        "cannot listen on {address}: another process listens there: choose another port with --listen, or 0 for any free one"
    );
    assert!(line.contains(&wanted), "{line}");
    let (folder, socket) = (scratch.path("none"), scratch.path("none/a.sock"));
    let line = fails(&[&disk[..], &["--socket", &socket]].concat(), 1);
    let wanted =
        format!("there is no folder {folder}: make it, or choose another path with --socket");
    assert!(line.contains(&wanted), "{line}");
    let socket = scratch.path("a.sock");
    let _there = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for kind in ["nbd", "vhost-user"] {
        let line = fails(&["connect", "--as", kind, "--bdev", "ram:1M", "--socket", &socket], 1);
        let wanted = format!("if that is this disk, `raceline disconnect -d {socket}` ends it");
        assert!(line.contains(&wanted), "{line}");
    }
    let rpc = scratch.path("rpc.sock");
    let line = fails(&["serve", "-r", &rpc, "--metrics", &address], 1);
    assert!(line.contains(&format!("--metrics: cannot listen on {address}: ")), "{line}");
}

#[test]
fn who_cannot_be_reached_is_code_3() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let begun = Instant::now();
    for verb in [&["identify"][..], &["read", "--blocks", "1", "-"], &["perf", "--runtime", "1"]] {
        let mut arguments = verb.to_vec();
        arguments.extend(["-a", "127.0.0.1", "-s", &free, "-n", "nqn.2014-08.org.example:1"]);
        let line = fails(&arguments, 3);
        assert!(line.contains(&format!("cannot connect to 127.0.0.1:{free}")), "{line}");
    }
    fails(&["discover", "-a", "127.0.0.1", "-s", &free], 3);
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    let line = fails(&["discover", "-a", "no-such-name.invalid"], 3);
    assert!(line.contains("no-such-name.invalid"), "{line}");
    let export = Export::start(&["ram:1M"]);
    let wrong =
        ["identify", "-a", "127.0.0.1", "-s", &export.port, "-n", "nqn.2014-08.org.example:1"];
    fails(&wrong, 3);
    export.terminate();
}

#[test]
fn a_signal_drains_and_ends_an_export() {
    let export = Export::start(&["ram:1M"]);
    let mut perf = export.spawn_host(&["perf", "--runtime", "30", "--ramp_time", "0"]);
    export.wait_for_connections(2);
    std::thread::sleep(Duration::from_millis(300)); // until the run is under way
    let begun = Instant::now();
    export.terminate(); // asserts exit code 0
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    perf.kill();
}

#[test]
fn reads_survive_a_target_that_was_killed() {
    let nqn = "nqn.2014-08.org.example:restart";
    // An address that no other test binds: between the two exports its port stays free.
    let export = Export::start(&["ram:8M", "-n", nqn, "-l", "127.0.0.77:0"]);
    let listen = format!("{}:{}", export.address, export.port);
    let perf = export.spawn_host(&["perf", "--runtime", "6", "--ramp_time", "0", "-i", "2"]);
    export.wait_for_connections(3);
    std::thread::sleep(Duration::from_millis(500)); // until the run is under way
    drop(export); // killed
    let export = Export::start(&["ram:8M", "-n", nqn, "-l", &listen]);
    let output = perf.finish();
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert!(output.stderr.contains("trying to connect again"), "{}", output.stderr);
    export.terminate();
}

#[test]
fn a_signal_ends_perf_with_a_report() {
    let export = Export::start(&["ram:1M"]);
    let perf = export.spawn_host(&["perf", "--runtime", "60", "--ramp_time", "0"]);
    export.wait_for_connections(2);
    std::thread::sleep(Duration::from_millis(500)); // until the run is under way
    let output = perf.interrupt();
    assert_eq!(output.code, Some(130), "{}", output.stderr);
    assert!(output.stdout.contains("IOPS"), "{}", output.stdout);
    export.terminate();
}

#[test]
fn the_demo_works() {
    let begun = Instant::now();
    let text = ok(&["demo", "--seconds", "3"]);
    assert!(text.contains("every block is as written"), "{text}");
    assert_eq!(
        text.lines().filter(|line| line.trim_start().starts_with("rand")).count(),
        4,
        "{text}"
    );
    assert!(text.contains("raceline export ram:1G"), "{text}");
    assert!(text.contains("CPU of both"), "{text}");
    assert!(!text.contains('\x1b'), "no colours in a pipe");
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
}

/// A core that this process may use.
fn some_core() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let list = list.unwrap_or("0").trim();
    list.split([',', '-']).next().unwrap_or("0").to_owned()
}

#[test]
fn bench_measures_the_limit_and_the_gap() {
    let core = some_core();
    // Both sides are on one core, so they have to sleep for each other.
    let cores =
        ["--target-core", &core, "--host-core", &core, "--memory", "4m", "--runtime", "20ms"];
    let limit = ["bench", "limit", "--mode", "blocking", "--depth", "1,4", "-o", "json"];
    let points = json(&ok(&[&limit[..], &cores].concat()));
    let points = points.as_array().unwrap();
    assert_eq!(points.len(), 2);
    assert_eq!(points[1]["case"], "4k read depth 4 x 1");
    assert!(points.iter().all(|point| point["limit_iops"].as_f64().unwrap() > 0.0));

    let gap = ["bench", "gap", "--mode", "interrupt", "--pairs", "1", "--points"];
    let choice = ["io=4k,rw=write,depth=8,connections=2"];
    let titles = [
        (&[][..], "      limit       serve"),
        (&["--target", "export"], "      limit      export"),
        (&["--target", "both"], "     export       serve"),
    ];
    for (target, title) in titles {
        let table = ok(&[&gap[..], &choice, &cores, target].concat());
        assert!(table.contains("4k write depth 8 x 2"), "{table}");
        assert!(table.contains("1 points, ") && table.contains(title), "{table}");
    }
    let line = fails(&[&gap[..], &choice, &cores, &["--io", "epoll"]].concat(), 2);
    assert!(line.contains("measure with --target export"), "{line}");

    let far = ["bench", "limit", "--target-core", "1023", "--memory", "4m", "-o", "json"];
    let line = fails(&far, 1);
    assert!(line.contains("core 1023 cannot be used: this process may use"), "{line}");
}

#[test]
fn bench_measures_distances() {
    let core = some_core();
    let line = fails(&["bench", "distance", "--cores", &core], 2);
    assert!(line.contains("a distance is between two cores"), "{line}");
    let line = fails(&["bench", "distance", "--cores", &format!("{core},1023")], 1);
    assert!(line.contains("core 1023 cannot be used: this process may use"), "{line}");

    if std::thread::available_parallelism().unwrap().get() < 2 {
        return eprintln!("SKIPPED: a distance takes two cores");
    }
    let pairs = json(&ok(&["bench", "distance", "--once", "-o", "json"]));
    let pairs = pairs.as_array().unwrap();
    assert!(!pairs.is_empty());
    for pair in pairs {
        let number = |name: &str| pair[name].as_u64().unwrap_or_else(|| panic!("{name}"));
        assert_eq!(pair["cores"].as_array().unwrap().len(), 2);
        assert!(number("round_trip_ns") > 0);
        assert_eq!(number("round_trip_ns"), number("most_ns"));
        assert_eq!(number("near_max_ns"), 2 * number("round_trip_ns"));
        // The field tells users whether to trust figures of this build.
        assert_eq!(pair["optimised"], !cfg!(debug_assertions));
    }
    let two: Vec<String> =
        pairs[0]["cores"].as_array().unwrap().iter().map(ToString::to_string).collect();
    let words = ["bench", "distance", "--wait", "-o", "json", "--cores", &two.join(",")];
    // Whatever their distance is: an hour is more than twice as far, so they count as near.
    let found = json(&ok(&[&words[..], &["--least", "3600000000000"]].concat()));
    let number = |name: &str| found[0][name].as_u64().unwrap();
    assert!(number("round_trip_ns") <= number("near_max_ns"), "{found}");
    assert!(number("near_max_ns") <= 2 * number("round_trip_ns"), "{found}");
    let line = fails(&["bench", "distance", "--wait", "--once", "--cores", &two.join(",")], 2);
    assert!(line.contains("--once"), "{line}");
    let table = ok(&["bench", "distance", "--once"]);
    assert!(table.starts_with("core  "), "{table}");
    assert!(table.ends_with("ns for a cache line there and back; one look\n"), "{table}");
}

#[test]
fn bench_measures_operations_and_digests() {
    let accel = ["bench", "accel", "--op", "crc32c", "--size", "512", "--working-set", "hot"];
    let quick = ["--runs", "1", "--runtime", "1ms", "--depth", "4", "-o", "json"];
    let rows = json(&ok(&[&accel[..], &quick].concat()));
    let engine = |row: &Value| row["engine"].as_str().unwrap_or_default().to_owned();
    let engines: Vec<String> = rows.as_array().unwrap().iter().map(engine).collect();
    assert_eq!(engines, ["direct", "software", "dsa_emulated"]);
    assert_eq!(rows[2]["emulated"], true);
    let table = ok(&[&accel[..], &quick[..6]].concat());
    assert!(table.contains("crc-fast called directly"), "{table}");
    assert!(table.contains("says nothing of a device's speed"), "{table}");

    let core = some_core();
    let digest = ["bench", "digest", "--mode", "interrupt", "--rounds", "1", "--io-size", "4k"];
    let short = ["--depth", "8", "--memory", "4m", "--runtime", "20ms", "--path", "auto"];
    let cores = ["--target-core", &core, "--host-core", &core];
    let table = ok(&[&digest[..], &short, &cores].concat());
    assert!(table.contains("4k read depth 8 (8 x 1)"), "{table}");
    assert!(table.contains("offload, dsa_emulated (emulation)"), "{table}");
    assert!(table.contains("model: offload, one DSA"), "{table}");
    assert!(table.contains("published: DSA over ISA-L with AVX-512"), "{table}");
}

#[test]
fn generated_texts() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(ok(&["completions", shell]).contains("raceline"));
    }
    assert!(ok(&["man"]).starts_with(".ie") || ok(&["man"]).contains(".TH"));
    let scratch = Scratch::new();
    ok(&["man", &scratch.path("man")]);
    for page in ["raceline.1", "raceline-export.1", "raceline-perf.1"] {
        assert!(std::fs::metadata(scratch.path("man")).is_ok());
        assert!(std::path::Path::new(&scratch.path("man")).join(page).exists(), "{page}");
    }
    let version = ok(&["--version"]);
    assert_eq!(version.trim_end(), concat!("raceline ", env!("CARGO_PKG_VERSION")));
    let mut sink = Vec::new();
    sink.write_all(ok(&["--help"]).as_bytes()).unwrap();
    assert!(String::from_utf8(sink).unwrap().contains("Exit codes: 0 done"));
}

/// Both ends offload to emulated devices, and report the devices' work.
#[test]
fn engines_compute_digests_where_they_are_asked_to() {
    let export = Export::start(&["ram:64M", "--accel", "dsa_emulated"]);
    let arguments = ["perf", "--rw", "randrw", "-G", "-o", "json", "--runtime", "300ms"];
    let more = ["--ramp_time", "0", "--verify", "--accel", "crc32c=dsa_emulated"];
    let output = run(&export.host(&[&arguments[..], &more[..]].concat()));
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert!(output.stderr.contains("no faster than the CPU"), "{}", output.stderr);
    let document = json(&output.stdout);
    let job = &document["jobs"][0];
    assert_eq!(job["job options"]["accel"], "crc32c=dsa_emulated");
    let crc32c = &job["acceleration"]["crc32c"];
    assert_eq!(crc32c["engine"], "dsa_emulated");
    assert_eq!(crc32c["failed"], 0);
    let of = |field: &str| crc32c[field].as_u64().unwrap();
    assert!(of("executed") > of("fallbacks") && of("bytes") >= of("executed") * 512, "{crc32c}");
    let people = export.terminate();
    assert!(people.contains("no faster than the CPU"), "{people}");
    for operation in ["crc32c", "copy_crc32c"] {
        let row = format!("{operation:<12} dsa_emulated ");
        assert!(people.contains(&row), "{people}");
    }
}

#[test]
fn engines_that_are_not_there_are_refused() {
    for verb in ["export", "perf"] {
        let words: &[&str] = match verb {
            "export" => &["export", "ram:8M", "-l", "127.0.0.1:0"],
            _ => &["perf", "-a", "127.0.0.1", "-n", "nqn.2014-08.org.example:1", "-G"],
        };
        let with = |value| [words, &["--accel", value][..]].concat();
        let line = fails(&with("crc32c=ioat"), 2);
        assert!(line.contains("engine ioat cannot do crc32c"), "{line}");
        let line = fails(&with("qat"), 2);
        assert!(line.contains("engine qat has no driver in this version"), "{line}");
        if std::path::Path::new("/sys/bus/dsa").exists() {
            eprintln!("SKIPPED: an engine of DSA is refused only where the driver is not there");
        } else {
            let line = fails(&with("dsa"), 1);
            assert!(line.contains("--accel dsa: no DSA: /sys/bus/dsa"), "{line}");
            assert!(line.contains("modprobe idxd"), "{line}");
        }
    }
}

#[test]
fn perf_runs_job_files() {
    let scratch = Scratch::new();
    let (one, two) = (Export::start(&["ram:8M", "ram:4M"]), Export::start(&["ram:8M"]));
    let file = scratch.file(
        "jobs.fio",
        b"[global]\ndirect=1\nbs=4k\niodepth=8\nrw=randread\npercentile_list=50:99\n\
          [both]\nfilename=Nvme0n1:Nvme0n2:Backn1\niodepth_batch=4\niodepth_batch_complete_min=2\n\
          iodepth_batch_complete_max=4\nio_size=2m\nnumjobs=2\ncpus_allowed=0\n\
          [group]\nnumjobs=3\ngroup_reporting\nio_size=1m\n\
          [fill]\nstonewall\nrw=write\nverify=crc32c\nfilename=/dev/nvme0n2\n",
    );
    let target = format!("Back={}:{},{}", two.address, two.port, two.nqn);
    let arguments = ["perf", "--job", &file, "--target", &target, "-o", "json"];
    let document = json(&ok(&one.host(&arguments)));
    let jobs = document["jobs"].as_array().unwrap();
    let names: Vec<&str> = jobs.iter().map(|job| job["jobname"].as_str().unwrap()).collect();
    assert_eq!(names, ["both", "both", "group", "fill"]);
    let total = |job: usize, side: &str| jobs[job][side]["total_ios"].as_u64().unwrap();
    assert_eq!([total(0, "read"), total(1, "read"), total(2, "read")], [512, 512, 3 * 256]);
    // Without time and io_size: once over the namespace, and read back.
    assert_eq!((total(3, "write"), jobs[3]["verified_ios"].as_u64().unwrap()), (1024, 1024));
    assert_eq!(jobs[0]["job options"]["iodepth_batch"], "4");
    let percentile = jobs[0]["read"]["clat_ns"]["percentile"].as_object().unwrap();
    assert_eq!(percentile.len(), 2);
    assert!(jobs[0].get("usr_cpu").is_none() && jobs[3]["usr_cpu"].is_f64());
    assert_eq!(document["stages"].as_array().unwrap().len(), 2);
    let wrong = scratch.file("wrong.fio", b"[x]\nbs=4k\nbssplit=4k/50\n");
    let line = fails(&one.host(&["perf", "--job", &wrong]), 2);
    assert!(
        line.contains("wrong.fio:3: `bssplit` is not a key that raceline perf knows"),
        "{line}"
    );
    one.terminate();
    two.terminate();
}

#[test]
fn perf_fills_before_it_reads() {
    let export = Export::start(&["ram:2M"]);
    let arguments = ["perf", "--precondition", "--runtime", "100ms", "--ramp_time", "0"];
    let table = ok(&export.host(&[&arguments[..], &["--numjobs", "2"]].concat()));
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("precondition  write 512 KiB: 2 MiB written in "), "{table}");
    assert!(lines[1].starts_with("precondition  randwrite 4 KiB: 2 MiB written in "), "{table}");
    assert!(table.contains("randread 4 KiB, 2 jobs of 1 queue of depth 32"), "{table}");
    assert!(table.contains("all read"), "{table}");
    let scratch = Scratch::new();
    let out = scratch.path("out");
    ok(&export.host(&["read", "--blocks", "4096", &out]));
    let data = std::fs::read(out).unwrap();
    assert!(data.chunks(512).all(|block| block.iter().any(|&byte| byte != 0)), "all was written");
    export.terminate();
}
