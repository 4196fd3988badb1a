//! The registry of methods: name, old names, state, role, parameters; and how one is called.
//!
//! The methods themselves stand in `methods/`, which also has `Registry::new`.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::absent::{US, absent};
use crate::allowance::Allowance;
use crate::error::{RpcError, code};
use crate::manager::history::{self, Caller};
use crate::manager::{Manager, Phase};
use crate::masked::{masked, may_hold_secret};
use crate::params;
use crate::role::{Peer, Role, Via};
use crate::schema::schema;
use crate::similar::similar;

/// When a method may be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum States {
    /// Before framework_start_init only.
    Startup,
    /// After it only.
    Runtime,
    /// At any time.
    Both,
}

impl States {
    /// Whether a method of these states may be called now.
    #[must_use]
    pub fn admits(self, phase: Phase) -> bool {
        match self {
            Self::Startup => phase == Phase::Startup,
            Self::Runtime => phase == Phase::Runtime,
            Self::Both => true,
        }
    }
}

/// What a method does to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It only reads.
    Read,
    /// It changes something: only admins may call it, and the audit gets a line.
    Change,
}

/// Whether a call of a method changes how anything works.
#[derive(Clone, Copy, Debug)]
pub enum Effect {
    /// It does what it says; docs/RPC.md lists its parameters without effect.
    Obeyed,
    /// It sets options of a part that is not here: they are kept and given back.
    None,
    /// Calls for whose parameters this is true are kept and given back; all others are obeyed.
    NoneFor(fn(&Value) -> bool),
}

impl Effect {
    /// Whether no call of the method has an effect.
    #[must_use]
    pub fn is_none(self) -> bool {
        matches!(self, Self::None)
    }

    /// Whether a call with these parameters has no effect.
    #[must_use]
    pub fn is_none_for(self, params: Option<&Value>) -> bool {
        match self {
            Self::Obeyed => false,
            Self::None => true,
            Self::NoneFor(is_none) => is_none(params.unwrap_or(&Value::Null)),
        }
    }
}

/// What a handler receives beside its parameters.
pub struct Call<'a> {
    /// The manager.
    pub manager: &'a Manager,
    /// All methods.
    pub registry: &'a Registry,
    /// The name under which the method was called.
    pub method: &'a str,
    /// The caller.
    pub peer: Peer,
    /// What the calls of the same request share.
    pub allowance: &'a Allowance<'a>,
}

type Handler = Box<dyn Fn(&Call<'_>, Option<&RawValue>) -> Result<Value, RpcError> + Send + Sync>;

type Check = Box<dyn Fn(Option<&RawValue>) -> Result<(), RpcError> + Send + Sync>;

/// One method.
pub struct Method {
    /// SPDK's name.
    pub name: &'static str,
    /// When it may be called.
    pub states: States,
    /// Whether it changes anything.
    pub access: Access,
    /// The names of its parameters, old ones included.
    pub parameters: &'static [&'static str],
    /// Whether its calls change how anything works.
    pub effect: Effect,
    takes_nothing: bool,
    check: Check,
    handler: Handler,
}

/// All methods.
#[derive(Default)]
pub struct Registry {
    methods: BTreeMap<&'static str, Method>,
    /// Old name to new.
    aliases: BTreeMap<&'static str, &'static str>,
    /// What is said of a method that is not here, where this program is no daemon.
    elsewhere: Option<&'static str>,
}

impl Registry {
    /// No methods, for a process that has few: `text` says of any other one where to look.
    pub(crate) fn elsewhere(text: &'static str) -> Self {
        Self { elsewhere: Some(text), ..Self::default() }
    }

