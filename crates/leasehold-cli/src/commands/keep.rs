//! `leasehold acquire --while-pid`: a lease that lives as long as another process.
//!
//! The command starts itself once more. The copy, the keeper, asks for the
//! lock, prints the handle and stays in the background; the command passes
//! signals on to it until then, and ends.

use std::{
    env,
    fs::{self, File},
    future::pending,
    io::{self, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            fs::OpenOptionsExt,
            process::{CommandExt, ExitStatusExt, parent_id},
        },
    },
    process::{Child, Command, ExitStatus},
    time::Duration,
};

use leasehold::{
    Guard, Lease, Leasehold, Loss,
    clock::{Clock, SystemClock},
    lease::{Ending, Moment},
};
use leasehold_supervise::{Caught, OnLost, Signal, Signals};
use rustix::{
    fs::OFlags,
    io::Errno,
    pipe::{PipeFlags, pipe_with},
    process::{self, Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open, pidfd_send_signal},
    stdio::{dup2_stderr, dup2_stdin, dup2_stdout},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::unix::pipe::Receiver,
};

use super::CommandContext;
use crate::{
    args::AcquireArgs,
    error::{CommandError, Result},
    exit,
    output::{Line, Output},
    run_command::{
        lease_ending::{recorded_ending, who_evicted},
        messages,
        run_under_lease::RELEASE_LIMIT,
    },
};

/// How long to look whether a lease was released, before its process learns that it is lost.
const HISTORY_LIMIT: Duration = Duration::from_millis(500);

/// How long after it was asked to end the keeper says that it stays: a service manager asks the process, too, which
/// then ends.
const ANSWER_AFTER: Duration = Duration::from_secs(1);

/// The variable that makes this program the keeper: the process id of the one who started it, the number of its pipe,
/// and when its wait began.
const KEEPER: &str = "LEASEHOLD_KEEPER";

/// Starts the keeper and waits until it has handed the lease over, or has given up.
///
/// On Ctrl-Z the keeper leaves the queue and ends before we stop, and another one asks when we go on.
pub(crate) async fn launch(
    context: &CommandContext<'_>,
    args: &AcquireArgs,
    began: Moment,
    signals: &mut Signals,
) -> Result<u8> {
    let process = watched(args)?;
    let failed = |error: io::Error| CommandError::unavailable(format!("cannot start the background process: {error}"));
    loop {
        let process = process.try_clone().map_err(failed)?;
        let mut keeper = LaunchedKeeper::start(context, process, began).map_err(failed)?;
        match keeper.handed_over(signals).await.map_err(failed)? {
            Launched::Ended(code) => return Ok(code),
            Launched::LeftTheQueue => {}
        }
        // A keeper that was granted the lock now would keep it while nobody works under it.
        if let Some(signal) = signals.stop().await {
            return Ok(exit::of_signal(signal.number()));
        }
    }
}

/// What became of a keeper.
enum Launched {
    /// It has handed the lease over, or it has given up: our exit code.
    Ended(u8),
    /// We were asked to stop, and it has left the queue.
    LeftTheQueue,
}

/// The keeper, seen from the command that started it.
struct LaunchedKeeper {
    process: Child,
    done: Receiver,
    /// Stays open until the keeper has opened it by its path.
    _done_in: OwnedFd,
}

impl LaunchedKeeper {
    fn start(context: &CommandContext<'_>, watched: OwnedFd, began: Moment) -> io::Result<Self> {
        let (done, done_in) = pipe_with(PipeFlags::CLOEXEC)?;
        let done = Receiver::from_owned_fd(done)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("leasehold").args(context.args.iter().skip(1)).stdin(watched);
        let (own, pipe) = (std::process::id(), done_in.as_raw_fd());
        command.env(KEEPER, format!("{own} {pipe} {}", began.as_micros()));
        Ok(Self { process: command.spawn()?, done, _done_in: done_in })
    }

