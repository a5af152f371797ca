//! The open domains of this process, which discovery refers to.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use fabric_core::info::Info;

use crate::domain_inner::DomainCore;

/// All domains that were not dropped, in the order in which they were opened.
static DOMAINS: Mutex<Vec<Weak<DomainCore>>> = Mutex::new(Vec::new());

/// Adds a domain.
pub(crate) fn add(domain: &Arc<DomainCore>) {
    let mut domains = DOMAINS.lock().unwrap_or_else(PoisonError::into_inner);
    domains.retain(|other| other.strong_count() > 0);
    domains.push(Arc::downgrade(domain));
}

/// Enters the open instance of the offer's domain into the offer: the instance with the id `asked`,
/// whose attributes then replace those of the offer, or else the one that was opened first.
pub(crate) fn enter_instance(offer: &mut Info, asked: Option<u64>) {
    let domains = DOMAINS.lock().unwrap_or_else(PoisonError::into_inner);
    let open = domains.iter().filter_map(Weak::upgrade);
    let mut instances = open.filter(|open| {
        let of_domain = &open.info;
        open.node.check_open().is_ok()
            && of_domain.fabric.provider == offer.fabric.provider
            && of_domain.fabric.name == offer.fabric.name
            && of_domain.domain.name == offer.domain.name
    });
    match asked {
        Some(id) => {
            if let Some(instance) = instances.find(|instance| instance.node.id() == id) {
                offer.domain = instance.info.domain.clone();
                offer.domain.domain = Some(id);
            }
        }
        None => offer.domain.domain = instances.next().map(|instance| instance.node.id()),
    }
}
