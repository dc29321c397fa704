//! Counts the files through which a received frame and a post pass, by the list `tests/ways`. The list is
//! compared with the sources. Each listed function has to be in the file that the list names. A function
//! before it on the same path has to mention its name, unless the list marks the function as called from
//! elsewhere (`>`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{fs, io};

use syn::visit::{self, Visit};

/// The path of the list, relative to the root of the checkout.
const LIST: &str = "tests/ways";

/// The numbers of one path through the code (a "way").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The name of the path.
    pub name: String,
    /// Number of functions on the path.
    pub functions: usize,
    /// Number of different files that contain the functions on the path.
    pub files: usize,
    /// Number of times that the path returns to a file that it had left.
    pub returns: usize,
}

/// A function of the list.
struct Step {
    file: String,
    function: String,
    is_called_from_elsewhere: bool,
}

/// The names that the body of a function mentions, by file and function.
type Bodies = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Reads the list of the checkout at `root`, and the files that the list names. Returns `None` if the
/// checkout has no list.
///
/// # Errors
/// If the list does not fit the sources. The message has each line that is wrong.
pub fn ways(root: &Path) -> io::Result<Option<Vec<Way>>> {
    let Some(list) = super::text_if_any(&root.join(LIST))? else { return Ok(None) };
    let steps = parse(&list)?;
    let mut bodies = Bodies::new();
    for Step { file, .. } in steps.iter().flat_map(|(_, steps)| steps) {
        if !bodies.contains_key(file) {
            let failed = |error: &dyn std::fmt::Display| io::Error::other(format!("{LIST}: {file}: {error}"));
            let text = fs::read_to_string(root.join(file)).map_err(|error| failed(&error))?;
            bodies.insert(file.clone(), functions_in(&text).map_err(|error| failed(&error))?);
        }
    }
    let errors: Vec<String> = steps.iter().flat_map(|(_, steps)| errors_of(steps, &bodies)).collect();
    if !errors.is_empty() {
        return Err(io::Error::other(format!("{LIST} does not fit the sources:\n{}", errors.join("\n"))));
    }
    Ok(Some(steps.into_iter().map(|(name, steps)| count(name, &steps)).collect()))
}

fn parse(text: &str) -> io::Result<Vec<(String, Vec<Step>)>> {
    let mut ways: Vec<(String, Vec<Step>)> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix("way ") {
            ways.push((name.to_owned(), Vec::new()));
            continue;
        }
        let (is_called_from_elsewhere, rest) = match line.strip_prefix("> ") {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let (Some((_, steps)), Some((file, function))) = (ways.last_mut(), rest.split_once(' ')) else {
            return Err(io::Error::other(format!("{LIST}: neither a way nor a file and a function: {line}")));
        };
        let (file, function) = (file.to_owned(), function.to_owned());
        steps.push(Step { file, function, is_called_from_elsewhere });
    }
    Ok(ways)
}

/// Returns what is wrong with the steps of one path.
fn errors_of(steps: &[Step], bodies: &Bodies) -> Vec<String> {
    let body = |step: &Step| bodies.get(&step.file)?.get(&step.function);
    let mut errors = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        let Step { file, function, is_called_from_elsewhere } = step;
        let mentions = |before: &Step| body(before).is_some_and(|names| names.contains(function));
        if body(step).is_none() {
            errors.push(format!("{file} has no function {function}"));
        } else if !is_called_from_elsewhere && !steps[..at].iter().any(mentions) {
            errors.push(format!("no function before {file} {function} mentions it"));
        }
    }
    errors
}

fn count(name: String, steps: &[Step]) -> Way {
    let mut files = BTreeSet::new();
    let (mut last, mut returns) = ("", 0);
    for Step { file, .. } in steps {
        let is_new = files.insert(file);
        returns += usize::from(!is_new && file != last);
        last = file;
    }
    Way { name, functions: steps.len(), files: files.len(), returns }
}

