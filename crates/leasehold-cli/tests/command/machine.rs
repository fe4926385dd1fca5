//! Where `file:` leads: to one place for the machine, or to the user's own and then it says so.

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::Path,
    process::Command,
};

use crate::sandbox::{Ran, Running, Sandbox, is_root, skip, until};

/// A sandbox that other users can enter, with a home for each.
fn open_sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    fs::set_permissions(sandbox.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    sandbox
}

/// The command as another user, where the tests may become one.
fn as_user(sandbox: &Sandbox, id: u32, args: &[&str]) -> Command {
    let mut command = sandbox.bare(args);
    if is_root() {
        let home = sandbox.path(&format!("home-{id}"));
        fs::create_dir_all(&home).unwrap();
        std::os::unix::fs::chown(&home, Some(id), Some(id)).unwrap();
        command.env("HOME", home).uid(id).gid(id);
    }
    command
}

/// Starts a holder on `file:` and waits until its command runs.
fn hold(sandbox: &Sandbox, name: &str) -> Running {
    let ready = sandbox.path(&format!("held-{name}"));
    let script = format!("touch {}; exec sleep 600", ready.display());
    let running = Running::of(sandbox.bare(&["run", name, "-c", &script]));
    until("the holder runs", || ready.exists());
    running
}

#[test]
fn all_users_of_a_machine_meet_in_the_place_that_was_made_for_it() {
    let sandbox = open_sandbox();
    let made = Ran::of(sandbox.bare(&["init", "file:", "--everybody"]));
    made.assert_code(0);
    assert!(made.stdout.contains("machine, for every user of this machine"), "{made:?}");
    let again = Ran::of(sandbox.bare(&["init"]));
    again.assert_code(0);
    assert_eq!(again.stdout, made.stdout);
    let _holder = hold(&sandbox, "x");
    let busy = Ran::of(as_user(&sandbox, 65534, &["run", "-n", "x", "--", "true"]));
    busy.assert_code(75);
    Ran::of(as_user(&sandbox, 65534, &["--namespace", "other", "run", "y", "--", "true"])).assert_code(0);
    Ran::of(sandbox.bare(&["--namespace", "other", "run", "y", "--", "true"])).assert_code(0);
    assert!(!sandbox.path("home/.local").exists() && !sandbox.path("home-65534/.local").exists());
    let doctor = Ran::of(sandbox.bare(&["doctor"]));
    let is_container = ["/.dockerenv", "/run/.containerenv"].iter().any(|mark| Path::new(mark).exists());
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    let is_own = is_container && device(&sandbox.path("machine")) == device(Path::new("/"));
    let words = if is_own { "machine, for this container only" } else { "machine, for the whole machine" };
    assert!(doctor.stdout.contains(words) && !doctor.stdout.contains("this user only"), "{doctor:?}");
}

#[test]
fn what_is_no_directory_in_the_place_of_the_machines_is_refused_with_what_to_do() {
    let sandbox = Sandbox::new();
    let machine = sandbox.path("machine");
    let refused = || {
        let ran = Ran::of(sandbox.bare(&["run", "x", "--", "true"]));
        ran.assert_code(77);
        assert!(ran.stderr.contains("machine, which is no directory; sudo mv "), "{ran:?}");
        let doctor = Ran::of(sandbox.bare(&["doctor"]));
        doctor.assert_code(1);
        assert!(doctor.stdout.contains("which is no directory"), "{doctor:?}");
    };
    fs::write(&machine, "").unwrap();
    refused();
    fs::remove_file(&machine).unwrap();
    std::os::unix::fs::symlink("nowhere", &machine).unwrap();
    refused();
    assert!(!sandbox.path("home/.local").exists());
}

