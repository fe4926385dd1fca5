//! `leasehold doctor`: what endangers locks here, and what the backend can promise.

use std::time::Duration;

use clap::builder::styling::AnsiColor;
use leasehold::{
    Leasehold, Resource, Ttl,
    backend::{Finding, Guarantees, Liveness, Severity},
    clock::{Clock, SystemClock},
    lease::{ListFilter, Names},
};
use serde_json::json;

use super::{CommandContext, lacks_schema};
use crate::{
    duration::{Brief, Measured},
    error::{CommandError, Result},
    exit, json, redact,
    run_command::connect_retry::ConnectRetry,
    settings::shared_with,
};

/// Round trips that are measured, unless they take too long.
const CALLS: usize = 50;
/// How long measuring may take.
const MEASURED: Duration = Duration::from_secs(2);
/// A name nobody uses.
const PROBE: &str = "leasehold-doctor-probe";

/// Prints what was found; exit 1 if something will hurt.
pub(crate) async fn run(context: &CommandContext<'_>) -> Result<u8> {
    let connected = context.open(None, &ConnectRetry::once(&context.settings, context.output)).await;
    let (findings, kind) = match connected {
        Ok(locks) => (examine(context, &locks).await, Some(locks.guarantees().kind)),
        Err(failure) => {
            let subject = match failure.code {
                exit::UNAVAILABLE => "reachable",
                exit::NO_PERMISSION => "rights",
                _ if lacks_schema(&failure) => "schema",
                _ if lacks_parent(&failure) => "place",
                _ => return Err(failure),
            };
            let hint = failure.hint.map(|hint| format!(" → {hint}")).unwrap_or_default();
            (vec![Finding::new(Severity::Failure, subject, failure.message + &hint)], None)
        }
    };
    let count = |severity: Severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (failures, warnings) = (count(Severity::Failure), count(Severity::Warning));
    if context.output.style().json {
        let findings: Vec<_> = findings
            .iter()
            .map(|finding| {
                let words = redact::scrub(&redact::redact_urls(&finding.message), &context.settings.url);
                json!({"severity": word(finding.severity), "subject": finding.subject, "words": words})
            })
            .collect();
        json::print(
            json!({
                "v": 1, "backend": kind, "url": context.settings.shown_url(), "namespace": context.settings.namespace,
                "findings": findings, "failures": failures, "warnings": warnings,
            })
            .to_string(),
        )?;
    } else {
        json::write(&render(context, &findings, failures, warnings))?;
    }
    Ok(if failures > 0 { exit::NO } else { exit::OK })
}

/// Whether the directory of `file:` is to be made in one that does not exist: a disk may not be mounted.
fn lacks_parent(failure: &CommandError) -> bool {
    failure.code == exit::CONFIG && failure.message.contains("creates only the last directory of ")
}

async fn examine(context: &CommandContext<'_>, locks: &Leasehold) -> Vec<Finding> {
    let reached = round_trips(locks).await;
    let mut findings = match locks.examine().await {
        Ok(found) => found,
        Err(error) => vec![Finding::new(Severity::Failure, "examination", format!("{error:#}"))],
    };
    findings.extend(ttl_against_round_trip(context, locks, &reached));
    // Some backends measure each of their servers.
    if reached.severity == Severity::Failure || findings.iter().all(|finding| finding.subject != reached.subject) {
        findings.insert(0, reached);
    }
    match (context.settings.user_only_notice(), context.settings.default_directory()) {
        (Some(directory), _) => findings.push(Finding::new(Severity::Warning, "place", directory.sentence())),
        (None, Some(Ok(place))) => {
            let words = format!("{}, {}", place.path().display(), shared_with(place.path()));
            findings.push(Finding::new(Severity::Ok, "place", words));
        }
        _ => {}
    }
    findings.push(promises(&locks.guarantees()));
    findings
}

async fn round_trips(locks: &Leasehold) -> Finding {
    let probe = Resource::new(PROBE).expect("the name is short and plain");
    let filter = ListFilter::new(Names::Exactly(probe));
    let mut took = Vec::with_capacity(CALLS);
    let first = SystemClock.now();
    while took.len() < CALLS && SystemClock.now().since(first) < MEASURED {
        let started = SystemClock.now();
        if let Err(error) = locks.list(&filter).await {
            return Finding::new(Severity::Failure, "reachable", format!("{error:#}"));
        }
        took.push(SystemClock.now().since(started));
    }
    took.sort_unstable();
    let (median, most) = (took[took.len() / 2], took[took.len() - 1]);
    let severity = if most > Duration::from_secs(1) { Severity::Warning } else { Severity::Ok };
    Finding::new(severity, "reachable", format!("{} median, {} at most", Measured(median), Measured(most)))
}

/// Warns if slow answers could use up the ttl.
fn ttl_against_round_trip(context: &CommandContext<'_>, locks: &Leasehold, reached: &Finding) -> Option<Finding> {
    if locks.guarantees().liveness != Liveness::Ttl || reached.severity == Severity::Failure {
        return None;
    }
    let ttl = context.settings.ttl.unwrap_or(Ttl::DEFAULT.get());
    let words = format!("{} by default, renewed every {}", Brief(ttl), Brief(ttl / 3));
    Some(Finding::new(
        if reached.severity == Severity::Warning { Severity::Warning } else { Severity::Ok },
        "ttl",
        words,
    ))
}

fn promises(guarantees: &Guarantees) -> Finding {
    let yes = |promised: bool| if promised { "yes" } else { "no" };
    Finding::new(
        Severity::Info,
        "guarantees",
        format!(
            "fences: {} · fair queue: {} · pushed grants: {} · survives a restart: {}",
            yes(guarantees.fences),
            yes(guarantees.fifo),
            yes(guarantees.pushes),
            yes(guarantees.survives_restart)
        ),
    )
}

const fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "info",
        Severity::Ok => "ok",
        Severity::Warning => "warn",
        Severity::Failure => "FAIL",
    }
}

fn render(context: &CommandContext<'_>, findings: &[Finding], failures: usize, warnings: usize) -> String {
    let mut lines = Vec::new();
    for finding in findings {
        let color = match finding.severity {
            Severity::Info => AnsiColor::Cyan,
            Severity::Ok => AnsiColor::Green,
            Severity::Warning => AnsiColor::Yellow,
            Severity::Failure => AnsiColor::Red,
        };
        let word = word(finding.severity);
        let mark = if context.output.style().color_out {
            let style = color.on_default();
            format!("{style}{word:<5}{style:#}")
        } else {
            format!("{word:<5}")
        };
        let words = redact::scrub(&redact::redact_urls(&finding.message), &context.settings.url);
        lines.push(format!("  {mark} {:<18} {}", finding.subject, words.replace(char::is_control, " ")));
    }
    let plural = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    lines.push(format!("{}, {}\n", plural(failures, "failure"), plural(warnings, "warning")));
    lines.join("\n")
}
