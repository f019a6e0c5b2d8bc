//! `cat`: files of a sandbox or a snapshot, as they are.

use std::io;

use forkpoint_core::{
    Error, ErrorKind,
    driver::FileKind,
    engine::{Look, Spot},
};
use futures::TryStreamExt as _;

use super::{Exit, Outcome};
use crate::{
    app::App,
    args::{CatArgs, place::Place},
    fail::{About, Failure},
    output::{file::kind_name, pager::enough},
};

pub(super) async fn cat(app: &App, args: &CatArgs) -> Outcome {
    for place in &args.places {
        let (look, spot) = open_file(app, place).await?;
        if let Err(err) = write(&look, &spot, &mut io::stdout()).await? {
            enough(Err(err))?;
            break;
        }
    }
    Ok(Exit::DONE)
}

/// What a path leads to, if that is a file.
pub(super) async fn open_file(app: &App, place: &Place) -> Result<(Look, Spot), Failure> {
    let about = || About::Source(place.reference.clone());
    let look = app.engine.look(&place.reference).await;
    let look = look.map_err(|err| Failure::new(err, about()))?;
    let spot = look.expect(&place.path).await?;
    if spot.facts.kind != FileKind::File {
        let (path, kind) = (place.path.display(), kind_name(spot.facts.kind));
        let title = look.title();
        return Err(Error::invalid(format!("`{path}` of {title} is a {kind}, not a file")).into());
    }
    Ok((look, spot))
}

/// The outer failure is one of reading, the inner one of writing.
pub(super) async fn write(
    look: &Look,
    spot: &Spot,
    to: &mut impl io::Write,
) -> Result<io::Result<()>, Error> {
    let mut bytes = look.read(&spot.path).await?;
    let failed = |err| {
        let message = format!("failed to read `{}` of {}", spot.path, look.title());
        Error::new(ErrorKind::Unavailable, message).with_source(err)
    };
    while let Some(chunk) = bytes.try_next().await.map_err(failed)? {
        if let Err(err) = to.write_all(&chunk) {
            return Ok(Err(err));
        }
    }
    Ok(to.flush())
}
