//! Metrics of runs in a file for `node_exporter`'s textfile collector: a run is too short to be scraped, so it adds its
//! numbers to those of the runs before it.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File, Permissions},
    io,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use super::report::{Report, RunOutcome};
use crate::error::{CommandError, Result};

/// Upper ends of the buckets for times, in seconds.
const BUCKETS: [f64; 21] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0,
    1000.0, 2500.0, 3600.0,
];
/// Each metric with its type and meaning, in the order in which they are written.
const METRICS: [(&str, &str, &str); 7] = [
    ("leasehold_acquire_total", "counter", "Attempts to acquire a lock, by what came of them."),
    ("leasehold_acquire_wait_seconds", "histogram", "Time from the request to the grant or its end."),
    ("leasehold_hold_seconds", "histogram", "Time for which a lock was held."),
    ("leasehold_lost_total", "counter", "Locks that were lost before their command had ended."),
    ("leasehold_release_total", "counter", "Releases after a command, by what came of them."),
    ("leasehold_child_kill_total", "counter", "Commands that were stopped, by the signal that ended them."),
    ("leasehold_build_info", "gauge", "The version that wrote this file last."),
];
/// How often to try to lock the file, and how long to pause between two tries.
const TRIES: (u32, Duration) = (100, Duration::from_millis(10));

/// The file in which the numbers of all runs are added up.
#[derive(Debug)]
pub(crate) struct TextFile(PathBuf);

impl TextFile {
    /// Fails if the directory does not exist.
    pub(crate) fn prepare(directory: &Path) -> Result<Self> {
        if directory.is_dir() {
            return Ok(Self(directory.join("leasehold.prom")));
        }
        Err(CommandError::usage(format!("--metrics-textfile: {} is not a directory", directory.display())))
    }

    /// Adds the numbers of a run atomically.
    pub(crate) fn add(&self, report: &Report, namespace: &str) -> Result<()> {
        let add = || -> io::Result<()> {
            let guard = self.lock()?;
            let before = match regular(&self.0).and_then(|()| fs::read_to_string(&self.0)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
                read => read?,
            };
            let mut numbers = Numbers::parse(&before);
            numbers.add_run(report, namespace);
            let aside = self.0.with_extension(format!("{}.tmp", std::process::id()));
            // Left by a killed run, or a link that somebody planted: remove it, never write through it.
            let _most_often_none = fs::remove_file(&aside);
            let mut file = File::options().write(true).create_new(true).open(&aside)?;
            file.set_permissions(Permissions::from_mode(0o644))?;
            let written = io::Write::write_all(&mut file, numbers.render().as_bytes())
                .and_then(|()| fs::rename(&aside, &self.0))
                .inspect_err(|_| {
                    let _nothing_to_remove = fs::remove_file(&aside);
                });
            guard.unlock()?;
            written
        };
        add().map_err(|error| CommandError::unavailable(format!("--metrics-textfile: {}: {error}", self.0.display())))
    }

    fn lock(&self) -> io::Result<File> {
        let path = self.0.with_extension("lock");
        let made = File::options().write(true).create_new(true).mode(0o644).open(&path);
        let file = made.or_else(|_there_already| regular(&path).and_then(|()| File::open(&path)))?;
        for _ in 0..TRIES.0 {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(fs::TryLockError::WouldBlock) => thread::sleep(TRIES.1),
                Err(fs::TryLockError::Error(error)) => return Err(error),
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "another run writes to it"))
    }
}

/// Fails unless `path` is a regular file: opening a FIFO would block.
fn regular(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_file() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file; remove it"))
}

/// Numbers by series: the name, then the labels without `le`, then `le` by its size.
#[derive(Debug, Default, PartialEq)]
struct Numbers(BTreeMap<(String, String, BucketBound), f64>);

/// The upper bound of a histogram bucket, in microseconds; series without buckets sort first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum BucketBound {
    None,
    Micros(u64),
    Infinite,
}

impl BucketBound {
    fn of(seconds: f64) -> Self {
        Self::Micros(u64::try_from(Duration::from_secs_f64(seconds).as_micros()).unwrap_or(u64::MAX))
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            "+Inf" => Some(Self::Infinite),
            seconds => seconds.parse().ok().filter(|seconds| *seconds >= 0.0).map(Self::of),
        }
    }

    fn label(self) -> String {
        match self {
            Self::None => String::new(),
            Self::Micros(micros) => format!(",le=\"{}\"", Duration::from_micros(micros).as_secs_f64()),
            Self::Infinite => String::from(",le=\"+Inf\""),
        }
    }
}

