//! Peers that bind the address of a peer that has closed.

use fabric_async::{Endpoint, Error, SocketIo, WaitPolicy};

use crate::run;
use crate::skip::{Facility, skip};

/// Returns whether a connection that was not accepted yet has data in its receive queue.
fn has_unaccepted_data(listening: &Endpoint) -> bool {
    let port = listening
        .name()
        .to_string()
        .rsplit_once(':')
        .unwrap()
        .1
        .parse::<u16>()
        .unwrap();
    let local = format!("0100007F:{port:04X}");
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table
        .lines()
        .map(|row| row.split_ascii_whitespace().collect::<Vec<_>>())
        .any(|row| {
            // Established, with data, and without an inode: no process has a descriptor of it.
            row[1] == local && row[3] == "01" && !row[4].ends_with(":00000000") && row[9] == "0"
        })
}

#[test]
fn message_of_closed_peer_is_received_after_its_address_is_rebound() {
    for io in [SocketIo::Epoll, SocketIo::IoUring] {
        // No task runs on this runtime, so the endpoint makes progress only when the test polls.
        let idle_runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let options = Endpoint::options()
            .socket_io(io)
            .wait_policy(WaitPolicy::Spin);
        let ep = match idle_runtime.block_on(options.bind("tcp://")) {
            Err(Error::Os {
                call: "io_uring_setup",
                errno,
            }) => {
                skip(Facility::Uring, format!("io_uring_setup: errno {errno}"));
                continue;
            }
            bound => bound.unwrap(),
        };
        run(async {
            let first = Endpoint::bind("tcp://").await.unwrap();
            let to = first.address_vector().insert(ep.name()).unwrap();
            let (sent, received) = tokio::join!(first.send(to, "first"), ep.recv());
            sent.unwrap();
            assert_eq!(received.unwrap().buf[..], *b"first");
            first.send(to, "last").await.unwrap();
            let name = first.name().clone();
            first.close().unwrap();
            let second = Endpoint::bind(&name).await.unwrap();
            let to = second.address_vector().insert(ep.name()).unwrap();
            let sent = second.send(to, "next").start().unwrap();
            while !has_unaccepted_data(&ep) {
                tokio::task::yield_now().await;
            }
            // One pass sees the connection request before the data of the old connection.
            ep.domain().progress();
            assert_eq!(ep.recv().await.unwrap().buf[..], *b"last", "{io:?}");
            assert_eq!(ep.recv().await.unwrap().buf[..], *b"next", "{io:?}");
            sent.await.unwrap();
        });
    }
}
