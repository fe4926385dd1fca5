//! A type's name has one meaning in all crates: a reader who has met it once knows it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use syn::{
    Attribute, Ident, ItemEnum, ItemMod, ItemStruct, ItemTrait, ItemType, Macro,
    buffer::{Cursor, TokenBuffer},
    visit::{self, Visit},
};

/// Names that are defined more than once, how often, and why one meaning covers all of them.
const SHARED: &[(&str, usize, &str)] = &[
    ("Action", 2, "a step of a model, in each model of the specification"),
    ("Brief", 2, "a short duration: the library's own is private, and the command prints the same"),
    ("Cluster", 2, "a Redis Cluster: its servers in tests, the connection to one"),
    ("Command", 2, "the subcommands of a program"),
    ("Connection", 2, "a connection to the server, in each backend that has one"),
    ("Dice", 2, "a seeded source of chance: the suite is published, the torture is not"),
    ("Drive", 2, "the driver of a Redis connection, and its stand-in on other systems"),
    ("Durability", 2, "which writes must have survived, in the options of each server"),
    ("EntryLine", 2, "a line of a file's record, written and read"),
    ("EventLoop", 2, "an event loop that is not tokio's, and its stand-in on other systems"),
    ("Guard", 2, "async, and blocking"),
    ("Guards", 2, "async, and blocking"),
    ("Header", 2, "the first line of a file's record, written and read"),
    ("HolderAndNote", 2, "a part of a record in Redis, written and read"),
    ("Leasehold", 2, "async, and blocking"),
    ("Meters", 2, "metrics, and their stand-in without the feature"),
    ("Notifications", 2, "what a server pushes"),
    ("OperationAudience", 2, "whom an operation notifies, in each backend that runs the model itself"),
    ("Record", 2, "a resource or lease as a backend stores it"),
    ("Reply", 2, "an answer of the server with what the connection adds to it"),
    ("Result", 3, "of each crate's own error"),
    ("Shared", 3, "what the clones of a handle share, private to each file of the Redis backend"),
    ("Socket", 2, "a socket to the server"),
    ("Tls", 2, "how a connection is encrypted, in the options of each server"),
    ("WaitingBatches", 2, "what waits for the turn of an event loop, and its stand-in on other systems"),
];

/// The types that one file defines outside of its tests, and the files that are tests alone.
#[derive(Default)]
struct Definitions {
    names: Vec<String>,
    test_modules: BTreeSet<String>,
    /// Parameters of macros that a call writes behind `struct` or the like, where the name is found.
    named_in_calls: BTreeSet<String>,
    /// Whether a macro defines a type whose name is another parameter: such a name cannot be found.
    has_name_by_parameter: bool,
}

impl Definitions {
    /// Finds types in the text of a macro, or of a call of one. `in_impl` says whether that text is the body of an
    /// `impl` or a `trait`: a `type` there is no definition of its own.
    fn find_in_macro(&mut self, mut rest: Cursor<'_>, in_impl: bool) {
        let mut impl_follows = false;
        loop {
            if let Some((inside, _, _, after)) = rest.any_group() {
                // Before `=>` is the pattern of a rule, which defines nothing.
                let is_pattern = after.punct().is_some_and(|(mark, next)| {
                    mark.as_char() == '=' && next.punct().is_some_and(|(mark, _)| mark.as_char() == '>')
                });
                if is_pattern {
                    self.named_in_calls.extend(named_parameters(inside));
                } else {
                    self.find_in_macro(inside, in_impl || impl_follows);
                }
                rest = after;
            } else if let Some((word, after)) = rest.ident() {
                rest = after;
                let word = word.to_string();
                match word.as_str() {
                    "impl" | "trait" => impl_follows = true,
                    "struct" | "enum" | "type" | "fn" | "mod" => impl_follows = false,
                    _ => {}
                }
                if !matches!(word.as_str(), "struct" | "enum" | "trait") && (word != "type" || in_impl) {
                    continue;
                }
                if let Some((name, after)) = rest.ident() {
                    self.names.push(name.to_string());
                    rest = after;
                } else if let Some(parameter) = parameter(rest) {
                    self.has_name_by_parameter |= !self.named_in_calls.contains(&parameter);
                }
            } else if let Some((_, after)) = rest.token_tree() {
                rest = after;
            } else {
                return;
            }
        }
    }
}

/// The name of the parameter, if one stands here.
fn parameter(here: Cursor<'_>) -> Option<String> {
    let (_, name) = here.punct().filter(|(mark, _)| mark.as_char() == '$')?;
    name.ident().map(|(name, _)| name.to_string())
}

