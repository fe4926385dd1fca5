//! The user's own directory, once the machine has a directory.

use super::*;

const PART: &str = "take again in the user's directory";

fn machine_directory() -> PathBuf {
    PathBuf::from(env::var("LEASEHOLD_MACHINE_DIR").unwrap())
}

/// Takes a lock before the machine's directory appears, and tries another one afterwards.
pub(super) async fn take_again() -> ! {
    let options = FileOptions::from_url("file:", "test", Arc::new(SystemClock)).unwrap();
    let backend = FileBackend::open(options).await.unwrap();
    let held = request("x");
    granted(&backend, &held).await;
    println!("ready");
    until("the machine's directory is there", || machine_directory().exists()).await;
    let error = backend.acquire(&request("y")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let said = error.to_string();
    assert!(said.contains(&*machine_directory().to_string_lossy()) && said.contains("restart"), "{said}");
    assert!(holds(&backend, &held).await, "what it has stays its own");
    release(&backend, &held).await;
    // Nobody reads what the test harness would print.
    std::process::exit(0);
}

#[test]
fn a_process_in_the_users_directory_takes_nothing_new_once_the_machine_has_one() {
    let home = tempfile::tempdir().unwrap();
    let machine = home.path().join("machine");
    let mut program = Command::new(env::current_exe().unwrap());
    program.env("HOME", home.path()).env("LEASEHOLD_MACHINE_DIR", &machine).env_remove("XDG_STATE_HOME");
    let mut process = Process::start_by(program, PART, home.path(), "x");
    fs::create_dir(&machine).unwrap();
    assert!(process.0.wait().unwrap().success(), "it was refused");
}
