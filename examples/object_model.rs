//! The object model step by step, for readers who know libfabric: discover, fabric, domain, queues,
//! endpoints, messages, and closing in order.
//!
//! `cargo run --release --example object_model`

use fabric_async::{
    Access, Caps, CounterBind, CqBind, Domain, EpType, Error, Fabric, Hints, Result, discover,
};
use futures_util::StreamExt;

#[tokio::main]
async fn main() -> Result<()> {
    // fi_getinfo: describe what you need, get matching offers.
    let hints = Hints::new()
        .provider("shm")
        .ep_type(EpType::Rdm)
        .caps(Caps::MSG | Caps::TAGGED | Caps::SOURCE);
    let mut info = discover(&hints)?.swap_remove(0);
    println!(
        "found {} {:?}, messages up to {} bytes",
        info.fabric.provider, info.caps, info.ep.max_msg_size
    );
    if let Err(no_match) = discover(&Hints::new().caps(Caps::TRIGGER)) {
        println!("no provider offers triggered operations:\n{no_match}");
    }

    // fi_fabric, fi_domain, fi_eq_open, fi_domain_bind. The domain cannot have more queues and
    // endpoints than the info that it is opened with says.
    (info.domain.cq_cnt, info.domain.ep_cnt) = (4, 128);
    let fabric = Fabric::open(&info)?;
    let domain = fabric.domain_builder(&info).context(42).open()?;
    let eq = fabric.event_queue(16)?;
    domain.bind_eq(&eq)?;

    // fi_cq_open, fi_av_open, fi_cntr_open, and two endpoints on them.
    let (mut cq, av, sends) = (
        domain.completion_queue(64)?,
        domain.address_vector()?,
        domain.counter()?,
    );
    let a = domain
        .endpoint(&info)?
        .bind_cq(&cq, CqBind::TRANSMIT)?
        .bind_av(&av)?;
    let a = a.bind_counter(&sends, CounterBind::SEND)?.enable()?;
    let b = domain
        .endpoint(&info)?
        .bind_cq(&cq, CqBind::RECV)?
        .bind_av(&av)?
        .enable()?;
    let to_b = av.insert(b.name())?;
    println!("{a:?} sends to {}", av.lookup(to_b)?);

    // A request can be started now and awaited later,
    let receive = b.recv_into(vec![0; 64]).tag(7).start()?;
    // awaited,
    a.send(to_b, "to the posted receive").tag(7).await?;
    println!("tag 7: {}", String::from_utf8_lossy(&receive.await?));
    // or posted to a completion queue.
    for number in 0..3 {
        b.recv_into(vec![0; 64]).context(100 + number).post()?;
        a.send(to_b, format!("message {number}"))
            .context(number)
            .post()?;
    }
    for _ in 0..6 {
        let Some(done) = cq.next().await else { break };
        println!(
            "context {:>3}: {:?} of {} bytes",
            done.context, done.kind, done.transfer.len
        );
    }
    println!("sends counted: {}", sends.wait(4).await?);

    // fi_mr_reg: a memory region with the bytes of a buffer.
    let region = domain.alloc_from(vec![0u8; 4096], Access::REMOTE_READ, None)?;
    println!("{region:?}");
    print_fid_domain(&domain);
    println!("{domain:#?}");

    // fi_getinfo restricted to the open domain: what endpoints of it can be.
    for info in discover(&Hints::new().within(&domain))? {
        println!("the domain can have {:?} endpoints", info.ep.ep_type);
    }

    // fi_close: children first. A refused close names the open children.
    let domain = match domain.close() {
        Err(refused) => {
            println!("close: {refused}");
            assert!(matches!(refused.error, Error::Busy(_)));
            refused.handle
        }
        Ok(()) => return Ok(()),
    };
    a.close()?;
    b.close()?;
    region.close()?;
    cq.close()?;
    av.close()?;
    sends.close()?;
    domain.close()?;
    eq.close()?;
    fabric.close()?;
    println!("all closed");
    Ok(())
}

/// Prints the fields of a `fid_domain`.
fn print_fid_domain(domain: &Domain) {
    let info = domain.info();
    println!("fid_domain {{");
    println!("    fid_type      : {}", domain.class());
    println!("    fid           : {:#x}", domain.id());
    println!("    parent_fid    : {:#x}", domain.fabric().id());
    println!("    provider      : {:?}", info.fabric.provider);
    println!("    caps          : {:#018x}", info.caps.bits());
    println!("    mode          : {:#018x}", info.mode.bits());
    println!("    mr_key_size   : {}", info.domain.mr_key_size);
    println!("    cq_cnt        : {}", info.domain.cq_cnt);
    println!("    ep_cnt        : {}", info.domain.ep_cnt);
    println!("    ref_count     : {}", domain.children().total());
    println!("    context       : {}", domain.context());
    println!("}}");
}
