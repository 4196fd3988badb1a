//! Which hosts may reach an export: safe unless the command line says otherwise.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use raceline_auth::{DhchapSecret, KeyPair, TlsKey};
use raceline_proto::nvme::Nqn;
use raceline_target::{Keys, check_rdma_address};
use raceline_tls::Offload;

use crate::cli::export::ExportArgs;
use crate::cli::values::{DEFAULT_PORT, Listen};
use crate::failure::Failure;
use crate::{export_key, secrets};

/// The address without `-l`.
pub(crate) const DEFAULT_LISTEN: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_PORT);

/// The addresses of an export and the hosts that it admits, within the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Admission {
    /// The addresses, at least one.
    pub(crate) listen: Vec<SocketAddr>,
    /// Those of them that are for RDMA.
    pub(crate) rdma: Vec<SocketAddr>,
    /// Those for TCP. An address can be for both.
    pub(crate) tcp: Vec<SocketAddr>,
    /// The hosts that may connect; `None`: any host.
    pub(crate) hosts: Option<Vec<Nqn>>,
    /// The secrets by which these hosts and the controller prove themselves; `None`: nobody has to.
    pub(crate) keys: Option<Keys>,
    /// The key with which these hosts, and no others, connect over TLS; `None`: nothing is encrypted.
    pub(crate) tls_key: Option<TlsKey>,
    /// Whether connections are over TLS only. Without a key of `--tls-psk`, the key is found or made later.
    pub(crate) tls: bool,
    /// Hosts may make the key for TLS by an authentication.
    pub(crate) concat: bool,
    /// Whether the kernel makes the records of TLS.
    pub(crate) offload: Offload,
    /// Whether all addresses can be reached from this machine only.
    pub(crate) local_only: bool,
}

impl Admission {
    /// Checks the command line.
    ///
    /// # Errors
    /// When the addresses need options that are missing; the error names the options and the reason.
    pub(crate) fn check(args: &ExportArgs) -> Result<Self, Failure> {
        let all: Vec<Listen> = match args.listen.is_empty() {
            true => vec![Listen { address: DEFAULT_LISTEN, is_rdma: false }],
            false => args.listen.clone(),
        };
        let of = |is_rdma| all.iter().filter(move |listen| listen.is_rdma == is_rdma);
        let addresses = |is_rdma| of(is_rdma).map(|listen| listen.address).collect();
        let (rdma, tcp): (Vec<SocketAddr>, Vec<SocketAddr>) = (addresses(true), addresses(false));
        check_rdma(&rdma, args)?;
        for (index, listen) in all.iter().enumerate() {
            if listen.address.port() != 0 && all[..index].contains(listen) {
                return Err(Failure::usage(format!("-l {listen} is there twice")));
            }
            check_address(listen.address, args)?;
        }
        let listen: Vec<SocketAddr> = all.iter().map(|listen| listen.address).collect();
        let hosts = (!args.hosts.is_empty()).then(|| args.hosts.clone());
        let keys = keys(args)?;
        check_tls(args)?;
        let tls_key = args.tls_psk.as_deref();
        let tls_key = tls_key.map(|file| export_key::given(file, args.tls_compat)).transpose()?;
        let (tls, concat) = (args.tls || args.tls_psk.is_some(), args.concat);
        let local_only = listen.iter().all(|address| is_local(address.ip()));
        let offload = Offload::decide(args.ktls).map_err(Failure::runtime)?;
        Ok(Self { listen, rdma, tcp, hosts, keys, tls_key, tls, concat, offload, local_only })
    }

    /// Whether all that follows an authentication at most is encrypted.
    pub(crate) fn encrypts(&self) -> bool {
        self.tls || self.concat
    }

    /// The admitted hosts, as text for users.
    pub(crate) fn describe(&self) -> String {
        match (&self.hosts, self.local_only) {
            (Some(hosts), _) => {
                let names: Vec<&str> = hosts.iter().map(Nqn::as_str).collect();
                let proof = if self.keys.is_none() { "" } else { ", which has to prove itself" };
                let tls = if self.encrypts() { ", over TLS" } else { "" };
                format!("only {}{proof}{tls}", names.join(", "))
            }
            (None, _) if self.tls => "any host that has the key, over TLS".to_owned(),
            (None, true) => "any host of this machine (restrict it with --host NQN)".to_owned(),
            (None, false) => "ANY host that can reach it, without encryption".to_owned(),
        }
    }
}

/// The secrets of the files that are named.
fn keys(args: &ExportArgs) -> Result<Option<Keys>, Failure> {
    let read = |option: &'static str| move |file: &PathBuf| secrets::from_file(option, file);
    let hosts: Vec<DhchapSecret> =
        args.dhchap_key.iter().map(read("--dhchap-key")).collect::<Result<_, _>>()?;
    let controller: Option<DhchapSecret> =
        args.dhchap_ctrlr_key.as_ref().map(read("--dhchap-ctrlr-key")).transpose()?;
    let pairs = hosts.into_iter().map(|host| KeyPair { host, controller: controller.clone() });
    let keys = Keys { pairs: pairs.collect() };
    Ok((!keys.pairs.is_empty()).then_some(keys))
}

