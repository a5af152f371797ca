//! Memory registration modes (`mr_mode`): the duties of a program in a domain that requires a bit.

use fabric_async::info::MrMode;
use fabric_async::{Access, Caps, Domain, Error, Hints, discover};

use crate::regions::open_virt_addr_owner;
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

/// With `FI_MR_PROV_KEY`, registrations that request a key fail with the buffer.
pub(crate) async fn requested_key_is_refused_if_the_provider_selects_keys(setup: Setup) {
    let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let check = |domain: &Domain| {
        assert!(domain.info().domain.mr_mode.contains(MrMode::PROV_KEY));
        let is_refused = |error: &Error| matches!(error, Error::Key { key: 7, .. });
        let refused = domain.alloc_with_key(8, both, 7).unwrap_err();
        assert!(is_refused(&refused), "{refused}");
        let refused = domain.alloc_from(vec![1; 8], both, Some(7)).unwrap_err();
        assert!(is_refused(&refused), "{refused}");
        let refused = domain.register(vec![1; 8], both, Some(7)).unwrap_err();
        assert!(is_refused(&refused.error), "{refused}");
        assert_eq!(refused.buf, [1; 8]);
        let [a, b] = [(); 2].map(|()| domain.alloc(8, both).unwrap().key());
        assert_ne!(a, b);
    };
    // `BASIC` includes the bit.
    let (domain, _owner, progress_task) = open_virt_addr_owner(&setup).await;
    check(&domain);
    progress_task.abort();
    if setup.can_choose_mr_mode() {
        check(
            &setup
                .requiring(MrMode::PROV_KEY)
                .open_endpoint()
                .await
                .domain,
        );
    }
}

/// The duties of asynchronous registrations are the same.
pub(crate) async fn asynchronous_registrations_have_the_same_duties(setup: Setup) {
    let owner = setup.requiring(MrMode::PROV_KEY).open_endpoint().await;
    let request = owner.domain.alloc_async(8, Access::REMOTE_READ);
    let refused = request.key(7).await.unwrap_err();
    assert!(matches!(refused, Error::Key { key: 7, .. }), "{refused}");
    let region = owner.domain.alloc_async(8, Access::REMOTE_READ).await;
    assert_eq!(region.unwrap().remote().len, 8);
}
