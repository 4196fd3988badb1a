//! Devices that stand on others: made at once if the base device is there, else when it comes.
//!
//! Their entries stay in the configuration when the base device disappears by itself (a remote namespace
//! that is unplugged), and are removed when a client deletes it.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{delay, error, passthru, split};
use crate::error::RpcError;
use crate::manager::Change;
use crate::manager::bdevs::{Claim, Entry};
use crate::manager::catalogue::{self, Key, Section};
use crate::method::Call;

/// The parameters of a call that makes stacked devices.
pub(super) trait Stacked: Clone + Serialize + DeserializeOwned {
    /// The method.
    const METHOD: &'static str;
    /// Its module.
    const MODULE: &'static str;

    /// The base device.
    fn base(&self) -> &str;

    /// The key of the call in the catalogue.
    fn key(&self) -> Key;

    /// Whether one of the devices has, or would have, this name.
    fn is_named(&self, name: &str) -> bool {
        self.key() == Key::new(&["bdev", name])
    }

    /// The devices, in order.
    fn make(&self, base: &Entry) -> Result<Vec<Entry>, RpcError>;
}

/// Makes the devices and keeps the call; gives their names, or none if they have to wait.
pub(super) fn create<T: Stacked>(call: &Call<'_>, params: &T) -> Result<Vec<String>, RpcError> {
    call.manager.change(|change| {
        let key = params.key();
        if change.model().catalogue.get(&key).is_some() {
            let detail = format!("{} was called for it before", T::METHOD);
            return Err(RpcError::errno(libc::EEXIST).because(detail));
        }
        if change.model().is_below(params.base(), |name| params.is_named(name)) {
            let detail =
                format!("it would stand on itself: `{}` is it, or waits for it", params.base());
            return Err(RpcError::errno(libc::EINVAL).because(detail));
        }
        let entry = catalogue::Entry::new(Section::Bdev, T::METHOD, params)?;
        let present = change.model().bdevs.find(params.base()).is_some();
        let names = if present {
            build(change, params)?
        } else {
            tracing::info!("{} waits for device `{}`", T::METHOD, params.base());
            Vec::new()
        };
        change.put(key, entry);
        Ok(names)
    })
}

fn build<T: Stacked>(change: &mut Change<'_>, params: &T) -> Result<Vec<String>, RpcError> {
    let base = change.model().bdev(params.base())?.clone();
    let made = params.make(&base)?;
    let names: Vec<String> = made.iter().map(|bdev| bdev.name.clone()).collect();
    for name in &names {
        change.model().bdevs.check_name(name)?;
    }
    let name = names.first().cloned().unwrap_or_default();
    change.claim_bdev(&base.name, Claim::Bdev { module: T::MODULE, name })?;
    for (count, bdev) in made.into_iter().enumerate() {
        let bdev = bdev.standing_on(&base.name).kept_as(params.key());
        if let Err(error) = change.add_bdev(bdev, None) {
            for name in &names[..count] {
                change.unplug_bdev(name)?;
            }
            change.release_bdev(&base.name);
            return Err(error.into());
        }
    }
    for name in &names {
        change.arrived(name);
    }
    Ok(names)
}

/// Makes the devices that have waited for a device of this name.
pub(super) fn examine(change: &mut Change<'_>, name: &str) {
    let waiting: Vec<catalogue::Entry> = {
        let model = change.model();
        let Some(bdev) = model.bdevs.find(name) else { return };
        let uuid = bdev.uuid.to_string();
        let names = bdev.aliases.iter().chain([&bdev.name, &uuid]);
        names.flat_map(|name| model.catalogue.standing_on(name)).cloned().collect()
    };
    for entry in waiting {
        let made = match entry.method.as_str() {
            delay::Create::METHOD => again::<delay::Create>(change, &entry),
            error::Create::METHOD => again::<error::Create>(change, &entry),
            passthru::Create::METHOD => again::<passthru::Create>(change, &entry),
            split::Create::METHOD => again::<split::Create>(change, &entry),
            _ => continue,
        };
        if let Err(error) = made {
            tracing::warn!("{} on `{name}` cannot be made: {error}", entry.method);
        }
    }
}

fn again<T: Stacked>(change: &mut Change<'_>, entry: &catalogue::Entry) -> Result<(), RpcError> {
    let params: T = serde_json::from_value(entry.params.clone())
        .map_err(|error| RpcError::internal("Internal error").because(error))?;
    build(change, &params).map(drop)
}

/// Deletes a device of this module, or removes a call that still waits.
pub(super) fn delete<T: Stacked>(call: &Call<'_>, name: &str, key: Key) -> Result<bool, RpcError> {
    call.manager.change(|change| {
        let present = change.model().bdevs.find(name).is_some();
        if !present && change.model().catalogue.get(&key).is_some() {
            change.remove(key);
            return Ok(true);
        }
        super::find(change, name, T::MODULE)?;
        change.remove_bdev(name)?;
        Ok(true)
    })
}