    /// Waits until the keeper has handed the lease over, and passes on the signals that ask us to end.
    async fn handed_over(&mut self, signals: &mut Signals) -> io::Result<Launched> {
        let (mut is_stop_asked, mut is_end_asked) = (false, false);
        loop {
            tokio::select! {
                biased;
                _ready = self.done.readable() => {
                    if matches!(self.done.try_read(&mut [0]), Ok(1)) {
                        return Ok(Launched::Ended(exit::OK));
                    }
                }
                caught = signals.next() => match caught {
                    Caught::Signal(Signal::TSTP) if !is_end_asked => {
                        is_stop_asked = true;
                        self.signal(Signal::TERM);
                    }
                    Caught::Signal(signal) if signal.is_ending() => {
                        (is_stop_asked, is_end_asked) = (false, true);
                        self.signal(signal);
                    }
                    Caught::Child => {
                        if let Some(status) = self.process.try_wait()? {
                            let code = code_of(status);
                            let has_left = is_stop_asked && code == exit::of_signal(Signal::TERM.number());
                            return Ok(if has_left { Launched::LeftTheQueue } else { Launched::Ended(code) });
                        }
                    }
                    Caught::Signal(_) => {}
                },
            }
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw) {
            let _ended_meanwhile = process::kill_process(pid, signal.into());
        }
    }
}

fn code_of(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(exit::SOFTWARE),
        (None, signal) => exit::of_signal(signal.unwrap_or_default()),
    }
}

/// The process that the lease is tied to. An open pidfd stays with it, whoever gets its number later.
fn watched(args: &AcquireArgs) -> Result<OwnedFd> {
    let pid = match (args.while_pid, args.while_fd) {
        (_, Some(fd)) => pid_of(fd)?,
        (pid, None) => pid.unwrap_or_default(),
    };
    if pid == 1 && args.on_lost != OnLost::Continue {
        return Err(CommandError::usage("process 1 is init, and gets a signal if the lock is lost")
            .hint("in a script: --while-pid $$; if process 1 is meant: --on-lost continue"));
    }
    let none = || CommandError::usage(format!("there is no process {pid}")).hint("in a script: --while-pid $$");
    let process = match Pid::from_raw(pid.max(0)).map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        Some(Ok(process)) => process,
        None | Some(Err(Errno::SRCH)) => return Err(none()),
        Some(Err(error)) => return Err(CommandError::unavailable(format!("cannot watch process {pid}: {error}"))),
    };
    // It had this number before and after we opened it, so that it is the same process.
    if let Some(fd) = args.while_fd
        && pid_of(fd)? != pid
    {
        return Err(none());
    }
    let may_signal = || Pid::from_raw(pid).is_none_or(|pid| process::test_kill_process(pid) != Err(Errno::PERM));
    if args.on_lost != OnLost::Continue && !may_signal() {
        let words = format!("this user may not send a signal to process {pid}, which gets one if the lock is lost");
        return Err(CommandError::usage(words)
            .hint("run acquire as the user of that process; if it may go on without the lock: --on-lost continue"));
    }
    Ok(process)
}

/// The process that a pidfd of ours refers to; -1 if it has ended.
fn pid_of(fd: u32) -> Result<i32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
    info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok()).ok_or_else(|| {
        CommandError::usage(format!("--while-fd {fd}: this is no open pidfd"))
            .hint("open one with pidfd_open(2) and let it be inherited; or use --while-pid")
    })
}

/// Leaves the session and what was inherited behind, if this process is the keeper.
///
/// Only to be called before anything is opened. Whatever a script has open besides its standard streams would stay
/// open as long as the keeper lives.
pub(crate) fn detach() {
    if env::var_os(KEEPER).is_none() {
        return;
    }
    let _leads_a_session_already = process::setsid();
    let names = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let numbers: Vec<i32> = names.filter_map(|name| name.to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        let _was_of_the_directory = nix::unistd::close(number);
    }
}

/// The background process, before the lease is handed over.
#[derive(Debug)]
pub(crate) struct BackgroundHolder {
    process: AsyncFd<OwnedFd>,
    launcher: AsyncFd<OwnedFd>,
    done: File,
    /// When the wait began: an earlier keeper may have waited before the command was stopped.
    pub(crate) began: Moment,
}

