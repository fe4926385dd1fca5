//! Opening a quorum by its URL, also while some of its nodes cannot be reached.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{runtime::Handle, task::AbortHandle, time};

use super::{
    Quorum,
    fan::Fan,
    options::{Member, QuorumOptions},
    url::{self, Address},
};
use crate::{
    Error, Result,
    backend::{self, Backend, EventStream, Finding, Guarantees, HintSender, Hints, Inspect, OpenOptions, Opening},
    lease::{
        Answer, Decision, EndedLease, Evicted, Fence, HistoryFilter, LeaseKey, ListFilter, Names, Outcome, Page,
        Released, Renewal, Request, Resource, Standing,
    },
};

/// How often a node that could not be reached is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Opens the quorum a URL names; a minority of its nodes may join later.
pub(crate) fn open(url: &str, options: &OpenOptions) -> Opening {
    Box::pin(open_all(url.to_owned(), options.clone()))
}

async fn open_all(url: String, mut options: OpenOptions) -> Result<Arc<dyn Backend>> {
    let parsed = url::parse(&url, QuorumOptions::new().clock(Arc::clone(&options.clock)))?;
    // Each node has a little less than all of them, so that its failure can still be reported.
    options.connect_limit = options.connect_limit / 5 * 4;
    let mut fan = Fan::new();
    for (at, node) in parsed.nodes.iter().enumerate() {
        let (node, options) = (node.clone(), options.clone());
        fan.add(at, async move { open_one(&node, &options).await });
    }
    let answers = fan.all().await;
    let majority = parsed.nodes.len() / 2 + 1;
    let guarantees = answers.iter().find_map(|(_, answer)| Some(answer.as_ref().ok()?.guarantees()));
    let opened = answers.iter().filter(|(_, answer)| answer.is_ok()).count();
    let (Some(guarantees), true) = (guarantees, opened >= majority) else {
        return Err(too_few(&parsed.nodes, answers, majority));
    };
    let member = |(node, (_, answer)): (Address, (usize, Result<Arc<dyn Backend>>))| {
        let name = node.name.clone();
        let late = || Arc::new(Late::new(node, options.clone(), guarantees.clone())) as Arc<dyn Backend>;
        Member::new(name, answer.unwrap_or_else(|_| late()))
    };
    let members = parsed.nodes.into_iter().zip(answers).map(member).collect();
    Ok(Arc::new(Quorum::new(members, parsed.options)?))
}

async fn open_one(node: &Address, options: &OpenOptions) -> Result<Arc<dyn Backend>> {
    let limit = options.connect_limit;
    match time::timeout(limit, backend::open(&node.url, options)).await {
        Ok(opened) => opened,
        Err(_) => Err(Error::unavailable(format!("did not answer within {limit:?}"))),
    }
}

fn too_few(nodes: &[Address], answers: Vec<(usize, Result<Arc<dyn Backend>>)>, majority: usize) -> Error {
    let mut failures = Vec::new();
    for (at, answer) in answers {
        match answer {
            Ok(_) => {}
            // What is wrong with the URL is wrong with all of them.
            Err(error) if !error.is_retryable() => return error,
            Err(error) => failures.push(format!("{} ({error})", nodes[at].name)),
        }
    }
    Error::unavailable(format!(
        "redlock: {majority} of {} nodes are needed and cannot be reached: {}",
        nodes.len(),
        failures.join(", ")
    ))
}

/// A node that could not be reached yet; it is tried until it can.
struct Late {
    name: String,
    guarantees: Guarantees,
    opened: Arc<OnceLock<Arc<dyn Backend>>>,
    hints: HintSender,
    task: AbortHandle,
}

impl Late {
    fn new(node: Address, options: OpenOptions, guarantees: Guarantees) -> Self {
        let opened = Arc::new(OnceLock::new());
        let hints = HintSender::new();
        let name = node.name.clone();
        let task = Handle::current().spawn(reach(node, options, Arc::clone(&opened), hints.clone())).abort_handle();
        Self { name, guarantees, opened, hints, task }
    }

    fn backend(&self) -> Result<&Arc<dyn Backend>> {
        self.opened.get().ok_or_else(|| Error::unavailable("could not be reached yet"))
    }
}

async fn reach(node: Address, options: OpenOptions, opened: Arc<OnceLock<Arc<dyn Backend>>>, hints: HintSender) {
    let backend = loop {
        time::sleep(AGAIN).await;
        if let Ok(backend) = open_one(&node, &options).await {
            break backend;
        }
    };
    let mut told = backend.hints();
    let _first = opened.set(backend);
    while let Some(hint) = told.next().await {
        hints.send(hint);
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Late").field("name", &self.name).field("opened", &self.opened.get()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Late {
    fn guarantees(&self) -> Guarantees {
        self.guarantees.clone()
    }

    fn hints(&self) -> Hints {
        self.hints.subscribe()
    }

    async fn acquire(&self, request: &Request) -> Result<Answer<Decision>> {
        self.backend()?.acquire(request).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        self.backend()?.renew(renewals).await
    }

    async fn release(&self, key: &LeaseKey, outcome: &Outcome) -> Result<Answer<Released>> {
        self.backend()?.release(key, outcome).await
    }

    fn age(&self) -> Option<Duration> {
        self.opened.get()?.age()
    }
}

#[async_trait]
impl Inspect for Late {
    async fn evict(&self, resource: &Resource, expected: Fence, reason: &str) -> Result<Evicted> {
        self.backend()?.evict(resource, expected, reason).await
    }

    async fn list(&self, filter: &ListFilter) -> Result<Page> {
        self.backend()?.list(filter).await
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
        self.backend()?.history(filter).await
    }

    async fn watch(&self, names: Names) -> Result<EventStream> {
        self.backend()?.watch(names).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.backend()?.examine().await
    }
}
