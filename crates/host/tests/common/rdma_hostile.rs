//! A target over RDMA that answers wrongly at any step: the host ends that connection, says so, and goes on with the next.

use std::sync::Arc;
use std::time::Duration;

use raceline_host::blocking::Host;
use raceline_host::{BackoffConfig, HostConfig, HostError, Transport};
use raceline_proto::nvme::NamespaceId;
use raceline_rdma::fake::{NetworkConfig, Profile};

use super::common::config;
use super::rdma_target::{BLOCK, Devices, Served, Step, Wrong};

const NS: NamespaceId = NamespaceId(1);

const STEPS: [Step; 6] = [
    Step::Connect,
    Step::PropertySet,
    Step::PropertyGet,
    Step::Identify,
    Step::SetFeatures,
    Step::IoConnect,
];

const ANSWERS: [Wrong; 6] = [
    Wrong::Silence,
    Wrong::Len(0),
    Wrong::Len(15),
    Wrong::Len(17),
    Wrong::UnknownCommand,
    Wrong::Twice,
];

/// How long a host waits for a step that is answered, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long it waits for one that is not answered.
const SILENCE: Duration = Duration::from_secs(1);
/// How often a step is tried to be taken: short times may end before it has come.
const TRIES: u32 = 20;

fn over(served: &Served, patience: Duration) -> HostConfig {
    let backoff = BackoffConfig {
        first: Duration::from_millis(5),
        longest: Duration::from_millis(20),
        ..BackoffConfig::default()
    };
    HostConfig {
        transport: Transport::Rdma,
        rdma_devices: Arc::new(Devices(served.network.clone())),
        backoff,
        connect_timeout: patience,
        admin_timeout: Some(patience),
        io_queues: 1,
        ..config()
    }
}

fn works(host: &Host) {
    for blocks in [1, 40] {
        let data = vec![0x77; blocks * BLOCK];
        host.write(NS, 5, &data, false).unwrap();
        let mut back = vec![0; data.len()];
        host.read(NS, 5, &mut back).unwrap();
        assert!(back == data, "{blocks} blocks");
    }
}

/// Connects while one step is answered wrongly: what comes of it. A host that gives up before that step comes again.
fn connect_wrongly(served: &Served, step: Step, wrong: Wrong) -> Result<Host, HostError> {
    let patience = if matches!(wrong, Wrong::Silence) { SILENCE } else { PATIENCE };
    for _ in 0..TRIES {
        *served.shared.wrong.lock().unwrap() = Some((step, wrong));
        let connected = Host::connect(over(served, patience));
        if served.shared.wrong.lock().unwrap().is_none() {
            return connected;
        }
        println!("{step:?} {wrong:?}: the step has not come: {:?}", connected.err());
    }
    panic!("{step:?} {wrong:?}: the step has not come");
}

#[test]
fn a_wrong_answer_at_any_step_of_connecting_ends_that_attempt_only() {
    for (profile, answers) in [(Profile::Roce, &ANSWERS[..]), (Profile::Iwarp, &ANSWERS[1..])] {
        let served = Served::start(NetworkConfig { profile, ..NetworkConfig::default() });
        for step in STEPS {
            for &wrong in answers {
                // A queue for I/O, or one that has come as far, is made again by the host itself.
                let host = match connect_wrongly(&served, step, wrong) {
                    Ok(host) => host,
                    Err(error) => {
                        let text = error.to_string();
                        assert!(text.contains("10.0.0.1:4420"), "{step:?} {wrong:?}: {text}");
                        Host::connect(over(&served, PATIENCE)).unwrap()
                    }
                };
                works(&host);
                host.disconnect();
            }
        }
        served.finish();
    }
}

#[test]
fn a_wrong_answer_to_a_read_costs_the_connection_and_not_the_read() {
    for profile in [Profile::Roce, Profile::Iwarp] {
        let served = Served::start(NetworkConfig { profile, ..NetworkConfig::default() });
        let host = Host::connect(over(&served, PATIENCE)).unwrap();
        works(&host);
        for wrong in
            [Wrong::Len(0), Wrong::Len(15), Wrong::Len(17), Wrong::UnknownCommand, Wrong::Key]
        {
            let before = served.seen().connects;
            *served.shared.wrong.lock().unwrap() = Some((Step::Io, wrong));
            let mut back = vec![0; 40 * BLOCK];
            host.read(NS, 5, &mut back).unwrap();
            assert!(back == vec![0x77; 40 * BLOCK], "{wrong:?}");
            assert!(served.seen().connects > before, "{wrong:?}: the connection has stayed");
        }
        works(&host);
        host.disconnect();
        served.finish();
    }
}
