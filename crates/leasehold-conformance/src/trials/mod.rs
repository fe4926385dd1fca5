//! The trials, by behaviour, and what each of them needs.

mod cancelling;
mod elections;
mod events;
mod eviction;
mod exclusion;
mod fences;
mod lifetime;
mod losses;
mod primitives;
mod program;
mod queue;
mod records;
mod runs;
mod sharing;
mod together;

use self::program::Way;
use crate::histories;
pub(crate) use crate::trial::{Trial, TrialContext};

/// Every trial there is.
#[allow(clippy::too_many_lines, reason = "a list")]
pub(crate) fn all() -> Vec<Trial> {
    [
        Trial::alone("one holds, the others are told who", exclusion::one_holds),
        Trial::alone("never two at a time under contention", exclusion::contention),
        Trial::alone("asking twice with one id gives one lease", exclusion::same_id),
        Trial::alone("a try leaves nothing behind and overtakes nobody", exclusion::try_is_modest),
        Trial::alone("releasing another's id changes nothing", exclusion::foreign_release),
        Trial::alone("a lease asked for here may be renewed and released there", exclusion::other_instance),
        vec![Trial::new("names do not contend with each other", exclusion::names_apart)],
        Trial::alone("fifty waiters are served in order, each told once", queue::fifty_waiters)
            .into_iter()
            .map(Trial::if_pushes)
            .collect(),
        vec![
            Trial::new("a queue position counts those ahead", queue::positions_are_counted).if_fifo(),
            Trial::new("leaving the middle of the queue closes the gap", queue::leaving_the_middle).if_fifo(),
            Trial::new("a waiting lease is renewed like one that holds", queue::renewing_a_position).if_fifo(),
            Trial::new("a hint comes after the state it tells of", queue::hints_tell_the_truth).if_pushes(),
            Trial::new("readers share, writers do not", sharing::readers_share),
            Trial::new("a queued writer stops later readers", sharing::writers_do_not_starve).if_fifo(),
            Trial::new("all readers behind a writer get in together", sharing::readers_get_in_together).if_fifo(),
            Trial::new("a writer that keeps reading lets the readers behind it in", sharing::downgrade).if_fifo(),
            Trial::new("a renewal gives units back but never takes more", sharing::downgrade_is_one_way),
            Trial::new("permits are weighed", sharing::permits_are_weighed),
            Trial::new("a big claim is not starved by small ones", sharing::big_claims_do_not_starve).if_fifo(),
            Trial::new("permits given back go to who waits", sharing::permits_given_back).if_fifo(),
            Trial::new("a name in use as something else is refused, naming what", sharing::wrong_shape),
            Trial::new("a free name may be used as something else", sharing::free_names_have_no_shape),
            Trial::new("fences rise over a thousand grants on several instances", fences::a_thousand_grants)
                .if_fences(),
            Trial::new("fences rise however a lease ends", fences::every_ending).if_fences(),
            Trial::new("those who share have fences of their own", fences::shared_fences).if_fences(),
            Trial::new("a floor that is asked for is reached, within reason", fences::floor_on_acquire).if_fences(),
            Trial::new("a floor on renew is stored exactly or refused", fences::floor_on_renew).if_fences(),
            Trial::new("fences stay below 2^53", fences::exact_in_json).if_fences(),
            Trial::new("renewing what is gone tells so and makes nothing", lifetime::renewing_the_gone),
            Trial::new("renewing never shortens", lifetime::renewing_never_shortens),
            Trial::new("one call renews many, each told in its order", lifetime::batches),
            Trial::new("a detached lease expires everywhere", lifetime::detached_expires),
            Trial::new("a detached lease that is renewed lives on", lifetime::detached_renewed),
            Trial::new("a waiter is told when to ask again", lifetime::ask_again),
            Trial::new("a lease that nobody renews expires", lifetime::attached_expires).if_ttl(),
            Trial::new("a queue position that nobody renews expires", lifetime::queue_position_expires).if_ttl(),
            Trial::new("the leases of an instance that is gone end with it", lifetime::gone_instance)
                .if_death_is_seen(),
            Trial::new("a waiter that does not confirm its turn loses it", lifetime::unconfirmed_turn)
                .if_death_is_seen(),
            Trial::new("a detached lease outlives its instance", lifetime::detached_outlives),
            Trial::new("a lease that its instance detaches outlives it", lifetime::detached_later),
            Trial::new("expiry to the microsecond", lifetime::exact_expiry).manual(),
            Trial::new("evicting under a stale fence changes nothing", eviction::stale_fence),
            Trial::new("an eviction is handed on and recorded with its reason", eviction::handed_on),
            Trial::new("an eviction takes one of those who share", eviction::one_of_many),
            Trial::new("who is evicted and who follows are told", eviction::told).if_pushes(),
            Trial::new("a listing tells all about holders and waiters", records::listing),
            Trial::new("a listing is by name, holders first, then the queue", records::listing_order),
            Trial::new("a listing comes in pages", records::listing_pages),
            Trial::new("names are kept as given, up to 512 bytes", records::any_name),
            Trial::new("holders, notes and metadata are kept as given", records::any_text),
            Trial::new("metadata can be replaced", records::metadata_replaced),
            Trial::new("every ending is recorded", records::endings),
            Trial::new("history is told newest first and can be searched", records::history_filters),
            Trial::new("a page of history says whether more ended", records::history_pages),
            Trial::new("an examination says something", records::examination),
            Trial::new("skipped runs are counted, with who was in the way and the last success", runs::counted)
                .if_records_runs(),
            Trial::new("records of runs are found by name and by prefix", runs::found_by_name).if_records_runs(),
            Trial::new("records of runs are bounded, the oldest are dropped first", runs::bounded).if_records_runs(),
            Trial::new("records of runs are kept for forty days after the last report", runs::kept_for_forty_days)
                .manual()
                .if_records_runs(),
            Trial::new("a follower sees everything in order", events::in_order),
            Trial::new("a follower sees only the names it asked for", events::only_these_names),
            Trial::new("a follower that reads late misses nothing in silence", events::late_reader),
            Trial::new("random histories are decided as by the model", histories::still).if_fifo(),
            Trial::new("random histories with expiry are decided as by the model", histories::moving)
                .if_fifo()
                .manual(),
        ],
        Way::each("program: locked, refused, released", primitives::locked_and_released),
        Way::each("program: waiters are served in the order they came", primitives::in_order),
        Way::each("program: a wait that is over names the holder and leaves nothing", primitives::gives_up),
        Way::each("program: a dropped guard gives back", primitives::dropped),
        vec![
            Trial::new("program: readers share and a writer can keep reading", primitives::readers_and_writer),
            Trial::new("program: permits are weighed and limits must agree", primitives::semaphore),
            Trial::new("program: work under a lock is recorded as it ended", primitives::work),
            Trial::new("program: work stops when its lease is taken away", primitives::work_stops),
            Trial::new("program: callers of one instance can share a lease", primitives::shared_by_holder),
            Trial::new("program: a guard is not held longer than it may be", primitives::max_hold),
            Trial::new("program: a detached lease is handed on by its handle", primitives::detached),
            Trial::new("program: looking for a lease does not renew it", primitives::only_looking),
            Trial::new("program: the metadata of a lease can be changed", primitives::metadata),
            Trial::new("program: pairs taken in both orders do not deadlock", together::no_deadlock),
            Trial::new("program: all or nothing", together::all_or_nothing),
            Trial::new("program: everything held can be released at once", together::release_all),
            Trial::new("program: closing ends holds and waits and refuses what comes", together::close),
            Trial::new("program: closing one instance leaves the others alone", together::close_one),
            Trial::new("program: one leads, all know who and since when", elections::one_leads),
            Trial::new("program: a leader that resigns hands on and stands again", elections::resigning),
            Trial::new("program: a deposed leader hands on and is told", elections::deposed),
            Trial::new("program: an observer sees every change of leader", elections::observing),
            Trial::new("program: a campaign is a lease like any other", elections::campaigning),
        ],
        Way::each("program: dropped at each poll, free", cancelling::free),
        Way::each("program: dropped at each poll, contended", cancelling::contended),
        vec![
            Trial::new("program: dropped at each poll, every call there is", cancelling::every_call),
            Trial::new("program: dropped at any moment of a slow backend", cancelling::any_moment),
            Trial::new("program: dropped while the request is on its way", cancelling::request_under_way),
            Trial::new("program: dropped while the reply is on its way", cancelling::reply_under_way),
            Trial::new("program: dropped while it is handed on", cancelling::hand_off),
            Trial::new("program: dropped with some of several taken", cancelling::some_of_several),
            Trial::new("program: work that is dropped gives its lock back", cancelling::work),
            Trial::new("program: a release that began is finished", cancelling::release),
            Trial::new("program: lost hints cost a renewal's time", losses::lost_hints),
            Trial::new("program: doubled and late hints change nothing", losses::odd_hints),
            Trial::new("program: a lost reply to an ask leaves one lease", losses::lost_reply),
            Trial::new("program: a lost ask is asked again", losses::lost_request),
            Trial::new("program: an ask done twice is one lease", losses::doubled_request),
            Trial::new("program: a lost reply to a release frees all the same", losses::lost_release),
            Trial::new("program: a try ends though the backend does not answer", losses::unanswered_try),
            Trial::new("program: a wait ends on time though nobody says who holds", losses::unanswered_list),
            Trial::new("program: a cut shorter than the lease loses nothing", losses::short_cut),
            Trial::new("program: chance loses no lock and leaves nothing", losses::chance),
        ],
    ]
    .into_iter()
    .flatten()
    .collect()
}
