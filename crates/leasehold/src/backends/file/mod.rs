//! `file:`: leases in a local directory, shared by the processes of one machine. Linux only.
//!
//! A lease lasts as long as its process, unless it is detached. Each operation
//! locks a latch file (`latch.rs`), runs the [model](crate::backend::model),
//! and replaces the record atomically. Each instance has one FIFO, which serves
//! two purposes: other processes write notifications to it, and the kernel
//! closes it when the process dies, so that the others notice.
//!
//! Writing to the FIFO of a process that dies at that moment raises `SIGPIPE`.
//! Rust programs ignore that signal from their start; do not restore its default
//! action while the program uses this backend.

mod append_file;
mod death_watch;
mod death_watch_targets;
mod decode;
mod default_directory;
mod directory;
mod encode;
mod errors;
mod event_watchers;
mod examine;
mod file_names;
mod filesystem;
mod fork_safe;
mod history;
mod inspect;
mod latch;
mod layout;
mod notifications;
mod ops;
mod options;
mod presence;
mod record;
mod record_file;
mod recovery;
mod runs;
mod safe_open;
mod spares;
mod two_directories;

use std::{collections::BTreeMap, fs, os::fd::OwnedFd, path::Path, sync::Arc};

use async_trait::async_trait;
use sha2::{Digest, Sha256};
use tokio::{runtime::Handle, task::AbortHandle};

use self::{
    death_watch::DeathWatch,
    directory::Directory,
    event_watchers::Watchers,
    history::HistoryLog,
    latch::{LatchWait, Latches},
    notifications::{NotificationInbox, NotificationReader},
    ops::{FileInstance, IfRemoved, OperationScope},
    presence::OwnPresence,
    spares::Spares,
};
pub use self::{default_directory::DefaultDirectory, options::FileOptions};
use crate::{
    Error, Result,
    backend::{
        Backend, Belief, EventStream, Finding, Guarantees, HintSender, Hints, Inspect, Liveness, OpenOptions, Opening,
        Reach,
    },
    lease::{
        Answer, Decision, EndedLease, Evicted, Fence, HistoryFilter, Incarnation, LeaseId, LeaseKey, LeasePage,
        Lifetime, ListFilter, Names, Outcome, Released, Renewal, Request, Resource, RunRecord, RunReport, Standing,
    },
    model::Expiry,
    threads::{CallersRuntime, callers_runtime, on_own_thread},
};

const RENEW_BATCH: usize = 256;

/// A backend that keeps leases in a local directory.
///
/// Open it inside a Tokio runtime with I/O and time enabled; it works only while that runtime runs.
#[derive(Debug)]
pub struct FileBackend {
    instance: Arc<FileInstance>,
    incarnation: Incarnation,
    runtime: Handle,
    notifications: Arc<NotificationReader>,
    reading_task: AbortHandle,
}

impl FileBackend {
    /// Opens the directory, creates it if necessary, and registers this process in it.
    ///
    /// # Errors
    /// `Unsupported` if several machines may share the file system, or if the directory has an incompatible format;
    /// `PermissionDenied` or `Unavailable` if the directory cannot be created or used.
    pub async fn open(options: FileOptions) -> Result<Self> {
        let runtime = Handle::current();
        let opening = runtime.clone();
        let instance = run_blocking(&runtime, move || open_instance(&options, opening)).await?;
        let (notifications, reading_task) =
            NotificationReader::start(&instance.own_presence, &instance.inbox, &runtime)
                .map_err(|error| Error::unavailable("cannot watch for notifications").caused_by(error))?;
        Ok(Self { incarnation: incarnation(&instance.boot), notifications, reading_task, instance, runtime })
    }

    /// Runs an operation: on this thread while operations are fast, otherwise on a blocking thread.
    ///
    /// `operation` returns `None` if it cannot take the latch in time; it is then run again on a blocking thread.
    ///
    /// # Cancel safety
    /// If the future is dropped, the operation either has not started or runs to completion.
    async fn run<T: Send + 'static>(
        &self,
        operation: impl Fn(&FileInstance, LatchWait) -> Result<Option<T>> + Send + 'static,
    ) -> Result<T> {
        if self.instance.is_fast()
            // The library's own threads must not wait for a disk.
            && !on_own_thread()
            && let Some(done) = operation(&self.instance, LatchWait::Briefly)?
        {
            return Ok(done);
        }
        let instance = Arc::clone(&self.instance);
        let done = run_blocking(&self.runtime, move || operation(&instance, LatchWait::Bounded)).await?;
        done.ok_or_else(|| Error::unavailable("a latch of the directory was not free; try again"))
    }

    /// Runs slow work on a blocking thread.
    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&FileInstance) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let instance = Arc::clone(&self.instance);
        run_blocking(&self.runtime, move || work(&instance)).await
    }

    fn answer<T>(&self, value: T) -> Answer<T> {
        Answer::new(value, self.incarnation).believed(Belief::Process)
    }
}

