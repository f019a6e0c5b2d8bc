//! `demo`: the guided tour. It works in a place of its own and leaves nothing behind.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use forkpoint_core::{Error, ErrorKind, catalog::SnapshotQuery, engine::Wait, label::Labels};

use super::{Exit, Outcome, ps};
use crate::{
    app::{App, now},
    args::DemoArgs,
    config::Config,
    fail::{About, Failure, INTERRUPTED},
    output::Output,
    signal::Signals,
    wire,
};

mod place;
mod stage;
mod tour;

use place::Place;
use stage::Stage;

/// How long the clean-up waits for what an interrupted step still does.
const PATIENCE: Wait = Wait::UpTo(std::time::Duration::from_secs(10));

/// How a tour ends before its end.
enum Stop {
    /// Somebody pressed Ctrl-C.
    Asked,
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        let about = About::New { name: None, template: None };
        Self::Failed(Failure::new(error, about))
    }
}

impl From<std::io::Error> for Stop {
    fn from(err: std::io::Error) -> Self {
        Self::Failed(err.into())
    }
}

pub(crate) async fn demo(out: &Output, args: &DemoArgs) -> Outcome {
    // From here on a signal ends the tour between two steps, and the clean-up runs.
    let asked = listen()?;
    let place = Place::make()?;
    // The tour shows what the product does, not what this machine is configured to do.
    let config = Config::default();
    let opened = match wire::open(place.path(), wire::Need::Launches, &config, out).await {
        Ok(opened) => opened,
        Err(err) => return Err(Failure::new(err, About::New { name: None, template: None })),
    };
    let app = App::new(opened, *out, config, place.path().to_owned());
    let mut stage = Stage::new(*out, asked);
    let toured = async {
        stage.open(place.path())?;
        tour::tour(&app, &mut stage, usize::from(args.count)).await
    };
    let toured = toured.await;
    let since = now();
    let cleaned = clean_up(app, place).await;
    end(stage, toured, cleaned, since)
}

fn listen() -> Result<Arc<AtomicBool>, Failure> {
    let asked = Arc::new(AtomicBool::new(false));
    let mut signals = Signals::that_end()?;
    let flag = Arc::clone(&asked);
    tokio::spawn(async move {
        loop {
            signals.next().await;
            flag.store(true, Ordering::Relaxed);
        }
    });
    Ok(asked)
}

/// Everything goes through the engine first: files of a sandbox may belong to users that only its
/// driver can act for.
async fn clean_up(app: App, place: Place) -> Result<(), Error> {
    for view in ps::all(&app, Labels::default()).await? {
        app.engine.destroy(&view.record.id.to_string(), PATIENCE).await?;
    }
    for snapshot in app.engine.list(&SnapshotQuery::default()).await?.items {
        app.engine.delete_snapshot(&snapshot.id.to_string(), PATIENCE).await?;
    }
    // The catalog closes its files and the driver ends its threads before their directory goes.
    drop(app);
    let path = place.path().to_owned();
    place.remove().await.map_err(|err| {
        let message = format!("failed to remove `{}`", path.display());
        Error::new(ErrorKind::Unavailable, message).with_source(err)
    })
}

fn end(
    mut stage: Stage,
    toured: Result<(), Stop>,
    cleaned: Result<(), Error>,
    since: forkpoint_core::Timestamp,
) -> Outcome {
    match toured {
        Err(Stop::Failed(failure)) => {
            if let Err(err) = cleaned {
                stage.out.warn(err.chain());
            }
            return Err(failure);
        }
        Err(Stop::Asked) => {
            cleaned?;
            stage.out.note("stopped, and cleaned up");
            return Ok(Exit(INTERRUPTED));
        }
        Ok(()) => cleaned?,
    }
    stage.last_step("clean up", "remove all of it", since)?;
    stage.close()?;
    Ok(Exit::DONE)
}
