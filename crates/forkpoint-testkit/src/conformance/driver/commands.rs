//! Commands: how they start, talk and end.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use forkpoint_core::{
    driver::{Command, DriverError, ExitStatus, Process, TtySize},
    part::ByteStream,
    spec::SandboxSpec,
};
use futures::{SinkExt as _, StreamExt as _, future};

use super::scene::*;

pub async fn runs_commands(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    assert_eq!(run(sandbox.as_ref(), &["true"]).await.2, ExitStatus::Code(0));
    assert_eq!(run(sandbox.as_ref(), &["sh", "-c", "exit 7"]).await.2, ExitStatus::Code(7));
    assert_eq!(run(sandbox.as_ref(), &["echo", "a", "b"]).await.0, "a b\n");
    let (out, err, status) = run(sandbox.as_ref(), &["cat", "/no/such/file"]).await;
    assert!(out.is_empty() && !err.is_empty() && status != ExitStatus::Code(0));
    assert!(sandbox.exec(&Command::default()).await.is_err(), "an empty command");
    driver.destroy(sandbox.id()).await.unwrap();
}

pub async fn feeds_standard_input_and_environment(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let mut spec = fixture.spec();
    spec.env.insert("FROM_SPEC".into(), "one".into());
    let sandbox = driver.create(new_sandbox(fixture), &spec).await.unwrap();
    assert_eq!(run(sandbox.as_ref(), &["printenv", "FROM_SPEC"]).await.0, "one\n");

    let mut command = Command::new(["printenv", "FROM_CALL"]);
    command.env.insert("FROM_CALL".into(), "two".into());
    assert_eq!(finish(sandbox.exec(&command).await.unwrap()).await.0, "two\n");

    let command = Command { stdin: true, ..Command::new(["cat"]) };
    let mut process = sandbox.exec(&command).await.unwrap();
    let stdin = process.stdin.as_mut().unwrap();
    stdin.send(Bytes::from_static(b"through the pipe")).await.unwrap();
    assert_eq!(finish(process).await.0, "through the pipe");
    driver.destroy(sandbox.id()).await.unwrap();
}

pub async fn signals_and_limits_end_a_command(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    let process = sandbox.exec(&Command::new(["sleep", "1000"])).await.unwrap();
    process.control.signal(9).await.unwrap();
    assert_eq!(process.control.wait().await.unwrap(), ExitStatus::Signal(9));
    assert_eq!(process.control.wait().await.unwrap(), ExitStatus::Signal(9), "asked again");
    let timeout = Some(Duration::from_millis(50));
    let command = Command { timeout, ..Command::new(["sleep", "1000"]) };
    let (_, _, status) = finish(sandbox.exec(&command).await.unwrap()).await;
    assert_eq!(status, ExitStatus::TimedOut);
    driver.destroy(sandbox.id()).await.unwrap();
}

pub async fn a_command_that_is_missing_or_cannot_run_is_told(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    write(sandbox.as_ref(), "/data/notes", "no program").await;
    for missing in ["no-such-command-anywhere", "/no/such/program"] {
        match sandbox.exec(&Command::new([missing])).await.map(drop) {
            Err(DriverError::CommandMissing { command }) => assert_eq!(command, missing),
            other => panic!("`{missing}` is missing, and the answer is {other:?}"),
        }
    }
    let mut refused = vec!["/etc", "/data/notes"];
    if fixture.real() {
        shell(sandbox.as_ref(), "echo garbage > /data/garbage; chmod 755 /data/garbage").await;
        refused.push("/data/garbage");
    }
    for program in refused {
        match sandbox.exec(&Command::new([program])).await.map(drop) {
            Err(DriverError::CommandRefused { command, .. }) => assert_eq!(command, program),
            other => panic!("`{program}` is no program, and the answer is {other:?}"),
        }
    }
    assert_eq!(run(sandbox.as_ref(), &["true"]).await.2, ExitStatus::Code(0), "it goes on");
    driver.destroy(sandbox.id()).await.unwrap();
}

pub async fn a_command_runs_where_it_is_told_to(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let spec = SandboxSpec { workdir: Some(path("/etc")), ..fixture.spec() };
    let sandbox = driver.create(new_sandbox(fixture), &spec).await.unwrap();
    write(sandbox.as_ref(), "/data/deep/file", "").await;
    assert_eq!(run(sandbox.as_ref(), &["pwd"]).await.0, "/etc\n");
    let command = Command { workdir: Some(path("/data/deep")), ..Command::new(["pwd"]) };
    assert_eq!(finish(sandbox.exec(&command).await.unwrap()).await.0, "/data/deep\n");
    driver.destroy(sandbox.id()).await.unwrap();
}

