//! A socket between the driver and its engine, at which the connection can break.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

/// What happens at the request that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// The engine never hears of it.
    Before,
    /// The engine does it, and nobody hears of that.
    After,
}

pub(super) struct Proxy {
    pub(super) path: PathBuf,
    seen: Arc<AtomicUsize>,
    dead: Arc<AtomicBool>,
}

impl Proxy {
    /// Lets `count` requests pass that change something, and then none at all.
    pub(super) fn new(directory: &Path, engine: PathBuf, count: usize, cut: Cut) -> Self {
        let path = directory.join(format!("proxy-{count}-{cut:?}.sock"));
        let listener = UnixListener::bind(&path).unwrap();
        let (seen, dead) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let shared = (Arc::clone(&seen), Arc::clone(&dead));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (engine, shared) = (engine.clone(), shared.clone());
                thread::spawn(move || {
                    let _ = carry(client, &engine, count, cut, &shared);
                });
            }
        });
        Self { path, seen, dead }
    }

    /// Whether the request that was chosen ever came.
    pub(super) fn was_cut(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    pub(super) fn seen(&self) -> usize {
        self.seen.load(Ordering::SeqCst)
    }
}

fn carry(
    mut client: UnixStream,
    engine: &Path,
    count: usize,
    cut: Cut,
    (seen, dead): &(Arc<AtomicUsize>, Arc<AtomicBool>),
) -> io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if client.read(&mut byte)? == 0 {
            return Ok(());
        }
        head.push(byte[0]);
    }
    let changes = !head.starts_with(b"GET") && !head.starts_with(b"HEAD");
    let is_it = changes && seen.fetch_add(1, Ordering::SeqCst) == count;
    if dead.load(Ordering::SeqCst) || is_it && cut == Cut::Before {
        dead.store(true, Ordering::SeqCst);
        return client.shutdown(Shutdown::Both);
    }
    if is_it {
        dead.store(true, Ordering::SeqCst);
    }
    let mut server = UnixStream::connect(engine)?;
    server.write_all(&head)?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    });
    if is_it {
        // Until the engine has done it.
        let _ = io::copy(&mut server, &mut io::sink());
        return client.shutdown(Shutdown::Both);
    }
    io::copy(&mut server, &mut client)?;
    client.shutdown(Shutdown::Both)
}