#[test]
fn init_says_for_whom_the_place_of_the_machine_is() {
    let sandbox = open_sandbox();
    let asked = Ran::of(sandbox.bare(&["init", "file:"]));
    asked.assert_code(64);
    assert!(asked.stderr.contains("--group NAME") && asked.stderr.contains("--everybody"), "{asked:?}");
    assert!(!sandbox.path("machine").exists() && !sandbox.path("home/.local").exists());
    Ran::of(sandbox.bare(&["init", "file:", "--everybody", "--group", "nogroup"])).assert_code(64);
    Ran::of(sandbox.bare(&["init", "file:", "--everybody"])).assert_code(0);
    Ran::of(sandbox.bare(&["init", "file:", "--everybody"])).assert_code(0);
    let other = Ran::of(sandbox.bare(&["init", "file:", "--group", "nogroup"]));
    other.assert_code(78);
    assert!(other.stderr.contains("for every user of this machine; not changed"), "{other:?}");
}

#[test]
fn a_lock_taken_while_init_runs_does_not_make_the_place_of_the_machine_private() {
    let sandbox = open_sandbox();
    // Rights are set three seconds after the directory is made.
    let mut slow = sandbox.command("strace");
    slow.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=chmod,fchmodat", "-e"]).args([
        "inject=chmod,fchmodat:delay_enter=3s:when=1",
        env!("CARGO_BIN_EXE_leasehold"),
        "init",
        "file:",
        "--everybody",
    ]);
    let init = Running::of(slow);
    let is_made = |file: fs::DirEntry| file.file_name().to_string_lossy().contains("machine");
    until("init has made it", || fs::read_dir(sandbox.path(".")).unwrap().flatten().any(is_made));
    Ran::of(sandbox.bare(&["run", "x", "--", "true"])).assert_code(0);
    init.finish().assert_code(0);
    let format = fs::metadata(sandbox.path("machine/default/format")).unwrap();
    assert_eq!(format.mode() & 0o777, 0o666, "every user may use it");
}

#[test]
fn a_place_of_the_machine_that_may_not_be_used_is_not_replaced_by_another() {
    if !is_root() {
        return skip("root");
    }
    let sandbox = open_sandbox();
    let made = Ran::of(sandbox.bare(&["init", "file:", "--group", "nogroup"]));
    made.assert_code(0);
    assert!(made.stdout.contains("for the group nogroup"), "{made:?}");
    let machine = fs::metadata(sandbox.path("machine")).unwrap();
    assert_eq!((machine.mode() & 0o7777, machine.gid()), (0o3770, 65534));
    Ran::of(as_user(&sandbox, 65534, &["run", "x", "--", "true"])).assert_code(0);
    Ran::of(sandbox.bare(&["run", "x", "--", "true"])).assert_code(0);
    Ran::of(as_user(&sandbox, 65534, &["--namespace", "n", "run", "x", "--", "true"])).assert_code(0);

    let stranger = Ran::of(as_user(&sandbox, 65533, &["run", "x", "--", "true"]));
    stranger.assert_code(77);
    let words =
        "which is for the group nogroup, and user 65533 is not in it; sudo usermod -aG nogroup USER, then log in again";
    assert!(stranger.stderr.contains(words) && !stranger.stderr.contains("init file:"), "{stranger:?}");
    assert!(!sandbox.path("home-65533/.local").exists());
    let other = Ran::of(sandbox.bare(&["init", "file:", "--group", "daemon"]));
    other.assert_code(78);
    assert!(other.stderr.contains("is there already, for the group nogroup"), "{other:?}");
    let refused = Ran::of(as_user(&sandbox, 65533, &["init", "file:", "--group", "nogroup"]));
    refused.assert_code(77);
}

#[test]
fn a_place_of_the_machine_that_its_owner_made_by_its_path_is_refused_with_what_to_do() {
    if !is_root() {
        return skip("root");
    }
    let sandbox = open_sandbox();
    let machine = format!("file://{}", sandbox.path("machine").display());
    Ran::of(sandbox.bare(&["-b", &machine, "run", "x", "--", "true"])).assert_code(0);
    let stranger = Ran::of(as_user(&sandbox, 65534, &["run", "x", "--", "true"]));
    stranger.assert_code(77);
    assert!(stranger.stderr.contains("only its owner may use that directory"), "{stranger:?}");
    assert!(stranger.stderr.contains("sudo leasehold init file: --group NAME"), "{stranger:?}");
}