impl Numbers {
    /// What a file says; lines that this program does not write are left out.
    fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            let (name, labels) = series.strip_suffix('}')?.split_once('{')?;
            let (labels, bound) = match labels.split_once(",le=\"") {
                Some((labels, bound)) => (labels, BucketBound::parse(bound.strip_suffix('"')?)?),
                None => (labels, BucketBound::None),
            };
            Some(((name.to_owned(), labels.to_owned(), bound), value.parse().ok()?))
        };
        Self(text.lines().filter(|line| !line.starts_with('#')).filter_map(line).collect())
    }

    fn add_run(&mut self, report: &Report, namespace: &str) {
        let namespace = namespace.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        let common = format!("backend=\"{}\",namespace=\"{namespace}\",mode=\"{}\"", report.backend, report.mode);
        let outcome = match (report.outcome, report.reason.as_deref()) {
            (RunOutcome::NotAcquired, Some("busy")) => "busy",
            (RunOutcome::NotAcquired, _) => "gave_up",
            (RunOutcome::Interrupted, _) if report.acquired_at.is_none() => "cancelled",
            (RunOutcome::BackendError, _) if report.acquired_at.is_none() => "error",
            _ => "acquired",
        };
        let attempt = format!("{common},outcome=\"{outcome}\"");
        self.add("leasehold_acquire_total", &attempt, BucketBound::None, 1.0);
        self.observe("leasehold_acquire_wait_seconds", &attempt, report.waited);
        if let Some(held) = report.held {
            let end = match (report.outcome, report.reason.as_deref()) {
                (RunOutcome::Lost, Some("evicted")) => "evicted",
                (RunOutcome::Lost, _) => "lost",
                (RunOutcome::MaxHold, _) => "max_hold",
                _ => "released",
            };
            self.observe("leasehold_hold_seconds", &format!("{common},end=\"{end}\""), held);
        }
        if report.outcome == RunOutcome::Lost {
            let reason = report.reason.as_deref().unwrap_or("unknown");
            self.add("leasehold_lost_total", &format!("{common},reason=\"{reason}\""), BucketBound::None, 1.0);
        }
        if let Some(released) = report.released {
            let outcome = if released { "ok" } else { "failed" };
            self.add("leasehold_release_total", &format!("{common},outcome=\"{outcome}\""), BucketBound::None, 1.0);
        }
        let cause = match report.outcome {
            RunOutcome::Lost => Some("lost"),
            RunOutcome::MaxHold => Some("max_hold"),
            _ => None,
        };
        let killed_by = report.child.as_ref().and_then(|child| child["signal"].as_str());
        if let (Some(cause), Some(signal)) = (cause, killed_by) {
            let labels = format!("{common},signal=\"{signal}\",cause=\"{cause}\"");
            self.add("leasehold_child_kill_total", &labels, BucketBound::None, 1.0);
        }
        self.0.retain(|(name, ..), _| name != "leasehold_build_info");
        let version = concat!("version=\"", env!("CARGO_PKG_VERSION"), "\"");
        self.add("leasehold_build_info", version, BucketBound::None, 1.0);
    }

    fn add(&mut self, name: &str, labels: &str, bound: BucketBound, amount: f64) {
        *self.0.entry((name.to_owned(), labels.to_owned(), bound)).or_default() += amount;
    }

    fn observe(&mut self, name: &str, labels: &str, length: Duration) {
        let seconds = length.as_secs_f64();
        for most in BUCKETS {
            let is_within = if seconds <= most { 1.0 } else { 0.0 };
            self.add(&format!("{name}_bucket"), labels, BucketBound::of(most), is_within);
        }
        self.add(&format!("{name}_bucket"), labels, BucketBound::Infinite, 1.0);
        self.add(&format!("{name}_sum"), labels, BucketBound::None, seconds);
        self.add(&format!("{name}_count"), labels, BucketBound::None, 1.0);
    }

    fn render(&self) -> String {
        let mut text = String::new();
        for (metric, kind, help) in METRICS {
            let names = ["", "_bucket", "_sum", "_count"].map(|suffix| format!("{metric}{suffix}"));
            let series: Vec<_> = self.0.iter().filter(|((name, ..), _)| names.contains(name)).collect();
            if series.is_empty() {
                continue;
            }
            let _infallible = writeln!(text, "# HELP {metric} {help}\n# TYPE {metric} {kind}");
            for ((name, labels, bound), value) in series {
                let _infallible = writeln!(text, "{name}{{{labels}{}}} {value}", bound.label());
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_added_to() {
        let mut numbers = Numbers::default();
        for millis in [3, 700, 5_000_000] {
            numbers.observe("leasehold_hold_seconds", "end=\"released\"", Duration::from_millis(millis));
        }
        let text = numbers.render();
        assert_eq!(Numbers::parse(&text), numbers, "{text}");
        for line in [
            "leasehold_hold_seconds_bucket{end=\"released\",le=\"0.0025\"} 0",
            "leasehold_hold_seconds_bucket{end=\"released\",le=\"0.005\"} 1",
            "leasehold_hold_seconds_bucket{end=\"released\",le=\"1\"} 2",
            "leasehold_hold_seconds_bucket{end=\"released\",le=\"+Inf\"} 3",
            "leasehold_hold_seconds_count{end=\"released\"} 3",
        ] {
            assert!(text.lines().any(|written| written == line), "{line}: {text}");
        }
        assert_eq!(Numbers::parse("nonsense\n{} x\nname{a=\"b\" 1\n"), Numbers::default());
    }
}
