//! History and records of runs: torn and huge.

use leasehold::lease::{EndedLease, RunReport};

use super::*;

fn path(root: &Path, file: &str) -> PathBuf {
    root.join("test").join(file)
}

fn append(path: &Path, bytes: &[u8]) {
    File::options().append(true).open(path).unwrap().write_all(bytes).unwrap();
}

fn success(resource: &str) -> RunReport {
    RunReport::succeeded(name(resource))
}

async fn successful(backend: &FileBackend) -> Vec<String> {
    let runs = backend.runs(&Names::All).await.unwrap().into_iter();
    runs.filter(|run| run.last_success.is_some()).map(|run| run.resource.to_string()).collect()
}

async fn history(backend: &FileBackend) -> Vec<EndedLease> {
    backend.history(&HistoryFilter::new(Names::All)).await.unwrap()
}

/// Takes and releases a lock, which adds a line to the history.
async fn pass(backend: &FileBackend, resource: &str) {
    let passing = request(resource);
    granted(backend, &passing).await;
    release(backend, &passing).await;
}

#[test]
fn a_torn_line_does_not_swallow_the_next_one() {
    in_directory(async |root| {
        let a = open(root).await;
        a.record_runs(&[success("x")]).await?;
        pass(&a, "x").await;
        append(&path(root, "logs/runs.ndjson"), b"{\"resource\":\"torn");
        append(&path(root, "logs/history.ndjson"), b"{\"resource\":\"torn");
        let b = open(root).await;
        b.record_runs(&[success("y")]).await?;
        pass(&b, "y").await;
        assert_eq!(successful(&b).await, ["x", "y"]);
        assert_eq!(history(&b).await.len(), 2);
        Ok(())
    });
}

#[test]
fn only_the_end_of_a_huge_history_is_read() {
    in_directory(async |root| {
        let a = open(root).await;
        pass(&a, "x").await;
        let path = path(root, "logs/history.ndjson");
        let line = fs::read(&path)?;
        File::options().write(true).open(&path)?.set_len(20 << 20)?;
        append(&path, b"\n");
        append(&path, &line);
        assert_eq!(history(&a).await.len(), 1);
        Ok(())
    });
}