/// The parameters behind `struct`, `enum`, `trait` or `type` in the pattern of a rule.
fn named_parameters(mut pattern: Cursor<'_>) -> Vec<String> {
    let mut names = Vec::new();
    while let Some((_, after)) = pattern.token_tree() {
        if pattern.ident().is_some_and(|(word, _)| ["struct", "enum", "trait", "type"].iter().any(|kind| word == kind))
        {
            names.extend(parameter(after));
        }
        pattern = after;
    }
    names
}

fn is_for_tests(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg") && attribute.parse_args::<Ident>().is_ok_and(|word| word == "test")
}

impl<'ast> Visit<'ast> for Definitions {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if module.attrs.iter().any(is_for_tests) {
            self.test_modules.insert(module.ident.to_string());
        } else {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        self.names.push(item.ident.to_string());
    }

    fn visit_item_enum(&mut self, item: &'ast ItemEnum) {
        self.names.push(item.ident.to_string());
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        self.names.push(item.ident.to_string());
    }

    fn visit_item_type(&mut self, item: &'ast ItemType) {
        self.names.push(item.ident.to_string());
    }

    fn visit_macro(&mut self, text: &'ast Macro) {
        self.find_in_macro(TokenBuffer::new2(text.tokens.clone()).begin(), false);
    }
}

fn definitions(source: &str) -> Definitions {
    let mut found = Definitions::default();
    found.visit_file(&syn::parse_file(source).unwrap());
    found
}

/// The files of a module that is declared in `file`.
fn files_of(file: &Path, module: &str) -> [PathBuf; 2] {
    let folder = file.parent().unwrap();
    [folder.join(format!("{module}.rs")), file.with_extension("").join(format!("{module}.rs"))]
}

#[test]
fn a_type_name_has_one_meaning() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let listed = Command::new("git").args(["ls-files", "*/src/*.rs"]).current_dir(&root).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let listed = String::from_utf8(listed.stdout).unwrap();
    // Packages for other languages name types as those languages do.
    let is_ours = |path: &&Path| root.join(path).exists() && !path.starts_with("bindings");
    let sources = listed.lines().map(Path::new).filter(is_ours);
    let sources: Vec<(&Path, Definitions)> =
        sources.map(|path| (path, definitions(&fs::read_to_string(root.join(path)).unwrap()))).collect();
    assert!(sources.len() > 300, "{} files", sources.len());
    let tests: BTreeSet<PathBuf> = sources
        .iter()
        .flat_map(|(path, found)| found.test_modules.iter().flat_map(|module| files_of(path, module)))
        .collect();
    let mut places: BTreeMap<&str, Vec<&Path>> = BTreeMap::new();
    for (path, found) in sources.iter().filter(|(path, _)| !tests.contains(*path)) {
        let file = path.display();
        assert!(!found.has_name_by_parameter, "{file}: write the name of the type into the text of the macro");
        for name in &found.names {
            places.entry(name).or_default().push(path);
        }
    }
    places.retain(|_, files| files.len() > 1);
    for (name, times, _) in SHARED {
        let files = places.remove(name).unwrap_or_default();
        assert_eq!(files.len(), *times, "{name} is listed in this test, and defined in {files:?}");
    }
    assert!(places.is_empty(), "rename one of each, or list it in this test: {places:#?}");
}

#[test]
fn definitions_are_found_outside_of_tests_only() {
    let found = definitions(
        "struct A; enum B {} trait C {} type D = A; mod inner { struct E; } #[cfg(test)] mod tests { struct F; } \
         #[cfg(test)] mod elsewhere;",
    );
    assert_eq!(found.names, ["A", "B", "C", "D", "E"]);
    assert_eq!(found.test_modules.into_iter().collect::<Vec<_>>(), ["elsewhere", "tests"]);
    assert_eq!(files_of(Path::new("a/b.rs"), "c"), [PathBuf::from("a/c.rs"), PathBuf::from("a/b/c.rs")]);
}

#[test]
fn definitions_are_found_in_macros_too() {
    let found = definitions(
        "macro_rules! calls { (struct $call:ident, $($rest:ident),*) => { $( enum A {} )* \
         impl Deref for A { type Target = u8; } trait B { type Item; } type C = A; }; } \
         calls! { pub struct D; mod inner { enum E {} } } fn f() { say!(struct F;); }",
    );
    assert_eq!(found.names, ["A", "B", "C", "D", "E", "F"]);
    assert!(!found.has_name_by_parameter);
    assert!(definitions("macro_rules! types { ($name:ident) => { struct $name; }; }").has_name_by_parameter);
    let found = definitions("macro_rules! types { (struct $name:ident) => { struct $name; }; } types! { struct A }");
    assert!(found.names == ["A"] && !found.has_name_by_parameter, "{:?}", found.names);
}