impl BackgroundHolder {
    /// The keeper that this process is, if it is one.
    pub(crate) fn of_this_process() -> Result<Option<Self>> {
        let Some(told) = env::var(KEEPER).ok() else { return Ok(None) };
        let gone = || CommandError::unavailable(format!("{KEEPER} is not meant to be set by hand"));
        let [launcher, pipe, began] = told.split(' ').collect::<Vec<_>>()[..] else { return Err(gone()) };
        let pid = launcher.parse().ok().and_then(Pid::from_raw).ok_or_else(gone)?;
        let began = Moment::from_micros(began.parse().map_err(|_| gone())?);
        let open = || -> io::Result<Self> {
            let launcher = watch(pidfd_open(pid, PidfdFlags::empty())?)?;
            let done = File::options().write(true).open(format!("/proc/{pid}/fd/{pipe}"))?;
            let process = watch(rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?)?;
            Ok(Self { process, launcher, done, began })
        };
        let keeper = open().map_err(|error| CommandError::unavailable(format!("cannot keep a lease: {error}")))?;
        // The number is still our parent's, so that it was when we opened it.
        if i32::try_from(parent_id()) == Ok(pid.as_raw_pid()) { Ok(Some(keeper)) } else { Err(gone()) }
    }

    /// Completes when the process has ended, or the one who started us, which wanted the lease.
    pub(crate) async fn nobody_wants_it(&self) {
        tokio::select! {
            _ended = self.process.readable() => {}
            _ended = self.launcher.readable() => {}
        }
    }

    /// Reports to the parent process that the caller has the lease, and closes the descriptors shared with it.
    pub(crate) fn handed_over(mut self) -> io::Result<DetachedHolder> {
        let null = File::options().read(true).write(true).open("/dev/null")?;
        self.done.write_all(&[1])?;
        dup2_stdin(&null)?;
        dup2_stdout(&null)?;
        dup2_stderr(&null)?;
        Ok(DetachedHolder { process: self.process })
    }
}

/// The background process after it has handed the lease over.
#[derive(Debug)]
pub(crate) struct DetachedHolder {
    process: AsyncFd<OwnedFd>,
}

impl DetachedHolder {
    /// Keeps the lease until the process ends, then releases it. A process whose lease is lost gets a signal, `grace`
    /// before the end of a lease that cannot be renewed. It stays whoever asks it to end, and says so.
    pub(crate) async fn keep(
        self,
        locks: &Leasehold,
        guard: Guard,
        on_lost: OnLost,
        grace: Duration,
        signals: &mut Signals,
        output: &Output,
    ) -> u8 {
        let lease = guard.lease().clone();
        let mut answer_at = None;
        let loss = loop {
            tokio::select! {
                biased;
                _ended = self.process.readable() => return give_back(guard).await,
                loss = lease.lost() => break Some(loss),
                () = close_to_its_end(&lease, grace) => break None,
                () = sleep_until(answer_at) => {
                    answer_at = None;
                    self.say_kept(&lease, output);
                }
                asked = signals.next_request() => {
                    if asked.is_ending() && answer_at.is_none() {
                        answer_at = Some(SystemClock.now().after(ANSWER_AFTER));
                    }
                }
            }
        };
        if loss == Some(Loss::Gone) && was_released(locks, &lease).await {
            return exit::OK;
        }
        let signal = match on_lost {
            OnLost::Terminate => Some(Signal::TERM),
            OnLost::Kill => Some(Signal::KILL),
            OnLost::Signal(signal) => Some(signal),
            OnLost::Continue => None,
        };
        self.say_lost(&lease, loss.unwrap_or(Loss::RenewTimeout), signal, output);
        // A process may have changed its user since.
        if let Some(signal) = signal
            && pidfd_send_signal(self.process.get_ref(), signal.into()) == Err(Errno::PERM)
        {
            output
                .print(Line::warning(format!("not permitted to send {signal}: the process goes on without the lock")));
        }
        if let Some(details) = who_evicted(locks, &lease).await {
            output.print(messages::evicted(&lease, &details));
        }
        tokio::select! {
            biased;
            _loss = lease.lost() => exit::LOST,
            _ended = self.process.readable() => give_back(guard).await,
        }
    }
}

