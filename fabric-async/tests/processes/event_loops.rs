//! An event loop without a runtime that waits for a peer in another process, and for its death.

use std::os::fd::AsFd;

use fabric_async::{
    CqBind, EventKind, Fabric, Hints, OpKind, TryWait, WaitFd, WaitPolicy, discover,
};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::test_peer::TestPeer;

/// Blocks until one of the descriptors is readable.
fn wait_for_any(fds: &[WaitFd]) {
    let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
    for fd in fds {
        epoll::add(&epoll, fd.as_fd(), EventData::new_u64(0), EventFlags::IN).unwrap();
    }
    let mut events = Vec::with_capacity(1);
    let events = rustix::buffer::spare_capacity(&mut events);
    match epoll::wait(&epoll, events, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => panic!("epoll_wait: {error}"),
    }
}

#[test]
fn event_loop_is_woken_by_a_process_and_by_its_death() {
    const ROUNDS: u64 = 300;
    for policy in [WaitPolicy::Park, WaitPolicy::Adaptive] {
        let found = discover(&Hints::new().provider("shm"));
        let info = found.unwrap().swap_remove(0);
        let fabric = Fabric::open(&info).unwrap();
        let domain = fabric
            .domain_builder(&info)
            .wait_policy(policy)
            .driven_by_event_loop()
            .open()
            .expect("no runtime is needed");
        let mut eq = fabric.event_queue(16).unwrap();
        domain.bind_eq(&eq).unwrap();
        let mut cq = domain.completion_queue(16).unwrap();
        let av = domain.auto_insert_address_vector().unwrap();
        let ep = domain.endpoint(&info).unwrap();
        let ep = ep.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV).unwrap();
        let ep = ep.bind_av(&av).unwrap().enable().unwrap();
        let fds = [cq.wait_fd().unwrap(), eq.wait_fd().unwrap()];

        ep.recv_into(vec![0; 64]).tag_mask(0, !0).post().unwrap();
        let mut peer = Some(TestPeer::start("echo", &ep.name().to_string()));
        let (mut received, mut batch) = (0, Vec::new());
        let reason = 'events: loop {
            cq.try_read_batch(&mut batch, 8);
            for done in batch.drain(..) {
                if done.kind != OpKind::Recv || done.error.is_some() {
                    continue;
                }
                received += 1;
                ep.recv_into(vec![0; 64]).tag_mask(0, !0).post().unwrap();
                let source = done.transfer.source.expect("the peer is inserted");
                if received <= ROUNDS {
                    ep.send(source, received.to_le_bytes().to_vec())
                        .post()
                        .unwrap();
                } else {
                    // Drop kills the process, which blocks in its next receive.
                    peer.take();
                }
            }
            while let Some(event) = eq.try_read() {
                if let EventKind::PeerDown { reason, .. } = event.kind {
                    break 'events reason;
                }
            }
            let may_block = [cq.prepare_wait().unwrap(), eq.prepare_wait().unwrap()];
            if may_block == [TryWait::Block; 2] {
                wait_for_any(&fds);
            }
        };
        assert_eq!(received, ROUNDS + 1, "{policy:?}: {reason:?}");
    }
}
