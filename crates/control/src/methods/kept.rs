//! Methods that set options of parts of SPDK that are not here: the parameters are kept, in the section of
//! that part, and given back.
//!
//! Every configuration that one of SPDK's programs saves has such calls, and they need nothing to exist. A
//! call that makes an object of such a part is not here at all.

use serde_json::{Map, Value};

use crate::absent::{self, Does};
use crate::error::RpcError;
use crate::manager::catalogue::{Entry, Section};
use crate::manager::options::option_key;
use crate::method::{Call, Registry};
use crate::spelling::old_names;

pub(super) fn register(registry: &mut Registry) {
    for method in absent::methods().iter().filter(|method| method.does == Does::Sets) {
        registry.keep(method.method, keep);
        for old in old_names(method.method) {
            registry.alias(old, method.method);
        }
    }
}

fn keep(call: &Call<'_>, params: Value) -> Result<(), RpcError> {
    let section =
        absent::absent(call.method).and_then(|method| Section::from_name(method.part.section));
    // No parameters and an empty object mean the same, and some of SPDK's methods accept only the former.
    let params = if params.as_object().is_some_and(Map::is_empty) { Value::Null } else { params };
    call.manager.change(|change| {
        let section = section.unwrap_or(Section::Bdev);
        let entry = Entry { section, method: call.method.to_owned(), params };
        change.put(option_key(call.method), entry);
        Ok(())
    })
}
