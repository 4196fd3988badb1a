//! A host and a target that authenticate each other: what connects, what is refused, and what people are told.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::served::{BLOCK, NS, any_port, config, listen, memory, nqn, serve_with, small};
use raceline_host::blocking::Host;
use raceline_host::{Algorithms, Credentials, DhGroup, DhchapSecret, Hash, HostConfig, HostError};
use raceline_target::{HostAccess, KeyPair, Keys, Target};

/// A queue authenticates again within this time after it has been told, and has ended it.
const RENEWED: Duration = Duration::from_secs(2);

fn secret() -> DhchapSecret {
    DhchapSecret::generate(Some(Hash::Sha512)).unwrap()
}

/// A target for the host of [`config`], which has these keys.
fn guarded(keys: impl Into<Option<Keys>>) -> (Target, SocketAddr) {
    let target = serve_with(small(), memory());
    let host = config(any_port()).hostnqn;
    target.set_hosts(&nqn(), HostAccess::List(vec![host.clone()])).unwrap();
    target.set_host_keys(&nqn(), &host, keys.into()).unwrap();
    let address = listen(&target, any_port());
    (target, address)
}

fn with(
    address: SocketAddr,
    secret: &DhchapSecret,
    controller_secret: Option<&DhchapSecret>,
) -> HostConfig {
    let credentials = Credentials {
        secret: secret.clone(),
        controller_secret: controller_secret.cloned(),
        algorithms: Algorithms::default(),
    };
    HostConfig { credentials: credentials.into(), ..config(address) }
}

fn round_trip(host: &Host) {
    let data = [0x5a; 4 * BLOCK];
    host.write(NS, 8, &data, false).unwrap();
    let mut back = [0; 4 * BLOCK];
    host.read(NS, 8, &mut back).unwrap();
    assert_eq!(back, data);
}

fn refusal(config: HostConfig) -> HostError {
    Host::connect(config).map(|_| ()).unwrap_err()
}

#[test]
fn a_host_proves_itself_on_all_queues() {
    let secret = secret();
    let (target, address) = guarded(Keys::new(secret.clone(), None));
    let host = Host::connect(with(address, &secret, None)).unwrap();
    round_trip(&host);
    drop(host);
    target.shutdown().unwrap();
}

#[test]
fn host_and_controller_prove_themselves_with_every_group() {
    let [secret, controller] = [(); 2].map(|()| secret());
    let keys = Keys::new(secret.clone(), Some(controller.clone()));
    let (target, address) = guarded(keys);
    for group in DhGroup::ALL {
        let only = Algorithms { hashes: vec![Hash::Sha256], groups: vec![group] };
        target.set_algorithms(only.clone()).unwrap();
        let config = with(address, &secret, Some(&controller));
        let mut credentials = config.credentials.get().unwrap();
        Arc::make_mut(&mut credentials).algorithms = only;
        config.credentials.set(Some(credentials));
        let host = Host::connect(config).unwrap();
        round_trip(&host);
    }
    target.shutdown().unwrap();
}

#[test]
fn people_are_told_what_is_wrong() {
    let [own, other, controller] = [(); 3].map(|()| secret());
    let keys = Keys::new(own.clone(), Some(controller));
    let (target, address) = guarded(keys);
    let error = refusal(config(address));
    assert!(matches!(error, HostError::AuthenticationRequired(_)), "{error}");
    assert!(error.to_string().contains("--dhchap-secret"), "{error}");
    let error = refusal(with(address, &other, None));
    assert!(matches!(error, HostError::Authentication(..)), "{error}");
    assert!(error.to_string().contains("Compare the keys"), "{error}");
    let error = refusal(with(address, &own, Some(&other)));
    assert!(error.to_string().contains("did not prove"), "{error}");
    target.shutdown().unwrap();
}

tcp_only! {
    use std::io::{Read, Write, copy};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::thread::spawn;

    /// A relay before a target, for one connection. It closes the connection instead of carrying the host's AUTH_Failure2.
    fn without_failure2(target: SocketAddr) -> SocketAddr {
        const LENGTHS: usize = 8;
        const DATA: usize = 72;
        const ID_FAILURE2: u8 = 0xf0;
        let listener = TcpListener::bind(any_port()).unwrap();
        let address = listener.local_addr().unwrap();
        let carry = move || {
            let mut host = listener.accept().unwrap().0;
            let mut target = TcpStream::connect(target).unwrap();
            let mut back = (target.try_clone().unwrap(), host.try_clone().unwrap());
            let answers = spawn(move || copy(&mut back.0, &mut back.1));
            let mut pdu = vec![0; LENGTHS];
            while host.read_exact(&mut pdu[..LENGTHS]).is_ok() {
                pdu.resize(u32::from_le_bytes(pdu[4..8].try_into().unwrap()) as usize, 0);
                host.read_exact(&mut pdu[LENGTHS..]).unwrap();
                if pdu.len() > DATA && pdu[DATA + 1] == ID_FAILURE2 {
                    break;
                }
                target.write_all(&pdu).unwrap();
            }
            let _ = (host.shutdown(Shutdown::Both), target.shutdown(Shutdown::Both));
            answers.join()
        };
        spawn(carry);
        address
    }
}

