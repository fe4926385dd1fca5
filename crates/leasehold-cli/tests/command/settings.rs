//! Flags, environment, profiles and defaults, as they come together.

use std::fs;

use crate::sandbox::{Ran, Sandbox};

#[test]
fn a_profile_names_a_place() {
    let sandbox = Sandbox::new();
    let config = sandbox.path("config.toml");
    fs::write(
        &config,
        format!(
            "default = \"one\"\n[defaults]\nttl = \"20s\"\nkill_after = 1.5\n[backend.one]\nurl = \"{0}-one\"\nnamespace = \"billing\"\n[backend.two]\nurl = \"{0}-two\"\n",
            sandbox.url()
        ),
    )
    .unwrap();
    let config = config.to_str().unwrap();
    let list = |args: &[&str]| Ran::of(sandbox.bare(&[&["--config", config, "--json", "list"], args].concat())).json();
    let told = list(&[]);
    assert_eq!((&told["profile"], &told["namespace"]), (&"one".into(), &"billing".into()));
    let told = list(&["-b", "two"]);
    assert_eq!((&told["profile"], &told["namespace"]), (&"two".into(), &"default".into()));
    assert_eq!(list(&["--namespace", "n"])["namespace"], "n");

    let ran = Ran::of(sandbox.bare(&["--config", config, "run", "x", "-c", "echo $LEASEHOLD_TTL_MS $LEASEHOLD_URL"]));
    assert_eq!(ran.stdout, "20000\n");
    let dry = Ran::of(sandbox.bare(&["--config", config, "run", "--dry-run", "x", "--", "echo", "never"]));
    dry.assert_code(0);
    assert!(dry.stderr.contains("would take x") && dry.stderr.contains("kill after 1s"), "{dry:?}");
    assert_eq!(dry.stdout, "");

    let mut by_env = sandbox.bare(&["list", "--json"]);
    by_env.env("LEASEHOLD_CONFIG", config).env("LEASEHOLD_URL", "two").env("LEASEHOLD_NAMESPACE", "e");
    let told = Ran::of(by_env).json();
    assert_eq!((&told["profile"], &told["namespace"]), (&"two".into(), &"e".into()));
}

#[test]
fn an_empty_or_mistyped_variable_is_told() {
    let sandbox = Sandbox::new();
    let run = |flags: &[&str], name: &str, value: &str| {
        let mut command = sandbox.bare(&[flags, &["run", "x", "--", "echo", "done"]].concat());
        command.env(name, value);
        Ran::of(command)
    };
    for empty in ["", " "] {
        let refused = run(&[], "LEASEHOLD_URL", empty);
        refused.assert_code(78);
        assert!(refused.stderr.contains("LEASEHOLD_URL is set but empty\nleasehold:   give it a URL, or unset it"));
        assert_eq!(refused.stdout, "");
    }
    assert!(!sandbox.path("home/.local").exists(), "no locks of this machine instead");
    run(&["-b", &sandbox.url()], "LEASEHOLD_URL", "").assert_code(0);
    for empty in ["", " "] {
        let refused = run(&["-b", empty], "LEASEHOLD_URL", &sandbox.url());
        refused.assert_code(78);
        assert!(
            refused.stderr.starts_with("leasehold: -b is empty\nleasehold:   give it a URL or a profile"),
            "{refused:?}"
        );
        assert_eq!(refused.stdout, "", "neither the locks of the variable nor those of this machine");
    }

    for name in ["LEASEHOLD_ULR", "LEASEHOLD_BACKEND"] {
        let refused = run(&[], name, "redis://cache");
        refused.assert_code(78);
        let words = format!("leasehold: {name} has no meaning, and nothing else says where the locks are\n");
        assert!(refused.stderr.starts_with(&words) && refused.stderr.contains("did you mean LEASEHOLD_URL?"));
        assert_eq!(refused.stdout, "");
        assert_eq!(run(&["-b", &sandbox.url()], name, "redis://cache").stderr, "", "the flag says it");
    }
    assert!(!sandbox.path("home/.local").exists(), "no locks of this machine instead");
    let config = sandbox.path("config.toml");
    fs::write(&config, format!("default = \"{}\"\n", sandbox.url())).unwrap();
    let warned = run(&["--config", config.to_str().unwrap()], "LEASEHOLD_BACKEND", "redis://cache");
    warned.assert_code(0);
    let words = "leasehold: warning: LEASEHOLD_BACKEND has no meaning; did you mean LEASEHOLD_URL?\n";
    assert_eq!(warned.stderr, words);
    let mistyped = run(&[], "LEASEHOLD_NAMESPACES", "n");
    mistyped.assert_code(0);
    let words = "leasehold: warning: LEASEHOLD_NAMESPACES has no meaning; did you mean LEASEHOLD_NAMESPACE?\n";
    assert_eq!(mistyped.stderr, words);
    // What a command under a lock has in its environment.
    assert_eq!(run(&[], "LEASEHOLD_BACKEND", "redis").stderr, "");
    assert_eq!(run(&[], "LEASEHOLD_TTL", "5s").stderr, "");
}

#[test]
fn the_default_of_the_config_file_may_be_a_url() {
    let sandbox = Sandbox::new();
    let config = sandbox.path("config.toml");
    fs::write(&config, format!("default = \"{}\"\n", sandbox.url())).unwrap();
    Ran::of(sandbox.bare(&["--config", config.to_str().unwrap(), "run", "x", "true"])).assert_code(0);
    assert!(sandbox.path("locks/default").is_dir());
}

#[test]
fn the_default_is_the_users_state_directory() {
    let sandbox = Sandbox::new();
    Ran::of(sandbox.bare(&["run", "x", "true"])).assert_code(0);
    assert!(sandbox.path("home/.local/state/leasehold/default").is_dir());
    let mut command = sandbox.bare(&["run", "x", "true"]);
    command.env("XDG_STATE_HOME", sandbox.path("state"));
    Ran::of(command).assert_code(0);
    assert!(sandbox.path("state/leasehold/default").is_dir());
}

#[test]
fn the_usual_config_file_is_read_and_the_working_directory_is_not() {
    let sandbox = Sandbox::new();
    let here = sandbox.path("here");
    fs::create_dir_all(here.join("leasehold")).unwrap();
    fs::write(here.join("config.toml"), "nonsense").unwrap();
    fs::write(here.join("leasehold/config.toml"), "nonsense").unwrap();
    let mut command = sandbox.bare(&["run", "x", "true"]);
    command.current_dir(&here);
    Ran::of(command).assert_code(0);
    let mut command = sandbox.bare(&["list"]);
    command.env("XDG_CONFIG_HOME", &here);
    Ran::of(command).assert_code(78);
}

#[test]
fn output_follows_flags_and_environment() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.leasehold(&["list"]);
    command.env("LEASEHOLD_JSON", "1");
    assert_eq!(Ran::of(command).json()["v"], 1);
    let mut command = sandbox.leasehold(&["run", "x", "true"]);
    command.env("LEASEHOLD_LOG", "info");
    assert!(Ran::of(command).stderr.contains("acquired x"));
    let _holder = sandbox.hold("x");
    assert!(sandbox.run(&["list", "--color", "always"]).stdout.contains("\x1b[1m"));
    assert!(!sandbox.run(&["list"]).stdout.contains('\x1b'));
    let mut command = sandbox.leasehold(&["list"]);
    command.env("CLICOLOR_FORCE", "1");
    assert!(Ran::of(command).stdout.contains('\x1b'));
    let mut command = sandbox.leasehold(&["list"]);
    command.env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1");
    assert!(!Ran::of(command).stdout.contains('\x1b'));
}
