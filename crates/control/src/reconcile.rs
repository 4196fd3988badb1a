//! The differences of two configurations, in any order, and the calls that lead from one to the other.

mod object;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;

pub use object::{Object, Removal};

use crate::configuration;
use crate::masked::masked;
use crate::method::{Access, Registry};
use crate::state::{Call, SubsystemConfig};

/// A text that is not a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// It is not JSON, or has another form.
    #[error(
        "it is no configuration: {0}; expected is {{\"subsystems\": [{{\"subsystem\": ..., \"config\": [...]}}]}}"
    )]
    Form(String),
    /// Two calls make the same object.
    #[error("{0} is made twice: remove one of the two calls")]
    Twice(String),
}

/// The objects that a configuration makes, in its order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    objects: Vec<Object>,
}

/// One difference between the present configuration and the wanted one.
#[derive(Clone, Debug, PartialEq)]
pub enum Difference<'a> {
    /// The object is wanted and missing.
    Missing(&'a Object),
    /// The object is there and not wanted.
    Extra(&'a Object),
    /// The object is there with other parameters.
    Changed {
        /// The present object.
        is: &'a Object,
        /// The wanted object.
        wanted: &'a Object,
        /// The parameters that differ.
        params: Vec<String>,
    },
}

/// One call of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The call.
    pub call: Call,
    /// The configuration has this setting already or cannot change it now: SPDK accepts some settings only
    /// before the start, so a refusal for that reason is no failure of the plan.
    pub is_setting: bool,
}

impl Contents {
    /// Reads a configuration in SPDK's form; members beside `subsystems` are ignored.
    ///
    /// # Errors
    /// When it has another form, or makes an object twice.
    pub fn parse(text: &[u8]) -> Result<Self, FormError> {
        let sections =
            configuration::parse(text).map_err(|error| FormError::Form(error.to_string()))?;
        Self::new(sections)
    }

    /// The objects that these calls make.
    ///
    /// # Errors
    /// When they make an object twice.
    pub fn new(subsystems: Vec<SubsystemConfig>) -> Result<Self, FormError> {
        let mut objects: Vec<Object> = Vec::new();
        let mut places: BTreeMap<Vec<String>, usize> = BTreeMap::new();
        let registry = Registry::new();
        // SPDK saves some calls that make nothing, for example a wait for devices.
        let looks = |call: &Call| {
            registry.get(&call.method).is_some_and(|method| method.access == Access::Read)
        };
        let calls = subsystems.into_iter().flat_map(|subsystem| subsystem.config);
        for call in calls.filter(|call| !looks(call)) {
            let object = Object::new(call);
            match places.get(&object.key) {
                // The last call decides a setting.
                Some(&place) if object.removal == Removal::Setting => objects[place] = object,
                Some(_) => return Err(FormError::Twice(object.to_string())),
                None => {
                    places.insert(object.key.clone(), objects.len());
                    objects.push(object);
                }
            }
        }
        Ok(Self { objects: merge_access(objects) })
    }

    /// Its objects, in its order.
    #[must_use]
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    /// The same without the objects that can be removed: the configuration of a daemon at its start.
    #[must_use]
    pub fn cleared(&self) -> Self {
        let settings = self.objects.iter().filter(|object| object.removal == Removal::Setting);
        Self { objects: settings.cloned().collect() }
    }

    fn by_key(&self) -> BTreeMap<&[String], &Object> {
        self.objects.iter().map(|object| (&object.key[..], object)).collect()
    }

    /// The changes that lead to `wanted`. Only what `wanted` says counts: a parameter that it leaves open
    /// may have any value.
    #[must_use]
    pub fn differences<'a>(&'a self, wanted: &'a Self) -> Vec<Difference<'a>> {
        let (is, should) = (self.by_key(), wanted.by_key());
        let mut differences = Vec::new();
        for object in &self.objects {
            match should.get(&object.key[..]) {
                None => differences.push(Difference::Extra(object)),
                Some(wanted) => {
                    let params = object.differing(wanted);
                    if !params.is_empty() {
                        differences.push(Difference::Changed { is: object, wanted, params });
                    }
                }
            }
        }
        let missing = wanted.objects.iter().filter(|object| !is.contains_key(&object.key[..]));
        differences.extend(missing.map(Difference::Missing));
        differences
    }

