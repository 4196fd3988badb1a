//! The HTTP server of `raceline serve`: its sockets and tokens, which come before the sandbox, and its start.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use raceline_control::daemon::Beside;
use raceline_control::manager::Manager;
use raceline_http::{HttpConfig, HttpServer, Listener, Parts, Token};
use raceline_reactor::listening::address_trouble;

use crate::cli::http::HttpArgs;
use crate::failure::Failure;

/// The file of the state directory with the token that is made.
const TOKEN_FILE: &str = "http.token";

/// A server that has its sockets and does not run yet.
pub(crate) struct Prepared {
    config: HttpConfig,
    /// Where the token is made or found.
    token_file: Option<PathBuf>,
}

impl Prepared {
    /// Listens, and reads the tokens; `None` if nothing is asked for.
    pub(crate) fn new(args: &HttpArgs, state_dir: Option<&Path>) -> Result<Option<Self>, Failure> {
        let wanted = parts(args);
        if wanted.is_empty() {
            return if args.http_token.is_some() || args.http_read_token.is_some() {
                Err(Failure::usage(
                    "a token is for --http, --metrics or --ui: name one of them, too",
                ))
            } else {
                Ok(None)
            };
        }
        let read = |path: &PathBuf| Token::read(path).map_err(Failure::runtime);
        let token = args.http_token.as_ref().map(read).transpose()?;
        let read_token = args.http_read_token.as_ref().map(read).transpose()?;
        let token_file = match token {
            Some(_) => None,
            None => state_dir.map(|dir| dir.join(TOKEN_FILE)),
        };
        let has_token = token.is_some() || read_token.is_some() || token_file.is_some();
        let mut listeners = Vec::new();
        for (address, parts) in wanted {
            if !has_token && !address.ip().to_canonical().is_loopback() {
                return Err(Failure::usage(format!(
                    "other machines reach {address}, and there is no token that they need: give --http-token, \
                     --http-read-token or --state-dir"
                )));
            }
            let listener = Listener::bind(address, parts);
            listeners.push(listener.map_err(|error| {
                let option = options_of(args, address);
                let trouble = address_trouble(address, &error, Some(&option));
                Failure::runtime(format!("{option}: cannot listen on {address}: {trouble}"))
            })?);
        }
        let mut names = args.http_name.clone();
        names.extend(rustix::system::uname().nodename().to_str().ok().map(str::to_owned));
        let pages = raceline_http::pages();
        let config =
            HttpConfig { listeners, token, read_token, names, pages, ..HttpConfig::default() };
        Ok(Some(Self { config, token_file }))
    }

    /// Where it listens.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.config.listeners.iter().map(Listener::address).collect()
    }

    /// What the daemon starts beside its socket.
    pub(crate) fn into_beside(mut self) -> Beside {
        Box::new(move |manager: &Arc<Manager>| {
            if let Some(file) = &self.token_file {
                let token = Token::read_or_make(file).map_err(|error| error.to_string())?;
                self.config.token = Some(token);
                tracing::info!("the token for HTTP is in {}", file.display());
            }
            let server = HttpServer::start(self.config, Arc::clone(manager));
            let server = server.map_err(|error| format!("cannot serve HTTP: {error}"))?;
            Ok(Box::new(server) as Box<dyn Send>)
        })
    }
}

/// The options that name the address.
fn options_of(args: &HttpArgs, address: SocketAddr) -> String {
    let all = [("--http", args.http), ("--metrics", args.metrics), ("--ui", args.ui)];
    let named: Vec<&str> =
        all.into_iter().filter(|(_, own)| *own == Some(address)).map(|(name, _)| name).collect();
    named.join(" and ")
}

/// What is served at each address.
fn parts(args: &HttpArgs) -> BTreeMap<SocketAddr, Parts> {
    let mut wanted: BTreeMap<SocketAddr, Parts> = BTreeMap::new();
    for (address, parts) in [
        (args.http, Parts { rpc: true, ..Parts::default() }),
        (args.metrics, Parts { metrics: true, ..Parts::default() }),
        (args.ui, Parts { rpc: true, page: true, ..Parts::default() }),
    ] {
        if let Some(address) = address {
            let all = wanted.entry(address).or_default();
            *all = all.or(parts);
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(args: &HttpArgs) -> String {
        Prepared::new(args, None).err().unwrap().to_string()
    }

    #[test]
    fn one_address_has_one_listener_with_all_parts() {
        let one: SocketAddr = "127.0.0.1:9009".parse().unwrap();
        let args = HttpArgs { http: Some(one), metrics: Some(one), ..HttpArgs::default() };
        let parts: Vec<_> = parts(&args).into_iter().collect();
        assert_eq!(parts, [(one, Parts { rpc: true, metrics: true, page: false })]);
    }

    #[test]
    fn an_address_in_use_names_the_options_that_have_it() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let one = taken.local_addr().unwrap();
        let args = HttpArgs { metrics: Some(one), ..HttpArgs::default() };
        let wanted = format!(
            "--metrics: cannot listen on {one}: another process listens there: choose another port with --metrics, or 0 for \
             any free one"
        );
        assert_eq!(refused(&args), wanted);
        let args = HttpArgs { metrics: Some(one), ui: Some(one), ..HttpArgs::default() };
        assert!(refused(&args).starts_with("--metrics and --ui: "), "{}", refused(&args));
    }

    #[test]
    fn what_others_reach_needs_a_token() {
        let open: SocketAddr = "0.0.0.0:0".parse().unwrap();
        let args = HttpArgs { http: Some(open), ..HttpArgs::default() };
        assert!(refused(&args).contains("give --http-token"));
        let folder = tempfile::tempdir().unwrap();
        let prepared = Prepared::new(&args, Some(folder.path())).unwrap().unwrap();
        assert_ne!(prepared.addresses()[0].port(), 0);
        assert!(Prepared::new(&HttpArgs::default(), None).unwrap().is_none());
        let args = HttpArgs { http_token: Some("/token".into()), ..HttpArgs::default() };
        assert!(refused(&args).contains("name one of them"));
    }
}
