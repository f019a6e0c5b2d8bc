//! `edit`: what is written on a snapshot, changed.

use forkpoint_core::{Error, ErrorKind, engine::SnapshotEdit, label::Labels};

use super::{Exit, Outcome};
use crate::{
    app::App,
    args::{EditArgs, value::Expiry},
    fail::{About, Failure},
    output::record::SnapshotJson,
};

pub(super) async fn edit(app: &App, args: &EditArgs) -> Outcome {
    let edit = what(args)?;
    if edit == SnapshotEdit::default() {
        let nothing = Error::invalid("nothing was said that is to change");
        return Err(Failure::new(nothing, About::Edit));
    }
    let work = app.engine.edit_snapshot(&args.snapshot, edit, args.wait.wait());
    let record = app.finish("changing a snapshot", work).await.map_err(|err| {
        let about = match err.kind() {
            ErrorKind::Conflict => About::New { name: args.name.clone(), template: None },
            _ => About::Snapshot(args.snapshot.clone()),
        };
        Failure::new(err, about)
    })?;
    match app.out.json {
        true => app.out.json(&SnapshotJson::from(&record))?,
        false => app.out.note(format!("changed snapshot `{}`", record.name)),
    }
    Ok(Exit::DONE)
}

fn what(args: &EditArgs) -> Result<SnapshotEdit, Error> {
    Ok(SnapshotEdit {
        name: args.name.as_deref().map(str::parse).transpose()?,
        description: args
            .description
            .clone()
            .map(|text| Some(text).filter(|text| !text.is_empty())),
        add_labels: Labels::new(args.labels.clone())?,
        remove_labels: args.remove_labels.clone(),
        expires: args.expires.map(Expiry::moment).transpose()?,
        pinned: match (args.pin, args.unpin) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        },
        ..SnapshotEdit::default()
    })
}
