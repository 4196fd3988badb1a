//! Makes the configuration of a catalogue again: the restart of a target.

use std::collections::BTreeMap;

use serde_json::Value;

use super::catalogue::{Catalogue, Entry, Key, Section};
use super::{Manager, Phase};
use crate::error::RpcError;
use crate::masked::masked;

/// Why a target cannot be made again.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// A call failed.
    #[error("{call}, which makes {key:?}, failed: {error}")]
    Call {
        /// The part that it should have made.
        key: Key,
        /// The method and its parameters.
        call: String,
        /// Its error.
        error: Box<RpcError>,
    },
    /// A portal of iSCSI cannot be opened.
    #[error("iSCSI cannot be reached as before: {0}")]
    Portals(super::ManagerError),
    /// All calls succeeded, but did not make the same configuration as before.
    #[error("{key:?} did not come back as it was: {problem}")]
    Differs {
        /// The part that differs.
        key: Key,
        /// How it differs.
        problem: String,
    },
}

impl Manager {
    /// Makes the configuration of a catalogue, as far as the current phase allows: to be called before and
    /// after [`Manager::start`]. Nothing of it is written down again. If it fails, the target is incomplete
    /// and must not be used.
    ///
    /// # Errors
    /// When a call fails; and, after the start, when a part is not as it was.
    pub fn restore(&self, catalogue: &Catalogue) -> Result<(), RestoreError> {
        let _restoring = self.replaying.restore();
        let phase = match self.phase() {
            Phase::Startup => Phase::Startup,
            Phase::Starting | Phase::Runtime => Phase::Runtime,
        };
        for section in Section::ALL {
            for (key, entry) in catalogue.in_order(section) {
                // One call can make several entries.
                let is_made = self.model().catalogue.get(key) == Some(entry);
                let is_later = self.replaying.methods.admits(&entry.method, phase) == Some(false);
                if is_made || (is_later && phase == Phase::Startup) {
                    continue;
                }
                self.make_again(key, entry)?;
            }
        }
        if phase != Phase::Runtime {
            return Ok(());
        }
        self.open_portals().map_err(RestoreError::Portals)?;
        self.compare(catalogue)?;
        if self.model().catalogue.digest() != catalogue.digest() {
            self.config.journal.rewrite_with_next_change();
        }
        Ok(())
    }

    fn make_again(&self, key: &Key, entry: &Entry) -> Result<(), RestoreError> {
        let made = self.make_or_miss(&entry.method, Some(&entry.params));
        made.map_err(|error| RestoreError::Call {
            key: key.clone(),
            call: format!("{} {}", entry.method, masked(&entry.params)),
            error: Box::new(error),
        })
    }

    /// Checks that the configuration is the same as before. A newer version of this program may record more
    /// parameters of the same object, but not other objects, and not the same object with another identity.
    fn compare(&self, before: &Catalogue) -> Result<(), RestoreError> {
        let model = self.model();
        let now: BTreeMap<&Key, &Entry> = model.catalogue.entries().collect();
        let differs =
            |key: &Key, problem: String| Err(RestoreError::Differs { key: key.clone(), problem });
        for (key, entry) in before.entries() {
            let Some(made) = now.get(key) else {
                return differs(key, "it is not there".to_owned());
            };
            if made.method != entry.method || !contains(&made.params, &entry.params) {
                let (was, is) = (masked(&entry.params), masked(&made.params));
                let problem = format!("{} {was} became {} {is}", entry.method, made.method);
                return differs(key, problem);
            }
        }
        match now.keys().find(|key| before.get(key).is_none()) {
            Some(key) => differs(key, "it was not there before".to_owned()),
            None => Ok(()),
        }
    }
}

/// Whether every member of `part` has the same value in `whole`.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(name, part)| whole.get(name).is_some_and(|whole| contains(whole, part))),
        _ => whole == part,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use std::sync::Arc;

    use super::super::ManagerConfig;
    use super::super::catalogue::Record;
    use super::*;
    use crate::method::Registry;

    fn catalogue(params: Value) -> Catalogue {
        let entry =
            Entry { section: Section::Bdev, method: "bdev_malloc_create".to_owned(), params };
        let mut catalogue = Catalogue::default();
        catalogue.apply(Record::Put { key: Key::new(&["bdev", "m"]), entry });
        catalogue
    }

    fn restore(catalogue: &Catalogue) -> Result<(), RestoreError> {
        let manager = Manager::new(ManagerConfig::default(), Arc::new(Registry::new()));
        manager.restore(catalogue).unwrap();
        assert!(manager.model().bdevs.find("m").is_none());
        manager.start();
        manager.restore(catalogue)
    }

    #[test]
    fn a_device_comes_back_with_its_identity() {
        let uuid = "6b9f2f8c-0d3a-4c55-9a2f-000000000001";
        let params = json!({ "name": "m", "num_blocks": 64, "block_size": 512, "uuid": uuid });
        restore(&catalogue(params)).unwrap();
    }

    #[test]
    fn a_device_whose_identity_was_not_recorded_is_found() {
        // It gets a new UUID, which is then recorded: more than before is allowed. Another name is not.
        let params = json!({ "name": "m", "num_blocks": 64, "block_size": 512 });
        restore(&catalogue(params)).unwrap();
        let params = json!({ "name": "other", "num_blocks": 64, "block_size": 512 });
        let error = restore(&catalogue(params)).unwrap_err().to_string();
        assert_eq!(error, "bdev / m did not come back as it was: it is not there");
    }

    #[test]
    fn a_call_that_fails_is_named_with_what_it_said() {
        let error = restore(&catalogue(json!({ "name": "m", "num_blocks": 0, "block_size": 512 })));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("which makes bdev / m, failed: Invalid argument"), "{error}");
        assert!(error.contains(r#"bdev_malloc_create {"name":"m","#), "{error}");
    }
}
