//! Hosts that deviate from the specification, and that other targets admit.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::support::{Export, Scratch, Served, call, configure, run};

/// Names from guides and test suites.
const NAMES: [&str; 4] = ["host1", "testnqn", "iqn.1993-08.org.debian:01:abc", "h\u{f6}st 1"];

/// A host with bytes written by hand: one socket, a queue's commands one after the other. Its commands
/// without data carry a descriptor of zeroes, as those of a public Python client do.
struct OddHost {
    stream: TcpStream,
    cid: u16,
}

/// The answer to a command: the data, whether these said that it has succeeded, status, and DW0.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answer {
    data: Vec<u8>,
    data_say_success: bool,
    status: u16,
    dw0: u32,
}

impl OddHost {
    fn open(port: &str) -> Self {
        let stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut host = Self { stream, cid: 0 };
        let mut ic_req = [0; 128];
        (ic_req[2], ic_req[4]) = (128, 128);
        host.stream.write_all(&ic_req).unwrap();
        assert_eq!(host.pdu().0[0], 1, "ICResp");
        host
    }

    /// Connects a queue; gives the controller's number.
    fn connect(&mut self, qid: u16, cntlid: u16, names: [&str; 2], hostid: u8) -> u16 {
        let mut data = vec![0; 1024];
        data[..16].fill(hostid);
        data[16..18].copy_from_slice(&cntlid.to_le_bytes());
        for (at, name) in [(256, names[0]), (512, names[1])] {
            data[at..at + name.len()].copy_from_slice(name.as_bytes());
        }
        let mut sqe = [0; 64];
        (sqe[0], sqe[4]) = (0x7f, 1);
        // The data are in the capsule.
        (sqe[33], sqe[39]) = (4, 0x01);
        sqe[42..44].copy_from_slice(&qid.to_le_bytes());
        sqe[44] = 31;
        // SQ flow control is off: the data may say that their command has succeeded.
        sqe[46] = 4;
        let answer = self.command(sqe, &data);
        assert_eq!(answer.status, 0, "Connect {names:?}");
        u16::try_from(answer.dw0).unwrap()
    }

    fn set_cc(&mut self, value: u32) {
        let mut sqe = [0; 64];
        (sqe[0], sqe[44]) = (0x7f, 0x14);
        sqe[48..52].copy_from_slice(&value.to_le_bytes());
        assert_eq!(self.command(sqe, &[]).status, 0);
    }

    fn csts(&mut self) -> u32 {
        let mut sqe = [0; 64];
        (sqe[0], sqe[4], sqe[44]) = (0x7f, 4, 0x1c);
        self.command(sqe, &[]).dw0
    }

    /// A command that returns `len` bytes of data.
    fn read(&mut self, opcode: u8, nsid: u8, cdw10: u32, len: u32) -> Answer {
        let mut sqe = [0; 64];
        (sqe[0], sqe[4]) = (opcode, nsid);
        sqe[32..36].copy_from_slice(&len.to_le_bytes());
        sqe[39] = 0x5a;
        sqe[40..44].copy_from_slice(&cdw10.to_le_bytes());
        self.command(sqe, &[])
    }

    /// A command without data.
    fn plain(&mut self, opcode: u8, cdw10: u32, cdw11: u32) -> Answer {
        let mut sqe = [0; 64];
        sqe[0] = opcode;
        sqe[40..44].copy_from_slice(&cdw10.to_le_bytes());
        sqe[44..48].copy_from_slice(&cdw11.to_le_bytes());
        self.command(sqe, &[])
    }

    fn command(&mut self, mut sqe: [u8; 64], data: &[u8]) -> Answer {
        self.cid += 1;
        sqe[1] = 0x40;
        sqe[2..4].copy_from_slice(&self.cid.to_le_bytes());
        let pdo = if data.is_empty() { 0 } else { 72 };
        let mut pdu = vec![4, 0, 72, pdo];
        pdu.extend(u32::try_from(72 + data.len()).unwrap().to_le_bytes());
        pdu.extend(sqe);
        pdu.extend(data);
        self.stream.write_all(&pdu).unwrap();
        let mut answer = Answer::default();
        loop {
            let (header, payload) = self.pdu();
            match header[0] {
                7 => {
                    answer.data.extend(payload);
                    answer.data_say_success = header[1] & 8 != 0;
                    if answer.data_say_success {
                        return answer;
                    }
                }
                5 => {
                    answer.dw0 = u32::from_le_bytes(header[8..12].try_into().unwrap());
                    answer.status = u16::from_le_bytes(header[22..24].try_into().unwrap()) >> 1;
                    return answer;
                }
                other => panic!("PDU {other:#x} {header:?}"),
            }
        }
    }

