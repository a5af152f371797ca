//! Discovery: which providers can do what is asked.

use fabric_core::info::{Hints, Info, select};
use fabric_core::{Error, Result};
use fabric_reactor::transport;

/// Asks every provider for what the hints describe (`fi_getinfo`); best first.
///
/// There is one info for each offer that satisfies the hints, adjusted to them. A provider makes
/// several: each offers the same under manual and under automatic progress. "Best first" is a fixed
/// order, nothing is measured: `shm`, `tcp`, `udp`, `sim`, and manual before automatic progress,
/// which is what no wish means. So the first is the one to take, and the others are there to choose
/// from. Whoever asks for manual progress gets two infos that are alike, because an offer of
/// automatic progress satisfies that wish as well.
///
/// `tcp` offers any network first, as the fabric and the domain `tcp`; an endpoint without an
/// address of its own is then inside this machine. Behind that comes each network this machine is
/// in at the moment, as `fi_info` shows them: the fabric is the network (`192.0.2.0/24`), the
/// domain the interface (`eth0`), and `src_addr` the address of this machine there, which endpoints
/// without an address of their own get. [`Hints::fabric_name`], [`Hints::domain_name`] and
/// [`Hints::source`] choose one; [`Hints::dest`] leaves out those of the other family of addresses,
/// and looks at no routes. All of it comes once more behind that, for [connected
/// endpoints](crate::guide::connected_endpoints), which [`Hints::ep_type`] chooses.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// use fabric_async::{discover, Caps, EpType, Hints};
/// let found = discover(&Hints::new().provider("shm").ep_type(EpType::Rdm).caps(Caps::TAGGED)).await?;
/// assert_eq!(found[0].fabric.provider, "shm");
///
/// let refused = discover(&Hints::new().provider("shm").caps(Caps::MULTICAST)).await.unwrap_err();
/// assert_eq!(refused.errno(), 61); // FI_ENODATA
/// assert!(refused.to_string().contains("caps"));
///
/// for info in discover(&Hints::new().provider("tcp")).await? {
///     println!("{} {} {:?}", info.fabric.name, info.domain.name, info.src_addr);
/// }
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::NoMatch`] when no provider can: it names, for every offer of every provider (of those
/// that the hints name, if they do), the attribute, what was asked and what is offered.
/// [`Error::UnknownProvider`] when the hints name a provider that does not exist.
///
/// # Cancel safety
/// Nothing is held across an await.
#[doc(alias = "fi_getinfo")]
pub async fn discover(hints: &Hints) -> Result<Vec<Info>> {
    discover_sync(hints)
}

pub(crate) fn discover_sync(hints: &Hints) -> Result<Vec<Info>> {
    let all = transport::all();
    if let Some(asked) = &hints.provider
        && !all
            .iter()
            .any(|provider| hints.admits_provider(provider.name()))
    {
        let known = all.iter().map(|provider| provider.name()).collect();
        return Err(Error::UnknownProvider {
            asked: asked.clone(),
            known,
        });
    }
    let asked = all
        .iter()
        .filter(|provider| hints.admits_provider(provider.name()));
    let offers: Vec<Info> = asked.flat_map(|provider| provider.offers()).collect();
    Ok(select(hints, &offers)?)
}
