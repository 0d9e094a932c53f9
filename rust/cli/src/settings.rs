//! The plugin's settings out of a broker's properties file and the command line.

use std::collections::BTreeMap;

use crate::{Source, commands::Result};

impl Source {
    /// The settings, without the broker's prefix.
    pub(crate) fn read(&self) -> Result<Vec<(String, String)>> {
        let mut settings = BTreeMap::new();
        if let Some(path) = &self.properties {
            let text =
                std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            for (key, value) in properties(&text) {
                if let Some(key) = key.strip_prefix(&self.impl_prefix) {
                    settings.insert(key.to_owned(), value);
                }
            }
        }
        for pair in &self.set {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| format!("--set {pair}: write it as KEY=VALUE"))?;
            settings.insert(key.to_owned(), value.to_owned());
        }
        if let Some((key, value)) = settings.iter().find(|(_, value)| value.contains("${")) {
            // Only a broker has the configuration providers that resolve it; the value may name a secret's place but is none itself.
            return Err(
                format!("{key}={value} is resolved by the broker only; give its value with --set {key}=…").into(),
            );
        }
        Ok(settings.into_iter().collect())
    }
}

/// Pairs of a Java properties file: comments, line continuations, `=` or `:`, and the escapes that occur in practice.
fn properties(text: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let mut line = line.trim_start().to_owned();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        while continues(&line) {
            line.pop();
            line.push_str(lines.next().unwrap_or_default().trim_start());
        }
        let end = line
            .find(|letter: char| matches!(letter, '=' | ':') || letter.is_whitespace())
            .unwrap_or(line.len());
        let (key, rest) = line.split_at(end);
        let rest = rest.trim_start();
        let value = rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start();
        pairs.push((key.to_owned(), unescape(value)));
    }
    pairs
}

/// An odd number of backslashes at the end joins the next line.
fn continues(line: &str) -> bool {
    line.bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 1
}

fn unescape(value: &str) -> String {
    let mut plain = String::with_capacity(value.len());
    let mut letters = value.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            plain.push(letter);
            continue;
        }
        match letters.next() {
            Some('t') => plain.push('\t'),
            Some('n') => plain.push('\n'),
            Some('r') => plain.push('\r'),
            Some('u') => {
                let digits: String = letters.by_ref().take(4).collect();
                plain.extend(u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32));
            }
            Some(other) => plain.push(other),
            None => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_read_as_java_reads_them() {
        let text = "# comment\n! another\n\n a.b = one two \\\n    three\nc:four\nd five\ne=\\u00e9\\tx\\\\y\nf\n";
        let pairs = properties(text);
        let expected = [
            ("a.b", "one two three"),
            ("c", "four"),
            ("d", "five"),
            ("e", "é\tx\\y"),
            ("f", ""),
        ];
        assert_eq!(pairs, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }
}
