//! A hostile member of the group: whatever it puts where the group may write, others are blocked or told at worst.

use std::{
    collections::BTreeSet,
    os::unix::{fs::symlink, net::UnixListener},
};

use leasehold::lease::RunReport;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};

use super::*;

/// The group of the directory, and the user that its victims run as.
const VICTIM: u32 = 65534;
const HOSTILE: u32 = 65533;
const PRECIOUS: &str = "not for leasehold";
/// A victim that takes so long to get on for a few seconds hangs.
const LONGEST: Duration = Duration::from_secs(60);

/// What is put in the place of a file.
#[derive(Clone, Copy, Debug)]
enum Plant {
    LinkToFile,
    LinkToDirectory,
    DanglingLink,
    Fifo,
    Socket,
    Directory,
    Huge,
    Random,
    Torn,
    Empty,
}

const PLANTS: [Plant; 10] = [
    Plant::LinkToFile,
    Plant::LinkToDirectory,
    Plant::DanglingLink,
    Plant::Fifo,
    Plant::Socket,
    Plant::Directory,
    Plant::Huge,
    Plant::Random,
    Plant::Torn,
    Plant::Empty,
];

fn remove(path: &Path) -> std::io::Result<()> {
    fs::remove_file(path).or_else(|_| fs::remove_dir_all(path))
}

/// Puts it there, if others leave it the time.
fn plant(path: &Path, plant: Plant, precious: &Path, random: &mut StdRng) -> std::io::Result<()> {
    let is_small = fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() < 1 << 20);
    let there = if is_small { fs::read(path)? } else { Vec::new() };
    let _if_there = remove(path);
    match plant {
        Plant::LinkToFile => symlink(precious.join("file"), path),
        Plant::LinkToDirectory => symlink(precious, path),
        Plant::DanglingLink => symlink(precious.join("absent"), path),
        Plant::Fifo => Command::new("mkfifo").arg(path).stderr(Stdio::null()).status().map(|_| ()),
        // Closing it leaves the file.
        Plant::Socket => UnixListener::bind(path).map(|_| ()),
        Plant::Directory => fs::create_dir(path).and_then(|()| fs::write(path.join("file"), "")),
        Plant::Huge => File::create(path).and_then(|file| file.set_len(1 << 40)),
        Plant::Random => {
            fs::write(path, (0..random.random_range(1..9000)).map(|_| random.random()).collect::<Vec<u8>>())
        }
        Plant::Torn => fs::write(path, &there[..there.len() / 2]),
        Plant::Empty => fs::write(path, ""),
    }
}