    /// The header of the next PDU, and the bytes after it.
    fn pdu(&mut self) -> (Vec<u8>, Vec<u8>) {
        let mut common = [0; 8];
        self.stream.read_exact(&mut common).unwrap();
        let hlen = usize::from(common[2]);
        let plen = u32::from_le_bytes(common[4..8].try_into().unwrap()) as usize;
        let mut rest = vec![0; plen - 8];
        self.stream.read_exact(&mut rest).unwrap();
        let payload = rest.split_off(hlen - 8);
        ([&common[..], &rest].concat(), payload)
    }
}

#[test]
fn a_host_selects_all_command_sets_with_descriptors_of_zeroes_and_many_identifiers() {
    let export = Export::start(&["ram:1M", "--allow-any-host", "-v"]);
    let names = [export.nqn.as_str(), "host1"];
    let mut admin = OddHost::open(&export.port);
    let cntlid = admin.connect(0, 0xffff, names, 1);
    admin.set_cc(0x0046_0060);
    admin.set_cc(0x0046_0061);
    assert_eq!(admin.csts(), 1, "ready, and no fatal status");
    // Asynchronous Event Configuration, Number of Queues
    assert_eq!(admin.plain(0x09, 0x0b, 0x100).status, 0);
    assert_eq!(
        admin.plain(0x09, 0x07, 0x0003_0003),
        Answer { dw0: 0x0003_0003, ..Answer::default() }
    );
    assert_eq!(admin.plain(0x0a, 0x07, 0), Answer { dw0: 0x0003_0003, ..Answer::default() });
    // CC.CSS leads to the I/O command sets, and each set to the identity of a namespace in it.
    let sets = admin.read(0x06, 0, 0xffff_001c, 4096);
    assert_eq!((sets.status, sets.data[..9].to_vec()), (0, vec![1, 0, 0, 0, 0, 0, 0, 0, 0]));
    let identity = admin.read(0x06, 1, 0x03, 4096);
    assert!(identity.data.windows(5).any(|five| five == [4, 1, 0, 0, 0]), "CSI 0");
    for cns in [0x05, 0x06, 0x07, 0x08] {
        assert_eq!(admin.read(0x06, 1, cns, 4096).status, 0, "CNS {cns:#x}");
    }
    for qid in [1, 2] {
        let mut queue = OddHost::open(&export.port);
        queue.connect(qid, cntlid, names, 1 + u8::try_from(qid).unwrap());
        assert_eq!(
            queue.read(0x02, 1, 0, 512),
            Answer { data: vec![0; 512], data_say_success: true, ..Answer::default() }
        );
    }
    let log = export.terminate();
    for tolerated in [
        "the host's name is not an NVMe Qualified Name",
        "another host identifier than the admin queue",
        "an SGL descriptor of a type that is not allowed",
    ] {
        assert_eq!(log.matches(tolerated).count(), 1, "{tolerated}: {log}");
    }
}

#[test]
fn a_name_with_control_characters_stays_one_line_of_the_log() {
    let export = Export::start(&["ram:1M", "--allow-any-host", "-v"]);
    let mut admin = OddHost::open(&export.port);
    admin.connect(0, 0xffff, [export.nqn.as_str(), "evil\n\u{1b}[31mhost"], 1);
    let log = export.terminate();
    assert!(log.contains(r"evil\n\u{1b}[31mhost"), "{log}");
    assert!(!log.contains('\u{1b}'), "{log}");
}

#[test]
fn names_are_what_people_choose_at_both_ends() {
    for name in NAMES {
        let export = Export::start(&["ram:1M", "-n", name, "--host", name]);
        assert_eq!(export.nqn, name);
        let identify = run(&export.host(&["identify", "-q", name, "-o", "json"]));
        assert_eq!(identify.code, Some(0), "{}", identify.stderr);
        let identify: Value = serde_json::from_str(&identify.stdout).unwrap();
        assert_eq!(identify["controller"]["subnqn"], name);
        let listed = run(&["discover", "-a", "127.0.0.1", "-s", &export.port, "-q", name]);
        assert!(listed.stdout.contains(name), "{}", listed.stdout);
        let other = run(&export.host(&["identify", "-q", "somebody"]));
        assert_eq!(other.code, Some(3), "{}", other.stderr);
        export.terminate();
    }
    // An empty name and a name that does not fit into its field are refused.
    for (name, why) in [("", "at least 1 byte"), (&*"h".repeat(224), "at most 223 bytes")] {
        let refused = run(&["export", "ram:1M", "-n", name]);
        assert_eq!(refused.code, Some(2));
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
    }
}

