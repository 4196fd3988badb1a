//! Options of one letter on the verbs of nvme-cli, where one letter can mean two things.
//!
//! nvme-cli gives letters to the options of each verb, and `nvme connect` gives the same letters to those of a
//! connection: `-s` is `--start-block` of `write-zeroes`, and it is the port. So a line has one of two forms. With
//! DEVICE, every letter is nvme-cli's, and connections have no letters. With an address, the letters are those of a
//! connection, and a letter that nvme-cli gives another meaning is refused. Neither form reads a line of the other one.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory as _, FromArgMatches as _};
use raceline_proto::nvme::Nqn;

use super::examples::with_examples;
use super::{Cli, values};

/// The letters of nvme-cli, versions 2 and 3, by verb: an option of the verb with that long name does what it does
/// there. The others are refused.
const VERBS: [(&str, &str); 18] = [
    ("list", "t=timeout"),
    ("list-subsys", "t=timeout"),
    ("id-ctrl", "V=vendor-specific b=raw-binary H=human-readable t=timeout"),
    ("id-ns", "V=vendor-specific b=raw-binary n=namespace-id H=human-readable t=timeout"),
    (
        "get-log",
        "i=log-id l=log-len a=aen n=namespace-id b=raw-binary L=lpo s=lsp S=lsi r=rae y=csi O=ot x=xfer-len \
         U=uuid-index H=human-readable I=ish t=timeout",
    ),
    ("smart-log", "n=namespace-id b=raw-binary H=human-readable t=timeout"),
    (
        "error-log",
        "e=log-entries b=raw-binary V=valid-entry S=sqid s=status l=lba n=namespace-id t=trtype c=csi O=opcode \
         H=human-readable",
    ),
    (
        "create-ns",
        "s=nsze c=ncap f=flbas d=dps m=nmic a=anagrp-id i=nvmset-id e=endg-id y=csi l=lbstm n=nphndls b=block-size \
         t=timeout S=nsze-si C=ncap-si z=azr r=rar O=ror u=rnumzrwa p=phndls I=ish",
    ),
    ("attach-ns", "n=namespace-id c=controllers I=ish t=timeout"),
    ("detach-ns", "n=namespace-id c=controllers I=ish t=timeout"),
    ("delete-ns", "n=namespace-id t=timeout I=ish"),
    ("format", "n=namespace-id l=lbaf b=block-size s=ses p=pil i=pi m=ms r=reset t=timeout I=ish"),
    ("ns-rescan", "t=timeout"),
    ("reset", "t=timeout"),
    ("flush", "n=namespace-id t=timeout"),
    ("dsm", "n=namespace-id a=ctx-attrs b=blocks s=slbs d=ad w=idw r=idr c=cdw11 t=timeout"),
    (
        "write-zeroes",
        "s=start-block c=block-count r=ref-tag p=prinfo m=app-tag-mask a=app-tag d=deac l=limited-retry \
         f=force-unit-access n=namespace-id S=storage-tag C=storage-tag-check T=dir-type D=dir-spec \
         Z=namespace-zeroes t=timeout",
    ),
    (
        "compare",
        "s=start-block c=block-count b=block-size z=data-size y=metadata-size r=ref-tag d=data M=metadata p=prinfo \
         m=app-tag-mask a=app-tag l=limited-retry f=force-unit-access T=dir-type S=dir-spec D=dsm V=show-command \
         w=dry-run t=latency g=storage-tag C=storage-tag-check n=namespace-id",
    ),
];

/// The verbs that copy blocks take no DEVICE, so that no line of nvme-cli is one of theirs.
const COPIES: [(&str, &str); 2] = [("read", "c=block-count"), ("write", "c=block-count")];