tcp_only! {
    #[test]
    fn a_controller_that_closes_when_it_is_refused_hides_no_reason() {
        let [own, other, controller] = [(); 3].map(|()| secret());
        let (target, address) = guarded(Keys::new(own.clone(), Some(controller)));
        let error = refusal(with(without_failure2(address), &own, Some(&other)));
        assert!(error.to_string().contains("did not prove"), "{error}");
        target.shutdown().unwrap();
    }
}

#[test]
fn a_controller_that_should_prove_itself_and_asks_for_nothing_is_refused() {
    let secret = secret();
    let (target, address) = guarded(None);
    // Nothing is asked of a host that could prove itself.
    drop(Host::connect(with(address, &secret, None)).unwrap());
    let error = refusal(with(address, &secret, Some(&secret)));
    assert!(matches!(error, HostError::AuthenticationBroken(..)), "{error}");
    target.shutdown().unwrap();
}

/// Reads until the controller is lost, or `time` is over.
fn reads_for(host: &Host, time: Duration) -> Result<u32, HostError> {
    let end = Instant::now() + time;
    let mut data = [0; 4 * BLOCK];
    let mut reads = 0;
    while Instant::now() < end {
        host.read(NS, 8, &mut data)?;
        reads += 1;
    }
    Ok(reads)
}

#[test]
fn queues_in_use_authenticate_again_with_the_secrets_of_then() {
    let [old, new, controller] = [(); 3].map(|()| secret());
    let pair =
        |host: &DhchapSecret| KeyPair { host: host.clone(), controller: Some(controller.clone()) };
    let keys = |hosts: &[&DhchapSecret]| Keys { pairs: hosts.iter().copied().map(pair).collect() };
    let (target, address) = guarded(keys(&[&old]));
    let config = with(address, &old, Some(&controller));
    let (hostnqn, shared) = (config.hostnqn.clone(), config.credentials.clone());
    let host = Host::connect(HostConfig { io_queues: 2, ..config }).unwrap();
    let renew = |secret: &DhchapSecret| {
        let secret = secret.clone();
        shared.renew(Credentials { secret, ..(*shared.get().unwrap()).clone() });
    };
    // While both secrets hold, the host changes to the new one. Then only the new one holds.
    target.set_host_keys(&nqn(), &hostnqn, Some(keys(&[&new, &old]))).unwrap();
    renew(&new);
    assert!(reads_for(&host, RENEWED).unwrap() > 0);
    target.set_host_keys(&nqn(), &hostnqn, Some(keys(&[&new]))).unwrap();
    renew(&new);
    assert!(reads_for(&host, RENEWED).unwrap() > 0);
    // This shows that queues in use do authenticate: they are lost with a secret that does not hold any more.
    renew(&old);
    reads_for(&host, 10 * RENEWED).unwrap_err();
    drop(host);
    target.shutdown().unwrap();
}

/// Who takes the old secret away as soon as the wait is over loses no queue, whenever each of them has looked.
#[test]
fn the_wait_for_a_renewal_ends_when_no_queue_uses_the_old_secret() {
    let mut last = secret();
    let (target, address) = guarded(Keys::new(last.clone(), None));
    let config = with(address, &last, None);
    let (hostnqn, shared) = (config.hostnqn.clone(), config.credentials.clone());
    let host = Host::connect(HostConfig { io_queues: 4, ..config }).unwrap();
    let mut data = [0; 4 * BLOCK];
    for _ in 0..4 {
        let next = secret();
        let both = Keys::new(next.clone(), None).or(last, None);
        target.set_host_keys(&nqn(), &hostnqn, Some(both)).unwrap();
        let begun = Instant::now();
        shared.renew(Credentials { secret: next.clone(), ..(*shared.get().unwrap()).clone() });
        let is_renewed = shared.wait_renewed(Duration::ZERO);
        let is_early = begun.elapsed() < Duration::from_millis(100);
        assert!(!(is_renewed && is_early), "queues look every 500 ms");
        assert!(shared.wait_renewed(10 * RENEWED));
        target.set_host_keys(&nqn(), &hostnqn, Some(Keys::new(next.clone(), None))).unwrap();
        host.read(NS, 8, &mut data).unwrap();
        last = next;
    }
    drop(host);
    // Queues that are gone keep nobody waiting.
    shared.renew((*shared.get().unwrap()).clone());
    assert!(shared.wait_renewed(10 * RENEWED));
    target.shutdown().unwrap();
}

#[test]
fn queues_in_use_authenticate_again_after_a_time() {
    let secret = secret();
    let (target, address) = guarded(Keys::new(secret.clone(), None));
    let config = with(address, &secret, None);
    let hostnqn = config.hostnqn.clone();
    let reauthenticate_after = Some(Duration::from_millis(200));
    let host = Host::connect(HostConfig { reauthenticate_after, ..config }).unwrap();
    assert!(reads_for(&host, RENEWED).unwrap() > 0);
    let other = Keys::new(self::secret(), None);
    target.set_host_keys(&nqn(), &hostnqn, Some(other)).unwrap();
    assert!(reads_for(&host, 10 * RENEWED).is_err(), "it did not authenticate again");
    drop(host);
    target.shutdown().unwrap();
}