/// Checks the options about TLS against each other.
fn check_tls(args: &ExportArgs) -> Result<(), Failure> {
    if args.tls_psk.is_some() && args.hosts.is_empty() && !args.tls {
        return Err(Failure::usage(
            "--tls-psk is for the hosts of --host: name them, or add --tls to let any host in that has the key",
        ));
    }
    if args.tls_compat && args.tls_psk.is_none() && !args.tls {
        return Err(Failure::usage(
            "--tls-compat is about the key of --tls or --tls-psk: add one of them",
        ));
    }
    if args.concat && (args.tls || args.tls_psk.is_some()) {
        return Err(Failure::usage(
            "--concat makes the key for TLS: leave --tls and --tls-psk out",
        ));
    }
    if args.tls && args.allow_any_host {
        return Err(Failure::usage(
            "with --tls the key says who may connect: leave --allow-any-host out",
        ));
    }
    Ok(())
}

/// Checks what RDMA cannot be together with.
fn check_rdma(listen: &[SocketAddr], args: &ExportArgs) -> Result<(), Failure> {
    let Some(address) = listen.first() else { return Ok(()) };
    if args.tls || args.tls_psk.is_some() || args.concat {
        return Err(Failure::usage(format!(
            "-l rdma://{address}: TLS is for TCP, and nothing encrypts RDMA here: leave --tls, --tls-psk and --concat \
             out, or this address"
        )));
    }
    for address in listen {
        check_rdma_address(*address)
            .map_err(|error| Failure::usage(format!("-l rdma://{address}: {error}")))?;
    }
    if let Some(address) = listen.iter().find(|address| address.port() == 0) {
        return Err(Failure::usage(format!(
            "-l rdma://{address}: a listener for RDMA needs a port: 4420 is the usual one"
        )));
    }
    if args.iscsi.is_some() && args.iscsi_listen.is_empty() {
        return Err(Failure::usage(format!(
            "-l rdma://{address} is no address for iSCSI: say with --iscsi-listen where it listens"
        )));
    }
    Ok(())
}

fn check_address(address: SocketAddr, args: &ExportArgs) -> Result<(), Failure> {
    let ip = address.ip().to_canonical();
    if is_local(ip) {
        return Ok(());
    }
    let mut missing = Vec::new();
    if ip.is_unspecified() && !args.allow_wildcard {
        missing.push("--allow-wildcard to listen on every address that this machine has");
    }
    let encrypts = args.tls || args.tls_psk.is_some() || args.concat;
    if args.hosts.is_empty() && !args.allow_any_host && !args.tls {
        missing.push("--host NQN (or --allow-any-host) to say who may connect");
    }
    if !args.insecure && !encrypts {
        missing.push(
            "--tls to encrypt, which also says who may connect, or --insecure to accept that nothing is encrypted",
        );
    }
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(", ");
    Err(Failure::usage(format!("-l {address} is open to other machines: add {missing}")))
}