impl Drop for FileBackend {
    fn drop(&mut self) {
        if !self.instance.own_presence.is_inherited() {
            self.reading_task.abort();
            self.notifications.stop_reading_on_caller();
            if on_own_thread() {
                // Elsewhere, since a slow disk would hold up every renewal on this thread.
                let instance = Arc::clone(&self.instance);
                drop(self.runtime.spawn_blocking(move || instance.remove_files()));
            } else {
                self.instance.remove_files();
            }
        }
    }
}

fn open_instance(options: &FileOptions, runtime: Handle) -> Result<Arc<FileInstance>> {
    let directory = Arc::new(Directory::open(options)?);
    let own_presence = Arc::new(OwnPresence::create(Arc::clone(&directory))?);
    presence::tidy(&directory, &own_presence)?;
    let boot = boot_id()?;
    recovery::recover(&directory, &boot)?;
    let hints = HintSender::new();
    let watchers = Arc::new(Watchers::open(Arc::clone(&directory), Arc::clone(&own_presence))?);
    let inbox = NotificationInbox {
        hints: hints.clone(),
        watchers: Arc::clone(&watchers),
        clock: Arc::clone(&options.clock),
        runtime: runtime.clone(),
        asking_again: Arc::default(),
    };
    Ok(Arc::new(FileInstance {
        latches: Latches::new(&directory),
        death_watch: DeathWatch::new(Arc::clone(&directory), runtime, hints),
        spares: Spares::new(Arc::clone(&own_presence)),
        history: HistoryLog::new(Arc::clone(&directory)),
        inbox: Arc::new(inbox),
        clock: Arc::clone(&options.clock),
        missing_machine_directory: options
            .default_directory
            .as_ref()
            .and_then(DefaultDirectory::missing_machine_directory),
        slow: false.into(),
        directory,
        watchers,
        own_presence,
        boot,
    }))
}

/// Runs `work` on the runtime's blocking threads. It completes even if the caller is dropped.
async fn run_blocking<T: Send + 'static>(
    runtime: &Handle,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = runtime.spawn_blocking(work).await;
    let interrupted = "an operation on the directory was interrupted";
    done.unwrap_or_else(|error| Err(Error::unavailable(interrupted).caused_by(error)))
}

/// The id of the machine's current boot.
fn boot_id() -> Result<String> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let id = fs::read_to_string(path).map_err(|error| errors::cannot("read", path, error))?;
    Ok(id.trim().to_owned())
}

