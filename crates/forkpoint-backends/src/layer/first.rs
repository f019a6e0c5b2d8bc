//! Copies a whole tree and tells what it looked like, in one pass.
//!
//! Whoever copies a file is the one who looks at it, once, when it is open.

use std::{
    borrow::Cow,
    ffi::CString,
    sync::{Arc, Weak, atomic::Ordering},
};

use rustix::fs::{FileType, Mode, mkdirat};

use super::{
    LayerResult, Marks,
    capture::{Source, Way, fill_folder},
    copy::Done,
    crew::{Crew, sum, with_crew},
    cursor::{DirCursor, numbered_names},
    error::{At as _, During as _, Fault},
    fill::{Ends, Folder, Known, Marking, Task},
    site::Site,
    tree::{Directory, Entry, Tree, inspect},
};

/// Copies everything. Nothing may write to the tree meanwhile. The way has no base.
pub(super) fn bring_all(source: Source, way: Way) -> LayerResult<(Tree, Done)> {
    let Way { marks, links, to, base: _, sealed, packing } = way;
    let from = source.into_cursor();
    let site = Site::new(marks, links, packing).at(|| from.path())?;
    let mut walker = Walker { marks, from, to, directories: Vec::new() };
    let hands = with_crew(&site, sealed, |crew| walker.walk(crew))?;
    let done = sum(&hands);
    let mut directories = walker.directories;
    for (index, entry) in hands.into_iter().flat_map(|hand| hand.found) {
        directories[index].entries.push(entry);
    }
    for directory in &mut directories {
        directory.entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    }
    Ok((Tree { directories }, done))
}

/// Makes the directories, and leaves the rest to a crew if there is much of it.
struct Walker {
    marks: Marks,
    from: DirCursor,
    to: DirCursor,
    /// In the order of the walk. Of what is in them there are the directories, in the order of their
    /// names.
    directories: Vec<Directory>,
}

/// A directory in which the walk is, or to which it comes back.
struct Stay<'a> {
    /// The entry that is the next directory.
    next: usize,
    marking: Arc<Marking>,
    /// Whatever the crew still copies there.
    folder: Weak<Folder<'a>>,
}

impl Walker {
    fn walk<'a>(&mut self, crew: &mut Crew<'_, '_, 'a>) -> LayerResult<()> {
        let mut way = vec![self.fill(crew)?];
        while let Some(stay) = way.last_mut()
            && !crew.has_failed()
        {
            if let Some(name) = self.next_child(stay) {
                self.enter(&name).at(|| self.from.path_of(&name))?;
                way.push(self.fill(crew)?);
            } else if let Some(stay) = way.pop() {
                self.leave(&stay, crew)?;
            }
        }
        Ok(())
    }

    /// It will be the next that is filled.
    fn next_child(&mut self, stay: &mut Stay) -> Option<CString> {
        let child = u32::try_from(self.directories.len()).ok();
        let entry = self.directories[stay.marking.index].entries.get_mut(stay.next)?;
        stay.next += 1;
        entry.child = child;
        Some(entry.name.clone())
    }

    fn enter(&mut self, name: &CString) -> Result<(), Fault> {
        self.from.enter(name)?;
        mkdirat(self.to.fd(), name, Mode::RWXU).during("create a copy of")?;
        self.to.enter(name)
    }

    fn leave<'a>(&mut self, stay: &Stay<'a>, crew: &mut Crew<'_, '_, 'a>) -> LayerResult<()> {
        if let Some(folder) = stay.folder.upgrade() {
            folder.left.store(true, Ordering::Relaxed);
            self.go_up().at(|| self.from.path())?;
            crew.hand.release(folder)
        } else {
            crew.hand.finish(self.ends(&stay.marking)).at(|| self.from.path())?;
            self.go_up().at(|| self.from.path())
        }
    }

    fn go_up(&mut self) -> Result<(), Fault> {
        self.from.leave()?;
        self.to.leave().map(drop)
    }

    fn ends<'b>(&'b self, marking: &'b Marking) -> Ends<'b> {
        Ends { from: self.from.fd(), base: None, to: self.to.fd(), marking }
    }

    /// Everything in a directory but the directories in it.
    fn fill<'a>(&mut self, crew: &mut Crew<'_, '_, 'a>) -> LayerResult<Stay<'a>> {
        let index = self.directories.len();
        let (directory, tasks) = self.read().at(|| self.from.path())?;
        // The root of a layer is never opaque to overlayfs, whatever its attribute says.
        let opaque = directory.opaque && index > 0;
        self.directories.push(directory);
        let marking = Arc::new(Marking::new(index, opaque, false));
        let folder = fill_folder(&self.from, self.ends(&marking), &marking, tasks, crew)?;
        Ok(Stay { next: 0, marking, folder })
    }

    /// A directory with the directories in it, and everything else.
    fn read<'a>(&self) -> Result<(Directory, Vec<Task<'a>>), Fault> {
        let (mut entries, mut tasks) = (Vec::new(), Vec::new());
        let mut listed = numbered_names(self.from.fd())?;
        // What was made together lies together, on the disk and in the kernel's memory.
        listed.sort_unstable_by_key(|(number, _, _)| *number);
        for (_, name, kind) in listed {
            match self.kind_of(&name, kind)? {
                Seen::Directory(entry) => entries.push(entry),
                Seen::Other(kind) => {
                    tasks.push(Task { name: Cow::Owned(name), known: Known::Type(kind) });
                }
            }
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        // The others come when they have been copied.
        entries.reserve_exact(tasks.len());
        Ok((Directory { opaque: self.marks.is_opaque(self.from.fd())?, entries }, tasks))
    }

    fn kind_of(&self, name: &CString, kind: FileType) -> Result<Seen, Fault> {
        match kind {
            // Not every file system has the type in the directory.
            FileType::Directory | FileType::Unknown => {
                let entry = inspect(&self.from, name.clone(), self.marks)?;
                let kind = FileType::from_raw_mode(entry.print.mode);
                Ok(if entry.print.is_dir() { Seen::Directory(entry) } else { Seen::Other(kind) })
            }
            kind => Ok(Seen::Other(kind)),
        }
    }
}

enum Seen {
    Directory(Entry),
    Other(FileType),
}
