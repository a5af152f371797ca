//! Discovery of providers by hints.

use fabric_core::info::{Hints, Info, Mismatch, select};
use fabric_core::{Error, Result};
use fabric_reactor::parameters::{ProviderFilter, check_parameters};
use fabric_reactor::registry;

use crate::open_domains;

/// Returns what the providers offer for these hints (`fi_getinfo`), best first.
///
/// The result has one info for each offer that satisfies the hints, adjusted to the hints. Without
/// a hint for progress, each offer gives two infos: manual progress first, then automatic progress.
/// With such a hint it gives one. The order is fixed, nothing is measured: `shm`, `tcp`, `udp`. The
/// provider `sim`, which is for tests, is offered only to hints that [name `sim`](Hints::provider).
/// Use the first info, unless you need an alternative.
///
/// `tcp` first offers the fabric and domain `tcp`, which stand for any network; an endpoint without
/// an address of its own gets a loopback address. The next offers of `tcp` are the networks of this
/// machine, as `fi_info` shows them: the fabric is the network
/// (`192.0.2.0/24`), the domain the interface (`eth0`), and `src_addr` the address of this machine
/// there, which endpoints without an address of their own get. [`Hints::fabric_name`],
/// [`Hints::domain_name`] and [`Hints::source`] choose one; [`Hints::dest`] omits networks of the
/// other address family, and does not consult routes. The same offers follow for [connected
/// endpoints](crate::guide::connected_endpoints), which [`Hints::ep_type`] chooses.
///
/// # Open objects
///
/// [`Hints::within`] restricts the offers to those of an open fabric or domain. Without it, an info
/// has the id of the first open domain of the same fabric and name, if there is one, in
/// [`DomainAttr::domain`](crate::info::DomainAttr). Opening a domain from the info opens another
/// instance.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// use fabric_async::{discover, EpType, Fabric, Hints};
/// let info = discover(&Hints::new().provider("shm"))?.swap_remove(0);
/// let fabric = Fabric::open(&info)?;
/// let domain = fabric.domain(&info)?;
/// let of_domain = discover(&Hints::new().within(&domain).ep_type(EpType::Msg))?;
/// assert_eq!(of_domain[0].domain.domain, Some(domain.id()));
/// # Ok(()) }
/// ```
///
/// # The provider `sim`
///
/// `sim` is a network inside one process, for tests: the endpoints and the wire code of `tcp`, over
/// streams that delay each read by some progress passes of the receiver, and shorten some reads to
/// a few bytes. An address reads `sim://LABEL@SEED+DELAY+CAPACITY`: the seed of the delays (0), the
/// maximum delay in passes (3), and the capacity of each stream to the endpoint in units of 16 KiB
/// (16). The numbers may be omitted from the right, and are part of the name: peers write them too.
/// Delays depend only on the seed, the sender's name and the number of reads before, so endpoints
/// that one thread polls in the same order see the same interleaving again.
///
/// The domain `sim` requires nothing of memory registration. A domain name with bits of
/// [`MrMode`](crate::info::MrMode) asks for an offer that requires them, so that a program can be
/// tested for a provider that does. Infos of hints that do not [agree](Hints::mr_mode) to a
/// required bit have no capability to be the target of one-sided operations, or there is no info.
///
/// ```
/// use fabric_async::info::MrMode;
/// use fabric_async::{Caps, Error, Hints, discover};
/// let hints = Hints::new().provider("sim").domain_name("sim+VIRT_ADDR").caps(Caps::RMA);
/// assert!(matches!(discover(&hints), Err(Error::NoMatch(_))));
/// let agreed = hints.mr_mode(MrMode::VIRT_ADDR | MrMode::PROV_KEY);
/// assert_eq!(discover(&agreed)?[0].domain.mr_mode, MrMode::VIRT_ADDR);
/// # Ok::<(), Error>(())
/// ```
///
/// A domain cannot require `COLLECTIVE`, because there are no collective operations, nor `HMEM`,
/// because there are no registrations of device memory. With `RAW`, `mr_key_size` is 16.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// use fabric_async::{discover, Caps, EpType, Hints};
/// let hints = Hints::new().provider("shm").ep_type(EpType::Rdm).caps(Caps::TAGGED);
/// let found = discover(&hints)?;
/// assert_eq!(found[0].fabric.provider, "shm");
///
/// let refused = discover(&Hints::new().provider("shm").caps(Caps::MULTICAST)).unwrap_err();
/// assert_eq!(refused.errno(), 61); // FI_ENODATA
/// assert!(refused.to_string().contains("caps"));
///
/// for info in discover(&Hints::new().provider("tcp"))? {
///     println!("{} {} {:?}", info.fabric.name, info.domain.name, info.src_addr);
/// }
/// # Ok(()) }
/// ```
///
/// # Environment
///
/// `FI_PROVIDER` selects the providers that are offered, as in libfabric: `FI_PROVIDER=tcp,udp`
/// offers these two, `FI_PROVIDER=^tcp` all but `tcp`, `FI_PROVIDER=^ofi_rxm` no RXM. A list that
/// names `sim` offers `sim`. [`parameters`](crate::info::parameters) lists this and the other
/// parameters, whose values are checked here.
///
/// # Errors
/// [`Error::NoMatch`] when no offer satisfies the hints: the error names, for every offer of every
/// provider (of those that the hints name, if any), the attribute, the value asked for and the
/// value offered. [`Error::UnknownProvider`] when the hints name a provider that does not exist.
/// [`Error::Invalid`] with the name of a parameter of the environment whose value is not valid, or
/// for the name of a domain of `sim` that is not valid; [`Error::NotSupported`] for one with a bit
/// of `mr_mode` that no domain can require.
#[doc(alias = "fi_getinfo")]
pub fn discover(hints: &Hints) -> Result<Vec<Info>> {
    let filter = check_parameters()?;
    let all = registry::all();
    if let Some(requested) = &hints.provider
        && !all
            .iter()
            .any(|provider| hints.admits_provider(provider.name()))
    {
        let known = all.iter().map(|provider| provider.name()).collect();
        return Err(Error::UnknownProvider {
            requested: requested.clone(),
            known,
        });
    }
    let candidates = all
        .iter()
        .filter(|provider| hints.admits_provider(provider.name()))
        .filter(|provider| {
            let is_named = hints.provider.is_some() || filter.selects(provider.name());
            is_named || !provider.is_offered_by_name_only()
        });
    let offers: Vec<_> = candidates
        .map(|provider| provider.offers(hints))
        .collect::<Result<_>>()?;
    let (mut offers, excluded): (Vec<Info>, Vec<Info>) = offers
        .into_iter()
        .flatten()
        .partition(|offer| filter.admits(offer));
    for offer in &mut offers {
        open_domains::enter_instance(offer, hints.domain);
    }
    select(hints, &offers).map_err(|mut no_match| {
        let excluded = excluded.iter().map(|offer| filtered_out(offer, &filter));
        no_match.mismatches.extend(excluded);
        no_match.into()
    })
}

