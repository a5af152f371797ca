//! Lent bodies: read in place over shared memory, copied over TCP.

use std::convert::Infallible;

use fabric_rpc::native::{Client, Lender, Request, Response, Server};

use crate::run;

const LEN: usize = 1 << 20;
/// The answer is the request, in place.
const FORWARD: u32 = 1;
/// The answer is lent by the server.
const LEND: u32 = 2;

async fn handle(lender: Lender, in_place: bool, request: Request) -> Result<Response, Infallible> {
    assert_eq!(request.body.is_in_place(), in_place);
    assert_eq!(request.body.len(), LEN);
    let argument = request.body.as_loaned().expect("a received body");
    let mut first_and_last = [0; 2];
    argument.read_at(0, &mut first_and_last[..1]);
    argument.read_at(LEN - 1, &mut first_and_last[1..]);
    assert_eq!(first_and_last, [1, 2]);
    let mut response = match request.method {
        FORWARD => return Ok(Response::new(request.body)),
        _ => {
            let mut result = lender.lend(LEN).await.expect("memory");
            result.fill(3);
            Response::new(result)
        }
    };
    response.metadata = request.metadata;
    Ok(response)
}

#[test]
fn lent_bodies_are_read_in_place() {
    run(async |address| {
        let in_place = address.starts_with("shm");
        let server = Server::bind(address).await.unwrap();
        let (name, lender) = (server.name().to_string(), server.lender());
        let service = tower::service_fn(move |request| handle(lender.clone(), in_place, request));
        let serving = tokio::spawn(server.serve(service));
        let client = Client::connect(&name).await.unwrap();
        const ROUNDS: u64 = 20;
        for round in 0..ROUNDS {
            let mut argument = client.lend(LEN).await.unwrap();
            argument[0] = 1;
            argument[LEN - 1] = 2;
            let method = if round % 2 == 0 { FORWARD } else { LEND };
            let request = Request::new(method, argument).metadata("key", "value");
            let response = client.call(request).await.unwrap();
            assert_eq!(response.body.is_in_place(), in_place);
            assert_eq!(response.body.len(), LEN);
            if method == LEND {
                assert_eq!(response.metadata.get("key").unwrap(), "value");
                assert!(response.body.into_bytes().iter().all(|byte| *byte == 3));
            } else {
                let bytes = response.body.into_bytes();
                assert_eq!((bytes[0], bytes[LEN - 1]), (1, 2));
            }
        }
        if in_place {
            // Not a byte of the bodies went through the ring.
            let stats = client.endpoint_stats().expect("connected");
            assert_eq!(stats.loaned, ROUNDS);
            assert_eq!((stats.segmented.count, stats.single_copy_tx.count), (0, 0));
        }
        serving.abort();
    });
}

/// Pages of an argument that the handler does not touch are not copied: both processes' page of
/// the file behind it is the same, as its device and inode show.
#[test]
fn lent_argument_is_the_memory_of_the_client() {
    let runtime = tokio::runtime::Runtime::new().expect("build a runtime");
    runtime.block_on(async {
        let server = Server::bind("shm://").await.unwrap();
        let name = server.name().to_string();
        let serving = tokio::spawn(server.serve(tower::service_fn(
            |request: Request| async move {
                let argument = request.body.as_loaned().expect("a received body");
                #[allow(unsafe_code)]
                // SAFETY: the client of this test does not write to the memory.
                let address = unsafe { argument.as_slice() }.as_ptr() as usize;
                Ok::<_, Infallible>(Response::new(mapped_file(address)))
            },
        )));
        let client = Client::connect(&name).await.unwrap();
        let argument = client.lend(LEN).await.unwrap();
        let own = mapped_file(argument.as_ptr() as usize);
        assert!(own.contains("memfd"), "{own}");
        let response = client.call(Request::new(0, argument)).await.unwrap();
        assert_eq!(response.body.into_bytes(), own);
        serving.abort();
    });
}

/// Returns device, inode and name of the file that is mapped at this address of the process.
fn mapped_file(address: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the mappings");
    let mapping = maps.lines().find(|line| {
        let (begin, rest) = line.split_once('-').expect("a range");
        let (end, _) = rest.split_once(' ').expect("a range");
        let at = |text| usize::from_str_radix(text, 16).expect("an address");
        (at(begin)..at(end)).contains(&address)
    });
    let fields = mapping.expect("a mapped address").split_whitespace();
    fields.skip(3).collect::<Vec<_>>().join(" ")
}
