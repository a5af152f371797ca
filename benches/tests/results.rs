//! Results: written, read back, and rendered as a table and as a page.

#![cfg(feature = "harness")]

use fabric_bench::record::{Record, parse};
use fabric_bench::{report, table};

/// The keys of the JSON stream, in their order, which must not change.
const RECORD_KEYS: [&str; 32] = [
    "bench",
    "provider",
    "op",
    "api",
    "size",
    "wait",
    "progress",
    "runtime",
    "threading",
    "msg_model",
    "window",
    "peers",
    "threads",
    "endpoints",
    "fan_in",
    "domains",
    "streams",
    "p50_ns",
    "p90_ns",
    "p99_ns",
    "p999_ns",
    "max_ns",
    "mean_ns",
    "msgs_per_s",
    "bytes_per_s",
    "cpu_user_s",
    "cpu_sys_s",
    "cpu_ns_per_msg",
    "floor_ns",
    "timer_ns",
    "idle_bytes",
    "samples",
];

fn latency_record() -> Record {
    Record {
        bench: "lat".into(),
        provider: "shm".into(),
        op: "send".into(),
        api: "await".into(),
        size: 4096,
        wait: "spin".into(),
        progress: "manual".into(),
        runtime: "current".into(),
        threading: "shared".into(),
        msg_model: "default".into(),
        window: 1,
        peers: 1,
        threads: 1,
        endpoints: 1,
        fan_in: false,
        domains: "one".into(),
        streams: 0,
        p50_ns: Some(1400.0),
        p90_ns: Some(1500.0),
        p99_ns: Some(2000.0),
        p999_ns: Some(30_000.0),
        max_ns: Some(1_000_000.0),
        mean_ns: Some(1450.5),
        msgs_per_s: Some(345_000.0),
        bytes_per_s: Some(1_413_120_000.0),
        cpu_user_s: Some(1.25),
        cpu_sys_s: Some(0.25),
        cpu_ns_per_msg: Some(2900.0),
        floor_ns: Some(200.0),
        timer_ns: Some(20.0),
        idle_bytes: Some(9000.0),
        samples: 500_000,
    }
}

#[test]
fn record_round_trips_with_stable_keys() {
    let record = latency_record();
    let json = record.to_json().expect("serialises");
    assert_eq!(parse(&json), Ok(vec![record]));
    let mut at = 0;
    for key in RECORD_KEYS {
        at += json[at..]
            .find(&format!("\"{key}\":"))
            .unwrap_or_else(|| panic!("{key} is missing or misplaced"));
    }
    assert_eq!(
        json.matches("\":").count(),
        RECORD_KEYS.len(),
        "no other keys: {json}"
    );
}

#[test]
fn unmeasured_values_are_null() {
    let record = Record {
        p999_ns: None,
        ..latency_record()
    };
    let json = record.to_json().expect("serialises");
    assert!(json.contains("\"p999_ns\":null"));
    assert_eq!(
        parse(&format!("\n{json}\n\n{json}\n")).map(|records| records.len()),
        Ok(2)
    );
}

#[test]
fn records_without_newer_keys_are_read() {
    let json = latency_record().to_json().expect("serialises");
    let old = [
        "\"timer_ns\":20.0,",
        "\"idle_bytes\":9000.0,",
        "\"threading\":\"shared\",",
        "\"msg_model\":\"default\",",
        "\"threads\":1,",
        "\"endpoints\":1,",
        "\"fan_in\":false,",
        "\"domains\":\"one\",\"streams\":0,",
        "\"cpu_ns_per_msg\":2900.0,",
    ];
    let old = old
        .into_iter()
        .fold(json.clone(), |json, key| json.replace(key, ""));
    assert!(old.len() < json.len());
    assert_eq!(
        parse(&old),
        Ok(vec![Record {
            timer_ns: None,
            idle_bytes: None,
            cpu_ns_per_msg: None,
            ..latency_record()
        }])
    );
}

#[test]
fn parse_error_names_the_line() {
    let (line, why) = parse("\n{\"bench\":\"lat\"}").expect_err("most keys are missing");
    assert_eq!(line, 2);
    assert!(why.contains("missing field"), "{why}");
    for text in ["[]", "{\n}", "8"] {
        assert!(
            parse(text)
                .is_err_and(|(line, why)| line == 1 && why.contains("not one JSON object per line"))
        );
    }
}

#[test]
fn table_row_matches_the_titles_and_omits_missing_values() {
    assert_eq!(
        table::row(&latency_record()),
        "    4KiB      1.400      1.500      2.000     30.000    1000.000      1.450      7.00     \
         345000     1.50     2.900     500000"
    );
    assert_eq!(
        table::titles("lat").len(),
        table::row(&latency_record()).len()
    );
    let stream = Record {
        bench: "bw".into(),
        window: 16,
        p999_ns: None,
        ..latency_record()
    };
    assert_eq!(
        table::row(&stream),
        "    4KiB       16        345000      1.413      1.400   1000.000       0.14     1.50     \
         2.900   500000"
    );
    let floor = Record {
        bench: "floor".into(),
        bytes_per_s: None,
        p99_ns: None,
        ..latency_record()
    };
    assert!(table::row(&floor).ends_with("1.400          -         -"));
}

