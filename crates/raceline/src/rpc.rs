//! `raceline rpc`: SPDK's JSON-RPC from the command line, with the spelling and the output of `rpc.py`.

use std::io::{BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::path::Path;

use raceline_control::absent::{THIS_DAEMON, absent};
use raceline_control::client::arguments::{self, Request, UsageError};
use raceline_control::client::config::{self, ConfigError, Loaded};
use raceline_control::client::output::{pretty, render};
use raceline_control::client::{Address, ClientError, Connection};
use raceline_control::configuration::{self, summary};
use raceline_control::method::Registry;
use raceline_control::spelling::{Prints, current_name};
use serde_json::{Map, Value};

use crate::cli::rpc::RpcArgs;
use crate::failure::{Failure, one_line};
use crate::shell;

/// The identifier of a request that is printed but not sent.
const SHOWN_ID: u64 = 1;

/// Runs the verb.
pub(crate) fn run(args: &RpcArgs) -> Result<(), Failure> {
    if args.serve_lines {
        return serve_lines(args);
    }
    if let Some((method, words)) = args.command.split_first() {
        return Session::new(args).run(method, words);
    }
    let mut session = Session::new(args);
    let lines = if std::io::stdin().is_terminal() { Vec::new() } else { script()? };
    if lines.is_empty() { session.list() } else { session.run_script(&lines) }
}

/// One line of a script: its number, and its words.
type Line = (usize, Vec<String>);

/// The lines of standard input, without empty lines and comments.
fn script() -> Result<Vec<Line>, Failure> {
    let mut lines = Vec::new();
    for (index, line) in std::io::stdin().lock().lines().enumerate() {
        let line = line.map_err(|error| Failure::runtime(format!("standard input: {error}")))?;
        let number = index + 1;
        let words = shlex::split(&line)
            .ok_or_else(|| Failure::usage(format!("line {number}: a quote has no end")))?;
        if words.first().is_some_and(|word| !word.starts_with('#')) {
            lines.push((number, words));
        }
    }
    Ok(lines)
}

/// Runs one command after another, each on a connection of its own, as test suites drive `rpc.py`.
fn serve_lines(args: &RpcArgs) -> Result<(), Failure> {
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| Failure::runtime(format!("standard input: {error}")))?;
        let words = shlex::split(&line).unwrap_or_default();
        let result = match words.split_first() {
            Some((method, words)) => Session::new(args).run(method, words),
            None => Err(Failure::usage("no method")),
        };
        if let Err(failure) = &result {
            print_line(&one_line(&failure.message))?;
        }
        print_line(if result.is_ok() { "**STATUS=0" } else { "**STATUS=1" })?;
    }
    Ok(())
}

/// A daemon, connected to at the first request.
struct Session<'a> {
    args: &'a RpcArgs,
    connection: Option<Connection>,
}

impl<'a> Session<'a> {
    fn new(args: &'a RpcArgs) -> Self {
        Self { args, connection: None }
    }

