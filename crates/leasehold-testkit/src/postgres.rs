//! A private Postgres, its standby, and a pooler in front of it.

#![allow(clippy::unwrap_used, reason = "to panic is how a test fails")]

use std::{
    env,
    fs::{self, File},
    io::{self, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, LazyLock, Mutex, PoisonError, Weak, mpsc},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

use crate::{ports::Port, wait::within};

/// Whom the server runs as when the test is root, which Postgres refuses to run as.
const USER: &str = "postgres";

/// What is waited for comes within this, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Settings that make a private server quick and quiet.
const SETTINGS: &[&str] = &[
    "listen_addresses=127.0.0.1",
    "max_connections=200",
    "shared_buffers=64MB",
    "logging_collector=off",
    "wal_level=replica",
];

/// A private server, stopped when dropped.
#[derive(Debug)]
pub struct Postgres {
    place: TempDir,
    port: Port,
    settings: Vec<String>,
    child: Option<Child>,
}

/// How a server is stopped.
#[derive(Clone, Copy, Debug)]
pub enum Stop {
    /// Connections are ended, everything is written.
    Fast,
    /// As in a crash.
    Immediate,
}

impl Postgres {
    /// A fresh server that does not wait for the disk: nothing here loses power.
    pub fn start() -> Self {
        Self::start_with(&["fsync=off"])
    }

    /// The server that the tests of this process which run just now share; each uses names of its own.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = shared.upgrade() {
            return running;
        }
        let started = Arc::new(Self::start());
        *shared = Arc::downgrade(&started);
        started
    }

    /// A fresh server with these settings, such as `fsync=on`.
    pub fn start_with(settings: &[&str]) -> Self {
        let place = folder();
        copy(&template(), &place.path().join("data"));
        Self::launch(place, settings)
    }

    /// A fresh server that offers encryption. Its certificate is for `localhost` alone and by the authority `ca.crt`,
    /// not by `other.crt`: see [`path`](Self::path). Nor need a client prove who it is, but `client.crt` does for `postgres`.
    pub fn start_encrypted() -> Self {
        let place = folder();
        copy(&template(), &place.path().join("data"));
        certify(place.path());
        let settings = [
            "fsync=off",
            "ssl=on",
            "ssl_cert_file=../server.crt",
            "ssl_key_file=../server.key",
            "ssl_ca_file=../ca.crt",
        ];
        Self::launch(place, &settings)
    }

    fn launch(place: TempDir, settings: &[&str]) -> Self {
        let settings = SETTINGS.iter().chain(settings).map(|setting| String::from(*setting)).collect();
        let mut server = Self { place, port: Port::claim(), settings, child: None };
        server.run();
        server
    }

    /// Starts it again on the same port and data.
    pub fn run(&mut self) {
        let log = File::create(self.place.path().join("log")).unwrap();
        let mut command = as_user(&binary("postgres"));
        command.arg("-D").arg(self.data()).args(["-p", &self.port.number.to_string(), "-k"]).arg(self.place.path());
        for setting in &self.settings {
            command.args(["-c", setting]);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(spawn(command).expect("postgres is needed: apt-get install postgresql"));
        let up = || {
            let mut ready = Command::new(binary("pg_isready"));
            ready
                .args(["-q", "-h", "127.0.0.1", "-p", &self.port.number.to_string()])
                .status()
                .is_ok_and(|status| status.success())
        };
        assert!(within(PATIENCE, up), "postgres did not start: {}", self.log());
    }

    /// Stops it and waits until it is gone.
    pub fn stop(&mut self, how: Stop) {
        if let Some(mut child) = self.child.take() {
            let signal = match how {
                Stop::Fast => Signal::INT,
                Stop::Immediate => Signal::QUIT,
            };
            send(child.id(), signal);
            child.wait().unwrap();
        }
    }

    /// Stops it and starts it again.
    pub fn restart(&mut self, how: Stop) {
        self.stop(how);
        self.run();
    }

    /// Kills one of its processes, as the kernel might.
    pub fn kill_backend(&self, pid: u32) {
        send(pid, Signal::KILL);
    }

    /// What it wrote to its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.place.path().join("log")).unwrap_or_default()
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// A file of the folder in which it keeps everything, such as `ca.crt`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// The URL of its database `postgres`, as its superuser.
    pub fn url(&self) -> String {
        self.url_of("postgres", "postgres")
    }

    /// The URL of a database, as a role.
    pub fn url_of(&self, role: &str, database: &str) -> String {
        format!("postgres://{role}@127.0.0.1:{}/{database}", self.port.number)
    }

    /// The URL of its database `postgres` by its socket in the file system.
    pub fn url_by_socket(&self) -> String {
        let folder = self.place.path().display().to_string().replace('/', "%2F");
        format!("postgres://postgres@{folder}:{}/postgres", self.port.number)
    }

    /// Runs SQL as its superuser and gives what psql prints: unaligned, without headings.
    pub fn psql(&self, sql: &str) -> String {
        self.try_psql("postgres", sql).unwrap_or_else(|error| panic!("psql: {error}"))
    }

    /// Makes the schema look as if this version of it was installed.
    pub fn pretend_schema_version(&self, version: u32, usable_since: u32) {
        self.psql(&pretended_schema_version(version, usable_since));
    }

    /// Runs SQL as a role; `Err` is what psql complains about.
    ///
    /// # Errors
    /// What the server said.
    pub fn try_psql(&self, role: &str, sql: &str) -> Result<String, String> {
        let mut child =
            self.client(role).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(sql.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim_end().to_owned();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    /// psql, ready to be started as a role.
    pub fn client(&self, role: &str) -> Command {
        let mut command = Command::new(binary("psql"));
        command.args([
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            "127.0.0.1",
            "-U",
            role,
            "-d",
            "postgres",
        ]);
        command.args(["-p", &self.port.number.to_string()]);
        command
    }

    /// A standby that follows asynchronously and has caught up once.
    #[must_use]
    pub fn standby(&self) -> Self {
        let place = folder();
        let mut copy = as_user(&binary("pg_basebackup"));
        copy.args([
            "-h",
            "127.0.0.1",
            "-U",
            "postgres",
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
            "-p",
            &self.port.number.to_string(),
        ]);
        let output = copy.arg("-D").arg(place.path().join("data")).output().unwrap();
        assert!(output.status.success(), "pg_basebackup: {}", String::from_utf8_lossy(&output.stderr));
        let standby = Self::launch(place, &["hot_standby=on", "fsync=off"]);
        assert!(
            within(PATIENCE, || self.psql("select count(*) from pg_stat_replication") == "1"),
            "no standby follows"
        );
        standby
    }

    /// Makes a standby the primary.
    pub fn promote(&self) {
        self.psql("select pg_promote()");
        assert!(within(PATIENCE, || self.psql("select pg_is_in_recovery()") == "f"), "it was not promoted");
    }

    /// A pooler in front that lends connections for a transaction at a time.
    pub fn pgbouncer(&self) -> PgBouncer {
        self.pgbouncer_with(&[])
    }

    /// A pooler in front with these settings, such as `pool_mode = session`.
    pub fn pgbouncer_with(&self, settings: &[&str]) -> PgBouncer {
        PgBouncer::start(self, settings)
    }

    fn data(&self) -> PathBuf {
        self.place.path().join("data")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.stop(Stop::Immediate);
    }
}

/// A private pooler, stopped when dropped.
#[derive(Debug)]
pub struct PgBouncer {
    _place: TempDir,
    port: Port,
    child: Child,
}

impl PgBouncer {
    fn start(server: &Postgres, settings: &[&str]) -> Self {
        let place = folder();
        let port = Port::claim();
        let settings = format!(
            "[databases]\npostgres = host=127.0.0.1 port={} dbname=postgres user=postgres\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
             default_pool_size = 4\nignore_startup_parameters = extra_float_digits\n{}\n",
            server.port.number,
            port.number,
            settings.join("\n")
        );
        let file = place.path().join("pgbouncer.ini");
        fs::write(&file, settings).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let log = File::create(place.path().join("log")).unwrap();
        let mut command = as_user(Path::new("pgbouncer"));
        command.arg(&file).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = spawn(command).expect("pgbouncer is needed: apt-get install pgbouncer");
        let up = || TcpStream::connect(("127.0.0.1", port.number)).is_ok();
        let words = || fs::read_to_string(place.path().join("log")).unwrap_or_default();
        assert!(within(PATIENCE, up), "pgbouncer did not start: {}", words());
        Self { _place: place, port, child }
    }

    /// The URL of the database behind it.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port.number)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        send(self.child.id(), Signal::KILL);
        let _gone = self.child.wait();
    }
}

/// A folder that the server's user can use.
fn folder() -> TempDir {
    let place = tempfile::Builder::new().prefix("lh-pg-").tempdir_in("/tmp").unwrap();
    give(place.path());
    place
}

fn give(path: &Path) {
    if geteuid().is_root() {
        let status = Command::new("chown").arg("-R").arg(USER).arg(path).status().unwrap();
        assert!(status.success(), "chown {}", path.display());
    }
}

/// An initialised data folder, made once beside what was built and copied from then on.
fn template() -> PathBuf {
    let exe = env::current_exe().unwrap();
    let base = exe.ancestors().nth(2).unwrap().join("leasehold-testkit");
    fs::create_dir_all(&base).unwrap();
    let latch = File::create(base.join("postgres.latch")).unwrap();
    latch.lock().unwrap();
    let made = base.join(binary("postgres").display().to_string().replace('/', "-"));
    if !made.join("PG_VERSION").exists() {
        let _half_made = fs::remove_dir_all(&made);
        let place = folder();
        let fresh = place.path().join("data");
        let mut init = as_user(&binary("initdb"));
        init.args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "-D"]).arg(&fresh);
        let output = init.output().unwrap();
        assert!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr));
        copy(&fresh, &made);
    }
    made
}