/// Returns the functions of a file, each with the names that its body mentions. Functions of test modules are
/// left out, and functions of the same name count as one.
fn functions_in(text: &str) -> syn::Result<BTreeMap<String, BTreeSet<String>>> {
    let mut functions = Functions::default();
    functions.visit_file(&syn::parse_file(text)?);
    Ok(functions.0)
}

#[derive(Default)]
struct Functions(BTreeMap<String, BTreeSet<String>>);

impl Functions {
    fn add(&mut self, name: &syn::Ident, body: &syn::Block) {
        let mut names = Names::default();
        names.visit_block(body);
        self.0.entry(name.to_string()).or_default().extend(names.0);
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !super::is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(&item.sig.ident, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig.ident, &item.block);
    }
}

/// Names of functions that are called, or that are passed as arguments to be called.
#[derive(Default)]
struct Names(BTreeSet<String>);

impl<'ast> Visit<'ast> for Names {
    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.0.insert(call.method.to_string());
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        self.0.extend(path.path.segments.last().map(|segment| segment.ident.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "fn a() { b(); self.c(); x.map(Self::d) }\nimpl T { fn b() {} fn c(&self) {} }\n\
        fn d() {}\n#[cfg(test)] mod tests { fn e() {} }";

    fn errors(list: &str) -> Vec<String> {
        let steps = parse(list).unwrap();
        let bodies = Bodies::from([("f.rs".to_owned(), functions_in(SOURCE).unwrap())]);
        steps.iter().flat_map(|(_, steps)| errors_of(steps, &bodies)).collect()
    }

    #[test]
    fn a_list_has_to_fit_the_sources() {
        assert_eq!(errors("way x\n> f.rs a\nf.rs b\nf.rs c\nf.rs d\n"), [""; 0]);
        assert_eq!(errors("way x\n> f.rs a\nf.rs e\n"), ["f.rs has no function e"]);
        assert_eq!(errors("way x\n> f.rs a\n> f.rs z\n"), ["f.rs has no function z"]);
        let unmentioned = ["no function before f.rs d mentions it"];
        assert_eq!(errors("way x\n> f.rs b\nf.rs d\n"), unmentioned);
        assert_eq!(errors("way x\n> f.rs b\nf.rs d\n> f.rs a\n"), unmentioned, "in the order of the calls");
        assert_eq!(errors("way x\n> f.rs a\nway y\nf.rs d\n"), unmentioned, "each way by itself");
        assert!(parse("f.rs a\n").is_err() && parse("way x\nf.rs\n").is_err());
    }

    #[test]
    fn a_way_returns_to_files_that_it_has_left() {
        let steps = parse("# comment\n\nway x\n> a.rs f\na.rs g\nb.rs f\na.rs h\nc.rs f\nb.rs g\nb.rs h\n");
        let (name, steps) = steps.unwrap().remove(0);
        assert_eq!(count(name, &steps), Way { name: "x".into(), functions: 7, files: 3, returns: 2 });
    }

    #[test]
    fn the_list_of_this_checkout_fits_its_sources() {
        let ways = ways(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))).unwrap().unwrap();
        let names: Vec<&str> = ways.iter().map(|way| &*way.name).collect();
        assert_eq!(names, ["received frame", "received Send", "post"]);
        assert!(ways.iter().all(|way| way.files > 5 && way.functions > way.files), "{ways:?}");
    }

    #[test]
    fn a_checkout_may_lack_a_list_but_not_a_file_of_its_list() {
        assert_eq!(ways(Path::new("/nonexistent")).unwrap(), None);
        let root = testkit::folder::Folder::new("uwarp-ways");
        fs::create_dir(root.join("tests")).unwrap();
        fs::write(root.join(LIST), "way x\n> f.rs a\n").unwrap();
        let found = ways(&root);
        assert!(found.is_err_and(|error| error.to_string().contains("f.rs")));
    }
}