/// Precious files beside the locks that only their owner, a victim, may write.
fn precious(root: &Path) -> PathBuf {
    let precious = root.with_file_name("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("file"), PRECIOUS).unwrap();
    precious
}

fn assert_unharmed(precious: &Path, after: &str) {
    assert_eq!(fs::read_to_string(precious.join("file")).unwrap(), PRECIOUS, "{after}");
    assert_eq!(files(precious.to_owned()), ["file"], "{after}");
}

/// Does everything that can be done; each call answers.
async fn use_all(backend: &FileBackend, root: &Path, held: &Request) {
    let _either = backend.acquire(&request("x")).await;
    let _either = backend.renew(&[Renewal::new(held.key.clone(), held.ttl)]).await;
    let passing = request("y");
    let _either = backend.acquire(&passing).await;
    let _either = backend.release(&passing.key, &Outcome::Completed).await;
    let _either = backend.list(&ListFilter::new(Names::All)).await;
    let _either = backend.history(&HistoryFilter::new(Names::All)).await;
    let _either = backend.record_runs(&[RunReport::succeeded(name("x"))]).await;
    let _either = backend.runs(&Names::All).await;
    let _either = backend.examine().await;
    let _either = backend.watch(Names::All).await;
    let _either = FileBackend::open(options(root, "")).await;
}

#[test]
fn nothing_in_the_way_does_harm() {
    let parent = tempfile::tempdir().unwrap();
    let root = parent.path().join("locks");
    let precious = precious(&root);
    for kind in PLANTS {
        let spots = ["records/x.json", "records/.ID-0", "records/.ID-1", "presence/ID", "presence/.new-ID"];
        let lines = ["logs/history.ndjson", "logs/history.1.ndjson", "logs/runs.ndjson", "watchers"];
        for spot in spots.into_iter().chain(lines) {
            let (root, precious) = (root.clone(), precious.clone());
            bad_files::within_a_minute(move || {
                run(meet(kind, spot, &root, &precious));
                let _as_it_was = fs::remove_dir_all(&root);
            });
        }
    }
}

/// Holds a lock, meets what was planted, and does not hold it together with another.
async fn meet(kind: Plant, spot: &str, root: &Path, precious: &Path) -> Tried {
    let what = format!("{kind:?} in the place of {spot}");
    let (a, held) = (open(root).await, request("x"));
    let id = files(root.join("test/presence")).remove(0);
    granted(&a, &held).await;
    a.record_runs(&[RunReport::succeeded(name("x"))]).await?;
    let path = root.join("test").join(spot.replace("ID", &id));
    plant(&path, kind, precious, &mut StdRng::seed_from_u64(1))?;
    use_all(&a, root, &held).await;
    assert_unharmed(precious, &what);
    let (b, other) = (FileBackend::open(options(root, "")).await, request("x"));
    let taken = match &b {
        Ok(b) => matches!(b.acquire(&other).await.map(|answer| answer.value), Ok(Decision::Granted(_))),
        Err(_) => false,
    };
    let kept = a.renew(&[Renewal::new(held.key.clone(), held.ttl)]).await;
    let kept = kept.is_ok_and(|answer| matches!(answer.value[0], Standing::Holding(_)));
    assert!(!(taken && kept), "two hold it after {what}");
    Ok(())
}

/// Part of a hostile process: plants things wherever the group may write, for as long as it lives.
pub(super) fn plant_for_ever(root: &Path) -> ! {
    let mut random = StdRng::seed_from_u64(u64::from(std::process::id()));
    let precious = root.with_file_name("precious");
    println!("ready");
    loop {
        let folder = ["records", "presence", "logs"].choose(&mut random).copied().unwrap_or_default();
        let folder = root.join("test").join(folder);
        let mut names: Vec<String> = fs::read_dir(&folder)
            .map(|there| there.flatten().map(|file| file.file_name().to_string_lossy().into_owned()).collect())
            .unwrap_or_default();
        names.extend(["x.json", "y.json", "history.ndjson", "history.1.ndjson", "runs.ndjson"].map(String::from));
        let name = names.choose(&mut random).cloned().unwrap_or_default();
        let kind = PLANTS.choose(&mut random).copied().unwrap_or(Plant::Empty);
        let _others_may_be_faster = plant(&folder.join(&name), kind, &precious, &mut random);
        // What is in the way goes again, so that others get on.
        if random.random_bool(0.7) {
            let _others_may_be_faster = remove(&folder.join(&name));
        }
    }
}

/// Part of a victim: takes and gives back, and prints the fence of each grant. An instance that was cut off connects
/// again.
pub(super) async fn go_on(root: &Path) -> ! {
    std::thread::spawn(|| {
        std::thread::sleep(LONGEST);
        std::process::abort();
    });
    println!("ready");
    let start = SystemClock.now();
    while SystemClock.now().since(start) < Duration::from_secs(4) {
        let Ok(backend) = FileBackend::open(options(root, "")).await else { continue };
        for _ in 0..20 {
            let mine = request("x");
            if let Ok(Decision::Granted(grant)) = backend.acquire(&mine).await.map(|answer| answer.value) {
                println!("fence {}", grant.fence);
            }
            use_all(&backend, root, &mine).await;
            let _either = backend.release(&mine.key, &Outcome::Completed).await;
        }
    }
    // Nobody reads what the test harness would print.
    std::process::exit(0);
}

#[test]
fn a_hostile_member_of_the_group_can_only_be_in_the_way() {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("not run by root: other users were not tried");
        return;
    }
    let parent = tempfile::tempdir().unwrap();
    fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let root = parent.path().join("locks");
    let precious = precious(&root);
    for path in [precious.clone(), precious.join("file")] {
        std::os::unix::fs::chown(path, Some(VICTIM), Some(VICTIM)).unwrap();
    }
    fs::create_dir(&root).unwrap();
    std::os::unix::fs::chown(&root, None, Some(VICTIM)).unwrap();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o3770)).unwrap();
    run(async {
        drop(FileBackend::open(options(&root, "?mode=0660")).await?);
        Ok(())
    });
    let start = |user: u32, part: &str| {
        let mut program = Command::new("/proc/self/exe");
        program.uid(user).gid(VICTIM).current_dir("/");
        Process::start_with_output(program, part, &root, "x")
    };
    let hostile = start(HOSTILE, "plant for ever").0;
    let victims = [start(VICTIM, "go on"), start(VICTIM, "go on")];
    let mut fences = BTreeSet::new();
    for (mut victim, output) in victims {
        let mut last = 0;
        for line in output.lines().map_while(Result::ok) {
            let Some(fence) = line.strip_prefix("fence ") else { continue };
            let fence: u64 = fence.parse().unwrap();
            assert!(fence > last && fences.insert(fence), "fence {fence} was granted before");
            last = fence;
        }
        let ended = victim.0.wait().unwrap();
        assert!(ended.success(), "{ended}");
    }
    drop(hostile);
    assert!(!fences.is_empty(), "nobody got on");
    assert_unharmed(&precious, "planting");
    // Once it is gone and what it left is removed, all is well.
    run(async {
        for folder in ["records", "presence", "logs"].map(|folder| root.join("test").join(folder)) {
            for name in files(folder.clone()) {
                remove(&folder.join(name))?;
            }
        }
        let a = open(&root).await;
        assert!(granted(&a, &request("x")).await.fence.get() > *fences.last().unwrap());
        assert_eq!(failures(&a.examine().await?), Vec::<&Finding>::new());
        Ok(())
    });
}