/// Returns the reason why an offer that `FI_PROVIDER` excludes does not satisfy any hints.
fn filtered_out(offer: &Info, filter: &ProviderFilter) -> Mismatch {
    Mismatch {
        provider: offer.fabric.provider.clone(),
        domain: offer.domain.name.clone(),
        ep_type: offer.ep.ep_type,
        protocol: offer.ep.protocol,
        attribute: "provider",
        requested: format!("{:?}", offer.fabric.provider),
        offered: format!("the providers of {filter}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn providers(hints: &Hints) -> Vec<String> {
        let mut names: Vec<_> = discover(hints)
            .expect("a provider satisfies the hints")
            .into_iter()
            .map(|info| info.fabric.provider)
            .collect();
        names.dedup();
        names
    }

    #[test]
    fn sim_is_offered_only_by_name() {
        assert_eq!(providers(&Hints::new()), ["shm", "tcp", "udp"]);
        assert_eq!(providers(&Hints::new().provider("sim")), ["sim"]);
        assert_eq!(providers(&Hints::new().provider("SIM;tcp")), ["tcp", "sim"]);
    }

    #[test]
    fn refusal_without_provider_name_does_not_mention_sim() {
        let impossible = Hints::new().max_msg_size(usize::MAX);
        let Err(Error::NoMatch(none)) = discover(&impossible) else {
            panic!("no provider sends messages of this length");
        };
        assert!(
            none.mismatches
                .iter()
                .all(|mismatch| mismatch.provider != "sim")
        );
    }
}
