//! `leasehold list`: held locks and who waits for them.

use std::{cmp::Reverse, fmt::Write as _, future::poll_fn, io::IsTerminal, time::Duration};

use leasehold::{
    Leasehold,
    lease::{ListFilter, Names},
};
use serde_json::json;

use super::{
    CommandContext,
    lock_summary::{LockSummary, expiry_words},
    unknown_lock,
};
use crate::{
    args::{ListArgs, SortBy},
    duration::Brief,
    error::Result,
    exit, json, redact,
    table::{self, Table},
};

const HEADER: [&str; 8] = ["NAME", "MODE", "HOLDER", "HELD", "EXPIRES", "WAITING", "FENCE", "NOTE"];
/// How often a live list is redrawn: its times change even if nothing happens.
const REDRAW: Duration = Duration::from_secs(1);
/// Events that come in a burst are shown together.
const BURST: Duration = Duration::from_millis(100);
/// Resources asked for at a time.
const PAGE: usize = 1000;

/// Prints the list, once or as it changes.
pub(crate) async fn run(context: &CommandContext<'_>, args: &ListArgs) -> Result<u8> {
    let locks = context.connect().await?;
    let names = args.prefix.as_deref().map_or(Names::All, with_prefix);
    if !args.watch {
        let found = collect(args, &locks, &names).await?;
        json::write(&shown(context, args, &locks, &found))?;
        if let Names::Prefix(prefix) = &names
            && !prefix.is_empty()
            && found.locks.is_empty()
            && !is_narrowed(args)
        {
            context.output.print(unknown_lock::no_such_prefix(context, &locks, prefix).await);
        }
        return Ok(exit::OK);
    }
    let mut events = locks.watch(names.clone()).await?;
    let on_screen = std::io::stdout().is_terminal() && !context.output.style().json;
    loop {
        let text = render(context, args, &locks, &names).await?;
        if json::write(&if on_screen { format!("\x1b[H\x1b[2J{text}") } else { text })? == json::OutputReader::Left {
            return Ok(exit::OK);
        }
        let tick = async { if on_screen { tokio::time::sleep(REDRAW).await } else { std::future::pending().await } };
        tokio::select! {
            event = poll_fn(|context| events.as_mut().poll_next(context)) => {
                if event.is_none() {
                    return Ok(exit::OK);
                }
                tokio::time::sleep(BURST).await;
                // What came in the meantime is in the next drawing.
                let drained = poll_fn(|context| {
                    while let std::task::Poll::Ready(Some(_)) = events.as_mut().poll_next(context) {}
                    std::task::Poll::Ready(())
                });
                drained.await;
            }
            () = tick => {}
        }
    }
}

/// The names that begin so; with or without a trailing `*`, as `history` has it.
pub(super) fn with_prefix(typed: &str) -> Names {
    Names::Prefix(typed.strip_suffix('*').unwrap_or(typed).to_owned())
}

/// Returns whether flags narrow the list further than its prefix does, or ask for lines that a script reads.
fn is_narrowed(args: &ListArgs) -> bool {
    let by_flag = args.held || args.waiting || args.no_headers;
    by_flag || args.holder.is_some() || args.mode.is_some() || args.older_than.is_some()
}

/// The locks to show.
struct LocksFound {
    locks: Vec<LockSummary>,
    /// Whether `--limit` left some out.
    truncated: bool,
}

async fn render(context: &CommandContext<'_>, args: &ListArgs, locks: &Leasehold, names: &Names) -> Result<String> {
    Ok(shown(context, args, locks, &collect(args, locks, names).await?))
}

