//! The provider `sim`: the seed in an endpoint's name determines the interleaving of its senders.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use fabric_async::{AddressVector, Domain, Endpoint, Fabric, Hints, discover};

/// Messages of each sender.
const COUNT: u8 = 40;

/// Polls an operation once: the domain makes one progress pass.
fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn open(name: &str) -> (Domain, AddressVector, Endpoint) {
    let info = discover(&Hints::new().provider("sim")).unwrap().remove(0);
    let fabric = Fabric::open(&info).unwrap();
    let domain = fabric.domain(&info).unwrap();
    let av = domain.address_vector().unwrap();
    let builder = domain.endpoint(&info).unwrap().name(name).unwrap();
    let endpoint = builder.bind_av(&av).unwrap().enable().unwrap();
    (domain, av, endpoint)
}

/// Sends messages from two endpoints to one with this name, and polls the three in turn. Returns
/// the messages in the order of their arrival: the sender, and the number of the message.
fn receive_interleaved(name: &str) -> Vec<(u8, u8)> {
    let (_domain, _av, receiver) = open(name);
    let senders = [0, 1].map(|sender| open(&format!("sim://interleaved-{sender}")));
    let peers = senders
        .each_ref()
        .map(|(_, av, _)| av.insert(receiver.name()).unwrap());
    let mut sends: Vec<_> = (0..2)
        .map(|sender| {
            let (endpoint, peer) = (&senders[sender].2, peers[sender]);
            Box::pin(async move {
                for number in 0..COUNT {
                    endpoint
                        .send(peer, vec![sender as u8, number])
                        .await
                        .unwrap();
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let mut recv = pin!(async {
        let mut arrived = Vec::new();
        for _ in 0..2 * COUNT {
            let message = receiver.recv().await.unwrap();
            arrived.push((message[0], message[1]));
        }
        arrived
    });
    let mut is_sent = [false; 2];
    loop {
        if let Poll::Ready(arrived) = poll_once(recv.as_mut()) {
            return arrived;
        }
        for (send, is_sent) in sends.iter_mut().zip(&mut is_sent) {
            *is_sent = *is_sent || poll_once(send.as_mut()).is_ready();
        }
    }
}

#[test]
fn seed_determines_the_interleaving_of_senders() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    // The runtime never runs, so its clock and its driver task change nothing.
    let _entered = runtime.enter();
    let mut orders = Vec::new();
    for seed in 0..8 {
        let name = format!("sim://interleaved@{seed}+6");
        let arrived = receive_interleaved(&name);
        for sender in 0..2 {
            let numbers = arrived.iter().filter(|message| message.0 == sender);
            assert!(numbers.map(|message| message.1).eq(0..COUNT), "{arrived:?}");
        }
        assert_eq!(arrived, receive_interleaved(&name), "seed {seed}");
        orders.push(arrived);
    }
    assert!(orders.iter().any(|order| *order != orders[0]));
}
