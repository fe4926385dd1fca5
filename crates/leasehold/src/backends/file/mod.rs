//! `file:`, one machine: a lease lives as long as its process, kept in a local directory.
//!
//! The model runs under a latch file; records are replaced by rename. Each
//! instance has one FIFO, which is its presence (the kernel closes it when the
//! process dies) and its doorbell (others write a line to wake it).
//!
//! Writing to the FIFO of a process that dies at that moment raises `SIGPIPE`,
//! which Rust programs ignore from their start; a program that restores the
//! default must not do so while it uses this backend.

mod deaths;
mod directory;
mod doorbell;
mod examine;
mod failure;
mod filesystem;
mod history;
mod latch;
mod listing;
mod names;
mod opening;
mod operate;
mod options;
mod presence;
mod reboot;
mod record;
mod watchers;

use std::{collections::BTreeMap, fs, os::fd::OwnedFd, path::Path, sync::Arc};

use async_trait::async_trait;
use sha2::{Digest, Sha256};
use tokio::{runtime::Handle, task::AbortHandle};

pub use self::options::FileOptions;
use self::{
    deaths::Deaths, directory::Directory, examine::Examination, latch::Latches, presence::OwnPresence,
    watchers::Watchers,
};
use crate::{
    Error, Result,
    backend::{Backend, EventStream, Finding, Guarantees, HintSender, Hints, Liveness, Reach, Severity},
    clock::Clock,
    lease::{
        Answer, Decision, EndedLease, Evicted, Fence, HistoryFilter, Incarnation, LeaseId, LeaseKey, Lifetime,
        ListFilter, Names, Outcome, Page, Released, Renewal, Request, Resource, Standing,
    },
    model::{Context, Effects, Expiry, State},
};

const RENEW_BATCH: usize = 256;

/// Leases kept in a local directory.
///
/// Opened inside a tokio runtime with io and time, and used while it runs.
#[derive(Debug)]
pub struct FileBackend {
    directory: Arc<Directory>,
    latches: Latches,
    deaths: Deaths,
    watchers: Arc<Watchers>,
    own: Arc<OwnPresence>,
    hints: HintSender,
    clock: Arc<dyn Clock>,
    boot: String,
    incarnation: Incarnation,
    runtime: Handle,
    listener: AbortHandle,
}

impl FileBackend {
    /// Opens the directory, making it when it is not there, and appears in it.
    ///
    /// # Errors
    /// `Unsupported` on a file system that two machines may share and on a directory of another version,
    /// `PermissionDenied` and `Unavailable` when the directory cannot be made or used.
    pub async fn open(options: FileOptions) -> Result<Self> {
        let runtime = Handle::current();
        let clock = Arc::clone(&options.clock);
        let (directory, own, boot) = elsewhere(&runtime, move || {
            let directory = Arc::new(Directory::open(&options)?);
            let own = Arc::new(OwnPresence::appear(Arc::clone(&directory))?);
            presence::tidy(&directory, &own)?;
            Ok((directory, own, boot_id()?))
        })
        .await?;
        let hints = HintSender::new();
        let watchers = Arc::new(Watchers::new(Arc::clone(&directory), Arc::clone(&own)));
        let listener = runtime.spawn(doorbell::listen(own.doorbell()?, hints.clone(), Arc::clone(&watchers)));
        let backend = Self {
            latches: Latches::new(Arc::clone(&directory), Arc::clone(&clock)),
            deaths: Deaths::new(Arc::clone(&directory), runtime.clone(), hints.clone()),
            incarnation: incarnation(&boot),
            listener: listener.abort_handle(),
            clock,
            directory,
            watchers,
            own,
            hints,
            boot,
            runtime,
        };
        backend.recover().await?;
        Ok(backend)
    }

    fn answer<T>(&self, value: T) -> Answer<T> {
        Answer { value, incarnation: self.incarnation }
    }
}

impl Drop for FileBackend {
    fn drop(&mut self) {
        self.listener.abort();
        // The listener shares it until the runtime gets to drop the task.
        self.own.vanish();
    }
}

/// Does what may take long on a slow or hung disk where nobody else has to wait for it.
async fn elsewhere<T: Send + 'static>(
    runtime: &Handle,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = runtime.spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Error::unavailable("the work on the directory was cut off").caused_by(error)))
}

