//! What others can depend on, as a list in `public_api.txt`: a change of it shows in review.
//!
//! `unreachable_pub` makes sure that what is `pub` can be reached, so the sources are enough to know. A type goes by the
//! path of the module that defines it: two types of one name stay apart.
//! After a change that is meant: `LEASEHOLD_UPDATE=1 cargo test -p leasehold --all-features --test public_api`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
};

use quote::ToTokens;
use syn::{
    Attribute, Expr, Fields, ImplItem, Item, ItemImpl, PathArguments, Signature, Token, TraitItem, Type, UseTree,
    Visibility, parse::ParseStream,
};

/// The list, line by line, and what is needed to make it. Paths begin after the name of the crate.
#[derive(Default)]
struct Api {
    lines: BTreeSet<String>,
    /// The paths of the public types.
    types: BTreeSet<String>,
    /// What `use` brings into a module: the path that it gets there, and where that leads.
    imports: BTreeMap<String, String>,
    /// Each `impl` and its module, for the end, when every type is known.
    impls: Vec<(String, ItemImpl)>,
}

/// A method that a macro writes: its visibility and signature, `=>`, and what its body comes down to.
struct Written {
    visibility: Visibility,
    signature: Signature,
}

impl Written {
    fn parse_all(input: ParseStream<'_>) -> syn::Result<Vec<Self>> {
        let mut all = Vec::new();
        while !input.is_empty() {
            input.call(Attribute::parse_outer)?;
            all.push(Self { visibility: input.parse()?, signature: input.parse()? });
            input.parse::<Token![=>]>()?;
            input.parse::<Expr>()?;
            input.parse::<Token![;]>()?;
        }
        Ok(all)
    }
}

/// The path of a name in a module; that of the root is empty.
fn within(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") }
}

fn text(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    for (spaced, plain) in [
        (" :: ", "::"),
        (":: ", "::"),
        (" ::", "::"),
        (" <", "<"),
        ("< ", "<"),
        (" >", ">"),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        (" ,", ","),
        ("& ", "&"),
        (" :", ":"),
        ("' ", "'"),
        (",)", ")"),
        (" ;", ";"),
        ("$ ", "$"),
        ("->(", "-> ("),
        (",>", ">"),
    ] {
        text = text.replace(spaced, plain);
    }
    text
}

/// `name: type`, or the type of a field without a name.
fn field(field: &syn::Field) -> String {
    match &field.ident {
        Some(name) => format!("{name}: {}", text(&field.ty)),
        None => text(&field.ty),
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn has(attributes: &[Attribute], name: &str) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident(name))
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| text(attribute).contains("cfg(test)"))
}

/// The path from the root of a path that is written in a module.
fn absolute(module: &str, path: &[String]) -> String {
    let mut base = match path[0].as_str() {
        "crate" => "",
        "super" => module.rsplit_once("::").map_or("", |(parent, _)| parent),
        _ => module,
    };
    let mut rest = &path[usize::from(["crate", "self", "super"].contains(&path[0].as_str()))..];
    while rest.first().is_some_and(|part| part == "super") {
        base = base.rsplit_once("::").map_or("", |(parent, _)| parent);
        rest = &rest[1..];
    }
    within(base, &rest.join("::"))
}

impl Api {
    fn add(&mut self, line: impl Into<String>) {
        self.lines.insert(line.into());
    }

    fn add_type(&mut self, kind: &str, path: &str, generics: &syn::Generics, attributes: &[Attribute]) {
        let open = if has(attributes, "non_exhaustive") { "#[non_exhaustive] " } else { "" };
        self.add(format!("{path}: {open}{kind} {}", text(generics)).trim_end().to_owned());
        let derived = attributes.iter().filter(|attribute| attribute.path().is_ident("derive"));
        for traits in derived.map(|attribute| text(&attribute.meta)) {
            self.add(format!("{path}: {traits}"));
        }
        self.types.insert(path.to_owned());
    }

