//! Processes that really fork. A child does only what is async-signal-safe, and ends by `_exit`.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by its panic")]

use std::{
    array, env,
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd, RawFd},
        unix::{fs::OpenOptionsExt, process::CommandExt},
    },
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use leasehold_fork::{PerProcess, Registration, close_in_child, forks, generation, watch};

/// More than one chunk of slots.
const MANY: usize = 100;
const FORKS: usize = 500;

// ---- what the tests are written with ----

/// Whether this holds in a forked child.
fn holds_in_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child only runs `check`, which must be async-signal-safe, and `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "cannot fork: {}", io::Error::last_os_error());
    if child == 0 {
        exit(check());
    }
    succeeded(child)
}

fn exit(success: bool) -> ! {
    // SAFETY: ends the process and touches no memory of it.
    unsafe { libc::_exit(i32::from(!success)) }
}

fn succeeded(child: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: `status` is valid for writing.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

/// Which file the number refers to.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity(libc::dev_t, libc::ino_t);

fn identity(descriptor: RawFd) -> Option<Identity> {
    let mut found = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `found` is valid for writing.
    if unsafe { libc::fstat(descriptor, found.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: `fstat` filled it.
    let found = unsafe { found.assume_init() };
    Some(Identity(found.st_dev, found.st_ino))
}

fn closes_on_exec(descriptor: RawFd) -> bool {
    // SAFETY: `F_GETFD` takes no argument.
    unsafe { libc::fcntl(descriptor, libc::F_GETFD) & libc::FD_CLOEXEC != 0 }
}

/// A file that only its descriptor refers to.
fn file() -> File {
    tempfile::tempfile().unwrap()
}

/// A file with its registration, which drops first.
struct Registered {
    _registration: Registration,
    file: File,
}

fn registered() -> Registered {
    let file = file();
    Registered { _registration: close_in_child(file.as_fd()).unwrap(), file }
}

// ---- a value for each process ----

#[test]
fn a_child_does_not_see_the_value_of_its_parent() {
    static VALUE: PerProcess<AtomicBool> = PerProcess::new();
    watch().unwrap();
    assert!(VALUE.get().is_none());
    let value: *const AtomicBool = VALUE.get_or_insert_with(|| AtomicBool::new(true));
    assert!(std::ptr::eq(value, VALUE.get_or_insert_with(|| AtomicBool::new(false))));
    assert!(holds_in_child(|| VALUE.get().is_none()));
    assert!(VALUE.get().unwrap().load(Ordering::Relaxed));
}

#[test]
fn threads_that_make_a_value_at_once_see_the_same() {
    static VALUE: PerProcess<thread::ThreadId> = PerProcess::new();
    let barrier = std::sync::Barrier::new(8);
    let make = || {
        barrier.wait();
        *VALUE.get_or_insert_with(|| thread::current().id())
    };
    let values = thread::scope(|scope| {
        let threads: [_; 8] = array::from_fn(|_| scope.spawn(make));
        threads.map(|thread| thread.join().unwrap())
    });
    assert_eq!(values, [values[0]; 8]);
}

// ---- the generation ----

#[test]
fn the_generation_rises_in_a_child_and_again_in_a_grandchild() {
    watch().unwrap();
    let first = generation();
    let rises = || {
        let second = generation();
        // SAFETY: the grandchild only loads an atomic number and ends.
        let grandchild = unsafe { libc::fork() };
        if grandchild == 0 {
            exit(generation() > second);
        }
        second > first && succeeded(grandchild)
    };
    assert!(holds_in_child(rises));
    assert_eq!(generation(), first);
}

// ---- descriptors ----

#[test]
fn a_child_has_the_descriptors_that_were_not_registered_and_no_other() {
    let (gone, stays) = (registered(), file());
    let (gone_is, stays_is) = (identity(gone.file.as_raw_fd()), identity(stays.as_raw_fd()));
    let check = || {
        let gone = gone.file.as_raw_fd();
        identity(gone) != gone_is && closes_on_exec(gone) && identity(stays.as_raw_fd()) == stays_is
    };
    assert!(holds_in_child(check));
    (&gone.file).write_all(b"still open").unwrap();
}

#[test]
fn a_child_closes_more_descriptors_than_one_chunk_has_slots() {
    let all: Vec<_> = (0..MANY).map(|_| registered()).collect();
    let identities: Vec<_> = all.iter().map(|one| identity(one.file.as_raw_fd())).collect();
    let check = || all.iter().zip(&identities).all(|(one, is)| identity(one.file.as_raw_fd()) != *is);
    assert!(holds_in_child(check));
}

#[test]
fn a_forgotten_descriptor_stays_open_in_the_child() {
    let file = file();
    drop(close_in_child(file.as_fd()));
    let is = identity(file.as_raw_fd());
    assert!(holds_in_child(|| identity(file.as_raw_fd()) == is));
}

#[test]
fn an_inherited_object_that_drops_does_not_close_what_the_child_opened() {
    let inherited = registered();
    let check = move || {
        // SAFETY: a number is all that `dup` takes.
        let opened = unsafe { libc::dup(0) };
        drop(inherited);
        opened >= 0 && identity(opened).is_some()
    };
    assert!(holds_in_child(check));
}

#[test]
fn an_inherited_registration_does_not_forget_what_the_child_registered() {
    let inherited = registered();
    // As many as fill every slot that `inherited` may have had.
    let files: [File; 4 * MANY] = array::from_fn(|_| file());
    let identities: [_; 4 * MANY] = array::from_fn(|at| identity(files[at].as_raw_fd()));
    // Makes the chunks, so that the child need not allocate.
    drop(files.iter().map(|file| close_in_child(file.as_fd()).unwrap()).collect::<Vec<_>>());
    let check = || {
        let again: [_; 4 * MANY] = array::from_fn(|at| close_in_child(files[at].as_fd()));
        drop(inherited);
        // SAFETY: the grandchild only looks at descriptors and ends.
        let grandchild = unsafe { libc::fork() };
        if grandchild == 0 {
            exit(files.iter().zip(&identities).all(|(file, is)| identity(file.as_raw_fd()) != *is));
        }
        let closed = succeeded(grandchild);
        again.iter().all(Result::is_ok) && closed
    };
    assert!(holds_in_child(check));
}

#[test]
fn a_child_never_loses_a_descriptor_that_has_the_number_of_a_forgotten_one() {
    let done = AtomicBool::new(false);
    let churn = || {
        while !done.load(Ordering::Relaxed) {
            drop(registered());
        }
    };
    thread::scope(|scope| {
        scope.spawn(churn);
        scope.spawn(churn);
        let lost = (0..FORKS).filter(|_| {
            let files: [File; 4] = array::from_fn(|_| file());
            let identities: [_; 4] = array::from_fn(|at| identity(files[at].as_raw_fd()));
            !holds_in_child(|| files.iter().zip(&identities).all(|(file, is)| identity(file.as_raw_fd()) == *is))
        });
        let lost = lost.count();
        done.store(true, Ordering::Relaxed);
        assert_eq!(lost, 0, "of {FORKS} children");
    });
}

// ---- forks beside an opening thread ----

/// More than the highest number in use while these tests run.
const NUMBERS: usize = 1000;

/// Tells by their inodes which files a forked child has.
fn inodes_in_child() -> Vec<libc::ino_t> {
    let (mut reader, writer) = io::pipe().unwrap();
    let tell = || {
        let inode = |number: usize| identity(RawFd::try_from(number).ok()?).map(|Identity(_, inode)| inode);
        let inodes: [libc::ino_t; NUMBERS] = array::from_fn(|number| inode(number).unwrap_or(0));
        // SAFETY: `inodes` is valid for reading as many bytes.
        let told = unsafe { libc::write(writer.as_raw_fd(), inodes.as_ptr().cast(), size_of_val(&inodes)) };
        usize::try_from(told) == Ok(size_of_val(&inodes))
    };
    assert!(holds_in_child(tell));
    drop(writer);
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    let inodes = bytes.chunks_exact(size_of::<libc::ino_t>());
    inodes.map(|inode| libc::ino_t::from_ne_bytes(inode.try_into().unwrap())).collect()
}

#[test]
fn a_descriptor_that_was_opened_and_registered_between_forks_is_in_no_child() {
    watch().unwrap();
    let done = AtomicBool::new(false);
    let open_many = || {
        let (mut between_forks, mut beside_forks) = (Vec::new(), Vec::new());
        while !done.load(Ordering::Relaxed) && between_forks.len() + beside_forks.len() < MANY {
            let before = forks();
            // A new pipe never has the inode of a former one, as a new file may have.
            let (pipe, writer) = io::pipe().unwrap();
            drop(writer);
            let opened = (close_in_child(pipe.as_fd()).unwrap(), pipe);
            let quiet = before.is_some() && forks() == before;
            if quiet { between_forks.push(opened) } else { beside_forks.push(opened) }
        }
        (between_forks, beside_forks)
    };
    for _ in 0..FORKS / 5 {
        done.store(false, Ordering::Relaxed);
        thread::scope(|scope| {
            let opening = scope.spawn(open_many);
            let in_children: Vec<_> = (0..5).flat_map(|_| inodes_in_child()).collect();
            done.store(true, Ordering::Relaxed);
            let (between_forks, _beside_forks) = opening.join().unwrap();
            for (_registration, pipe) in &between_forks {
                let Identity(_, inode) = identity(pipe.as_raw_fd()).unwrap();
                assert!(!in_children.contains(&inode), "a child has it");
            }
        });
    }
}

// ---- other programs ----

/// A duplicate that programs started from here inherit.
fn lend(descriptor: &impl AsFd) -> OwnedFd {
    let lent = descriptor.as_fd().try_clone_to_owned().unwrap();
    // SAFETY: `F_SETFD` takes an integer.
    assert_eq!(unsafe { libc::fcntl(lent.as_raw_fd(), libc::F_SETFD, 0) }, 0);
    lent
}

#[test]
fn a_started_program_has_the_duplicate_that_was_lent_to_it() {
    for forks in [false, true] {
        let (mut reader, writer) = io::pipe().unwrap();
        let registration = close_in_child(writer.as_fd()).unwrap();
        let lent = lend(&writer);
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo lent >/dev/fd/$0"]).arg(lent.as_raw_fd().to_string());
        if forks {
            // SAFETY: does nothing; with it, `Command` forks instead of calling `posix_spawn`.
            unsafe { shell.pre_exec(|| Ok(())) };
        }
        assert!(shell.status().unwrap().success());
        drop((registration, writer, lent));
        let mut read = String::new();
        reader.read_to_string(&mut read).unwrap();
        assert_eq!(read, "lent\n");
    }
}

// ---- a parent that is killed ----

/// A folder with two FIFOs; set in a process that plays the parent.
const FIFOS: &str = "LEASEHOLD_FORK_TEST_FIFOS";

fn open_fifo(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Whether some process has the FIFO open for reading.
fn has_reader(path: &Path) -> bool {
    match File::options().write(true).custom_flags(libc::O_NONBLOCK).open(path) {
        Ok(_) => true,
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => false,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// Says that the handlers ran and the child is there, and waits for its end.
fn idle() -> ! {
    let mut line = [0; 32];
    // SAFETY: takes nothing.
    let written = writeln!(&mut line[..], "child {}", unsafe { libc::getpid() });
    // SAFETY: takes an integer; the child ends even if the test cannot end it.
    unsafe { libc::alarm(60) };
    // SAFETY: `line` is valid for reading.
    let told = unsafe { libc::write(libc::STDOUT_FILENO, line.as_ptr().cast(), line.len()) };
    while written.is_ok() && told > 0 {
        // SAFETY: takes nothing.
        unsafe { libc::pause() };
    }
    exit(false)
}

/// Opens both FIFOs, registers one, forks an idle child, and waits to be killed.
fn play_the_parent(folder: &Path) -> ! {
    let registered = open_fifo(&folder.join("registered")).unwrap();
    let _registration = close_in_child(registered.as_fd()).unwrap();
    let _not_registered = open_fifo(&folder.join("inherited")).unwrap();
    // SAFETY: the child only writes a line without allocating, waits and ends.
    if unsafe { libc::fork() } == 0 {
        idle();
    }
    loop {
        thread::park();
    }
}

#[test]
fn a_parent_that_is_killed_beside_an_idle_child_is_gone() {
    if let Some(folder) = env::var_os(FIFOS) {
        play_the_parent(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let [registered, inherited] = ["registered", "inherited"].map(|name| folder.path().join(name));
    assert!(Command::new("mkfifo").args([&registered, &inherited]).status().unwrap().success());
    let mut parent = Command::new(env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "a_parent_that_is_killed_beside_an_idle_child_is_gone"])
        .env(FIFOS, folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines().map(Result::unwrap);
    let child =
        lines.find_map(|line| line.rsplit_once("child ").map(|(_, pid)| pid.trim_matches('\0').to_owned())).unwrap();
    let before = (has_reader(&registered), has_reader(&inherited));
    parent.kill().unwrap();
    parent.wait().unwrap();
    let after = (has_reader(&registered), has_reader(&inherited));
    assert!(Command::new("kill").args(["-KILL", &child]).status().unwrap().success());
    assert_eq!(before, (true, true));
    assert_eq!(after, (false, true), "of the registered FIFO and the one that the living child has");
}