/// Letters that say where a controller is. Their values tell them from nvme-cli's: an address, a name, a transport.
const PLACE: [char; 3] = ['a', 'n', 't'];
/// The field of the option for the form of the output: its letter is the same everywhere.
const FORMAT: &str = "format";
/// What an option without its value has for one; [`refusal`] finds it.
const NO_VALUE: &str = "(none)";
/// The name of the value of an option of [`refused`].
const REFUSED_VALUE: &str = "VALUE";
/// The field of `--namespace-id`.
const NAMESPACE: &str = "namespace_id";

/// The command line, as help and completions have it too.
pub(crate) fn definition() -> Command {
    let command = VERBS.into_iter().fold(with_copies(), |command, (verb, rows)| {
        command.mut_subcommand(verb, |verb| {
            let remark = remark(&verb, rows);
            with_address(verb.disable_version_flag(true), rows).after_help(remark)
        })
    });
    with_examples(command)
}

/// The command line with the letters of the verbs that copy blocks.
fn with_copies() -> Command {
    COPIES.into_iter().fold(Cli::command(), |command, (verb, rows)| {
        command.mut_subcommand(verb, |verb| with_address(verb, rows))
    })
}

/// The command line where it has DEVICE.
pub(super) fn with_devices() -> Command {
    VERBS.into_iter().fold(with_copies(), |command, (verb, rows)| {
        command.mut_subcommand(verb, |verb| with_device(verb.disable_version_flag(true), rows))
    })
}

/// Reads a command line; the first word is the program.
pub(crate) fn parse_from<I>(words: I) -> Result<Cli, clap::Error>
where
    I: IntoIterator,
    I::Item: Into<OsString>,
{
    let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
    let is_of_nvme = |word: &OsString| VERBS.iter().any(|(verb, _)| word.to_str() == Some(verb));
    let of_device = match words.iter().any(is_of_nvme).then(|| read(with_devices(), &words)) {
        Some(Ok(cli)) => return Ok(cli),
        Some(Err(error)) => Some(error),
        None => None,
    };
    let error = match read(definition(), &words) {
        Ok(cli) => return Ok(cli),
        Err(error) => error,
    };
    // The line is of neither form: what counts is the one that was meant. Help is the same for both.
    let meant = of_device.filter(|of_device| {
        error.use_stderr() && of_device.kind() != ErrorKind::UnknownArgument && has_device(&words)
    });
    Err(meant.unwrap_or(error))
}

fn read(mut definition: Command, words: &[OsString]) -> Result<Cli, clap::Error> {
    let matches = definition.try_get_matches_from_mut(words);
    let matches = matches.map_err(|error| match of_refused(&error) {
        Some(text) => clap::Error::raw(ErrorKind::ValueValidation, text).format(&mut definition),
        None => error,
    })?;
    if let Some(text) = refusal(&definition, &matches) {
        let error = clap::Error::raw(ErrorKind::ValueValidation, text);
        return Err(error.format(&mut definition));
    }
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut definition))
}

/// What to say of an option of [`refused`] with a value: the value itself is not what is wrong.
fn of_refused(error: &clap::Error) -> Option<String> {
    let (Some(ContextValue::String(option)), Some(ContextValue::String(value))) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue))
    else {
        return None;
    };
    let letter = option.strip_suffix(&format!(" [<{REFUSED_VALUE}>]"))?;
    let why = std::error::Error::source(error)?;
    Some(format!("{letter} {value}: {why}"))
}

/// Why a line is refused that has an option of [`refused`] without a value.
fn refusal(definition: &Command, matches: &clap::ArgMatches) -> Option<String> {
    let (verb, matches) = matches.subcommand()?;
    let verb = definition.find_subcommand(verb)?;
    let arg = verb.get_arguments().find(|arg| {
        let id = arg.get_id().as_str();
        // Only a row of the table has this letter in it.
        id.contains('=') && matches.contains_id(id)
    })?;
    let letter = arg.get_short().unwrap_or_default();
    Some(format!("-{letter}: {}", arg.get_help()?))
}

