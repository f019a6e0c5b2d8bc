//! File names of strangers, as a terminal and `git apply` can take them.

use std::{fmt::Write as _, os::unix::ffi::OsStrExt as _, path::Path};

use super::human::is_unsafe;

/// As it is, if it is harmless text; else in quotes, as git writes such names.
pub(crate) fn quote(path: &Path) -> String {
    quote_bytes(path.as_os_str().as_bytes())
}

pub(crate) fn quote_bytes(bytes: &[u8]) -> String {
    let harmless = |c: char| !is_unsafe(c) && !matches!(c, '"' | '\\');
    if let Ok(text) = std::str::from_utf8(bytes)
        && text.chars().all(harmless)
    {
        return text.to_owned();
    }
    let mut quoted = String::from("\"");
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            push(&mut quoted, c);
        }
        for byte in chunk.invalid() {
            let _ = write!(quoted, "\\{byte:03o}");
        }
    }
    quoted.push('"');
    quoted
}

fn push(quoted: &mut String, c: char) {
    match c {
        '"' => quoted.push_str("\\\""),
        '\\' => quoted.push_str("\\\\"),
        '\n' => quoted.push_str("\\n"),
        '\t' => quoted.push_str("\\t"),
        '\r' => quoted.push_str("\\r"),
        c if is_unsafe(c) => {
            let mut buffer = [0; 4];
            for byte in c.encode_utf8(&mut buffer).bytes() {
                let _ = write!(quoted, "\\{byte:03o}");
            }
        }
        c => quoted.push(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_as_git_writes_them() {
        for (bytes, text) in [
            (&b"plain name.rs"[..], "plain name.rs"),
            ("é 漢".as_bytes(), "é 漢"),
            (b"a\"b\\c", r#""a\"b\\c""#),
            (b"a\nb\tc", r#""a\nb\tc""#),
            (b"\x1b[2J", r#""\033[2J""#),
            (b"a\xff\xfe", r#""a\377\376""#),
            ("\u{202e}x".as_bytes(), r#""\342\200\256x""#),
        ] {
            assert_eq!(quote_bytes(bytes), text);
        }
    }
}
