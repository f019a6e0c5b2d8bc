//! What it takes to make a template of somebody's image.

use std::{fs, path::Path};

use super::{
    Bench,
    command_line::{CommandLine, NOT_THERE},
};
use crate::figures::{Row, Samples, Unit};

const IMAGE_BYTES: u64 = 250 << 20;
const WHAT: &str = "unpack an image of 250 MB: `forkpoint template add`";

/// Files of this machine's own system make an image like others.
const CONTENT: [&str; 3] = ["/usr/lib", "/usr/bin", "/usr/share"];

pub(super) fn unpack(bench: &Bench<'_>) -> Vec<Row> {
    let directory = bench.ground.directory();
    let Some(cli) = CommandLine::find(bench, directory.path()) else {
        return vec![Row::missing(WHAT, NOT_THERE)];
    };
    let docker = match &bench.peers.docker {
        Ok(docker) => docker,
        Err(why) => return vec![Row::missing(WHAT, format!("needs docker: {why}"))],
    };
    let (tree, archive) = (directory.path().join("tree"), directory.path().join("image.tar"));
    let mut room = IMAGE_BYTES;
    CONTENT.iter().for_each(|from| fill(Path::new(from), &tree, &mut room));
    docker.save(&tree, &archive).unwrap();
    fs::remove_dir_all(&tree).unwrap();
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    for _ in 0..bench.rounds(5, 1) {
        let (time, image) = docker.load(&archive);
        theirs.add(time);
        docker.remove_image(&image);
        let added = cli.call(&["template", "add", "image", archive.to_str().unwrap_or_default()]);
        match added.and_then(|(time, _)| cli.call(&["template", "rm", "image"]).map(|_| time)) {
            Ok(time) => ours.add(time),
            Err(err) => return vec![Row::missing(WHAT, err)],
        }
    }
    let most = theirs.median();
    vec![Row::new(WHAT, Unit::Milliseconds, ours).at_most(most).beside("docker load", theirs)]
}

/// Copies files until there is no room.
fn fill(from: &Path, to: &Path, room: &mut u64) {
    let to = to.join(from.strip_prefix("/").unwrap_or(from));
    fs::create_dir_all(&to).unwrap();
    copy_into(from, &to, room);
}

fn copy_into(from: &Path, to: &Path, room: &mut u64) {
    for entry in fs::read_dir(from).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        let target = to.join(entry.file_name());
        if metadata.is_dir() && *room > 0 {
            fs::create_dir_all(&target).unwrap();
            copy_into(&entry.path(), &target, room);
        } else if metadata.is_symlink() {
            let _ =
                fs::read_link(entry.path()).and_then(|to| std::os::unix::fs::symlink(to, target));
        } else if metadata.is_file() && metadata.len() <= *room {
            *room -= fs::copy(entry.path(), target).unwrap_or(0);
        }
    }
}
