//! What a Rust file says of modules: those that it declares, the paths that it names, and what `use` calls them.
//!
//! **Invariants**: comments, text and what only tests see (`#[cfg(test)]`) say nothing; `super` is counted from the
//! file, not from a module within it.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

pub(crate) type Path = Vec<String>;

/// A file's modules and paths.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// The modules that lie in files of their own.
    pub(crate) children: Vec<String>,
    /// Paths of more than one name, in code and in `use`.
    pub(crate) paths: Vec<Path>,
    /// What `use` calls paths.
    pub(crate) names: BTreeMap<String, Path>,
}

/// Reads a file; an error where it is not Rust.
pub(crate) fn read(text: &str) -> Result<Source, String> {
    let tokens: TokenStream = text.parse().map_err(|e| format!("{e}"))?;
    let mut source = Source::default();
    source.code(tokens, 0);
    Ok(source)
}

impl Source {
    /// Code of a module `inner` levels below the file.
    fn code(&mut self, tokens: TokenStream, inner: usize) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut rest = &tokens[..];
        while let [first, after @ ..] = rest {
            rest = match (first, after) {
                (TokenTree::Punct(p), [TokenTree::Group(attribute), item @ ..])
                    if p.as_char() == '#' =>
                {
                    if is_for_tests(attribute) {
                        behind_item(item)
                    } else {
                        item
                    }
                }
                (TokenTree::Ident(word), [TokenTree::Group(_), after @ ..]) if word == "pub" => {
                    after
                }
                (
                    TokenTree::Ident(word),
                    [TokenTree::Ident(name), TokenTree::Group(body), after @ ..],
                ) if word == "mod" => {
                    let _ = name;
                    self.code(body.stream(), inner + 1);
                    after
                }
                (TokenTree::Ident(word), [TokenTree::Ident(name), after @ ..]) if word == "mod" => {
                    self.children.push(name.to_string());
                    after
                }
                (TokenTree::Ident(word), after) if word == "use" => {
                    let (tree, after) = until(after, ';');
                    self.tree(tree, &[], inner);
                    after
                }
                (TokenTree::Ident(_), _) => {
                    let (path, after) = path(rest);
                    if path.len() > 1 {
                        self.paths.extend(from_file(path, inner));
                    }
                    after
                }
                (TokenTree::Group(group), after) => {
                    self.code(group.stream(), inner);
                    after
                }
                (_, after) => after,
            };
        }
    }

    /// What stands behind `use` or in its braces, below `above`.
    fn tree(&mut self, tokens: &[TokenTree], above: &[String], inner: usize) {
        let mut rest = tokens;
        while !rest.is_empty() {
            let (one, after) = until(rest, ',');
            rest = after;
            let (names, end) = path(one);
            let mut full = [above, &names].concat();
            match end {
                [.., TokenTree::Group(group)] => {
                    let below: Vec<TokenTree> = group.stream().into_iter().collect();
                    self.tree(&below, &full, inner);
                }
                _ => {
                    let mut name = full.last().cloned().unwrap_or_default();
                    if name == "self" {
                        full.pop();
                        name = full.last().cloned().unwrap_or_default();
                    }
                    if let [.., TokenTree::Ident(other)] = end {
                        name = other.to_string(); // `as other`
                    }
                    if let Some(full) = from_file(full, inner) {
                        self.names.insert(name, full.clone());
                        self.paths.push(full);
                    }
                }
            }
        }
    }
}

/// The names joined by `::` that tokens begin with, and what follows.
fn path(tokens: &[TokenTree]) -> (Path, &[TokenTree]) {
    let mut names = Path::new();
    let mut rest = tokens;
    loop {
        match rest {
            [TokenTree::Ident(name), after @ ..] if names.is_empty() || is_joined(tokens, rest) => {
                names.push(name.to_string());
                rest = after;
            }
            _ => return (names, rest),
        }
        if let [TokenTree::Punct(a), TokenTree::Punct(b), after @ ..] = rest
            && a.as_char() == ':'
            && b.as_char() == ':'
        {
            rest = after;
        }
    }
}

/// Whether a `::` stands before `rest`.
fn is_joined(tokens: &[TokenTree], rest: &[TokenTree]) -> bool {
    let before = &tokens[..tokens.len() - rest.len()];
    matches!(before.last(), Some(TokenTree::Punct(p)) if p.as_char() == ':')
}

/// What comes before a sign, and what comes after it.
fn until(tokens: &[TokenTree], sign: char) -> (&[TokenTree], &[TokenTree]) {
    let end = tokens
        .iter()
        .position(|t| matches!(t, TokenTree::Punct(p) if p.as_char() == sign));
    let end = end.unwrap_or(tokens.len());
    (&tokens[..end], tokens.get(end + 1..).unwrap_or_default())
}

/// A path as the file itself would write it; none where it stays in a module within the file.
fn from_file(mut path: Path, inner: usize) -> Option<Path> {
    let up = path.iter().take_while(|name| *name == "super").count();
    if up > 0 && inner > 0 {
        path.drain(..inner.min(up));
        return (up > inner).then_some(path);
    }
    Some(path)
}

/// Whether an attribute says `cfg(test)`, or that beside other conditions.
fn is_for_tests(attribute: &Group) -> bool {
    let text = attribute.stream().to_string().replace(' ', "");
    text == "cfg(test)" || text.starts_with("cfg(all(test,")
}

/// What follows an item.
fn behind_item(mut item: &[TokenTree]) -> &[TokenTree] {
    while let [TokenTree::Punct(p), TokenTree::Group(_), after @ ..] = item {
        if p.as_char() != '#' {
            break;
        }
        item = after;
    }
    let is_use = matches!(item, [TokenTree::Ident(word), ..] if word == "use");
    let end = item.iter().position(|token| match token {
        TokenTree::Punct(p) => p.as_char() == ';' || p.as_char() == ',' && !is_use,
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace && !is_use,
        _ => false,
    });
    end.map_or(&[], |end| &item[end + 1..])
}
