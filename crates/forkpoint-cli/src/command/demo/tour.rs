//! The story: an agent works, breaks what it made, and goes back; then it tries several ways on.

use std::time::Duration;

use forkpoint_core::{
    Error, ErrorKind,
    driver::{Command, ExitStatus},
    engine::{
        CompareRequest, CreateRequest, ForkRequest, ForkSource, RollbackRequest, SnapshotRequest,
        Wait,
    },
    spec::SandboxSpec,
};
use futures::{StreamExt as _, future::join_all};

use super::{Stage, Stop};
use crate::{
    app::{App, now},
    command::{diff, log},
    output::{Output, human::clean},
};

/// Where the agent of the story works. Nothing outside of it is touched, not even in the sandbox.
const PROJECT: &str = "/srv/project";

/// Copies whose words are shown; the others are counted.
const SHOWN: usize = 4;

pub(super) async fn tour(app: &App, stage: &mut Stage, copies: usize) -> Result<(), Stop> {
    prepare(app, stage).await?;
    create(app, stage).await?;
    work(app, stage).await?;
    snapshot(app, stage).await?;
    break_it(app, stage).await?;
    compare(app, stage).await?;
    roll_back(app, stage).await?;
    let names = fork(app, stage, copies).await?;
    diverge(app, stage, &names).await?;
    show_lineage(app, stage).await
}

/// The first sandbox of a data directory waits for what all others then share.
async fn prepare(app: &App, stage: &mut Stage) -> Result<(), Stop> {
    let since = now();
    let first = app.engine.create(CreateRequest::new(host()?)).await?;
    app.engine.destroy(&first.id.to_string(), Wait::No).await?;
    stage.step("prepare", "look at this machine, once for a data directory", since)
}

fn host() -> Result<SandboxSpec, Error> {
    Ok(SandboxSpec::new("host".parse()?))
}

async fn create(app: &App, stage: &mut Stage) -> Result<(), Stop> {
    let since = now();
    let spec = host()?;
    let request = CreateRequest { name: Some("agent".parse()?), ..CreateRequest::new(spec) };
    app.engine.create(request).await?;
    stage.step("create", "a sandbox that starts as this machine is", since)?;
    Ok(stage.typed("forkpoint create --name agent")?)
}

async fn work(app: &App, stage: &mut Stage) -> Result<(), Stop> {
    let since = now();
    let script = format!(
        "mkdir -p {PROJECT} && cd {PROJECT} && echo 'print(42)' > main.py && \
         echo 'port = 8080' > config.toml && echo 'it works' > notes.md"
    );
    sh(app, "agent", &script).await?;
    stage.step("work", "an agent writes three files", since)?;
    Ok(stage.typed("forkpoint exec agent -- sh -c '…'")?)
}

async fn snapshot(app: &App, stage: &mut Stage) -> Result<(), Stop> {
    let since = now();
    let description = Some("it works".to_owned());
    let name = Some("good".parse()?);
    app.engine
        .snapshot(SnapshotRequest { name, description, ..SnapshotRequest::new("agent") })
        .await?;
    stage.step("snapshot", "keep this moment", since)?;
    Ok(stage.typed("forkpoint snapshot agent --no-sync --name good -m 'it works'")?)
}

async fn break_it(app: &App, stage: &mut Stage) -> Result<(), Stop> {
    let since = now();
    let script = format!("cd {PROJECT} && rm main.py config.toml && echo oops > notes.md && ls");
    let left = sh(app, "agent", &script).await?;
    stage.step("break", "the agent deletes its own work", since)?;
    stage.typed("forkpoint exec agent -- rm main.py config.toml")?;
    Ok(stage.told(&format!("left in {PROJECT}: {}", words(&left)))?)
}

async fn compare(app: &App, stage: &mut Stage) -> Result<(), Stop> {
    let since = now();
    let request = CompareRequest { from: "agent".to_owned(), to: None, under: Vec::new() };
    let changes = app.engine.compare(&request).await?.diff.changes;
    stage.step("diff", "what it did since that moment", since)?;
    let lines: Vec<String> = changes.iter().map(|change| diff::line(&app.out, change)).collect();
    expect(lines.len() == 3, "tell the three changes", &lines.join("\n"))?;
    stage.typed("forkpoint diff agent")?;
    Ok(lines.iter().try_for_each(|line| stage.told(line))?)
}

