//! The test harness: which scenarios are registered for which combination, and their execution.
//!
//! A scenario is a test of a combination when the provider's discovery offers what the scenario
//! requires; otherwise that test does not exist. Where the provider offers it and the machine
//! cannot run it, the test is registered as ignored, one line gives the reason, and
//! `FABRIC_REQUIRE` turns it into a failure. A scenario that no combination offers is an error of
//! the table and fails [`TABLE_CHECK`].

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::RefCell;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fabric_async::SocketIo;
use libtest_mimic::{Arguments, Completion, Conclusion, Failed, FormatSetting, Trial, run};
use tokio::runtime::Builder;

use crate::combinations::combinations;
use crate::requirements::Requirements;
use crate::scenarios::SCENARIOS;
use crate::skip::{self, Facility};

/// The test that fails when a scenario runs nowhere.
const TABLE_CHECK: &str = "table::every_scenario_is_offered";
/// The test that fails when `docs/fi_domain.md` names a test that does not exist.
const PAGE_CHECK: &str = "table::tests_of_fi_domain_exist";

/// Runs the suite with these command-line arguments, which are those of libtest.
pub(crate) fn run_suite(mut args: Arguments) -> Conclusion {
    if args.test_threads.is_none() {
        let threads = std::env::var("RUST_TEST_THREADS").ok();
        args.test_threads = threads.map(|threads| {
            let threads = threads.parse().ok().filter(|threads| *threads > 0);
            threads.expect("RUST_TEST_THREADS is a positive number")
        });
    }
    record_panics();
    let (tests, rows) = register(&args);
    let selected = rows.iter().map(|row| row.run.load(Ordering::Relaxed)).sum();
    let run_state = Arc::new(RunState {
        remaining: AtomicUsize::new(selected),
        prints_summary: prints_summary(&args) && selected > 1,
        rows,
    });
    let trials = tests
        .into_iter()
        .map(|test| test.into_trial(&run_state))
        .collect();
    run(&args, trials)
}

/// Returns whether the run prints a summary: not for a list of tests, and not in JSON.
fn prints_summary(args: &Arguments) -> bool {
    !args.list && args.format != Some(FormatSetting::Json)
}

/// Whether this machine can run a test that the provider offers.
enum Verdict {
    Runs,
    /// The machine cannot run the test: the reason.
    Ignored(String),
    /// The test fails without being run: the reason.
    Fails(String),
}

/// One test.
struct Test {
    name: String,
    verdict: Verdict,
    run: Box<dyn FnOnce() + Send>,
    is_selected: bool,
}

/// The counts of one combination.
struct Row {
    combination: String,
    /// Tests that are run.
    run: AtomicUsize,
    /// Tests that were skipped: the machine cannot run them, or they ended with [`skip_scenario`].
    skipped: AtomicUsize,
    /// Scenarios whose requirements the provider does not offer.
    not_offered: usize,
}

/// State that the tests of a run share.
struct RunState {
    /// Tests that have not ended.
    remaining: AtomicUsize,
    prints_summary: bool,
    rows: Vec<Row>,
}

/// Returns whether the filters of the command line select a test, as libtest-mimic does.
fn is_selected(args: &Arguments, name: &str) -> bool {
    let matches = |pattern: &String| {
        if args.exact {
            name == pattern
        } else {
            name.contains(pattern.as_str())
        }
    };
    args.filter.as_ref().is_none_or(matches) && !args.skip.iter().any(matches)
}

/// Returns the failure of a test that needs a required facility which the machine lacks.
fn missing(facility: Facility, reason: &str) -> String {
    format!(
        "FABRIC_REQUIRE lists {}, and it is missing: {reason}",
        facility.name()
    )
}

