//! The public API stays small enough to be read: one page of names, one page of methods.

const MAX_ROOT_NAMES: usize = 90;
const MAX_ENDPOINT_METHODS: usize = 35;

/// Returns the names that `pub use` and `pub mod` items at the crate's root export.
fn root_names(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    for item in source.split("\npub use ").skip(1) {
        let path = item.split(';').next().unwrap_or_default();
        let list = path.rsplit("::").next().unwrap_or_default();
        let list = path.split_once("::{").map_or(list, |(_, list)| list);
        let list = list.split([',', '}']).map(str::trim);
        names.extend(list.filter(|name| !name.is_empty()).map(String::from));
    }
    let modules = source.split("\npub mod ").skip(1);
    names.extend(modules.filter_map(|item| item.split(';').next().map(String::from)));
    names
}

/// Returns the names of the public methods in the `impl` blocks of `Endpoint`.
fn endpoint_methods(source: &str) -> Vec<String> {
    let heads = ["\nimpl<M: ThreadModel> Endpoint<M> {", "\nimpl Endpoint {"];
    let blocks = heads.iter().flat_map(|head| source.split(head).skip(1));
    let mut methods = Vec::new();
    for block in blocks {
        let block = block.split("\n}\n").next().unwrap_or_default();
        for line in block.lines().map(str::trim) {
            let line = line
                .strip_prefix("pub async fn ")
                .or(line.strip_prefix("pub fn "));
            let name = line.and_then(|line| line.split(['(', '<']).next());
            methods.extend(name.map(String::from));
        }
    }
    methods
}

#[test]
fn crate_root_exports_at_most_ninety_names() {
    let names = root_names(include_str!("../src/lib.rs"));
    assert!(names.contains(&"Endpoint".into()) && names.contains(&"guide".into()));
    assert!(names.len() <= MAX_ROOT_NAMES, "{}: {names:?}", names.len());
}

#[test]
fn endpoint_has_at_most_thirty_five_methods() {
    let methods: Vec<String> = [
        include_str!("../src/endpoint/mod.rs"),
        include_str!("../src/endpoint/bind.rs"),
        include_str!("../src/endpoint/messages.rs"),
        include_str!("../src/endpoint/onesided.rs"),
        include_str!("../src/endpoint/batch.rs"),
        include_str!("../src/endpoint/connect.rs"),
        include_str!("../src/multicast.rs"),
    ]
    .into_iter()
    .flat_map(endpoint_methods)
    .collect();
    assert!(methods.contains(&"send".into()) && methods.contains(&"join_multicast".into()));
    assert!(
        methods.len() <= MAX_ENDPOINT_METHODS,
        "{}: {methods:?}",
        methods.len()
    );
}
