//! No two modules of a crate need each other: whoever reads one need not read the other first.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use syn::{
    Attribute, Item, ItemMod, UseTree,
    visit::{self, Visit},
};

/// Modules at the top of a crate, each with those that it uses.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Paths of one file that begin with `crate`, `self` or `super`, as paths from the root of the crate.
struct Paths {
    module: Vec<String>,
    found: Vec<Vec<String>>,
}

impl Paths {
    fn add(&mut self, path: &[String]) {
        let ups = path.iter().take_while(|part| *part == "super").count();
        let base = match path.first().map(String::as_str) {
            Some("crate") => &[],
            Some("self") => &self.module[..],
            Some("super") => &self.module[..self.module.len().saturating_sub(ups)],
            // In the root, the names of modules need nothing before them.
            Some(_) if self.module.is_empty() => return self.found.push(path.to_vec()),
            _ => return,
        };
        let rest = path[ups.max(1)..].iter();
        self.found.push(base.iter().chain(rest).cloned().collect());
    }

    fn add_tree(&mut self, before: &mut Vec<String>, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.add_tree(before, &path.tree);
                before.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_tree(before, tree)),
            UseTree::Name(name) => self.add(&[&before[..], &[name.ident.to_string()]].concat()),
            UseTree::Rename(name) => self.add(&[&before[..], &[name.ident.to_string()]].concat()),
            UseTree::Glob(_) => self.add(before),
        }
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Use(item) => self.add_tree(&mut Vec::new(), &item.tree),
            // Tests may look at whatever they like.
            Item::Mod(ItemMod { attrs, .. }) if attrs.iter().any(is_for_tests) => {}
            item => visit::visit_item(self, item),
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.add(&path.segments.iter().map(|segment| segment.ident.to_string()).collect::<Vec<_>>());
        visit::visit_path(self, path);
    }
}

fn is_for_tests(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg") && attribute.parse_args::<syn::Ident>().is_ok_and(|word| word == "test")
}

/// Each file of the crate and the path of its module.
fn files(folder: &Path, module: &[String], found: &mut Vec<(PathBuf, Vec<String>)>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry of it").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
        let below = [module, std::slice::from_ref(&name)].concat();
        if path.is_dir() {
            files(&path, &below, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && name != "tests" {
            found.push((path, if ["mod", "lib", "main"].contains(&name.as_str()) { module.to_vec() } else { below }));
        }
    }
}

fn graph(crate_name: &str) -> Graph {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(crate_name).join("src");
    let mut sources = Vec::new();
    files(&root, &[], &mut sources);
    let mut paths: Vec<Paths> = sources
        .iter()
        .map(|(file, module)| {
            let text = fs::read_to_string(file).expect("a source");
            let mut paths = Paths { module: module.clone(), found: Vec::new() };
            paths.visit_file(&syn::parse_file(&text).expect("Rust"));
            paths
        })
        .collect();
    // What the root exports stands for the module that has it.
    let exports: BTreeMap<String, String> = paths
        .iter()
        .filter(|paths| paths.module.is_empty())
        .flat_map(|root| root.found.iter().filter(|path| path.len() > 1))
        .map(|path| (path[path.len() - 1].clone(), path[0].clone()))
        .collect();
    assert!(crate_name != "leasehold" || exports.get("Lock").is_some_and(|module| module == "primitives"));
    let modules: BTreeSet<String> = paths.iter().filter_map(|paths| paths.module.first().cloned()).collect();
    let mut graph = Graph::new();
    for Paths { module, found } in &mut paths {
        let Some(from) = module.first() else { continue };
        let named = found.iter().filter_map(|path| path.first());
        let used = named.filter_map(|name| modules.get(name).or_else(|| exports.get(name)));
        graph.entry(from.clone()).or_default().extend(used.filter(|to| *to != from).cloned());
    }
    graph
}

/// A chain of modules that leads back to where it began.
fn cycle(graph: &Graph) -> Option<Vec<String>> {
    fn walk(graph: &Graph, chain: &mut Vec<String>, done: &mut BTreeSet<String>) -> bool {
        let last = chain[chain.len() - 1].clone();
        for next in graph.get(&last).into_iter().flatten() {
            if let Some(at) = chain.iter().position(|one| one == next) {
                chain.drain(..at);
                chain.push(next.clone());
                return true;
            }
            if !done.contains(next) {
                chain.push(next.clone());
                if walk(graph, chain, done) {
                    return true;
                }
                chain.pop();
            }
        }
        done.insert(last);
        false
    }
    let mut done = BTreeSet::new();
    graph.keys().find_map(|start| {
        let mut chain = vec![start.clone()];
        (!done.contains(start) && walk(graph, &mut chain, &mut done)).then_some(chain)
    })
}

#[test]
fn no_modules_need_each_other() {
    let crates = [
        "leasehold",
        "leasehold-cli",
        "leasehold-conformance",
        "leasehold-fork",
        "leasehold-spec",
        "leasehold-supervise",
        "leasehold-testkit",
        "leasehold-torture",
    ];
    for crate_name in crates {
        let graph = graph(crate_name);
        assert_eq!(cycle(&graph), None, "{crate_name}: {graph:#?}");
    }
}

#[test]
fn a_cycle_is_found() {
    let graph = |edges: &[(&str, &str)]| {
        let mut graph = Graph::new();
        for (from, to) in edges {
            graph.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        graph
    };
    assert_eq!(cycle(&graph(&[("a", "b"), ("b", "c"), ("a", "c")])), None);
    let found = cycle(&graph(&[("a", "b"), ("b", "c"), ("c", "b")])).expect("b and c need each other");
    assert_eq!(found, ["b", "c", "b"]);
}
