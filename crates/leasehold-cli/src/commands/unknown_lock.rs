//! A name that nothing is known of: that it is so, where, and which name was perhaps meant.

use std::collections::BTreeSet;

use leasehold::{
    Leasehold, Resource,
    lease::{HistoryFilter, ListFilter, Names},
};

use super::CommandContext;
use crate::{edit_distance::edit_distance, output::Line, settings::Level, shell};

/// At most this many leases, and this many records of history, are scanned for similar names.
const MAX_SCANNED: usize = 1000;
/// The most names that are suggested.
const MAX_SUGGESTIONS: usize = 3;

/// Says that nothing is known of this name, and what to type instead of `verb` and this name.
pub(crate) async fn line(context: &CommandContext<'_>, locks: &Leasehold, name: &Resource, verb: &str) -> Line {
    let settings = &context.settings;
    let url = settings.shown_url();
    let place = settings.user_only_notice().map_or(url.clone(), |directory| format!("{url}, {}", directory.visible_to));
    let namespace = &settings.namespace;
    let words = format!("nobody holds {name}, and the history has nothing of it ({place}, namespace {namespace})");
    let similar = similar(name.as_str(), &names(locks).await);
    let commands: Vec<String> =
        similar.iter().map(|name| settings.command(&format!("{verb} {}", shell::operand(name)))).collect();
    let hint = if commands.is_empty() {
        format!("see which names there are: {}", settings.command("history"))
    } else {
        format!("a similar name: {}", commands.join("   or   "))
    };
    Line::new("unknown", words).with("lock", name.as_str()).hint(hint)
}

/// Says that no lock whose name begins so is held or waited for, and which of those that are was perhaps meant.
pub(crate) async fn no_such_prefix(context: &CommandContext<'_>, locks: &Leasehold, prefix: &str) -> Line {
    let page = locks.list(&ListFilter::new(Names::All).limit(MAX_SCANNED)).await.unwrap_or_default();
    let names: BTreeSet<String> = page.leases.iter().map(|lease| lease.resource.to_string()).collect();
    let command = |name: &String| context.settings.command(&format!("list {}", shell::operand(name)));
    let alike: Vec<String> = similar(prefix, &names).iter().map(command).collect();
    let level = if context.output.style().json { Level::Debug } else { Level::Normal };
    let line =
        Line::new("empty", format!("nobody holds or waits for a lock whose name begins with {prefix}")).at(level);
    if alike.is_empty() { line } else { line.hint(format!("a similar name: {}", alike.join("   or   "))) }
}

/// Whether nobody holds or waits for the lock, and its history is empty.
pub(crate) async fn is_unknown(locks: &Leasehold, name: &Resource) -> leasehold::Result<bool> {
    let names = Names::Exactly(name.clone());
    Ok(locks.list(&ListFilter::new(names.clone())).await?.leases.is_empty()
        && locks.history(&HistoryFilter::new(names).limit(1)).await?.is_empty())
}

/// Names that are in use or were lately; a backend that cannot tell leaves them out.
async fn names(locks: &Leasehold) -> BTreeSet<String> {
    let page = locks.list(&ListFilter::new(Names::All).limit(MAX_SCANNED)).await.unwrap_or_default();
    let history = locks.history(&HistoryFilter::new(Names::All).limit(MAX_SCANNED)).await.unwrap_or_default();
    let held = page.leases.iter().map(|lease| lease.resource.to_string());
    held.chain(history.iter().map(|ended| ended.resource.to_string())).collect()
}

/// Those that differ by a few letters, or begin with what was typed or nearly so, the nearest first.
fn similar(typed: &str, names: &BTreeSet<String>) -> Vec<String> {
    let length = typed.chars().count();
    let most = (length / 4).max(1);
    let distance = |name: &String| {
        let is_near = name.chars().count().abs_diff(length) <= most;
        let edits = is_near.then(|| edit_distance(typed, name)).filter(|edits| *edits <= most);
        let begins_nearly_so = || {
            let beginning: String = name.chars().take(length).collect();
            length > 3 && edit_distance(typed, &beginning) <= most
        };
        edits.or_else(|| (name.starts_with(typed) || begins_nearly_so()).then_some(most))
    };
    let mut near: Vec<(usize, &String)> = names.iter().filter_map(|name| Some((distance(name)?, name))).collect();
    near.sort();
    near.into_iter().filter(|(_, name)| *name != typed).take(MAX_SUGGESTIONS).map(|(_, name)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_names_are_suggested() {
        let names = ["nightly-report", "nightly-backup", "deploy:prod", "x"].map(String::from).into();
        assert_eq!(similar("nightyl-report", &names), ["nightly-report"]);
        assert_eq!(similar("nightly", &names), ["nightly-backup", "nightly-report"]);
        assert_eq!(similar("nigthly", &names), ["nightly-backup", "nightly-report"]);
        assert_eq!(similar("deploy:prd", &names), ["deploy:prod"]);
        assert_eq!(similar("y", &names), ["x"]);
        assert_eq!(similar("migrate", &names), [""; 0]);
    }
}
