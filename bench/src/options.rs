//! What the command line of a benchmark says.

use std::path::PathBuf;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeersWanted {
    /// Those that answer.
    #[default]
    Found,
    /// A daemon of our own, started and stopped by us.
    Start,
    None,
}

#[derive(Clone, Debug, Default)]
pub struct Options {
    pub quick: bool,
    pub json: Option<PathBuf>,
    /// Where the state lies; a file system of our own if there is none.
    pub dir: Option<PathBuf>,
    pub cli: Option<PathBuf>,
    pub peers: PeersWanted,
    /// Only the cases whose name holds this.
    pub only: Option<String>,
    /// How many sandboxes the product keeps ready.
    pub warm: usize,
}

impl Options {
    /// Of the arguments, without the program's name.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut options = Self::default();
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("`{argument}` needs a value"));
            match argument.as_str() {
                "--quick" => options.quick = true,
                "--json" => options.json = Some(value()?.into()),
                "--dir" => options.dir = Some(value()?.into()),
                "--cli" => options.cli = Some(value()?.into()),
                "--only" => options.only = Some(value()?),
                "--warm" => {
                    let text = value()?;
                    options.warm = text.parse().map_err(|_| format!("`{text}` is no number"))?;
                }
                "--peers" => options.peers = peers(&value()?)?,
                _ => return Err(format!("there is no `{argument}`")),
            }
        }
        if options.quick {
            options.peers = PeersWanted::None;
        }
        Ok(options)
    }
}

fn peers(text: &str) -> Result<PeersWanted, String> {
    match text {
        "found" => Ok(PeersWanted::Found),
        "start" => Ok(PeersWanted::Start),
        "none" => Ok(PeersWanted::None),
        _ => Err(format!("`--peers` is `found`, `start` or `none`, not `{text}`")),
    }
}