#[test]
fn report_page_escapes_names_and_draws_all_records() {
    let other = Record {
        provider: "<other & \"co\">".into(),
        p50_ns: None,
        p90_ns: None,
        floor_ns: None,
        size: 0,
        ..latency_record()
    };
    let rate = Record {
        bench: "rate".into(),
        size: 8,
        window: 32,
        ..latency_record()
    };
    let floor = Record {
        bench: "floor".into(),
        op: "line".into(),
        p50_ns: Some(100.0),
        ..latency_record()
    };
    let page =
        report::render_page(&[latency_record(), other, rate, floor]).expect("something to draw");
    for part in [
        "Latency by size",
        "Percentiles at 4KiB",
        "Bandwidth by size",
        "Message rate at 8B",
    ] {
        assert!(page.contains(part), "{part} is missing");
    }
    for part in [
        "fabric shm, 4KiB: 1.4 µs",
        "7.00 times the floor",
        "&lt;other &amp; &quot;co&quot;&gt;",
    ] {
        assert!(page.contains(part), "{part} is missing");
    }
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    for part in ["NaN", "inf ", "<script", "http:", "https:", "<other"] {
        assert!(!page.contains(part), "{part} must not be in the page");
    }
}

#[test]
fn repeated_runs_merge_and_other_ops_get_own_series() {
    let run = |p50| Record {
        p50_ns: Some(p50),
        ..latency_record()
    };
    let tagged = Record {
        op: "tagged".into(),
        ..latency_record()
    };
    let page = report::render_page(&[run(1100.0), run(9900.0), run(1200.0), tagged])
        .expect("something to draw");
    assert!(
        page.contains("fabric shm, send, 4KiB: 1.2 µs")
            && page.contains("fabric shm, tagged, 4KiB: 1.4 µs")
    );
    assert!(!page.contains("9.9 µs"));
}

#[test]
fn series_names_show_what_differs() {
    let run = |op: &str, api: &str| Record {
        op: op.into(),
        api: api.into(),
        ..latency_record()
    };
    let stream = Record {
        bench: "bw".into(),
        window: 16,
        ..latency_record()
    };
    let page = report::render_page(&[
        run("send", "cq"),
        run("tagged", "cq"),
        run("tagged", "batch"),
        stream,
    ]);
    let page = page.expect("something to draw");
    for name in ["send, cq", "tagged, cq", "tagged, batch", "send, await"] {
        assert!(
            page.contains(&format!("fabric shm, {name}, 4KiB: ")),
            "{name}: {page}"
        );
    }
    let fan_in = Record {
        endpoints: 8,
        fan_in: true,
        ..latency_record()
    };
    let several = report::render_page(&[latency_record(), fan_in]).expect("something to draw");
    for name in ["endpoints 1", "endpoints 8, fan-in"] {
        assert!(
            several.contains(&format!("fabric shm, {name}, 4KiB: ")),
            "{name}: {several}"
        );
    }
    assert!(
        !page.contains("window"),
        "latencies and streams are not told apart by their window"
    );
}

#[test]
fn values_that_cannot_be_plotted_are_not_drawn() {
    for bench in ["bw", "rate"] {
        let stream = |size, rate| Record {
            bench: bench.into(),
            size,
            msgs_per_s: Some(rate),
            bytes_per_s: Some(size as f64 * rate),
            ..latency_record()
        };
        let floor = Record {
            bench: "floor".into(),
            op: "line".into(),
            p50_ns: Some(0.0),
            ..latency_record()
        };
        let sound = stream(64, 1e6);
        for odd in [0.0, -5.0, f64::NAN, f64::INFINITY, 1e6] {
            let page = report::render_page(&[
                stream(0, odd),
                stream(8, odd),
                sound.clone(),
                floor.clone(),
            ]);
            let page = page.expect("something to draw");
            assert!(page.contains("fabric shm, 64B: 64 MB/s"), "{bench} {odd}");
            assert!(
                !page.contains(", 0B: "),
                "{bench} {odd}: empty messages have no throughput"
            );
            assert_eq!(
                page.contains("Message rate at 0B"),
                odd == 1e6,
                "{bench} {odd}"
            );
            for part in ["NaN", "inf", "-5"] {
                assert!(
                    !plot_coordinates(&page).contains(part),
                    "{bench} {odd}: {part}"
                );
            }
        }
    }
    for odd in [0.0, -5.0, f64::NAN, f64::INFINITY] {
        let odd = Record {
            p50_ns: Some(odd),
            p90_ns: Some(odd),
            floor_ns: Some(odd),
            size: 0,
            ..latency_record()
        };
        let page = report::render_page(&[odd, latency_record()]).expect("something to draw");
        for part in ["NaN", "inf", "-5"] {
            assert!(!plot_coordinates(&page).contains(part), "{part}");
        }
    }
}

/// Returns the coordinates in the charts of a page, without text and the shapes of points.
fn plot_coordinates(page: &str) -> String {
    let starts = |tag: &str| {
        [" d=\"M", " x=\"", " y=\"", " width=\""]
            .iter()
            .any(|part| tag.contains(part))
    };
    let tags = page
        .split('<')
        .filter_map(|tag| tag.split_once('>'))
        .map(|(tag, _)| tag);
    tags.filter(|tag| starts(tag) && !tag.contains("mark"))
        .collect()
}

#[test]
fn report_without_data_is_refused() {
    let floor = Record {
        bench: "floor".into(),
        ..latency_record()
    };
    assert!(
        report::render_page(&[floor])
            .is_err_and(|error| error.to_string().contains("nothing to draw"))
    );
}