/// Computes the tests from the table, the combinations and what discovery offers.
fn register(args: &Arguments) -> (Vec<Test>, Vec<Row>) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let mut tests = Vec::new();
    let mut rows = Vec::new();
    let mut is_offered = vec![false; SCENARIOS.len()];
    // The scenarios that are run, once for each combination.
    let mut selected = Vec::new();
    // Cached results of discovery, by offer key and requirements.
    let mut offers: Vec<(_, Requirements, Result<bool, String>)> = Vec::new();
    let mut uring_lacks = None;
    for (group, name, setup) in combinations() {
        let combination = format!("{group}::{name}");
        let lacks = if setup.socket_io == SocketIo::IoUring {
            let lacks = || runtime.block_on(setup.machine_lacks());
            uring_lacks.get_or_insert_with(lacks).clone()
        } else {
            None
        };
        let mut row = Row {
            combination,
            run: AtomicUsize::new(0),
            skipped: AtomicUsize::new(0),
            not_offered: 0,
        };
        let mut ignored = 0;
        for (at, scenario) in SCENARIOS.iter().enumerate() {
            let needs = scenario.requirements;
            let key = setup.offer_key();
            let found = offers
                .iter()
                .find(|offer| (offer.0, offer.1) == (key, needs));
            let offered = match found {
                Some((.., offered)) => offered.clone(),
                None => {
                    let offered = setup.offers_all(needs);
                    let offered = offered.map_err(|error| format!("discovery failed: {error}"));
                    offers.push((key, needs, offered.clone()));
                    offered
                }
            };
            let verdict = match (offered, &lacks) {
                (Ok(false), _) => {
                    row.not_offered += 1;
                    continue;
                }
                (Err(why), _) => Verdict::Fails(why),
                (Ok(true), Some((facility, why))) if facility.is_required() => {
                    Verdict::Fails(missing(*facility, why))
                }
                (Ok(true), Some((_, why))) => Verdict::Ignored(why.clone()),
                (Ok(true), None) => Verdict::Runs,
            };
            is_offered[at] = true;
            let name = format!("{}::{}", row.combination, scenario.name);
            let is_ignored = matches!(verdict, Verdict::Ignored(_));
            let is_selected = is_selected(args, &name) && (is_ignored || !args.ignored);
            if is_selected {
                let is_run = !is_ignored || args.ignored || args.include_ignored;
                if is_run {
                    selected.push(scenario.name);
                }
                let count = if is_run { &row.run } else { &row.skipped };
                count.fetch_add(1, Ordering::Relaxed);
                ignored += usize::from(!is_run);
            }
            let (setup, run) = (setup.with_requirements(needs), scenario.run);
            tests.push(Test {
                name,
                verdict,
                run: Box::new(move || run(setup)),
                is_selected,
            });
        }
        if let Some((facility, why)) = lacks.filter(|_| ignored > 0 && prints_summary(args)) {
            let subject = format!("{} (scenarios: {ignored})", row.combination);
            skip::report(facility, &subject, why);
        }
        rows.push(row);
    }
    let missing = SCENARIOS.iter().zip(is_offered);
    let missing = missing.filter(|(_, offered)| !*offered);
    let missing: Vec<_> = missing.map(|(scenario, _)| scenario.name).collect();
    let offered = move || {
        assert!(
            missing.is_empty(),
            "no combination offers what these scenarios require: {missing:?}"
        );
    };
    tests.push(table_check(args, &mut rows, TABLE_CHECK, offered));
    // A run of all tests runs every scenario that the page names.
    let is_whole = args.filter.is_none() && args.skip.is_empty() && !args.ignored;
    tests.push(table_check(args, &mut rows, PAGE_CHECK, move || {
        let page = include_str!("../../../docs/fi_domain.md");
        check_page(page, is_whole.then_some(&selected[..]));
    }));
    (tests, rows)
}