/// Whether the line has DEVICE where nvme-cli has it, or else does not say where the controller is.
fn has_device(words: &[OsString]) -> bool {
    const OPTIONS: [&str; 6] = ["-a", "--traddr", "--nqn", "-J", "--config", "nqn."];
    let mut words = words.iter().filter_map(|word| word.to_str());
    let mut of_verb =
        words.by_ref().skip_while(|word| VERBS.iter().all(|(verb, _)| word != verb)).skip(1);
    let first = of_verb.next().unwrap_or_default();
    let is_of_place = |word: &str| OPTIONS.iter().any(|option| word.starts_with(option));
    !first.starts_with('-') || !(is_of_place(first) || of_verb.any(is_of_place))
}

/// The letters of a verb: letter, long name, and both as they stand in the table.
fn rows(rows: &'static str) -> impl Iterator<Item = (char, &'static str, &'static str)> {
    rows.split_whitespace().filter_map(|row| {
        let (letter, long) = row.split_once('=')?;
        Some((letter.chars().next()?, long, row))
    })
}

/// The field of an option of the verb itself, if it has that option.
fn field(verb: &Command, long: &str) -> Option<String> {
    let id = long.replace('-', "_");
    verb.get_arguments().any(|arg| arg.get_id() == &*id).then_some(id)
}

/// A verb on DEVICE: letters are nvme-cli's alone.
fn with_device(verb: Command, letters: &'static str) -> Command {
    let bare = verb.mut_args(|arg| if arg.get_id() == FORMAT { arg } else { arg.short(None) });
    let bare = bare.mut_arg("device", |arg| arg.required(true));
    rows(letters).fold(bare, |verb, (letter, long, row)| match field(&verb, long) {
        // `connect` has -N for it.
        Some(id) if id == NAMESPACE => verb.mut_arg(id, |arg| arg.short(letter).short_alias('N')),
        Some(id) => verb.mut_arg(id, |arg| arg.short(letter)),
        None => verb.arg(refused(row, letter, Why::Unknown(long)).long(long)),
    })
}

/// A verb on an address: letters are those of a connection, unless nvme-cli means something else by them.
fn with_address(verb: Command, letters: &'static str) -> Command {
    let is_of_namespace = verb.get_arguments().any(|arg| arg.get_id() == NAMESPACE);
    let verb = match is_of_namespace {
        true => verb.mut_arg("nqn", |arg| arg.value_parser(nqn_and_no_number)),
        false => verb,
    };
    rows(letters).fold(verb, |verb, (letter, long, row)| {
        let taken = verb.get_arguments().find(|arg| arg.get_short() == Some(letter));
        let taken = taken
            .map(|arg| (arg.get_id().to_string(), arg.get_long().unwrap_or_default().to_owned()));
        match (taken, field(&verb, long)) {
            (Some((id, _)), Some(own)) if id == own => verb,
            (Some((id, other)), _) if !PLACE.contains(&letter) => {
                let why = Why::TwoMeanings { other, long };
                verb.mut_arg(id, |arg| arg.short(None)).arg(refused(row, letter, why))
            }
            (None, Some(own)) => verb.mut_arg(own, |arg| arg.short(letter)),
            (None, None) => verb.arg(refused(row, letter, Why::Unknown(long)).long(long)),
            (Some(_), _) => verb,
        }
    })
}