/// Whether only processes of this machine can connect to this address.
fn is_local(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Verb};

    fn check(options: &str) -> Result<Admission, String> {
        let words = ["raceline", "export", "ram:1M"].into_iter().chain(options.split_whitespace());
        let Verb::Export(args) = Cli::try_parse_from(words).unwrap().verb else { unreachable!() };
        Admission::check(&args).map_err(|failure| {
            assert_eq!(failure.code, crate::failure::code::USAGE);
            failure.message
        })
    }

    const HOST: &str = "--host nqn.2014-08.org.example:h";

    #[test]
    fn local_addresses_need_nothing() {
        for options in
            ["", "-l 127.0.0.1:0", "-l 127.8.9.1", "-l [::1]:4420", "-l [::ffff:127.0.0.1]:1"]
        {
            let admission = check(options).unwrap();
            assert!(admission.local_only && admission.hosts.is_none(), "{options}");
        }
        assert_eq!(check("").unwrap().listen, ["127.0.0.1:4420".parse().unwrap()]);
        assert!(check("").unwrap().describe().starts_with("any host of this machine"));
    }

    #[test]
    fn rdma_has_no_tls() {
        let admission = check("-l rdma://127.0.0.1:4421 -l 127.0.0.1:4420").unwrap();
        assert_eq!((admission.listen.len(), admission.rdma.len()), (2, 1));
        // One address for both, as converged networks have it, but neither twice.
        let both = check("-l rdma://127.0.0.1 -l 127.0.0.1:4420").unwrap();
        assert_eq!((both.listen.len(), both.rdma.len(), both.tcp.len()), (2, 1, 1));
        assert_eq!(both.rdma, both.tcp);
        for (options, culprit) in [
            ("-l rdma://127.0.0.1:0", "needs a port"),
            ("-l rdma://127.0.0.1:1 -l rdma://127.0.0.1:1", "-l rdma://127.0.0.1:1 is there twice"),
            (
                "-l 127.0.0.1:1 -l rdma://127.0.0.1:1 -l 127.0.0.1:1",
                "-l 127.0.0.1:1 is there twice",
            ),
            ("-l rdma://127.0.0.1:1 --tls", "TLS is for TCP"),
            ("-l rdma://0.0.0.0", "-l rdma://0.0.0.0:4420: 0.0.0.0 stands for all addresses"),
            ("-l rdma://0.0.0.0 --allow-wildcard --insecure --allow-any-host", "each RDMA device"),
            ("-l 127.0.0.1 -l rdma://[::]:1 --allow-wildcard", ":: stands for all addresses"),
            ("-l rdma://[::ffff:0.0.0.0]:1", "stands for all addresses"),
            ("-l rdma://127.0.0.1:1 --iscsi", "--iscsi-listen"),
            ("-l rdma://192.0.2.1 --allow-any-host", "--insecure"),
        ] {
            let error = check(options).unwrap_err();
            assert!(error.contains(culprit), "{options}: {error}");
        }
    }

    #[test]
    fn hosts_restrict_local_addresses_too() {
        let admission = check(HOST).unwrap();
        assert_eq!(admission.hosts.as_ref().unwrap().len(), 1);
        assert_eq!(admission.describe(), "only nqn.2014-08.org.example:h");
    }

    #[test]
    fn every_combination_for_other_addresses() {
        let wild = "--allow-wildcard to listen on every address that this machine has";
        let who = "--host NQN (or --allow-any-host) to say who may connect";
        let plain = "--tls to encrypt, which also says who may connect, or --insecure to accept that nothing is encrypted";
        for address in [
            "192.0.2.1:4420",
            "[2001:db8::1]:4420",
            "0.0.0.0:4420",
            "[::]:4420",
            "[::ffff:0.0.0.0]:1",
        ] {
            let wildcard = address.contains("0.0.0.0") || address.contains("[::]");
            for bits in 0..16u8 {
                let mut options = format!("-l {address}");
                let mut expected = Vec::new();
                let has = |bit: u8| bits & (1 << bit) != 0;
                if has(0) && has(3) {
                    continue; // they exclude each other
                }
                for (bit, option) in
                    ["--allow-any-host", "--insecure", "--allow-wildcard", HOST].iter().enumerate()
                {
                    if has(u8::try_from(bit).unwrap()) {
                        options = format!("{options} {option}");
                    }
                }
                if wildcard && !has(2) {
                    expected.push(wild);
                }
                if !has(0) && !has(3) {
                    expected.push(who);
                }
                if !has(1) {
                    expected.push(plain);
                }
                let result = check(&options);
                if expected.is_empty() {
                    assert!(!result.unwrap().local_only, "{options}");
                } else {
                    let message = result.unwrap_err();
                    assert_eq!(
                        message,
                        format!(
                            "-l {address} is open to other machines: add {}",
                            expected.join(", ")
                        )
                    );
                }
            }
        }
    }

    #[test]
    fn one_open_address_among_local_ones_is_found() {
        let message = check("-l 127.0.0.1:1 -l 192.0.2.1:2").unwrap_err();
        assert!(message.starts_with("-l 192.0.2.1:2 is open"), "{message}");
        let open = "-l 127.0.0.1:1 -l 192.0.2.1:2 --allow-any-host --insecure";
        assert!(check(open).unwrap().describe().starts_with("ANY host"));
    }

    #[test]
    fn tls_says_who_may_connect() {
        let admission = check("-l 192.0.2.1:4420 --tls").unwrap();
        assert!(admission.tls && admission.hosts.is_none() && !admission.local_only);
        assert_eq!(admission.describe(), "any host that has the key, over TLS");
        let admission = check(&format!("-l 192.0.2.1:4420 --tls {HOST}")).unwrap();
        assert_eq!(admission.describe(), "only nqn.2014-08.org.example:h, over TLS");
        for (options, culprit) in [
            ("-l [::]:4420 --tls", "--allow-wildcard"),
            ("--tls --allow-any-host", "leave --allow-any-host out"),
            ("--tls-psk key", "--host"),
            ("--tls-compat", "--tls-psk"),
        ] {
            let message = check(options).unwrap_err();
            assert!(message.contains(culprit), "{message}");
        }
    }

    #[test]
    fn the_same_address_twice() {
        assert_eq!(
            check("-l 127.0.0.1:1 -l 127.0.0.1:1").unwrap_err(),
            "-l 127.0.0.1:1 is there twice"
        );
        assert!(check("-l 127.0.0.1:0 -l 127.0.0.1:0").is_ok());
    }
}
