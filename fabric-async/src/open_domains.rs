//! The open domains of this process, which discovery refers to.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fabric_core::info::Info;

/// The info of each open domain, by id: the domain that was opened first has the lowest one.
static DOMAINS: Mutex<BTreeMap<u64, Info>> = Mutex::new(BTreeMap::new());

fn domains() -> MutexGuard<'static, BTreeMap<u64, Info>> {
    DOMAINS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a domain that was opened from this info.
pub(crate) fn add(id: u64, info: Info) {
    domains().insert(id, info);
}

/// Removes a domain that was closed, or whose last handle was dropped.
pub(crate) fn remove(id: u64) {
    domains().remove(&id);
}

/// Enters the open instance of the offer's domain into the offer: the instance with the id
/// `requested`, whose attributes then replace those of the offer, or else the one that was opened
/// first.
pub(crate) fn enter_instance(offer: &mut Info, requested: Option<u64>) {
    let domains = domains();
    let is_same_domain = |open: &Info| {
        open.fabric.provider == offer.fabric.provider
            && open.fabric.name == offer.fabric.name
            && open.domain.name == offer.domain.name
    };
    let mut instances = domains.iter().filter(|(_, open)| is_same_domain(open));
    match requested {
        Some(requested) => {
            if let Some((_, open)) = instances.find(|(id, _)| **id == requested) {
                offer.domain = open.domain.clone();
                offer.domain.domain = Some(requested);
            }
        }
        None => offer.domain.domain = instances.next().map(|(id, _)| *id),
    }
}