    fn connection(&mut self) -> Result<&mut Connection, Failure> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let RpcArgs { server, port, timeout, retries, .. } = self.args;
                let address = server.as_ref().map(|server| Address::new(server, *port));
                Connection::find(address.as_ref(), *timeout, *retries).map_err(failed)?
            }
        };
        Ok(self.connection.insert(connection))
    }

    /// Runs one method.
    fn run(&mut self, method: &str, words: &[String]) -> Result<(), Failure> {
        if let Some(verb) = ConfigVerb::of(method) {
            return self.config(verb, method, words);
        }
        let request = match arguments::parse(method, words) {
            Ok(request) => request,
            Err(UsageError::Help(text)) => return print_line(&text),
            Err(UsageError::Wrong(text)) => return Err(Failure::usage(text)),
        };
        if self.args.dry_run {
            return print_line(&format!("Request:\n{}", pretty(&request.message(SHOWN_ID))));
        }
        let result = self.connection()?.call(&request.method, &request.params).map_err(failed)?;
        self.show(&result, request.prints)
    }

    fn show(&self, result: &Value, prints: Prints) -> Result<(), Failure> {
        let text = if self.args.raw { Some(result.to_string()) } else { render(result, prints) };
        text.map_or(Ok(()), |text| print_line(&text))
    }

    /// The daemon's methods.
    fn list(&mut self) -> Result<(), Failure> {
        let listed = self.connection()?.call("rpc_get_methods", &Map::new()).map_err(failed)?;
        let mut names: Vec<&str> =
            listed.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        names.sort_unstable();
        print_line(&names.join("\n"))
    }

    /// Checks that the daemon has all the methods of a script: the error names all missing ones, before the
    /// first line is run. Requests for help are not checked. If a daemon does not list its methods, each
    /// line is simply tried.
    fn look_at_script(&mut self, lines: &[Line]) -> Result<(), Failure> {
        if self.args.dry_run {
            return Ok(());
        }
        let connection = self.connection()?;
        let known = match config::methods(connection, false) {
            Err(ConfigError::Client(ClientError::Refused { .. })) => return Ok(()),
            known => known.map_err(config_failed)?,
        };
        let (mut unknown, mut kept) = (Vec::new(), Vec::new());
        let registry = Registry::new();
        let asks_help =
            |words: &[String]| words.iter().any(|word| word == "-h" || word == "--help");
        let calls = lines
            .iter()
            .filter(|(_, words)| ConfigVerb::of(&words[0]).is_none() && !asks_help(words));
        for (number, words) in calls {
            let method = words[0].as_str();
            let current = current_name(method);
            if !known.contains(method) && !known.contains(current) {
                unknown.push(match absent(method) {
                    Some(found) => {
                        format!("line {number}: {}", found.sentence(method, THIS_DAEMON))
                    }
                    None => format!("line {number}: {method}: {THIS_DAEMON} has no such method"),
                });
            } else if registry.has_no_effect(current, None) {
                kept.push((absent(current).map_or("", |found| found.part.name), method));
            }
        }
        if !unknown.is_empty() {
            let unknown = unknown.join("; ");
            return Err(Failure::runtime(format!("no line was run: {unknown}")));
        }
        if !kept.is_empty() && config::is_ours(connection).map_err(config_failed)? {
            note_kept(summary(kept).as_deref());
        }
        Ok(())
    }

    fn run_script(&mut self, lines: &[Line]) -> Result<(), Failure> {
        self.look_at_script(lines)?;
        if self.args.batch_mode {
            return self.run_batch(lines);
        }
        for (number, words) in lines {
            let (method, words) = (&words[0], &words[1..]);
            self.run(method, words).map_err(|failure| at_line(*number, &failure))?;
        }
        Ok(())
    }

    fn run_batch(&mut self, lines: &[Line]) -> Result<(), Failure> {
        let mut requests = Vec::with_capacity(lines.len());
        for (number, words) in lines {
            let request = arguments::parse(&words[0], &words[1..])
                .map_err(|error| at_line(*number, &Failure::usage(error)))?;
            requests.push(request);
        }
        if self.args.dry_run {
            let each = requests.iter().zip(SHOWN_ID..);
            let shown = each.map(|(request, id)| request.message(id)).collect();
            return print_line(&format!("Request:\n{}", pretty(&shown)));
        }
        let results = self.connection()?.call_batch(&requests).map_err(failed)?;
        let mut refused: Vec<String> = Vec::new();
        for ((result, request), (number, _)) in results.into_iter().zip(&requests).zip(lines) {
            match result {
                Ok(result) => self.show(&result, batch_form(request))?,
                Err(refusal) => {
                    refused.push(format!("line {number}: {}: {refusal}", request.method))
                }
            }
        }
        if refused.is_empty() { Ok(()) } else { Err(Failure::runtime(refused.join("; "))) }
    }

    fn config(&mut self, verb: ConfigVerb, method: &str, words: &[String]) -> Result<(), Failure> {
        let options = ConfigOptions::read(method, words)?;
        let connection = self.connection()?;
        match verb {
            ConfigVerb::Save => {
                let parts = options.parts.as_deref();
                let saved = config::save(connection, parts, options.with_batches);
                print_line(&indented(&saved.map_err(config_failed)?, options.indent))
            }
            ConfigVerb::SavePart => {
                let name = options.name.ok_or_else(|| missing(method, "-n NAME"))?;
                let saved = config::save_part(connection, &name, options.with_batches);
                print_line(&indented(&saved.map_err(config_failed)?, options.indent))
            }
            ConfigVerb::Load | ConfigVerb::LoadPart => {
                let (text, from) = read_config(options.json.as_deref())?;
                let sections = match verb {
                    ConfigVerb::Load => configuration::parse(&text),
                    _ => configuration::parse_part(&text).map(|part| vec![part]),
                };
                let sections =
                    sections.map_err(|error| Failure::runtime(format!("{from}: {error}")))?;
                let loaded = config::load(connection, &sections);
                let Loaded { skipped, kept } = loaded.map_err(config_failed)?;
                note_kept(kept.as_deref());
                if skipped.is_empty() {
                    return Ok(());
                }
                let names = skipped.join(", ");
                Err(Failure::runtime(format!(
                    "not loaded, the daemon is past their state: {names}"
                )))
            }
        }
    }
}