/// Why an option is refused.
#[derive(Clone)]
enum Why {
    /// The letter is that of two options: of a connection, and of the verb in nvme-cli.
    TwoMeanings { other: String, long: &'static str },
    /// Raceline lacks it.
    Unknown(&'static str),
}

impl Why {
    /// What is wrong, and what to write instead.
    fn text(&self, value: Option<&str>) -> String {
        match self {
            Self::TwoMeanings { other, long } => {
                let value = value.map(|value| format!(" {value}")).unwrap_or_default();
                format!(
                    "for a connection it is --{other}, for nvme-cli --{long}: write --{other}{value} or --{long}{value}"
                )
            }
            Self::Unknown(long) => unknown(long),
        }
    }
}

fn unknown(long: &str) -> String {
    let instead = match long {
        "human-readable" => ": id-ctrl, id-ns, smart-log and error-log say what bits mean",
        "ish" => ": it is about NVMe-MI, by which no controller is managed here",
        "timeout" => ": the host gives a command 30 s",
        _ => "",
    };
    format!("it is --{long} of nvme-cli, which Raceline does not have here{instead}")
}

/// An option that is there to be refused, with or without a value.
fn refused(id: &'static str, letter: char, why: Why) -> Arg {
    let help = why.text(None);
    let refuse = move |value: &str| match value == NO_VALUE {
        true => Ok(value.to_owned()),
        false => Err(why.text(Some(value))),
    };
    Arg::new(id)
        .short(letter)
        .hide(true)
        .help(help)
        .num_args(0..=1)
        .value_name(REFUSED_VALUE)
        .default_missing_value(NO_VALUE)
        .value_parser(refuse)
}

/// What help says about letters with DEVICE.
fn remark(verb: &Command, letters: &'static str) -> String {
    let known: Vec<String> = rows(letters)
        .filter(|(_, long, _)| field(verb, long).is_some())
        .map(|(letter, long, _)| format!("-{letter} --{long}"))
        .collect();
    let known = if known.is_empty() { "there are none".to_owned() } else { known.join(", ") };
    format!(
        "With DEVICE, options of one letter are those of nvme-cli: {known}. With an address, they are those of a \
         connection, and letters that mean something else to nvme-cli are refused."
    )
}

/// The name of a subsystem, where a number would be a namespace in nvme-cli.
fn nqn_and_no_number(text: &str) -> Result<Nqn, String> {
    match super::nvme::number(text) {
        Ok(_) => {
            Err("it is the name of a subsystem: a namespace is named by -N, --namespace-id"
                .to_owned())
        }
        Err(_) => values::nqn(text),
    }
}

#[cfg(test)]
mod tests {
    use raceline_proto::nvme::NamespaceId;

    use super::*;
    use crate::cli::Verb;

    const ADDRESS: &str = "-a 192.0.2.1 -n nqn.2014-08.org.example:1";

    fn parse(line: &str) -> Result<Verb, String> {
        let words: Vec<String> = format!("raceline {line}").split(' ').map(str::to_owned).collect();
        let cli = parse_from(&words);
        cli.map(|cli| cli.verb).map_err(|error| crate::failure::usage_line(&error, &words))
    }

    /// What of the verb itself a line says, in one text.
    fn meaning(line: &str) -> String {
        let verb = parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        match verb {
            Verb::List(args) | Verb::ListSubsys(args) => {
                format!("{:?}", args.device.named.format())
            }
            Verb::IdCtrl(args) => {
                format!("{:?} {}", args.device.named.format(), args.decode.human_readable)
            }
            Verb::NsRescan(args) | Verb::Reset(args) => format!("{:?}", args.device.named.format()),
            Verb::IdNs(args) => {
                let human_readable = args.decode.human_readable;
                format!("{:?} {human_readable}", args.namespace.namespace_id)
            }
            Verb::Flush(args) => format!("{:?}", args.namespace_id),
            Verb::GetLog(args) => format!(
                "{} {} {:?} {} {} {} {}",
                args.log_id,
                args.log_len,
                args.namespace_id,
                args.lpo,
                args.lsp,
                args.rae,
                args.csi
            ),
            Verb::SmartLog(args) => {
                format!("{:?} {}", args.namespace_id, args.decode.human_readable)
            }
            Verb::ErrorLog(args) => {
                format!("{} {}", args.log_entries, args.decode.human_readable)
            }
            Verb::CreateNs(args) => format!(
                "{:?} {:?} {:?} {:?} {:?} {:?} {} {} {} {} {}",
                args.nsze,
                args.ncap,
                args.nsze_si,
                args.ncap_si,
                args.flbas,
                args.block_size,
                args.dps,
                args.nmic,
                args.anagrp_id,
                args.nvmset_id,
                args.csi
            ),
            Verb::AttachNs(args) | Verb::DetachNs(args) => {
                format!("{} {:?}", args.namespace_id, args.controllers)
            }
            Verb::DeleteNs(args) => args.namespace_id.to_string(),
            Verb::Format(args) => format!(
                "{:?} {:?} {:?} {} {} {} {}",
                args.namespace.namespace_id,
                args.lbaf,
                args.block_size,
                args.ses,
                args.pil,
                args.pi,
                args.ms
            ),
            Verb::Dsm(args) => {
                format!(
                    "{:?} {:?} {:?} {}",
                    args.namespace.namespace_id, args.slbs, args.blocks, args.ad
                )
            }
            Verb::WriteZeroes(args) => format!(
                "{:?} {} {} {}",
                args.namespace.namespace_id, args.start_block, args.block_count, args.deac
            ),
            Verb::Compare(args) => format!(
                "{} {:?} {:?} {} {}",
                args.start_block,
                args.block_count,
                args.data_size,
                args.data.display(),
                args.latency
            ),
            _ => unreachable!("{line}"),
        }
    }

    /// Lines in nvme-cli's letters, and what nvme-cli takes them for.
    const LINES: [(&str, &str); 31] = [
        ("list -o json", "Json"),
        ("list-subsys Nvme0 -o normal", "Normal"),
        ("id-ctrl Nvme0 -b", "Binary false"),
        ("id-ctrl Nvme0 -o json", "Json false"),
        ("id-ctrl Nvme0 -H", "Normal true"),
        ("id-ns Nvme0n1", "None false"),
        ("id-ns Nvme0 -n 0x10", "Some(NamespaceId(16)) false"),
        ("id-ns -n 3 Nvme0", "Some(NamespaceId(3)) false"),
        ("id-ns -H Nvme0n1", "None true"),
        (
            "get-log Nvme0 -i 2 -l 512 -n 0xffffffff -L 4 -s 1 -r -y 3",
            "2 512 Some(NamespaceId(4294967295)) 4 1 true 3",
        ),
        ("smart-log Nvme0 -n 1", "Some(NamespaceId(1)) false"),
        ("smart-log Nvme0 --human-readable", "None true"),
        ("error-log Nvme0 -e 7", "7 false"),
        ("error-log Nvme0 -e 7 -H", "7 true"),
        (
            "create-ns Nvme0 -s 100 -c 50 -f 1 -d 2 -m 1 -a 4 -i 5 -y 6",
            "Some(100) Some(50) None None Some(1) None 2 1 4 5 6",
        ),
        (
            "create-ns Nvme0 -S 1G -C 1G -b 512",
            "None None Some(1000000000) Some(1000000000) None Some(512) 0 0 0 0 0",
        ),
        ("attach-ns Nvme0 -n 1 -c 3,4", "1 [3, 4]"),
        ("detach-ns Nvme0 -n 2 -c 0x1", "2 [1]"),
        ("delete-ns Nvme0 -n 1", "1"),
        ("format Nvme0n1 -l 1 -s 1 -p 1 -i 2 -m 1 --force", "None Some(1) None 1 1 2 1"),
        ("format Nvme0 -n 2 -b 4096 -s 2 --force", "Some(NamespaceId(2)) None Some(4096) 2 0 0 0"),
        ("ns-rescan Nvme0 -o json", "Json"),
        ("reset Nvme0", "Normal"),
        ("flush Nvme0 -n 1", "Some(NamespaceId(1))"),
        ("dsm Nvme0 -n 1 -s 0,64 -b 8,16 -d", "Some(NamespaceId(1)) [0, 64] [8, 16] true"),
        ("write-zeroes Nvme0n1 -s 100 -c 7", "None 100 7 false"),
        ("write-zeroes Nvme0 -n 2 -c 0 -s 0x10 -d", "Some(NamespaceId(2)) 16 0 true"),
        ("write-zeroes -c7 -s100 -d Nvme0n1", "None 100 7 true"),
        ("compare Nvme0n1 -s 5 -c 7 -z 4096 -d file", "5 Some(7) Some(4096) file false"),
        ("compare Nvme0n1 -t -s 5 -d file", "5 None None file true"),
        ("compare Nvme0n1 --start-block=5 --block-count=7", "5 Some(7) None - false"),
    ];

    #[test]
    fn with_a_device_letters_mean_what_they_mean_to_nvme_cli() {
        for (line, wanted) in LINES {
            assert_eq!(meaning(line), wanted, "{line}");
        }
        for (verb, rows) in VERBS {
            let tried = LINES.iter().any(|(line, _)| line.split(' ').next() == Some(verb));
            assert!(tried, "no line of {verb}, which has {rows}");
        }
    }

    /// Every letter of nvme-cli alone: an option of the verb by that name takes it, or it is refused by that name.
    #[test]
    fn no_letter_of_nvme_cli_is_taken_for_another_option() {
        let devices = with_devices();
        for (verb, letters) in VERBS {
            let sub = devices.find_subcommand(verb).unwrap();
            for (letter, long, row) in rows(letters) {
                let arg = sub.get_arguments().find(|arg| arg.get_short() == Some(letter)).unwrap();
                let id = arg.get_id().as_str();
                assert!(id == row || id == long.replace('-', "_"), "{verb} -{letter}: {id}");
                if id == row {
                    let error = parse(&format!("{verb} Nvme0 -{letter} 1")).unwrap_err();
                    assert!(error.contains(&format!("--{long}")), "{verb}: {error}");
                    let error = parse(&format!("{verb} Nvme0 --{long}=1")).unwrap_err();
                    assert!(error.contains("does not have"), "{verb} --{long}: {error}");
                }
            }
        }
        // Only what is nvme-cli's, -o and -N have a letter there.
        for (verb, letters) in VERBS {
            for arg in devices.find_subcommand(verb).unwrap().get_arguments() {
                let Some(letter) = arg.get_short() else { continue };
                let is_known = letter == 'o' || rows(letters).any(|(known, ..)| known == letter);
                assert!(is_known, "{verb} -{letter}");
            }
        }
    }

    #[test]
    fn with_an_address_a_letter_that_has_two_meanings_is_refused() {
        for (line, words) in [
            ("write-zeroes -s 100", ["--trsvcid", "--start-block"]),
            (
                "write-zeroes --start-block 1 --block-count 0 -c 7",
                ["--reconnect-delay", "--block-count"],
            ),
            ("write-zeroes --start-block 1 --block-count 0 -d", ["--disable-sqflow", "--deac"]),
            ("dsm --slbs 0 --blocks 8 --ad -d", ["--disable-sqflow", "--ad"]),
            ("compare -s 5", ["--trsvcid", "--start-block"]),
            ("compare -c 7", ["--reconnect-delay", "--block-count"]),
            ("format --force -l 1", ["--ctrl-loss-tmo", "--lbaf"]),
            ("format --force -s 1", ["--trsvcid", "--ses"]),
            ("format --force -b 512", ["--raw-binary", "--block-size"]),
            ("dsm -s 0", ["--trsvcid", "--slbs"]),
            ("dsm -b 8", ["--raw-binary", "--blocks"]),
            ("create-ns -s 100", ["--trsvcid", "--nsze"]),
            ("create-ns -c 100", ["--reconnect-delay", "--ncap"]),
            ("get-log -i 2 -l 512", ["--ctrl-loss-tmo", "--log-len"]),
            ("attach-ns -N 1 -c 1", ["--reconnect-delay", "--controllers"]),
            ("read --blocks 1 -c 7", ["--reconnect-delay", "--block-count"]),
            ("write -c 7", ["--reconnect-delay", "--block-count"]),
        ] {
            let error = parse(&format!("{line} {ADDRESS}")).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{line}: {error}");
        }
        // What to write instead is ready to be copied, on every verb where nvme-cli's -s is not the port.
        let verbs =
            VERBS.iter().filter(|(_, letters)| rows(letters).any(|(letter, ..)| letter == 's'));
        let mut count = 0;
        for (verb, letters) in verbs {
            let (_, long, _) = rows(letters).find(|(letter, ..)| *letter == 's').unwrap();
            let error = parse(&format!("{verb} -s 14420 {ADDRESS}")).unwrap_err();
            let text = format!(
                "-s 14420: for a connection it is --trsvcid, for nvme-cli --{long}: write --trsvcid 14420 or --{long} 14420 "
            );
            assert!(error.starts_with(&text), "{error}");
            count += 1;
        }
        assert_eq!(count, 7);
        for line in [
            "id-ctrl -s 4421 -k 10 -l 60",
            "id-ns -s 4421 -N 1",
            "write-zeroes --trsvcid 4421 --start-block 1 --block-count 0",
        ] {
            parse(&format!("{line} {ADDRESS}")).unwrap();
        }
        let Verb::IdNs(args) = parse(&format!("id-ns -s 4421 -N 3 {ADDRESS}")).unwrap() else {
            unreachable!()
        };
        assert_eq!(
            (args.namespace.device.connect.address.port, args.namespace.namespace_id),
            (4421, Some(NamespaceId(3)))
        );
        let error = parse("id-ns -a 192.0.2.1 -n 1").unwrap_err();
        assert!(error.contains("-N, --namespace-id"), "{error}");
    }

    #[test]
    fn what_destroys_has_no_default_place_and_devices_take_no_port() {
        for line in
            ["write-zeroes Nvme0n1", "write-zeroes Nvme0n1 -s 1", "write-zeroes Nvme0n1 -c 1"]
        {
            assert!(parse(line).unwrap_err().contains("required"), "{line}");
            let line = line
                .replace("Nvme0n1", ADDRESS)
                .replace("-s", "--start-block")
                .replace("-c", "--block-count");
            assert!(parse(&line).unwrap_err().contains("required"), "{line}");
        }
        for option in ["--trsvcid 4421", "--transport rdma", "--traddr 192.0.2.1", "-a 192.0.2.1"] {
            let error = parse(&format!("id-ctrl Nvme0 {option}")).unwrap_err();
            assert!(error.contains("cannot be used with"), "{option}: {error}");
        }
        let file = parse("smart-log /dev/nvme0").unwrap_err();
        assert!(file.contains("nvme-cli's") && file.contains("-a ADDRESS"), "{file}");
        let bits = parse("get-log Nvme0 -i 2 --log-len 4 -H").unwrap_err();
        assert!(bits.contains("--human-readable of nvme-cli"), "{bits}");
        // With an address as well: nvme-cli has no other meaning for it, and connections have none.
        for verb in ["id-ctrl", "id-ns", "smart-log", "error-log"] {
            parse(&format!("{verb} {ADDRESS} -H")).unwrap();
        }
        // Letters of all verbs of nvme-cli 2.9 and 3 that a connection has, too.
        for (line, long) in [
            ("id-ctrl Nvme0 -t 5000", "--timeout"),
            ("flush Nvme0n1 -t 5000", "--timeout"),
            ("list -t 5000", "--timeout"),
            ("delete-ns Nvme0 -n 1 -I", "--ish"),
            ("get-log Nvme0 -i 2 -l 4 -I", "--ish"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(long), "{line}: {error}");
        }
        let host = parse(&format!("format --force {ADDRESS} -I 0")).unwrap_err();
        assert!(host.contains("--hostid") && host.contains("--ish"), "{host}");
        // What says who this host is has its letter as long as nvme-cli has no other meaning for it.
        parse("id-ctrl Nvme0 -S key --hostnqn nqn.2014-08.org.example:h").unwrap();
        assert!(parse("create-ns Nvme0 -S key").unwrap_err().contains("--nsze-si"));
    }
}
