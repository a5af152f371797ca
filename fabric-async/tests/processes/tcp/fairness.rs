//! Read responses and messages to one peer alternate.

use std::collections::VecDeque;

use fabric_async::{Access, Endpoint, FiAddr, MemoryRegion};

use crate::domain_mode::DomainMode;
use crate::run;

/// Operations in flight at the same time.
const IN_FLIGHT: usize = 16;
/// Bytes of each operation: together more than the socket buffers hold.
const LONG_LEN: usize = 3_000_001;
/// The most operations of the other kind that may complete first: the socket buffers and the peer
/// may hold some of them.
const MAX_OVERTAKING: usize = 20 * IN_FLIGHT;

/// Opens two endpoints with a handle of each other and a region of the first.
async fn open_connected_pair(
    mode: DomainMode,
) -> (Endpoint, Endpoint, FiAddr, FiAddr, MemoryRegion) {
    let open = || mode.options().bind("tcp://");
    let (owner, reader) = (open().await.unwrap(), open().await.unwrap());
    let region = owner.domain().alloc(LONG_LEN, Access::REMOTE_READ).unwrap();
    let to_owner = reader.add_peer(owner.name()).await.unwrap();
    reader.send(to_owner, "hello").await.unwrap();
    let to_reader = owner.recv().await.unwrap().source().unwrap();
    // A pending receive keeps the owner's progress going.
    tokio::spawn(owner.recv().tag(1).start().unwrap());
    (owner, reader, to_reader, to_owner, region)
}

/// A message is sent under a constant load of reads.
#[test]
fn read_responses_do_not_starve_messages() {
    for mode in DomainMode::ALL {
        run(async {
            let (owner, reader, to_reader, to_owner, region) = open_connected_pair(mode).await;
            let read = || {
                reader
                    .read(to_owner, region.remote().slice(..))
                    .start()
                    .unwrap()
            };
            let mut reads: VecDeque<_> = (0..IN_FLIGHT).map(|_| read()).collect();
            reads.pop_front().unwrap().await.unwrap();
            reads.push_back(read());
            let stop = tokio::spawn(reader.recv().start().unwrap());
            let sent = owner.send(to_reader, "stop").start().unwrap();
            let mut completed = 0;
            while !stop.is_finished() {
                assert_eq!(reads.pop_front().unwrap().await.unwrap().len(), LONG_LEN);
                reads.push_back(read());
                completed += 1;
                assert!(completed < MAX_OVERTAKING, "the message was not sent");
            }
            assert_eq!(&stop.await.unwrap().unwrap()[..], b"stop");
            for read in reads {
                read.await.unwrap();
            }
            sent.await.unwrap();
        });
    }
}

/// A read response is sent under a constant load of messages.
#[test]
fn messages_do_not_starve_read_responses() {
    for mode in DomainMode::ALL {
        run(async {
            let (owner, reader, to_reader, to_owner, region) = open_connected_pair(mode).await;
            let send = || owner.send(to_reader, vec![5; LONG_LEN]).start().unwrap();
            let mut sends: VecDeque<_> = (0..IN_FLIGHT).map(|_| send()).collect();
            assert_eq!(reader.recv().await.unwrap().len(), LONG_LEN);
            let read = tokio::spawn(
                reader
                    .read(to_owner, region.remote().slice(..))
                    .start()
                    .unwrap(),
            );
            let mut received = 0;
            while !read.is_finished() {
                sends.push_back(send());
                assert_eq!(reader.recv().await.unwrap().len(), LONG_LEN);
                received += 1;
                assert!(received < MAX_OVERTAKING, "the read response was not sent");
            }
            assert_eq!(read.await.unwrap().unwrap().len(), LONG_LEN);
            for _ in received + 1..sends.len() {
                assert_eq!(reader.recv().await.unwrap()[..], [5; LONG_LEN]);
            }
            for send in sends {
                send.await.unwrap();
            }
        });
    }
}