#[test]
fn a_place_of_one_user_says_so() {
    let sandbox = Sandbox::new();
    let says = |ran: &Ran| format!("{ran:?}").contains("this user only");
    let _holder = hold(&sandbox, "x");
    for args in
        [&["list"][..], &["inspect", "x"], &["inspect", "unknown"], &["doctor"], &["run", "-v", "y", "--", "true"]]
    {
        let ran = Ran::of(sandbox.bare(args));
        assert!(says(&ran), "{ran:?}");
    }
    let quiet = Ran::of(sandbox.bare(&["run", "y", "--", "true"]));
    assert_eq!(quiet.stderr, "");
    for args in
        [&["list", "--json"][..], &["inspect", "--json", "x"], &["check", "--json", "x", "--succeeded-within", "1h"]]
    {
        let machine = Ran::of(sandbox.bare(args));
        assert!(!machine.stderr.contains("\"place\""), "{machine:?}");
        let asked = Ran::of(sandbox.bare(&[args, &["-v"]].concat()));
        assert!(says(&asked), "{asked:?}");
    }
    // One who chose a directory knows.
    let chosen = sandbox.run(&["list"]);
    assert!(!says(&chosen), "{chosen:?}");
    if is_root() {
        let sandbox = open_sandbox();
        let own = Ran::of(as_user(&sandbox, 65534, &["init"]));
        own.assert_code(0);
        assert!(says(&own) && own.stdout.contains("sudo leasehold init file:"), "{own:?}");
    }
}

#[test]
fn leases_in_the_place_of_the_user_keep_the_one_of_the_machine_closed() {
    let sandbox = Sandbox::new();
    let holder = hold(&sandbox, "x");
    Ran::of(sandbox.bare(&["init", "file:", "--everybody"])).assert_code(0);
    let closed = Ran::of(sandbox.bare(&["run", "y", "--", "true"]));
    closed.assert_code(69);
    assert!(
        closed.stderr.contains("home/.local/state/leasehold, the directory it meant before: process "),
        "{closed:?}"
    );
    assert!(closed.stderr.contains("lock x;"), "{closed:?}");
    drop(holder);
    until("the holder's lease is gone", || Ran::of(sandbox.bare(&["run", "y", "--", "true"])).code() == 0);
    assert!(sandbox.path("machine/default/records").is_dir());
}

#[test]
fn files_out_of_use_in_the_place_of_the_user_do_not_close_the_one_of_the_machine() {
    let sandbox = Sandbox::new();
    let lease = Ran::of(sandbox.bare(&["acquire", "x", "--ttl", "1h"])).stdout;
    let records = sandbox.path("home/.local/state/leasehold/default/records");
    // A process that ends may leave the file of its last record under such a name.
    fs::copy(records.join("x.json"), records.join(".0123456789abcdef0123456789abcdef-0")).unwrap();
    Ran::of(sandbox.bare(&["release", "--lease", lease.trim()])).assert_code(0);
    Ran::of(sandbox.bare(&["init", "file:", "--everybody"])).assert_code(0);
    Ran::of(sandbox.bare(&["run", "y", "--", "true"])).assert_code(0);
}

#[test]
fn a_process_without_leases_in_the_place_of_the_user_keeps_the_one_of_the_machine_closed() {
    let sandbox = Sandbox::new();
    let idle = Running::of(sandbox.bare(&["watch"]));
    let presence = sandbox.path("home/.local/state/leasehold/default/presence");
    let has_name = |file: fs::DirEntry| !file.file_name().to_string_lossy().starts_with('.');
    until("it is there", || fs::read_dir(&presence).is_ok_and(|files| files.flatten().any(has_name)));
    Ran::of(sandbox.bare(&["init", "file:", "--everybody"])).assert_code(0);
    let closed = Ran::of(sandbox.bare(&["run", "y", "--", "true"]));
    closed.assert_code(69);
    assert!(closed.stderr.contains(&format!("the directory it meant before: process {};", idle.pid())), "{closed:?}");
    drop(idle);
    Ran::of(sandbox.bare(&["run", "y", "--", "true"])).assert_code(0);
}