/// The files of tests that the page names with a prefix.
const TEST_FILES: [(&str, &[&str]); 7] = [
    (
        "core:",
        &[
            include_str!("../../../fabric-core/tests/negotiation/mr_mode.rs"),
            include_str!("../../../fabric-core/tests/negotiation/properties.rs"),
            include_str!("../../../fabric-core/tests/negotiation/result.rs"),
            include_str!("../../../fabric-core/tests/negotiation/rules.rs"),
        ],
    ),
    ("device_copies:", &[include_str!("../device_copies.rs")]),
    ("parameters:", &[include_str!("../parameters.rs")]),
    ("pinned:", &[include_str!("../pinned.rs")]),
    (
        "resource_domains:",
        &[include_str!("../resource_domains.rs")],
    ),
    ("serial:", &[include_str!("../serial.rs")]),
    (
        "processes:",
        &[
            include_str!("../processes/failed_openings.rs"),
            include_str!("../processes/tcp/msg_options.rs"),
            include_str!("../processes/tcp/network_namespaces.rs"),
            include_str!("../processes/udp/traffic_class.rs"),
        ],
    ),
];

/// Returns whether a file has a test with this name that is not ignored.
fn has_test(file: &str, name: &str) -> bool {
    let Some(at) = file.find(&format!("fn {name}(")) else {
        return false;
    };
    let item = file[..at].rsplit("\n\n").next().unwrap_or_default();
    let attributes = || {
        item.lines()
            .map(str::trim)
            .filter(|of| of.starts_with("#["))
    };
    attributes().any(|of| of == "#[test]" || of.starts_with("#[tokio::test"))
        && !attributes().any(|of| of.starts_with("#[ignore"))
}

/// Checks each test that a table of this page names. A name in backquotes with `::` is that of a
/// scenario, which must be in `selected` if there is such a list; one with a prefix of
/// [`TEST_FILES`] is that of a test in these files.
fn check_page(page: &str, selected: Option<&[&str]>) {
    let rows = page.lines().filter(|line| line.starts_with('|'));
    let names = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    let mut checked = 0;
    for name in names {
        let of_files = TEST_FILES
            .iter()
            .find_map(|(prefix, files)| Some((name.strip_prefix(prefix)?, files)));
        if let Some((test, files)) = of_files {
            let exists = files.iter().any(|file| has_test(file, test));
            assert!(exists, "docs/fi_domain.md names {name}, which is no test");
        } else if let Some((module, _)) = name.split_once("::")
            && module.starts_with(char::is_lowercase)
        {
            let exists = SCENARIOS.iter().any(|scenario| scenario.name == name);
            assert!(exists, "docs/fi_domain.md names {name}, which is no test");
            let runs = selected.is_none_or(|selected| selected.contains(&name));
            assert!(runs, "docs/fi_domain.md names {name}, which is not run");
        } else {
            continue;
        }
        checked += 1;
    }
    assert!(checked > 50, "{checked} names");
}

/// Returns a test of the tables themselves.
fn table_check(
    args: &Arguments,
    rows: &mut Vec<Row>,
    name: &str,
    check: impl FnOnce() + Send + 'static,
) -> Test {
    let is_selected = is_selected(args, name) && !args.ignored;
    rows.push(Row {
        combination: name.to_owned(),
        run: AtomicUsize::new(usize::from(is_selected)),
        skipped: AtomicUsize::new(0),
        not_offered: 0,
    });
    Test {
        name: name.to_owned(),
        verdict: Verdict::Runs,
        run: Box::new(check),
        is_selected,
    }
}

impl Test {
    fn into_trial(self, state: &Arc<RunState>) -> Trial {
        let state = state.clone();
        let is_ignored = matches!(self.verdict, Verdict::Ignored(_));
        let name = self.name.clone();
        let trial = Trial::ignorable_test(name, move || {
            let outcome = match self.verdict {
                Verdict::Runs => run_recorded(&self.name, self.run),
                Verdict::Ignored(why) => Ok(Completion::ignored_with(why)),
                Verdict::Fails(why) => Err(why.into()),
            };
            if self.is_selected {
                let is_skipped = matches!(outcome, Ok(Completion::Ignored { .. }));
                state.on_end(&self.name, is_skipped);
            }
            outcome
        });
        trial.with_ignored_flag(is_ignored)
    }
}