    /// The calls that lead from this configuration to `wanted` without touching objects that are right
    /// already. What stands on a removed object is removed before it and made again after it. Hosts and controllers keep
    /// their connections while their keys change: new keys come before those that get them, and keys that nobody has any
    /// more go last.
    #[must_use]
    pub fn plan(&self, wanted: &Self) -> Vec<Step> {
        let (mut going, mut in_place) = (BTreeSet::new(), Vec::new());
        for difference in self.differences(wanted) {
            match difference {
                Difference::Extra(object) if object.removal != Removal::Setting => {
                    going.insert(&object.key[..]);
                }
                Difference::Changed { is, wanted, params } => {
                    if let Some(call) = is.change_in_place(wanted, &params) {
                        in_place.push(Step { call, is_setting: false });
                    } else if is.removal != Removal::Setting {
                        going.insert(&is.key[..]);
                    }
                }
                _ => {}
            }
        }
        let should = wanted.by_key();
        self.add_what_has_psk(&should, &mut going);
        self.add_what_stands_on(&mut going);
        let removals = self.objects.iter().rev().filter(|object| going.contains(&object.key[..]));
        let (mut removed, mut removed_last) = (Vec::new(), Vec::new());
        for object in removals {
            let Removal::Call(call) = &object.removal else { continue };
            let step = Step { call: call.clone(), is_setting: false };
            let comes_back = should.contains_key(&object.key[..]);
            let last = object.is_key() && !comes_back;
            if last { removed_last.push(step) } else { removed.push(step) }
        }
        let (mut settings, mut keys, mut made) = (Vec::new(), Vec::new(), Vec::new());
        let is = self.by_key();
        for object in &wanted.objects {
            let there = is.get(&object.key[..]);
            let stays = there.is_some() && !going.contains(&object.key[..]);
            let is_setting = object.removal == Removal::Setting;
            let differs = there.is_some_and(|there| !there.differing(object).is_empty());
            if !stays || (is_setting && differs) {
                let step = Step { call: object.call.clone(), is_setting };
                match object.is_key() {
                    _ if is_setting => settings.push(step),
                    true => keys.push(step),
                    false => made.push(step),
                }
            }
        }
        in_place.extend(self.keys_given_again(&should, &going));
        // Settings first: later calls depend on them.
        [settings, removed, keys, in_place, made, removed_last].concat()
    }

    /// The keys that go and come back with another file.
    fn changed_keys(
        &self,
        should: &BTreeMap<&[String], &Object>,
        going: &BTreeSet<&[String]>,
    ) -> Vec<&Object> {
        let keys = self.objects.iter().filter(|object| object.is_key());
        let goes_and_comes = |key: &[String]| going.contains(key) && should.contains_key(key);
        keys.filter(|object| goes_and_comes(&object.key)).collect()
    }

    /// Adds those whose pre-shared key gets another file: they have to be made again.
    fn add_what_has_psk<'a>(
        &'a self,
        should: &BTreeMap<&[String], &Object>,
        going: &mut BTreeSet<&'a [String]>,
    ) {
        let changed = self.changed_keys(should, going);
        let has = |object: &&Object| changed.iter().any(|key| object.has_psk(key));
        going.extend(self.objects.iter().filter(has).map(|object| &object.key[..]));
    }

    /// The calls that give keys anew to those that have them and stay, when a key of the same name has another file: they
    /// have the key that was removed.
    fn keys_given_again(
        &self,
        should: &BTreeMap<&[String], &Object>,
        going: &BTreeSet<&[String]>,
    ) -> Vec<Step> {
        let changed = self.changed_keys(should, going);
        let stay = self.objects.iter().filter(|object| !going.contains(&object.key[..]));
        let stay = stay.filter(|object| changed.iter().any(|key| object.has_secret(key)));
        stay.filter_map(|object| {
            let wanted = should.get(&object.key[..])?;
            // Another key is given to it in place anyhow.
            let same = object.differing(wanted).is_empty();
            let call = object.set_keys(wanted).filter(|_| same)?;
            Some(Step { call, is_setting: false })
        })
        .collect()
    }

    /// Adds everything that stands on the objects in `going`.
    fn add_what_stands_on<'a>(&'a self, going: &mut BTreeSet<&'a [String]>) {
        let provided = |object: &Object| object.provides();
        let gone = self.objects.iter().filter(|object| going.contains(&object.key[..]));
        let mut gone: BTreeSet<Vec<String>> = gone.flat_map(provided).collect();
        // One pass finds objects after their base, as in every configuration that loads.
        loop {
            let before = going.len();
            for object in self.objects.iter().filter(|object| object.removal != Removal::Setting) {
                if !going.contains(&object.key[..])
                    && object.needs().iter().any(|key| gone.contains(key))
                {
                    going.insert(&object.key[..]);
                    gone.extend(object.provides());
                }
            }
            if going.len() == before {
                return;
            }
        }
    }
}

/// `nvmf_subsystem_allow_any_host` after `nvmf_create_subsystem` becomes one of its parameters.
fn merge_access(objects: Vec<Object>) -> Vec<Object> {
    const ANY_HOST: &str = "allow_any_host";
    let mut merged: Vec<Object> = Vec::new();
    let mut subsystems: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    for object in objects {
        if object.call.method == "nvmf_create_subsystem" {
            subsystems.insert(object.key.clone(), merged.len());
        }
        if object.call.method == "nvmf_subsystem_allow_any_host" {
            let owner = &object.key[..object.key.len() - 1];
            let owner = subsystems.get(owner).and_then(|place| merged.get_mut(*place));
            if let Some(Value::Object(params)) = owner.and_then(|owner| owner.call.params.as_mut())
            {
                let allow = object.param(ANY_HOST).cloned().unwrap_or(Value::Bool(true));
                params.insert(ANY_HOST.to_owned(), allow);
                continue;
            }
        }
        merged.push(object);
    }
    merged
}

impl fmt::Display for Difference<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(object) => write!(f, "+ {object}"),
            Self::Extra(object) => write!(f, "- {object}"),
            Self::Changed { is, wanted, params } => {
                write!(f, "~ {is}")?;
                for name in params {
                    let show = |object: &Object| match object.param(name) {
                        Some(value) => masked(value).to_string(),
                        None => "unset".to_owned(),
                    };
                    write!(f, " {name}: {} -> {}", show(is), show(wanted))?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests;