    /// Adds a method that only reads, takes nothing, and tells of something that the manager does not know.
    pub(crate) fn tell(
        &mut self,
        name: &'static str,
        tell: impl Fn() -> Value + Send + Sync + 'static,
    ) {
        self.insert(Method {
            name,
            states: States::Both,
            access: Access::Read,
            parameters: &[],
            effect: Effect::Obeyed,
            takes_nothing: true,
            check: Box::new(|raw| params::decode::<params::NoParams>(raw).map(drop)),
            handler: Box::new(move |_, _| Ok(tell())),
        });
    }

    /// Adds a method that only reads.
    pub fn read<P, R>(
        &mut self,
        name: &'static str,
        states: States,
        handler: fn(&Call<'_>, P) -> Result<R, RpcError>,
    ) where
        P: DeserializeOwned + 'static,
        R: Serialize + 'static,
    {
        self.add(name, states, Access::Read, handler);
    }

    /// Adds a method that changes something.
    pub fn change<P, R>(
        &mut self,
        name: &'static str,
        states: States,
        handler: fn(&Call<'_>, P) -> Result<R, RpcError>,
    ) where
        P: DeserializeOwned + 'static,
        R: Serialize + 'static,
    {
        self.add(name, states, Access::Change, handler);
    }

    /// Adds a method of SPDK that sets options of a part that is not here: they are kept. SPDK accepts some
    /// of them only before the start; options without effect may be set at any time.
    pub fn keep(
        &mut self,
        name: &'static str,
        handler: fn(&Call<'_>, Value) -> Result<(), RpcError>,
    ) {
        let known = schema().method(name).expect("a method of SPDK");
        let keep: Handler = Box::new(move |call, raw| {
            handler(call, params::decode_known(known, raw)?)?;
            Ok(Value::Bool(true))
        });
        self.insert(Method {
            name,
            states: States::Both,
            access: Access::Change,
            parameters: &known.names,
            effect: Effect::None,
            takes_nothing: false,
            check: Box::new(move |raw| params::decode_known(known, raw).map(drop)),
            handler: keep,
        });
    }

    /// Marks some calls of a method as having no effect; these are kept all the same.
    pub fn without_effect_for(&mut self, name: &str, is_none: fn(&Value) -> bool) {
        if let Some(method) = self.methods.get_mut(name) {
            method.effect = Effect::NoneFor(is_none);
        }
    }

    /// Adds a name under which older clients call a method.
    pub fn alias(&mut self, old: &'static str, name: &'static str) {
        self.aliases.insert(old, name);
    }

    fn add<P, R>(
        &mut self,
        name: &'static str,
        states: States,
        access: Access,
        handler: fn(&Call<'_>, P) -> Result<R, RpcError>,
    ) where
        P: DeserializeOwned + 'static,
        R: Serialize + 'static,
    {
        let takes_nothing =
            std::any::TypeId::of::<P>() == std::any::TypeId::of::<params::NoParams>();
        let parameters = params::field_names::<P>();
        let handler: Handler = Box::new(move |call, raw| {
            let params = params::decode(raw)?;
            let ignored = ignored(name, parameters, raw);
            if let Some(ignored) = &ignored {
                tracing::warn!(method = name, "{ignored}");
            }
            let result = handler(call, params).map_err(|error| match ignored {
                Some(ignored) => error.also(ignored),
                None => error,
            })?;
            serde_json::to_value(result)
                .map_err(|error| RpcError::internal("Internal error").because(error))
        });
        let check: Check = Box::new(|raw| params::decode::<P>(raw).map(|_| ()));
        let effect = Effect::Obeyed;
        self.insert(Method {
            name,
            states,
            access,
            parameters,
            effect,
            takes_nothing,
            check,
            handler,
        });
    }

    fn insert(&mut self, method: Method) {
        let name = method.name;
        let before = self.methods.insert(name, method);
        assert!(before.is_none(), "method {name} is registered twice");
    }

    /// The method of that name, old or new.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Method> {
        let name = self.aliases.get(name).copied().unwrap_or(name);
        self.methods.get(name)
    }

    /// All methods by name.
    pub fn methods(&self) -> impl Iterator<Item = &Method> {
        self.methods.values()
    }

    /// Old names and what they stand for.
    pub fn aliases(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.aliases.iter().map(|(old, name)| (*old, *name))
    }

    /// Checks whether a method takes these parameters, as far as possible without calling it.
    ///
    /// # Errors
    /// When there is no such method, or a parameter is missing, unknown or of the wrong type.
    pub fn check(&self, name: &str, params: Option<&RawValue>) -> Result<(), RpcError> {
        match self.get(name) {
            Some(method) => (method.check)(params),
            None => Err(self.not_found(name)),
        }
    }

    /// Whether a call is kept and changes nothing.
    #[must_use]
    pub fn has_no_effect(&self, name: &str, params: Option<&Value>) -> bool {
        self.get(name).is_some_and(|method| method.effect.is_none_for(params))
    }

    /// SPDK's answer, with a detail: the part to which the method belongs, if SPDK has it, or else a known
    /// method whose name resembles it, if there is one.
    fn not_found(&self, name: &str) -> RpcError {
        let error = RpcError::new(code::METHOD_NOT_FOUND, "Method not found");
        if let Some(elsewhere) = self.elsewhere {
            return error.because(elsewhere);
        }
        if let Some(found) = absent(name) {
            return error.because(found.sentence(name, US));
        }
        let names = self.methods.keys().chain(self.aliases.keys()).copied();
        match similar(name, names) {
            Some(meant) => error.because(format!("did you mean {meant}?")),
            None => error,
        }
    }

    /// Calls a method.
    ///
    /// # Errors
    /// The method's error; or that there is no such method, or not in this state, or not for this peer.
    pub fn call(
        &self,
        manager: &Manager,
        peer: Peer,
        name: &str,
        params: Option<&RawValue>,
    ) -> Result<Value, RpcError> {
        self.call_within(&Allowance::default(), manager, peer, name, params)
    }

    /// The same for a call of a request that may have more of them.
    pub(crate) fn call_within(
        &self,
        allowance: &Allowance<'_>,
        manager: &Manager,
        peer: Peer,
        name: &str,
        params: Option<&RawValue>,
    ) -> Result<Value, RpcError> {
        let Some(method) = self.get(name) else {
            return Err(self.not_found(name));
        };
        if method.access == Access::Change && peer.role != Role::Admin {
            return Err(RpcError::errno(libc::EPERM).because(match peer.via {
                Via::Socket => format!(
                    "user {} may look but not change; admins are named with --rpc-admin",
                    peer.uid
                ),
                Via::Http => "a call without the token may look but not change: send the token of --http-token, as \
                              Authorization: Bearer TOKEN or as the password"
                    .to_owned(),
            }));
        }
        let phase = match manager.phase() {
            Phase::Starting if peer.is_internal => Phase::Runtime,
            phase => phase,
        };
        if !method.states.admits(phase) {
            return Err(wrong_state(phase));
        }
        if method.takes_nothing && params.is_some() {
            let text = format!("{name} method requires no parameters");
            return Err(RpcError::new(code::INVALID_PARAMS, text));
        }
        let call = Call { manager, registry: self, method: method.name, peer, allowance };
        let result = match method.access {
            Access::Read => (method.handler)(&call, params),
            Access::Change => {
                history::called_by(caller(&call, params), || (method.handler)(&call, params))
            }
        };
        if method.access == Access::Change && !peer.is_internal {
            audit(&call, params, &result);
            if result.is_ok() {
                tell_without_effect(method, params);
            }
        }
        result
    }
}

/// Logs the parameters that a method with a relaxed decoder has ignored, if there are any: a misspelled one
/// would otherwise go unnoticed. They cannot be part of the answer: SPDK's answer to a call that succeeds
/// has no place for them, and its own client accepts no further members.
fn ignored(
    method: &str,
    parameters: &'static [&'static str],
    raw: Option<&RawValue>,
) -> Option<String> {
    let spdk = schema().method(method);
    let names: Vec<String> = params::unknown_names(raw, parameters)
        .into_iter()
        .filter_map(|unknown| {
            let name = unknown.name.escape_debug();
            if spdk.is_some_and(|spdk| spdk.parameter(&unknown.name).is_some()) {
                // SPDK's clients always send some defaults.
                return unknown.asks.then(|| format!("`{name}` has no effect here"));
            }
            Some(match similar(&unknown.name, parameters.iter().copied()) {
                Some(meant) => format!("`{name}` is no parameter (did you mean `{meant}`?)"),
                None => format!("`{name}` is no parameter"),
            })
        })
        .collect();
    (!names.is_empty()).then(|| format!("ignored: {}", names.join(", ")))
}

fn wrong_state(phase: Phase) -> RpcError {
    RpcError::new(
        code::INVALID_STATE,
        match phase {
            Phase::Startup | Phase::Starting => {
                "Method may only be called after framework is initialized using \
                 framework_start_init RPC."
            }
            Phase::Runtime => {
                "Method may only be called before framework is initialized. Use --wait-for-rpc \
                 command line parameter and then issue this RPC before the framework_start_init \
                 RPC."
            }
        },
    )
}

/// Logs that a call from outside has changed nothing. Calls of a start are logged together.
fn tell_without_effect(method: &Method, params: Option<&RawValue>) {
    let is_none = match method.effect {
        Effect::Obeyed => false,
        Effect::None => true,
        // They have been decoded, so they are JSON.
        Effect::NoneFor(_) => {
            let params = params.and_then(|params| serde_json::from_str(params.get()).ok());
            method.effect.is_none_for(params.as_ref())
        }
    };
    if is_none {
        let of = absent(method.name).map(|found| format!(" of SPDK's {}", found.part.text));
        let of = of.unwrap_or_default();
        tracing::warn!("{}: the options{of} are kept, and have no effect here", method.name);
    }
}

/// The longest text of parameters that an audit line shows.
const AUDIT_TEXT_BYTES: usize = 512;

/// Parameters as a line of text, secrets masked.
fn params_line(params: Option<&RawValue>) -> String {
    let text = params.map_or("", RawValue::get);
    let shown = match may_hold_secret(text) {
        true => {
            serde_json::from_str(text).map_or_else(|_| String::new(), |p| masked(&p).to_string())
        }
        false => text.to_owned(),
    };
    let mut text: String = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    text.truncate(text.floor_char_boundary(AUDIT_TEXT_BYTES));
    text
}

/// The caller as the list of changes shows it.
fn caller(call: &Call<'_>, params: Option<&RawValue>) -> Caller {
    let Peer { via, uid, pid, is_internal, .. } = call.peer;
    let via = if is_internal { "raceline" } else { via.word() };
    let (via, method) = (via.to_owned(), call.method.to_owned());
    Caller { via, uid, pid, method, params: params_line(params) }
}

/// One line for each change: who, what, and how it ended.
fn audit(call: &Call<'_>, params: Option<&RawValue>, result: &Result<Value, RpcError>) {
    let text = params_line(params);
    let outcome = result.as_ref().map_or_else(ToString::to_string, |_| "ok".to_owned());
    let Peer { via, uid, pid, .. } = call.peer;
    tracing::info!(
        target: "raceline::audit",
        via = via.word(),
        uid,
        pid,
        method = call.method,
        params = %one_line(&text),
        outcome = %one_line(&outcome),
    );
}

/// The text without what could move a terminal's cursor or begin a line. Quotes stay as they are: whoever writes the text into
/// JSON escapes them, and they would be escaped twice.
fn one_line(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut line, letter| {
        match letter {
            '"' | '\'' | '\\' => line.push(letter),
            _ => line.extend(letter.escape_debug()),
        }
        line
    })
}
