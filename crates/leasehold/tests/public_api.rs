//! What others can depend on, as a list in `public_api.txt`: a change of it shows in review.
//!
//! `unreachable_pub` makes sure that what is `pub` can be reached, so the sources are enough to know.
//! After a change that is meant: `LEASEHOLD_UPDATE=1 cargo test -p leasehold --test public_api`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
};

use quote::ToTokens;
use syn::{Attribute, Fields, ImplItem, Item, TraitItem, Type, Visibility};

/// The list, line by line, and the names of the types in it.
#[derive(Default)]
struct Api {
    lines: BTreeSet<String>,
    types: BTreeSet<String>,
    /// Implementations of traits, each with the type that has it.
    implemented: Vec<(String, String)>,
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

fn type_name(of: &Type) -> Option<String> {
    match of {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        _ => None,
    }
}

impl Api {
    fn add(&mut self, line: impl Into<String>) {
        self.lines.insert(line.into());
    }

    fn add_type(&mut self, kind: &str, name: &str, generics: &syn::Generics, attributes: &[Attribute]) {
        let closed = if has(attributes, "non_exhaustive") { "#[non_exhaustive] " } else { "" };
        self.add(format!("{name}: {closed}{kind} {name}{}", text(generics)));
        let derived = attributes.iter().filter(|attribute| attribute.path().is_ident("derive"));
        for traits in derived.map(|attribute| text(&attribute.meta)) {
            self.add(format!("{name}: {traits}"));
        }
        self.types.insert(name.to_owned());
    }

    fn add_fields(&mut self, of: &str, fields: &Fields) {
        for (number, field) in fields.iter().enumerate().filter(|(_, field)| is_public(&field.vis)) {
            let name = field.ident.as_ref().map_or_else(|| number.to_string(), ToString::to_string);
            self.add(format!("{of}.{name}: {}", text(&field.ty)));
        }
    }

    fn add_items(&mut self, module: &str, items: &[Item]) {
        for item in items {
            match item {
                Item::Struct(one) if is_public(&one.vis) => {
                    self.add_type("struct", &one.ident.to_string(), &one.generics, &one.attrs);
                    self.add_fields(&one.ident.to_string(), &one.fields);
                }
                Item::Enum(one) if is_public(&one.vis) => {
                    let name = one.ident.to_string();
                    self.add_type("enum", &name, &one.generics, &one.attrs);
                    for variant in &one.variants {
                        let fields: Vec<String> = variant.fields.iter().map(field).collect();
                        self.add(format!("{name}::{}({})", variant.ident, fields.join(", ")));
                    }
                }
                Item::Trait(one) if is_public(&one.vis) => {
                    let name = one.ident.to_string();
                    self.add(format!("{name}: trait {name}: {}", text(&one.supertraits)));
                    for item in &one.items {
                        if let TraitItem::Fn(method) = item {
                            let default = if method.default.is_some() { " { … }" } else { "" };
                            self.add(format!("{name}: {}{default}", text(&method.sig)));
                        }
                    }
                }
                Item::Fn(one) if is_public(&one.vis) => self.add(format!("{module}: {}", text(&one.sig))),
                Item::Const(one) if is_public(&one.vis) => {
                    self.add(format!("{module}: const {}: {}", one.ident, text(&one.ty)));
                }
                Item::Type(one) if is_public(&one.vis) => {
                    self.add(format!("{module}: type {}{} = {}", one.ident, text(&one.generics), text(&one.ty)));
                }
                Item::Use(one) if is_public(&one.vis) => self.add(format!("{module}: use {}", text(&one.tree))),
                Item::Mod(one) if is_public(&one.vis) => self.add(format!("{module}: mod {}", one.ident)),
                Item::Impl(one) if !is_for_tests(&one.attrs) => self.add_impl(one),
                Item::Macro(one)
                    if one.ident.as_ref().is_some_and(|name| {
                        name.to_string().ends_with("_options") || name.to_string().ends_with("_option")
                    }) =>
                {
                    let name = one.ident.as_ref().map(ToString::to_string).unwrap_or_default();
                    for method in text(&one.mac.tokens).split("pub fn ").skip(1) {
                        self.add(format!("{name}!: fn {}", method.split(" {").next().unwrap_or_default()));
                    }
                }
                _ => {}
            }
        }
    }

    fn add_impl(&mut self, one: &syn::ItemImpl) {
        let Some(name) = type_name(&one.self_ty) else { return };
        let of = text(&one.self_ty);
        if let Some((_, implemented, _)) = &one.trait_ {
            return self.implemented.push((name, format!("{of}: impl {}", text(implemented))));
        }
        for item in &one.items {
            match item {
                ImplItem::Fn(method) if is_public(&method.vis) => self.add(format!("{of}: {}", text(&method.sig))),
                ImplItem::Const(value) if is_public(&value.vis) => {
                    self.add(format!("{of}: const {}: {}", value.ident, text(&value.ty)));
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
            read(&path, &format!("{module}::{name}"), api);
        } else if path.extension().is_some_and(|extension| extension == "rs") && name != "tests" {
            let module = if name == "mod" || name == "lib" { module.to_owned() } else { format!("{module}::{name}") };
            api.add_items(&module, &syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap().items);
        }
    }
}

#[test]
fn the_public_api_is_the_one_that_was_reviewed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut api = Api::default();
    read(&root.join("src"), "leasehold", &mut api);
    let implemented = std::mem::take(&mut api.implemented);
    for (name, line) in implemented {
        if api.types.contains(&name) {
            api.add(line);
        }
    }
    let now: Vec<&str> = api.lines.iter().map(String::as_str).collect();
    assert!(now.iter().any(|line| line.starts_with("Lock: async fn acquire")), "the sources were not understood");

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
