//! Metrics in a file, added up over runs.

use std::fs;

use crate::sandbox::{Running, Sandbox};

/// The number of this series.
fn number(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)).unwrap_or_else(|| panic!("{series}: {text}"));
    line.trim().parse().unwrap()
}

#[test]
fn runs_add_up_also_when_several_end_at_once() {
    let sandbox = Sandbox::new();
    let folder = sandbox.path("metrics");
    fs::create_dir(&folder).unwrap();
    let folder = folder.to_str().unwrap();
    let flags = ["run", "--metrics-textfile", folder];
    let mut readers: Vec<Running> =
        (0..6).map(|_| sandbox.start(&[&flags[..], &["-s", "x", "--", "true"]].concat())).collect();
    for reader in &mut readers {
        assert_eq!(reader.code(), 0);
    }
    sandbox.run(&[&flags[..], &["--max-hold", ".1", "x", "--", "sleep", "600"]].concat()).assert_code(124);
    let holder = sandbox.hold("x");
    for wait in ["0", ".05"] {
        sandbox.run(&[&flags[..], &["-w", wait, "x", "--", "true"]].concat()).assert_code(75);
    }
    drop(holder);
    let exe = env!("CARGO_BIN_EXE_leasehold");
    sandbox.run(&[&flags[..], &["x", "--", exe, "release"]].concat()).assert_code(121);

    let text = fs::read_to_string(sandbox.path("metrics/leasehold.prom")).unwrap();
    let shared = "backend=\"file\",namespace=\"default\",mode=\"shared\"";
    let exclusive = shared.replace("shared", "exclusive");
    for (series, wanted) in [
        (format!("leasehold_acquire_total{{{shared},outcome=\"acquired\"}}"), 6.0),
        (format!("leasehold_acquire_total{{{exclusive},outcome=\"acquired\"}}"), 2.0),
        (format!("leasehold_acquire_total{{{exclusive},outcome=\"busy\"}}"), 1.0),
        (format!("leasehold_acquire_total{{{exclusive},outcome=\"gave_up\"}}"), 1.0),
        (format!("leasehold_acquire_wait_seconds_count{{{shared},outcome=\"acquired\"}}"), 6.0),
        (format!("leasehold_hold_seconds_bucket{{{shared},end=\"released\",le=\"+Inf\"}}"), 6.0),
        (format!("leasehold_hold_seconds_count{{{exclusive},end=\"max_hold\"}}"), 1.0),
        (format!("leasehold_release_total{{{shared},outcome=\"ok\"}}"), 6.0),
        (format!("leasehold_child_kill_total{{{exclusive},signal=\"TERM\",cause=\"max_hold\"}}"), 1.0),
    ] {
        assert!((number(&text, &series) - wanted).abs() < f64::EPSILON, "{series}: {text}");
    }
    assert!(text.contains("leasehold_lost_total{"), "{text}");
    let names: Vec<&str> =
        text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(' ').next().unwrap()).collect();
    let mut distinct = names.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(names.len(), distinct.len(), "each series once: {text}");
    let left: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains(".tmp"))
        .collect();
    assert_eq!(left, [""; 0]);
}

#[test]
fn what_is_no_file_of_ours_is_left_as_it_is() {
    let sandbox = Sandbox::new();
    let folder = sandbox.path("metrics");
    fs::create_dir(&folder).unwrap();
    let (file, run) =
        (folder.join("leasehold.prom"), ["run", "--metrics-textfile", folder.to_str().unwrap(), "x", "--", "true"]);
    fs::write(&file, b"leasehold_lost_total{} 7\n\xff\n").unwrap();
    let ran = sandbox.run(&run);
    ran.assert_code(0);
    assert!(ran.stderr.contains("leasehold.prom"), "{ran:?}");
    assert_eq!(fs::read(&file).unwrap(), b"leasehold_lost_total{} 7\n\xff\n");
    fs::remove_file(&file).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &file, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    let ran = sandbox.run(&run);
    ran.assert_code(0);
    assert!(ran.stderr.contains("not a regular file"), "{ran:?}");
}