    fn add_fields(&mut self, of: &str, fields: &Fields) {
        for (number, field) in fields.iter().enumerate().filter(|(_, field)| is_public(&field.vis)) {
            let name = field.ident.as_ref().map_or_else(|| number.to_string(), ToString::to_string);
            self.add(format!("{of}.{name}: {}", text(&field.ty)));
        }
    }

    fn add_items(&mut self, module: &str, items: &[Item]) {
        let here = if module.is_empty() { "crate" } else { module };
        for item in items {
            match item {
                Item::Struct(one) if is_public(&one.vis) => {
                    let path = within(module, &one.ident.to_string());
                    self.add_type("struct", &path, &one.generics, &one.attrs);
                    self.add_fields(&path, &one.fields);
                }
                Item::Enum(one) if is_public(&one.vis) => {
                    let path = within(module, &one.ident.to_string());
                    self.add_type("enum", &path, &one.generics, &one.attrs);
                    for variant in &one.variants {
                        let fields: Vec<String> = variant.fields.iter().map(field).collect();
                        self.add(format!("{path}::{}({})", variant.ident, fields.join(", ")));
                    }
                }
                Item::Trait(one) if is_public(&one.vis) => {
                    let path = within(module, &one.ident.to_string());
                    self.add(format!("{path}: trait: {}", text(&one.supertraits)).trim_end().to_owned());
                    for item in &one.items {
                        if let TraitItem::Fn(method) = item {
                            let default = if method.default.is_some() { " { … }" } else { "" };
                            self.add(format!("{path}: {}{default}", text(&method.sig)));
                        }
                    }
                }
                Item::Fn(one) if is_public(&one.vis) => self.add(format!("{here}: {}", text(&one.sig))),
                Item::Const(one) if is_public(&one.vis) => {
                    self.add(format!("{here}: const {}: {}", one.ident, text(&one.ty)));
                }
                Item::Type(one) if is_public(&one.vis) => {
                    self.add(format!("{here}: type {}{} = {}", one.ident, text(&one.generics), text(&one.ty)));
                }
                Item::Use(one) => {
                    self.import(module, &mut Vec::new(), &one.tree);
                    if is_public(&one.vis) {
                        self.add(format!("{here}: use {}", text(&one.tree)));
                    }
                }
                Item::Mod(one) if is_public(&one.vis) => self.add(format!("{here}: mod {}", one.ident)),
                Item::Impl(one) if !is_for_tests(&one.attrs) => self.impls.push((module.to_owned(), one.clone())),
                Item::Macro(one)
                    if one.ident.as_ref().is_some_and(|name| {
                        ["_options", "_option", "_methods"].iter().any(|end| name.to_string().ends_with(end))
                    }) =>
                {
                    let name = one.ident.as_ref().map(ToString::to_string).unwrap_or_default();
                    for method in text(&one.mac.tokens).split("pub fn ").skip(1) {
                        self.add(format!("{name}!: fn {}", method.split(" {").next().unwrap_or_default()));
                    }
                }
                Item::Macro(one) if one.ident.as_ref().is_some_and(|name| name.to_string().ends_with("_impls")) => {
                    let name = one.ident.as_ref().map(ToString::to_string).unwrap_or_default();
                    for implemented in text(&one.mac.tokens).split("impl ").skip(1) {
                        self.add(format!("{name}!: impl {}", implemented.split(" {").next().unwrap_or_default()));
                    }
                }
                Item::Macro(one) if text(&one.mac.path).ends_with("_impls") => {
                    self.add(format!("{}: {}!", within(module, &text(&one.mac.tokens)), text(&one.mac.path)));
                }
                _ => {}
            }
        }
    }

