//! `--accel`: the engine for each operation on data.

use std::fmt;
use std::sync::Arc;

use raceline_accel::{Engine, Framework, OpCode, OpSet, SOFTWARE, TableError};
use raceline_dsa::discover::Roots;
use raceline_dsa::emulated::EmulatedConfig;
use raceline_dsa::queue::DSA_OPERATIONS;
use raceline_dsa::{DsaEngine, EmulatedEngine};

use crate::failure::Failure;

/// The engine on hardware.
const DSA: &str = "dsa";
/// The same driver on a device that a thread emulates.
const DSA_EMULATED: &str = "dsa_emulated";

/// `--accel`: the requested engine of each operation; a later entry replaces an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccelChoice {
    routes: Vec<(OpCode, &'static str)>,
}

/// All engines that can be named, with their operations and whether a driver exists for them.
fn known() -> Vec<(&'static str, OpSet, bool)> {
    let mut engines = vec![(DSA, DSA_OPERATIONS, true), (DSA_EMULATED, DSA_OPERATIONS, true)];
    let others = Framework::software().modules().into_iter();
    engines.extend(others.map(|module| (module.name, module.operations, module.available)));
    engines
}

/// `ENGINE`, for all its operations, or `OP=ENGINE`; several entries are separated by commas.
pub(crate) fn accel_choice(text: &str) -> Result<AccelChoice, String> {
    let mut choice = AccelChoice::default();
    for word in text.split(',') {
        let (operation, name) = match word.split_once('=') {
            Some((operation, name)) => {
                (Some(operation.parse::<OpCode>().map_err(|error| error.to_string())?), name)
            }
            None => (None, word),
        };
        let (engine, operations) = find(name, operation).map_err(|error| error.to_string())?;
        let wanted = operation.map_or(operations, |operation| OpSet::of(&[operation]));
        choice.routes.extend(wanted.iter().map(|operation| (operation, engine)));
    }
    Ok(choice)
}

/// A usable engine, checked for this operation if one is named.
fn find(name: &str, operation: Option<OpCode>) -> Result<(&'static str, OpSet), TableError> {
    let engines = known();
    let Some(&(engine, operations, driven)) = engines.iter().find(|engine| engine.0 == name) else {
        let known = engines.iter().map(|engine| engine.0).collect::<Vec<_>>().join(", ");
        return Err(TableError::UnknownEngine { name: name.to_owned(), known });
    };
    if let Some(operation) = operation.filter(|&operation| !operations.contains(operation)) {
        return Err(TableError::Unsupported { engine, operation, operations });
    }
    match operation.or_else(|| operations.iter().next()) {
        Some(operation) if !driven => Err(TableError::NoDriver { engine, operation }),
        _ => Ok((engine, operations)),
    }
}

impl fmt::Display for AccelChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (operation, engine)) in self.routes.iter().enumerate() {
            write!(f, "{}{operation}={engine}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl AccelChoice {
    /// The table for `cores` cores. Engines that are left without an operation are not opened.
    pub(crate) fn framework(&self, cores: usize) -> Result<Framework, Failure> {
        let mut engines: Vec<Arc<dyn Engine>> = Vec::new();
        if self.uses(DSA) {
            let engine = DsaEngine::discover(Roots::default(), cores)
                .map_err(|error| Failure::runtime(format!("--accel {DSA}: {error}")))?;
            engines.push(Arc::new(engine));
        }
        if self.uses(DSA_EMULATED) {
            tracing::warn!(
                "{DSA_EMULATED} is a thread that takes descriptors as a DSA does: it shows that \
                 offloading works, and is no faster than the CPU"
            );
            let engine = EmulatedEngine::start(EmulatedConfig::default(), cores);
            engines.push(Arc::new(engine.map_err(Failure::runtime)?));
        }
        let framework = Framework::new(engines).map_err(Failure::runtime)?;
        for operation in OpCode::ALL {
            framework.assign(operation, self.engine_of(operation)).map_err(Failure::runtime)?;
        }
        Ok(framework)
    }

    /// Whether an engine is a device of this machine.
    pub(crate) fn uses_devices(&self) -> bool {
        self.uses(DSA)
    }

    fn engine_of(&self, operation: OpCode) -> &'static str {
        let last = self.routes.iter().rev().find(|route| route.0 == operation);
        last.map_or(SOFTWARE, |route| route.1)
    }

    fn uses(&self, engine: &str) -> bool {
        OpCode::ALL.into_iter().any(|operation| self.engine_of(operation) == engine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_alone_takes_all_that_it_can_do() {
        let choice = accel_choice("dsa").unwrap();
        assert_eq!(choice.engine_of(OpCode::Crc32c), "dsa");
        assert_eq!(choice.engine_of(OpCode::Compress), "software");
        assert!(choice.uses("dsa") && !choice.uses("dsa_emulated"));
        let choice = accel_choice("dsa,crc32c=dsa_emulated,copy=software").unwrap();
        assert_eq!(choice.engine_of(OpCode::Crc32c), "dsa_emulated");
        assert_eq!(choice.engine_of(OpCode::Copy), "software");
        assert_eq!(choice.engine_of(OpCode::CopyCrc32c), "dsa");
        let text = accel_choice("crc32c=dsa,copy_crc32c=dsa_emulated").unwrap().to_string();
        assert_eq!(text, "crc32c=dsa,copy_crc32c=dsa_emulated");
        assert!(!accel_choice("dsa,software").unwrap().uses("dsa"));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let there = "there are: dsa, dsa_emulated, software, ioat, qat";
        for (text, message) in [
            ("", format!("no acceleration engine is called \"\"; {there}")),
            ("gpu", format!("no acceleration engine is called \"gpu\"; {there}")),
            ("crc32c=", format!("no acceleration engine is called \"\"; {there}")),
            (
                "crc64=dsa",
                "no operation is called \"crc64\"; there are copy, fill, dualcast, compare, \
                 crc32c, copy_crc32c, compress, decompress"
                    .to_owned(),
            ),
            (
                "compress=dsa",
                "engine dsa cannot do compress; it can do: copy, fill, dualcast, compare, \
                 crc32c, copy_crc32c"
                    .to_owned(),
            ),
            ("crc32c=ioat", "engine ioat cannot do crc32c; it can do: copy, fill".to_owned()),
            (
                "copy=ioat",
                "engine ioat has no driver in this version; assign copy to another one".to_owned(),
            ),
            (
                "qat",
                "engine qat has no driver in this version; assign compress to another one"
                    .to_owned(),
            ),
        ] {
            assert_eq!(accel_choice(text).unwrap_err(), message, "{text}");
        }
    }

    #[test]
    fn the_table_is_as_chosen() {
        let choice = accel_choice("crc32c=dsa_emulated").unwrap();
        let framework = choice.framework(1).unwrap();
        for (operation, engine) in framework.assignments() {
            let expected = if operation == OpCode::Crc32c { DSA_EMULATED } else { SOFTWARE };
            assert_eq!(engine, expected, "{operation}");
        }
        assert_eq!(AccelChoice::default().framework(1).unwrap().modules()[0].name, SOFTWARE);
    }
}