/// The methods that consist of several requests.
#[derive(Clone, Copy)]
enum ConfigVerb {
    Save,
    SavePart,
    Load,
    LoadPart,
}

impl ConfigVerb {
    fn of(method: &str) -> Option<Self> {
        Some(match method {
            "save_config" => Self::Save,
            "save_subsystem_config" => Self::SavePart,
            "load_config" => Self::Load,
            "load_subsystem_config" => Self::LoadPart,
            _ => return None,
        })
    }
}

/// The options of these methods.
struct ConfigOptions {
    indent: i32,
    parts: Option<Vec<String>>,
    name: Option<String>,
    json: Option<String>,
    with_batches: bool,
}

impl ConfigOptions {
    fn read(method: &str, words: &[String]) -> Result<Self, Failure> {
        let mut options =
            Self { indent: 2, parts: None, name: None, json: None, with_batches: false };
        let loads = method.starts_with("load");
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().cloned().ok_or_else(|| missing(method, word));
            match (word.replace('_', "-").as_str(), loads) {
                ("-i" | "--indent", false) => {
                    let number = value()?;
                    options.indent = number.parse().map_err(|_| wrong(method, &number))?;
                }
                ("-s" | "--subsystems", false) => {
                    options.parts = Some(value()?.split(',').map(str::to_owned).collect());
                }
                ("-n" | "--name", false) => options.name = Some(value()?),
                ("--with-batches", false) => options.with_batches = true,
                ("--no-with-batches", false) => options.with_batches = false,
                // Old names of methods are always included.
                ("-i" | "--include-aliases", true) => {}
                ("-j" | "--json-conf", true) => options.json = Some(value()?),
                _ => return Err(wrong(method, word)),
            }
        }
        Ok(options)
    }
}

fn missing(method: &str, what: &str) -> Failure {
    Failure::usage(format!("{method}: {what} is missing"))
}

fn wrong(method: &str, word: &str) -> Failure {
    Failure::usage(format!("{method}: '{word}' is not understood"))
}

/// A configuration from a file, from the argument itself, or from standard input; and its source.
fn read_config(given: Option<&str>) -> Result<(Vec<u8>, &str), Failure> {
    let (text, from) = match given {
        None => {
            let mut text = Vec::new();
            (std::io::stdin().lock().read_to_end(&mut text).map(|_| text), "standard input")
        }
        Some(given) if Path::new(given).exists() => (std::fs::read(given), given),
        Some(given) => (Ok(given.as_bytes().to_vec()), "the argument"),
    };
    let text = text.map_err(|error| Failure::runtime(format!("{from}: {error}")))?;
    Ok((text, from))
}

/// JSON with this many spaces of indentation; in one line if `spaces` is negative.
fn indented(value: &Value, spaces: i32) -> String {
    let Ok(spaces) = usize::try_from(spaces) else { return value.to_string() };
    // `pretty` uses two spaces; only the beginning of a line is indentation.
    let lines = pretty(value).lines().map(str::to_owned).collect::<Vec<_>>();
    let widen = |line: &String| {
        let text = line.trim_start_matches(' ');
        format!("{:width$}{text}", "", width = (line.len() - text.len()) / 2 * spaces)
    };
    lines.iter().map(widen).collect::<Vec<_>>().join("\n")
}

/// The form in which a batch prints a result: that of each call, as in `rpc.py`.
fn batch_form(request: &Request) -> Prints {
    match request.prints {
        Prints::Nothing | Prints::Json => Prints::Json,
        other => other,
    }
}

fn at_line(number: usize, failure: &Failure) -> Failure {
    Failure { code: failure.code, message: format!("line {number}: {}", failure.message) }
}

/// Tells users, but not programs, which calls the daemon keeps without using them.
fn note_kept(kept: Option<&str>) {
    if let Some(kept) = kept {
        shell::note(&format!("kept without effect, as the daemon has no such parts: {kept}"));
    }
}

fn failed(error: ClientError) -> Failure {
    match error {
        ClientError::Connect { .. } | ClientError::Nowhere(_) => Failure::connect(error),
        other => Failure::runtime(other),
    }
}

fn config_failed(error: ConfigError) -> Failure {
    match error {
        ConfigError::Client(error) => failed(error),
        other => Failure::runtime(other),
    }
}

/// Prints a line on standard output. A reader that closes the pipe early is no failure.
fn print_line(text: &str) -> Result<(), Failure> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::runtime(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}
