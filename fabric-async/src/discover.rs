//! Discovery: which providers can do what is asked.

use fabric_core::info::{Hints, Info, select};
use fabric_core::{Error, Result};
use fabric_reactor::provider;

/// Asks every provider for what the hints describe (`fi_getinfo`); best first.
///
/// There is one info for each offer that satisfies the hints, adjusted to them. A provider makes several: `shm` and
/// `sim` each offer the same under manual and under automatic progress. "Best first" is a fixed order, nothing is
/// measured: `shm` before `sim`, and manual before automatic progress, which is what no wish means. So the first is
/// the one to take, and the others are there to choose from. Whoever asks for manual progress gets two infos that are
/// alike, because an offer of automatic progress satisfies that wish as well.
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
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::NoMatch`] when no provider can: it names, for every offer of every provider, the attribute, what was
/// asked and what is offered. [`Error::UnknownProvider`] when the hints name a provider that does not exist.
///
/// # Cancel safety
/// Nothing is held across an await.
#[doc(alias = "fi_getinfo")]
pub async fn discover(hints: &Hints) -> Result<Vec<Info>> {
    search(hints)
}

pub(crate) fn search(hints: &Hints) -> Result<Vec<Info>> {
    let all = provider::all();
    if let Some(asked) = &hints.provider
        && !all.iter().any(|provider| hints.admits_provider(provider.name()))
    {
        let known = all.iter().map(|provider| provider.name()).collect();
        return Err(Error::UnknownProvider { asked: asked.clone(), known });
    }
    let offers: Vec<Info> = all.iter().flat_map(|provider| provider.offers()).collect();
    Ok(select(hints, &offers)?)
}