fn certify(place: &Path) {
    let script = r"set -e
        openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test-ca -keyout ca.key -out ca.crt
        openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=other-ca -keyout other.key -out other.crt
        openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server.key -out server.csr
        printf 'subjectAltName=DNS:localhost\n' > ext
        openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out server.crt
        openssl req -newkey rsa:2048 -nodes -subj /CN=postgres -keyout client.key -out client.csr
        openssl x509 -req -in client.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out client.crt
        chmod 600 server.key";
    let made = Command::new("sh").arg("-ec").arg(script).current_dir(place).output().unwrap();
    assert!(made.status.success(), "openssl: {}", String::from_utf8_lossy(&made.stderr));
    give(place);
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(status.success(), "cp {} {}", from.display(), to.display());
}

/// The command, as another user when we are root, and ended with us.
fn as_user(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    if geteuid().is_root() {
        command.args(["--reuid", USER, "--regid", USER, "--clear-groups"]);
    }
    command.args(["--pdeathsig", "SIGKILL", "--"]).arg(program).current_dir("/");
    command
}

/// Starts it from a thread that lives as long as the process: a server dies with the thread
/// that started it, and a test's thread ends with its test.
fn spawn(command: Command) -> io::Result<Child> {
    type SpawnOrder = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: LazyLock<Mutex<mpsc::Sender<SpawnOrder>>> = LazyLock::new(|| {
        let (orders, taken) = mpsc::channel::<SpawnOrder>();
        thread::spawn(move || {
            for (mut command, started) in taken {
                let _nobody_waits = started.send(command.spawn());
            }
        });
        Mutex::new(orders)
    });
    let (started, child) = mpsc::channel();
    SPAWNER.lock().unwrap().send((command, started)).unwrap();
    child.recv().unwrap()
}

/// A program of the newest Postgres there is, such as `psql`.
pub fn program(name: &str) -> PathBuf {
    binary(name)
}

/// `LEASEHOLD_POSTGRES_BIN` names the folder of another version; what it lacks is Debian's.
fn binary(name: &str) -> PathBuf {
    let other = env::var_os("LEASEHOLD_POSTGRES_BIN").map(|folder| PathBuf::from(folder).join(name));
    if let Some(other) = other.filter(|path| path.exists()) {
        return other;
    }
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .max()
        .map(|version| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin/{name}")))
        .filter(|path| path.exists());
    newest.unwrap_or_else(|| PathBuf::from(name))
}

fn send(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap();
    let _gone_already = kill_process(pid, signal);
}

/// The statements that make the schema look as if this version of it was installed.
pub fn pretended_schema_version(version: u32, usable_since: u32) -> String {
    format!(
        "delete from leasehold.migration where version >= {version};\n\
         insert into leasehold.migration values ({version}, {usable_since});\n\
         create or replace function leasehold.version(out version int, out usable_since int, out unlogged boolean)\n\
         language sql immutable as 'select {version}, {usable_since}, false'"
    )
}