async fn roll_back(app: &App, stage: &mut Stage) -> Result<(), Stop> {
    let since = now();
    app.engine.rollback(RollbackRequest::new("agent")).await?;
    stage.step("rollback", "the same sandbox, as it was", since)?;
    let back = sh(app, "agent", &format!("cd {PROJECT} && ls && cat notes.md")).await?;
    expect(back == "config.toml\nmain.py\nnotes.md\nit works\n", "bring the files back", &back)?;
    stage.typed("forkpoint rollback agent")?;
    Ok(stage.told(&format!("back in {PROJECT}: config.toml main.py notes.md"))?)
}

async fn fork(app: &App, stage: &mut Stage, copies: usize) -> Result<Vec<String>, Stop> {
    let since = now();
    let source = ForkSource::Snapshot("good".to_owned());
    let request = ForkRequest { name: Some("try".parse()?), ..ForkRequest::new(source, copies) };
    let forked = app.engine.fork(request).await?;
    for child in forked.children {
        child.result?;
    }
    let says = match copies {
        1 => "a copy of that moment".to_owned(),
        _ => format!("{copies} copies of that moment"),
    };
    stage.step("fork", &says, since)?;
    stage.typed(&format!("forkpoint fork good -n {copies} --name try"))?;
    Ok((1..=copies).map(|number| format!("try-{number}")).collect())
}

async fn diverge(app: &App, stage: &mut Stage, names: &[String]) -> Result<(), Stop> {
    let since = now();
    let answers = join_all(names.iter().map(|name| {
        let script =
            format!("cd {PROJECT} && echo 'an idea of {name}' >> notes.md && tail -n 1 notes.md");
        async move { sh(app, name, &script).await }
    }));
    let answers: Vec<String> = answers.await.into_iter().collect::<Result<_, _>>()?;
    let source = sh(app, "agent", &format!("tail -n 1 {PROJECT}/notes.md")).await?;
    for (name, answer) in names.iter().zip(&answers) {
        expect(*answer == format!("an idea of {name}\n"), "keep the copies apart", answer)?;
    }
    expect(source == "it works\n", "leave the source alone", &source)?;
    stage.step("diverge", "each copy goes its own way", since)?;
    for (name, answer) in names.iter().zip(&answers).take(SHOWN) {
        stage.told(&format!("{name:6} notes.md ends with: {}", words(answer)))?;
    }
    if names.len() > SHOWN {
        stage.told(&format!("… and {} more", names.len() - SHOWN))?;
    }
    Ok(stage.told(&format!("{:6} notes.md ends with: {}", "agent", words(&source)))?)
}

async fn show_lineage(app: &App, stage: &mut Stage) -> Result<(), Stop> {
    let since = now();
    for name in ["try-1", "try-2"] {
        if app.engine.sandbox(name).await.is_ok() {
            let description = Some(format!("after the idea of {name}"));
            let request = SnapshotRequest { description, ..SnapshotRequest::new(name) };
            app.engine
                .snapshot(SnapshotRequest {
                    name: Some(format!("{name}-done").parse()?),
                    ..request
                })
                .await?;
        }
    }
    let rows = app.engine.log(None).await?;
    let stands = log::stands(app).await?;
    stage.step("log", "two more snapshots, and where everything stands", since)?;
    stage.typed("forkpoint log")?;
    let out = Output { width: app.out.width.map(|width| width.saturating_sub(12)), ..app.out };
    for line in log::draw(&rows, &stands, &out, now()) {
        stage.told(&line)?;
    }
    Ok(())
}

/// Runs a script to its end and gives what it printed.
async fn sh(app: &App, sandbox: &str, script: &str) -> Result<String, Error> {
    let live = app.engine.attach(sandbox).await?;
    let command = Command {
        timeout: Some(Duration::from_secs(10)),
        ..Command::new(["/bin/sh", "-c", script])
    };
    let mut process = live.exec(&command).await?;
    let mut printed = Vec::new();
    for stream in [&mut process.stdout, &mut process.stderr] {
        while let Some(Ok(bytes)) = stream.next().await {
            printed.extend_from_slice(&bytes);
        }
    }
    let printed = String::from_utf8_lossy(&printed).into_owned();
    match process.control.wait().await? {
        ExitStatus::Code(0) => Ok(printed),
        status => {
            let message =
                format!("a script of the tour ended with {status:?}: {}", words(&printed));
            Err(Error::new(ErrorKind::Unavailable, message))
        }
    }
}

/// The tour shows what is true, or it fails.
fn expect(is_so: bool, what: &str, found: &str) -> Result<(), Error> {
    match is_so {
        true => Ok(()),
        false => {
            let message = format!("the sandbox did not {what}: found {found:?}");
            Err(Error::new(ErrorKind::Internal, message))
        }
    }
}

fn words(text: &str) -> String {
    clean(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}
