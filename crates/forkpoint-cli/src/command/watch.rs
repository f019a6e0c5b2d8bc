//! `watch`: snapshots every so often, and when a sandbox ends, until somebody says stop.

use std::{pin::pin, time::Duration};

use forkpoint_core::{
    Error,
    engine::{SnapshotOutcome, SnapshotRequest, Turn, Wait, Watch, WatchRequest},
    label::Labels,
    trigger::Trigger,
};
use futures::future::{Either, select};
use serde::Serialize;

use super::{Exit, Outcome, snapshot::retained};
use crate::{
    app::{App, listen},
    args::{WatchArgs, value},
    fail::{About, Failure},
    output::record::{SnapshotJson, counted},
};

/// How long one waits for somebody else who works on the sandbox.
const PATIENCE: Duration = Duration::from_secs(30);

/// One line for each thing that happened.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    Taken { snapshot: Box<SnapshotJson<'a>> },
    Skipped { reason: String },
    Failed { error: String },
    Started,
    Away { error: String },
    Back,
    Gone,
}

pub(super) async fn watch(app: &App, args: &WatchArgs) -> Outcome {
    let about = || About::Watch(args.sandbox.clone());
    let begun = app.engine.watch(request(args)?).await;
    let mut watch = begun.map_err(|err| Failure::new(err, about()))?;
    app.out.note(format!("watching `{}` {}; Ctrl-C ends it", args.sandbox, when(args, &watch)));
    let mut taken = 0;
    // From here to the end, so that none is missed between two turns.
    let mut signals = listen()?;
    loop {
        // Nothing is under way: this may be left at once.
        let turn = match select(pin!(watch.next()), pin!(signals.next())).await {
            Either::Left((turn, _)) => turn,
            Either::Right(_) => return Ok(Exit::DONE),
        };
        match turn {
            Turn::Take(why, context) => {
                taken += u64::from(take(app, args, &mut watch, why, context).await?);
                // That is how a watch ends, whatever it was doing.
                let interrupted = app.take_interrupt();
                if args.count.is_some_and(|count| taken >= count) || interrupted {
                    return Ok(Exit::DONE);
                }
            }
            Turn::Gone => {
                tell(app, &Line::Gone, || format!("`{}` is gone", args.sandbox))?;
                return Ok(Exit::DONE);
            }
            turn => passing(app, args, &turn)?,
        }
    }
}

fn request(args: &WatchArgs) -> Result<WatchRequest, Error> {
    let snapshot = SnapshotRequest {
        description: args.description.clone(),
        run_id: args.run_id.clone(),
        labels: Labels::new(args.labels.clone())?,
        sync: !args.no_sync,
        skip_unchanged: true,
        wait: Wait::UpTo(PATIENCE),
        ..SnapshotRequest::new(&args.sandbox)
    };
    Ok(WatchRequest { every: args.every, snapshot })
}

fn when(args: &WatchArgs, watch: &Watch) -> String {
    let every = args.every.map(|every| format!("every {every:?}"));
    let ends = watch.listens().then(|| "when it ends".to_owned());
    every.into_iter().chain(ends).collect::<Vec<_>>().join(", and ")
}

/// Whether one was taken. What fails is told, and tried again when the next is due.
async fn take(
    app: &App,
    args: &WatchArgs,
    watch: &mut Watch,
    why: Trigger,
    context: Option<String>,
) -> Result<bool, Failure> {
    let reason = context.clone();
    watch.expire_in(args.expires.map(value::from_now).transpose()?);
    let outcome = app.finish("taking a snapshot", watch.take(why, context)).await;
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(err) => {
            let error = err.chain().to_string();
            app.out.warn(&error);
            tell(app, &Line::Failed { error }, String::new)?;
            return Ok(false);
        }
    };
    match outcome {
        SnapshotOutcome::Taken(taken) => {
            let snapshot = &taken.snapshot;
            let line = Line::Taken { snapshot: Box::new(snapshot.into()) };
            if !app.out.json {
                app.out.text(&snapshot.id.to_string())?;
            }
            let own = counted(snapshot, snapshot.own_bytes);
            let because = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
            let text =
                format!("took snapshot `{}` ({why}), {own} of its own{because}", snapshot.name);
            tell(app, &line, || text)?;
            match &taken.pruned {
                Some(Ok(report)) => retained(app, report),
                Some(Err(err)) => app.out.warn(format!("retention has to wait: {}", err.chain())),
                None => {}
            }
            Ok(true)
        }
        SnapshotOutcome::Skipped(reason) => {
            let line = Line::Skipped { reason: reason.to_string() };
            tell(app, &line, || format!("nothing was taken: {reason}"))?;
            Ok(false)
        }
    }
}

fn passing(app: &App, args: &WatchArgs, turn: &Turn) -> Result<(), Failure> {
    let sandbox = &args.sandbox;
    match turn {
        Turn::Started => tell(app, &Line::Started, || format!("`{sandbox}` was started")),
        Turn::Back => tell(app, &Line::Back, || {
            format!("`{sandbox}` is heard of again; what happened meanwhile is not known")
        }),
        Turn::Away(err) => {
            let error = err.chain().to_string();
            let text = format!("`{sandbox}` cannot be heard of, and is tried again: {error}");
            tell(app, &Line::Away { error }, || text)
        }
        Turn::Take(..) | Turn::Gone => Ok(()),
    }
}

/// A line of JSON on stdout, or a note for people.
fn tell(app: &App, line: &Line<'_>, text: impl FnOnce() -> String) -> Result<(), Failure> {
    if app.out.json {
        let json = serde_json::to_string(line).map_err(std::io::Error::from)?;
        app.out.text(&crate::output::human::clean_json(&json))?;
        return Ok(());
    }
    let text = text();
    if !text.is_empty() {
        app.out.note(text);
    }
    Ok(())
}