pub async fn input_that_nobody_gives_is_empty(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    for stdin in [false, true] {
        let command = Command { stdin, ..Command::new(["cat"]) };
        let process = sandbox.exec(&command).await.unwrap();
        assert_eq!(process.stdin.is_some(), stdin);
        let (out, err, status) = finish(process).await;
        assert_eq!((out.as_str(), err.as_str(), status), ("", "", ExitStatus::Code(0)));
    }
    driver.destroy(sandbox.id()).await.unwrap();
}

pub async fn much_goes_through_every_pipe_at_once(fixture: Fixture<'_>) {
    const LEN_BYTES: usize = 1 << 20;
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    let command = Command { stdin: true, ..Command::new(["cat"]) };
    let Process { stdin, stdout, control, .. } = sandbox.exec(&command).await.unwrap();
    let mut stdin = stdin.unwrap();
    let send = async move {
        for _ in 0..LEN_BYTES / 1024 {
            stdin.send(Bytes::from_static(&[b'x'; 1024])).await.unwrap();
        }
    };
    let ((), back) = futures::join!(send, collect(stdout));
    assert_eq!(back.len(), LEN_BYTES);
    assert_eq!(control.wait().await.unwrap(), ExitStatus::Code(0));

    if fixture.real() {
        let script = "seq 1 200000 & seq 1 200000 >&2; wait";
        let (out, err, status) = run(sandbox.as_ref(), &["sh", "-c", script]).await;
        assert_eq!(status, ExitStatus::Code(0));
        for text in [out, err] {
            assert_eq!(text.len(), 1_288_895);
            assert!(text.ends_with("\n200000\n"));
        }
    }
    driver.destroy(sandbox.id()).await.unwrap();
}

pub async fn many_commands_run_at_once(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    let all = (0..20).map(|number| {
        let sandbox = Arc::clone(&sandbox);
        async move {
            let (word, exit) = (number.to_string(), format!("exit {number}"));
            let said = run(sandbox.as_ref(), &["echo", &word]).await;
            let ended = run(sandbox.as_ref(), &["sh", "-c", &exit]).await;
            assert_eq!(said.0, format!("{number}\n"));
            assert_eq!(ended.2, ExitStatus::Code(number));
        }
    });
    future::join_all(all).await;
    driver.destroy(sandbox.id()).await.unwrap();
}

/// Reads until `text` was said, and answers with all of it so far.
async fn await_text(stream: &mut ByteStream, text: &str) -> String {
    let mut said = String::new();
    while !said.contains(text) {
        let bytes = stream.next().await.unwrap_or_else(|| panic!("{said:?} without {text:?}"));
        said.push_str(&String::from_utf8_lossy(&bytes.unwrap()));
    }
    said
}

pub async fn a_shell_traps_a_signal(fixture: Fixture<'_>) {
    if !fixture.real() {
        return;
    }
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    let script = "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let mut process = sandbox.exec(&Command::new(["sh", "-c", script])).await.unwrap();
    await_text(&mut process.stdout, "ready").await;
    process.control.signal(15).await.unwrap();
    let (out, _, status) = finish(process).await;
    assert_eq!((out.trim(), status), ("caught", ExitStatus::Code(5)));
    driver.destroy(sandbox.id()).await.unwrap();
}

pub async fn a_terminal_has_a_size_that_changes(fixture: Fixture<'_>) {
    if !fixture.real() {
        return;
    }
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    let tty = Some(TtySize { rows: 24, columns: 80 });
    let script = "test -t 0 && test -t 1 && test -t 2 && stty size";
    let command = Command { tty, ..Command::new(["sh", "-c", script]) };
    let (out, _, status) = finish(sandbox.exec(&command).await.unwrap()).await;
    assert_eq!((out.trim(), status), ("24 80", ExitStatus::Code(0)));

    let script = "stty size; read line; echo \"got $line\"; stty size";
    let command = Command { tty, stdin: true, ..Command::new(["sh", "-c", script]) };
    let mut process = sandbox.exec(&command).await.unwrap();
    await_text(&mut process.stdout, "24 80").await;
    process.control.resize(TtySize { rows: 31, columns: 111 }).await.unwrap();
    process.stdin.as_mut().unwrap().send(Bytes::from_static(b"it\n")).await.unwrap();
    let said = await_text(&mut process.stdout, "31 111").await;
    assert!(said.contains("got it"), "{said:?}");
    assert_eq!(process.control.wait().await.unwrap(), ExitStatus::Code(0));
    driver.destroy(sandbox.id()).await.unwrap();
}

pub async fn a_command_runs_as_the_user_that_it_is_told(fixture: Fixture<'_>) {
    if !fixture.real() || !fixture.privileged() {
        return;
    }
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    let script = "id -u; id -g";
    let command = Command { user: Some("1:1".into()), ..Command::new(["sh", "-c", script]) };
    let (out, err, status) = finish(sandbox.exec(&command).await.unwrap()).await;
    assert_eq!((out.as_str(), err.as_str(), status), ("1\n1\n", "", ExitStatus::Code(0)));
    driver.destroy(sandbox.id()).await.unwrap();
}