    fn import(&mut self, module: &str, before: &mut Vec<String>, tree: &UseTree) {
        let (name, known_as) = match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.import(module, before, &path.tree);
                before.pop();
                return;
            }
            UseTree::Group(group) => return group.items.iter().for_each(|tree| self.import(module, before, tree)),
            UseTree::Name(name) => (&name.ident, &name.ident),
            UseTree::Rename(name) => (&name.ident, &name.rename),
            UseTree::Glob(_) => return,
        };
        let path = [&before[..], &[name.to_string()]].concat();
        let target = absolute(module, &path);
        let known_as = within(module, &known_as.to_string());
        if known_as != target {
            self.imports.insert(known_as, target);
        }
    }

    /// The module path and name of the type that a path in a module leads to.
    fn definition(&self, module: &str, path: &[String]) -> String {
        let mut found = absolute(module, path);
        while let Some(target) = self.imports.get(&found) {
            found.clone_from(target);
        }
        found
    }

    fn add_impl(&mut self, module: &str, one: &ItemImpl) {
        let Type::Path(of) = &*one.self_ty else { return };
        let path: Vec<String> = of.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let defined = self.definition(module, &path);
        let arguments = match of.path.segments.last().map(|segment| &segment.arguments) {
            Some(PathArguments::AngleBracketed(arguments)) => text(arguments),
            _ => String::new(),
        };
        let of = format!("{defined}{arguments}");
        if let Some((_, implemented, _)) = &one.trait_ {
            if self.types.contains(&defined) {
                self.add(format!("{of}: impl {}", text(implemented)));
            }
            return;
        }
        for item in &one.items {
            match item {
                ImplItem::Fn(method) if is_public(&method.vis) => self.add(format!("{of}: {}", text(&method.sig))),
                ImplItem::Const(value) if is_public(&value.vis) => {
                    self.add(format!("{of}: const {}: {}", value.ident, text(&value.ty)));
                }
                ImplItem::Macro(call) if matches!(text(&call.mac.path).as_str(), "setters" | "constructors") => {
                    for written in call.mac.parse_body_with(Written::parse_all).unwrap() {
                        if is_public(&written.visibility) {
                            self.add(format!("{of}: {}", text(&written.signature)));
                        }
                    }
                }
                ImplItem::Macro(call) => self.add(format!("{of}: {}!", text(&call.mac.path))),
                _ => {}
            }
        }
    }
}

fn read(folder: &Path, module: &str, api: &mut Api) {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            read(&path, &within(module, &name), api);
        } else if path.extension().is_some_and(|extension| extension == "rs") && name != "tests" {
            let module = if name == "mod" || name == "lib" { module.to_owned() } else { within(module, &name) };
            api.add_items(&module, &syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap().items);
        }
    }
}

#[test]
fn the_public_api_is_the_one_that_was_reviewed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut api = Api::default();
    read(&root.join("src"), "", &mut api);
    for (module, one) in std::mem::take(&mut api.impls) {
        api.add_impl(&module, &one);
    }
    let now: Vec<&str> = api.lines.iter().map(String::as_str).collect();
    for known in
        ["primitives::lock::Lock: async fn acquire", "leasehold::Leasehold: fn mutex", "blocking::Leasehold: fn mutex"]
    {
        assert!(now.iter().any(|line| line.starts_with(known)), "the sources were not understood: {known}");
    }

    let committed = root.join("tests/public_api.txt");
    if env::var_os("LEASEHOLD_UPDATE").is_some() {
        fs::write(&committed, now.join("\n") + "\n").unwrap();
    }
    let before = fs::read_to_string(&committed).unwrap();
    let before: BTreeSet<&str> = before.lines().collect();
    let after: BTreeSet<&str> = now.into_iter().collect();
    let gone: Vec<&&str> = before.difference(&after).collect();
    let new: Vec<&&str> = after.difference(&before).collect();
    assert!(
        gone.is_empty() && new.is_empty(),
        "the public API changed; if that is meant, update the list (see the top of this file)\ngone: {gone:#?}\nnew: {new:#?}"
    );
}
