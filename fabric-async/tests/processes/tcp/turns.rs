//! What goes to one peer takes turns: answers to its questions, and messages.

use std::collections::VecDeque;

use fabric_async::{Access, Endpoint, FiAddr, MemoryRegion, Progress};

use crate::run;

/// Under way at the same time.
const MANY: usize = 16;
/// Bytes of each, some of which the network always has room for, and not for all.
const LONG: usize = 3_000_001;
/// What is asked for comes before so many others, which the network and its peer may have taken
/// already.
const SOON: usize = 20 * MANY;

/// Two endpoints, their numbers for each other, and memory of the first.
async fn acquainted(progress: Progress) -> (Endpoint, Endpoint, FiAddr, FiAddr, MemoryRegion) {
    let open = || Endpoint::options().progress(progress).bind("tcp://");
    let (owner, reader) = (open().await.unwrap(), open().await.unwrap());
    let region = owner.domain().alloc(LONG, Access::REMOTE_READ).unwrap();
    let to_owner = reader.lookup(owner.name()).await.unwrap();
    reader.send(to_owner, "hello").await.unwrap();
    let to_reader = owner.recv().await.unwrap().source().unwrap();
    // Who serves memory makes progress: something is waited for there.
    tokio::spawn(owner.recv().tag(1).start().unwrap());
    (owner, reader, to_reader, to_owner, region)
}

/// Who always has more to be answered than the network takes gets its messages all the same.
#[test]
fn a_message_comes_between_two_answers() {
    for progress in [Progress::Manual, Progress::Auto] {
        run(async {
            let (owner, reader, to_reader, to_owner, region) = acquainted(progress).await;
            let read = || {
                reader
                    .read(to_owner, region.remote().slice(..))
                    .start()
                    .unwrap()
            };
            let mut reads: VecDeque<_> = (0..MANY).map(|_| read()).collect();
            reads.pop_front().unwrap().await.unwrap();
            reads.push_back(read());
            let stop = tokio::spawn(reader.recv().start().unwrap());
            let sent = owner.send(to_reader, "stop").start().unwrap();
            let mut answered = 0;
            while !stop.is_finished() {
                assert_eq!(reads.pop_front().unwrap().await.unwrap().len(), LONG);
                reads.push_back(read());
                answered += 1;
                assert!(answered < SOON, "the message does not come");
            }
            assert_eq!(&stop.await.unwrap().unwrap()[..], b"stop");
            for read in reads {
                read.await.unwrap();
            }
            sent.await.unwrap();
        });
    }
}

/// Who always has more messages than the network takes answers all the same.
#[test]
fn an_answer_comes_between_two_messages() {
    for progress in [Progress::Manual, Progress::Auto] {
        run(async {
            let (owner, reader, to_reader, to_owner, region) = acquainted(progress).await;
            let send = || owner.send(to_reader, vec![5; LONG]).start().unwrap();
            let mut sends: VecDeque<_> = (0..MANY).map(|_| send()).collect();
            assert_eq!(reader.recv().await.unwrap().len(), LONG);
            let read = tokio::spawn(
                reader
                    .read(to_owner, region.remote().slice(..))
                    .start()
                    .unwrap(),
            );
            let mut received = 0;
            while !read.is_finished() {
                sends.push_back(send());
                assert_eq!(reader.recv().await.unwrap().len(), LONG);
                received += 1;
                assert!(received < SOON, "the answer does not come");
            }
            assert_eq!(read.await.unwrap().unwrap().len(), LONG);
            for _ in received + 1..sends.len() {
                assert_eq!(reader.recv().await.unwrap()[..], [5; LONG]);
            }
            for send in sends {
                send.await.unwrap();
            }
        });
    }
}
