//! What the pages claim and can be checked: every test that docs/guarantees.md names exists, and SECURITY.md counts
//! `unsafe` as it is.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// All Rust files below a folder, with their text.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for path in entries.map(|entry| entry.expect("an entry").path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                found.push((path.clone(), fs::read_to_string(&path).expect("a source file")));
            }
        }
    }
    found
}

#[test]
fn every_test_that_the_guarantees_name_exists() {
    let page = read("docs/guarantees.md");
    // `path/of/file.rs: name_of_a_test`, in backquotes.
    let named: Vec<(&str, &str)> =
        page.split('`').skip(1).step_by(2).filter_map(|code| code.split_once(".rs: ")).collect();
    assert!(named.len() > 20, "only {} tests are named", named.len());
    let mut missing = Vec::new();
    for (file, test) in &named {
        let text = fs::read_to_string(root().join(format!("{file}.rs"))).unwrap_or_default();
        if !text.contains(&format!("fn {test}(")) {
            missing.push(format!("{file}.rs: {test}"));
        }
    }
    assert!(missing.is_empty(), "docs/guarantees.md names tests that are not there: {missing:#?}");
}

#[test]
fn every_trust_test_stands_behind_a_guarantee_or_checks_a_check() {
    let page = read("docs/guarantees.md");
    let named: HashSet<&str> =
        page.split('`').skip(1).step_by(2).filter_map(|code| code.split_once(".rs: ")).map(|it| it.1).collect();
    for (path, text) in sources("tests/trust") {
        for test in text.split("#[test]\nfn ").skip(1).filter_map(|rest| rest.split('(').next()) {
            let checks_a_check = path.ends_with("pages.rs") || test.starts_with("the_");
            assert!(checks_a_check || named.contains(test), "{}: {test} is not in docs/guarantees.md", path.display());
        }
    }
}

/// A line without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

#[test]
fn unsafe_code_stays_in_one_folder_is_counted_and_says_why_it_holds() {
    let fence = root().join("src/server");
    let mut blocks = 0;
    for (path, text) in ["src", "bucket/src", "client/src", "limiter/src"].iter().flat_map(|folder| sources(folder)) {
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let code = code(line);
            let is_block = code.contains("unsafe {") || code.contains("unsafe impl");
            if !is_block {
                continue;
            }
            assert!(path.starts_with(&fence), "unsafe code outside of src/server: {}:{}", path.display(), at + 1);
            blocks += 1;
            let above = &lines[at.saturating_sub(6)..=at];
            let reasoned = above.iter().any(|line| line.contains("SAFETY:"));
            assert!(reasoned, "{}:{}: no reason why this is safe", path.display(), at + 1);
        }
    }
    let page = read("SECURITY.md");
    let claim = format!("{blocks} `unsafe` blocks");
    assert!(page.contains(&claim), "SECURITY.md must speak of {claim}");
    let core = read("bucket/src/lib.rs");
    assert!(core.contains("#![forbid(unsafe_code)]"), "the arithmetic no longer forbids unsafe code");
}