#[test]
fn without_a_home_and_a_place_of_the_machine_the_error_says_how_to_make_one() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.bare(&["run", "x", "--", "true"]);
    command.env_remove("HOME");
    let ran = Ran::of(command);
    ran.assert_code(78);
    assert!(ran.stderr.contains("sudo leasehold init file:"), "{ran:?}");
}

#[test]
fn a_home_that_may_not_be_entered_is_named_with_what_to_do() {
    if !is_root() {
        return skip("root");
    }
    let sandbox = open_sandbox();
    let home = sandbox.path("home-of-another");
    fs::create_dir(&home).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    let run = |args: &[&str], variables: &[(&str, &Path)]| {
        let mut command = as_user(&sandbox, 65534, args);
        command.envs(variables.iter().copied());
        Ran::of(command)
    };
    let refused = run(&["run", "x", "--", "true"], &[("HOME", &home)]);
    refused.assert_code(77);
    for words in [
        format!("this user may not enter {}: Permission denied", home.display()),
        format!("$HOME, which is {}; set HOME to a directory of this user", home.display()),
        String::from("-b file:///path"),
    ] {
        assert!(refused.stderr.contains(&words), "{words}: {refused:?}");
    }
    run(&["init"], &[("HOME", &home)]).assert_code(77);
    let doctor = run(&["doctor"], &[("HOME", &home)]);
    doctor.assert_code(1);
    assert!(doctor.stdout.contains("set HOME to a directory of this user"), "{doctor:?}");
    let state = run(&["list"], &[("XDG_STATE_HOME", &home)]);
    state.assert_code(77);
    assert!(state.stderr.contains("set XDG_STATE_HOME to a directory of this user"), "{state:?}");

    fs::set_permissions(&home, fs::Permissions::from_mode(0o755)).unwrap();
    let unwritable = run(&["run", "x", "--", "true"], &[("HOME", &home)]);
    unwritable.assert_code(77);
    let words = format!("this user may not write to {}: Permission denied", home.display());
    assert!(unwritable.stderr.contains(&words), "{unwritable:?}");
}

#[test]
fn the_home_of_another_user_does_not_close_the_place_of_the_machine() {
    if !is_root() {
        return skip("root");
    }
    let sandbox = open_sandbox();
    Ran::of(sandbox.bare(&["init", "file:", "--everybody"])).assert_code(0);
    let home = sandbox.path("home-of-another");
    fs::create_dir(&home).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = as_user(&sandbox, 65534, &["run", "x", "--", "true"]);
    command.env("HOME", &home);
    Ran::of(command).assert_code(0);

    // One's own directory may hold leases, although it cannot be entered now.
    std::os::unix::fs::chown(&home, Some(65534), None).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o000)).unwrap();
    let mut command = as_user(&sandbox, 65534, &["run", "x", "--", "true"]);
    command.env("HOME", &home);
    Ran::of(command).assert_code(77);
}

#[test]
fn init_succeeds_on_a_directory_too() {
    let sandbox = Sandbox::new();
    let made = sandbox.run(&["init"]);
    made.assert_code(0);
    assert_eq!(made.stdout, format!("ready: {}\n", sandbox.url()));
    assert!(sandbox.path("locks/default/records").is_dir());
    for args in [
        &["init", "--group", "daemon"][..],
        &["init", "--everybody"],
        &["init", "--print-sql"],
        &["-b", "file:", "init", "file:"],
    ] {
        sandbox.run(args).assert_code(64);
    }
}