impl RunState {
    /// Counts a test that has ended, and prints the summary after the last one, so that the closing
    /// line of libtest-mimic follows it.
    fn on_end(&self, name: &str, is_skipped: bool) {
        if is_skipped {
            let row = self.rows.iter().find(|row| {
                let rest = name.strip_prefix(&row.combination);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            });
            let row = row.expect("every test belongs to a row");
            row.run.fetch_sub(1, Ordering::Relaxed);
            row.skipped.fetch_add(1, Ordering::Relaxed);
        }
        if self.remaining.fetch_sub(1, Ordering::AcqRel) == 1 && self.prints_summary {
            print!("{}", self.summary());
        }
    }

    /// Returns the table of the combinations of which a test was selected.
    fn summary(&self) -> String {
        let mut text = format!(
            "\n{:<34}{:>8}{:>8}{:>13}\n",
            "combination", "run", "skipped", "not offered"
        );
        let (mut all_run, mut all_skipped, mut all_not_offered) = (0, 0, 0);
        for row in &self.rows {
            let (run, skipped) = (
                row.run.load(Ordering::Relaxed),
                row.skipped.load(Ordering::Relaxed),
            );
            if run + skipped == 0 {
                continue;
            }
            let (name, not_offered) = (&row.combination, row.not_offered);
            writeln!(text, "{name:<34}{run:>8}{skipped:>8}{not_offered:>13}").unwrap();
            all_run += run;
            all_skipped += skipped;
            all_not_offered += not_offered;
        }
        writeln!(
            text,
            "{:<34}{all_run:>8}{all_skipped:>8}{all_not_offered:>13}\n",
            format!("all, of {} scenarios", SCENARIOS.len()),
        )
        .unwrap();
        text
    }
}

thread_local! {
    /// The panics of this thread while it runs a test, with their place and backtrace.
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Keeps the panics of threads that run tests for the report of the test; libtest-mimic captures no
/// output, and a test may cause panics and pass. Panics of other threads are printed as usual.
fn record_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let is_recorded = PANICS.with_borrow_mut(|panics| {
            let Some(panics) = panics else { return false };
            let backtrace = Backtrace::capture();
            let text = match backtrace.status() {
                BacktraceStatus::Captured => format!("{info}\n{backtrace}"),
                _ => info.to_string(),
            };
            panics.push(text);
            true
        });
        if !is_recorded {
            default(info);
        }
    }));
}

/// The payload of the panic that ends a scenario that [`skip_scenario`] skips.
struct SkipScenario(Facility, String);

/// Ends the running scenario as ignored, for a reason that is known only while it runs.
///
/// When `FABRIC_REQUIRE` lists the facility, the scenario fails.
pub(crate) fn skip_scenario(facility: Facility, reason: &str) -> ! {
    let payload: Box<dyn Any + Send> = Box::new(SkipScenario(facility, reason.to_owned()));
    resume_unwind(payload)
}

/// Runs a test; its failure carries all panics of the thread since its start.
fn run_recorded(name: &str, test: Box<dyn FnOnce() + Send>) -> Result<Completion, Failed> {
    PANICS.set(Some(Vec::new()));
    let ended = catch_unwind(AssertUnwindSafe(test));
    let panics = PANICS.take().unwrap_or_default();
    match ended {
        Ok(()) => Ok(Completion::Completed),
        Err(payload) => match payload.downcast::<SkipScenario>() {
            Ok(skip) => {
                let SkipScenario(facility, reason) = *skip;
                if facility.is_required() {
                    return Err(missing(facility, &reason).into());
                }
                skip::report(facility, name, &reason);
                Ok(Completion::ignored_with(reason))
            }
            Err(_) => Err(panics.join("\n").into()),
        },
    }
}
