//! The parameters of the environment (`fi_getparams(3)`). Each case is a process of its own, with
//! its own environment.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fabric_async::info::parameters;
use fabric_async::{EpType, Hints, Protocol, discover};

/// Makes [`child`] run in a process that a test has started: the hint for the provider, or nothing.
const CHILD_ENV: &str = "FABRIC_TEST_PARAMETERS_CHILD";

/// Prints the offers and the parameters, in the process of a case.
#[test]
fn child() {
    let Ok(provider) = std::env::var(CHILD_ENV) else {
        return;
    };
    let hints = match provider.as_str() {
        "" => Hints::new(),
        provider => Hints::new().provider(provider),
    };
    match discover(&hints) {
        Ok(found) => {
            let name = |info: &fabric_async::Info| match (info.ep.ep_type, info.ep.protocol) {
                (EpType::Rdm, Some(Protocol::Rxm)) => "rxm".to_owned(),
                _ => info.fabric.provider.clone(),
            };
            let mut names: Vec<_> = found.iter().map(name).collect();
            names.sort_unstable();
            names.dedup();
            println!("result: {}", names.join(" "));
        }
        Err(error) => println!("result: {} {error}", error.errno()),
    }
    for parameter in parameters() {
        println!("{} = {:?}", parameter.name, parameter.value);
    }
}

/// Returns what [`child`] prints in an environment with this hint for the provider and these
/// variables.
fn discover_with(provider: &str, variables: &[(&str, &str)]) -> String {
    let program = std::env::current_exe().expect("the path of the test program");
    let mut command = Command::new(program);
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    for parameter in parameters() {
        command.env_remove(parameter.name);
    }
    let variables = variables.iter().copied();
    command.env(CHILD_ENV, provider).envs(variables);
    let output = command.output().expect("the test program starts");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{stdout}");
    stdout
}

/// Returns the rest of the line that begins with `start`.
fn line<'a>(stdout: &'a str, start: &str) -> &'a str {
    let rest = stdout.split_once(start).map(|(_, rest)| rest);
    let rest = rest.unwrap_or_else(|| panic!("no {start:?} in {stdout}"));
    rest.lines().next().unwrap_or_default()
}

#[test]
fn fi_provider_filters_the_offers() {
    for (value, provider, expected) in [
        ("", "", "rxm shm tcp udp"),
        ("shm", "", "shm"),
        ("UDP,tcp", "", "rxm tcp udp"),
        ("^tcp", "", "shm udp"),
        ("^ofi_rxm, shm", "", "tcp udp"),
        // `sim` is offered by name only, also by a name in the list.
        ("sim", "", "sim"),
        ("sim", "sim", "sim"),
        ("tcp,shm", "shm", "shm"),
    ] {
        let stdout = discover_with(provider, &[("FI_PROVIDER", value)]);
        let result = line(&stdout, "result: ");
        assert_eq!(result, expected, "FI_PROVIDER={value} for {provider:?}");
    }
    for (value, provider) in [("^tcp", "tcp"), ("shm,udp", "tcp"), ("ofi_rxm", "shm")] {
        let stdout = discover_with(provider, &[("FI_PROVIDER", value)]);
        let result = line(&stdout, "result: ");
        let variable = format!("FI_PROVIDER={value}");
        assert!(
            result.starts_with("61 ") && result.contains(&variable) && result.contains(provider),
            "{variable}: {result}"
        );
    }
}

#[test]
fn discover_refuses_invalid_values_by_name() {
    for (name, value) in [
        ("FI_PROVIDER", "verbs"),
        ("FI_PROVIDER", "^shm,,tcp"),
        ("FABRIC_SOCKET_IO", "uring"),
    ] {
        // Also where no offer depends on the parameter.
        for provider in ["", "shm"] {
            let stdout = discover_with(provider, &[(name, value)]);
            let result = line(&stdout, "result: ");
            let is_named = result.starts_with("22 ") && result.contains(name);
            assert!(is_named && result.contains(value), "{name}: {result}");
        }
    }
}

#[test]
fn parameters_have_the_values_of_the_environment() {
    let stdout = discover_with("shm", &[("FABRIC_SOCKET_IO", "epoll")]);
    assert_eq!(line(&stdout, "result: "), "shm");
    assert_eq!(line(&stdout, "FABRIC_SOCKET_IO = "), r#"Some("epoll")"#);
    assert_eq!(line(&stdout, "FI_PROVIDER = "), "None");
    let stdout = discover_with("shm", &[("FI_PROVIDER", "nothing")]);
    assert_eq!(line(&stdout, "FI_PROVIDER = "), r#"Some("nothing")"#);
}

#[test]
fn guide_lists_every_parameter() {
    let guide = include_str!("../src/guide/defaults.rs");
    let section = guide.split_once("//! # Environment").expect("a section").1;
    let rows = section.lines().filter(|line| line.starts_with("//! | `"));
    let rows: Vec<_> = rows.collect();
    let expected: Vec<_> = parameters()
        .into_iter()
        .map(|parameter| {
            format!(
                "//! | `{}` | {} | {} | {} |",
                parameter.name, parameter.kind, parameter.default, parameter.help
            )
        })
        .collect();
    assert!(!expected.is_empty());
    assert_eq!(rows, expected);
}

/// Returns the Rust files below a folder, apart from those of tests.
fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the crates") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            sources(&path, into);
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            into.push(path);
        }
    }
}

/// A variable that another module reads would be missing in the list.
#[test]
fn environment_is_read_in_one_module() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for package in ["fabric-core", "reactor", "fabric-async"] {
        sources(&root.join(package).join("src"), &mut files);
    }
    let reads = |path: &PathBuf| {
        let source = fs::read_to_string(path).expect("a source file");
        ["env::var", "env::vars", "getenv"]
            .iter()
            .any(|call| source.contains(call))
    };
    files.retain(reads);
    let [only] = &files[..] else {
        panic!("{files:?}")
    };
    assert!(only.ends_with("reactor/src/parameters.rs"), "{only:?}");
}
