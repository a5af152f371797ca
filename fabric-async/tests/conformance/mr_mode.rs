//! Memory registration modes (`mr_mode`): the duties of a program in a domain that requires a bit.

use fabric_async::info::MrMode;
use fabric_async::{Access, Caps, Error, Hints, discover};

use crate::setup::{Setup, domain_requiring};

/// A domain requires the bits of its name from programs that are RMA targets, and no others.
pub(crate) async fn domain_requires_the_bits_of_its_name(setup: Setup) {
    let a = setup.requiring(MrMode::VIRT_ADDR).open_endpoint().await;
    let name = domain_requiring(MrMode::VIRT_ADDR);
    assert_eq!(
        (&a.info.domain.name, a.info.domain.mr_mode),
        (&name, MrMode::VIRT_ADDR)
    );
    let region = a.domain.alloc(8, Access::REMOTE_READ).unwrap();
    assert_ne!(region.remote().base, 0);
    let within = Hints::new().within(&a.domain).mr_mode(MrMode::VIRT_ADDR);
    let child = discover(&within).unwrap().swap_remove(0);
    assert_eq!(child.domain.domain, Some(a.domain.id()));

    let hints = |domain: &str| setup.hints().caps(setup.caps).domain_name(domain);
    let agreed = hints(&name).mr_mode(MrMode::VIRT_ADDR | MrMode::LOCAL | MrMode::ENDPOINT);
    let info = discover(&agreed).unwrap().swap_remove(0);
    assert_eq!(info.domain.mr_mode, MrMode::VIRT_ADDR);
    let Err(Error::NoMatch(refused)) = discover(&hints(&name)) else {
        panic!("the hints agree to no bit");
    };
    assert!(
        refused
            .mismatches
            .iter()
            .any(|of| of.attribute == "mr_mode"),
        "{refused}"
    );
    let messages = hints(&name).caps(Caps::MSG);
    let info = discover(&messages).unwrap().swap_remove(0);
    assert_eq!(info.domain.mr_mode, MrMode::empty());

    let collective = hints("sim+COLLECTIVE").mr_mode(MrMode::COLLECTIVE);
    let refused = discover(&collective).unwrap_err();
    assert!(
        matches!(refused, Error::NotSupported(why) if why.contains("FI_MR_COLLECTIVE")),
        "{refused}"
    );
    let refused = discover(&hints("sim+HMEM")).unwrap_err();
    assert!(matches!(refused, Error::NotSupported(_)), "{refused}");
    let refused = discover(&hints("sim+SCALABLE")).unwrap_err();
    assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
}