fn incarnation(boot: &str) -> Incarnation {
    let digest = Sha256::digest(boot);
    Incarnation(digest.iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

/// Opens `file:`, `file:///path` and so on.
pub(crate) fn open(url: &str, options: &OpenOptions) -> Opening {
    let options = FileOptions::from_url(url, &options.namespace, Arc::clone(&options.clock));
    Box::pin(async move {
        let (options, runtime) = (options?, Handle::current());
        let checked = options.clone();
        run_blocking(&runtime, move || two_directories::refuse_while_used(&checked, &boot_id()?)).await?;
        Ok(Arc::new(FileBackend::open(options).await?) as Arc<dyn Backend>)
    })
}

#[async_trait]
impl Backend for FileBackend {
    fn guarantees(&self) -> Guarantees {
        // A restart of the machine ends every process, and with it its leases.
        Guarantees::new("file", Reach::Machine, Liveness::Process).renew_batch(RENEW_BATCH).records_runs(true)
    }

    fn hints(&self) -> Hints {
        self.instance.inbox.hints.subscribe()
    }

    async fn acquire(&self, request: &Request) -> Result<Answer<Decision>> {
        let expiry = match request.lifetime {
            Lifetime::Attached => Expiry::ByPresence,
            Lifetime::Detached => Expiry::ByClock,
        };
        let request = request.clone();
        let acquire = move |instance: &FileInstance, wait| {
            two_directories::refuse_if_machine_directory_exists(instance.missing_machine_directory.as_deref())?;
            let key = &request.key;
            let scope =
                OperationScope { resource: &key.resource, lease_ids: &[key.id], wait, if_removed: IfRemoved::Refuse };
            instance.operate(&scope, |state, context, effects| state.acquire(&request, expiry, context, effects))
        };
        let decision = self.run(acquire).await?;
        if matches!(decision, Decision::Queued(_))
            && let Some(CallersRuntime::Tokio(runtime)) = callers_runtime()
        {
            self.notifications.read_on(&runtime);
        }
        Ok(self.answer(decision))
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        let renewals = renewals.to_vec();
        let standings = self.run(move |instance, wait| renew(instance, &renewals, wait)).await?;
        Ok(self.answer(standings))
    }

    async fn release(&self, key: &LeaseKey, outcome: &Outcome) -> Result<Answer<Released>> {
        let (key, outcome) = (key.clone(), outcome.clone());
        let release = move |instance: &FileInstance, wait| {
            let scope = OperationScope {
                resource: &key.resource,
                lease_ids: &[key.id],
                wait,
                if_removed: IfRemoved::CountAsDead,
            };
            let released =
                instance.operate(&scope, |state, context, effects| state.release(key.id, &outcome, context, effects));
            match released {
                Err(_) if instance.is_removed() => Ok(Some(Released::Gone)),
                released => released,
            }
        };
        Ok(self.answer(self.run(release).await?))
    }

    fn inheritable(&self) -> Option<OwnedFd> {
        self.instance.own_presence.duplicate_for_child()
    }
}

/// Renews leases resource by resource. If one resource fails, the others are still renewed.
fn renew(instance: &FileInstance, renewals: &[Renewal], wait: LatchWait) -> Result<Option<Vec<Standing>>> {
    let mut by_resource: BTreeMap<&Resource, Vec<usize>> = BTreeMap::new();
    for (at, renewal) in renewals.iter().enumerate() {
        by_resource.entry(&renewal.key.resource).or_default().push(at);
    }
    let mut standings = vec![Standing::Unknown; renewals.len()];
    let mut failure: Option<Error> = None;
    for (resource, places) in by_resource {
        let lease_ids: Vec<LeaseId> = places.iter().map(|at| renewals[*at].key.id).collect();
        let scope = OperationScope { resource, lease_ids: &lease_ids, wait, if_removed: IfRemoved::CountAsDead };
        let renewed = instance.operate(&scope, |state, context, effects| {
            places.iter().map(|at| state.renew(&renewals[*at], context, effects)).collect::<Vec<_>>()
        });
        match renewed {
            Ok(None) => return Ok(None),
            Ok(Some(renewed)) => places.iter().zip(renewed).for_each(|(at, standing)| standings[*at] = standing),
            // Others treat us as dead, so even unreadable leases are gone.
            Err(_) if instance.is_removed() => places.iter().for_each(|at| standings[*at] = Standing::Gone),
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) if standings.iter().all(|standing| *standing == Standing::Unknown) => Err(error),
        Some(error) => {
            tracing::warn!(error = format_args!("{error:#}"), "some leases were not renewed");
            Ok(Some(standings))
        }
        None => Ok(Some(standings)),
    }
}

#[async_trait]
impl Inspect for FileBackend {
    async fn evict(&self, resource: &Resource, expected: Fence, reason: &str) -> Result<Evicted> {
        let (resource, reason) = (resource.clone(), reason.to_owned());
        let evict = move |instance: &FileInstance, wait| {
            let scope = OperationScope { resource: &resource, lease_ids: &[], wait, if_removed: IfRemoved::Refuse };
            instance.operate(&scope, |state, context, effects| state.evict(expected, &reason, context, effects))
        };
        self.run(evict).await
    }

    async fn list(&self, filter: &ListFilter) -> Result<LeasePage> {
        let filter = filter.clone();
        self.run_blocking(move |instance| instance.page(&filter)).await
    }

    async fn record_runs(&self, reports: &[RunReport]) -> Result<()> {
        let reports = reports.to_vec();
        self.run_blocking(move |instance| runs::append(&instance.directory, &reports, instance.clock.wall())).await
    }

    async fn runs(&self, names: &Names) -> Result<Vec<RunRecord>> {
        let names = names.clone();
        self.run_blocking(move |instance| runs::read(&instance.directory, &names, instance.clock.wall())).await
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
        let filter = filter.clone();
        self.run_blocking(move |instance| history::read(&instance.directory, &filter)).await
    }

    async fn watch(&self, names: Names) -> Result<EventStream> {
        self.run_blocking(move |instance| instance.watch(names)).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.run_blocking(FileInstance::findings).await
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;
    use crate::{clock::SystemClock, threads};

    #[tokio::test]
    async fn no_operation_runs_on_the_io_thread() {
        let root = tempfile::tempdir().unwrap();
        let url = format!("file://{}", root.path().display());
        let options = FileOptions::from_url(&url, "test", Arc::new(SystemClock)).unwrap();
        let backend = FileBackend::open(options).await.unwrap();
        let operation = |_: &FileInstance, _| Ok(Some(thread::current().name().unwrap_or_default().to_owned()));
        let here = backend.run(operation).await.unwrap();
        assert_eq!(thread::current().name(), Some(here.as_str()), "a caller's thread does it while it is fast");
        let calling = async move { backend.run(operation).await };
        let there = threads::of_process().unwrap().io.spawn(calling).await.unwrap().unwrap();
        assert_ne!(there, "leasehold-io");
    }

    #[tokio::test]
    async fn a_backend_that_ends_on_the_io_thread_removes_its_files_elsewhere() {
        let root = tempfile::tempdir().unwrap();
        let url = format!("file://{}", root.path().display());
        let presences = root.path().join("test/presence");
        let count = move || fs::read_dir(&presences).unwrap().count();
        // Many times, since the other thread may remove them before they are counted.
        for _ in 0..100 {
            let options = FileOptions::from_url(&url, "test", Arc::new(SystemClock)).unwrap();
            let backend = FileBackend::open(options).await.unwrap();
            let count_then = count.clone();
            let end = async move {
                drop(backend);
                count_then()
            };
            let left = threads::of_process().unwrap().io.spawn(end).await.unwrap();
            while count() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            if left > 0 {
                return;
            }
        }
        panic!("the I/O thread removed the files");
    }
}