impl DetachedHolder {
    /// Says on the standard error of the process, to one who asked us to end, that we stay, and what ends us.
    fn say_kept(&self, lease: &Lease, output: &Output) {
        let (Some((pid, stderr)), Ok(null)) =
            (stderr_of(self.process.get_ref()), File::options().write(true).open("/dev/null"))
        else {
            return;
        };
        if dup2_stderr(&stderr).is_err() {
            return;
        }
        let name = lease.resource();
        let words = format!("keeps {name} until process {pid} ends; release it with its handle, or evict it");
        output.print(Line::new("kept", words).with("lock", name.as_str()));
        let _stays_open = dup2_stderr(&null);
    }

    /// Says on the standard error of the process why it gets a signal.
    ///
    /// Our own was closed: whoever reads it, such as ssh, would wait for us.
    fn say_lost(&self, lease: &Lease, loss: Loss, signal: Option<Signal>, output: &Output) {
        let Some((pid, stderr)) = stderr_of(self.process.get_ref()) else { return };
        if dup2_stderr(&stderr).is_err() {
            return;
        }
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let process = format!("{} ({pid})", name.trim_end());
        let what = match signal {
            Some(signal) => format!("Sending {signal} to {process}"),
            None => format!("{process} goes on without the lock (--on-lost continue)"),
        };
        output.print(messages::lost(lease, loss, &what));
    }
}

/// The number of a process that still runs, and its standard error.
fn stderr_of(process: &OwnedFd) -> Option<(i32, OwnedFd)> {
    let number = u32::try_from(process.as_raw_fd()).ok()?;
    let pid = pid_of(number).ok().filter(|pid| *pid > 0)?;
    // Shares the position in a file. Not everybody may do this to a process that is not a child; a socket cannot be
    // opened by its path.
    let stderr = pidfd_getfd(process, 2, PidfdGetfdFlags::empty()).or_else(|_| opened_stderr(pid)).ok()?;
    // The number was not given to another meanwhile.
    (pid_of(number).ok()? == pid).then_some((pid, stderr))
}

/// The standard error of a process, opened by its path. A pipe without a reader would keep us, and a terminal would
/// become ours.
fn opened_stderr(pid: i32) -> io::Result<OwnedFd> {
    let opened = fs::read_to_string(format!("/proc/{pid}/fdinfo/2"))?;
    let bits = opened.lines().find_map(|line| u32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
    // What is open for reading only is a file that the process does not write to.
    if bits.is_none_or(|bits| OFlags::from_bits_retain(bits) & OFlags::ACCMODE == OFlags::RDONLY) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    Ok(File::options().append(true).custom_flags(flags).open(format!("/proc/{pid}/fd/2"))?.into())
}

async fn give_back(guard: Guard) -> u8 {
    let _lapses_by_itself = tokio::time::timeout(RELEASE_LIMIT, guard.release()).await;
    exit::OK
}

async fn sleep_until(moment: Option<Moment>) {
    match moment {
        Some(moment) => SystemClock.alarm_at(moment).await,
        None => pending().await,
    }
}

/// Completes when no renewal has come and so much is left; never for a lease without a deadline.
async fn close_to_its_end(lease: &Lease, grace: Duration) {
    while let Some(left) = lease.remaining() {
        if left <= grace {
            return;
        }
        SystemClock.alarm_at(SystemClock.now().after(left.saturating_sub(grace))).await;
    }
    pending::<()>().await;
}

/// Whether somebody released a lease that is gone, by its handle.
///
/// History tells. Without a history entry: if the backend's data is older than the lease, the lease was released, not
/// forgotten.
async fn was_released(locks: &Leasehold, lease: &Lease) -> bool {
    match recorded_ending(locks, lease, HISTORY_LIMIT).await {
        Ok(Some(ending)) => matches!(ending, Ending::Released | Ending::Failed | Ending::Cancelled),
        Ok(None) => {
            let held = SystemClock.wall().since(lease.acquired_at());
            locks.backend().age().is_none_or(|age| age > held)
        }
        Err(_unknown) => false,
    }
}

fn watch(pidfd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    #[allow(deprecated, reason = "an OwnedFd keeps the promise that the unsafe successor asks for")]
    AsyncFd::with_interest(pidfd, Interest::READABLE)
}
