//! The verbs, one file for each or for a few that are alike.

use std::process::ExitCode;

use forkpoint_core::Error;

use crate::{
    app::App,
    args::Verb,
    fail::{About, Failure},
    output::record::FailedJson,
    wire::Need,
};

mod apply;
mod cat;
pub(crate) mod complete;
pub(crate) mod completions;
pub(crate) mod config;
mod cp;
mod create;
mod delete;
pub(crate) mod demo;
mod diff;
pub(crate) mod doctor;
mod drift;
mod edit;
mod exec;
mod fork;
mod import_legacy;
mod list;
mod log;
mod ls;
mod power;
mod prune;
mod ps;
mod restore;
mod rm;
mod rollback;
mod show;
mod snapshot;
mod stats;
mod template;
mod validate;
mod watch;

/// How a command ended that did not fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Exit(pub(crate) u8);

impl Exit {
    pub(crate) const DONE: Self = Self(0);
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.0.into()
    }
}

pub(crate) type Outcome = Result<Exit, Failure>;

pub(crate) fn need(verb: &Verb) -> Need {
    match verb {
        Verb::Run(_)
        | Verb::Create(_)
        | Verb::Start(_)
        | Verb::Snapshot(_)
        | Verb::Restore(_)
        | Verb::Rollback(_)
        | Verb::Fork(_) => Need::Launcher,
        _ => Need::Records,
    }
}

/// Everything that works on the data directory.
pub(crate) async fn perform(app: &App, verb: &Verb) -> Outcome {
    match verb {
        Verb::Run(args) => exec::run(app, args).await,
        Verb::Exec(args) => exec::exec(app, args).await,
        Verb::Create(args) => create::create(app, args).await,
        Verb::Ps(args) => ps::ps(app, args).await,
        Verb::Rm(args) => rm::rm(app, args).await,
        Verb::Stop(args) => power::perform(app, power::Power::Stop, args).await,
        Verb::Start(args) => power::perform(app, power::Power::Start, args).await,
        Verb::Pause(args) => power::perform(app, power::Power::Pause, args).await,
        Verb::Resume(args) => power::perform(app, power::Power::Resume, args).await,
        Verb::Snapshot(args) => snapshot::snapshot(app, args).await,
        Verb::Restore(args) => restore::restore(app, args).await,
        Verb::Rollback(args) => rollback::rollback(app, args).await,
        Verb::Fork(args) => fork::fork(app, args).await,
        Verb::List(args) => list::list(app, args).await,
        Verb::Show(args) => show::show(app, args).await,
        Verb::Log(args) => log::log(app, args).await,
        Verb::Apply(args) => apply::apply(app, args).await,
        Verb::Diff(args) => diff::diff(app, args).await,
        Verb::Ls(args) => ls::ls(app, args).await,
        Verb::Cat(args) => cat::cat(app, args).await,
        Verb::Cp(args) => cp::cp(app, args).await,
        Verb::Delete(args) => delete::delete(app, args).await,
        Verb::Edit(args) => edit::edit(app, args).await,
        Verb::Prune(args) => prune::prune(app, args).await,
        Verb::Stats => stats::stats(app).await,
        Verb::Watch(args) => watch::watch(app, args).await,
        Verb::ImportLegacy(args) => import_legacy::import(app, args).await,
        Verb::Validate(args) => validate::validate(app, args).await,
        Verb::Template(args) => template::template(app, args).await,
        // These bring their own data directory, or need none.
        Verb::Demo(_)
        | Verb::Doctor
        | Verb::Config(_)
        | Verb::Completions(_)
        | Verb::Man(_)
        | Verb::Complete(_) => Ok(Exit::DONE),
    }
}

/// The fates of several things that were asked for at once.
#[derive(Debug, Default)]
struct Several {
    failed: Vec<FailedJson>,
    worst: u8,
}

impl Several {
    /// Tells of a failure at once, with its hint; the others go on.
    async fn failed(&mut self, app: &App, reference: &str, error: Error, about: About) {
        let failure = Failure::new(error, about);
        self.worst = self.worst.max(failure.exit_code());
        if !app.out.json {
            let hint = crate::hint::hint(&failure, Some(app)).await;
            failure.print(&app.out, hint.as_deref());
        }
        let error = failure.error.chain().to_string();
        self.failed.push(FailedJson { reference: reference.to_owned(), error });
    }

    fn exit(&self) -> Exit {
        Exit(self.worst)
    }
}