/// Which life of the machine this is.
fn boot_id() -> Result<String> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let id = fs::read_to_string(path).map_err(|error| failure::failure("read", path, error))?;
    Ok(id.trim().to_owned())
}

fn incarnation(boot: &str) -> Incarnation {
    let digest = Sha256::digest(boot);
    Incarnation(digest.iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

#[async_trait]
impl Backend for FileBackend {
    fn guarantees(&self) -> Guarantees {
        Guarantees {
            kind: "file",
            reach: Reach::Machine,
            liveness: Liveness::Process,
            fifo: true,
            pushes: true,
            fences: true,
            // The place restarts with the machine, and leases end with their processes.
            survives_restart: false,
            renew_batch: RENEW_BATCH,
        }
    }

    fn hints(&self) -> Hints {
        self.hints.subscribe()
    }

    async fn acquire(&self, request: &Request) -> Result<Answer<Decision>> {
        let expiry = match request.lifetime {
            Lifetime::Attached => Expiry::ByPresence,
            Lifetime::Detached => Expiry::ByClock,
        };
        let rule = |state: &mut State, context: &Context<'_>, effects: &mut Effects| {
            state.acquire(request, expiry, context, effects)
        };
        let decision = self.operate(&request.key.resource, &[request.key.id], rule).await?;
        Ok(self.answer(decision))
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        let mut by_resource: BTreeMap<&Resource, Vec<usize>> = BTreeMap::new();
        for (at, renewal) in renewals.iter().enumerate() {
            by_resource.entry(&renewal.key.resource).or_default().push(at);
        }
        let mut standings = vec![Standing::Unknown; renewals.len()];
        let mut refused: Option<Error> = None;
        for (resource, places) in by_resource {
            let ids: Vec<LeaseId> = places.iter().map(|at| renewals[*at].key.id).collect();
            let renewed = self.operate_for_known(resource, &ids, |state, context, effects| {
                places.iter().map(|at| state.renew(&renewals[*at], context, effects)).collect::<Vec<_>>()
            });
            match renewed.await {
                Ok(told) => places.iter().zip(told).for_each(|(at, standing)| standings[*at] = standing),
                // Others take them for dead, so that not even what cannot be read is held.
                Err(_) if self.is_removed() => places.iter().for_each(|at| standings[*at] = Standing::Gone),
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) if standings.iter().all(|standing| *standing == Standing::Unknown) => Err(error),
            Some(error) => {
                tracing::warn!(%error, "some leases were not renewed");
                Ok(self.answer(standings))
            }
            None => Ok(self.answer(standings)),
        }
    }

    async fn release(&self, key: &LeaseKey, outcome: &Outcome) -> Result<Answer<Released>> {
        let rule = |state: &mut State, context: &Context<'_>, effects: &mut Effects| {
            state.release(key.id, outcome, context, effects)
        };
        match self.operate_for_known(&key.resource, &[key.id], rule).await {
            Err(_) if self.is_removed() => Ok(self.answer(Released::Gone)),
            released => released.map(|released| self.answer(released)),
        }
    }

    async fn evict(&self, resource: &Resource, expected: Fence, reason: &str) -> Result<Evicted> {
        self.operate(resource, &[], |state, context, effects| state.evict(expected, reason, context, effects)).await
    }

    async fn list(&self, filter: &ListFilter) -> Result<Page> {
        self.refuse_removed()?;
        self.page(filter).await
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
        let (directory, filter) = (Arc::clone(&self.directory), filter.clone());
        elsewhere(&self.runtime, move || history::read(&directory, &filter)).await
    }

    async fn watch(&self, names: Names) -> Result<EventStream> {
        // Nobody could tell it anything.
        self.refuse_removed()?;
        self.watchers.watch(names)
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        let presence = self.refuse_removed().err().map(|error| error.to_string());
        let examination = Examination {
            directory: Arc::clone(&self.directory),
            own: Arc::clone(&self.own),
            clock: Arc::clone(&self.clock),
            boot: self.boot.clone(),
        };
        let mut findings = elsewhere(&self.runtime, move || examination.findings()).await?;
        findings.extend(presence.map(|words| Finding::new(Severity::Failure, "presence", words)));
        Ok(findings)
    }

    fn inheritable(&self) -> Option<OwnedFd> {
        self.own.lend()
    }
}
