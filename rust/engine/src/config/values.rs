//! Reading the raw map against the table.

use super::*;

/// The raw map, with every key known and every value of its type and in its range.
pub(super) struct Settings {
    values: BTreeMap<&'static str, String>,
    /// Of the keys that stand for a family: by that key and the id.
    families: BTreeMap<(&'static str, String), String>,
}

impl Settings {
    pub(super) fn new(raw: Vec<(String, String)>) -> Result<Self> {
        let mut values = BTreeMap::new();
        let mut families = BTreeMap::new();
        for (name, value) in raw {
            let definition = KEYS
                .iter()
                .find(|key| key.matches(&name))
                .ok_or_else(|| unknown(&name))?;
            // An unset environment variable reaches us as an empty value; a prefix may be empty on purpose and is so by default.
            let value = value
                .trim_matches(|letter: char| letter.is_ascii_whitespace())
                .to_owned();
            if value.contains(char::is_control) {
                return Err(Error::config(&name, "the value has control characters"));
            }
            if value.is_empty() {
                continue;
            }
            check(&name, definition.value_type, &value)?;
            if let Some(id) = definition.id_in(&name) {
                families.insert((definition.name, id.to_owned()), value);
                continue;
            }
            if values.insert(definition.name, value).is_some() {
                return Err(Error::config(
                    &name,
                    format!("{} is set already by another name", definition.name),
                ));
            }
        }
        Ok(Settings { values, families })
    }

    /// The value as it was set.
    pub(super) fn optional(&self, name: &'static str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// The values of a key that stands for a family, by id.
    pub(super) fn family(&self, name: &'static str) -> BTreeMap<&str, &str> {
        let of_name = self.families.iter().filter(|((key, _), _)| *key == name);
        of_name.map(|((_, id), value)| (id.as_str(), value.as_str())).collect()
    }

    /// The value as it was set, of a key that `why` asks for.
    pub(super) fn required(&self, name: &'static str, why: &str) -> Result<&str> {
        self.optional(name)
            .ok_or_else(|| Error::config(name, format!("{why} needs it, and it is not set")))
    }

    /// The value, or the default.
    pub(super) fn text(&self, name: &'static str) -> Result<&str> {
        match self.optional(name) {
            Some(value) => Ok(value),
            None => definition(name)?
                .default
                .ok_or_else(|| Error::config(name, "it is required and has no default")),
        }
    }

    pub(super) fn flag(&self, name: &'static str) -> Result<bool> {
        Ok(self.text(name)? == "true")
    }

    pub(super) fn optional_flag(&self, name: &'static str) -> Result<Option<bool>> {
        self.optional(name).map(|_| self.flag(name)).transpose()
    }

    pub(super) fn number<N: TryFrom<u64>>(&self, name: &'static str) -> Result<N> {
        let number: u64 = self.text(name)?.parse().map_err(|error| Error::config(name, error))?;
        N::try_from(number).map_err(|_| Error::config(name, format!("{number} is too large for this machine")))
    }

    pub(super) fn optional_number<N: TryFrom<u64>>(&self, name: &'static str) -> Result<Option<N>> {
        self.optional(name).map(|_| self.number(name)).transpose()
    }

    pub(super) fn duration(&self, name: &'static str) -> Result<Duration> {
        self.number(name).map(Duration::from_millis)
    }
}

/// Longest component of a path (NAME_MAX of Linux).
const PATH_COMPONENT_BYTES_MAX: usize = 255;

fn definition(name: &'static str) -> Result<&'static KeyDefinition> {
    KEYS.iter()
        .find(|key| key.name == name)
        .ok_or_else(|| Error::config(name, "it is not in the table"))
}

fn check(name: &str, value_type: ValueType, value: &str) -> Result<()> {
    match value_type {
        // Not quoted: someone has put the key itself where its file belongs.
        _ if value.contains("-----BEGIN") => Err(Error::config(
            name,
            "this is a key or a certificate itself; the setting takes something else",
        )),
        ValueType::Path
            if value
                .split('/')
                .any(|component| component.len() > PATH_COMPONENT_BYTES_MAX) =>
        {
            Err(Error::config(name, format!("{} bytes that are no path", value.len())))
        }
        ValueType::Text | ValueType::Secret | ValueType::Path => Ok(()),
        ValueType::Flag => match value {
            "true" | "false" => Ok(()),
            _ => Err(Error::config(name, format!("{value:?} is neither true nor false"))),
        },
        ValueType::Number { min, max } => match value.parse::<u64>() {
            Ok(number) if (min..=max).contains(&number) => Ok(()),
            _ => Err(Error::config(
                name,
                format!("{value:?} is not a whole number from {min} to {max}"),
            )),
        },
        ValueType::Choice(words) if words.contains(&value) => Ok(()),
        ValueType::Choice(words) => Err(Error::config(
            name,
            format!("{value:?} is not one of {}", words.join(", ")),
        )),
    }
}

fn unknown(name: &str) -> Error {
    let nearest = KEYS
        .iter()
        .filter(|key| key.owner != Owner::Kafka)
        .flat_map(|key| std::iter::once(key.name).chain(key.aliases.iter().copied()))
        .min_by_key(|known| distance(name, known));
    match nearest {
        Some(nearest) => Error::config(name, format!("unknown key; did you mean {nearest}?")),
        None => Error::config(name, "unknown key"),
    }
}

/// Levenshtein distance of two short words.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (line, left_char) in left.chars().enumerate() {
        let mut diagonal = line;
        let mut before = line + 1;
        for (cell, right_char) in row.iter_mut().skip(1).zip(&right) {
            let replaced = diagonal + usize::from(left_char != *right_char);
            diagonal = *cell;
            before = replaced.min(before + 1).min(diagonal + 1);
            *cell = before;
        }
        if let Some(first) = row.first_mut() {
            *first = line + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits() {
        for (left, right, edits) in [
            ("", "abc", 3),
            ("abc", "", 3),
            ("abc", "abc", 0),
            ("kitten", "sitting", 3),
            ("s3.buket", "s3.bucket", 1),
        ] {
            assert_eq!(distance(left, right), edits, "{left} {right}");
        }
    }
}
