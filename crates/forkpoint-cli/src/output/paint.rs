//! Colours, where somebody can see them.

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    pub(crate) const fn new(on: bool) -> Self {
        Self { on }
    }

    fn wrap(self, code: &str, text: &str) -> String {
        match self.on && !text.is_empty() {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }

    pub(crate) const RED: &'static str = "31";
    pub(crate) const GREEN: &'static str = "32";

    /// Of a line that need not be text.
    pub(crate) fn bytes(self, code: Option<&str>, line: &[u8]) -> Vec<u8> {
        match code.filter(|_| self.on) {
            Some(code) => [b"\x1b[", code.as_bytes(), b"m", line, b"\x1b[0m"].concat(),
            None => line.to_vec(),
        }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.wrap(Self::RED, text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.wrap(Self::GREEN, text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.wrap("33", text)
    }

    pub(crate) fn cyan(self, text: &str) -> String {
        self.wrap("36", text)
    }
}