fn shown(context: &CommandContext<'_>, args: &ListArgs, locks: &Leasehold, listed: &LocksFound) -> String {
    let LocksFound { locks: found, truncated } = listed;
    let waiting: usize = found.iter().map(|lock| lock.waiters.len()).sum();
    let settings = &context.settings;
    let kind = locks.guarantees().kind;
    if context.output.style().json {
        let object = json!({
            "v": 1,
            "locks": found.iter().map(LockSummary::to_json).collect::<Vec<_>>(),
            "waiting": waiting,
            "truncated": truncated,
            "backend": kind,
            "profile": settings.profile,
            "namespace": settings.namespace,
        });
        return format!("{object}\n");
    }
    let mut table = Table::new((!args.no_headers && !found.is_empty()).then_some(&HEADER));
    for lock in found {
        table.row(vec![
            lock.name.to_string(),
            lock.mode_words(),
            lock.holder_words(),
            lock.held_for().map(|held| Brief(held).to_string()).unwrap_or_default(),
            if lock.holders.is_empty() { String::new() } else { expiry_words(lock.expires_in(), locks) },
            lock.waiting_words(),
            lock.fence().map(|fence| fence.to_string()).unwrap_or_default(),
            redact::redact_urls(&lock.note_words()),
        ]);
    }
    let mut text = table.render(context.output.style().color_out, table::terminal_width());
    if !args.no_headers {
        let count = found.len();
        let locks_word = if count == 1 { "lock" } else { "locks" };
        let mut place = kind.to_owned();
        for remark in settings
            .profile
            .iter()
            .map(String::as_str)
            .chain(settings.user_only_notice().map(|directory| directory.visible_to))
        {
            let _infallible = write!(place, " ({remark})");
        }
        let more = if *truncated { " (there are more: use a higher --limit)" } else { "" };
        let namespace = &settings.namespace;
        let _infallible =
            writeln!(text, "{count} {locks_word}{more}, {waiting} waiting · {place} · namespace {namespace}");
    }
    text
}

/// Returns the locks that match the arguments, sorted.
async fn collect(args: &ListArgs, locks: &Leasehold, names: &Names) -> Result<LocksFound> {
    let mut found = Vec::new();
    let mut filter = ListFilter::new(names.clone()).limit(PAGE);
    loop {
        let page = locks.list(&filter).await?;
        found.extend(LockSummary::group(page.leases).into_iter().filter(|lock| is_wanted(args, lock)));
        filter.after = page.next;
        if filter.after.is_none() {
            break;
        }
    }
    match args.sort {
        SortBy::Name => found.sort_by(|a, b| a.name.cmp(&b.name)),
        SortBy::Age => found.sort_by_key(|lock| Reverse(lock.held_for())),
        SortBy::Waiters => found.sort_by_key(|lock| Reverse(lock.waiters.len())),
        SortBy::Expiry => found.sort_by_key(|lock| lock.expires_in().unwrap_or(Duration::MAX)),
    }
    let truncated = found.len() > args.limit;
    found.truncate(args.limit);
    Ok(LocksFound { locks: found, truncated })
}

fn is_wanted(args: &ListArgs, lock: &LockSummary) -> bool {
    let holder =
        |pattern: &String| lock.holders.iter().chain(&lock.waiters).any(|lease| glob(pattern, lease.holder.as_str()));
    (!args.held || !lock.holders.is_empty())
        && (!args.waiting || !lock.waiters.is_empty())
        && args.holder.as_ref().is_none_or(holder)
        && args.mode.is_none_or(|mode| lock.mode() == Some(mode.into()))
        && args.older_than.is_none_or(|age| lock.held_for().is_some_and(|held| held > age))
}

/// Whether the pattern matches the whole text; `*` is any text, `?` one character.
fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::glob;

    #[test]
    fn a_glob_matches_the_whole_holder() {
        for (pattern, text, matches) in [
            ("alice@*", "alice@web-3:1:0a", true),
            ("*@web-?:*", "alice@web-3:1", true),
            ("*@web-?:*", "alice@web-33:1", false),
            ("web", "web-1", false),
            ("*", "", true),
            ("a*b*c", "aXXbYYbZc", true),
            ("a*b*c", "aXXbYYbZ", false),
            ("", "x", false),
        ] {
            assert_eq!(glob(pattern, text), matches, "{pattern} {text}");
        }
    }
}