#[test]
fn a_daemon_admits_such_hosts_and_attaches_such_subsystems() {
    let scratch = Scratch::new();
    let socket = scratch.path("rpc.sock");
    let socket = std::path::Path::new(&socket);
    let served = Served::start(socket, &[]);
    let nqn = "nqn.2026-01.io.raceline:named";
    configure(socket, nqn, 2048);
    call(socket, "nvmf_subsystem_allow_any_host", json!({ "nqn": nqn, "allow_any_host": false }))
        .unwrap();
    for name in NAMES {
        call(socket, "nvmf_subsystem_add_host", json!({ "nqn": nqn, "host": name })).unwrap();
    }
    let port = port_of(socket, nqn);
    for name in NAMES {
        let ends = ["-a", "127.0.0.1", "-s", &port, "-n", nqn];
        let identify = run(&[&["identify", "-q", name][..], &ends].concat());
        assert_eq!(identify.code, Some(0), "{}", identify.stderr);
    }
    // As in SPDK, the daemon itself creates subsystems with qualified names only.
    let error = call(socket, "nvmf_create_subsystem", json!({ "nqn": "testnqn" })).unwrap_err();
    assert!(error["data"].as_str().unwrap().contains("begins with \"nqn.\""), "{error}");
    let export = Export::start(&["ram:1M", "-n", "testnqn", "--allow-any-host"]);
    let attach = json!({
        "name": "N", "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1",
        "trsvcid": export.port, "subnqn": "testnqn", "hostnqn": "host1",
    });
    assert_eq!(call(socket, "bdev_nvme_attach_controller", attach).unwrap(), json!(["Nn1"]));
    drop(served);
}

/// The port of a subsystem's only listener.
fn port_of(socket: &std::path::Path, nqn: &str) -> String {
    let listeners = call(socket, "nvmf_subsystem_get_listeners", json!({ "nqn": nqn })).unwrap();
    listeners[0]["address"]["trsvcid"].as_str().unwrap().to_owned()
}

#[test]
fn a_transport_without_c2h_success_answers_each_read() {
    for (c2h_success, says_success) in [(json!(false), false), (json!(true), true)] {
        let scratch = Scratch::new();
        let socket = scratch.path("rpc.sock");
        let socket = std::path::Path::new(&socket);
        let _served = Served::start(socket, &[]);
        let transport = json!({ "trtype": "TCP", "c2h_success": c2h_success });
        assert_eq!(call(socket, "nvmf_create_transport", transport).unwrap(), json!(true));
        let shown = call(socket, "nvmf_get_transports", Value::Null).unwrap();
        assert_eq!(shown[0]["c2h_success"], c2h_success);
        let nqn = "nqn.2026-01.io.raceline:answers";
        let address = json!({ "trtype": "TCP", "traddr": "127.0.0.1", "trsvcid": "0" });
        for (method, params) in [
            ("bdev_malloc_create", json!({ "name": "M", "num_blocks": 2048, "block_size": 512 })),
            ("nvmf_create_subsystem", json!({ "nqn": nqn, "allow_any_host": true })),
            ("nvmf_subsystem_add_ns", json!({ "nqn": nqn, "namespace": { "bdev_name": "M" } })),
            ("nvmf_subsystem_add_listener", json!({ "nqn": nqn, "listen_address": address })),
        ] {
            call(socket, method, params).unwrap();
        }
        let port = port_of(socket, nqn);
        let mut admin = OddHost::open(&port);
        let cntlid = admin.connect(0, 0xffff, [nqn, "host"], 1);
        admin.set_cc(0x0046_0001);
        assert_eq!(admin.read(0x06, 0, 1, 4096).data_say_success, says_success);
        let mut queue = OddHost::open(&port);
        queue.connect(1, cntlid, [nqn, "host"], 1);
        let read = queue.read(0x02, 1, 0, 512);
        assert_eq!((read.data_say_success, read.status, read.data.len()), (says_success, 0, 512));
        // Our own host accepts either name.
        let ends = ["-a", "127.0.0.1", "-s", &port, "-n", nqn];
        let read = run(&[&["read", "--blocks", "8"][..], &ends].concat());
        assert_eq!((read.code, read.bytes.len()), (Some(0), 4096), "{}", read.stderr);
    }
}

#[test]
fn a_host_connects_from_the_address_that_it_is_told() {
    let export = Export::start(&["ram:1M"]);
    let identify = |source: &str| {
        let words = ["identify", "-t", "tcp", "-w", source, "-o", "json"];
        run(&export.host(&words))
    };
    assert_eq!(identify("127.0.0.9").code, Some(0));
    // A documentation address (RFC 5737), which no machine has.
    let elsewhere = identify("192.0.2.77");
    assert_eq!(elsewhere.code, Some(3), "{}", elsewhere.stderr);
    assert!(elsewhere.stderr.contains("192.0.2.77"), "{}", elsewhere.stderr);
    let family = identify("::1");
    assert_eq!(family.code, Some(3), "{}", family.stderr);
    assert!(family.stderr.contains("::1: it is of another family"), "{}", family.stderr);
    let name = identify("here");
    assert_eq!(name.code, Some(2), "{}", name.stderr);
    export.terminate();
}
